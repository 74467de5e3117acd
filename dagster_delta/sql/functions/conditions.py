"""Comparisons, tests for null and choices between values in the whitelist."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import PrimitiveType
from dagster_delta.sql.functions.signatures import (
    Resolve,
    boolean_call,
    check_count,
    typed_alike,
    typed_by_analysis,
)
from dagster_delta.sql.typed import Call, Literal, Refusal, Typed, types_of
from dagster_delta.sql.types import BOOLEAN, VARIANT, VOID, sql_type_name


def _check_comparable(name: str, arguments: tuple[Typed, ...]) -> None:
    if any(each.data_type == VARIANT for each in arguments):
        raise InvalidArgument(
            f"variants cannot be compared by {name}: take values out of them and compare those, as "
            "in variant_get(v, '$.field', 'int')"
        )


def _resolve_comparison(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 2)
    _check_comparable(name, arguments)
    _, operands = typed_alike(name, arguments)
    return boolean_call(name, operands)


def _resolve_in(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) < 2:
        raise Refusal("an empty IN list")
    _check_comparable("IN", arguments)
    _, operands = typed_alike("IN", arguments)
    return boolean_call(name, operands)


def _resolve_is_null(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 1)
    return boolean_call(name, arguments)


def _resolve_is_not_null(name: str, arguments: tuple[Typed, ...]) -> Typed:  # noqa: ARG001
    return boolean_call("not", [_resolve_is_null("is null", arguments)])


def _resolve_is_nan(name: str, arguments: tuple[Typed, ...]) -> Typed:
    types = types_of(arguments)
    if types not in ([PrimitiveType("float")], [PrimitiveType("double")]):
        raise Refusal(f"{name} of {' and '.join(map(sql_type_name, types))}")
    return boolean_call(name, arguments)


def _resolve_case(name: str, arguments: tuple[Typed, ...]) -> Typed:
    """Operands are condition, value, condition, value, …, and optionally the value of ELSE."""
    conditions = list(arguments[:-1:2] if len(arguments) % 2 else arguments[::2])
    values = list(arguments[1::2])
    values.append(arguments[-1] if len(arguments) % 2 else Literal(None, VOID))
    if any(each != BOOLEAN for each in types_of(conditions)):
        raise Refusal("a condition that is not boolean")
    target, values = typed_alike("CASE", values, with_variants=True)
    branches = [
        each
        for condition, value in zip(conditions, values, strict=False)
        for each in (condition, value)
    ]
    return Call(name, (*branches, values[-1]), target)


def _resolve_if(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 3)
    return _resolve_case("case", arguments)


def _resolve_nvl2(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 3)
    is_there = _resolve_is_not_null("isnotnull", arguments[:1])
    return _resolve_case("case", (is_there, *arguments[1:]))


def _resolve_nullif(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 2)
    equal = _resolve_comparison("=", arguments)
    target = types_of(arguments)[0]
    return Call("case", (equal, Literal(None, target), arguments[0]), target)


def _resolve_coalesce(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if not arguments:
        raise Refusal(f"{name} without arguments")
    target, operands = typed_alike(name, arguments, with_variants=name == "coalesce")
    return Call(name, tuple(operands), target)


CONDITIONS: Mapping[str, Resolve] = {
    **dict.fromkeys(("and", "or", "not"), typed_by_analysis),
    **dict.fromkeys(("=", "<", "<=", ">", ">=", "<=>"), _resolve_comparison),
    "in": _resolve_in,
    "is null": _resolve_is_null,
    "isnotnull": _resolve_is_not_null,
    "isnan": _resolve_is_nan,
    "case": _resolve_case,
    "if": _resolve_if,
    "nullif": _resolve_nullif,
    "nvl2": _resolve_nvl2,
    "coalesce": _resolve_coalesce,
}
