"""Validates encoded variants: a column at a time, level by level of their nesting.

A value in Python costs microseconds, and a column has millions; here all values of one depth are
checked together.

Spec: Parquet, Variant Binary Encoding (Metadata encoding; Value encoding).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from dagster_delta.errors import DeltaError
from dagster_delta.protocol.variant.binary import (
    PRIMITIVE_SIZES,
    BasicType,
    PrimitiveId,
    decode_names,
    says_sorted,
)
from dagster_delta.protocol.variant.variant import decode_variant

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_VARIANT_BYTES = 128 * 1024 * 1024
"""Maximum bytes of a value, and of a dictionary of names, that Spark accepts."""

_UNKNOWN = -1
_SIZES = np.full(64, _UNKNOWN, dtype=np.int64)
_SIZES[list(PRIMITIVE_SIZES)] = list(PRIMITIVE_SIZES.values())
_SIZES[[PrimitiveId.BINARY, PrimitiveId.STRING]] = 4
_DECIMALS = (PrimitiveId.DECIMAL4, PrimitiveId.DECIMAL8, PrimitiveId.DECIMAL16)
_MAX_SCALE = 38


def first_malformed(metadata: pa.Array, values: pa.Array) -> int | None:
    """Position of the first malformed variant, or None.

    `metadata`: `pyarrow.BinaryArray` of encoded dictionaries, without nulls.
    `values`: `pyarrow.BinaryArray` of encoded values, without nulls and as many.
    """
    if not len(values):
        return None
    found = np.flatnonzero(malformed(metadata, values))
    return int(found[0]) if len(found) else None


def malformed(metadata: pa.Array, values: pa.Array) -> NDArray[np.bool_]:
    """Whether each variant is malformed: a numpy array of booleans."""
    check = _Check(*packed_bytes(values), _Names.of(metadata))
    check.run()
    return check.is_bad


def describe_malformed(metadata: bytes, value: bytes) -> str:
    """The problem of a variant that `first_malformed` found, as a clause."""
    for what, content in (("dictionary of names", metadata), ("value", value)):
        if len(content) > MAX_VARIANT_BYTES:
            return f"its {what} has {len(content)} bytes and at most {MAX_VARIANT_BYTES} are read"
    try:
        decode_variant(metadata, value)
    except DeltaError as error:
        # The remedy in that error is for tables, but these are values of a user.
        return re.split(r"; |: read ", str(error).removeprefix("a variant is damaged: "))[0]
    return "its names are out of order, or its parts overlap or leave bytes over"


class _Names(msgspec.Struct, frozen=True):
    ranks: NDArray[np.int64]
    """Rank of each name within its dictionary, for all distinct dictionaries in sequence: once by
    bytes of UTF-8 and once by units of UTF-16."""
    first: NDArray[np.int64]
    """By row: start of the ranks of its dictionary."""
    count: NDArray[np.int64]
    """By row: number of names."""
    is_bad: NDArray[np.bool_]
    """By row."""

    @classmethod
    def of(cls, metadata: pa.Array) -> _Names:
        encoded = metadata.dictionary_encode()
        ranks: list[tuple[int, int]] = []
        starts, counts, flaws = [], [], []
        for each in encoded.dictionary.to_pylist():
            found = _name_ranks(each)
            starts.append(len(ranks))
            counts.append(len(found or ()))
            flaws.append(found is None)
            ranks += found or ()
        rows = encoded.indices.to_numpy()
        return cls(
            np.array(ranks, dtype=np.int64).reshape(-1, 2),
            np.array(starts, dtype=np.int64)[rows],
            np.array(counts, dtype=np.int64)[rows],
            np.array(flaws)[rows],
        )


def _name_ranks(metadata: bytes) -> list[tuple[int, int]] | None:
    """Rank of each name of a dictionary; None if the dictionary is damaged."""
    if len(metadata) > MAX_VARIANT_BYTES:
        return None
    try:
        names = decode_names(metadata).names
    except DeltaError:
        return None
    # Spec: sorted by bytes, which is by code point. Spark sorts as Java compares strings.
    order = sorted(set(names))
    java_order = sorted(order, key=lambda each: each.encode("utf-16-be"))
    if says_sorted(metadata) and list(names) not in (order, java_order):
        return None
    rank = {name: index for index, name in enumerate(order)}
    java_rank = {name: index for index, name in enumerate(java_order)}
    return [(rank[each], java_rank[each]) for each in names]


def packed_bytes(values: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All bytes of a binary array as a numpy array, and the start of each value, plus the end."""
    _, offsets_buffer, data_buffer = values.buffers()
    count = len(values)
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[values.offset :][: count + 1]
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    return data, offsets.astype(np.int64)


def number_at(
    data: NDArray[np.uint8], position: NDArray[Any], size: NDArray[np.int64] | int
) -> NDArray[np.int64]:
    """Little-endian numbers of 1 to 4 bytes each, as a numpy array of int64.

    `position`: start of each number; a position after the end gives an arbitrary number.
    `size`: bytes of each number, or of all.
    """
    numbers = np.zeros(len(position), dtype=np.int64)
    last = len(data) - 1
    for index in range(4):
        byte = data[np.minimum(position + index, last)].astype(np.int64)
        numbers += np.where(index < size, byte << 8 * index, 0)
    return numbers


class ContainerFrame(msgspec.Struct, frozen=True):
    """The layout of objects and arrays: numpy arrays of int64."""

    count: NDArray[np.int64]
    ids: NDArray[np.int64]
    """Start of the ids of the fields."""
    id_size: NDArray[np.int64]
    """Bytes of an id; 0 if the container is an array."""
    offsets: NDArray[Any]
    offset_size: NDArray[np.int64]
    content: NDArray[np.int64]
    """Start of the values."""

    @classmethod
    def of(cls, data: NDArray[np.uint8], start: NDArray[np.int64]) -> ContainerFrame:
        """The layout of the containers at some positions."""
        first = data[start]
        header = (first >> 2).astype(np.int64)
        is_object = (first & 3) == BasicType.OBJECT
        is_large = np.where(is_object, header >> 4 & 1, header >> 2 & 1) == 1
        count_size = np.where(is_large, 4, 1)
        count = number_at(data, start + 1, count_size)
        id_size = np.where(is_object, (header >> 2 & 3) + 1, 0)
        offset_size = (header & 3) + 1
        ids = start + 1 + count_size
        offsets = ids + id_size * count
        content = offsets + offset_size * (count + 1)
        return cls(count, ids, id_size, offsets, offset_size, content)

    def where(self, chosen: NDArray[np.bool_]) -> ContainerFrame:
        """The layout of some of the containers."""
        return ContainerFrame(*(each[chosen] for each in msgspec.structs.astuple(self)))

    def last_offset(self, data: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Bytes of the values of each container together."""
        return number_at(data, self.offsets + self.offset_size * self.count, self.offset_size)

    def parts(
        self, data: NDArray[np.uint8]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """For each field or element: its container, its place there, and its offset."""
        container = np.repeat(np.arange(len(self.count)), self.count)
        ordinal = np.arange(len(container)) - np.repeat(
            np.cumsum(self.count) - self.count, self.count
        )
        size = self.offset_size[container]
        return container, ordinal, number_at(data, self.offsets[container] + ordinal * size, size)


class _Check:
    """Checks the values of a column; `is_bad` has the result by row."""

    def __init__(self, data: NDArray[np.uint8], offsets: NDArray[np.int64], names: _Names) -> None:
        self._data = data
        self._names = names
        self._start, self._end = offsets[:-1], offsets[1:]
        self._rows = np.arange(len(self._start))
        sizes = self._end - self._start
        self.is_bad = names.is_bad | (sizes > MAX_VARIANT_BYTES)
        # Every value has its own byte, so if there are more values than bytes, they overlap.
        self._bytes_left = sizes.copy()
        self._texts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        self._is_top = True

    def run(self) -> None:
        self._drop(self.is_bad[self._rows])
        while len(self._rows):
            self._bytes_left -= np.bincount(self._rows, minlength=len(self._bytes_left))
            self._drop((self._start >= self._end) | (self._bytes_left[self._rows] < 0))
            self._step()
            self._is_top = False
        self._check_texts()

    def _drop(self, is_bad: NDArray[np.bool_]) -> None:
        """Mark rows as bad, and stop checking them."""
        self.is_bad[self._rows[is_bad]] = True
        kept = ~self.is_bad[self._rows]
        if not kept.all():
            self._start, self._end = self._start[kept], self._end[kept]
            self._rows = self._rows[kept]

    def _mark(self, rows: NDArray[np.int64], is_bad: NDArray[np.bool_]) -> None:
        self.is_bad[rows[is_bad]] = True

    def _step(self) -> None:
        """Check the values of one depth, then continue with those inside them."""
        first = self._data[self._start]
        kind, header = first & 3, (first >> 2).astype(np.int64)
        self._check_short_texts(kind == BasicType.SHORT_STRING, header)
        self._check_primitives(kind == BasicType.PRIMITIVE, header)
        self._enter_containers((kind == BasicType.OBJECT) | (kind == BasicType.ARRAY))

    def _ends(
        self, rows: NDArray[np.int64], stop: NDArray[np.int64], end: NDArray[np.int64]
    ) -> None:
        """A value must end within its container; a top-level value at the end of its bytes."""
        self._mark(rows, (stop != end) if self._is_top else (stop > end))

    def _check_short_texts(self, selected: NDArray[np.bool_], header: NDArray[np.int64]) -> None:
        start, length, rows = self._start[selected] + 1, header[selected], self._rows[selected]
        self._ends(rows, start + length, self._end[selected])
        self._texts.append((start, length, rows))

    def _check_primitives(self, selected: NDArray[np.bool_], header: NDArray[np.int64]) -> None:
        start, end, rows = self._start[selected], self._end[selected], self._rows[selected]
        primitive = header[selected]
        size = _SIZES[primitive].copy()
        is_bad = (size == _UNKNOWN) | (start + 1 + size > end)
        is_decimal = np.isin(primitive, _DECIMALS) & ~is_bad
        self._mark(rows[is_decimal], self._data[start[is_decimal] + 1] > _MAX_SCALE)
        is_sized = np.isin(primitive, (PrimitiveId.BINARY, PrimitiveId.STRING)) & ~is_bad
        size[is_sized] += number_at(self._data, start[is_sized] + 1, 4)
        self._mark(rows, is_bad)
        self._ends(rows[~is_bad], (start + 1 + size)[~is_bad], end[~is_bad])
        is_text = is_sized & (primitive == PrimitiveId.STRING)
        self._texts.append((start[is_text] + 5, size[is_text] - 4, rows[is_text]))

    def _enter_containers(self, selected: NDArray[np.bool_]) -> None:
        """Make the fields and elements of containers the next values to check."""
        start, end, rows = self._start[selected], self._end[selected], self._rows[selected]
        # The numbers of a container that is cut are arbitrary.
        frame = ContainerFrame.of(self._data, start)
        stop = frame.content + frame.last_offset(self._data)
        is_bad = (frame.ids > end) | (frame.content > end)
        is_bad |= (stop != end) if self._is_top else (stop > end)
        self._mark(rows, is_bad)
        frame, stop, rows = frame.where(~is_bad), stop[~is_bad], rows[~is_bad]
        container, ordinal, offsets = frame.parts(self._data)
        in_object = frame.id_size[container] > 0
        owner, position = container[in_object], ordinal[in_object]
        id_size = frame.id_size[owner]
        ids_at = frame.ids[owner] + position * id_size
        self._check_names(rows[owner], ids_at, id_size, is_first=position == 0)
        # Spec: elements are stored in order; fields need not be.
        same = (np.diff(container) == 0) & ~in_object[1:]
        self._mark(rows[container[1:]], same & (np.diff(offsets) < 0))
        self._start, self._end = frame.content[container] + offsets, stop[container]
        self._rows = rows[container]
        self._drop(self._start >= self._end)

    def _check_names(
        self,
        rows: NDArray[np.int64],
        ids_at: NDArray[np.int64],
        id_size: NDArray[np.int64],
        *,
        is_first: NDArray[np.bool_],
    ) -> None:
        """Check that every field id is in the dictionary, and the names are in order."""
        ids = number_at(self._data, ids_at, id_size)
        is_known = ids < self._names.count[rows]
        self._mark(rows, ~is_known)
        ranks = np.zeros((len(ids), 2), dtype=np.int64)
        ranks[is_known] = self._names.ranks[self._names.first[rows[is_known]] + ids[is_known]]
        self._mark(rows[1:], ~is_first[1:] & (np.diff(ranks, axis=0) <= 0).all(axis=1))

    def _check_texts(self) -> None:
        if not self._texts:
            return
        start, length, rows = (np.concatenate(each) for each in zip(*self._texts, strict=True))
        kept = ~self.is_bad[rows]
        start, length, rows = start[kept], length[kept], rows[kept]
        ends = np.cumsum(length)
        index = np.repeat(start - (ends - length), length) + np.arange(ends[-1] if len(ends) else 0)
        content = pa.py_buffer(self._data[index])
        offsets = pa.py_buffer(np.concatenate(([0], ends)).astype(np.int64))
        texts = pa.Array.from_buffers(pa.large_string(), len(rows), [None, offsets, content])
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            raw = texts.cast(pa.large_binary()).to_pylist()
            self._mark(rows, np.array([not _is_utf8(each) for each in raw]))


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
