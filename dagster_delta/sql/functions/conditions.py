"""Comparisons, tests for null and choices between values in the whitelist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import PrimitiveType
from dagster_delta.sql.functions.function import (
    Function,
    boolean_call,
    typed_alike,
)
from dagster_delta.sql.typed import (
    FLIPPED,
    Call,
    Column,
    Literal,
    Refusal,
    Refused,
    Typed,
    types_of,
    walk,
)
from dagster_delta.sql.types import BOOLEAN, VARIANT, VOID, sql_type_name


def _check_comparable(name: str, arguments: tuple[Typed, ...]) -> None:
    if any(argument.data_type == VARIANT for argument in arguments):
        raise InvalidArgument(
            f"variants cannot be compared by {name}: take values out of them and compare those, as "
            "in variant_get(v, '$.field', 'int'), with the Spark engine"
        )


def _resolve_comparison(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _check_comparable(name, arguments)
    _, operands = typed_alike(name, arguments)
    # Beside NULL on the left, DuckDB does not compute what may fail on the right.
    is_null = isinstance(operands[0], Literal) and operands[0].value is None and name != "<=>"
    if not is_null and not _has_column(operands[0]) and _has_column(operands[1]):
        # A constant is on the right, for what matches on the form of a comparison.
        name, operands = FLIPPED[name], operands[::-1]
    return boolean_call(name, operands)


def _has_column(operand: Typed) -> bool:
    return any(isinstance(node, Column | Refused) for node in walk(operand))


def _resolve_in(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _check_comparable("IN", arguments)
    _, operands = typed_alike("IN", arguments)
    return boolean_call(name, operands)


def _resolve_is_not_null(name: str, arguments: tuple[Typed, ...]) -> Typed:  # noqa: ARG001
    return boolean_call("not", [boolean_call("is null", arguments)])


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
    if any(data_type != BOOLEAN for data_type in types_of(conditions)):
        raise Refusal("a condition that is not boolean")
    target, values = typed_alike("CASE", values, with_variants=True)
    branches = [
        operand
        for condition, value in zip(conditions, values, strict=False)
        for operand in (condition, value)
    ]
    return Call(name, (*branches, values[-1]), target)


def _resolve_if(name: str, arguments: tuple[Typed, ...]) -> Typed:  # noqa: ARG001
    return _resolve_case("case", arguments)


def _resolve_nullif(name: str, arguments: tuple[Typed, ...]) -> Typed:  # noqa: ARG001
    equal = _resolve_comparison("=", arguments)
    target = types_of(arguments)[0]
    return Call("case", (equal, Literal(None, target), arguments[0]), target)


def _resolve_coalesce(name: str, arguments: tuple[Typed, ...]) -> Typed:
    target, operands = typed_alike(name, arguments, with_variants=True)
    return Call("coalesce", tuple(operands), target)


def _sql_case(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    branches = " ".join(
        f"WHEN {condition} THEN {value}"
        for condition, value in zip(operands[:-1:2], operands[1::2], strict=True)
    )
    return f"CASE {branches} ELSE {operands[-1]} END"


CONDITIONS: Mapping[str, Function] = {
    **dict.fromkeys(("and", "or"), Function(None, "({joined})", is_strict=False)),
    "not": Function(None, "(NOT {0})"),
    **dict.fromkeys(
        ("=", "<", "<=", ">", ">="),
        Function(_resolve_comparison, "({0} {name} {1})", takes=(2, 2)),
    ),
    "<=>": Function(
        _resolve_comparison, "({0} IS NOT DISTINCT FROM {1})", is_strict=False, takes=(2, 2)
    ),
    "in": Function(_resolve_in, "({0} IN ({rest}))", is_strict=False, takes=(2, None)),
    "is null": Function(boolean_call, "({0} IS NULL)", is_strict=False),
    "isnotnull": Function(_resolve_is_not_null),
    "isnan": Function(_resolve_is_nan, "coalesce(isnan({0}), FALSE)", is_strict=False),
    "case": Function(_resolve_case, _sql_case, is_strict=False, takes=(2, None)),
    "if": Function(_resolve_if, takes=(3, 3)),
    "nullif": Function(_resolve_nullif, takes=(2, 2)),
    **dict.fromkeys(("nvl", "ifnull"), Function(_resolve_coalesce, takes=(2, 2))),
    "coalesce": Function(_resolve_coalesce, "coalesce({all})", is_strict=False, takes=(1, None)),
}
