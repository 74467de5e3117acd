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
from pyspark.sql import types

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.spark.read.file_keys import value_of_file
from dagster_delta.engines.spark.session.schema import to_spark_type
from dagster_delta.engines.spark.session.session import functions_of
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import DecimalType, PrimitiveType, StructField
from dagster_delta.protocol.statistics.bounds import partition_column
from dagster_delta.protocol.values.partition_values import HIVE_NULL
from dagster_delta.sql.typed import quote

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
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
    patterns = [_trusted_text(field) for field in configuration.partition_schema]
    if None in patterns:
        return False
    return all(
        _spells_partition(directory.removeprefix(root + "/"), names, texts, patterns)
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


def _spells_partition(
    directory: str,
    names: Sequence[str],
    texts: Sequence[str | None],
    patterns: Sequence[re.Pattern[str] | None],
) -> bool:
    parts = directory.split("/")
    return len(parts) == len(names) and all(
        _is_part(*part) for part in zip(parts, names, texts, patterns, strict=True)
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
    return read.cast(to_spark_type(field.data_type))


def partition_table(
    files: pa.Table, fields: tuple[StructField, ...], configuration: TableConfiguration
) -> pa.Table:
    """The typed partition values of each file, a pyarrow.Table under logical names."""
    values = files["partition_values"].combine_chunks()
    columns = [partition_column(field.name, configuration, values) for field in fields]
    if not columns:
        # A table without columns would lose the number of files.
        return pa.table({"": pa.nulls(files.num_rows)}).select([])
    return pa.table(columns, [field.name for field in fields])


def are_equal(values: pa.Table) -> bool:
    """Whether all files have the same partition values: one literal per column is enough."""
    return all(len(pc.unique(column)) == 1 for column in values.columns)


def partition_literal(values: pa.ChunkedArray, field: StructField, functions: ModuleType) -> Column:
    """The one partition value of files as a literal that no setting of the session changes."""
    kind, (carried, *_) = _to_carried(values.slice(0, 1), field)
    return _from_carried(functions.lit(carried).cast(kind), field, functions)


def partition_value(
    values: pa.ChunkedArray, field: StructField, number: Column, session: SparkSession
) -> Column:
    """The partition value of a row's file, as an expression of the number of the file.

    `values`: of the files, in the order of their numbers.
    """
    kind, carried = _to_carried(values, field)
    found = value_of_file(number, carried, kind, session)
    return _from_carried(found, field, functions_of(session))


def _to_carried(
    values: pa.ChunkedArray, field: StructField
) -> tuple[str, list[str | int | bool | None]]:
    """Values in the form that JSON and literals hold exactly, and its type in Spark SQL."""
    match str(field.data_type):
        case "byte" | "short" | "integer" | "long":
            return "bigint", values.to_pylist()
        case "boolean":
            return "boolean", values.to_pylist()
        case "timestamp":
            return "bigint", values.cast(pa.int64()).to_pylist()
        case "date":
            return "int", values.cast(pa.int32()).to_pylist()
        case "timestamp_ntz":
            return "string", pc.strftime(values, "%Y-%m-%d %H:%M:%S").to_pylist()
        case "binary":
            return "string", [
                None if value is None else value.hex() for value in values.to_pylist()
            ]
        case "string":
            return "string", values.to_pylist()
        case _:
            return "string", [None if value is None else str(value) for value in values.to_pylist()]


def _from_carried(carried: Column, field: StructField, functions: ModuleType) -> Column:
    match str(field.data_type):
        case "timestamp":
            return functions.timestamp_micros(carried)
        case "date":
            return functions.date_from_unix_date(carried)
        case "binary":
            return functions.unhex(carried)
        case _:
            return carried.cast(to_spark_type(field.data_type))
