"""A function of the whitelist: how Spark types its calls, and how DuckDB computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from dagster_delta.protocol.schema import DataType
from dagster_delta.sql.casts import cast, duckdb_type
from dagster_delta.sql.typed import FLIPPED, Call, Literal, Refusal, Typed, types_of
from dagster_delta.sql.types import (
    BOOLEAN,
    DATE,
    INTEGER,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    common_type,
    is_primitive,
    sql_type_name,
)

Resolve: TypeAlias = Callable[[str, tuple[Typed, ...]], Typed]
"""Makes the typed call from its name and typed operands, or raises Refusal."""
Render: TypeAlias = Callable[[Call, Sequence[str]], str]
"""Makes DuckDB SQL from a typed call and the SQL of its operands."""


class Function(msgspec.Struct, frozen=True):
    """One function or operator of the whitelist."""

    resolve: Resolve | None
    """How Spark types a call of as many arguments as it `takes`; None if only the analysis makes
    such calls."""
    sql: str | Render = ""
    """DuckDB SQL of a typed call: a template of the operands `{0}`, `{1}` and so on, `{all}` of
    them, the `{rest}` after the first or all of them `{joined}` by the `{name}` of the call, and of
    the DuckDB `{type}` of its result. Empty if `resolve` makes another call or a cast."""
    may_raise: bool = False
    """Whether it fails for some values, so that earlier operands must guard it."""
    is_strict: bool = True
    """Whether a call is null wherever an operand is null."""
    takes: tuple[int, int | None] = (1, 1)
    """The least and the greatest number of arguments; None: no limit."""

    def takes_count(self, count: int) -> bool:
        """Whether a call may have this number of arguments."""
        fewest, most = self.takes
        return count >= fewest and (most is None or count <= most)

    def render(self, call: Call, operands: Sequence[str]) -> str:
        """The DuckDB SQL of a call."""
        if not isinstance(self.sql, str):
            return self.sql(call, operands)
        return self.sql.format(
            *operands,
            all=", ".join(operands),
            rest=", ".join(operands[1:]),
            joined=f" {call.name.upper()} ".join(operands),
            name=call.name,
            type=duckdb_type(call.data_type) if "{type}" in self.sql else "",
        )


UNLESS_NULL = "CASE WHEN {0} IS NULL OR {1} IS NULL THEN NULL"
"""The beginning of a template that ends in ` ELSE … END`."""


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
        raise refused_type(name, *arguments)
    return target, [cast(argument, target) for argument in arguments]


Operand = Callable[[str, Typed], Typed]
"""Makes an operand from the name of the function and the argument, or raises Refusal."""


def calls(result: DataType, *operands: Operand) -> Resolve:
    """A rule for a function of these operands."""

    def resolve(name: str, arguments: tuple[Typed, ...]) -> Typed:
        made = (operand(name, given) for operand, given in zip(operands, arguments, strict=True))
        return Call(name, tuple(made), result)

    return resolve


def of_types(*accepted: DataType, target: DataType | None = None, or_null: bool = False) -> Operand:
    """An operand of one of the types, cast to `target`, or NULL if that is accepted."""

    def operand(name: str, argument: Typed) -> Typed:
        is_null = or_null and isinstance(argument, Literal) and argument.value is None
        if argument.data_type not in accepted and not is_null:
            raise refused_type(name, argument)
        return argument if target is None else cast(argument, target)

    return operand


def refused_type(name: str, *arguments: Typed) -> Refusal:
    """The refusal of a function of operands of these types."""
    types = types_of(arguments)
    construct = f"{name} of {' and '.join(map(sql_type_name, types))}"
    is_time = any(found in (DATE, TIMESTAMP, TIMESTAMP_NTZ) for found in types)
    if name.lower() in (*FLIPPED, "in") and is_time and INTEGER in types:
        # `2024-01-02` is 2021. Spark does not compare it with a date either.
        return Refusal(construct, "write a date in quotes, as DATE '2024-01-02'")
    return Refusal(construct)


def fixed(result: DataType, *parameters: DataType) -> Resolve:
    """A rule for a function of exactly these parameter types, or NULL."""
    return calls(
        result, *(of_types(parameter, target=parameter, or_null=True) for parameter in parameters)
    )


def literal_of(name: str, argument: Typed, kind: type) -> object:
    """The value of an operand that must be a constant.

    Raises:
        Refusal: it is not a constant, or is of another kind.
    """
    if isinstance(argument, Literal) and type(argument.value) is kind:
        return argument.value
    raise Refusal(f"{name} with an argument that is not a constant")


def boolean_call(name: str, arguments: Sequence[Typed]) -> Call:
    """A call with a boolean result."""
    return Call(name, tuple(arguments), BOOLEAN)


text_operand = of_types(STRING, target=STRING, or_null=True)
"""An operand that is text, or NULL."""
