"""Predicates as file skipping sees them: a tree of what a filter asks of each column.

The tree is evaluated against bounds, never against rows, for all files at once. Its answer is safe:
a file is ruled out only where no row in it can satisfy the predicate.

Spec: Per-file Statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow.compute as pc

from dagster_delta.protocol.arrow_values import FALSE, TRUE, array_of, every, scalar_of
from dagster_delta.protocol.column_bounds import ColumnBounds
from dagster_delta.protocol.schema import DataType, PrimitiveType

__all__ = [
    "And",
    "Comparison",
    "Constant",
    "In",
    "IsNull",
    "IsTrue",
    "Not",
    "Or",
    "Outcomes",
    "Predicate",
    "StartsWith",
    "Unknown",
    "may_match",
    "possible_outcomes",
    "referenced_columns",
]

Operator: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">=", "<=>"]
ColumnPath: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    """True, false or null in every row."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Unknown:
    """A part that bounds say nothing about; it may be true, false or null."""

    reason: str = ""
    """What the part is, for explanations."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column operator value`, both sides taken as `data_type`."""

    column: ColumnPath
    operator: Operator
    value: object
    """Not null: int, float, Decimal, str, bytes, bool, date or datetime, as `data_type` wants."""
    data_type: DataType
    """Type of the comparison; the column is widened to it."""


@dataclass(frozen=True, slots=True)
class In:
    """`column IN (values)`, both sides taken as `data_type`."""

    column: ColumnPath
    values: tuple[object, ...]
    """The values that are not null."""
    data_type: DataType
    has_null: bool = False
    """Whether the list holds a null, which turns every false into null."""


@dataclass(frozen=True, slots=True)
class StartsWith:
    """`column` begins with `prefix`."""

    column: ColumnPath
    prefix: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """`column IS NULL`."""

    column: ColumnPath


@dataclass(frozen=True, slots=True)
class Not:
    """Three-valued negation."""

    child: Predicate


@dataclass(frozen=True, slots=True)
class IsTrue:
    """Null taken for false, as `coalesce(child, FALSE)` does."""

    child: Predicate


@dataclass(frozen=True, slots=True)
class And:
    """Three-valued conjunction."""

    children: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Three-valued disjunction."""

    children: tuple[Predicate, ...]


Predicate: TypeAlias = (
    Constant | Unknown | Comparison | In | StartsWith | IsNull | Not | IsTrue | And | Or
)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Per file, the results a predicate may have in some row of it.

    Each is a pyarrow BooleanArray without nulls; false means that it surely does not happen.
    """

    true: Any
    false: Any
    null: Any

    @property
    def only_true(self) -> Any:
        """Files in which every row satisfies the predicate: pa.BooleanArray."""
        return pc.invert(pc.or_(self.false, self.null))


def may_match(predicate: Predicate, bounds: Mapping[ColumnPath, ColumnBounds], count: int) -> Any:
    """Which of `count` files may hold a row that satisfies the predicate: pa.BooleanArray.

    Args:
        predicate: the filter.
        bounds: per column path as the predicate spells it, `count` rows each. A column without an
            entry is unknown.
        count: number of files.

    Raises:
        Nothing: what cannot be compared is kept.
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
    """Paths of the columns whose bounds the predicate looks at. Raises nothing."""
    return frozenset(_columns(predicate))


def _columns(predicate: Predicate) -> Iterator[ColumnPath]:
    match predicate:
        case Comparison(column=column) | In(column=column):
            yield column
        case StartsWith(column=column) | IsNull(column=column):
            yield column
        case Not(child) | IsTrue(child):
            yield from _columns(child)
        case And(children) | Or(children):
            for each in children:
                yield from _columns(each)
        case Constant() | Unknown():
            return


_STRING = PrimitiveType("string")

# More values than this are looked for as ranges, so that cost stays flat for long IN lists.
_MAX_IN_RANGES = 64


class _Evaluation:
    """One predicate against one set of bounds."""

    def __init__(self, bounds: Mapping[ColumnPath, ColumnBounds], count: int) -> None:
        self._bounds = bounds
        self._yes = every(True, count)
        self._no = every(False, count)

    def outcomes(self, predicate: Predicate) -> Outcomes:
        match predicate:
            case Constant(value):
                return self._constant(value)
            case Comparison():
                return self._comparison(predicate)
            case In():
                return self._membership(predicate)
            case StartsWith():
                return self._prefix(predicate)
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
                inner = self._conjunction(tuple(Not(each) for each in children))
                return Outcomes(inner.false, inner.true, inner.null)
            case Unknown():
                return Outcomes(self._yes, self._yes, self._yes)

    def _constant(self, value: bool | None) -> Outcomes:
        return Outcomes(
            self._yes if value is True else self._no,
            self._yes if value is False else self._no,
            self._yes if value is None else self._no,
        )

    def _conjunction(self, children: tuple[Predicate, ...]) -> Outcomes:
        result = self._constant(value=True)
        for each in children:
            right = self.outcomes(each)
            true = pc.and_(result.true, right.true)
            null = pc.or_(
                pc.and_(result.null, pc.or_(right.true, right.null)),
                pc.and_(right.null, result.true),
            )
            result = Outcomes(true, pc.or_(result.false, right.false), null)
        return result

    def _comparison(self, node: Comparison) -> Outcomes:
        known = self._bounds.get(node.column)
        if known is None:
            return Outcomes(self._yes, self._yes, self._yes)
        widened = None if _is_nan(node.value) else known.widened(node.data_type)
        if widened is None:
            return self._undecided(known, node.operator == "<=>")
        value = scalar_of(node.value, node.data_type)
        below = _possible(pc.less(widened.minimum, value))
        at_most = _possible(pc.less_equal(widened.minimum, value))
        at_least = _possible(pc.greater_equal(widened.maximum, value))
        above = _possible(pc.greater(widened.maximum, value))
        equal = pc.and_(at_most, at_least)
        if not widened.maximum_covers_nan:
            # NaN is the greatest value, and a maximum that ignores it says nothing about it.
            at_least, above = self._yes, self._yes
        different = pc.or_(below, above)
        match node.operator:
            case "=" | "<=>":
                true, false = equal, different
            case "<>":
                true, false = different, equal
            case "<":
                true, false = below, at_least
            case "<=":
                true, false = at_most, above
            case ">":
                true, false = above, at_most
            case ">=":
                true, false = at_least, below
        return self._among_values(known, true, false, null_safe=node.operator == "<=>")

    def _membership(self, node: In) -> Outcomes:
        known = self._bounds.get(node.column)
        if known is None:
            return Outcomes(self._yes, self._no if node.has_null else self._yes, self._yes)
        if not node.values:
            outcomes = self._among_values(known, self._no, self._yes)
        elif any(map(_is_nan, node.values)) or (widened := known.widened(node.data_type)) is None:
            outcomes = self._undecided(known)
        else:
            values = pc.unique(array_of(node.values, node.data_type))
            values = values.take(pc.sort_indices(values))
            outcomes = self._among_values(
                known, self._overlaps(widened, values), _may_differ(widened, values)
            )
        if not node.has_null:
            return outcomes
        null = pc.or_(outcomes.null, outcomes.false)
        return Outcomes(outcomes.true, self._no, null)

    def _overlaps(self, known: ColumnBounds, values: Any) -> Any:
        """Files whose range touches one of the sorted values, or one of their ranges."""
        size = math.ceil(len(values) / _MAX_IN_RANGES)
        result = self._no
        for start in range(0, len(values), size):
            first, last = values[start], values[min(start + size, len(values)) - 1]
            touches = _possible(pc.less_equal(known.minimum, last))
            touches = pc.and_(touches, _possible(pc.greater_equal(known.maximum, first)))
            result = pc.or_(result, touches)
        return result

    def _prefix(self, node: StartsWith) -> Outcomes:
        known = self._bounds.get(node.column)
        if known is None:
            return Outcomes(self._yes, self._yes, self._yes)
        if known.data_type != _STRING:
            return self._undecided(known)
        inside = _possible(pc.greater_equal(known.maximum, scalar_of(node.prefix, _STRING)))
        following = _next_prefix(node.prefix)
        if following is not None:
            bound = scalar_of(following, _STRING)
            inside = pc.and_(inside, _possible(pc.less(known.minimum, bound)))
        surely = pc.and_(
            pc.starts_with(known.minimum, pattern=node.prefix),
            pc.starts_with(known.maximum, pattern=node.prefix),
        )
        outside = pc.invert(pc.fill_null(surely, FALSE))
        return self._among_values(known, inside, outside)

    def _among_values(
        self, known: ColumnBounds, true: Any, false: Any, *, null_safe: bool = False
    ) -> Outcomes:
        """Outcomes where `true` and `false` are about values that are not null."""
        true = pc.and_(true, known.may_hold_value)
        false = pc.and_(false, known.may_hold_value)
        if null_safe:
            return Outcomes(true, pc.or_(false, known.may_hold_null), self._no)
        return Outcomes(true, false, known.may_hold_null)

    def _undecided(self, known: ColumnBounds, null_safe: bool = False) -> Outcomes:
        return self._among_values(known, self._yes, self._yes, null_safe=null_safe)


def _may_differ(known: ColumnBounds, values: Any) -> Any:
    """Files that may hold a value outside the list: all but those with one value, in the list."""
    if not known.maximum_covers_nan:
        return every(True, len(known.minimum))
    same = pc.equal(known.minimum, known.maximum)
    listed = pc.is_in(known.minimum, value_set=values)
    return pc.invert(pc.fill_null(pc.and_(same, listed), FALSE))


def _possible(comparison: Any) -> Any:
    """A comparison with an unknown bound is possible."""
    return pc.fill_null(comparison, TRUE)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _next_prefix(prefix: str) -> str | None:
    """The smallest string above every string that begins with `prefix`; None if there is none."""
    for end in range(len(prefix), 0, -1):
        following = ord(prefix[end - 1]) + 1
        if 0xD800 <= following <= 0xDFFF:
            following = 0xE000  # surrogates are no characters, and UTF-8 order skips them
        if following <= 0x10FFFF:
            return prefix[: end - 1] + chr(following)
    return None
