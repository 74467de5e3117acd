"""Converts incoming rows to the columns of a table, as Spark's ANSI store assignment does.

Columns and struct fields are matched by name at every depth, first exactly and then
case-insensitively. Missing nullable ones become null; unknown ones are refused, because dropping
them would lose data. NOT NULL is enforced at every depth.

Spec: Consistency Between Table Metadata and Data Files; Column Invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import ConstraintViolation, InvalidCast, SchemaMismatch
from dagster_delta.parquet.casts import failing_values, value_cast
from dagster_delta.parquet.nested_arrays import (
    is_list_like,
    list_elements,
    map_entries,
    plain_array,
    plain_type,
    rebuild_list,
    rebuild_map,
    rebuild_struct,
)
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)
from dagster_delta.protocol.values.arrow_schema import (
    is_marked_variant,
    is_variant_storage,
    to_arrow_schema,
    to_arrow_type,
)
from dagster_delta.sql.types import sql_type_name

MAX_BATCH_ROWS = 131_072
"""Longer batches are split: this bounds the rows cast at once, and their memory."""

# Limit for the size of a dictionary's text when it is repeated in every row.
_CAST_BYTES = 64 * 1024 * 1024

_MAX_EXAMPLES = 5
_MAX_EXAMPLE_LENGTH = 300

_VARIANT = StructType(
    (
        StructField("value", PrimitiveType("binary")),
        StructField("metadata", PrimitiveType("binary")),
    )
)

_Assign = Callable[[pa.Array], pa.Array]


def assign_batches(
    source: pa.RecordBatchReader, schema: StructType, *, table: str, is_exact: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of `source` as batches of exactly the Arrow form of `schema`.

    `is_exact`: refuse values that lose a part in the type of their column.

    Raises:
        SchemaMismatch: a column is unknown, duplicated, or of a type that cannot be stored.
        InvalidCast: a value does not fit its column.
        ConstraintViolation: a null, or a missing column, where NOT NULL is declared.
    """
    # Plan before the generator first advances, so that the caller gets a schema error at once.
    fields = _plan_fields(list(source.schema), schema, _Place((), table, is_exact))
    return _assign_all(source, fields, to_arrow_schema(schema))


def _assign_all(
    source: pa.RecordBatchReader, fields: list[_FieldPlan], arrow_schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    types = enumerate(field.type for field in source.schema)
    encoded = [index for index, kind in types if pa.types.is_dictionary(kind)]
    for whole in source:
        rows_at_once = _rows_at_once([whole.column(index).dictionary for index in encoded])
        for start in range(0, whole.num_rows, rows_at_once):
            batch = whole.slice(start, rows_at_once)
            # Read once: every access to `columns` wraps all of them.
            given = batch.columns
            columns = [plan.assign(given, batch.num_rows) for plan in fields]
            for each, column in zip(fields, columns, strict=True):
                if not each.field.nullable and column.null_count:
                    _refuse_nulls(each.place, pc.is_null(column), batch)
            yield pa.RecordBatch.from_arrays(columns, schema=arrow_schema)


def _rows_at_once(dictionaries: list[pa.Array]) -> int:
    """Rows that are cast together, so that repeated values of dictionaries fit into memory."""
    row_bytes = sum(map(_longest_entry, dictionaries))
    return max(1, min(MAX_BATCH_ROWS, _CAST_BYTES // max(1, row_bytes)))


def _longest_entry(dictionary: pa.Array) -> int:
    kind = dictionary.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return int(pc.max(pc.binary_length(dictionary)).as_py() or 0)
    return 0 if pa.types.is_primitive(kind) else int(dictionary.nbytes)


class _Place(msgspec.Struct, frozen=True):
    """The place of a value in the table, for errors, and how it is cast."""

    path: tuple[str, ...]
    table: str
    is_exact: bool

    def __truediv__(self, name: str) -> _Place:
        return _Place((*self.path, name), self.table, self.is_exact)

    @property
    def column(self) -> str:
        return ".".join(self.path)


class _FieldPlan(msgspec.Struct, frozen=True):
    field: StructField
    place: _Place
    source_index: int | None
    """Position in the source; None if it lacks the field."""
    convert: _Assign

    def assign(self, columns: list[pa.Array], length: int) -> pa.Array:
        if self.source_index is None:
            return pa.nulls(length, to_arrow_type(self.field.data_type))
        return self.convert(columns[self.source_index])


def _plan_fields(source: list[pa.Field], target: StructType, place: _Place) -> list[_FieldPlan]:
    positions = _match_names([each.name for each in source], target, place)
    plans = []
    for each in target:
        here = place / each.name
        index = positions.get(each.name)
        if index is None and not each.nullable:
            raise ConstraintViolation(
                f"column {here.column} is NOT NULL and the data does not have it: add it",
                table=place.table,
                column=here.column,
            )
        convert = _plan(source[index].type, each.data_type, here) if index is not None else _keep
        plans.append(_FieldPlan(each, here, index, convert))
    return plans


def _match_names(names: list[str], target: StructType, place: _Place) -> dict[str, int]:
    positions: dict[str, int] = {}
    unknown: list[str] = []
    for index, name in enumerate(names):
        field = target.get(name)
        if field is None:
            unknown.append((place / name).column)
        elif field.name in positions:
            raise SchemaMismatch(
                f"the data holds column {(place / field.name).column} twice (names are compared "
                "without regard to case): rename or drop one",
                table=place.table,
                column=(place / field.name).column,
            )
        else:
            positions[field.name] = index
    if unknown:
        raise SchemaMismatch(
            f"the table has no column {', '.join(unknown)}: drop it from the data, or add it to "
            'the table with schema_mode="merge"',
            table=place.table,
            column=unknown[0],
        )
    return positions


def _keep(array: pa.Array) -> pa.Array:
    return array


def _plan(source: pa.DataType, target: DataType, place: _Place) -> _Assign:
    """The conversion of a source column to a target type, checked before any row is seen."""
    plain = plain_type(source)
    convert = _plan_plain(plain, target, place)
    if plain is source or plain == source:
        return convert
    return lambda array: convert(plain_array(array))


def _plan_plain(source: pa.DataType, target: DataType, place: _Place) -> _Assign:
    if pa.types.is_null(source):
        arrow_type = to_arrow_type(target)
        return lambda array: pa.nulls(len(array), arrow_type)
    if target == PrimitiveType("variant") and is_variant_storage(source):
        return _plan_variant(source, place)
    match target:
        case StructType() if pa.types.is_struct(source):
            return _plan_struct(source, target, place)
        case ArrayType() if is_list_like(source):
            return _plan_list(source, target, place)
        case MapType() if pa.types.is_map(source):
            return _plan_map((source.key_type, source.item_type), target, place)
        case MapType() if (entry := _entry_types(source)) is not None:
            return _plan_map(entry, target, place)
        case StructType() | ArrayType() | MapType():
            raise _unstorable(source, target, place)
    return _plan_value(source, target, place)


def _unstorable(source: pa.DataType, target: DataType, place: _Place) -> SchemaMismatch:
    remedy = "cast it first"
    if target == PrimitiveType("void"):
        remedy = 'pass schema_mode="merge", which gives the column the type of the data'
    return SchemaMismatch(
        f"{source} data cannot be stored in column {place.column} of type {target}: {remedy}",
        table=place.table,
        column=place.column,
    )


def _plan_value(source: pa.DataType, target: DataType, place: _Place) -> _Assign:
    is_variant = target == PrimitiveType("variant")
    try:
        if is_variant:
            cast = lossy = _variant_cast(source)
        else:
            cast = value_cast(source, target, is_exact=place.is_exact)
            lossy = value_cast(source, target)
    except TypeError as error:
        raise _unstorable(source, target, place) from error

    def convert(array: pa.Array) -> pa.Array:
        try:
            return cast(array)
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            examples = failing_values(array, cast, _MAX_EXAMPLES)
            what, remedy = "do not fit", "correct them, or widen the column"
            if place.is_exact and not failing_values(array, lossy, limit=1):
                what = "would lose a part in"
                remedy = 'round them, or pass schema_mode="merge", which stores them as Spark does'
            raise InvalidCast(
                f"values of column {place.column} {what} its type {sql_type_name(target)}: "
                f"{remedy}",
                table=place.table,
                column=place.column,
                examples=tuple(_shorten(repr(example)) for example in examples),
            ) from error

    return convert


def _plan_struct(source: pa.StructType, target: StructType, place: _Place) -> _Assign:
    plans = _plan_fields(list(source), target, place)
    arrow_type = to_arrow_type(target)

    def convert(array: pa.StructArray) -> pa.StructArray:
        children = array.flatten()
        assigned = [plan.assign(children, len(array)) for plan in plans]
        for each, child in zip(plans, assigned, strict=True):
            if not each.field.nullable and child.null_count > array.null_count:
                _refuse_nulls(each.place, pc.and_(pc.is_null(child), pc.is_valid(array)), array)
        return rebuild_struct(array, assigned, arrow_type)

    return convert


def _variant_cast(source: pa.DataType) -> _Assign:
    # Imported late: few tables have variants.
    from dagster_delta.parquet.variants import variant_cast

    return variant_cast(source)


def _plan_variant(source: pa.DataType, place: _Place) -> _Assign:
    from dagster_delta.parquet.variants import variant_check

    store = _plan_struct(source, _VARIANT, place)
    is_trusted = is_marked_variant(source)
    check = variant_check(table=place.table, column=place.column, is_trusted=is_trusted)
    return lambda array: check(store(array))


def _plan_list(source: pa.DataType, target: ArrayType, place: _Place) -> _Assign:
    here = place / "element"
    convert_element = _plan(source.value_type, target.element_type, here)
    arrow_type = to_arrow_type(target)

    def convert(array: pa.Array) -> pa.ListArray:
        elements = convert_element(list_elements(array))
        if not target.contains_null and elements.null_count:
            _refuse_nulls(here, pc.is_null(elements), elements)
        return rebuild_list(array, elements, arrow_type)

    return convert


def _entry_types(source: pa.DataType) -> tuple[pa.DataType, pa.DataType] | None:
    """Key and value type of a list of `{key, value}`, the form of maps in frames without a map
    type.
    """
    if not is_list_like(source):
        return None
    entry = plain_type(source.value_type)
    if not pa.types.is_struct(entry) or [each.name for each in entry] != ["key", "value"]:
        return None
    return entry[0].type, entry[1].type


def _plan_map(entry: tuple[pa.DataType, pa.DataType], target: MapType, place: _Place) -> _Assign:
    convert_key = _plan(entry[0], target.key_type, place / "key")
    convert_value = _plan(entry[1], target.value_type, place / "value")
    arrow_type = to_arrow_type(target)

    def convert(array: pa.Array) -> pa.MapArray:
        if pa.types.is_map(array.type):
            keys, values = map_entries(array)
        else:
            keys, values = plain_array(list_elements(array)).flatten()
        keys, values = convert_key(keys), convert_value(values)
        if keys.null_count:
            _refuse_nulls(place / "key", pc.is_null(keys), keys)
        if not target.value_contains_null and values.null_count:
            _refuse_nulls(place / "value", pc.is_null(values), values)
        return rebuild_map(array, keys, values, arrow_type)

    return convert


def misfit(column: str, data_type: DataType, examples: Sequence[str], *, table: str) -> InvalidCast:
    """The error for values of an expression that do not fit the column they are set to.

    `examples`: some of the values, as text; the first ones are shown.
    """
    return InvalidCast(
        f"new values of column {column} do not fit its type {sql_type_name(data_type)}: convert "
        "them in the expression, or leave those rows out",
        table=table,
        column=column,
        examples=tuple(_shorten(text) for text in examples[:_MAX_EXAMPLES]),
    )


def _refuse_nulls(place: _Place, is_violation: pa.BooleanArray, context: pa.Array) -> None:
    """Raise for the positions of `context` (a batch or an array) where `is_violation` is true."""
    positions = pc.indices_nonzero(is_violation)
    # One by one: Arrow has no kernel that takes the views in which polars exports text.
    places = positions.slice(0, _MAX_EXAMPLES).to_pylist()
    shown = [text for index in places for text in _render_rows(context.slice(index, 1))]
    raise ConstraintViolation(
        f"NOT NULL column {place.column} would get {len(positions)} null(s): fill them, or "
        "drop the rows",
        table=place.table,
        column=place.column,
        examples=tuple(map(_shorten, shown)),
    )


def _render_rows(rows: pa.Array) -> list[str]:
    try:
        return [repr(row) for row in rows.to_pylist()]
    except (ValueError, OverflowError):
        # Dates and times outside the years of Python's datetime.
        array = rows.to_struct_array() if isinstance(rows, pa.RecordBatch) else rows
        return [str(array.slice(index, 1)) for index in range(len(array))]


def _shorten(text: str) -> str:
    if len(text) <= _MAX_EXAMPLE_LENGTH:
        return text
    return text[: _MAX_EXAMPLE_LENGTH - 1] + "…"
