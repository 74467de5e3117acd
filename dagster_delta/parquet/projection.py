"""Converts the columns of one data file to the requested columns.

Fields are found by name, physical name or field id at every depth. A missing field is null, or the
schema's default for existing rows; extra fields are ignored. Narrower types from before a widening
are cast, days and times of the legacy calendar are converted, shredded variants are reassembled,
and CHAR(n) is padded with blanks.

Spec: Column Mapping (Reader Requirements); Data Files; Type Widening.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce

import msgspec
import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import InvalidTable
from dagster_delta.nested_arrays import leaf_ranges
from dagster_delta.parquet.casts import floor_to_microseconds, holds_bytes, value_cast
from dagster_delta.parquet.column_conversion import ColumnConversion, Convert, FieldPlan, Path
from dagster_delta.parquet.legacy_calendar import LegacyCalendar
from dagster_delta.parquet_format.reader import decoding_pool
from dagster_delta.protocol.features.column_mapping import (
    PARQUET_FIELD_ID_KEY,
    field_id,
    physical_name,
)
from dagster_delta.protocol.features.existing_defaults import existing_default
from dagster_delta.protocol.features.text_limits import char_length, padded_type
from dagster_delta.protocol.schema import (
    NANOSECONDS_KEY,
    DataType,
    DecimalType,
    PrimitiveType,
    StructField,
    StructType,
    fold_name,
    inner_parts,
    walk_types,
)
from dagster_delta.protocol.table_properties import ColumnMappingMode
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.protocol.values.arrow_values import null_scalar

_EXACT_BITS = 32
"""A double has every integer of this width."""


class FileProjection(msgspec.Struct, frozen=True):
    """The plan for all files of one Arrow schema."""

    parquet_columns: list[int]
    """Indexes of the Parquet columns to decode."""
    _columns: tuple[FieldPlan, ...]

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
        rules = _FileConversion(mode, LegacyCalendar.of(file_schema.metadata), wanted)
        plans = rules.plan_fields(file_fields, wanted)
        # The reader returns columns in the order of the file.
        chosen = sorted({plan.index for plan in plans if plan.index is not None})
        position: dict[int | None, int] = {index: order for order, index in enumerate(chosen)}
        leaves = leaf_ranges(file_fields)
        return cls(
            [leaf for index in chosen for leaf in leaves[index]],
            tuple(replace(plan, index=position.get(plan.index)) for plan in plans),
        )

    def unconverted(self) -> list[int | None] | None:
        """Index of the Parquet column of each wanted column, None for one that is null in all rows;
        None instead of the list if a column is converted. Wanted columns are not nested.
        """
        if any(column.convert or column.absent.is_valid for column in self._columns):
            return None
        return [
            None if column.index is None else self.parquet_columns[column.index]
            for column in self._columns
        ]

    def apply(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The wanted columns of a batch of the file, as `pyarrow.Array`s of the table's types."""
        found = [_expand_dictionary(column) for column in batch.columns]
        return [column.values(found, batch.num_rows) for column in self._columns]


def _expand_dictionary(column: pa.Array) -> pa.Array:
    """A column that was decoded as a dictionary, with its values."""
    if not pa.types.is_dictionary(column.type):
        return column
    return pc.take(column.dictionary, column.indices, memory_pool=decoding_pool())


def num_steps_found(
    file_schema: pa.Schema, schema: StructType, path: Path, mode: ColumnMappingMode
) -> int:
    """Number of steps of a logical path that a file has: all of them if it has the last one.

    `path`: logical names from the root to a field, through structs.
    """
    return len(list(_find_steps(file_schema, schema, path, mode)))


def locate_leaf(
    file_schema: pa.Schema, schema: StructType, path: Path, mode: ColumnMappingMode
) -> tuple[int, pa.DataType] | None:
    """Index and Arrow type of the Parquet column behind a logical path through structs.

    `path`: logical names from the root to a leaf.

    Returns:
        None if the file lacks the column, or the path does not end at a single Parquet column.
    """
    steps = list(_find_steps(file_schema, schema, path, mode))
    return steps[-1] if len(steps) == len(path) and not pa.types.is_nested(steps[-1][1]) else None


def _find_steps(
    file_schema: pa.Schema, schema: StructType, path: Path, mode: ColumnMappingMode
) -> Iterator[tuple[int, pa.DataType]]:
    """First Parquet column and Arrow type of each step of a logical path that a file has."""
    siblings, fields, start = list(file_schema), schema, 0
    for name in path:
        field = fields.get(name)
        index = None if field is None else _Siblings(siblings, mode).find(field)
        if field is None or index is None:
            return
        start += leaf_ranges(siblings)[index].start
        found = siblings[index].type
        yield start, found
        if not (isinstance(field.data_type, StructType) and pa.types.is_struct(found)):
            return
        siblings, fields = list(found), field.data_type


class _Siblings:
    """The fields of one level of a file's schema, found by id or name."""

    def __init__(self, fields: Sequence[pa.Field], mode: ColumnMappingMode) -> None:
        self._mode = mode
        self._positions: dict[object, int] = {}
        self._ambiguous: set[object] = set()
        for position, field in enumerate(fields):
            keys = {fold_name(field.name) if mode == "none" else field.name}
            if mode == "id":
                keys.add(_parquet_id(field))
            for key in keys - {None}:
                if self._positions.setdefault(key, position) != position:
                    self._ambiguous.add(key)

    def find(self, field: StructField) -> int | None:
        """Index of the file's field for a logical field; None if the file lacks it.

        Raises:
            InvalidTable: several fields of the file have its name, or its id.
        """
        wanted_id = field_id(field) if self._mode == "id" else None
        # Only the extra columns of change data files have no id: they are not table columns.
        name = physical_name(field, self._mode)
        key = (
            (fold_name(name) if self._mode == "none" else name) if wanted_id is None else wanted_id
        )
        if key in self._ambiguous:
            raise InvalidTable(
                f"the data file has several columns called {key}, so that it cannot be known which "
                "one is meant (names are compared without regard to case): write the file again "
                "with one of them",
                column=field.name,
            )
        return self._positions.get(key)


def _parquet_id(field: pa.Field) -> int | None:
    value = (field.metadata or {}).get(PARQUET_FIELD_ID_KEY)
    return None if value is None else int(value)


class _FileConversion(ColumnConversion):
    """Reads the columns of a file. `wanted`: the columns of the table."""

    def __init__(
        self, mode: ColumnMappingMode, calendar: LegacyCalendar | None, wanted: StructType
    ) -> None:
        self._mode = mode
        self._calendar = calendar
        self._in_nanoseconds = {field.name for field in wanted if NANOSECONDS_KEY in field.metadata}
        self._char_lengths = {
            path: length
            for field in wanted
            for path, length in _char_lengths(padded_type(field), (field.name,))
        }

    def plan_fields(
        self, source: Sequence[pa.Field], target: StructType, path: Path = ()
    ) -> list[FieldPlan]:
        siblings = _Siblings(source, self._mode)
        plans = []
        for field in target:
            index, here = siblings.find(field), (*path, field.name)
            convert = (
                None if index is None else self.plan(source[index].type, field.data_type, here)
            )
            plans.append(FieldPlan(here, index, self._absent_value(field, here), convert))
        return plans

    def plan(self, source: pa.DataType, target: DataType, path: Path) -> Convert | None:
        is_same = source == to_arrow_type(target) and not self._calendar and not self._char_lengths
        # Under a mapping names differ, and equal types may still pair the wrong fields.
        is_mapped = self._mode != "none" and any(
            isinstance(data_type, StructType) for data_type in walk_types(target)
        )
        if is_same and not is_mapped:
            return None
        return super().plan(source, target, path)

    def plan_value(self, source: pa.DataType, target: DataType, path: Path) -> Convert | None:
        if target == PrimitiveType("void"):
            return lambda array: pa.nulls(len(array))
        if target == PrimitiveType("variant") and pa.types.is_struct(source):
            # Imported late: few tables have variants.
            from dagster_delta.parquet.variant_reassembly import reassemble

            return partial(reassemble, column=".".join(path))
        floors = path[0] in self._in_nanoseconds
        steps = [_plan_cast(source, target, path, floors=floors)]
        if self._calendar is not None:
            days = self._calendar.day_conversion(source)
            steps = [days, *steps, self._calendar.time_conversion(source, target)]
        length = self._char_lengths.get(path)
        if length is not None:
            steps.append(partial(pc.utf8_rpad, width=length, padding=" "))
        return _one_after_another(steps)

    def mismatch(self, source: pa.DataType, target: DataType, path: Path) -> InvalidTable:
        return _describe_unreadable(source, target, path)

    def check_nulls(self, plan: FieldPlan, values: pa.Array, parent: pa.Array) -> None:
        # What a file holds is read, even where the table does not allow nulls.
        pass

    def _absent_value(self, field: StructField, path: Path) -> pa.Scalar:
        """`pyarrow.Scalar` of a field in rows of a file that lacks it."""
        default = existing_default(field)
        if default is None:
            return null_scalar(to_arrow_type(field.data_type))
        length = self._char_lengths.get(path)
        return default if length is None else pc.utf8_rpad(default, width=length, padding=" ")


def _char_lengths(declared: DataType | None, path: Path) -> Iterator[tuple[Path, int]]:
    """The lengths that texts are padded to, by their paths."""
    length = char_length(declared)
    if length is not None:
        yield path, length
    for step, inner in () if declared is None else inner_parts(declared):
        yield from _char_lengths(inner, (*path, step))


def _describe_unreadable(
    source: pa.DataType, target: DataType, path: Path, detail: str = ""
) -> InvalidTable:
    column = ".".join(path)
    return InvalidTable(
        f"the data file holds {source} where column {column} is of type {target}{detail}: it was "
        "not written for this schema; restore an older version of the table or rewrite the file",
        column=column,
    )


def _one_after_another(steps: Sequence[Convert | None]) -> Convert | None:
    known = [step for step in steps if step is not None]
    if not known:
        return None
    return lambda array: reduce(lambda values, step: step(values), known, array)


def _plan_cast(
    source: pa.DataType, target: DataType, path: Path, *, floors: bool
) -> Convert | None:
    if source == to_arrow_type(target):
        return None
    arrow_type = to_arrow_type(target)
    is_duration = pa.types.is_duration(arrow_type) and source == pa.int64()
    if is_duration or (arrow_type == pa.binary() and holds_bytes(source)):
        return lambda array: pc.cast(array, arrow_type)
    if not _may_hold(source, target):
        raise _describe_unreadable(source, target, path)
    cast = value_cast(source, target)

    def read(array: pa.Array) -> pa.Array:
        try:
            if floors and is_fine:
                return cast(floor_to_microseconds(array).cast(microseconds))
            # Only a whole number of microseconds is kept.
            return cast(pc.cast(array, microseconds) if is_fine else array)
        except pa.ArrowInvalid as error:
            raise _describe_unreadable(
                source, target, path, f", and a value does not fit ({error})"
            ) from error

    is_fine = pa.types.is_timestamp(source) and source.unit == "ns"
    microseconds = pa.timestamp("us", source.tz) if is_fine else source
    return read


def _may_hold(source: pa.DataType, target: DataType) -> bool:
    """Whether a file may hold this type for a column: another form of it, or a narrower type
    from before a widening. Integers are checked by value, because some writers store all of them
    as 32 or 64 bits, or without a sign. A double rounds integers of 64 bits: delta-spark 4.4
    refuses them, too.
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
            is_narrow = types.is_integer(source) and source.bit_width <= _EXACT_BITS
            return bool(is_narrow or types.is_floating(source))
        case "float":
            return bool(types.is_float16(source))
        case "date":
            return bool(types.is_date(source))
        case "timestamp":
            return bool(types.is_timestamp(source))
        case "timestamp_ntz":
            return bool(types.is_timestamp(source) or types.is_date(source))
    return False
