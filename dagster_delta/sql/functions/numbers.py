"""Functions of numbers in the whitelist, beside the operators."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_delta.protocol.schema import DecimalType, PrimitiveType
from dagster_delta.sql.casts import cast
from dagster_delta.sql.functions.signatures import Resolve, literal_of, typed_alike
from dagster_delta.sql.typed import Call, Literal, Refusal, Typed, types_of
from dagster_delta.sql.types import DOUBLE, INTEGER, is_integral, is_numeric, sql_type_name

__all__ = ["NUMERIC_FUNCTIONS"]

_MAX_PRECISION = 38


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


def _resolve_of_double(name: str, arguments: tuple[Typed, ...]) -> Typed:
    types = types_of(arguments)
    if len(types) != 1 or not is_numeric(types[0]) or isinstance(types[0], DecimalType):
        raise Refusal(f"{name} of {' and '.join(map(sql_type_name, types))}")
    return Call(name, (cast(arguments[0], DOUBLE),), DOUBLE)


def _resolve_pmod(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 2 or not all(map(is_integral, types_of(arguments))):
        raise Refusal(f"{name} of {' and '.join(map(sql_type_name, types_of(arguments)))}")
    target, operands = typed_alike(name, arguments)
    return Call(name, tuple(operands), target)


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


NUMERIC_FUNCTIONS: Mapping[str, Resolve] = {
    "round": _resolve_round,
    "sqrt": _resolve_of_double,
    "sign": _resolve_of_double,
    "pmod": _resolve_pmod,
    "zeroifnull": _resolve_zero,
    "nullifzero": _resolve_zero,
}
