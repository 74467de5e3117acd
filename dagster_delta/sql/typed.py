"""Typed expressions: columns resolved, every cast explicit, Spark-only parts marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from dagster_delta.protocol.features.text_limits import char_length, padded_type
from dagster_delta.protocol.schema import DataType, StructField
from dagster_delta.sql.types import BOOLEAN, collation_of


class Refusal(Exception):
    """A construct that is not in the whitelist; the arguments say which, and what to do instead."""


class Column(msgspec.Struct, frozen=True):
    """A column or a field of a struct, by its logical path."""

    path: tuple[str, ...]
    data_type: DataType
    collation: str | None = None
    """Name of a collation other than binary."""
    char_length: int | None = None
    """Length in characters to which texts of a CHAR(n) column are padded."""


class Literal(msgspec.Struct, frozen=True):
    """A constant; None is null."""

    value: object
    data_type: DataType
    is_written: bool = True
    """Whether it is a literal of the text: beside it, Spark types decimals by its digits; beside a
    converted number, by its type."""


class Cast(msgspec.Struct, frozen=True):
    """`child` as a value of another type; an error if it does not fit."""

    child: Typed
    data_type: DataType


class Call(msgspec.Struct, frozen=True):
    """An operator or a function of the whitelist over operands of the types it takes."""

    name: str
    arguments: tuple[Typed, ...]
    data_type: DataType


class Refused(msgspec.Struct, frozen=True):
    """A part that only Spark evaluates; its type is unknown."""

    construct: str
    """Its name in an error."""
    operands: tuple[Typed, ...] = ()
    remedy: str = "use the Spark engine"
    """What to do about it, for an error."""
    meaning: Typed | None = None
    """What the part computes, over columns that stand for what it takes out of variants; for file
    skipping alone. None if it is not known."""

    @property
    def data_type(self) -> None:
        """Not known."""
        return


Typed: TypeAlias = Column | Literal | Cast | Call | Refused

TRUE, FALSE = Literal(True, BOOLEAN), Literal(False, BOOLEAN)
UNKNOWN = Refused("a condition of which nothing is known")
"""A condition that may be true, false or null in any row."""

FLIPPED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<=", "<=>": "<=>"}
"""Each comparison, and its equivalent with swapped operands."""


def operands_of(expression: Typed) -> tuple[Typed, ...]:
    """The direct operands of an expression."""
    match expression:
        case Cast(child):
            return (child,)
        case Call(arguments=operands) | Refused(operands=operands):
            return operands
        case Column() | Literal():
            return ()


def with_paths(expression: Typed, changed: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Typed:
    """The expression over other columns, given by path."""
    match expression:
        case Column(path):
            return replace(expression, path=changed(path))
        case Cast(child):
            return replace(expression, child=with_paths(child, changed))
        case Call(arguments=operands):
            return replace(expression, arguments=tuple(with_paths(e, changed) for e in operands))
        case Refused(operands=operands):
            renamed = tuple(with_paths(e, changed) for e in operands)
            return replace(expression, operands=renamed, meaning=None)
        case Literal():
            return expression


def column_of(fields: Sequence[StructField]) -> Column:
    """The column at the end of fields that lead to it, each inside the one before."""
    collations = [found for field in fields if (found := collation_of(field))]
    # Only a top-level column carries this declaration itself; fields of structs do not.
    declared = padded_type(fields[-1])
    return Column(
        tuple(field.name for field in fields),
        fields[-1].data_type,
        collations[-1] if collations else None,
        char_length(declared),
    )


def quote(name: str) -> str:
    """A name as one identifier of Spark SQL, in backticks."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def quote_path(path: Sequence[str]) -> str:
    """The path of a column or a field in Spark SQL, with every name quoted."""
    return ".".join(map(quote, path))


def walk(expression: Typed) -> Iterator[Typed]:
    """The expression and everything in it, outermost first."""
    yield expression
    for operand in operands_of(expression):
        yield from walk(operand)


# Walks of a tree must not overflow the stack, at any depth of the caller.
_MAX_DEPTH = 120


def is_too_deep(expression: Typed) -> bool:
    """Whether an expression has more levels than may be walked, found without recursion."""
    depth, level = 0, [expression]
    while level and depth <= _MAX_DEPTH:
        depth += 1
        level = [child for node in level for child in operands_of(node)]
    return depth > _MAX_DEPTH


def types_of(arguments: Sequence[Typed]) -> list[DataType]:
    """The types of typed operands.

    Raises:
        Refusal: an operand has no type.
    """
    types = [argument.data_type for argument in arguments if argument.data_type is not None]
    if len(types) != len(arguments):
        raise Refusal("an operand without a known type")
    return types
