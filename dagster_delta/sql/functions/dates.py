"""Dates and timestamps in the whitelist."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from itertools import groupby

from msgspec.structs import replace

from dagster_delta.sql.casts import cast, raising
from dagster_delta.sql.functions.function import (
    Function,
    Operand,
    calls,
    fixed,
    literal_of,
    of_types,
    refused_type,
)
from dagster_delta.sql.literals import MICROS_PER_DAY, moves_local_days, shifted
from dagster_delta.sql.time_zone import instant, local_time
from dagster_delta.sql.typed import Call, Literal, Refusal, Typed, operands_of, types_of
from dagster_delta.sql.types import (
    DATE,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    is_integral,
    sql_type_name,
)

_TIMES = (TIMESTAMP, TIMESTAMP_NTZ)

_UNITS = {
    "YEAR": "year", "YYYY": "year", "YY": "year", "QUARTER": "quarter", "MONTH": "month",
    "MM": "month", "MON": "month", "WEEK": "week",
}  # fmt: skip
_TIME_UNITS = {
    "DAY": "day", "DD": "day", "HOUR": "hour", "MINUTE": "minute", "SECOND": "second",
    "MILLISECOND": "millisecond", "MICROSECOND": "microsecond",
}  # fmt: skip

_PADDED_NUMBERS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
"""Units of a pattern, as `strftime` spells them."""
_PUNCTUATION = frozenset("-/:. _")

_EXTRACTED = {
    "YEAR": "year", "QUARTER": "quarter", "MONTH": "month", "WEEK": "weekofyear",
    "DAY": "dayofmonth", "DOY": "dayofyear", "HOUR": "hour", "MINUTE": "minute",
}  # fmt: skip


_as_date = of_types(DATE, *_TIMES, target=DATE)
_as_timestamp = of_types(DATE, *_TIMES, target=TIMESTAMP)


def _as_local(name: str, argument: Typed) -> Typed:
    is_local = argument.data_type == TIMESTAMP_NTZ
    return argument if is_local else local_time(_as_timestamp(name, argument))


def _as_moment(name: str, argument: Typed) -> Typed:
    """An instant; Spark counts the seconds of a local time as if it were in UTC."""
    is_local = argument.data_type == TIMESTAMP_NTZ
    return argument if is_local else _as_timestamp(name, argument)


def _check_months(name: str, argument: Typed) -> Typed:
    data_type = argument.data_type
    if data_type is None or not is_integral(data_type) or data_type == LONG:
        raise refused_type(name, argument)
    return cast(argument, INTEGER)


def _accept_units(known: Mapping[str, str]) -> Operand:
    def operand(name: str, argument: Typed) -> Typed:
        unit = str(literal_of(name, argument, str)).upper()
        if unit not in known:
            raise Refusal(f"{name} to {unit!r}")
        return Literal(known[unit], STRING)

    return operand


def _check_pattern(name: str, argument: Typed) -> Typed:
    pattern = str(literal_of(name, argument, str))
    if _pattern_units(pattern) is None:
        raise Refusal(f"{name} with the pattern {pattern!r}")
    return Literal(pattern, STRING)


def _resolve_extract(name: str, arguments: tuple[Typed, ...]) -> Typed:
    unit = str(literal_of(name, arguments[0], str)).upper()
    if unit not in _EXTRACTED:
        raise Refusal(f"{name}({unit} FROM …)")
    part = _EXTRACTED[unit]
    resolve = DATE_FUNCTIONS[part].resolve
    assert resolve is not None  # noqa: S101  as of all parts
    return resolve(part, arguments[1:])


def _resolve_date_trunc(name: str, arguments: tuple[Typed, ...]) -> Typed:
    truncated = calls(TIMESTAMP, _accept_units({**_UNITS, **_TIME_UNITS}), _as_timestamp)(
        name, arguments
    )
    unit, moment = operands_of(truncated)
    local = local_time(moment)
    if local is moment:
        return truncated
    return instant(Call(name, (unit, local), TIMESTAMP_NTZ), moment)


def _pattern_units(pattern: str) -> list[str] | None:
    """The units and punctuation of a pattern; None if it has more than punctuation and padded
    numbers.
    """
    units = ["".join(group) for _, group in groupby(pattern)]
    if any(unit not in _PADDED_NUMBERS and unit[0] not in _PUNCTUATION for unit in units):
        return None
    return units


def _resolve_shift(name: str, arguments: tuple[Typed, ...]) -> Typed:
    """A date or timestamp shifted by an interval: months, then days, then microseconds."""
    source = types_of(arguments[:1])[0]
    months, days, micros = (int(str(literal_of(name, argument, int))) for argument in arguments[1:])
    if source not in (DATE, *_TIMES):
        raise Refusal(f"{sql_type_name(source)} and an interval")
    if source == DATE and micros:
        arguments, source = (cast(arguments[0], TIMESTAMP), *arguments[1:]), TIMESTAMP
    moment = arguments[0]
    if source == TIMESTAMP and moves_local_days(months, days, micros):
        local = local_time(moment)
        if local is not moment:
            # Hours that make days are days.
            whole_days = int(micros / MICROS_PER_DAY)
            amounts = (months, days + whole_days, 0), (0, 0, micros - whole_days * MICROS_PER_DAY)
            by_days, by_time = ([Literal(n, LONG) for n in amount] for amount in amounts)
            moved = instant(_resolve_shift(name, (local, *by_days)), moment)
            return _resolve_shift(name, (moved, *by_time)) if amounts[1][2] else moved
    if isinstance(moment, Literal) and isinstance(moment.value, dt.date):
        # A constant can be compared with the bounds of files.
        found = shifted(moment.value, months, days, micros)
        if found is not None:
            return replace(moment, value=found)
    return Call(name, arguments, source)


def _sql_date_format(call: Call, operands: Sequence[str]) -> str:
    moment, pattern = operands[0], call.arguments[1]
    assert isinstance(pattern, Literal)  # noqa: S101  as it was resolved
    units = _pattern_units(str(pattern.value)) or ()
    found = "".join(_PADDED_NUMBERS.get(unit, unit) for unit in units)
    # Other years have a sign or more than four digits; the engines format them differently.
    return (
        f"CASE WHEN {moment} IS NULL OR year({moment}) BETWEEN 1 AND 9999"
        f" THEN strftime({moment}, '{found}')"
        f" ELSE {raising('only Spark formats years outside 1 to 9999')} END"
    )


def _extract_part(sql: str, operand: Operand = _as_date) -> Function:
    return Function(calls(INTEGER, operand), f"CAST({sql} AS INTEGER)")


_TRUNCATED = "CAST(date_trunc({all}) AS {type})"
_SHIFTED = "CAST({0} + to_months({1}) + to_days({2}) + to_microseconds({3}) AS {type})"
_difference = Function(fixed(INTEGER, DATE, DATE), "CAST({0} - {1} AS INTEGER)", takes=(2, 2))

DATE_FUNCTIONS: Mapping[str, Function] = {
    **{name: _extract_part(f"{name}({{0}})") for name in ("year", "quarter", "month", "dayofyear")},
    "dayofmonth": _extract_part("day({0})"),
    "dayofweek": _extract_part("dayofweek({0}) + 1"),
    "weekofyear": _extract_part("week({0})"),
    **{name: _extract_part(f"{name}({{0}})", _as_local) for name in ("hour", "minute", "second")},
    "extract": Function(_resolve_extract, takes=(2, 2)),
    "date_trunc": Function(_resolve_date_trunc, _TRUNCATED, takes=(2, 2)),
    "date_format": Function(
        calls(STRING, _as_local, _check_pattern), _sql_date_format, may_raise=True, takes=(2, 2)
    ),
    "trunc": Function(
        lambda name, arguments: calls(DATE, _accept_units(_UNITS), _as_date)(name, arguments[::-1]),
        _TRUNCATED,
        takes=(2, 2),
    ),
    "interval shift": Function(_resolve_shift, _SHIFTED, may_raise=True, takes=(4, 4)),
    **dict.fromkeys(("datediff", "date_diff"), _difference),
    "last_day": Function(calls(DATE, _as_date), "last_day({0})"),
    "add_months": Function(
        calls(DATE, _as_date, _check_months),
        "CAST({0} + to_months({1}) AS DATE)",
        may_raise=True,
        takes=(2, 2),
    ),
    "unix_timestamp": Function(calls(LONG, _as_moment), "(epoch_us({0}) // 1000000)"),
}
