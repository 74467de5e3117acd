"""Which files a condition has to read: by partition values first, then by statistics of the others.

A condition is evaluated against what is known of its columns in each file, for all files at once. A
file is skipped only if no row in it can satisfy the condition.

Conditions on partition columns alone, such as `upper(country) = 'DE'`, are computed once for each
file instead of its rows, and parts without columns, such as `upper('de')`, once for all.

Spec: Partition Value Serialization; Per-file Statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import DeltaError
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType
from dagster_delta.protocol.statistics.bounds import (
    ColumnBounds,
    Possible,
    bounds_of_partition_values,
    bounds_of_statistics,
    next_prefix,
    partition_column,
)
from dagster_delta.protocol.statistics.statistics import StatisticsColumn, leaves_with_statistics
from dagster_delta.protocol.values.arrow_columns import integer_column
from dagster_delta.protocol.values.arrow_values import every
from dagster_delta.sql.evaluator import Evaluator
from dagster_delta.sql.functions.patterns import like_pieces
from dagster_delta.sql.typed import UNKNOWN, Call, Cast, Column, Literal, Refused, Typed, walk
from dagster_delta.sql.types import BOOLEAN, STRING

Path: TypeAlias = tuple[str, ...]
LoadStatistics: TypeAlias = Callable[[Sequence[StatisticsColumn]], pa.Table]
"""Returns the statistics table of all files for some columns, one row per file in order."""


class SkippedFiles(msgspec.Struct, frozen=True):
    """The result of a condition for many files."""

    may_match: pa.BooleanArray
    """One value per file: true if a row may satisfy the condition."""
    only_matches: pa.BooleanArray
    """One value per file: true if every row certainly satisfies the condition."""
    is_decided: bool
    """Whether partition values alone satisfy the condition in every file that may match, so that
    its rows need no filter."""

    def filter(self, kept: pa.BooleanArray) -> SkippedFiles:
        """The result for the files that are kept."""
        may_match, only_matches = (
            pc.filter(mask, kept) for mask in (self.may_match, self.only_matches)
        )
        return SkippedFiles(may_match, only_matches, self.is_decided)

    @classmethod
    def concatenated(cls, parts: Sequence[SkippedFiles]) -> SkippedFiles:
        """The combined result for the files of several parts, in order."""
        return cls(
            pa.chunked_array([part.may_match for part in parts], pa.bool_()).combine_chunks(),
            pa.chunked_array([part.only_matches for part in parts], pa.bool_()).combine_chunks(),
            is_decided=all(part.is_decided for part in parts),
        )


def skip_files(
    condition: Typed,
    configuration: TableConfiguration,
    partition_values: pa.ChunkedArray | pa.MapArray,
    load_statistics: LoadStatistics,
) -> SkippedFiles:
    """Which of many files may hold a row that satisfies a condition.

    The condition is over logical paths; partition values are by physical names. `load_statistics`
    is called at most once, and only if data columns can rule out more files.
    """
    read: set[Path] = {node.path for node in walk(condition) if isinstance(node, Column)}
    partitions = {
        name: partition_column(name, configuration, partition_values)
        for name in configuration.partition_columns
        if (name,) in read
    }
    bounds: dict[Path, ColumnBounds] = {
        (name,): bounds_of_partition_values(values, configuration.schema.field(name).data_type)
        for name, values in partitions.items()
    }
    evaluation = _Evaluation(bounds, len(partition_values), partitions)
    outcomes = evaluation.outcomes(condition)
    undecided = pc.and_(outcomes.true, pc.invert(outcomes.only_true))
    if not pc.any(undecided).as_py():
        return SkippedFiles(outcomes.true, outcomes.only_true, is_decided=True)
    columns = leaves_with_statistics(evaluation.asked, configuration)
    if columns:
        statistics = load_statistics(list(columns.values()))
        for index, (path, column) in enumerate(columns.items()):
            bounds[path] = bounds_of_statistics(statistics, index, column.data_type)
        outcomes = evaluation.outcomes(condition)
    return SkippedFiles(outcomes.true, outcomes.only_true, is_decided=False)


def skipping_columns(
    condition: Typed, configuration: TableConfiguration
) -> dict[Path, StatisticsColumn]:
    """The leaves that a condition is evaluated on and that may have statistics, by logical path."""
    return leaves_with_statistics(bounded_columns(condition), configuration)


def bounded_columns(condition: Typed) -> frozenset[Path]:
    """Paths of the columns whose bounds say something about a condition."""
    evaluation = _Evaluation({}, 0)
    evaluation.outcomes(condition)
    return frozenset(evaluation.asked)


class Outcomes(msgspec.Struct, frozen=True):
    """Per file, the possible results of a condition in its rows.

    Each is a pyarrow BooleanArray without nulls. False means that the result is impossible.
    """

    true: pa.BooleanArray
    false: pa.BooleanArray
    null: pa.BooleanArray

    @property
    def only_true(self) -> pa.BooleanArray:
        """Files in which every row satisfies the condition: pa.BooleanArray."""
        return pc.invert(pc.or_(self.false, self.null))

    @property
    def negated(self) -> Outcomes:
        """Those of NOT."""
        return Outcomes(self.false, self.true, self.null)


def possible_outcomes(
    condition: Typed, bounds: Mapping[Path, ColumnBounds], count: int
) -> Outcomes:
    """The results that a condition may have in each of `count` files.

    Bounds are by column path as the condition spells it, `count` rows each. A column without an
    entry is unknown, and files that cannot be compared are kept.
    """
    return _Evaluation(bounds, count).outcomes(condition)


class _Evaluation:
    def __init__(
        self,
        bounds: Mapping[Path, ColumnBounds],
        count: int,
        partitions: Mapping[str, pa.Array] | None = None,
    ) -> None:
        self.asked: set[Path] = set()
        """The columns whose bounds were needed."""
        self._bounds = bounds
        self._partitions = partitions or {}
        """The value of each file in partition columns, by logical name."""
        self._computed: dict[int, tuple[Typed, Outcomes | None]] = {}
        self._yes = every(True, count)
        self._no = every(False, count)

    def outcomes(self, node: Typed) -> Outcomes:
        match node:
            case Literal(bool() | None as value):
                return self._repeat_outcome(value)
            case Call("and", operands):
                return self._combine_all(map(self.outcomes, operands))
            case Call("or", operands):
                return self._combine_any(map(self.outcomes, operands))
            case Call("not", (child,)):
                return self.outcomes(child).negated
            case Call("coalesce", (child, Literal(bool() as value))):
                return self._fill_null(self.outcomes(child), value)
            case Call("<=>", (child, Literal(bool() as value))):
                inner = self.outcomes(child)
                return self._fill_null(inner if value else inner.negated, value=False)
            case Call("<=>", (operand, Literal(value) as constant)) if value is not None:
                equal = Call("=", (operand, constant), BOOLEAN)
                return self._fill_null(self.outcomes(equal), value=False)
            case Refused(meaning=meaning) if meaning is not None:
                return self.outcomes(meaning)
            case Call("startswith" | "like") if (limits := prefix_limits(node)) is not None:
                return self.outcomes(limits)
        return (
            self._decide_leaf(node)
            or self._of_partitions(node)
            or self._allow_any_outcome(_find_strict_columns(node))
        )

    def _decide_leaf(self, node: Typed) -> Outcomes | None:
        match node:
            case Column(path, data_type) if data_type == BOOLEAN:
                return self._decide_comparison(path, "=", (True,), BOOLEAN)
            case Call("is null", (operand,)) | Call("<=>", (operand, Literal(None))):
                # A cast gives null only for a null operand.
                found = _get_column_path(operand)
                return None if found is None else self._null_test(found)
            case Call("in", (operand, *values)):
                return self._decide_membership(operand, values)
            case Call("=" | "<" | "<=" | ">" | ">=" as operator, (operand, other)):
                if is_null_literal(operand) or is_null_literal(other):
                    return self._repeat_outcome(None)
                found, compared = _get_column_path(operand), operand.data_type
                if found is not None and compared is not None and isinstance(other, Literal):
                    return self._decide_comparison(found, operator, (other.value,), compared)
        return None

    def _repeat_outcome(self, value: bool | None) -> Outcomes:
        return Outcomes(
            self._yes if value is True else self._no,
            self._yes if value is False else self._no,
            self._yes if value is None else self._no,
        )

    def _allow_any_outcome(self, operands: Iterable[Path]) -> Outcomes:
        """A part that bounds cannot decide; it is null where one of some columns is."""
        possible = self._yes
        for path in operands:
            if (known := self._bounds_of(path)) is not None:
                possible = pc.and_(possible, known.may_hold_value)
        return Outcomes(possible, possible, self._yes)

    def _fill_null(self, inner: Outcomes, value: bool) -> Outcomes:
        """With null read as true or as false."""
        if value:
            return self._fill_null(inner.negated, value=False).negated
        return Outcomes(inner.true, pc.or_(inner.false, inner.null), self._no)

    def _combine_all(self, parts: Iterable[Outcomes]) -> Outcomes:
        result = self._repeat_outcome(value=True)
        for right in parts:
            null = pc.or_(
                pc.and_(result.null, pc.or_(right.true, right.null)),
                pc.and_(right.null, result.true),
            )
            result = Outcomes(
                pc.and_(result.true, right.true), pc.or_(result.false, right.false), null
            )
        return result

    def _combine_any(self, parts: Iterable[Outcomes]) -> Outcomes:
        # De Morgan holds in three-valued logic.
        return self._combine_all(part.negated for part in parts).negated

    def _decide_membership(self, operand: Typed, values: Sequence[Typed]) -> Outcomes | None:
        path, data_type = _get_column_path(operand), operand.data_type
        constants = [value.value for value in values if isinstance(value, Literal)]
        if path is None or data_type is None or len(constants) < len(values):
            return None
        known = tuple(constant for constant in constants if constant is not None)
        listed = self._decide_comparison(path, "in", known, data_type)
        if len(known) == len(constants):
            return listed
        return self._combine_any((listed, self._repeat_outcome(None)))

    def _null_test(self, path: Path) -> Outcomes:
        known = self._bounds_of(path)
        if known is None:
            return Outcomes(self._yes, self._yes, self._no)
        return Outcomes(known.may_hold_null, known.may_hold_value, self._no)

    def _decide_comparison(
        self, path: Path, operator: str, values: Sequence[object], data_type: DataType
    ) -> Outcomes:
        known = self._bounds_of(path)
        if known is None:
            return Outcomes(self._yes, self._yes, self._yes)
        return self._of_values(known, operator, values, data_type)

    def _of_values(
        self, known: ColumnBounds, operator: str, values: Sequence[object], data_type: DataType
    ) -> Outcomes:
        true, false = _find_possible(known, operator, values, data_type) or (self._yes, self._yes)
        return Outcomes(
            pc.and_(true, known.may_hold_value),
            pc.and_(false, known.may_hold_value),
            known.may_hold_null,
        )

    def _of_partitions(self, condition: Typed) -> Outcomes | None:
        """The result of a condition on partition columns alone; None for any other condition."""
        known = self._computed.get(id(condition))
        if known is None:
            known = self._computed[id(condition)] = (
                condition,
                self._evaluate_on_partitions(condition),
            )
        return known[1]

    def _evaluate_on_partitions(self, condition: Typed) -> Outcomes | None:
        nodes = list(walk(condition))
        paths = {node.path for node in nodes if isinstance(node, Column)}
        if condition.data_type != BOOLEAN or not paths:
            return None
        if any(isinstance(node, Refused) for node in nodes):
            return None
        if not paths.issubset((name,) for name in self._partitions):
            return None
        rows = pa.Table.from_arrays(list(self._partitions.values()), names=list(self._partitions))
        try:
            values = Evaluator(condition).of_batch(rows)
        except DeltaError:
            # It may fail on a partition whose rows another part of the filter leaves out.
            return None
        return self._of_values(bounds_of_partition_values(values, BOOLEAN), "=", (True,), BOOLEAN)

    def _bounds_of(self, path: Path) -> ColumnBounds | None:
        self.asked.add(path)
        return self._bounds.get(path)


def _find_possible(
    known: ColumnBounds, operator: str, values: Sequence[object], data_type: DataType
) -> Possible | None:
    """Where values that are not null may satisfy it, and where they may not; None if unknown."""
    if any(isinstance(value, float) and math.isnan(value) for value in values):
        return None
    if operator in ("=", "in"):
        return known.membership(values, data_type)
    below = known.below(values[0], data_type, or_equal=operator in ("<=", ">"))
    return below if below is None or operator in ("<", "<=") else below[::-1]


def is_null_literal(operand: Typed) -> bool:
    """Whether an operand is NULL."""
    return isinstance(operand, Literal) and operand.value is None


def _get_column_path(operand: Typed) -> Path | None:
    match operand:
        case Column(path) | Cast(Column(path)):
            return path
    return None


def _find_strict_columns(expression: Typed) -> tuple[Path, ...]:
    """Columns for whose nulls the expression is null."""
    match expression:
        case Column(path):
            return (path,)
        case Call("in", (operand, *_)) | Cast(operand):
            return _find_strict_columns(operand)
        case Call(name, operands):
            from dagster_delta.sql.functions.whitelist import WHITELIST

            if not WHITELIST[name].is_strict:
                return ()
            return tuple(
                dict.fromkeys(
                    path for operand in operands for path in _find_strict_columns(operand)
                )
            )
    return ()


def prefix_limits(test: Typed) -> Typed | None:
    """What follows for a column from the beginning of a text or pattern, and what does not follow;
    None if nothing is known.
    """
    match test:
        case Call("startswith", (Column() as column, Literal(str() as prefix))):
            return starts_with(column, prefix)
        case Call("like", (Column() as column, Literal(str() as pattern))) if pattern:
            start = like_pieces(pattern)[0]
            if isinstance(start, str):
                return Call("and", (starts_with(column, start), UNKNOWN), BOOLEAN)
    return None


def starts_with(column: Column, prefix: str) -> Typed:
    """`column` begins with `prefix`, as a range of texts."""
    lower, following = Call(">=", (column, Literal(prefix, STRING)), BOOLEAN), next_prefix(prefix)
    if following is None:
        return lower
    return Call("and", (lower, Call("<", (column, Literal(following, STRING)), BOOLEAN)), BOOLEAN)


_CONNECTIVES = ("and", "or", "not")


def with_constants(expression: Typed) -> Typed:
    """The expression, in which the parts without columns are literals, as far as they can be
    computed.

    Raises:
        Nothing: a part that fails stays as it is.
    """
    if isinstance(expression, Refused) and expression.meaning is not None:
        return replace(expression, meaning=with_constants(expression.meaning))
    if not isinstance(expression, Call | Cast):
        return expression
    is_constant = not any(isinstance(node, Column | Refused) for node in walk(expression))
    if is_constant and not (isinstance(expression, Call) and expression.name in _CONNECTIVES):
        return _fold_constant(expression)
    if isinstance(expression, Cast):
        return replace(expression, child=with_constants(expression.child))
    return replace(expression, arguments=tuple(map(with_constants, expression.arguments)))


def _fold_constant(expression: Call | Cast) -> Typed:
    data_type = expression.data_type
    if not isinstance(data_type, PrimitiveType | DecimalType):
        return expression
    row = pa.table({"row": integer_column([0])})
    try:
        value = Evaluator(expression).of_batch(row)[0].as_py()
    except (DeltaError, OverflowError, ValueError):
        # It may be in a part of the filter that is not evaluated; dates of Python end in 9999.
        return expression
    return Literal(value, data_type, is_written=False)
