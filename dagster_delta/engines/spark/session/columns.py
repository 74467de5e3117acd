"""Converts columns of data files to columns of the table, as Spark expressions.

Columns keep what the table declares, collations and CHAR(n), which Spark uses in comparisons, also
in the user's filters.

Spec: Column Mapping.
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
from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.features.column_mapping import field_id, physical_name
from dagster_delta.protocol.features.text_limits import char_length, padded_type
from dagster_delta.protocol.features.type_widening import type_changes
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    inner_types,
    walk_fields,
)
from dagster_delta.sql.tokens import without_variables

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql import types as spark_types

    from dagster_delta.protocol.table_properties import ColumnMappingMode

VOID = PrimitiveType("void")

_INT32_TYPES = frozenset({PrimitiveType("byte"), PrimitiveType("short"), PrimitiveType("integer")})
_INT32_DIGITS = 10


def quote(name: str) -> str:
    """A name as one identifier of Spark SQL."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def sql_column(sql: str, functions: ModuleType) -> Column:
    """A Spark SQL expression as a column, in which no variable of the session is replaced."""
    return functions.expr(without_variables(sql))


def _is_void(field: StructField) -> bool:
    """Whether a column has only nulls and no data file stores it."""
    return field.data_type == VOID


def has_nested_void(data_type: DataType) -> bool:
    """Whether the type has a nested void, which no Parquet schema can express."""
    return any(each == VOID or has_nested_void(each) for each in inner_types(data_type))


def has_unreadable_widening(schema: StructType) -> bool:
    """Whether files from before a type change may hold integers that Spark's reader refuses to
    read as the current decimal.

    It requires ten digits before the point for a Parquet INT32. The protocol requires the same of
    writers, but tables with fewer digits exist.
    """
    for _, field in walk_fields(schema):
        changes = type_changes(field)
        newest = {each.field_path: each.to_type for each in changes}
        for each in changes:
            target = newest[each.field_path]
            if (
                each.from_type in _INT32_TYPES
                and isinstance(target, DecimalType)
                and target.precision - target.scale < _INT32_DIGITS
            ):
                return True
    return False


def physical_read_schema(
    fields: tuple[StructField, ...], mode: ColumnMappingMode
) -> spark_types.StructType:
    """The schema to read data files with: physical names, or under mode `id` field ids.

    Void columns are omitted, since no data file has them.
    """
    from pyspark.sql import types

    return types.StructType(
        [_read_field(each, mode) for each in fields if not _is_void(each)],
    )


def _read_field(field: StructField, mode: ColumnMappingMode) -> spark_types.StructField:
    from pyspark.sql import types

    metadata = {"parquet.field.id": _required_id(field)} if mode == "id" else None
    name = read_name(field, mode)
    return types.StructField(name, _read_type(field.data_type, mode), True, metadata)


def _read_type(data_type: DataType, mode: ColumnMappingMode) -> spark_types.DataType:
    from pyspark.sql import types

    match data_type:
        case StructType(fields):
            return types.StructType([_read_field(each, mode) for each in fields])
        case ArrayType(element_type):
            return types.ArrayType(_read_type(element_type, mode))
        case MapType(key_type, value_type):
            return types.MapType(_read_type(key_type, mode), _read_type(value_type, mode))
        case _:
            return to_spark_type(data_type)


def read_name(field: StructField, mode: ColumnMappingMode) -> str:
    """The name under which Spark reads a field.

    Under mode `id` no file has this name: if Spark falls back to names, it finds no column instead
    of a wrong one, and so do predicates pushed down by name.
    """
    if mode == "id":
        return f"__field_id_{_required_id(field)}"
    return physical_name(field, mode)


def _required_id(field: StructField) -> int:
    found = field_id(field)
    if found is None:
        raise InvalidTable(
            f"the table maps columns by id, and column {field.name} has none: the schema is "
            "damaged; restore an older version of the table",
            column=field.name,
        )
    return found


def logical_column(field: StructField, mode: ColumnMappingMode, functions: ModuleType) -> Column:
    """The expression that converts a column from the files to the column of the table."""
    if _is_void(field):
        return functions.lit(None)
    read: Column = functions.col(quote(read_name(field, mode)))
    if not _is_renamed_inside(field.data_type, mode):
        return read
    if mode == "id":
        # Spark prunes nested columns by name and loses their ids, which silently makes them null;
        # it never prunes through a cast.
        return read.cast(to_spark_type(field.data_type))
    return _renamed(read, field.data_type, mode, functions)


def _renamed(
    read: Column, data_type: DataType, mode: ColumnMappingMode, functions: ModuleType
) -> Column:
    if not _is_renamed_inside(data_type, mode):
        return read
    if not isinstance(data_type, StructType):
        return read.cast(to_spark_type(data_type))
    # Field by field instead of by one cast, so that Spark still reads only the fields it needs.
    fields = [
        _renamed(read.getField(physical_name(each, mode)), each.data_type, mode, functions).alias(
            each.name
        )
        for each in data_type
    ]
    return functions.when(read.isNotNull(), functions.struct(*fields))


def _is_renamed_inside(data_type: DataType, mode: ColumnMappingMode) -> bool:
    if isinstance(data_type, StructType) and any(
        read_name(each, mode) != each.name for each in data_type
    ):
        return True
    return any(_is_renamed_inside(each, mode) for each in inner_types(data_type))


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
            return functions.when(column.isNotNull(), functions.struct(*parts))
        case ArrayType(element_type):
            return functions.transform(column, each(element_type))
        case MapType(key_type, value_type):
            keys = functions.transform(functions.map_keys(column), each(key_type))
            values = functions.transform(functions.map_values(column), each(value_type))
            return functions.map_from_arrays(keys, values)
    return column
