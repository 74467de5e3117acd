"""What a row of the whitelist is: how Spark types a call, and the DuckDB SQL of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dagster_delta.engines.sql.casts import Refusal, cast
from dagster_delta.engines.sql.typed import Call, Literal, Typed
from dagster_delta.engines.sql.types import (
    BOOLEAN,
    VARIANT,
    common_type,
    is_primitive,
    sql_type_name,
)
from dagster_delta.protocol.schema import DataType

__all__ = [
    "Resolve",
    "Rule",
    "ToSql",
    "boolean_call",
    "fixed",
    "function",
    "literal_of",
    "typed_alike",
    "types_of",
]

Resolve = Callable[[str, tuple[Typed, ...]], Typed]
"""Makes the typed call out of its name and its typed operands, or raises Refusal."""
ToSql = Callable[[Call, Sequence[str]], str]
"""Makes DuckDB SQL out of a typed call and the SQL of its operands."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the whitelist."""

    resolve: Resolve
    sql: ToSql
    may_raise: bool = False
    """Whether it fails for some values, so that what stands before it must shield it."""


def types_of(arguments: Sequence[Typed]) -> list[DataType]:
    """The types of typed operands.

    Raises:
        Refusal: one has none.
    """
    types = [each.data_type for each in arguments if each.data_type is not None]
    if len(types) != len(arguments):
        raise Refusal("an operand without a known type")
    return types


def typed_alike(
    name: str, arguments: Sequence[Typed], *, with_variants: bool = False
) -> tuple[DataType, list[Typed]]:
    """The common type of the operands, and the operands cast to it.

    Args:
        name: for a refusal.
        arguments: the operands.
        with_variants: whether variants may be among them: one is handed on, and nothing is
            computed from it.

    Raises:
        Refusal: there is none, or a cast is not in the whitelist.
    """
    types = types_of(arguments)
    target = common_type(types)
    handed_on = with_variants and target == VARIANT
    if target is None or not (is_primitive(target) or handed_on):
        raise Refusal(f"{name} of {' and '.join(map(sql_type_name, types))}")
    return target, [cast(each, target) for each in arguments]


def fixed(result: DataType, *parameters: DataType) -> Resolve:
    """A rule for a function of exactly these parameter types. Raises nothing itself."""

    def resolve(name: str, arguments: tuple[Typed, ...]) -> Typed:
        if len(arguments) != len(parameters):
            raise Refusal(f"{name} with {len(arguments)} arguments")
        operands = []
        for argument, parameter in zip(arguments, parameters, strict=True):
            is_null = isinstance(argument, Literal) and argument.value is None
            if argument.data_type != parameter and not is_null:
                raise Refusal(f"{name} of {sql_type_name(types_of([argument])[0])}")
            operands.append(cast(argument, parameter))
        return Call(name, tuple(operands), result)

    return resolve


def function(duckdb_name: str, result: str | None = None) -> ToSql:
    """A call of the DuckDB function, cast to a DuckDB type where given. Raises nothing itself."""

    def sql(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
        text = f"{duckdb_name}({', '.join(operands)})"
        return text if result is None else f"CAST({text} AS {result})"

    return sql


def literal_of(name: str, argument: Typed, kind: type) -> object:
    """The value of an operand that has to be a constant.

    Raises:
        Refusal: it is not one, or of another kind.
    """
    if isinstance(argument, Literal) and type(argument.value) is kind:
        return argument.value
    raise Refusal(f"{name} with an argument that is not a constant")


def boolean_call(name: str, arguments: Sequence[Typed]) -> Call:
    """A call whose result is a truth value. Raises nothing."""
    return Call(name, tuple(arguments), BOOLEAN)
