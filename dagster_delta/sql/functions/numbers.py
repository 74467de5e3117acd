"""Arithmetic and functions of numbers in the whitelist: Spark's result types."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal

from msgspec.structs import replace

from dagster_delta.protocol.schema import DecimalType
from dagster_delta.sql.casts import cast, duckdb_type, raising
from dagster_delta.sql.functions.function import UNLESS_NULL, Function, refused_type
from dagster_delta.sql.literals import shifted
from dagster_delta.sql.typed import Call, Literal, Refusal, Typed, types_of
from dagster_delta.sql.types import (
    DATE,
    DOUBLE,
    INTEGER,
    LONG,
    VOID,
    common_type,
    decimal_of,
    decimal_of_integral,
    is_integral,
    is_numeric,
    sql_type_name,
)

_MAX_PRECISION = 38


def _resolve_arithmetic(name: str, arguments: tuple[Typed, ...]) -> Typed:
    """`+ - * %` of numbers, and dates shifted by days."""
    left, right = _without_untyped_nulls(name, arguments)
    first, second = types_of([left, right])
    if name in "+-" and first == DATE and is_integral(second) and second != LONG:
        return _moved_date(name, left, right)
    if name == "+" and second == DATE and is_integral(first) and first != LONG:
        return _moved_date(name, right, left)
    if not (is_numeric(first) and is_numeric(second)):
        raise Refusal(f"{sql_type_name(first)} {name} {sql_type_name(second)}")
    target = common_type([first, second])
    if target != DOUBLE and any(
        isinstance(data_type, DecimalType) for data_type in (first, second)
    ):
        return _resolve_decimal(name, left, right)
    if target is None:
        raise Refusal(f"{sql_type_name(first)} {name} {sql_type_name(second)}")
    return Call(name, (cast(left, target), cast(right, target)), target)


def _moved_date(sign: str, date: Typed, days: Typed) -> Typed:
    if isinstance(date, Literal) and isinstance(date.value, dt.date):
        count = days.value if isinstance(days, Literal) else None
        if isinstance(count, int):
            # A constant can be compared with the bounds of files.
            found = shifted(date.value, 0, count if sign == "+" else -count, 0)
            if found is not None:
                return replace(date, value=found)
    return Call(f"date {sign}", (date, cast(days, INTEGER)), DATE)


def _without_untyped_nulls(name: str, arguments: tuple[Typed, ...]) -> list[Typed]:
    """The two operands; a NULL gets the type of the other one."""
    types = types_of(arguments)
    known = [data_type for data_type in types if data_type != VOID]
    if not known or (len(known) == 1 and isinstance(known[0], DecimalType)):
        raise refused_type(name, *arguments)
    return [
        cast(argument, known[0]) if argument.data_type == VOID else argument
        for argument in arguments
    ]


def _resolve_decimal(name: str, left: Typed, right: Typed) -> Typed:
    operands = [_as_decimal(left), _as_decimal(right)]
    first, second = map(_decimal_type, operands)
    scale = max(first.scale, second.scale)
    digits = (first.precision - first.scale, second.precision - second.scale)
    match name:
        case "*":
            scale = first.scale + second.scale
            precision = first.precision + second.precision + 1
        case "%":
            precision = min(digits) + scale
        case _:
            precision = max(digits) + scale + 1
    if precision > _MAX_PRECISION or max(digits) + max(first.scale, second.scale) > _MAX_PRECISION:
        raise Refusal(f"{first} {name} {second}, which needs more than {_MAX_PRECISION} digits,")
    if name != "*":
        operands = [cast(operand, common_type([first, second]) or VOID) for operand in operands]
    return Call(name, tuple(operands), DecimalType(max(precision, 1), scale))


def _as_decimal(operand: Typed) -> Typed:
    """The operand as the decimal that Spark converts a number to beside another decimal."""
    data_type = types_of([operand])[0]
    if isinstance(data_type, DecimalType):
        return operand
    if isinstance(operand, Literal) and operand.is_written and isinstance(operand.value, int):
        return cast(operand, decimal_of(Decimal(operand.value)) or VOID)
    return cast(operand, decimal_of_integral(data_type))


def _decimal_type(operand: Typed) -> DecimalType:
    if isinstance(operand.data_type, DecimalType):
        return operand.data_type
    raise Refusal(f"{operand.data_type} beside a decimal")


def _resolve_date_function(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if types_of(arguments)[0] != DATE:
        raise Refusal(f"{name} of these arguments")
    return _resolve_arithmetic("+" if name == "date_add" else "-", arguments)


def _resolve_division(name: str, arguments: tuple[Typed, ...]) -> Typed:
    arguments = tuple(_without_untyped_nulls(name, arguments))
    types = types_of(arguments)
    if not all(map(is_numeric, types)):
        raise Refusal(" / ".join(map(sql_type_name, types)))
    if (
        any(isinstance(data_type, DecimalType) for data_type in types)
        and common_type(types) != DOUBLE
    ):
        raise Refusal("decimal division")
    return Call(name, tuple(cast(argument, DOUBLE) for argument in arguments), DOUBLE)


def _resolve_integral_division(name: str, arguments: tuple[Typed, ...]) -> Typed:
    arguments = tuple(_without_untyped_nulls(name, arguments))
    if not all(map(is_integral, types_of(arguments))):
        raise Refusal(f"{name} of numbers that are not whole")
    return Call(name, tuple(cast(argument, LONG) for argument in arguments), LONG)


def _resolve_signed(name: str, arguments: tuple[Typed, ...]) -> Call:
    types = types_of(arguments)
    if not is_numeric(types[0]):
        raise refused_type(name, *arguments)
    return Call(name, arguments, types[0])


def _resolve_rounding(name: str, arguments: tuple[Typed, ...]) -> Typed:
    source = types_of(arguments)[0]
    if is_integral(source):
        return cast(arguments[0], LONG)
    if isinstance(source, DecimalType):
        precision = source.precision - source.scale + 1
        if precision <= _MAX_PRECISION:
            return Call(name, arguments, DecimalType(precision, 0))
    raise refused_type(name, *arguments)


def _sql_remainder(call: Call, operands: Sequence[str]) -> str:
    # The smallest integer has no remainder by -1 in hardware; in Spark it is 0.
    is_whole = is_integral(call.data_type)
    minus_one = " WHEN {1} = -1 THEN CAST(0 AS {2})" if is_whole else ""
    return (
        f"{UNLESS_NULL} WHEN {{1}} = 0 THEN {_BY_ZERO}{minus_one}"
        " ELSE CAST({0} % {1} AS {2}) END"
    ).format(*operands, duckdb_type(call.data_type))


def _sql_negative(call: Call, operands: Sequence[str]) -> str:
    target = duckdb_type(call.data_type)
    if is_integral(call.data_type):
        # DuckDB widens the smallest integer instead of failing.
        return f"(CAST(0 AS {target}) - {operands[0]})"
    return f"CAST(-{operands[0]} AS {target})"


_BY_ZERO = raising("remainder by zero")
_QUOTIENT = (
    f"{UNLESS_NULL} WHEN {{1}} = 0 THEN {raising('division by zero')}"
    " ELSE CAST({0} %s {1} AS {type}) END"
)
_ROUNDED = "CAST({name}({0}) AS {type})"

NUMERIC_FUNCTIONS: Mapping[str, Function] = {
    **dict.fromkeys(
        ("+", "-", "*"),
        Function(
            _resolve_arithmetic, "CAST({0} {name} {1} AS {type})", may_raise=True, takes=(2, 2)
        ),
    ),
    "%": Function(_resolve_arithmetic, _sql_remainder, may_raise=True, takes=(2, 2)),
    "date +": Function(None, "CAST({0} + {1} AS DATE)", may_raise=True),
    "date -": Function(None, "CAST({0} - {1} AS DATE)", may_raise=True),
    **dict.fromkeys(("date_add", "date_sub"), Function(_resolve_date_function, takes=(2, 2))),
    "/": Function(_resolve_division, _QUOTIENT.replace("%s", "/"), may_raise=True, takes=(2, 2)),
    "div": Function(
        _resolve_integral_division, _QUOTIENT.replace("%s", "//"), may_raise=True, takes=(2, 2)
    ),
    "negative": Function(_resolve_signed, _sql_negative, may_raise=True),
    "positive": Function(lambda name, arguments: _resolve_signed(name, arguments).arguments[0]),
    "abs": Function(_resolve_signed, _ROUNDED, may_raise=True),
    "ceil": Function(_resolve_rounding, _ROUNDED),
    "floor": Function(_resolve_rounding, _ROUNDED),
}
