"""Minimum and maximum values of JSON statistics as Arrow columns.

Spec: Per-file Statistics.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.protocol.values.arrow_values import array_of

__all__ = ["json_type", "parse_statistic_values"]

_RANGES = {
    "byte": (-(2**7), 2**7 - 1),
    "short": (-(2**15), 2**15 - 1),
    "integer": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1),
}
_TEMPORAL = tuple(map(PrimitiveType, ("date", "timestamp", "timestamp_ntz")))
_UNFIT = (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError)
_SPECIAL_FLOATS = {"NaN", "Infinity", "-Infinity"}


def json_type(data_type: DataType) -> object:
    """The Python type to decode a JSON minimum or maximum of the type into. Raises nothing."""
    if isinstance(data_type, DecimalType):
        return decimal.Decimal | None  # from the text of the number, to avoid a double
    match data_type:
        case PrimitiveType("byte" | "short" | "integer" | "long"):
            return int | None
        case PrimitiveType("float" | "double"):
            return float | str | None  # NaN and the infinities are strings
        case PrimitiveType("boolean"):
            return bool | None
        case _:
            return str | None


def parse_statistic_values(values: Sequence[Any], data_type: DataType) -> pa.Array:
    """A pyarrow Array of the type; values that do not fit are null, that is, unknown.

    Args:
        values: as decoded into `json_type(data_type)`.
        data_type: current type of the column. Files written before it was widened hold values of
            the narrower type, which are read as values of this type.

    Raises:
        Nothing.
    """
    try:
        if data_type in _TEMPORAL:
            return string_column(values).cast(to_arrow_type(data_type))
        return array_of(values, data_type)
    except _UNFIT:
        # A value of one file does not parse: parse each value separately.
        parse = _single_parser(data_type)
        return array_of([_or_unknown(parse, each, data_type) for each in values], data_type)


def _or_unknown(parse: Callable[[Any], Any], value: object, data_type: DataType) -> object:
    if value is None:
        return None
    try:
        parsed = parse(value)
        array_of([parsed], data_type)
    except _UNFIT:
        return None
    return parsed


def _single_parser(data_type: DataType) -> Callable[[Any], Any]:
    match data_type:
        case PrimitiveType("float" | "double"):
            return _parse_float
        case PrimitiveType("date"):
            return dt.date.fromisoformat
        case PrimitiveType("timestamp" | "timestamp_ntz" as name):
            return lambda text: _parse_timestamp(text, with_zone=name == "timestamp")
        case PrimitiveType(name) if name in _RANGES:
            low, high = _RANGES[name]
            return lambda value: value if low <= value <= high else None
        case _:
            return lambda value: value


def _parse_float(value: float | str) -> float:
    if isinstance(value, str) and value not in _SPECIAL_FLOATS:
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _parse_timestamp(text: str, *, with_zone: bool) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    if with_zone:
        return found if found.tzinfo else found.replace(tzinfo=dt.UTC)
    if found.utcoffset():
        raise ValueError(f"{text!r} has an offset, and its column has no time zone")
    return found.replace(tzinfo=None)
