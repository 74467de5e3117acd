"""The frame of an encoded variant: its dictionary of names and the positions of its values.

Values are not decoded here: fields and elements are moved as bytes.

Spec: Parquet, Variant Binary Encoding (Metadata encoding; Value encoding).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import msgspec

from dagster_delta.errors import InvalidTable, UnsupportedFeature

VARIANT_NULL = b"\x00"
"""The value that is present and null."""


class BasicType:
    """Meaning of the two lowest bits of a value's first byte."""

    PRIMITIVE = 0
    SHORT_STRING = 1
    OBJECT = 2
    ARRAY = 3


class PrimitiveId:
    """Meaning of the six highest bits of a primitive's first byte."""

    NULL = 0
    TRUE = 1
    FALSE = 2
    INT8 = 3
    INT16 = 4
    INT32 = 5
    INT64 = 6
    DOUBLE = 7
    DECIMAL4 = 8
    DECIMAL8 = 9
    DECIMAL16 = 10
    DATE = 11
    TIMESTAMP = 12
    TIMESTAMP_NTZ = 13
    FLOAT = 14
    BINARY = 15
    STRING = 16
    TIME = 17
    TIMESTAMP_NANOS = 18
    TIMESTAMP_NTZ_NANOS = 19
    UUID = 20


_VERSION = 1
_SORTED = 1 << 4
_SHORT_STRING_BYTES = 64
_SMALL_COUNT = 256
_CACHED_DICTIONARIES = 256
_DECIMALS = (PrimitiveId.DECIMAL4, PrimitiveId.DECIMAL8, PrimitiveId.DECIMAL16)
MAX_DECIMAL_DIGITS = 38
"""Digits of a decimal, and its scale, at most."""

PRIMITIVE_SIZES = {
    PrimitiveId.NULL: 0,
    PrimitiveId.TRUE: 0,
    PrimitiveId.FALSE: 0,
    PrimitiveId.INT8: 1,
    PrimitiveId.INT16: 2,
    PrimitiveId.INT32: 4,
    PrimitiveId.INT64: 8,
    PrimitiveId.DOUBLE: 8,
    PrimitiveId.DECIMAL4: 5,
    PrimitiveId.DECIMAL8: 9,
    PrimitiveId.DECIMAL16: 17,
    PrimitiveId.DATE: 4,
    PrimitiveId.TIMESTAMP: 8,
    PrimitiveId.TIMESTAMP_NTZ: 8,
    PrimitiveId.FLOAT: 4,
    PrimitiveId.TIME: 8,
    PrimitiveId.TIMESTAMP_NANOS: 8,
    PrimitiveId.TIMESTAMP_NTZ_NANOS: 8,
    PrimitiveId.UUID: 16,
}
"""Bytes after the first one; binary and string contain their own length."""


class VariantNames(msgspec.Struct, frozen=True):
    """The dictionary of the field names of a variant's objects."""

    names: tuple[str, ...]
    ids: Mapping[str, int]

    def name(self, field_id: int) -> str:
        """The name of a field id."""
        if field_id >= len(self.names):
            raise damaged_variant(
                f"field id {field_id} is not in its dictionary of {len(self.names)} names"
            )
        return self.names[field_id]


@lru_cache(maxsize=_CACHED_DICTIONARIES)
def decode_names(metadata: bytes) -> VariantNames:
    """The names of an encoded dictionary."""
    header = take(metadata, 0, 1)[0]
    if header & 0x0F != _VERSION:
        raise UnsupportedFeature(
            f"a variant is encoded by version {header & 0x0F} of the encoding and only version "
            f"{_VERSION} is known: read it with a newer engine"
        )
    size = (header >> 6) + 1
    (count,) = _unsigned(metadata, 1, size, 1)
    offsets = _unsigned(metadata, 1 + size, size, count + 1)
    start = 1 + size * (count + 2)
    take(metadata, start, offsets[-1])
    try:
        # Descending offsets give empty names, which the next check finds.
        names = tuple(
            metadata[start + begin : start + end].decode() for begin, end in pairwise(offsets)
        )
    except UnicodeDecodeError as error:
        raise damaged_variant("a name in its dictionary is not UTF-8") from error
    if offsets[0] or any(b > e for b, e in pairwise(offsets)):
        raise damaged_variant("the offsets of its dictionary are out of order")
    # An unsorted dictionary may contain a name twice: both ids mean the same.
    return VariantNames(names, {name: index for index, name in enumerate(names)})


def check_variant(metadata: bytes, value: bytes) -> None:
    """Check that readers find every value of a variant where it belongs, without decoding it.

    InvalidTable: they would not. UnsupportedFeature: it is of a later version of the encoding.
    """
    names = _checked_names(metadata)
    if len(take(value, 0, _value_size(value, 0))) < len(value):
        raise damaged_variant("bytes are left over after its value")
    pending = [(0, len(value))]
    # Every value has its own byte, so if there are more values than bytes, they overlap.
    for _ in range(len(value)):
        position, stop = pending.pop()
        end = position + _value_size(value, position)
        if end > stop:
            raise damaged_variant("its parts overlap")
        _check_content(value, position, end)
        match value[position] & 3:
            case BasicType.OBJECT:
                fields = locate_fields(value, position)
                if not _are_in_order([names.name(field_id) for field_id, _ in fields]):
                    raise damaged_variant("the names of an object are out of order, or twice in it")
                pending += [(start, end) for _, start in fields]
            case BasicType.ARRAY:
                elements = locate_elements(value, position)
                if any(a > b for a, b in pairwise(elements)):
                    raise damaged_variant("the elements of an array are out of order")
                pending += [(start, end) for start in elements]
        if not pending:
            return
    raise damaged_variant("its parts overlap")


def _check_content(value: bytes, position: int, end: int) -> None:
    """Check a string or a decimal."""
    kind, header = value[position] & 3, value[position] >> 2
    is_long_text = kind == BasicType.PRIMITIVE and header == PrimitiveId.STRING
    if is_long_text or kind == BasicType.SHORT_STRING:
        try:
            value[position + (5 if is_long_text else 1) : end].decode()
        except UnicodeDecodeError as error:
            raise damaged_variant("a string is not UTF-8") from error
    elif kind == BasicType.PRIMITIVE and header in _DECIMALS:
        check_scale(value[position + 1])


def check_scale(scale: int) -> None:
    """Check the scale of a decimal."""
    if scale > MAX_DECIMAL_DIGITS:
        raise damaged_variant(f"a decimal has the scale {scale}, and {MAX_DECIMAL_DIGITS} is most")


def _are_in_order(names: Sequence[str]) -> bool:
    """Whether names are sorted and unique: by code point, or as Java compares strings."""
    # Spec: sorted by bytes, which is by code point. Spark sorts by units of UTF-16.
    if all(a < b for a, b in pairwise(names)):
        return True
    return all(a < b for a, b in pairwise([name.encode("utf-16-be") for name in names]))


@lru_cache(maxsize=_CACHED_DICTIONARIES)
def _checked_names(metadata: bytes) -> VariantNames:
    found = decode_names(metadata)
    if metadata[0] & _SORTED and not _are_in_order(found.names):
        raise damaged_variant("the names of its dictionary are out of order, or twice in it")
    return found


def encode_names(names: Sequence[str]) -> bytes:
    """The dictionary of these names, whose ids are their positions."""
    texts = [name.encode() for name in names]
    offsets = [0, *accumulate(map(len, texts))]
    size = _byte_width(max(offsets[-1], len(texts)))
    is_sorted = all(a < b for a, b in pairwise(texts))
    header = _VERSION | (_SORTED if is_sorted else 0) | (size - 1) << 6
    numbers = _pack([len(texts), *offsets], size)
    return b"".join((bytes((header,)), numbers, *texts))


def locate_fields(data: bytes, position: int) -> list[tuple[int, int]]:
    """Field id and position of the value of each field of the object at a position."""
    ids, places = _parts(data, position)
    return list(zip(ids, places, strict=False))


def locate_elements(data: bytes, position: int) -> list[int]:
    """Position of each element of the array at a position."""
    return _parts(data, position)[1][:-1]


def _parts(data: bytes, position: int) -> tuple[list[int], list[int]]:
    """Field ids of the object or array at a position, and the positions of its values and its
    end; an array has no ids.
    """
    first = take(data, position, 1)[0]
    flags, is_object = first >> 2, first & 3 == BasicType.OBJECT
    count_size = 4 if flags >> (4 if is_object else 2) & 1 else 1
    (count,) = _unsigned(data, position + 1, count_size, 1)
    start = position + 1 + count_size
    ids = []
    if is_object:
        id_size = (flags >> 2 & 3) + 1
        ids = _unsigned(data, start, id_size, count)
        start += id_size * count
    offset_size = (flags & 3) + 1
    offsets = _unsigned(data, start, offset_size, count + 1)
    start += offset_size * (count + 1)
    take(data, start, offsets[-1])
    return ids, [start + offset for offset in offsets]


def object_fields(value: bytes) -> list[tuple[int, bytes]] | None:
    """Field id and encoded value of each field of an object; None if the value is no object."""
    if take(value, 0, 1)[0] & 3 != BasicType.OBJECT:
        return None
    # Spec: values may be in another order than fields, so the next offset is not the end of a
    # value.
    return [
        (field_id, take(value, position, _value_size(value, position)))
        for field_id, position in locate_fields(value, 0)
    ]


def encode_object(ids: Sequence[int], values: Sequence[bytes]) -> bytes:
    """The object of these fields, sorted by name in code point order."""
    offsets = [0, *accumulate(map(len, values))]
    id_size = _byte_width(max(ids, default=0))
    offset_size = _byte_width(offsets[-1])
    is_large = len(ids) >= _SMALL_COUNT
    header = is_large << 4 | (id_size - 1) << 2 | offset_size - 1
    return b"".join(
        (
            header_byte(BasicType.OBJECT, header),
            _pack([len(ids)], 4 if is_large else 1),
            _pack(ids, id_size),
            _pack(offsets, offset_size),
            *values,
        )
    )


def encode_array(elements: Sequence[bytes]) -> bytes:
    """The array of these encoded elements."""
    offsets = [0, *accumulate(map(len, elements))]
    offset_size = _byte_width(offsets[-1])
    is_large = len(elements) >= _SMALL_COUNT
    return b"".join(
        (
            header_byte(BasicType.ARRAY, is_large << 2 | offset_size - 1),
            _pack([len(elements)], 4 if is_large else 1),
            _pack(offsets, offset_size),
            *elements,
        )
    )


def encode_text(text: bytes) -> bytes:
    """The string of these UTF-8 bytes."""
    if len(text) < _SHORT_STRING_BYTES:
        return header_byte(BasicType.SHORT_STRING, len(text)) + text
    header = header_byte(BasicType.PRIMITIVE, PrimitiveId.STRING)
    return header + len(text).to_bytes(4, "little") + text


def header_byte(basic_type: int, header: int) -> bytes:
    """The first byte of a value."""
    return bytes((header << 2 | basic_type,))


def take(data: bytes, position: int, size: int) -> bytes:
    """The bytes at a position."""
    stop = position + size
    if stop > len(data):
        raise damaged_variant(f"{stop} bytes are needed and it has {len(data)}")
    return data[position:stop]


def damaged_variant(what: str) -> InvalidTable:
    """The error for bytes that are not a variant."""
    return InvalidTable(
        f"a variant is damaged: {what}; restore an older version of the table or rewrite the file"
    )


def unknown_primitive(primitive_id: int) -> UnsupportedFeature:
    """The error for a type from a later version of the encoding."""
    return UnsupportedFeature(
        f"a variant holds a value of the primitive type {primitive_id}, which is not known: read "
        "it with a newer engine"
    )


def _value_size(data: bytes, position: int) -> int:
    """Size in bytes of the value at a position, its first byte included."""
    first = take(data, position, 1)[0]
    header = first >> 2
    match first & 3:
        case BasicType.SHORT_STRING:
            return 1 + header
        case BasicType.OBJECT | BasicType.ARRAY:
            return _parts(data, position)[1][-1] - position
    if header in (PrimitiveId.BINARY, PrimitiveId.STRING):
        return 5 + _unsigned(data, position + 1, 4, 1)[0]
    if header not in PRIMITIVE_SIZES:
        raise unknown_primitive(header)
    return 1 + PRIMITIVE_SIZES[header]


def _unsigned(data: bytes, position: int, size: int, count: int) -> list[int]:
    packed = take(data, position, size * count)
    if size == 1:
        return list(packed)
    return [
        int.from_bytes(packed[start : start + size], "little")
        for start in range(0, len(packed), size)
    ]


def _pack(numbers: Sequence[int], size: int) -> bytes:
    if size == 1:
        return bytes(numbers)
    return b"".join(number.to_bytes(size, "little") for number in numbers)


def _byte_width(number: int) -> int:
    return max(1, (number.bit_length() + 7) // 8)
