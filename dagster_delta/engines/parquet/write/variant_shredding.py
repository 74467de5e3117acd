"""Splits variants into typed columns, by a schema inferred from the values of a file.

A value that a column cannot hold exactly stays encoded beside it. Only the type of exact numbers
changes: integers become `int64`, or decimals of one scale if they are among decimals.

Spec: Parquet, Variant Shredding.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from dagster_delta.engines.parquet.write.encoded_variants import EncodedVariants, Kind, Places
from dagster_delta.engines.parquet.write.shredding_schema import (
    SAMPLE_ROWS,
    Budget,
    ShreddedGroup,
    infer_group,
)
from dagster_delta.engines.values.nested_arrays import null_mask, rebuild_struct
from dagster_delta.protocol.values.arrow_schema import is_marked_variant

if TYPE_CHECKING:
    from numpy.typing import NDArray

_METADATA = pa.field("metadata", pa.binary(), nullable=False)
_KIND_OF_TYPE = {
    pa.bool_(): Kind.BOOLEAN,
    pa.int64(): Kind.INTEGER,
    pa.float32(): Kind.FLOAT,
    pa.float64(): Kind.DOUBLE,
    pa.date32(): Kind.DATE,
    pa.timestamp("us", tz="UTC"): Kind.TIMESTAMP,
    pa.timestamp("us"): Kind.TIMESTAMP_NTZ,
    pa.binary(): Kind.BINARY,
    pa.string(): Kind.STRING,
}
_INT64_DIGITS = 18


class VariantShredding(msgspec.Struct, frozen=True):
    """How the variants of some files are split."""

    arrow_schema: pa.Schema
    """`pyarrow.Schema` of the files."""
    _groups: dict[tuple[int, ...], ShreddedGroup]
    """By position of the variant: index of the column, then of fields of structs."""

    @classmethod
    def infer(cls, rows: pa.Table) -> VariantShredding | None:
        """The shredding for some rows; None if they need none.

        `rows`: rows as stored without shredding. Only the first `SAMPLE_ROWS` are used.
        """
        sample = rows.slice(0, SAMPLE_ROWS)
        budget = Budget()
        groups: dict[tuple[int, ...], ShreddedGroup] = {}
        for index, column in enumerate(sample.columns):
            if _holds_variants(column.type):
                _infer(_one_array(column), (index,), budget, groups)
        if not groups:
            return None
        fields = [
            each.with_type(_shredded_type(each.type, (index,), groups))
            for index, each in enumerate(rows.schema)
        ]
        return cls(pa.schema(fields), groups)

    def apply(self, rows: pa.Table) -> pa.Table:
        """The rows as stored in the files."""
        columns = list(rows.columns)
        for index in {position[0] for position in self._groups}:
            array = self._apply(_one_array(columns[index]), (index,))
            columns[index] = pa.chunked_array([array])
        return pa.Table.from_arrays(columns, schema=self.arrow_schema)

    def _apply(self, array: pa.StructArray, position: tuple[int, ...]) -> pa.StructArray:
        group = self._groups.get(position)
        if group is not None:
            return _shred_column(array, group)
        if not any(each[: len(position)] == position for each in self._groups):
            return array
        children = [
            self._apply(child, (*position, index)) for index, child in enumerate(array.flatten())
        ]
        fields = [
            each.with_type(child.type) for each, child in zip(array.type, children, strict=True)
        ]
        return rebuild_struct(array, children, pa.struct(fields))


def _holds_variants(arrow_type: pa.DataType) -> bool:
    """Whether a column, or structs in it, has variants. Those in arrays and maps stay whole, as in
    Spark.
    """
    if not pa.types.is_struct(arrow_type):
        return False
    return is_marked_variant(arrow_type) or any(_holds_variants(each.type) for each in arrow_type)


def _one_array(column: pa.ChunkedArray) -> pa.StructArray:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _infer(
    array: pa.StructArray,
    position: tuple[int, ...],
    budget: Budget,
    groups: dict[tuple[int, ...], ShreddedGroup],
) -> None:
    """Add the group of each variant of an array that benefits from one."""
    if is_marked_variant(array.type):
        group = infer_group(EncodedVariants(array), budget)
        if group.typed is not None:
            groups[position] = group
        return
    for index, child in enumerate(array.flatten()):
        if _holds_variants(child.type):
            _infer(child, (*position, index), budget, groups)


def _shredded_type(
    arrow_type: pa.DataType, position: tuple[int, ...], groups: dict[tuple[int, ...], ShreddedGroup]
) -> pa.DataType:
    if position in groups:
        return pa.struct([_METADATA, *groups[position].fields()])
    if not _holds_variants(arrow_type) or is_marked_variant(arrow_type):
        return arrow_type
    return pa.struct(
        [
            each.with_type(_shredded_type(each.type, (*position, index), groups))
            for index, each in enumerate(arrow_type)
        ]
    )


def _shred_column(array: pa.StructArray, group: ShreddedGroup) -> pa.StructArray:
    metadata = array.field("metadata").cast(pa.binary())
    if metadata.null_count:
        metadata = metadata.fill_null(b"")
    parts = _Shredder(EncodedVariants(array)).column(group)
    return pa.StructArray.from_arrays(
        [metadata, *parts], fields=[_METADATA, *group.fields()], mask=null_mask(array)
    )


class _Shredder(msgspec.Struct, frozen=True):
    variants: EncodedVariants

    def column(self, group: ShreddedGroup) -> list[pa.Array]:
        """The `value` and the `typed_value` of whole variants."""
        variants = self.variants
        start = np.where(variants.is_whole, variants.root.start, -1)
        value, typed = self.group(group, Places(start, variants.root.row))
        if variants.is_whole.all():
            return [value, typed]
        # A damaged value is kept unchanged: readers report it.
        own = np.flatnonzero(~variants.is_whole)
        texts = value.to_pylist()
        for row, size in zip(own.tolist(), variants.root_sizes()[own].tolist(), strict=True):
            first = int(variants.root.start[row])
            texts[row] = variants.data[first : first + size].tobytes()
        return [pa.array(texts, pa.binary()), typed]

    def group(self, group: ShreddedGroup, places: Places) -> list[pa.Array]:
        """The columns of the values at one place."""
        kinds = self.variants.kinds(places)
        is_there = kinds != Kind.MISSING
        match group.typed:
            case None:
                return [self._values(places, is_there)]
            case tuple() as fields:
                return self._objects(fields, places, kinds)
            case ShreddedGroup() as element:
                is_array = kinds == Kind.ARRAY
                value = self._values(places, is_there & ~is_array)
                return [value, self._arrays(element, places, is_array)]
        scalars = group.typed
        if pa.types.is_decimal(scalars):
            fits, typed = self._decimals(scalars, places, kinds)
        else:
            fits = kinds == _KIND_OF_TYPE[scalars]
            typed = self._scalars(scalars, places, fits)
        return [self._values(places, is_there & ~fits), typed]

    # -- what stays encoded ---------------------------------------------------------------------

    def _values(
        self, places: Places, kept: NDArray[np.bool_], rest: _Rest | None = None
    ) -> pa.Array:
        """A `pyarrow.BinaryArray` of the encoded values where `kept`, and of the remaining fields
        of objects.
        """
        slots = np.flatnonzero(kept)
        start, size = np.zeros(len(places), np.int64), np.zeros(len(places), np.int64)
        start[slots] = places.start[slots]
        size[slots] = self.variants.sizes(start[slots])
        data = self.variants.data
        if rest is not None:
            lengths = np.array([len(each) for each in rest.objects], dtype=np.int64)
            start[rest.slots] = len(data) + np.cumsum(lengths) - lengths
            size[rest.slots] = lengths
            data = np.concatenate((data, np.frombuffer(b"".join(rest.objects), np.uint8)))
            kept = kept.copy()
            kept[rest.slots] = True
        return _bytes_array(pa.binary(), data, start, size, kept)

    # -- scalars --------------------------------------------------------------------------------

    def _scalars(self, data_type: pa.DataType, places: Places, fits: NDArray[np.bool_]) -> pa.Array:
        start = places.start[fits]
        if pa.types.is_boolean(data_type):
            bits = np.zeros(len(places), dtype=bool)
            # The primitive types 1 and 2 are true and false.
            bits[fits] = self.variants.data[start] >> 2 == 1
            return _fixed_array(data_type, np.packbits(bits, bitorder="little"), fits)
        if pa.types.is_string(data_type) or pa.types.is_binary(data_type):
            first, length = np.zeros(len(places), np.int64), np.zeros(len(places), np.int64)
            first[fits], length[fits] = self.variants.texts(start)
            return _bytes_array(data_type, self.variants.data, first, length, fits)
        if data_type == pa.int64():
            numbers = np.zeros(len(places), dtype=np.int64)
            numbers[fits], _, _ = self.variants.exact_numbers(start)
            return _fixed_array(data_type, numbers, fits)
        size = data_type.bit_width // 8
        words = np.zeros(len(places), dtype=f"<u{size}")
        words[fits] = self.variants.numbers(start + 1, size, f"<u{size}")
        return _fixed_array(data_type, words, fits)

    def _decimals(
        self, data_type: pa.DataType, places: Places, kinds: NDArray[np.signedinteger[Any]]
    ) -> tuple[NDArray[np.bool_], pa.Array]:
        """Which values the type holds exactly, and those."""
        precision, target = data_type.precision, data_type.scale
        fits = (kinds == Kind.DECIMAL) | (kinds == Kind.INTEGER)
        slots = np.flatnonzero(fits)
        unscaled, scale, is_wide = self.variants.exact_numbers(places.start[slots])
        words = np.zeros((len(places), 2), dtype=np.int64)
        holds = is_wide & (scale == target) & (precision > _INT64_DIGITS)
        wide = slots[holds]
        words[wide] = self.variants.numbers(places.start[wide] + 2, 16, "<i8").reshape(-1, 2)
        for each in np.unique(scale[~is_wide]).tolist():
            digits = precision - (target - each)
            if each > target or digits < 0:
                continue
            most = 10 ** min(digits, _INT64_DIGITS)
            found = ~is_wide & (scale == each)
            if digits <= _INT64_DIGITS:
                found &= (unscaled > -most) & (unscaled < most)
            words[slots[found]] = _rescaled(unscaled[found], each, target)
            holds |= found
        fits[slots] = holds
        return fits, _fixed_array(data_type, words, fits)

    # -- objects and arrays ---------------------------------------------------------------------

    def _objects(
        self,
        fields: tuple[tuple[str, ShreddedGroup], ...],
        places: Places,
        kinds: NDArray[np.signedinteger[Any]],
    ) -> list[pa.Array]:
        is_object = kinds == Kind.OBJECT
        parts = self.variants.parts(places, np.flatnonzero(is_object))
        index = {name: number for number, name in enumerate(self.variants.names)}
        columns, known = [], []
        for name, group in fields:
            # No row has an unknown name.
            number = index.get(name, -1)
            known.append(number)
            children = self.group(group, parts.of_name(number, len(places)))
            columns.append(pa.StructArray.from_arrays(children, fields=group.fields()))
        typed = pa.StructArray.from_arrays(
            columns,
            fields=[pa.field(name, group.arrow_type, nullable=False) for name, group in fields],
            mask=_boolean_array(~is_object),
        )
        is_left = ~np.isin(parts.name, known)
        rest = self._rest(parts.slot[is_left], parts.name_id[is_left], parts.start[is_left])
        return [self._values(places, (kinds != Kind.MISSING) & ~is_object, rest), typed]

    def _rest(
        self, slot: NDArray[np.int64], name_id: NDArray[np.int64], start: NDArray[np.int64]
    ) -> _Rest:
        """The objects of the fields that have no column, by slot."""
        slots, first = np.unique(slot, return_index=True)
        size = self.variants.sizes(start)
        bounds = np.append(first, len(slot)).tolist()
        objects = [
            self.variants.object_of(name_id[begin:end], start[begin:end], size[begin:end])
            for begin, end in pairwise(bounds)
        ]
        return _Rest(slots, objects)

    def _arrays(
        self, element: ShreddedGroup, places: Places, is_array: NDArray[np.bool_]
    ) -> pa.ListArray:
        parts = self.variants.parts(places, np.flatnonzero(is_array))
        children = self.group(element, Places(parts.start, parts.row))
        elements = pa.StructArray.from_arrays(children, fields=element.fields())
        offsets = np.zeros(len(places) + 1, dtype=np.int32)
        np.cumsum(np.bincount(parts.slot, minlength=len(places)), out=offsets[1:])
        data_type = pa.list_(pa.field("element", element.arrow_type, nullable=False))
        buffers = [_validity(is_array), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(data_type, len(places), buffers, children=[elements])


class _Rest(msgspec.Struct, frozen=True):
    """The remaining fields of objects whose other fields have columns."""

    slots: NDArray[np.int64]
    objects: list[bytes]


def _rescaled(unscaled: NDArray[np.int64], scale: int, target: int) -> NDArray[np.int64]:
    """Numbers of int64 as words of a decimal with a larger scale."""
    words = np.stack((unscaled, unscaled >> 63), axis=1)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(words))]
    decimals = pa.Array.from_buffers(pa.decimal128(38, scale), len(unscaled), buffers)
    moved = decimals.cast(pa.decimal128(38, target))
    return np.frombuffer(moved.buffers()[1], dtype=np.int64)[: 2 * len(unscaled)].reshape(-1, 2)


# Arrays are built by their buffers, as `pyarrow.array` would import pandas.


def _validity(is_valid: NDArray[np.bool_]) -> pa.Buffer | None:
    if is_valid.all():
        return None
    return pa.py_buffer(np.packbits(is_valid, bitorder="little"))


def _boolean_array(values: NDArray[np.bool_]) -> pa.BooleanArray:
    buffers = [None, pa.py_buffer(np.packbits(values, bitorder="little"))]
    return pa.Array.from_buffers(pa.bool_(), len(values), buffers)


def _fixed_array(
    data_type: pa.DataType, words: NDArray[Any], is_valid: NDArray[np.bool_]
) -> pa.Array:
    buffers = [_validity(is_valid), pa.py_buffer(words)]
    return pa.Array.from_buffers(data_type, len(is_valid), buffers)


def _bytes_array(
    data_type: pa.DataType,
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    size: NDArray[np.int64],
    is_valid: NDArray[np.bool_],
) -> pa.Array:
    """Strings or binaries, each a piece of some bytes."""
    stops = np.cumsum(size)
    total = int(stops[-1]) if len(stops) else 0
    index = np.repeat(start - (stops - size), size) + np.arange(total)
    offsets = np.zeros(len(size) + 1, dtype=np.int32)
    offsets[1:] = stops
    buffers = [_validity(is_valid), pa.py_buffer(offsets), pa.py_buffer(data[index])]
    return pa.Array.from_buffers(data_type, len(size), buffers)
