"""Functions of numbers in the whitelist, beside the operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.engines.sql.casts import Refusal, cast, duckdb_type, raising
from dagster_delta.engines.sql.rules import Rule, literal_of, typed_alike, types_of
from dagster_delta.engines.sql.typed import Call, Literal, Typed
from dagster_delta.engines.sql.types import (
    DOUBLE,
    INTEGER,
    is_integral,
    is_numeric,
    sql_type_name,
)
from dagster_delta.protocol.schema import DecimalType, PrimitiveType

__all__ = ["NUMERIC_FUNCTIONS"]

_MAX_PRECISION = 38
_FLOAT = PrimitiveType("float")


def _resolve_round(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) not in (1, 2):
        raise Refusal(f"{name} with {len(arguments)} arguments")
    digits = literal_of(name, arguments[1], int) if len(arguments) == 2 else 0
    source = types_of(arguments)[0]
    if not isinstance(digits, int) or not 0 <= digits <= _MAX_PRECISION:
        raise Refusal(f"{name} to {digits} digits")
    if is_integral(source):
        return arguments[0]
    if isinstance(source, DecimalType):
        scale = min(source.scale, digits)
        precision = source.precision - source.scale + 1 + scale
        if precision <= _MAX_PRECISION:
            return Call(name, arguments[:1], DecimalType(precision, scale))
    raise Refusal(f"{name} of {sql_type_name(source)}")


def _sql_as_type(call: Call, operands: Sequence[str]) -> str:
    # A cast to fewer digits rounds halves away from zero, which is what ROUND does.
    return f"CAST({operands[0]} AS {duckdb_type(call.data_type)})"


def _resolve_of_double(name: str, arguments: tuple[Typed, ...]) -> Typed:
    types = types_of(arguments)
    if len(types) != 1 or not is_numeric(types[0]) or isinstance(types[0], DecimalType):
        raise Refusal(f"{name} of {' and '.join(map(sql_type_name, types))}")
    return Call(name, (cast(arguments[0], DOUBLE),), DOUBLE)


def _sql_root(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"CASE WHEN {operands[0]} < 0 THEN CAST('nan' AS DOUBLE) ELSE sqrt({operands[0]}) END"


def _sql_sign(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return (
        f"CASE WHEN isnan({operands[0]}) OR {operands[0]} = 0 THEN {operands[0]}"
        f" ELSE CAST(sign({operands[0]}) AS DOUBLE) END"
    )


def _resolve_pmod(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 2 or not all(map(is_integral, types_of(arguments))):
        raise Refusal(f"{name} of {' and '.join(map(sql_type_name, types_of(arguments)))}")
    target, operands = typed_alike(name, arguments)
    return Call(name, tuple(operands), target)


def _sql_pmod(call: Call, operands: Sequence[str]) -> str:
    left, right = operands
    target = duckdb_type(call.data_type)
    rest = f"CAST({left} % {right} AS {target})"
    return (
        f"CASE WHEN {left} IS NULL OR {right} IS NULL THEN NULL"
        f" WHEN {right} = 0 THEN {raising('remainder by zero')}"
        f" WHEN {right} = -1 THEN CAST(0 AS {target})"
        f" WHEN {rest} < 0 THEN CAST(({rest} + {right}) % {right} AS {target}) ELSE {rest} END"
    )


def _resolve_zero(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 1 or not is_numeric(types_of(arguments)[0]):
        raise Refusal(f"{name} of these arguments")
    zero = Literal(0, INTEGER)
    if name == "zeroifnull":
        target, operands = typed_alike(name, (arguments[0], zero))
        return Call("coalesce", tuple(operands), target)
    _, compared = typed_alike(name, (arguments[0], zero))
    equal = Call("=", tuple(compared), PrimitiveType("boolean"))
    target = types_of(arguments)[0]
    return Call("case", (equal, Literal(None, target), arguments[0]), target)


def _never_rendered(call: Call, operands: Sequence[str]) -> str:
    raise AssertionError(f"{call.name} of {len(operands)} operands is resolved to another call")


NUMERIC_FUNCTIONS: Mapping[str, Rule] = {
    "round": Rule(_resolve_round, _sql_as_type),
    "sqrt": Rule(_resolve_of_double, _sql_root),
    "sign": Rule(_resolve_of_double, _sql_sign),
    "pmod": Rule(_resolve_pmod, _sql_pmod, may_raise=True),
    "zeroifnull": Rule(_resolve_zero, _never_rendered),
    "nullifzero": Rule(_resolve_zero, _never_rendered),
}
