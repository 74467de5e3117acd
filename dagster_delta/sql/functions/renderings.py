"""The DuckDB SQL of every call in the whitelist. The embedded session's time zone is UTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.errors import UnsupportedExpression
from dagster_delta.protocol.schema import ArrayType, DecimalType
from dagster_delta.sql.functions.dates import pattern_units
from dagster_delta.sql.functions.patterns import ESCAPE
from dagster_delta.sql.functions.rendering import (
    REWRITTEN,
    Rendering,
    ToSql,
    duckdb_type,
    function,
    raising,
    template,
)
from dagster_delta.sql.functions.variants import VARIANT_FUNCTIONS
from dagster_delta.sql.functions.whitelist import CONVERSIONS
from dagster_delta.sql.typed import Call, Literal, types_of
from dagster_delta.sql.types import BINARY, DATE, common_type, is_integral

_UNLESS_NULL = "CASE WHEN {0} IS NULL OR {1} IS NULL THEN NULL"


def _sql_arithmetic(call: Call, operands: Sequence[str]) -> str:
    left, right = operands
    target = duckdb_type(call.data_type)
    if isinstance(call.data_type, DecimalType) and call.name != "*":
        common = common_type(types_of(call.arguments))
        if common is None:
            raise UnsupportedExpression(f"decimal {call.name}; use the Spark engine")
        left, right = (f"CAST({each} AS {duckdb_type(common)})" for each in operands)
    if call.name == "%":
        # The smallest integer has no remainder by -1 in hardware; in Spark it is 0.
        is_whole = is_integral(call.data_type)
        minus_one = f" WHEN {right} = -1 THEN CAST(0 AS {target})" if is_whole else ""
        return (
            f"{_UNLESS_NULL.format(left, right)}"
            f" WHEN {right} = 0 THEN {raising('remainder by zero')}{minus_one}"
            f" ELSE CAST({left} % {right} AS {target}) END"
        )
    return f"CAST({left} {call.name} {right} AS {target})"


def _division(operator: str) -> Rendering:
    zero = f" WHEN {{1}} = 0 THEN {raising('division by zero')}"
    return Rendering(
        template(f"{_UNLESS_NULL}{zero} ELSE CAST({{0}} {operator} {{1}} AS {{type}}) END"),
        may_raise=True,
    )


def _sql_negative(call: Call, operands: Sequence[str]) -> str:
    target = duckdb_type(call.data_type)
    if is_integral(call.data_type):
        # DuckDB widens the smallest integer instead of failing.
        return f"(CAST(0 AS {target}) - {operands[0]})"
    return f"CAST(-{operands[0]} AS {target})"


_ROUNDED = template("CAST({name}({0}) AS {type})")

_ARITHMETIC = {
    **dict.fromkeys(("+", "-", "*", "%"), Rendering(_sql_arithmetic, may_raise=True)),
    "date +": Rendering(template("CAST({0} + {1} AS DATE)"), may_raise=True),
    "date -": Rendering(template("CAST({0} - {1} AS DATE)"), may_raise=True),
    "date_add": REWRITTEN,
    "date_sub": REWRITTEN,
    "/": _division("/"),
    "div": _division("//"),
    "negative": Rendering(_sql_negative, may_raise=True),
    "positive": REWRITTEN,
    "abs": Rendering(_ROUNDED, may_raise=True),
    "ceil": Rendering(_ROUNDED),
    "floor": Rendering(_ROUNDED),
}

_REST = "CAST({0} % {1} AS {type})"
_SQL_PMOD = (
    f"{_UNLESS_NULL}"
    f" WHEN {{1}} = 0 THEN {raising('remainder by zero')}"
    " WHEN {1} = -1 THEN CAST(0 AS {type})"
    f" WHEN {_REST} < 0 THEN CAST(({_REST} + {{1}}) % {{1}} AS {{type}}) ELSE {_REST} END"
)

_NUMERIC_FUNCTIONS = {
    "sign": Rendering(
        template("CASE WHEN isnan({0}) OR {0} = 0 THEN {0} ELSE CAST(sign({0}) AS DOUBLE) END")
    ),
    "pmod": Rendering(template(_SQL_PMOD), may_raise=True),
}


def _sql_logical(call: Call, operands: Sequence[str]) -> str:
    return f"({f' {call.name.upper()} '.join(operands)})"


def _sql_case(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    branches = " ".join(
        f"WHEN {condition} THEN {value}"
        for condition, value in zip(operands[:-1:2], operands[1::2], strict=True)
    )
    return f"CASE {branches} ELSE {operands[-1]} END"


_CONDITIONS = {
    "and": Rendering(_sql_logical),
    "or": Rendering(_sql_logical),
    "not": Rendering(template("(NOT {0})")),
    **dict.fromkeys(("=", "<", "<=", ">", ">="), Rendering(template("({0} {name} {1})"))),
    "<=>": Rendering(template("({0} IS NOT DISTINCT FROM {1})")),
    "in": Rendering(lambda _, operands: f"({operands[0]} IN ({', '.join(operands[1:])}))"),
    "is null": Rendering(template("({0} IS NULL)")),
    "isnotnull": REWRITTEN,
    "isnan": Rendering(template("coalesce(isnan({0}), FALSE)")),
    "case": Rendering(_sql_case),
    "if": REWRITTEN,
    "nullif": REWRITTEN,
    "nvl2": REWRITTEN,
    "coalesce": Rendering(function("coalesce")),
}


def _ascii_only(name: str) -> Rendering:
    """Case of letters outside ASCII depends on the version of Unicode and on the locale."""
    refused = raising(f"{name}() of letters outside ASCII: use the Spark engine")
    sql = template(
        "CASE WHEN {0} IS NULL OR strlen({0}) = length({0})"
        f" THEN {name}({{0}}) ELSE {refused} END"
    )
    return Rendering(sql, may_raise=True)


def _sql_length(call: Call, operands: Sequence[str]) -> str:
    measure = "octet_length" if call.arguments[0].data_type == BINARY else "length"
    return f"CAST({measure}({operands[0]}) AS INTEGER)"


_NAMED_ALIKE = ("contains", "substring", "replace", "right")

_TEXT_FUNCTIONS = {
    "concat": REWRITTEN,
    "||": Rendering(lambda _, operands: f"({' || '.join(operands)})"),
    "upper": _ascii_only("upper"),
    "lower": _ascii_only("lower"),
    **dict.fromkeys(("trim", "ltrim", "rtrim"), Rendering(template("{name}({0}, ' ')"))),
    "startswith": Rendering(function("starts_with")),
    "endswith": Rendering(function("ends_with")),
    **dict.fromkeys(_NAMED_ALIKE, Rendering(template("{name}({all})"))),
    "length": Rendering(_sql_length),
    "left": REWRITTEN,
    # LIKE has no default escape in DuckDB.
    "like": Rendering(template(f"({{0}} LIKE {{1}} ESCAPE '{ESCAPE}')")),
}


def _sql_size(call: Call, operands: Sequence[str]) -> str:
    is_array = isinstance(call.arguments[0].data_type, ArrayType)
    return f"CAST({'len' if is_array else 'cardinality'}({operands[0]}) AS INTEGER)"


_SQL_CONTAINS = (
    f"{_UNLESS_NULL}"
    " WHEN list_contains({0}, {1}) THEN TRUE"
    " WHEN list_count({0}) < len({0}) THEN NULL ELSE FALSE END"
)
_SQL_GET = "CASE WHEN {1} >= 0 THEN {0}[CAST({1} AS BIGINT) + 1] ELSE NULL END"
_OUTSIDE = raising("the position is outside the array")
_SQL_SUBSCRIPT = (
    f"{_UNLESS_NULL} WHEN {{1}} < 0 OR {{1}} >= len({{0}}) THEN {_OUTSIDE} ELSE {_SQL_GET} END"
)


def _sql_element_at(outside: str) -> ToSql:
    """Positions count from 1, negative ones from the end."""
    return template(
        f"{_UNLESS_NULL}"
        f" WHEN {{1}} = 0 THEN {raising('positions count from 1')}"
        f" WHEN abs(CAST({{1}} AS BIGINT)) > len({{0}}) THEN {outside}"
        " ELSE {0}[{1}] END"
    )


def _sql_field(call: Call, operands: Sequence[str]) -> str:
    position = call.arguments[1]
    assert isinstance(position, Literal)  # noqa: S101  the analysis put it there
    return f"struct_extract_at({operands[0]}, {position.value})"


_NESTED_FUNCTIONS = {
    "size": Rendering(_sql_size),
    "array_contains": Rendering(template(_SQL_CONTAINS)),
    "get": Rendering(template(_SQL_GET)),
    "[]": Rendering(template(_SQL_SUBSCRIPT), may_raise=True),
    "element_at": Rendering(_sql_element_at(_OUTSIDE), may_raise=True),
    "try_element_at": Rendering(_sql_element_at("NULL"), may_raise=True),
    "map value": Rendering(template("{0}[{1}]")),
    ".": Rendering(_sql_field),
}

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


def _part(duckdb_name: str, shift: str = "") -> Rendering:
    return Rendering(template(f"CAST({duckdb_name}({{0}}){shift} AS INTEGER)"))


def _unix_time(per_second: int) -> Rendering:
    """Whole units since the epoch, rounded down as Spark rounds them."""
    count, unit = "epoch_us({0})", 1_000_000 // per_second
    # Integer division rounds towards zero, but times before the epoch must round down.
    whole = f"({count} - ((({count} % {unit}) + {unit}) % {unit})) // {unit}"
    return Rendering(template(f"CAST({whole} AS BIGINT)"))


def _of_unix_time(per_second: int) -> Rendering:
    unit = 1_000_000 // per_second
    return Rendering(template(f"make_timestamp({{0}} * CAST({unit} AS BIGINT))"), may_raise=True)


def _sql_shift(call: Call, operands: Sequence[str]) -> str:
    moment, *amounts = operands
    target = duckdb_type(call.data_type)
    units = ("to_months", "to_days", "to_microseconds")
    parts = (f"{unit}({each})" for unit, each in zip(units, amounts, strict=True))
    return f"CAST({' + '.join((moment, *parts))} AS {target})"


_DATE_DIFFERENCE = Rendering(template("CAST({0} - {1} AS INTEGER)"))

_DATE_FUNCTIONS = {
    **{each: _part(each) for each in ("year", "quarter", "month", "hour", "minute", "second")},
    "dayofmonth": _part("day"),
    "dayofyear": _part("dayofyear"),
    "dayofweek": _part("dayofweek", " + 1"),
    "weekday": _part("isodow", " + -1"),
    "weekofyear": _part("week"),
    "extract": REWRITTEN,
    "date_trunc": Rendering(_sql_date_trunc),
    "date_format": Rendering(_sql_date_format, may_raise=True),
    "trunc": Rendering(_sql_date_trunc),
    "make_date": Rendering(function("make_date"), may_raise=True),
    "date_from_unix_date": Rendering(
        template("CAST(DATE '1970-01-01' + {0} AS DATE)"), may_raise=True
    ),
    "unix_seconds": _unix_time(1),
    "unix_millis": _unix_time(1_000),
    "unix_micros": _unix_time(1_000_000),
    "timestamp_seconds": _of_unix_time(1),
    "timestamp_millis": _of_unix_time(1_000),
    "timestamp_micros": _of_unix_time(1_000_000),
    "interval shift": Rendering(_sql_shift, may_raise=True),
    "datediff": _DATE_DIFFERENCE,
    "date_diff": _DATE_DIFFERENCE,
}

RENDERINGS: Mapping[str, Rendering] = {
    **_CONDITIONS,
    **_ARITHMETIC,
    **_NUMERIC_FUNCTIONS,
    **_TEXT_FUNCTIONS,
    **_NESTED_FUNCTIONS,
    **VARIANT_FUNCTIONS,
    **_DATE_FUNCTIONS,
    **dict.fromkeys(CONVERSIONS, REWRITTEN),
}
"""Renderings by name, for all names of the whitelist."""
