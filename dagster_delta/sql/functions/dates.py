"""Dates and timestamps in the whitelist. The embedded session's time zone is UTC."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from itertools import groupby

from msgspec.structs import replace

from dagster_delta.protocol.schema import PrimitiveType
from dagster_delta.sql.casts import cast
from dagster_delta.sql.functions.signatures import (
    Operand,
    Resolve,
    calls,
    check_count,
    fixed,
    literal_of,
    of_types,
    refused_type,
)
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


_as_date = of_types(DATE, *_TIMES, target=DATE)
_as_timestamp = of_types(DATE, *_TIMES, target=TIMESTAMP)


def _as_time(name: str, argument: Typed) -> Typed:
    return argument if argument.data_type in _TIMES else _as_timestamp(name, argument)


def _integer(name: str, argument: Typed) -> Typed:
    if not is_integral(types_of([argument])[0]) or argument.data_type == LONG:
        raise refused_type(name, argument)
    return cast(argument, INTEGER)


def _long(name: str, argument: Typed) -> Typed:
    if not is_integral(types_of([argument])[0]):
        raise refused_type(name, argument)
    return cast(argument, LONG)


def _unit(known: Mapping[str, str]) -> Operand:
    def operand(name: str, argument: Typed) -> Typed:
        unit = str(literal_of(name, argument, str)).upper()
        if unit not in known:
            raise Refusal(f"{name} to {unit!r}")
        return Literal(known[unit], STRING)

    return operand


def _pattern(name: str, argument: Typed) -> Typed:
    pattern = str(literal_of(name, argument, str))
    if pattern_units(pattern) is None:
        raise Refusal(f"{name} with the pattern {pattern!r}")
    return Literal(pattern, STRING)


def _resolve_extract(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 2)
    unit = str(literal_of(name, arguments[0], str)).upper()
    if unit not in _EXTRACTED:
        raise Refusal(f"{name}({unit} FROM …)")
    part = _EXTRACTED[unit]
    return DATE_FUNCTIONS[part](part, arguments[1:])


def _resolve_trunc(name: str, arguments: tuple[Typed, ...]) -> Typed:
    return calls(DATE, _unit(_UNITS), _as_date)(name, arguments[::-1])


def pattern_units(pattern: str) -> list[str] | None:
    """The units and punctuation of a pattern; None if it has more than punctuation and padded
    numbers.
    """
    units = ["".join(group) for _, group in groupby(pattern)]
    if any(each not in _PADDED_NUMBERS and each[0] not in _PUNCTUATION for each in units):
        return None
    return units


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
    **dict.fromkeys(_DATE_PARTS, calls(INTEGER, _as_date)),
    **dict.fromkeys(("hour", "minute", "second"), calls(INTEGER, _as_time)),
    "extract": _resolve_extract,
    "date_trunc": calls(TIMESTAMP, _unit({**_UNITS, **_TIME_UNITS}), _as_timestamp),
    "date_format": calls(STRING, _as_timestamp, _pattern),
    "trunc": _resolve_trunc,
    "make_date": calls(DATE, _integer, _integer, _integer),
    "date_from_unix_date": fixed(DATE, INTEGER),
    **dict.fromkeys(("unix_seconds", "unix_millis", "unix_micros"), fixed(LONG, TIMESTAMP)),
    **dict.fromkeys(
        ("timestamp_seconds", "timestamp_millis", "timestamp_micros"), calls(TIMESTAMP, _long)
    ),
    "interval shift": _resolve_shift,
    **dict.fromkeys(("datediff", "date_diff"), fixed(INTEGER, DATE, DATE)),
}
