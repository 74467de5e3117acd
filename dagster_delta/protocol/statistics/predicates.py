"""Predicates for file skipping: a tree of what a filter requires of each column.

The tree is evaluated against bounds, for all files at once. The result is safe: a file is skipped
only if no row in it can satisfy the predicate.

Spec: Per-file Statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.protocol.schema import DataType, PrimitiveType
from dagster_delta.protocol.statistics.bounds import ColumnBounds, Possible, next_prefix
from dagster_delta.protocol.values.arrow_values import every

Operator: TypeAlias = Literal["=", "<", "<=", ">", ">="]
ColumnPath: TypeAlias = tuple[str, ...]


class Constant(msgspec.Struct, frozen=True):
    """True, false or null in every row."""

    value: bool | None


class Unknown(msgspec.Struct, frozen=True):
    """A part that bounds cannot decide; it may be true, false or null."""

    operands: tuple[ColumnPath, ...] = ()
    """Columns for whose nulls it is certainly null."""


class Comparison(msgspec.Struct, frozen=True):
    """`column operator value`, both sides as `data_type`."""

    column: ColumnPath
    operator: Operator
    value: object
    """Not null: int, float, Decimal, str, bytes, bool, date or datetime, as `data_type`
    requires."""
    data_type: DataType
    """Type of the comparison; the column is widened to it."""


class Computed(msgspec.Struct, frozen=True):
    """A condition that an engine computes from partition values, one value per file."""

    columns: frozenset[str]
    """Logical names of the partition columns that it reads."""
    values: Callable[[pa.Table], pa.BooleanArray | None]
    """Returns a value per row of a `pa.Table` with these columns; None if it fails on one."""

    @property
    def comparison(self) -> Comparison:
        """The same condition on a column that stands for its values."""
        return Comparison(("", str(id(self))), "=", value=True, data_type=_BOOLEAN)


class In(msgspec.Struct, frozen=True):
    """`column IN (values)`, both sides as `data_type`."""

    column: ColumnPath
    values: tuple[object, ...]
    """The values that are not null."""
    data_type: DataType


class IsNull(msgspec.Struct, frozen=True):
    """`column IS NULL`."""

    column: ColumnPath


class Not(msgspec.Struct, frozen=True):
    """Three-valued negation."""

    child: Predicate


class IsTrue(msgspec.Struct, frozen=True):
    """Null treated as false, like `coalesce(child, FALSE)`."""

    child: Predicate


class And(msgspec.Struct, frozen=True):
    """Three-valued conjunction."""

    children: tuple[Predicate, ...]


class Or(msgspec.Struct, frozen=True):
    """Three-valued disjunction."""

    children: tuple[Predicate, ...]


Predicate: TypeAlias = (
    Constant | Unknown | Computed | Comparison | In | IsNull | Not | IsTrue | And | Or
)


def starts_with(column: ColumnPath, prefix: str) -> Predicate:
    """`column` begins with `prefix`."""
    lower, following = Comparison(column, ">=", prefix, _STRING), next_prefix(prefix)
    if following is None:
        return lower
    return And((lower, Comparison(column, "<", following, _STRING)))


class Outcomes(msgspec.Struct, frozen=True):
    """Per file, the possible results of a predicate in its rows.

    Each is a pyarrow BooleanArray without nulls. False means that the result is impossible.
    """

    true: pa.BooleanArray
    false: pa.BooleanArray
    null: pa.BooleanArray

    @property
    def only_true(self) -> pa.BooleanArray:
        """Files in which every row satisfies the predicate: pa.BooleanArray."""
        return pc.invert(pc.or_(self.false, self.null))


def may_match(
    predicate: Predicate, bounds: Mapping[ColumnPath, ColumnBounds], count: int
) -> pa.BooleanArray:
    """Which of `count` files may hold a row that satisfies the predicate: pa.BooleanArray.

    Bounds are by column path as the predicate spells it, `count` rows each. A column without an
    entry is unknown, and files that cannot be compared are kept.
    """
    return possible_outcomes(predicate, bounds, count).true


def possible_outcomes(
    predicate: Predicate, bounds: Mapping[ColumnPath, ColumnBounds], count: int
) -> Outcomes:
    """The results the predicate may have in each of `count` files.

    Args and Raises as for `may_match`.
    """
    return _Evaluation(bounds, count).outcomes(predicate)


def referenced_columns(predicate: Predicate) -> frozenset[ColumnPath]:
    """Paths of the columns whose bounds the predicate needs. Raises nothing."""
    found: set[ColumnPath] = set()
    for part in _parts(predicate):
        match part:
            case Comparison() | In() | IsNull():
                found.add(part.column)
            case Unknown(operands=operands):
                found.update(operands)
    return frozenset(found)


def computed_parts(predicate: Predicate) -> tuple[Computed, ...]:
    """The parts that an engine computes from partition values. Raises nothing."""
    return tuple(part for part in _parts(predicate) if isinstance(part, Computed))


def _parts(predicate: Predicate) -> Iterator[Predicate]:
    yield predicate
    match predicate:
        case Not(child) | IsTrue(child):
            yield from _parts(child)
        case And(children) | Or(children):
            for child in children:
                yield from _parts(child)


_BOOLEAN = PrimitiveType("boolean")
_STRING = PrimitiveType("string")


class _Evaluation:
    def __init__(self, bounds: Mapping[ColumnPath, ColumnBounds], count: int) -> None:
        self._bounds = bounds
        self._yes = every(True, count)
        self._no = every(False, count)

    def outcomes(self, predicate: Predicate) -> Outcomes:
        match predicate:
            case Constant(value):
                return self._constant(value)
            case Computed():
                return self._compared(predicate.comparison)
            case Comparison() | In():
                return self._compared(predicate)
            case IsNull(column):
                known = self._bounds.get(column)
                if known is None:
                    return Outcomes(self._yes, self._yes, self._no)
                return Outcomes(known.may_hold_null, known.may_hold_value, self._no)
            case Not(child):
                inner = self.outcomes(child)
                return Outcomes(inner.false, inner.true, inner.null)
            case IsTrue(child):
                inner = self.outcomes(child)
                return Outcomes(inner.true, pc.or_(inner.false, inner.null), self._no)
            case And(children):
                return self._conjunction(children)
            case Or(children):
                # De Morgan holds in three-valued logic.
                inner = self._conjunction(tuple(Not(child) for child in children))
                return Outcomes(inner.false, inner.true, inner.null)
            case Unknown(operands=operands):
                return self._unknown(operands)

    def _constant(self, value: bool | None) -> Outcomes:
        return Outcomes(
            self._yes if value is True else self._no,
            self._yes if value is False else self._no,
            self._yes if value is None else self._no,
        )

    def _unknown(self, operands: tuple[ColumnPath, ...]) -> Outcomes:
        possible = self._yes
        for path in operands:
            if (known := self._bounds.get(path)) is not None:
                possible = pc.and_(possible, known.may_hold_value)
        return Outcomes(possible, possible, self._yes)

    def _conjunction(self, children: tuple[Predicate, ...]) -> Outcomes:
        result = self._constant(value=True)
        for child in children:
            right = self.outcomes(child)
            null = pc.or_(
                pc.and_(result.null, pc.or_(right.true, right.null)),
                pc.and_(right.null, result.true),
            )
            result = Outcomes(
                pc.and_(result.true, right.true), pc.or_(result.false, right.false), null
            )
        return result

    def _compared(self, node: Comparison | In) -> Outcomes:
        known = self._bounds.get(node.column)
        if known is None:
            return Outcomes(self._yes, self._yes, self._yes)
        true, false = _of_values(node, known) or (self._yes, self._yes)
        return Outcomes(
            pc.and_(true, known.may_hold_value),
            pc.and_(false, known.may_hold_value),
            known.may_hold_null,
        )


def _of_values(node: Comparison | In, known: ColumnBounds) -> Possible | None:
    """Where values that are not null may satisfy it, and where they may not; None if unknown."""
    values = node.values if isinstance(node, In) else (node.value,)
    if any(map(_is_nan, values)):
        return None
    if isinstance(node, In) or node.operator == "=":
        return known.membership(values, node.data_type)
    below = known.below(node.value, node.data_type, or_equal=node.operator in ("<=", ">"))
    return below if below is None or node.operator in ("<", "<=") else below[::-1]


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
