"""Dates and timestamps in the whitelist. The embedded session's time zone is UTC."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from itertools import groupby

from msgspec.structs import replace

from dagster_delta.protocol.schema import PrimitiveType
from dagster_delta.sql.casts import cast
from dagster_delta.sql.functions.signatures import Resolve, check_count, fixed, literal_of
from dagster_delta.sql.literals import moves_local_days, shifted
from dagster_delta.sql.typed import Call, Literal, Refusal, Typed, types_of
from dagster_delta.sql.types import (
    DATE,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    is_integral,
    sql_type_name,
)

TIME_ZONE_FUNCTIONS = frozenset({"date_format", "date_trunc", "hour", "minute", "second"})
"""Functions whose result for a timestamp depends on the session's time zone; a cast makes dates."""

_TIMES = (TIMESTAMP, PrimitiveType("timestamp_ntz"))

_UNITS = {
    "YEAR": "year", "YYYY": "year", "YY": "year", "QUARTER": "quarter", "MONTH": "month",
    "MM": "month", "MON": "month", "WEEK": "week",
}  # fmt: skip
_TIME_UNITS = {
    "DAY": "day", "DD": "day", "HOUR": "hour", "MINUTE": "minute", "SECOND": "second",
    "MILLISECOND": "millisecond", "MICROSECOND": "microsecond",
}  # fmt: skip

_PADDED_NUMBERS = frozenset({"yyyy", "MM", "dd", "HH", "mm", "ss"})
_PUNCTUATION = frozenset("-/:. _")

_EXTRACTED = {
    "YEAR": "year", "QUARTER": "quarter", "MONTH": "month", "WEEK": "weekofyear",
    "DAY": "dayofmonth", "DOY": "dayofyear", "HOUR": "hour", "MINUTE": "minute",
}  # fmt: skip


def _resolve_date_part(name: str, arguments: tuple[Typed, ...]) -> Typed:
    types = types_of(arguments)
    if len(types) != 1 or types[0] not in (DATE, *_TIMES):
        raise Refusal(f"{name} of {' and '.join(map(sql_type_name, types))}")
    return Call(name, (cast(arguments[0], DATE),), INTEGER)


def _resolve_time_part(name: str, arguments: tuple[Typed, ...]) -> Typed:
    types = types_of(arguments)
    if len(types) != 1 or types[0] not in (DATE, *_TIMES):
        raise Refusal(f"{name} of {' and '.join(map(sql_type_name, types))}")
    operand = cast(arguments[0], TIMESTAMP) if types[0] == DATE else arguments[0]
    return Call(name, (operand,), INTEGER)


def _resolve_extract(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 2)
    unit = str(literal_of(name, arguments[0], str)).upper()
    if unit not in _EXTRACTED:
        raise Refusal(f"{name}({unit} FROM …)")
    part = _EXTRACTED[unit]
    return DATE_FUNCTIONS[part](part, arguments[1:])


def _resolve_date_trunc(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 2 or types_of(arguments)[1] not in (DATE, *_TIMES):
        raise Refusal(f"{name} of these arguments")
    unit = str(literal_of(name, arguments[0], str)).upper()
    known = {**_UNITS, **_TIME_UNITS}
    if unit not in known:
        raise Refusal(f"{name} to {unit!r}")
    operands = (Literal(known[unit], STRING), cast(arguments[1], TIMESTAMP))
    return Call(name, operands, TIMESTAMP)


def _resolve_trunc(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 2 or types_of(arguments)[0] not in (DATE, *_TIMES):
        raise Refusal(f"{name} of these arguments")
    unit = str(literal_of(name, arguments[1], str)).upper()
    if unit not in _UNITS:
        raise Refusal(f"{name} to {unit!r}")
    return Call(name, (Literal(_UNITS[unit], STRING), cast(arguments[0], DATE)), DATE)


def _resolve_date_format(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 2 or types_of(arguments)[0] not in (DATE, *_TIMES):
        raise Refusal(f"{name} of these arguments")
    pattern = str(literal_of(name, arguments[1], str))
    if pattern_units(pattern) is None:
        raise Refusal(f"{name} with the pattern {pattern!r}")
    return Call(name, (cast(arguments[0], TIMESTAMP), Literal(pattern, STRING)), STRING)


def pattern_units(pattern: str) -> list[str] | None:
    """The units and punctuation of a pattern; None if it has more than punctuation and padded
    numbers. Raises nothing.
    """
    units = ["".join(group) for _, group in groupby(pattern)]
    if any(each not in _PADDED_NUMBERS and each[0] not in _PUNCTUATION for each in units):
        return None
    return units


def _resolve_months(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 2 or types_of(arguments)[0] not in (DATE, *_TIMES):
        raise Refusal(f"{name} of these arguments")
    if not is_integral(types_of(arguments)[1]) or types_of(arguments)[1] == LONG:
        raise Refusal(f"{name} by {sql_type_name(types_of(arguments)[1])}")
    return Call(name, (cast(arguments[0], DATE), cast(arguments[1], INTEGER)), DATE)


def _resolve_of_date(name: str, arguments: tuple[Typed, ...]) -> Typed:
    found = _resolve_date_part(name, arguments)
    return replace(found, data_type=DATE) if isinstance(found, Call) else found


def _resolve_make_date(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 3 or not all(
        is_integral(each) and each != LONG for each in types_of(arguments)
    ):
        raise Refusal(f"{name} of these arguments")
    return Call(name, tuple(cast(each, INTEGER) for each in arguments), DATE)


def _resolve_unix_timestamp(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 1 or types_of(arguments)[0] != TIMESTAMP:
        raise Refusal(f"{name} of these arguments")
    return Call(name, arguments, LONG)


def _resolve_of_unix_time(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 1 or not is_integral(types_of(arguments)[0]):
        raise Refusal(f"{name} of these arguments")
    return Call(name, (cast(arguments[0], LONG),), TIMESTAMP)


def _resolve_shift(name: str, arguments: tuple[Typed, ...]) -> Typed:
    """A date or timestamp shifted by an interval: months, then days, then microseconds."""
    source = types_of(arguments[:1])[0]
    months, days, micros = (int(str(literal_of(name, each, int))) for each in arguments[1:])
    if source not in (DATE, *_TIMES):
        raise Refusal(f"{sql_type_name(source)} and an interval")
    if source == DATE and micros:
        arguments, source = (cast(arguments[0], TIMESTAMP), *arguments[1:]), TIMESTAMP
    moment = arguments[0]
    if isinstance(moment, Literal) and isinstance(moment.value, dt.date):
        # A constant can be compared with the bounds of files.
        found = shifted(moment.value, months, days, micros)
        if found is not None:
            is_zoned = source == TIMESTAMP and moves_local_days(months, days, micros)
            is_zoned = is_zoned or moment.depends_on_time_zone
            return replace(moment, value=found, depends_on_time_zone=is_zoned)
    return Call(name, arguments, source)


_DATE_PARTS = (
    "year", "quarter", "month", "dayofmonth", "dayofyear", "dayofweek", "weekday", "weekofyear",
)  # fmt: skip

DATE_FUNCTIONS: Mapping[str, Resolve] = {
    **dict.fromkeys(_DATE_PARTS, _resolve_date_part),
    **dict.fromkeys(("hour", "minute", "second"), _resolve_time_part),
    "extract": _resolve_extract,
    "date_trunc": _resolve_date_trunc,
    "date_format": _resolve_date_format,
    "trunc": _resolve_trunc,
    "add_months": _resolve_months,
    "last_day": _resolve_of_date,
    "make_date": _resolve_make_date,
    "unix_date": fixed(INTEGER, DATE),
    "date_from_unix_date": fixed(DATE, INTEGER),
    **dict.fromkeys(("unix_seconds", "unix_millis", "unix_micros"), fixed(LONG, TIMESTAMP)),
    "unix_timestamp": _resolve_unix_timestamp,
    "timestamp_seconds": _resolve_of_unix_time,
    "timestamp_millis": _resolve_of_unix_time,
    "timestamp_micros": _resolve_of_unix_time,
    "interval shift": _resolve_shift,
    **dict.fromkeys(("datediff", "date_diff"), fixed(INTEGER, DATE, DATE)),
}
