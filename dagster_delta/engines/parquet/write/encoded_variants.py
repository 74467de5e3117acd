"""Parses encoded variants, a column at a time: the kind of each value and the position of its
parts.

A value in Python costs microseconds; here all values at one place of a column are parsed together.

Spec: Parquet, Variant Binary Encoding (Metadata encoding; Value encoding).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.variant.binaries import (
    ContainerFrame,
    malformed,
    number_at,
    packed_bytes,
)
from dagster_delta.protocol.variant.binary import (
    PRIMITIVE_SIZES,
    BasicType,
    PrimitiveId,
    decode_names,
    encode_object,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Kind(IntEnum):
    """The kind of a value; equivalent types are one kind."""

    MISSING = 0
    """There is no value."""
    OTHER = 1
    """A value known only by its bytes: the null of a variant, and types without a column."""
    BOOLEAN = 2
    INTEGER = 3
    DECIMAL = 4
    FLOAT = 5
    DOUBLE = 6
    DATE = 7
    TIMESTAMP = 8
    TIMESTAMP_NTZ = 9
    BINARY = 10
    STRING = 11
    OBJECT = 12
    ARRAY = 13
    NULL = 14


_KIND_OF_PRIMITIVE = {
    PrimitiveId.NULL: Kind.NULL,
    PrimitiveId.TRUE: Kind.BOOLEAN,
    PrimitiveId.FALSE: Kind.BOOLEAN,
    PrimitiveId.INT8: Kind.INTEGER,
    PrimitiveId.INT16: Kind.INTEGER,
    PrimitiveId.INT32: Kind.INTEGER,
    PrimitiveId.INT64: Kind.INTEGER,
    PrimitiveId.DECIMAL4: Kind.DECIMAL,
    PrimitiveId.DECIMAL8: Kind.DECIMAL,
    PrimitiveId.DECIMAL16: Kind.DECIMAL,
    PrimitiveId.FLOAT: Kind.FLOAT,
    PrimitiveId.DOUBLE: Kind.DOUBLE,
    PrimitiveId.DATE: Kind.DATE,
    PrimitiveId.TIMESTAMP: Kind.TIMESTAMP,
    PrimitiveId.TIMESTAMP_NTZ: Kind.TIMESTAMP_NTZ,
    PrimitiveId.BINARY: Kind.BINARY,
    PrimitiveId.STRING: Kind.STRING,
}


def _kinds_by_first_byte() -> NDArray[np.int8]:
    kinds = np.full(256, Kind.OTHER, dtype=np.int8)
    for primitive_id, kind in _KIND_OF_PRIMITIVE.items():
        kinds[primitive_id << 2 | BasicType.PRIMITIVE] = kind
    basic = np.arange(256) & 3
    kinds[basic == BasicType.SHORT_STRING] = Kind.STRING
    kinds[basic == BasicType.OBJECT] = Kind.OBJECT
    kinds[basic == BasicType.ARRAY] = Kind.ARRAY
    return kinds


_KINDS = _kinds_by_first_byte()
_SIZES = np.zeros(64, dtype=np.int64)
_SIZES[list(PRIMITIVE_SIZES)] = list(PRIMITIVE_SIZES.values())
_EXACT_NUMBERS = {
    PrimitiveId.INT8: (1, 1),
    PrimitiveId.INT16: (1, 2),
    PrimitiveId.INT32: (1, 4),
    PrimitiveId.INT64: (1, 8),
    PrimitiveId.DECIMAL4: (2, 4),
    PrimitiveId.DECIMAL8: (2, 8),
}
"""Start and number of the bytes of a number."""
_SIZED = (PrimitiveId.BINARY, PrimitiveId.STRING)


class Places(msgspec.Struct, frozen=True):
    """Positions of the values at one place of a column, one per slot: numpy arrays of int64."""

    start: NDArray[np.int64]
    """Start of the value; -1 if there is none."""
    row: NDArray[np.int64]
    """Row of the column; it gives the dictionary of names."""

    def __len__(self) -> int:
        return len(self.start)


class Parts(msgspec.Struct, frozen=True):
    """The fields of objects or the elements of arrays, in order: numpy arrays of int64."""

    slot: NDArray[np.int64]
    """Of the container."""
    start: NDArray[np.int64]
    """Of the value."""
    row: NDArray[np.int64]
    name: NDArray[np.int64]
    """Index among the names of the column; unused if the containers are arrays."""
    name_id: NDArray[np.int64]
    """Index in the dictionary of the row."""

    def of_name(self, name: int, num_slots: int) -> Places:
        """The position of a named field in each of the objects.

        `name`: index among the names of the column.
        """
        found = self.name == name
        start = np.full(num_slots, -1, dtype=np.int64)
        row = np.zeros(num_slots, dtype=np.int64)
        start[self.slot[found]] = self.start[found]
        row[self.slot[found]] = self.row[found]
        return Places(start, row)


class EncodedVariants:
    """The variants of a column.

    `array`: `pyarrow.StructArray` of `value` and `metadata`.
    """

    def __init__(self, array: pa.StructArray) -> None:
        values, metadata = (
            array.field(name).cast(pa.binary()).filter(array.is_valid())
            for name in ("value", "metadata")
        )
        valid = np.from_dlpack(pc.indices_nonzero(array.is_valid())).astype(np.int64)
        self.data, offsets = packed_bytes(values)
        start = np.full(len(array), -1, dtype=np.int64)
        start[valid] = offsets[:-1]
        self.root = Places(start, np.cumsum(start >= 0) - 1)
        is_whole = np.ones(len(array), dtype=bool)
        if len(valid):
            is_whole[valid] = ~malformed(metadata, values)
        self.is_whole = is_whole
        """By row: whether the bytes can be parsed safely; files of other writers are unchecked."""
        self._stops = np.full(len(array), 0, dtype=np.int64)
        self._stops[valid] = offsets[1:]
        self._read_names(metadata, is_whole[valid])

    def _read_names(self, metadata: pa.Array, is_whole: NDArray[np.bool_]) -> None:
        encoded = metadata.dictionary_encode()
        rows = np.from_dlpack(encoded.indices).astype(np.int64)
        known = set(rows[is_whole].tolist())
        names: dict[str, int] = {}
        indexes: list[int] = []
        first: list[int] = []
        for number, each in enumerate(encoded.dictionary.to_pylist()):
            first.append(len(indexes))
            if number in known:
                indexes += [names.setdefault(n, len(names)) for n in decode_names(each).names]
        self.names = tuple(names)
        """All names in the column."""
        self._first_name = np.array(first, dtype=np.int64)[rows]
        self._name_indexes = np.array(indexes, dtype=np.int64)

    def kinds(self, places: Places) -> NDArray[np.signedinteger[Any]]:
        """The `Kind` of each value, as a numpy array."""
        if not len(self.data):
            return np.zeros(len(places), dtype=np.int8)
        return np.where(places.start < 0, Kind.MISSING, _KINDS[self.data[places.start]])

    def sizes(self, start: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of the values at some positions."""
        first = self.data[start]
        kind, header = first & 3, (first >> 2).astype(np.int64)
        size = np.where(kind == BasicType.SHORT_STRING, 1 + header, 1 + _SIZES[header])
        sized = (kind == BasicType.PRIMITIVE) & np.isin(header, _SIZED)
        size[sized] = 5 + number_at(self.data, start[sized] + 1, 4)
        nested = (kind == BasicType.OBJECT) | (kind == BasicType.ARRAY)
        if nested.any():
            frame = ContainerFrame.of(self.data, start[nested])
            size[nested] = frame.content + frame.last_offset(self.data) - start[nested]
        return size

    def root_sizes(self) -> NDArray[np.int64]:
        """Bytes of the value of each row, complete or not; 0 if there is none."""
        return np.where(self.root.start < 0, 0, self._stops - self.root.start)

    def parts(self, places: Places, slots: NDArray[np.int64]) -> Parts:
        """The fields of the objects, or elements of the arrays, in some slots."""
        start, row = places.start[slots], places.row[slots]
        frame = ContainerFrame.of(self.data, start)
        container, ordinal, offsets = frame.parts(self.data)
        id_size = frame.id_size[container]
        name_id = number_at(self.data, frame.ids[container] + ordinal * id_size, id_size)
        rows = row[container]
        name = np.zeros(len(container), dtype=np.int64)
        named = id_size > 0
        name[named] = self._name_indexes[self._first_name[rows[named]] + name_id[named]]
        return Parts(slots[container], frame.content[container] + offsets, rows, name, name_id)

    def numbers(self, start: NDArray[np.int64], size: int, data_type: str) -> NDArray[Any]:
        """Numbers of a width, read from some positions.

        `start`: of the first byte of each.
        `size`: bytes of each.
        """
        words = self.data[start[:, None] + np.arange(size)]
        return np.ascontiguousarray(words).view(data_type).reshape(-1)

    def exact_numbers(
        self, start: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """The integers and decimals at some positions: the unscaled number, its scale, and whether
        it has 16 bytes, which the caller must read.
        """
        primitive = self.data[start] >> 2
        unscaled = np.zeros(len(start), dtype=np.int64)
        for primitive_id, (skip, size) in _EXACT_NUMBERS.items():
            found = primitive == primitive_id
            if found.any():
                unscaled[found] = self.numbers(start[found] + skip, size, f"<i{size}")
        is_wide = primitive == PrimitiveId.DECIMAL16
        is_decimal = is_wide | np.isin(primitive, (PrimitiveId.DECIMAL4, PrimitiveId.DECIMAL8))
        scale = np.zeros(len(start), dtype=np.int64)
        scale[is_decimal] = self.data[start[is_decimal] + 1]
        return unscaled, scale, is_wide

    def texts(self, start: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The start and length of the contents of the strings and binaries at some positions."""
        first = self.data[start]
        is_short = (first & 3) == BasicType.SHORT_STRING
        length = np.where(is_short, first >> 2, number_at(self.data, start + 1, 4))
        return start + np.where(is_short, 1, 5), length

    def object_of(
        self, name_ids: NDArray[np.int64], start: NDArray[np.int64], size: NDArray[np.int64]
    ) -> bytes:
        """The object of some fields, encoded.

        `name_ids`: indexes of their names in the dictionary, in the order of the fields.
        """
        values = [
            self.data[first : first + length].tobytes()
            for first, length in zip(start.tolist(), size.tolist(), strict=True)
        ]
        return encode_object(name_ids.tolist(), values)
