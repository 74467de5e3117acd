"""Partition values of files, which Spark adds to the rows.

The log alone defines them: directories give them only if each has exactly the value in the log.
Spark then skips whole directories for a filter that is added after the scan was planned.

Spec: Partition Value Serialization; Data Files (Hive-style directories are a convention).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.spark.session.schema import to_spark_type
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import DecimalType, PrimitiveType, StructField
from dagster_delta.protocol.values.partition_values import HIVE_NULL, parse_partition_column
from dagster_delta.sql.tokens import quote

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql import types as spark_types

_INTEGER = re.compile(r"0|-?[1-9]\d{0,18}")
_TIMESTAMP_NTZ = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?")
_TIMESTAMP = re.compile(_TIMESTAMP_NTZ.pattern + r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")
_TRUSTED_TEXT = {
    # Formats of a type that Spark and the protocol read as the same value.
    "string": re.compile(r"[^\x00-\x1f]+"),
    "byte": _INTEGER,
    "short": _INTEGER,
    "integer": _INTEGER,
    "long": _INTEGER,
    "boolean": re.compile("true|false"),
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "timestamp": _TIMESTAMP,
    "timestamp_ntz": _TIMESTAMP_NTZ,
}
_PASSED_OVER = "_temporary"
"""A directory of this name has no partitions for Spark."""
_ESCAPED_BEYOND_ASCII = re.compile("%[89a-fA-F]")
_DECIMAL = re.compile(r"-?\d+(\.\d+)?")

# The types that Spark parses once per directory. The others it would read by the session's zone
# (timestamps) or wrongly (decimals), so they come as text.
_PARSED_BY_SPARK = {
    "string": "StringType",
    "byte": "IntegerType",
    "short": "IntegerType",
    "integer": "IntegerType",
    "long": "LongType",
    "boolean": "BooleanType",
    "date": "DateType",
}


def are_in_directories(
    files: pa.Table, paths: Sequence[str], root: str, configuration: TableConfiguration
) -> bool:
    """Whether the directories of all files have the partition values of the log.

    `paths`: path of each file, see `spark_path`.
    """
    if root.rpartition("/")[2].lower() == _PASSED_OVER:
        return False
    values = files["partition_values"].combine_chunks()
    names = configuration.physical_partition_columns
    columns = [pc.map_lookup(values, name, "first").to_pylist() for name in names]
    directories = (path.rpartition("/")[0] for path in paths)
    expected = set(zip(directories, *columns, strict=True))
    patterns = [_trusted_text(each) for each in configuration.partition_schema]
    if None in patterns:
        return False
    return all(
        _spells(directory.removeprefix(root + "/"), names, texts, patterns)
        for directory, *texts in expected
    )


def _trusted_text(field: StructField) -> re.Pattern[str] | None:
    match field.data_type:
        case DecimalType():
            return _DECIMAL
        case PrimitiveType(name):
            return _TRUSTED_TEXT.get(name)
        case _:
            return None


def _spells(
    directory: str,
    names: Sequence[str],
    texts: Sequence[str | None],
    patterns: Sequence[re.Pattern[str] | None],
) -> bool:
    parts = directory.split("/")
    return len(parts) == len(names) and all(
        _is_part(*each) for each in zip(parts, names, texts, patterns, strict=True)
    )


def _is_part(part: str, name: str, text: str | None, pattern: re.Pattern[str] | None) -> bool:
    found, equals, value = part.partition("=")
    if not equals or found != name or "%" in name:
        return False
    if not text:
        return value == HIVE_NULL
    if text == HIVE_NULL or pattern is None or not pattern.fullmatch(text):
        return False
    # Spark unescapes to characters, not to bytes of UTF-8; below U+0080 that is the same.
    return _ESCAPED_BEYOND_ASCII.search(value) is None and unquote(value) == text


def directory_read_fields(configuration: TableConfiguration) -> list[spark_types.StructField]:
    """The partition columns as Spark reads them from the directories."""
    from pyspark.sql import types

    fields = []
    for field, name in zip(
        configuration.partition_schema, configuration.physical_partition_columns, strict=True
    ):
        parsed = _PARSED_BY_SPARK.get(str(field.data_type), "StringType")
        made: Callable[[], spark_types.DataType] = getattr(types, parsed)
        fields.append(types.StructField(name, made()))
    return fields


def directory_column(
    field: StructField, configuration: TableConfiguration, functions: ModuleType
) -> Column:
    """The value of a partition column from the value that Spark read from the directory."""
    read = functions.col(quote(configuration.physical_name(field.name)))
    if field.data_type == PrimitiveType("timestamp"):
        # Spec: text without a zone is UTC, also if the session's zone is another.
        zone = functions.when(functions.endswith(read, functions.lit("Z")), "").otherwise("Z")
        read = functions.concat(read, zone)
    return read.cast(to_spark_type(field.data_type))


def partition_table(
    files: pa.Table, fields: tuple[StructField, ...], configuration: TableConfiguration
) -> pa.Table:
    """The typed partition values of each file, a pyarrow.Table under logical names."""
    values = files["partition_values"].combine_chunks()
    columns = [
        parse_partition_column(
            pc.map_lookup(values, configuration.physical_name(field.name), "first"),
            field.data_type,
            column=field.name,
        )
        for field in fields
    ]
    if not columns:
        # A table without columns would lose the number of files.
        return pa.table({"": pa.nulls(files.num_rows)}).select([])
    return pa.table(columns, [field.name for field in fields])


def are_equal(values: pa.Table) -> bool:
    """Whether all files have the same partition values: one literal per column is enough."""
    return all(len(pc.unique(column)) == 1 for column in values.columns)


def partition_literal(value: pa.Scalar, field: StructField, functions: ModuleType) -> Column:
    """A partition value as a Spark literal that no setting of the session changes."""
    target = to_spark_type(field.data_type)
    if not value.is_valid:
        return functions.lit(None).cast(target)
    match field.data_type:
        case PrimitiveType("timestamp"):
            return functions.timestamp_micros(functions.lit(value.value))
        case PrimitiveType("timestamp_ntz"):
            text = pc.strftime(value, "%Y-%m-%d %H:%M:%S").as_py()
            return functions.lit(text).cast(target)
        case PrimitiveType("date"):
            return functions.date_from_unix_date(functions.lit(value.value))
        case PrimitiveType("binary"):
            return functions.unhex(functions.lit(value.as_py().hex()))
        case DecimalType():
            return functions.lit(str(value.as_py())).cast(target)
        case _:
            return functions.lit(value.as_py()).cast(target)
