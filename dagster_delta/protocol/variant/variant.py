"""Encoded variants as Python values, and back.

Spec: Variant Data Type; Parquet, Variant Binary Encoding (Encoding types).
"""

from __future__ import annotations

import datetime as dt
import math
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal

import msgspec

from dagster_delta.errors import InvalidArgument, UnsupportedFeature
from dagster_delta.protocol.variant.binary import (
    MAX_DECIMAL_DIGITS,
    PRIMITIVE_SIZES,
    VARIANT_NULL,
    BasicType,
    PrimitiveId,
    VariantNames,
    check_scale,
    damaged_variant,
    decode_names,
    encode_array,
    encode_names,
    encode_object,
    encode_text,
    header_byte,
    locate_elements,
    locate_fields,
    take,
    unknown_primitive,
)

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
        return _decode(value, 0, decode_names(metadata))
    except RecursionError as error:
        raise UnsupportedFeature(
            "a variant is nested too deeply to become Python values: read it with the Spark engine"
        ) from error


def encode_variant(value: object) -> tuple[bytes, bytes]:
    """The encoded dictionary of names and the encoded value of a Python value.

    Integers get the narrowest type that holds them, integers beyond 64 bits a decimal; float
    becomes `double`. Any mapping with string keys works as a dict, and a tuple as a list.
    """
    try:
        names = sorted(set(_names(value)))
        ids = {name: index for index, name in enumerate(names)}
        return encode_names(names), _encode(value, ids)
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            "a string holds half of a surrogate pair, which UTF-8 cannot encode: replace it"
        ) from error
    except RecursionError as error:
        raise InvalidArgument("the value is nested too deeply for a variant") from error


def _decode(data: bytes, position: int, names: VariantNames) -> object:
    first = take(data, position, 1)[0]
    match first & 3:
        case BasicType.PRIMITIVE:
            return _decode_primitive(data, position + 1, first >> 2)
        case BasicType.SHORT_STRING:
            return _text(take(data, position + 1, first >> 2))
        case BasicType.ARRAY:
            return [_decode(data, element, names) for element in locate_elements(data, position)]
    fields = locate_fields(data, position)
    decoded = {names.name(field_id): _decode(data, field, names) for field_id, field in fields}
    if len(decoded) < len(fields):
        # Spec: an object may not contain duplicate keys.
        raise damaged_variant("an object has two fields of one name")
    return decoded


def _decode_primitive(data: bytes, position: int, primitive_id: int) -> object:
    if primitive_id in (PrimitiveId.BINARY, PrimitiveId.STRING):
        content = take(data, position + 4, int.from_bytes(take(data, position, 4), "little"))
        return content if primitive_id == PrimitiveId.BINARY else _text(content)
    if primitive_id not in _PRIMITIVES:
        raise unknown_primitive(primitive_id)
    try:
        return _PRIMITIVES[primitive_id](take(data, position, PRIMITIVE_SIZES[primitive_id]))
    except OverflowError as error:
        raise UnsupportedFeature(
            "a variant holds a date or timestamp outside the years 1 to 9999, which Python has no "
            "value for: read it with the Spark engine"
        ) from error


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise damaged_variant("a string is not UTF-8") from error


def _integer(content: bytes) -> int:
    return int.from_bytes(content, "little", signed=True)


def _decimal(content: bytes) -> Decimal:
    scale = content[0]
    check_scale(scale)
    # The constructor is exact; arithmetic would round to the precision of the context.
    return Decimal(f"{_integer(content[1:])}E-{scale}")


def _time(content: bytes) -> dt.time:
    time_us = _integer(content)
    if not 0 <= time_us < _DAY_US:
        raise damaged_variant(f"a time of day is {time_us} microseconds")
    return (_EPOCH + time_us * _MICROSECOND).time()


def _single(content: bytes) -> SingleFloat:
    (number,) = struct.unpack("<f", content)
    return SingleFloat(number)


def _double(content: bytes) -> float:
    (number,) = struct.unpack("<d", content)
    return float(number)


_PRIMITIVES: dict[int, Callable[[bytes], object]] = {
    PrimitiveId.NULL: lambda _: None,
    PrimitiveId.TRUE: lambda _: True,
    PrimitiveId.FALSE: lambda _: False,
    PrimitiveId.INT8: _integer,
    PrimitiveId.INT16: _integer,
    PrimitiveId.INT32: _integer,
    PrimitiveId.INT64: _integer,
    PrimitiveId.DOUBLE: _double,
    PrimitiveId.DECIMAL4: _decimal,
    PrimitiveId.DECIMAL8: _decimal,
    PrimitiveId.DECIMAL16: _decimal,
    PrimitiveId.DATE: lambda content: _EPOCH_DAY + dt.timedelta(days=_integer(content)),
    PrimitiveId.TIMESTAMP: lambda content: _EPOCH_UTC + _integer(content) * _MICROSECOND,
    PrimitiveId.TIMESTAMP_NTZ: lambda content: _EPOCH + _integer(content) * _MICROSECOND,
    PrimitiveId.FLOAT: _single,
    PrimitiveId.TIME: _time,
    PrimitiveId.TIMESTAMP_NANOS: lambda c: NanosecondTimestamp(_integer(c), is_utc=True),
    PrimitiveId.TIMESTAMP_NTZ_NANOS: lambda c: NanosecondTimestamp(_integer(c), is_utc=False),
    PrimitiveId.UUID: lambda content: uuid.UUID(bytes=content),
}


def _names(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise InvalidArgument(
                    f"a field of an object has the name {name!r}: names are strings"
                )
            yield name
            yield from _names(inner)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _names(item)


def _encode(value: object, ids: Mapping[str, int]) -> bytes:
    match value:
        case Mapping():
            # Spec: in the order of the names as bytes of UTF-8, which is that of code points.
            ordered = sorted(value)
            values = [_encode(value[name], ids) for name in ordered]
            return encode_object([ids[name] for name in ordered], values)
        case list() | tuple():
            return encode_array([_encode(item, ids) for item in value])
    return _encode_primitive(value)


def _encode_primitive(value: object) -> bytes:
    match value:
        case None:
            return VARIANT_NULL
        case bool():
            return _primitive(PrimitiveId.TRUE if value else PrimitiveId.FALSE)
        case int():
            return _encode_integer(value)
        case SingleFloat():
            return _primitive(PrimitiveId.FLOAT, struct.pack("<f", value))
        case float():
            return _primitive(PrimitiveId.DOUBLE, struct.pack("<d", value))
        case str():
            return encode_text(value.encode())
        case bytes():
            size = len(value).to_bytes(4, "little")
            return _primitive(PrimitiveId.BINARY, size + value)
        case Decimal():
            return _encode_decimal(value)
        case uuid.UUID():
            return _primitive(PrimitiveId.UUID, value.bytes)
    return _encode_temporal(value)


def _encode_temporal(value: object) -> bytes:
    match value:
        case dt.datetime(tzinfo=None):
            time_us = (value - _EPOCH) // _MICROSECOND
            return _primitive(PrimitiveId.TIMESTAMP_NTZ, _signed(time_us, 8))
        case dt.datetime():
            time_us = (value - _EPOCH_UTC) // _MICROSECOND
            return _primitive(PrimitiveId.TIMESTAMP, _signed(time_us, 8))
        case dt.date():
            return _primitive(PrimitiveId.DATE, _signed((value - _EPOCH_DAY).days, 4))
        case dt.time(tzinfo=None):
            time_us = (dt.datetime.combine(_EPOCH, value) - _EPOCH) // _MICROSECOND
            return _primitive(PrimitiveId.TIME, _signed(time_us, 8))
        case NanosecondTimestamp():
            primitive_id = (
                PrimitiveId.TIMESTAMP_NANOS if value.is_utc else PrimitiveId.TIMESTAMP_NTZ_NANOS
            )
            return _primitive(primitive_id, _signed(value.nanoseconds, 8))
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
            return _primitive(primitive_id, _signed(value, size))
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
        return _primitive(PrimitiveId.DECIMAL4, content + _signed(unscaled, 4))
    if precision <= 18:
        return _primitive(PrimitiveId.DECIMAL8, content + _signed(unscaled, 8))
    return _primitive(PrimitiveId.DECIMAL16, content + _signed(unscaled, 16))


def _too_precise(value: Decimal) -> InvalidArgument:
    return InvalidArgument(
        f"the number {value:e} needs more than {MAX_DECIMAL_DIGITS} digits, which a variant does "
        "not hold: round it or write it as a string"
    )


def _primitive(primitive_id: int, content: bytes = b"") -> bytes:
    return header_byte(BasicType.PRIMITIVE, primitive_id) + content


def _signed(value: int, size: int) -> bytes:
    try:
        return value.to_bytes(size, "little", signed=True)
    except OverflowError as error:
        raise InvalidArgument(f"{value} does not fit {8 * size} bits of a variant") from error
