"""Dates and timestamps in the whitelist. The embedded session's time zone is UTC."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from dagster_delta.engines.sql.casts import Refusal, cast, duckdb_type, raising
from dagster_delta.engines.sql.intervals import shifted
from dagster_delta.engines.sql.rules import Rule, ToSql, fixed, function, literal_of, types_of
from dagster_delta.engines.sql.typed import Call, Literal, Typed
from dagster_delta.engines.sql.types import (
    DATE,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    is_integral,
    sql_type_name,
)
from dagster_delta.protocol.schema import PrimitiveType

__all__ = ["DATE_FUNCTIONS", "TIME_ZONE_FUNCTIONS"]

TIME_ZONE_FUNCTIONS = frozenset({"date_format", "date_trunc", "hour", "minute", "second"})
"""Functions whose result for a timestamp hangs on the session's time zone; dates come by a cast."""

_TIMES = (TIMESTAMP, PrimitiveType("timestamp_ntz"))

_UNITS = {
    "YEAR": "year", "YYYY": "year", "YY": "year", "QUARTER": "quarter", "MONTH": "month",
    "MM": "month", "MON": "month", "WEEK": "week",
}  # fmt: skip
_TIME_UNITS = {
    "DAY": "day", "DD": "day", "HOUR": "hour", "MINUTE": "minute", "SECOND": "second",
    "MILLISECOND": "millisecond", "MICROSECOND": "microsecond",
}  # fmt: skip

_FORMATTED = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
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
    unit = str(literal_of(name, arguments[0], str)).upper()
    if unit not in _EXTRACTED:
        raise Refusal(f"{name}({unit} FROM …)")
    part = _EXTRACTED[unit]
    return DATE_FUNCTIONS[part].resolve(part, arguments[1:])


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
    if _strftime_pattern(pattern) is None:
        raise Refusal(f"{name} with the pattern {pattern!r}")
    return Call(name, (cast(arguments[0], TIMESTAMP), Literal(pattern, STRING)), STRING)


def _strftime_pattern(pattern: str) -> str | None:
    """The pattern for DuckDB, or None where it holds more than padded numbers and punctuation."""
    units = ["".join(group) for _, group in groupby(pattern)]
    if any(each not in _FORMATTED and each[0] not in _PUNCTUATION for each in units):
        return None
    return "".join(_FORMATTED.get(each, each) for each in units)


def _sql_date_format(call: Call, operands: Sequence[str]) -> str:
    pattern = call.arguments[1]
    assert isinstance(pattern, Literal)  # noqa: S101  as it was resolved
    moment, found = operands[0], _strftime_pattern(str(pattern.value))
    # Other years have a sign or more than four digits, and the two engines write them apart.
    return (
        f"CASE WHEN {moment} IS NULL OR year({moment}) BETWEEN 1 AND 9999"
        f" THEN strftime({moment}, '{found}')"
        f" ELSE {raising('only Spark formats years outside 1 to 9999')} END"
    )


def _sql_date_trunc(call: Call, operands: Sequence[str]) -> str:
    target = "DATE" if call.data_type == DATE else "TIMESTAMP"
    return f"CAST(date_trunc({operands[0]}, {operands[1]}) AS {target})"


def _part(duckdb_name: str, offset: int = 0, *, of_time: bool = False) -> Rule:
    def sql(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
        shift = f" + {offset}" if offset else ""
        return f"CAST({duckdb_name}({operands[0]}){shift} AS INTEGER)"

    return Rule(_resolve_time_part if of_time else _resolve_date_part, sql)


def _resolve_months(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 2 or types_of(arguments)[0] not in (DATE, *_TIMES):
        raise Refusal(f"{name} of these arguments")
    if not is_integral(types_of(arguments)[1]) or types_of(arguments)[1] == LONG:
        raise Refusal(f"{name} by {sql_type_name(types_of(arguments)[1])}")
    return Call(name, (cast(arguments[0], DATE), cast(arguments[1], INTEGER)), DATE)


def _sql_months(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"CAST({operands[0]} + to_months({operands[1]}) AS DATE)"


def _resolve_of_date(name: str, arguments: tuple[Typed, ...]) -> Typed:
    found = _resolve_date_part(name, arguments)
    return replace(found, data_type=DATE) if isinstance(found, Call) else found


def _resolve_make_date(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 3 or not all(
        is_integral(each) and each != LONG for each in types_of(arguments)
    ):
        raise Refusal(f"{name} of these arguments")
    return Call(name, tuple(cast(each, INTEGER) for each in arguments), DATE)


def _sql_unix_days(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"CAST({operands[0]} - DATE '1970-01-01' AS INTEGER)"


def _sql_of_unix_days(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"CAST(DATE '1970-01-01' + {operands[0]} AS DATE)"


def _sql_unix_time(per_second: int) -> ToSql:
    """Whole units since the epoch, rounded down as Spark rounds them."""

    def sql(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
        count, unit = f"epoch_us({operands[0]})", 1_000_000 // per_second
        # Whole division goes towards zero, and times before the epoch have to go down.
        return f"CAST(({count} - ((({count} % {unit}) + {unit}) % {unit})) // {unit} AS BIGINT)"

    return sql


def _resolve_unix_timestamp(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 1 or types_of(arguments)[0] != TIMESTAMP:
        raise Refusal(f"{name} of these arguments")
    return Call(name, arguments, LONG)


def _sql_unix_timestamp(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    # Towards zero, unlike unix_seconds.
    return f"CAST(epoch_us({operands[0]}) // 1000000 AS BIGINT)"


def _resolve_of_unix_time(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 1 or not is_integral(types_of(arguments)[0]):
        raise Refusal(f"{name} of these arguments")
    return Call(name, (cast(arguments[0], LONG),), TIMESTAMP)


def _sql_of_unix_time(per_second: int) -> ToSql:
    def sql(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
        unit = 1_000_000 // per_second
        return f"make_timestamp({operands[0]} * CAST({unit} AS BIGINT))"

    return sql


def _resolve_shift(name: str, arguments: tuple[Typed, ...]) -> Typed:
    """A moment moved by an interval: months, then days, then microseconds."""
    source = types_of(arguments[:1])[0]
    months, days, micros = (literal_of(name, each, int) for each in arguments[1:])
    if source not in (DATE, *_TIMES):
        raise Refusal(f"{sql_type_name(source)} and an interval")
    if source == DATE and micros:
        arguments, source = (cast(arguments[0], TIMESTAMP), *arguments[1:]), TIMESTAMP
    moment = arguments[0]
    if isinstance(moment, Literal) and isinstance(moment.value, dt.date):
        # A constant can be compared with the bounds of files.
        found = shifted(moment.value, int(str(months)), int(str(days)), int(str(micros)))
        if found is not None:
            return replace(moment, value=found)
    return Call(name, arguments, source)


def _sql_shift(call: Call, operands: Sequence[str]) -> str:
    moment, *amounts = operands
    target = duckdb_type(call.data_type)
    units = ("to_months", "to_days", "to_microseconds")
    parts = (f"{unit}({each})" for unit, each in zip(units, amounts, strict=True))
    return f"CAST({' + '.join((moment, *parts))} AS {target})"


def _sql_date_difference(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"CAST({operands[0]} - {operands[1]} AS INTEGER)"


DATE_FUNCTIONS: Mapping[str, Rule] = {
    "year": _part("year"),
    "quarter": _part("quarter"),
    "month": _part("month"),
    "dayofmonth": _part("day"),
    "dayofyear": _part("dayofyear"),
    "dayofweek": _part("dayofweek", 1),
    "weekday": _part("isodow", -1),
    "weekofyear": _part("week"),
    "hour": _part("hour", of_time=True),
    "minute": _part("minute", of_time=True),
    "second": _part("second", of_time=True),
    "extract": Rule(_resolve_extract, _sql_date_trunc),
    "date_trunc": Rule(_resolve_date_trunc, _sql_date_trunc),
    "date_format": Rule(_resolve_date_format, _sql_date_format, may_raise=True),
    "trunc": Rule(_resolve_trunc, _sql_date_trunc),
    "add_months": Rule(_resolve_months, _sql_months, may_raise=True),
    "last_day": Rule(_resolve_of_date, function("last_day", "DATE")),
    "make_date": Rule(_resolve_make_date, function("make_date"), may_raise=True),
    "unix_date": Rule(fixed(INTEGER, DATE), _sql_unix_days),
    "date_from_unix_date": Rule(fixed(DATE, INTEGER), _sql_of_unix_days, may_raise=True),
    "unix_seconds": Rule(fixed(LONG, TIMESTAMP), _sql_unix_time(1)),
    "unix_millis": Rule(fixed(LONG, TIMESTAMP), _sql_unix_time(1_000)),
    "unix_micros": Rule(fixed(LONG, TIMESTAMP), _sql_unix_time(1_000_000)),
    "unix_timestamp": Rule(_resolve_unix_timestamp, _sql_unix_timestamp),
    "timestamp_seconds": Rule(_resolve_of_unix_time, _sql_of_unix_time(1), may_raise=True),
    "timestamp_millis": Rule(_resolve_of_unix_time, _sql_of_unix_time(1_000), may_raise=True),
    "timestamp_micros": Rule(_resolve_of_unix_time, _sql_of_unix_time(1_000_000), may_raise=True),
    "interval shift": Rule(_resolve_shift, _sql_shift, may_raise=True),
    "datediff": Rule(fixed(INTEGER, DATE, DATE), _sql_date_difference),
    "date_diff": Rule(fixed(INTEGER, DATE, DATE), _sql_date_difference),
}
