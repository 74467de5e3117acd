"""Dates and timestamps as DuckDB SQL. The embedded session's time zone is UTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.engines.expressions.rendering import (
    REWRITTEN,
    Rendering,
    ToSql,
    duckdb_type,
    function,
    raising,
)
from dagster_delta.sql.functions.dates import pattern_units
from dagster_delta.sql.typed import Call, Literal
from dagster_delta.sql.types import DATE

__all__ = ["DATE_FUNCTIONS"]

_STRFTIME = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}


def _sql_date_format(call: Call, operands: Sequence[str]) -> str:
    moment, pattern = operands[0], call.arguments[1]
    assert isinstance(pattern, Literal)  # noqa: S101  as it was resolved
    units = pattern_units(str(pattern.value)) or ()
    found = "".join(_STRFTIME[each] if each.isalpha() else each for each in units)
    # Other years have a sign or more than four digits; the engines format them differently.
    return (
        f"CASE WHEN {moment} IS NULL OR year({moment}) BETWEEN 1 AND 9999"
        f" THEN strftime({moment}, '{found}')"
        f" ELSE {raising('only Spark formats years outside 1 to 9999')} END"
    )


def _sql_date_trunc(call: Call, operands: Sequence[str]) -> str:
    target = "DATE" if call.data_type == DATE else "TIMESTAMP"
    return f"CAST(date_trunc({operands[0]}, {operands[1]}) AS {target})"


def _part(duckdb_name: str, offset: int = 0) -> Rendering:
    def sql(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
        shift = f" + {offset}" if offset else ""
        return f"CAST({duckdb_name}({operands[0]}){shift} AS INTEGER)"

    return Rendering(sql)


def _sql_months(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"CAST({operands[0]} + to_months({operands[1]}) AS DATE)"


def _sql_unix_days(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"CAST({operands[0]} - DATE '1970-01-01' AS INTEGER)"


def _sql_of_unix_days(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"CAST(DATE '1970-01-01' + {operands[0]} AS DATE)"


def _sql_unix_time(per_second: int) -> ToSql:
    """Whole units since the epoch, rounded down as Spark rounds them."""

    def sql(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
        count, unit = f"epoch_us({operands[0]})", 1_000_000 // per_second
        # Integer division rounds towards zero, but times before the epoch must round down.
        return f"CAST(({count} - ((({count} % {unit}) + {unit}) % {unit})) // {unit} AS BIGINT)"

    return sql


def _sql_unix_timestamp(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    # Rounds towards zero, unlike unix_seconds.
    return f"CAST(epoch_us({operands[0]}) // 1000000 AS BIGINT)"


def _sql_of_unix_time(per_second: int) -> ToSql:
    def sql(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
        unit = 1_000_000 // per_second
        return f"make_timestamp({operands[0]} * CAST({unit} AS BIGINT))"

    return sql


def _sql_shift(call: Call, operands: Sequence[str]) -> str:
    moment, *amounts = operands
    target = duckdb_type(call.data_type)
    units = ("to_months", "to_days", "to_microseconds")
    parts = (f"{unit}({each})" for unit, each in zip(units, amounts, strict=True))
    return f"CAST({' + '.join((moment, *parts))} AS {target})"


def _sql_date_difference(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"CAST({operands[0]} - {operands[1]} AS INTEGER)"


DATE_FUNCTIONS: Mapping[str, Rendering] = {
    "year": _part("year"),
    "quarter": _part("quarter"),
    "month": _part("month"),
    "dayofmonth": _part("day"),
    "dayofyear": _part("dayofyear"),
    "dayofweek": _part("dayofweek", 1),
    "weekday": _part("isodow", -1),
    "weekofyear": _part("week"),
    "hour": _part("hour"),
    "minute": _part("minute"),
    "second": _part("second"),
    "extract": REWRITTEN,
    "date_trunc": Rendering(_sql_date_trunc),
    "date_format": Rendering(_sql_date_format, may_raise=True),
    "trunc": Rendering(_sql_date_trunc),
    "add_months": Rendering(_sql_months, may_raise=True),
    "last_day": Rendering(function("last_day", "DATE")),
    "make_date": Rendering(function("make_date"), may_raise=True),
    "unix_date": Rendering(_sql_unix_days),
    "date_from_unix_date": Rendering(_sql_of_unix_days, may_raise=True),
    "unix_seconds": Rendering(_sql_unix_time(1)),
    "unix_millis": Rendering(_sql_unix_time(1_000)),
    "unix_micros": Rendering(_sql_unix_time(1_000_000)),
    "unix_timestamp": Rendering(_sql_unix_timestamp),
    "timestamp_seconds": Rendering(_sql_of_unix_time(1), may_raise=True),
    "timestamp_millis": Rendering(_sql_of_unix_time(1_000), may_raise=True),
    "timestamp_micros": Rendering(_sql_of_unix_time(1_000_000), may_raise=True),
    "interval shift": Rendering(_sql_shift, may_raise=True),
    "datediff": Rendering(_sql_date_difference),
    "date_diff": Rendering(_sql_date_difference),
}
