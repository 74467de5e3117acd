"""Columns as a table declares them: texts with their collations, and CHAR(n) padded with blanks.

Spark uses the declaration of a column in comparisons, also in the user's filters.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from dagster_delta.engines.spark.session.schema import (
    column_metadata,
    declared_spark_type,
    to_spark_type,
)
from dagster_delta.protocol.features.text_limits import char_length, padded_type
from dagster_delta.protocol.schema import ArrayType, DataType, MapType, StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["declared_column", "is_declared", "padded_column"]


def is_declared(field: StructField) -> bool:
    """Whether the type and the metadata of a DataFrame's column say more than the table's type."""
    has_collation = declared_spark_type(field) != to_spark_type(field.data_type)
    return has_collation or padded_type(field) is not None


def declared_column(column: Column, field: StructField) -> Column:
    """A column with its name, its collations and its metadata."""
    target = declared_spark_type(field)
    if target != to_spark_type(field.data_type):
        column = column.cast(target)
    return column.alias(field.name, metadata=column_metadata(field))


def padded_column(column: Column, field: StructField, functions: ModuleType) -> Column:
    """A column from the files, with its texts padded."""
    return _padded(column, padded_type(field), functions)


def _padded(column: Column, declared: DataType | None, functions: ModuleType) -> Column:
    length = char_length(declared)
    if length is not None:
        is_short = functions.char_length(column) < length
        found: Column = functions.when(is_short, functions.rpad(column, length, " "))
        return found.otherwise(column)

    def each(inner: DataType) -> Callable[[Column], Column]:
        return lambda value: _padded(value, inner, functions)

    match declared:
        case StructType(fields):
            parts = [
                _padded(column.getField(field.name), field.data_type, functions).alias(field.name)
                for field in fields
            ]
            return functions.when(column.isNotNull(), functions.struct(*parts))  # type: ignore[no-any-return]
        case ArrayType(element_type):
            return functions.transform(column, each(element_type))  # type: ignore[no-any-return]
        case MapType(key_type, value_type):
            keys = functions.transform(functions.map_keys(column), each(key_type))
            values = functions.transform(functions.map_values(column), each(value_type))
            return functions.map_from_arrays(keys, values)  # type: ignore[no-any-return]
    return column
