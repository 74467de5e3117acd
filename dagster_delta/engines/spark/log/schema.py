"""The schema in which Spark reads the Parquet files of a checkpoint, as writers store them
differently.

Spec: Checkpoint Schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_delta.protocol.checkpoint.reader import ADD_SOURCES, CheckpointPart

if TYPE_CHECKING:
    from pyspark.sql import types as spark_types

PARSED_STATISTICS = "stats_parsed"
"""The field with statistics as typed columns."""

# Without these fields, neither the file of a row nor its live rows are known.
_REQUIRED = ("path", "partitionValues", "size", "deletionVector")

_PLAIN = {
    pa.string(): "StringType",
    pa.large_string(): "StringType",
    pa.binary(): "BinaryType",
    pa.bool_(): "BooleanType",
    pa.int8(): "ByteType",
    pa.int16(): "ShortType",
    pa.int32(): "IntegerType",
    pa.int64(): "LongType",
    pa.float32(): "FloatType",
    pa.float64(): "DoubleType",
    pa.date32(): "DateType",
}


def add_type(part: CheckpointPart) -> spark_types.StructType:
    """The `add` struct of a file without statistics as columns: only the fields and types
    that the file has, because Spark reads a column only as its stored type.
    """
    names = [name for name in ADD_SOURCES.values() if part.has("add", name)]
    return _struct(part.schema.field("add").type, names)


def with_parsed_statistics(
    add: spark_types.StructType, part: CheckpointPart
) -> spark_types.StructType:
    """The same with the statistics that the file has as columns, where Spark reads their types."""
    from pyspark.sql import types

    if not part.has("add", PARSED_STATISTICS):
        return add
    stored = part.schema.field("add").type.field(PARSED_STATISTICS).type
    parsed = _spark_type(stored)
    if not isinstance(parsed, types.StructType) or "numRecords" not in parsed.fieldNames():
        return add
    return types.StructType([*add.fields, types.StructField(PARSED_STATISTICS, parsed)])


def has_unreadable_add(part: CheckpointPart) -> bool:
    """Whether a checkpoint stores a required field of an add in a type that is not read."""
    found = add_type(part).fieldNames()
    return any(part.has("add", name) and name not in found for name in _REQUIRED)


def _struct(stored: pa.StructType, names: Iterable[str]) -> spark_types.StructType:
    from pyspark.sql import types

    typed: Mapping[str, spark_types.DataType | None] = {
        name: _spark_type(stored.field(name).type) for name in names
    }
    return types.StructType(
        [types.StructField(name, each) for name, each in typed.items() if each is not None]
    )


def _spark_type(stored: pa.DataType) -> spark_types.DataType | None:
    """The type of a stored column; None if Spark's reader and ours may read it differently."""
    from pyspark.sql import types

    if stored in _PLAIN:
        plain: spark_types.DataType = getattr(types, _PLAIN[stored])()
        return plain
    if pa.types.is_decimal128(stored):
        return types.DecimalType(stored.precision, stored.scale)
    if pa.types.is_timestamp(stored) and stored.unit in {"us", "ms"}:
        # The old INT96 is shown as nanoseconds.
        return types.TimestampNTZType() if stored.tz is None else types.TimestampType()
    if pa.types.is_struct(stored):
        found = _struct(stored, [field.name for field in stored])
        return found if found.fields else None
    if pa.types.is_map(stored):
        key, item = _spark_type(stored.key_type), _spark_type(stored.item_type)
        return None if key is None or item is None else types.MapType(key, item)
    return None
