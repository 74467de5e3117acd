"""Variants from JSON text, and as JSON text: the same results as Spark's `parse_json` and
`to_json`.

Spec: Variant Data Type.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import re
import uuid
from collections.abc import Mapping
from decimal import Decimal

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.values.partition_values import java_number
from dagster_delta.protocol.variant.binary import (
    NanosecondTimestamp,
    SingleFloat,
    decode_variant,
    encode_variant,
)

_MAX_DIGITS = 38
_INT64 = range(-(2**63), 2**63)
_PLAIN_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_ESCAPE = re.compile(r"\\(?:u([0-9a-f]{4})|.)")
_SECOND_NS = 1_000_000_000
_DAY_SECONDS = 24 * 60 * 60


def variant_of_json(text: str) -> tuple[bytes, bytes]:
    """The encoded dictionary of names and the encoded value of a JSON text.

    Numbers without an exponent are exact: integers, or decimals of up to 38 digits; all others are
    `double`. A text that is not JSON, repeats a field of an object, or is nested too deeply is an
    InvalidArgument.
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidArgument(
            f"{_shorten_text(text)} is not valid JSON: {error.msg} at character {error.pos}; "
            "correct it, or store it as a string"
        ) from error
    except RecursionError as error:
        raise InvalidArgument(
            f"{_shorten_text(text)} is nested too deeply for a variant"
        ) from error
    return encode_variant(value)


def json_of_variant(metadata: bytes, value: bytes) -> str:
    """A variant as JSON text, without spaces; fields in the order of their names.

    Dates, times, UUIDs and binary (Base64) are strings; so are numbers that JSON cannot represent.
    """
    return _spell_json(decode_variant(metadata, value))


def _parse_integer(text: str) -> int | Decimal | float:
    if len(text) <= _MAX_DIGITS + 1:
        number = int(text)
        if number in _INT64:
            return number
    return _parse_number(text)


def _parse_number(text: str) -> Decimal | float:
    if _PLAIN_NUMBER.fullmatch(text):
        number = Decimal(text)
        _, digits, exponent = number.as_tuple()
        if len(digits) <= _MAX_DIGITS and -int(exponent) <= _MAX_DIGITS:
            return number
    return float(text)


def _make_object(fields: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(fields)
    if len(found) < len(fields):
        names = [name for name, _ in fields]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgument(
            f"a JSON object has two fields {twice!r}, and a variant has one of each name"
        )
    return found


def _no_constant(text: str) -> object:
    raise InvalidArgument(f"{text} is not a number in JSON: write null or a string instead")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_make_object,
    parse_int=_parse_integer,
    parse_float=_parse_number,
    parse_constant=_no_constant,
)


def _upper_digits(escape: re.Match[str]) -> str:
    return escape[0] if escape[1] is None else f"\\u{escape[1].upper()}"


def _shorten_text(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}…")


def _spell_json(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _float_text(value)
        case Decimal():
            return _decimal_text(value)
        case str():
            # Spark writes the hexadecimal digits of control characters in upper case.
            return _ESCAPE.sub(_upper_digits, json.dumps(value, ensure_ascii=False))
        case Mapping():
            fields = (f"{_spell_json(name)}:{_spell_json(item)}" for name, item in value.items())
            return f"{{{','.join(fields)}}}"
        case list():
            return f"[{','.join(map(_spell_json, value))}]"
        case bytes():
            return f'"{base64.b64encode(value).decode()}"'
        case _:
            return f'"{_temporal_text(value)}"'


def _float_text(value: float) -> str:
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else f'"{"-" if value < 0 else ""}Infinity"'
    if isinstance(value, SingleFloat):
        # The shortest text of this float; as a double it would show extra digits.
        texts = (f"{value:.{digits}g}" for digits in range(1, 10))
        return java_number(next(text for text in texts if SingleFloat.of(float(text)) == value))
    return java_number(repr(value))


def _decimal_text(value: Decimal) -> str:
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _temporal_text(value: object) -> str:
    match value:
        case dt.datetime(tzinfo=None):
            return value.isoformat(" ")
        case dt.datetime():
            return value.astimezone(dt.UTC).isoformat(" ")
        case NanosecondTimestamp():
            seconds, nanoseconds = divmod(value.nanoseconds, _SECOND_NS)
            days, seconds = divmod(seconds, _DAY_SECONDS)
            moment = dt.datetime(1970, 1, 1) + dt.timedelta(days, seconds)  # noqa: DTZ001
            fraction = f".{nanoseconds:09d}".rstrip("0").rstrip(".")
            return f"{moment.isoformat(' ')}{fraction}{'+00:00' if value.is_utc else ''}"
        case dt.date() | dt.time():
            return value.isoformat()
        case uuid.UUID():
            return str(value)
    raise AssertionError(f"{value!r} is not a value of a variant")
