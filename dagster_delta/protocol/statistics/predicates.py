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
from dagster_delta.protocol.statistics.bounds import ColumnBounds, next_prefix
from dagster_delta.protocol.values.arrow_values import every

Operator: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">=", "<=>"]
ColumnPath: TypeAlias = tuple[str, ...]


class Constant(msgspec.Struct, frozen=True):
    """True, false or null in every row."""

    value: bool | None


class Unknown(msgspec.Struct, frozen=True):
    """A part that bounds cannot decide; it may be true, false or null."""

    reason: str = ""
    """What the part is, for explanations."""
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
    has_null: bool = False
    """Whether the list contains a null, which turns every false into null."""


class StartsWith(msgspec.Struct, frozen=True):
    """`column` begins with `prefix`."""

    column: ColumnPath
    prefix: str


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
    Constant | Unknown | Computed | Comparison | In | StartsWith | IsNull | Not | IsTrue | And | Or
)


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
            case Comparison() | In() | StartsWith() | IsNull():
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
            case Comparison() | Computed():
                return self._comparison(predicate)
            case In():
                return self._membership(predicate)
            case StartsWith():
                return self._conjunction(_bounds_of_prefix(predicate))
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

    def _comparison(self, part: Comparison | Computed) -> Outcomes:
        node = part.comparison if isinstance(part, Computed) else part
        known = self._bounds.get(node.column)
        if known is None:
            return Outcomes(self._yes, self._yes, self._yes)
        sides = None if _is_nan(node.value) else known.sides(node.value, node.data_type)
        if sides is None:
            return self._undecided(known, node.operator == "<=>")
        different = pc.or_(sides.below, sides.above)
        match node.operator:
            case "=" | "<=>":
                true, false = sides.equal, different
            case "<>":
                true, false = different, sides.equal
            case "<":
                true, false = sides.below, sides.at_least
            case "<=":
                true, false = sides.at_most, sides.above
            case ">":
                true, false = sides.above, sides.at_most
            case ">=":
                true, false = sides.at_least, sides.below
        return self._among_values(known, true, false, null_safe=node.operator == "<=>")

    def _membership(self, node: In) -> Outcomes:
        known = self._bounds.get(node.column)
        if known is None:
            return Outcomes(self._yes, self._no if node.has_null else self._yes, self._yes)
        if not node.values:
            outcomes = self._among_values(known, self._no, self._yes)
        elif (
            any(map(_is_nan, node.values))
            or (found := known.membership(node.values, node.data_type)) is None
        ):
            outcomes = self._undecided(known)
        else:
            outcomes = self._among_values(known, *found)
        if not node.has_null:
            return outcomes
        null = pc.or_(outcomes.null, outcomes.false)
        return Outcomes(outcomes.true, self._no, null)

    def _among_values(
        self,
        known: ColumnBounds,
        true: pa.BooleanArray,
        false: pa.BooleanArray,
        *,
        null_safe: bool = False,
    ) -> Outcomes:
        """Outcomes where `true` and `false` are about values that are not null."""
        true = pc.and_(true, known.may_hold_value)
        false = pc.and_(false, known.may_hold_value)
        if null_safe:
            return Outcomes(true, pc.or_(false, known.may_hold_null), self._no)
        return Outcomes(true, false, known.may_hold_null)

    def _undecided(self, known: ColumnBounds, null_safe: bool = False) -> Outcomes:
        return self._among_values(known, self._yes, self._yes, null_safe=null_safe)


def _bounds_of_prefix(node: StartsWith) -> tuple[Predicate, ...]:
    following = next_prefix(node.prefix)
    lower = Comparison(node.column, ">=", node.prefix, _STRING)
    if following is None:
        return (lower,)
    return lower, Comparison(node.column, "<", following, _STRING)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
