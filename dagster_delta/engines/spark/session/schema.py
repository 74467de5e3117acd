"""Schemas of tables as Spark types, schemas of DataFrames as table schemas, and columns of data
files as columns of the table.

Columns keep what the table declares, collations and CHAR(n), which Spark uses in comparisons, also
in the user's filters.

Spec: Column Mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import Column, types

from dagster_delta.errors import InvalidTable, SchemaMismatch
from dagster_delta.protocol.features.column_mapping import field_id, map_fields, physical_name
from dagster_delta.protocol.features.existing_defaults import existing_default
from dagster_delta.protocol.features.text_limits import TEXT_LIMIT_KEY, char_length, padded_type
from dagster_delta.protocol.features.type_widening import type_changes
from dagster_delta.protocol.schema import (
    PRIMITIVE_NAMES,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    as_nullable,
    data_type_to_json,
    fold_name,
    inner_parts,
    inner_types,
    nullable_field,
    walk_fields,
    walk_types,
)
from dagster_delta.sql.tokens import without_variables
from dagster_delta.sql.typed import quote
from dagster_delta.sql.types import BINARY, STRING, TIMESTAMP, VOID, sql_type_name

if TYPE_CHECKING:
    from dagster_delta.protocol.table_properties import ColumnMappingMode


_COLLATIONS_KEY = "__COLLATIONS"
"""Field metadata: collations of the texts in a column, by their path in it."""


def to_spark_type(data_type: DataType) -> types.DataType:
    """The Spark type of a column type: nullable at every depth, without field metadata.

    A read schema is always nullable: a file may lack a column, and Spark trusts a schema that says
    it cannot be null.
    """
    return _spark_field(StructField("", as_nullable(data_type, ()))).dataType


def declared_spark_type(field: StructField) -> types.DataType:
    """The Spark type of a column, with the collations of its texts: Spark compares by them."""
    return _spark_field(nullable_field(field, (_COLLATIONS_KEY,))).dataType


def _spark_field(field: StructField) -> types.StructField:
    return _spark_schema(StructType((field,))).fields[0]


def _spark_schema(schema: StructType) -> types.StructType:
    """The Spark schema with the metadata of the fields: Spark's JSON of a schema is Delta's."""
    json = data_type_to_json(_to_readable(schema))
    return types.StructType.fromJson(cast("dict[str, Any]", json))


def _to_readable(data_type: DataType) -> DataType:
    match data_type:
        case StructType(fields):
            return StructType(tuple(map(_readable_field, fields)))
        case ArrayType(element_type):
            return ArrayType(_to_readable(element_type))
        case MapType(key_type, value_type):
            return MapType(_to_readable(key_type), _to_readable(value_type))
        case PrimitiveType() if data_type.coordinates is not None:
            # Not every version of Spark has geospatial types: their values are WKB.
            return BINARY
    return data_type


def _readable_field(field: StructField) -> StructField:
    metadata = dict(field.metadata)
    collations = metadata.pop(_COLLATIONS_KEY, None)
    if isinstance(collations, dict):
        # Spark changes them in place. They have a provider, and perhaps a version:
        # `icu.UNICODE.75.1`.
        texts = set(_text_paths(field.data_type, field.name))
        metadata[_COLLATIONS_KEY] = {
            path: ".".join(name.split(".")[:2])
            for path, name in collations.items()
            if path in texts
        }
    return StructField(field.name, _to_readable(field.data_type), metadata=metadata)


def _text_paths(data_type: DataType, path: str) -> Iterator[str]:
    """Where a column has text, as its collations say it; structs have collations of their own. The
    online change of a column to another type leaves those of the text.
    """
    if data_type == STRING:
        yield path
    elif not isinstance(data_type, StructType):
        for step, inner in inner_parts(data_type):
            yield from _text_paths(inner, f"{path}.{step}")


def to_spark_schema(schema: StructType) -> types.StructType:
    """The Spark schema of a table, nullable throughout, as its columns are declared."""
    return types.StructType(
        [
            types.StructField(field.name, declared_spark_type(field), True, column_metadata(field))
            for field in schema
        ]
    )


def column_metadata(field: StructField) -> dict[str, object]:
    """The metadata that a column keeps in a DataFrame: its comment, and the declared lengths of
    texts, by which Spark pads values compared with CHAR(n).
    """
    kept = {"comment": field.comment, TEXT_LIMIT_KEY: field.metadata.get(TEXT_LIMIT_KEY)}
    return {key: value for key, value in kept.items() if value is not None}


def from_spark_schema(schema: types.StructType, *, with_collations: bool = False) -> StructType:
    """The table schema of a DataFrame's schema, nullable at every depth.

    Spark infers that a column is never null from how it was computed; later rows may still be null.
    NOT NULL is declared where a table is created.

    Metadata that belongs to Spark's analyser or to the table a DataFrame was read from (its
    column mapping, its generated columns) is dropped; comments and the user's own keys stay.

    `with_collations`: whether texts may have collations, which are dropped.

    Raises:
        SchemaMismatch: a column has a type that Delta tables do not have, or two columns have one
            name.
    """
    converted = _from_spark_struct(schema, "", with_collations=with_collations)
    seen: set[str] = set()
    for field in converted:
        if fold_name(field.name) in seen:
            raise SchemaMismatch(
                f"the DataFrame has two columns called {field.name} (names are compared without "
                "regard to case); rename or drop one of them",
                column=field.name,
            )
        seen.add(fold_name(field.name))
    return converted


def _from_spark_struct(
    schema: types.StructType, parent: str, *, with_collations: bool
) -> StructType:
    fields = []
    for field in schema.fields:
        path = f"{parent}.{field.name}" if parent else field.name
        metadata = _kept_metadata(field.metadata or {})
        if type(field.dataType).__name__ in {"CharType", "VarcharType"}:
            metadata[TEXT_LIMIT_KEY] = field.dataType.simpleString()
        data_type = _from_spark_type(field.dataType, path, with_collations=with_collations)
        fields.append(StructField(field.name, data_type, True, metadata))
    return StructType(tuple(fields))


def _from_spark_type(data_type: types.DataType, path: str, *, with_collations: bool) -> DataType:
    def inner(inner_type: types.DataType, step: str) -> DataType:
        return _from_spark_type(inner_type, f"{path}.{step}", with_collations=with_collations)

    match data_type:
        case types.StructType():
            return _from_spark_struct(data_type, path, with_collations=with_collations)
        case types.ArrayType():
            return ArrayType(inner(data_type.elementType, "element"))
        case types.MapType():
            return MapType(
                inner(data_type.keyType, "key"),
                inner(data_type.valueType, "value"),
            )
        case types.DecimalType():
            return DecimalType(data_type.precision, data_type.scale)
        case types.CharType() | types.VarcharType():
            return PrimitiveType("string")
        case _:
            name = data_type.typeName()
            is_collated = name == "string" and data_type != types.StringType()
            if name not in PRIMITIVE_NAMES or (is_collated and not with_collations):
                raise SchemaMismatch(
                    f"Delta tables have no type for {data_type.simpleString()}: cast the column "
                    "to a supported type before writing",
                    column=path,
                )
            return PrimitiveType(name)


def _kept_metadata(metadata: Mapping[str, object]) -> dict[str, object]:
    return {
        key: value
        for key, value in metadata.items()
        if key == TEXT_LIMIT_KEY or not key.startswith(("__", "delta.", "parquet.field."))
    }


_FLOATS = frozenset({PrimitiveType("float"), PrimitiveType("double")})

_INT32_TYPES = frozenset({PrimitiveType("byte"), PrimitiveType("short"), PrimitiveType("integer")})
_INT32_DIGITS = 10


def sql_column(sql: str, functions: ModuleType) -> Column:
    """A Spark SQL expression as a column, in which no variable of the session is replaced."""
    return functions.expr(without_variables(sql))


def has_nested_void(data_type: DataType) -> bool:
    """Whether the type has a nested void, which no Parquet schema can express."""
    return data_type != VOID and VOID in walk_types(data_type)


def has_unreadable_widening(schema: StructType) -> bool:
    """Whether files from before a type change may hold integers that Spark's reader refuses to
    read as the current decimal.

    It requires ten digits before the point for a Parquet INT32. The protocol requires the same of
    writers, but tables with fewer digits exist.
    """
    for _, field in walk_fields(schema):
        changes = type_changes(field)
        newest = {change.field_path: change.to_type for change in changes}
        for change in changes:
            target = newest[change.field_path]
            if (
                change.from_type in _INT32_TYPES
                and isinstance(target, DecimalType)
                and target.precision - target.scale < _INT32_DIGITS
            ):
                return True
    return False


def physical_read_schema(
    fields: tuple[StructField, ...], mode: ColumnMappingMode
) -> types.StructType:
    """The schema to read data files with: physical names, or under mode `id` field ids, and the
    default of each column for files that lack it.

    Void columns are omitted, since no data file has them.
    """
    stored = StructType(tuple(field for field in fields if field.data_type != VOID))
    schema = _spark_schema(map_fields(stored, partial(_read_field, mode=mode)))
    for field, read in zip(stored, schema.fields, strict=True):
        if (default := existing_default(field)) is not None:
            read.metadata[_EXISTING_DEFAULT] = _constant_sql(default.as_py(), field.data_type)
    return schema


_EXISTING_DEFAULT = "EXISTS_DEFAULT"
"""Field metadata of a read schema: the SQL of the value in files that lack the column."""


def _constant_sql(value: object, data_type: DataType) -> str:
    """A constant in Spark SQL that no setting of the session changes."""
    content = value.encode() if isinstance(value, str) else value
    spelled = f"X'{content.hex()}'" if isinstance(content, bytes) else f"'{content}'"
    name = "timestamp_ltz" if data_type == TIMESTAMP else sql_type_name(data_type)
    return f"CAST({spelled} AS {name})"


def _read_field(field: StructField, mode: ColumnMappingMode) -> StructField:
    metadata = {"parquet.field.id": _required_id(field)} if mode == "id" else {}
    return StructField(read_name(field, mode), field.data_type, metadata=metadata)


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


def logical_column(
    field: StructField, mode: ColumnMappingMode, functions: ModuleType
) -> Column | str:
    """The column of the table from that of the files, by its quoted name if only that changes:
    each part of an expression takes a dozen calls of the JVM.
    """
    if field.data_type == VOID:
        made: Column = functions.lit(None)
        return made
    name = quote(read_name(field, mode))
    if not _is_made_inside(field.data_type, mode):
        return name
    read: Column = functions.col(name)
    if mode == "id" and field.data_type not in _FLOATS:
        # Spark prunes nested columns by name and loses their ids, which silently makes them null;
        # it never prunes through a cast.
        return read.cast(to_spark_type(field.data_type))
    return _rename_fields(read, field.data_type, mode, functions)


def _rename_fields(
    read: Column, data_type: DataType, mode: ColumnMappingMode, functions: ModuleType
) -> Column:
    if data_type in _FLOATS:
        # Many writers leave NaN out of the bounds in footers, by which Spark would skip row groups
        # with NaN; it never pushes a filter down through a function.
        value: Column = functions.nanvl(read, read)
        return value
    if not _is_made_inside(data_type, mode):
        return read
    if not isinstance(data_type, StructType):
        return read.cast(to_spark_type(data_type))
    # Field by field instead of by one cast, so that Spark still reads only the fields it needs.
    fields = [
        _rename_fields(
            read.getField(physical_name(field, mode)), field.data_type, mode, functions
        ).alias(field.name)
        for field in data_type
    ]
    return functions.when(read.isNotNull(), functions.struct(*fields))


def _is_made_inside(data_type: DataType, mode: ColumnMappingMode) -> bool:
    """Whether a column is not the column of the file: fields have other names, or are floats."""
    if data_type in _FLOATS:
        return True
    if isinstance(data_type, StructType):
        return any(
            read_name(field, mode) != field.name or _is_made_inside(field.data_type, mode)
            for field in data_type
        )
    return any(
        isinstance(inner, (StructType, ArrayType, MapType)) and _is_made_inside(inner, mode)
        for inner in inner_types(data_type)
    )


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
    return _pad_values(column, padded_type(field), functions)


def _pad_values(column: Column, declared: DataType | None, functions: ModuleType) -> Column:
    length = char_length(declared)
    if length is not None:
        is_short = functions.char_length(column) < length
        found: Column = functions.when(is_short, functions.rpad(column, length, " "))
        return found.otherwise(column)

    def pad(inner: DataType) -> Callable[[Column], Column]:
        return lambda value: _pad_values(value, inner, functions)

    match declared:
        case StructType(fields):
            parts = [
                _pad_values(column.getField(field.name), field.data_type, functions).alias(
                    field.name
                )
                for field in fields
            ]
            return functions.when(column.isNotNull(), functions.struct(*parts))
        case ArrayType(element_type):
            return functions.transform(column, pad(element_type))
        case MapType(key_type, value_type):
            keys = functions.transform(functions.map_keys(column), pad(key_type))
            values = functions.transform(functions.map_values(column), pad(value_type))
            return functions.map_from_arrays(keys, values)
    return column
