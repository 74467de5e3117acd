"""Rules for the operands of a call, shared by the rows of the whitelist."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dagster_delta.protocol.schema import DataType
from dagster_delta.sql.casts import cast
from dagster_delta.sql.typed import Call, Literal, Refusal, Typed, types_of
from dagster_delta.sql.types import (
    BOOLEAN,
    STRING,
    VARIANT,
    common_type,
    is_primitive,
    sql_type_name,
)

Resolve = Callable[[str, tuple[Typed, ...]], Typed]
"""Makes the typed call from its name and typed operands, or raises Refusal."""


def typed_alike(
    name: str, arguments: Sequence[Typed], *, with_variants: bool = False
) -> tuple[DataType, list[Typed]]:
    """The common type of the operands, and the operands cast to it.

    Args:
        name: name of the function, for a refusal.
        arguments: the operands.
        with_variants: whether variants may be among them: the call only passes them on.

    Raises:
        Refusal: they have no common type, or a cast is not in the whitelist.
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


def literal_of(name: str, argument: Typed, kind: type) -> object:
    """The value of an operand that must be a constant.

    Raises:
        Refusal: it is not a constant, or is of another kind.
    """
    if isinstance(argument, Literal) and type(argument.value) is kind:
        return argument.value
    raise Refusal(f"{name} with an argument that is not a constant")


def boolean_call(name: str, arguments: Sequence[Typed]) -> Call:
    """A call with a boolean result. Raises nothing."""
    return Call(name, tuple(arguments), BOOLEAN)


def check_count(name: str, arguments: Sequence[Typed], *counts: int) -> None:
    """Check that a function has the number of operands that it takes.

    Raises:
        Refusal: it has another number.
    """
    if len(arguments) not in counts:
        raise Refusal(f"{name} with {len(arguments)} arguments")


def text_operand(name: str, argument: Typed) -> Typed:
    """An operand that is text, or NULL.

    Raises:
        Refusal: it is of another type.
    """
    is_null = isinstance(argument, Literal) and argument.value is None
    if argument.data_type != STRING and not is_null:
        raise Refusal(f"{name} of {sql_type_name(types_of([argument])[0])}")
    return cast(argument, STRING)


def typed_by_analysis(name: str, arguments: tuple[Typed, ...]) -> Typed:
    """The rule of a call that only the analysis makes, from operands that it has checked."""
    raise AssertionError(f"{name} of {len(arguments)} operands is typed by the analysis")
