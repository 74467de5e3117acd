"""Converts the columns of one data file to the requested columns.

Fields are found by name, physical name or field id at every depth. A missing field is null, or the
schema's default for existing rows; extra fields are ignored. Narrower types from before a widening
are cast, days and times of the legacy calendar are converted, shredded variants are reassembled,
and CHAR(n) is padded with blanks.

Spec: Column Mapping (Reader Requirements); Data Files; Type Widening.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import TypeVar

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.cached_property import cached_property
from dagster_delta.errors import InvalidTable
from dagster_delta.parquet.casts import holds_bytes, value_cast
from dagster_delta.parquet.legacy_calendar import LegacyCalendar
from dagster_delta.parquet.nested_arrays import (
    is_list_like,
    list_elements,
    map_entries,
    plain_array,
    plain_type,
    rebuild_list,
    rebuild_map,
    rebuild_struct,
    with_padded_text,
)
from dagster_delta.protocol.checkpoint.parquet_reader import decoding_pool
from dagster_delta.protocol.features.column_mapping import (
    PARQUET_FIELD_ID_KEY,
    field_id,
    physical_name,
)
from dagster_delta.protocol.features.existing_defaults import existing_default
from dagster_delta.protocol.features.text_limits import padded_type
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    inner_types,
)
from dagster_delta.protocol.table_properties import ColumnMappingMode
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.protocol.values.arrow_values import null_scalar

_Convert = Callable[[pa.Array], pa.Array]
_Key = TypeVar("_Key")


class _ProjectedColumn(msgspec.Struct, frozen=True):
    """One wanted column: its position among the columns read, and its conversion."""

    position: int | None
    absent: pa.Scalar
    """`pyarrow.Scalar` of a column that the file lacks."""
    convert: _Convert | None
    declared: DataType | None
    """See `padded_type`."""


class _Rules(msgspec.Struct, frozen=True):
    """Settings for the columns of a file, besides their types."""

    mode: ColumnMappingMode
    calendar: LegacyCalendar | None


class FileProjection(msgspec.Struct, frozen=True):
    """The plan for all files of one Arrow schema."""

    parquet_columns: list[int]
    """Indexes of the Parquet columns to decode."""
    _columns: tuple[_ProjectedColumn, ...]

    @classmethod
    def plan(
        cls, file_schema: pa.Schema, wanted: StructType, mode: ColumnMappingMode
    ) -> FileProjection:
        """Match the wanted fields with those of a file.

        `wanted`: logical fields, in order, without partition columns.
        """
        file_fields = list(file_schema)
        # Spec: in id mode, readers refuse a file without ids or return nulls. Nulls would hide
        # the rows of a file from a writer that does not support ids.
        if mode == "id" and file_fields and not any(map(_parquet_id, file_fields)):
            raise InvalidTable(
                "the table maps columns by id and the data file has no field ids: rewrite the "
                "file with a writer that supports column mapping"
            )
        siblings = _Siblings(file_fields, mode)
        found = [siblings.find(field) for field in wanted]
        rules = _Rules(mode, LegacyCalendar.of(file_schema.metadata))
        # The reader returns columns in the order of the file.
        chosen = sorted({index for index in found if index is not None})
        position = {index: order for order, index in enumerate(chosen)}
        leaves = leaf_ranges(file_fields)
        return cls(
            [leaf for index in chosen for leaf in leaves[index]],
            tuple(
                _ProjectedColumn(
                    None if index is None else position[index],
                    _absent_value(field),
                    None
                    if index is None
                    else _plan(file_fields[index].type, field.data_type, rules, (field.name,)),
                    padded_type(field),
                )
                for field, index in zip(wanted, found, strict=True)
            ),
        )

    def unconverted(self) -> list[int | None] | None:
        """Index of the Parquet column of each wanted column, None for one that is null in all rows;
        None instead of the list if a column is converted. Wanted columns are not nested.
        """
        if any(
            column.convert or column.declared or column.absent.is_valid for column in self._columns
        ):
            return None
        return [
            None if column.position is None else self.parquet_columns[column.position]
            for column in self._columns
        ]

    def apply(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The wanted columns of a batch of the file, as `pyarrow.Array`s of the table's types."""
        arrays = []
        for column in self._columns:
            if column.position is None:
                array = _repeated(column.absent, batch.num_rows)
            else:
                array = batch.column(column.position)
                if pa.types.is_dictionary(array.type):
                    array = pc.take(array.dictionary, array.indices, memory_pool=decoding_pool())
                array = array if column.convert is None else column.convert(array)
            arrays.append(with_padded_text(array, column.declared))
        return arrays


def num_steps_found(
    file_schema: pa.Schema, schema: StructType, path: tuple[str, ...], mode: ColumnMappingMode
) -> int:
    """Number of steps of a logical path that a file has: all of them if it has the last one.

    `path`: logical names from the root to a field, through structs.
    """
    siblings, fields = list(file_schema), schema
    for depth, name in enumerate(path):
        field = fields.field(name)
        index = _Siblings(siblings, mode).find(field)
        if index is None:
            return depth
        found = siblings[index].type
        if isinstance(field.data_type, StructType) and pa.types.is_struct(found):
            siblings, fields = list(found), field.data_type
    return len(path)


def locate_leaf(
    file_schema: pa.Schema, schema: StructType, path: tuple[str, ...], mode: ColumnMappingMode
) -> tuple[int, pa.DataType] | None:
    """Index and Arrow type of the Parquet column behind a logical path through structs.

    `path`: logical names from the root to a leaf.

    Returns:
        None if the file lacks the column, or the path does not end at a single Parquet column.
    """
    siblings, fields, start = list(file_schema), schema, 0
    for depth, name in enumerate(path, start=1):
        field = fields.get(name)
        index = None if field is None else _Siblings(siblings, mode).find(field)
        if field is None or index is None:
            return None
        start += leaf_ranges(siblings)[index].start
        found = siblings[index].type
        if depth == len(path):
            return (start, found) if not pa.types.is_nested(found) else None
        if not (isinstance(field.data_type, StructType) and pa.types.is_struct(found)):
            return None
        siblings, fields = list(found), field.data_type
    return None


class _Siblings:
    """The fields of one level of a file's schema, found by id or name; the first of duplicates is
    used.
    """

    def __init__(self, fields: list[pa.Field], mode: ColumnMappingMode) -> None:
        self._fields = fields
        self._mode = mode

    def find(self, field: StructField) -> int | None:
        """Index of the file's field for a logical field; None if the file lacks it."""
        if self._mode == "id":
            wanted_id = field_id(field)
            if wanted_id is not None:
                return self._by_id.get(wanted_id)
            # Only the extra columns of change data files have no id: they are not table columns.
        name = physical_name(field, self._mode)
        found = self._by_name.get(name)
        if found is None and self._mode == "none":
            return self._by_folded_name.get(name.casefold())
        return found

    @cached_property
    def _by_id(self) -> dict[int | None, int]:
        return _first_positions(map(_parquet_id, self._fields))

    @cached_property
    def _by_name(self) -> dict[str, int]:
        return _first_positions(field.name for field in self._fields)

    @cached_property
    def _by_folded_name(self) -> dict[str, int]:
        return _first_positions(field.name.casefold() for field in self._fields)


def _first_positions(keys: Iterable[_Key]) -> dict[_Key, int]:
    positions: dict[_Key, int] = {}
    for position, key in enumerate(keys):
        positions.setdefault(key, position)
    return positions


def _absent_value(field: StructField) -> pa.Scalar:
    """`pyarrow.Scalar` of a field in rows of a file that lacks it."""
    default = existing_default(field)
    return null_scalar(to_arrow_type(field.data_type)) if default is None else default


def _repeated(value: pa.Scalar, count: int) -> pa.Array:
    return pa.repeat(value, count) if value.is_valid else pa.nulls(count, value.type)


def _parquet_id(field: pa.Field) -> int | None:
    value = (field.metadata or {}).get(PARQUET_FIELD_ID_KEY)
    return None if value is None else int(value)


def leaf_ranges(fields: list[pa.Field]) -> list[range]:
    """Indexes of the Parquet columns of each field."""
    ranges = []
    start = 0
    for field in fields:
        stop = start + _count_leaves(field.type)
        ranges.append(range(start, stop))
        start = stop
    return ranges


def _count_leaves(arrow_type: pa.DataType) -> int:
    if pa.types.is_struct(arrow_type):
        return sum(_count_leaves(each.type) for each in arrow_type)
    if pa.types.is_map(arrow_type):
        return _count_leaves(arrow_type.key_type) + _count_leaves(arrow_type.item_type)
    if is_list_like(arrow_type):
        return _count_leaves(arrow_type.value_type)
    return 1


def _plan(
    source: pa.DataType, target: DataType, rules: _Rules, path: tuple[str, ...]
) -> _Convert | None:
    """The conversion from a file's type; None if the array needs none."""
    arrow_type = to_arrow_type(target)
    is_same = source == arrow_type and rules.calendar is None
    if is_same and not _has_mapped_names(target, rules.mode):
        return None
    plain = plain_type(source)
    convert = _plan_plain(plain, target, rules, path)
    if plain == source:
        return convert
    return lambda array: convert(plain_array(array)) if convert else plain_array(array)


def _has_mapped_names(target: DataType, mode: ColumnMappingMode) -> bool:
    """Whether equal types may still pair the wrong fields: under a mapping, names differ."""
    return mode != "none" and (
        isinstance(target, StructType)
        or any(_has_mapped_names(each, mode) for each in inner_types(target))
    )


def _plan_plain(
    source: pa.DataType, target: DataType, rules: _Rules, path: tuple[str, ...]
) -> _Convert | None:
    arrow_type = to_arrow_type(target)
    if pa.types.is_null(source) or target == PrimitiveType("void"):
        return lambda array: pa.nulls(len(array), arrow_type)
    match target:
        case StructType() if pa.types.is_struct(source):
            return _plan_struct(source, target, rules, path)
        case ArrayType() if is_list_like(source):
            return _plan_list(source, target, rules, path)
        case MapType() if pa.types.is_map(source):
            return _plan_map(source, target, rules, path)
        case PrimitiveType("variant") if pa.types.is_struct(source):
            return _plan_variant(path)
        case PrimitiveType() | DecimalType():
            return _plan_value(source, target, rules.calendar, path)
    raise _unreadable(source, target, path)


def _unreadable(source: pa.DataType, target: DataType, path: tuple[str, ...]) -> InvalidTable:
    column = ".".join(path)
    return InvalidTable(
        f"the data file holds {source} where column {column} is of type {target}: it was not "
        "written for this schema; restore an older version of the table or rewrite the file",
        column=column,
    )


def _plan_variant(path: tuple[str, ...]) -> _Convert:
    # Imported late: few tables have variants.
    from dagster_delta.parquet.variant_reassembly import reassemble

    return partial(reassemble, column=".".join(path))


def _plan_struct(
    source: pa.DataType, target: StructType, rules: _Rules, path: tuple[str, ...]
) -> _Convert:
    siblings = list(source)
    positions = _Siblings(siblings, rules.mode)
    arrow_type = to_arrow_type(target)
    plans: list[tuple[int | None, pa.Scalar, _Convert | None]] = []
    for field in target:
        index = positions.find(field)
        convert = (
            None
            if index is None
            else _plan(siblings[index].type, field.data_type, rules, (*path, field.name))
        )
        plans.append((index, _absent_value(field), convert))

    def convert_struct(array: pa.StructArray) -> pa.StructArray:
        children = array.flatten()
        converted = []
        for index, absent, convert in plans:
            if index is None:
                converted.append(_repeated(absent, len(array)))
            else:
                child = children[index]
                converted.append(child if convert is None else convert(child))
        return rebuild_struct(array, converted, arrow_type)

    return convert_struct


def _plan_list(
    source: pa.DataType, target: ArrayType, rules: _Rules, path: tuple[str, ...]
) -> _Convert:
    convert = _plan(source.value_type, target.element_type, rules, (*path, "element"))
    arrow_type = to_arrow_type(target)

    def convert_list(array: pa.Array) -> pa.ListArray:
        elements = list_elements(array)
        return rebuild_list(array, convert(elements) if convert else elements, arrow_type)

    return convert_list


def _plan_map(
    source: pa.DataType, target: MapType, rules: _Rules, path: tuple[str, ...]
) -> _Convert:
    convert_key = _plan(source.key_type, target.key_type, rules, (*path, "key"))
    convert_value = _plan(source.item_type, target.value_type, rules, (*path, "value"))
    arrow_type = to_arrow_type(target)

    def convert_map(array: pa.MapArray) -> pa.MapArray:
        keys, values = map_entries(array)
        return rebuild_map(
            array,
            convert_key(keys) if convert_key else keys,
            convert_value(values) if convert_value else values,
            arrow_type,
        )

    return convert_map


def _plan_value(
    source: pa.DataType, target: DataType, calendar: LegacyCalendar | None, path: tuple[str, ...]
) -> _Convert | None:
    convert = _plan_cast(source, target, path)
    if calendar is None:
        return convert
    days = calendar.day_conversion(source)
    times = calendar.time_conversion(source, target)
    return _one_after_another(days, convert, times)


def _one_after_another(*steps: _Convert | None) -> _Convert | None:
    known = [step for step in steps if step is not None]
    if not known:
        return None
    return lambda array: reduce(lambda values, step: step(values), known, array)


def _plan_cast(source: pa.DataType, target: DataType, path: tuple[str, ...]) -> _Convert | None:
    if source == to_arrow_type(target):
        return None
    arrow_type = to_arrow_type(target)
    is_duration = pa.types.is_duration(arrow_type) and source == pa.int64()
    if is_duration or (arrow_type == pa.binary() and holds_bytes(source)):
        return lambda array: pc.cast(array, arrow_type)
    if not _may_hold(source, target):
        raise _unreadable(source, target, path)
    return value_cast(source, target)


def _may_hold(source: pa.DataType, target: DataType) -> bool:
    """Whether a file may hold this type for a column: another form of it, or a narrower type
    from before a widening. Integers are checked by value, because some writers store all of them
    as 32 or 64 bits.
    """
    types = pa.types
    if isinstance(target, DecimalType):
        is_exact = types.is_decimal(source) and source.scale <= target.scale
        return bool(is_exact or types.is_integer(source))
    assert isinstance(target, PrimitiveType)  # noqa: S101  nested targets were handled before
    match target.name:
        case "string":
            # Old writers omit the annotation that separates text from bytes.
            return holds_bytes(source)
        case "byte" | "short" | "integer" | "long":
            return bool(types.is_integer(source))
        case "double":
            return bool(types.is_integer(source) or types.is_floating(source))
        case "float":
            return bool(types.is_float16(source))
        case "date":
            return bool(types.is_date(source))
        case "timestamp":
            return bool(types.is_timestamp(source))
        case "timestamp_ntz":
            return bool(types.is_timestamp(source) or types.is_date(source))
    return False
