"""The binary encoding of variants: encoded variants as Python values and back, and their parts as
bytes.

Spec: Variant Data Type; Parquet, Variant Binary Encoding.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate, pairwise

import msgspec

from dagster_delta.errors import InvalidArgument, InvalidTable, UnsupportedFeature

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

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  of timestamps without a time zone
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY = dt.date(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
_DAY_US = 24 * 60 * 60 * 1_000_000


class NanosecondTimestamp(msgspec.Struct, frozen=True):
    """A timestamp with nanoseconds, which Python's datetime cannot hold."""

    nanoseconds: int
    """Since 1970-01-01 00:00:00, in UTC or on the local clock."""
    is_utc: bool
    """Whether it is an instant; else it is a local time."""


class SingleFloat(float):
    """A number of type `float`, as a variant distinguishes it from `double`."""

    __slots__ = ()

    @classmethod
    def of(cls, number: float) -> SingleFloat:
        """The nearest number that a `float` holds; infinite if out of range."""
        try:
            (rounded,) = struct.unpack("<f", struct.pack("<f", number))
        except OverflowError:
            rounded = math.copysign(math.inf, number)
        return cls(rounded)


def decode_variant(metadata: bytes, value: bytes) -> object:
    """The Python value of a variant.

    Objects are dicts, arrays lists, integers int, `double` is float and `float` its subclass
    `SingleFloat`, decimals are `Decimal`; timestamps are aware datetimes in UTC, timestamps without
    a time zone are naive, and those with nanoseconds are `NanosecondTimestamp`. Bytes that violate
    the encoding are an InvalidTable; a later version of it, a date or timestamp outside the years 1
    to 9999, or a value nested deeper than Python's stack an UnsupportedFeature.
    """
    try:
        return _decode_value(value, 0, decode_names(metadata))
    except RecursionError as error:
        raise UnsupportedFeature(
            "a variant is nested too deeply to become Python values: read it with the Spark engine"
        ) from error


def decode_joined(data: bytes) -> object:
    """The Python value of a variant whose value follows its dictionary of names, as in statistics.
    Raises as `decode_variant` does.
    """
    size = (take(data, 0, 1)[0] >> 6) + 1
    (count,) = _read_unsigned(data, 1, size, 1)
    (length,) = _read_unsigned(data, 1 + size * (count + 1), size, 1)
    end = 1 + size * (count + 2) + length
    return decode_variant(take(data, 0, end), data[end:])


def encode_variant(value: object) -> tuple[bytes, bytes]:
    """The encoded dictionary of names and the encoded value of a Python value.

    Integers get the narrowest type that holds them, integers beyond 64 bits a decimal; float
    becomes `double`. Any mapping with string keys works as a dict, and a tuple as a list.
    """
    try:
        names = sorted(set(_collect_names(value)))
        ids = {name: index for index, name in enumerate(names)}
        return encode_names(names), _encode_value(value, ids)
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            "a string holds half of a surrogate pair, which UTF-8 cannot encode: replace it"
        ) from error
    except RecursionError as error:
        raise InvalidArgument("the value is nested too deeply for a variant") from error


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
    (count,) = _read_unsigned(metadata, 1, size, 1)
    offsets = _read_unsigned(metadata, 1 + size, size, count + 1)
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
    numbers = _pack_unsigned([len(texts), *offsets], size)
    return b"".join((bytes((header,)), numbers, *texts))


def locate_fields(data: bytes, position: int) -> list[tuple[int, int]]:
    """Field id and position of the value of each field of the object at a position."""
    ids, places = _locate_parts(data, position)
    return list(zip(ids, places, strict=False))


def locate_elements(data: bytes, position: int) -> list[int]:
    """Position of each element of the array at a position."""
    return _locate_parts(data, position)[1][:-1]


def _locate_parts(data: bytes, position: int) -> tuple[list[int], list[int]]:
    """Field ids of the object or array at a position, and the positions of its values and its
    end; an array has no ids.
    """
    first = take(data, position, 1)[0]
    flags, is_object = first >> 2, first & 3 == BasicType.OBJECT
    count_size = 4 if flags >> (4 if is_object else 2) & 1 else 1
    (count,) = _read_unsigned(data, position + 1, count_size, 1)
    start = position + 1 + count_size
    ids = []
    if is_object:
        id_size = (flags >> 2 & 3) + 1
        ids = _read_unsigned(data, start, id_size, count)
        start += id_size * count
    offset_size = (flags & 3) + 1
    offsets = _read_unsigned(data, start, offset_size, count + 1)
    start += offset_size * (count + 1)
    take(data, start, offsets[-1])
    return ids, [start + offset for offset in offsets]


def object_fields(value: bytes) -> list[tuple[int, bytes]] | None:
    """Field id and encoded value of each field of an object; None if the value is not an object."""
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
    id_size = _byte_width(max(ids, default=0))
    flags = (len(ids) >= _SMALL_COUNT) << 4 | (id_size - 1) << 2
    return _encode_parts(BasicType.OBJECT, flags, _pack_unsigned(ids, id_size), values)


def encode_array(elements: Sequence[bytes]) -> bytes:
    """The array of these encoded elements."""
    return _encode_parts(BasicType.ARRAY, (len(elements) >= _SMALL_COUNT) << 2, b"", elements)


def _encode_parts(basic_type: int, flags: int, ids: bytes, values: Sequence[bytes]) -> bytes:
    offsets = [0, *accumulate(map(len, values))]
    offset_size = _byte_width(offsets[-1])
    count = _pack_unsigned([len(values)], 4 if len(values) >= _SMALL_COUNT else 1)
    header = header_byte(basic_type, flags | offset_size - 1)
    return b"".join((header, count, ids, _pack_unsigned(offsets, offset_size), *values))


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


def _unknown_primitive(primitive_id: int) -> UnsupportedFeature:
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
            return _locate_parts(data, position)[1][-1] - position
    if header in (PrimitiveId.BINARY, PrimitiveId.STRING):
        return 5 + _read_unsigned(data, position + 1, 4, 1)[0]
    if header not in _PRIMITIVES:
        raise _unknown_primitive(header)
    return 1 + _PRIMITIVES[header][0]


def _read_unsigned(data: bytes, position: int, size: int, count: int) -> list[int]:
    packed = take(data, position, size * count)
    if size == 1:
        return list(packed)
    return [
        int.from_bytes(packed[start : start + size], "little")
        for start in range(0, len(packed), size)
    ]


def _pack_unsigned(numbers: Sequence[int], size: int) -> bytes:
    if size == 1:
        return bytes(numbers)
    return b"".join(number.to_bytes(size, "little") for number in numbers)


def _byte_width(number: int) -> int:
    return max(1, (number.bit_length() + 7) // 8)


def _decode_value(data: bytes, position: int, names: VariantNames) -> object:
    first = take(data, position, 1)[0]
    match first & 3:
        case BasicType.PRIMITIVE:
            return _decode_primitive(data, position + 1, first >> 2)
        case BasicType.SHORT_STRING:
            return _decode_text(take(data, position + 1, first >> 2))
        case BasicType.ARRAY:
            return [
                _decode_value(data, element, names) for element in locate_elements(data, position)
            ]
    fields = locate_fields(data, position)
    decoded = {
        names.name(field_id): _decode_value(data, field, names) for field_id, field in fields
    }
    if len(decoded) < len(fields):
        # Spec: an object may not contain duplicate keys.
        raise damaged_variant("an object has two fields of one name")
    return decoded


def _decode_primitive(data: bytes, position: int, primitive_id: int) -> object:
    if primitive_id in (PrimitiveId.BINARY, PrimitiveId.STRING):
        content = take(data, position + 4, int.from_bytes(take(data, position, 4), "little"))
        return content if primitive_id == PrimitiveId.BINARY else _decode_text(content)
    if primitive_id not in _PRIMITIVES:
        raise _unknown_primitive(primitive_id)
    try:
        size, decode = _PRIMITIVES[primitive_id]
        return decode(take(data, position, size))
    except OverflowError as error:
        raise UnsupportedFeature(
            "a variant holds a date or timestamp outside the years 1 to 9999, which Python has no "
            "value for: read it with the Spark engine"
        ) from error


def _decode_text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise damaged_variant("a string is not UTF-8") from error


def _decode_integer(content: bytes) -> int:
    return int.from_bytes(content, "little", signed=True)


def _decode_decimal(content: bytes) -> Decimal:
    scale = content[0]
    check_scale(scale)
    # The constructor is exact; arithmetic would round to the precision of the context.
    return Decimal(f"{_decode_integer(content[1:])}E-{scale}")


def _decode_time(content: bytes) -> dt.time:
    time_us = _decode_integer(content)
    if not 0 <= time_us < _DAY_US:
        raise damaged_variant(f"a time of day is {time_us} microseconds")
    return (_EPOCH + time_us * _MICROSECOND).time()


# Bytes after the first one, and what they mean; binary and string contain their own length.
_PRIMITIVES: dict[int, tuple[int, Callable[[bytes], object]]] = {
    PrimitiveId.NULL: (0, lambda _: None),
    PrimitiveId.TRUE: (0, lambda _: True),
    PrimitiveId.FALSE: (0, lambda _: False),
    PrimitiveId.INT8: (1, _decode_integer),
    PrimitiveId.INT16: (2, _decode_integer),
    PrimitiveId.INT32: (4, _decode_integer),
    PrimitiveId.INT64: (8, _decode_integer),
    PrimitiveId.DOUBLE: (8, lambda content: struct.unpack("<d", content)[0]),
    PrimitiveId.DECIMAL4: (5, _decode_decimal),
    PrimitiveId.DECIMAL8: (9, _decode_decimal),
    PrimitiveId.DECIMAL16: (17, _decode_decimal),
    PrimitiveId.DATE: (4, lambda content: _EPOCH_DAY + dt.timedelta(days=_decode_integer(content))),
    PrimitiveId.TIMESTAMP: (
        8,
        lambda content: _EPOCH_UTC + _decode_integer(content) * _MICROSECOND,
    ),
    PrimitiveId.TIMESTAMP_NTZ: (
        8,
        lambda content: _EPOCH + _decode_integer(content) * _MICROSECOND,
    ),
    PrimitiveId.FLOAT: (4, lambda content: SingleFloat(struct.unpack("<f", content)[0])),
    PrimitiveId.TIME: (8, _decode_time),
    PrimitiveId.TIMESTAMP_NANOS: (
        8,
        lambda c: NanosecondTimestamp(_decode_integer(c), is_utc=True),
    ),
    PrimitiveId.TIMESTAMP_NTZ_NANOS: (
        8,
        lambda c: NanosecondTimestamp(_decode_integer(c), is_utc=False),
    ),
    PrimitiveId.UUID: (16, lambda content: uuid.UUID(bytes=content)),
}


def _collect_names(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise InvalidArgument(
                    f"a field of an object has the name {name!r}: names are strings"
                )
            yield name
            yield from _collect_names(inner)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _collect_names(item)


def _encode_value(value: object, ids: Mapping[str, int]) -> bytes:
    match value:
        case Mapping():
            # Spec: in the order of the names as bytes of UTF-8, which is that of code points.
            ordered = sorted(value)
            values = [_encode_value(value[name], ids) for name in ordered]
            return encode_object([ids[name] for name in ordered], values)
        case list() | tuple():
            return encode_array([_encode_value(item, ids) for item in value])
    return _encode_primitive(value)


def _encode_primitive(value: object) -> bytes:
    match value:
        case None:
            return VARIANT_NULL
        case bool():
            return _prefix_header(PrimitiveId.TRUE if value else PrimitiveId.FALSE)
        case int():
            return _encode_integer(value)
        case SingleFloat():
            return _prefix_header(PrimitiveId.FLOAT, struct.pack("<f", value))
        case float():
            return _prefix_header(PrimitiveId.DOUBLE, struct.pack("<d", value))
        case str():
            return encode_text(value.encode())
        case bytes():
            size = len(value).to_bytes(4, "little")
            return _prefix_header(PrimitiveId.BINARY, size + value)
        case Decimal():
            return _encode_decimal(value)
        case uuid.UUID():
            return _prefix_header(PrimitiveId.UUID, value.bytes)
    return _encode_temporal(value)


def _encode_temporal(value: object) -> bytes:
    match value:
        case dt.datetime(tzinfo=None):
            time_us = (value - _EPOCH) // _MICROSECOND
            return _prefix_header(PrimitiveId.TIMESTAMP_NTZ, _encode_signed(time_us, 8))
        case dt.datetime():
            time_us = (value - _EPOCH_UTC) // _MICROSECOND
            return _prefix_header(PrimitiveId.TIMESTAMP, _encode_signed(time_us, 8))
        case dt.date():
            return _prefix_header(PrimitiveId.DATE, _encode_signed((value - _EPOCH_DAY).days, 4))
        case dt.time(tzinfo=None):
            time_us = (dt.datetime.combine(_EPOCH, value) - _EPOCH) // _MICROSECOND
            return _prefix_header(PrimitiveId.TIME, _encode_signed(time_us, 8))
        case NanosecondTimestamp():
            primitive_id = (
                PrimitiveId.TIMESTAMP_NANOS if value.is_utc else PrimitiveId.TIMESTAMP_NTZ_NANOS
            )
            return _prefix_header(primitive_id, _encode_signed(value.nanoseconds, 8))
    raise InvalidArgument(
        f"a variant has no type for {value!r} of {type(value).__name__}: convert it first"
    )


def _encode_integer(value: int) -> bytes:
    for primitive_id, size in (
        (PrimitiveId.INT8, 1),
        (PrimitiveId.INT16, 2),
        (PrimitiveId.INT32, 4),
        (PrimitiveId.INT64, 8),
    ):
        if -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1:
            return _prefix_header(primitive_id, _encode_signed(value, size))
    return _encode_decimal(Decimal(value))


def _encode_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if isinstance(exponent, str):
        raise InvalidArgument(f"a variant has no type for the decimal {value}: convert it first")
    if len(digits) > MAX_DECIMAL_DIGITS:
        raise _too_precise(value)
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    scale = max(0, -exponent)
    if exponent > 0 and unscaled:
        if exponent > MAX_DECIMAL_DIGITS:
            raise _too_precise(value)
        unscaled *= 10**exponent
    # Spec: the width follows the precision, which is never less than the scale.
    precision = max(len(str(abs(unscaled))), scale)
    if precision > MAX_DECIMAL_DIGITS:
        raise _too_precise(value)
    content = bytes((scale,))
    if precision <= 9:
        return _prefix_header(PrimitiveId.DECIMAL4, content + _encode_signed(unscaled, 4))
    if precision <= 18:
        return _prefix_header(PrimitiveId.DECIMAL8, content + _encode_signed(unscaled, 8))
    return _prefix_header(PrimitiveId.DECIMAL16, content + _encode_signed(unscaled, 16))


def _too_precise(value: Decimal) -> InvalidArgument:
    return InvalidArgument(
        f"the number {value:e} needs more than {MAX_DECIMAL_DIGITS} digits, which a variant does "
        "not hold: round it or write it as a string"
    )


def _prefix_header(primitive_id: int, content: bytes = b"") -> bytes:
    return header_byte(BasicType.PRIMITIVE, primitive_id) + content


def _encode_signed(value: int, size: int) -> bytes:
    try:
        return value.to_bytes(size, "little", signed=True)
    except OverflowError as error:
        raise InvalidArgument(f"{value} does not fit {8 * size} bits of a variant") from error
