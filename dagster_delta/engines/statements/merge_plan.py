"""The input and the report of an engine for a MERGE, and the ON of a MERGE split into join keys,
conditions on one side alone, and the rest.

The layer above plans the merge once, for every engine.

Spec: Add File and Remove File; Add CDC File.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.plans import ReadPlan, WriteSpec
from dagster_delta.engines.statements.merge_clauses import (
    SOURCE,
    TARGET,
    ClauseKind,
    MergeClause,
    MergeNames,
)
from dagster_delta.engines.statements.unchanged_rows import UnchangedRows
from dagster_delta.errors import ConstraintViolation
from dagster_delta.protocol.actions import AddCDCFile, AddFile
from dagster_delta.protocol.features.text_limits import TEXT_LIMIT_KEY
from dagster_delta.protocol.schema import DataType, PrimitiveType, StructField, StructType
from dagster_delta.sql.typed import (
    FALSE,
    UNKNOWN,
    Call,
    Column,
    Literal,
    Typed,
    operands_of,
    walk,
    with_paths,
)
from dagster_delta.sql.types import BOOLEAN


class SourceSummary(msgspec.Struct, frozen=True):
    """A summary of the rows of a source for planning."""

    num_rows: int
    keys: tuple[Typed, ...]
    """The condition for a row of the table to match any row of the source."""
    materialized: float
    """Reading of `time.perf_counter` when the source had been read."""


class MergeSource(Protocol):
    """The rows of a source, read once by the engine that merges them."""

    @property
    def schema(self) -> StructType:
        """Logical schema."""

    def rows(self) -> object:
        """The rows in a form that the engine writes, and that can be read again."""

    def padded(self, lengths: Mapping[str, int]) -> MergeSource:
        """The source with some columns as CHAR(n), by the length of each."""

    def summarise(self, condition: MergeCondition) -> SourceSummary:
        """The summary of the rows for planning.

        Raises:
            UnsupportedExpression: the engine cannot compute a part of the condition exactly.
            InvalidArgument: it fails on a value.
        """


class MergePlan(msgspec.Struct, frozen=True):
    """One MERGE, fully planned."""

    source: MergeSource
    """The source, made by the same engine."""
    num_source_rows: int
    names: MergeNames
    on: str
    """Spark SQL over both sides."""
    condition: MergeCondition
    """The same condition, split."""
    clauses: tuple[MergeClause, ...]
    target: ReadPlan
    """The files that may have a row that changes, with all columns as they will be written."""
    may_match: pa.BooleanArray
    """A value per file: whether a row of it may match."""
    may_lack_source: pa.BooleanArray
    """A value per file: whether a clause for rows not matched by the source may apply to a row of
    it."""
    data: WriteSpec
    """How the files are written; its constraints apply to every new row."""
    change_data: WriteSpec | None
    """How changes are recorded for the change data feed; None if the table has none."""
    unique_keys: bool = False
    """Whether several new rows of one key are refused."""
    unchanged: Mapping[int, UnchangedRows] = {}
    """By the index of a clause among all clauses: the rows that it leaves as they are."""

    @property
    def checks_new_keys(self) -> bool:
        """Whether new rows are compared with each other: the keys alone decide what matches."""
        is_decided = self.condition.keys and not self.condition.rest
        return self.unique_keys and bool(is_decided and self.clauses_of("not_matched"))

    def clauses_of(self, *kinds: ClauseKind) -> list[tuple[int, MergeClause]]:
        """The clauses of some kinds, each with its index among all clauses."""
        return [
            (index, clause)
            for index, clause in enumerate(self.clauses)
            if clause.text.kind in kinds
        ]

    @property
    def deletes_every_match(self) -> bool:
        """Whether every match deletes the row, so that several source rows may match it."""
        texts = [clause.text for _, clause in self.clauses_of("matched")]
        return [(text.action, text.condition) for text in texts] == [("delete", None)]

    def change_data_for(self, clauses: Iterable[int]) -> WriteSpec | None:
        """How to record changes if some clauses change rows of the table; None if adds and removes
        are enough: for new rows, and for rows removed by deletion vectors.

        `clauses`: indexes of the clauses. An engine that finds the rows before it writes passes
        those that apply to any row; one that does both at once, all that may apply.
        """
        actions = {self.clauses[index].text.action for index in clauses}
        if not actions:
            return None
        if self.target.configuration.deletion_vectors_enabled and "update" not in actions:
            return None
        return self.change_data


def ambiguous_matches(count: int, examples: Iterable[object], *, table: str) -> ConstraintViolation:
    """The error for rows of the source that would change one row of the table together.

    `examples`: the keys of some of them.
    """
    return ConstraintViolation(
        "several rows of the source match the same row of the table, so the result would be "
        f"ambiguous ({count} surplus matches): leave one row per key in the source, or make the "
        "condition of the merge stricter",
        table=table,
        examples=tuple(map(repr, examples)),
    )


def repeated_keys(count: int, examples: Iterable[object], *, table: str) -> ConstraintViolation:
    """The error for several new rows of one key, which the next run could not merge.

    `examples`: the keys of some of them.
    """
    return ConstraintViolation(
        f"several rows of the source have the same key, and the table none ({count} surplus rows): "
        "leave one row per key in the source, or make the condition of the merge stricter",
        table=table,
        examples=tuple(map(repr, examples)),
    )


class MergedRows(msgspec.Struct, frozen=True):
    """Result of a MERGE, not referenced yet."""

    files: tuple[AddFile, ...]
    """New rows, rows with new values, which carry their ids along, and `num_copied_rows`."""
    change_files: tuple[AddCDCFile, ...]
    num_inserted_rows: int
    num_changed_rows: Mapping[int, int]
    """Rows of the table by the index of the clause that changes them."""
    num_copied_rows: int
    """Unchanged rows of changed files: all of them, unless deletion vectors hide the changed
    rows."""
    rows: Mapping[str, BitMap64]
    """Indexes of the changed rows by path of the file, as in the log."""
    used_paths: frozenset[str]
    """Files whose rows decided the actions of the merge."""
    scanned: float
    """Reading of `time.perf_counter` when the action on each row was known."""
    high_water_marks: Mapping[str, int] = msgspec.field(default_factory=dict)
    """The last value assigned, by logical name of each identity column that was numbered."""


_MAX_LISTED_VALUES = 2_000
_FLOATS = (PrimitiveType("float"), PrimitiveType("double"))


class JoinKey(msgspec.Struct, frozen=True):
    """Two values of one type that must be equal."""

    target: Typed
    """Over the target alone."""
    source: Typed
    """Over the source alone."""
    data_type: DataType
    nulls_match: bool
    """Whether it is a `<=>`."""


class MergeCondition(msgspec.Struct, frozen=True):
    """A conjunction, split by the columns that its parts read."""

    keys: tuple[JoinKey, ...]
    target_only: tuple[Typed, ...]
    source_only: tuple[Typed, ...]
    rest: tuple[Typed, ...]
    """Parts that need a pair of rows."""

    @property
    def source_names(self) -> tuple[str, ...]:
        """Columns of the source from which the keys are computed."""
        nodes = (node for key in self.keys for node in walk(key.source))
        return tuple(dict.fromkeys(node.path[1] for node in nodes if isinstance(node, Column)))


def split_condition(condition: Typed) -> MergeCondition:
    """The parts of a condition whose paths start with `TARGET` or `SOURCE`."""
    keys: list[JoinKey] = []
    parts: dict[str, list[Typed]] = {TARGET: [], SOURCE: [], "rest": []}
    for conjunct in _split_conjuncts(condition):
        key = _join_key(conjunct)
        if key is not None:
            keys.append(key)
            continue
        sides = _find_sides(conjunct)
        # A part that is the same for every row is evaluated once, over the source.
        place = "rest" if len(sides) > 1 else TARGET if TARGET in sides else SOURCE
        parts[place].append(conjunct)
    return MergeCondition(
        tuple(keys), tuple(parts[TARGET]), tuple(parts[SOURCE]), tuple(parts["rest"])
    )


_COMPARISONS = frozenset({"=", "<=>", "<", "<=", ">", ">=", "in"})


def compared_lengths(conditions: Iterable[Typed]) -> dict[str, int]:
    """The texts of the source that are compared with a CHAR(n) column of the table, each with the
    greatest of these lengths: CHAR is padded on both sides of a comparison.
    """
    found: dict[str, int] = {}
    for node in (node for condition in conditions for node in walk(condition)):
        if not isinstance(node, Call) or node.name not in _COMPARISONS:
            continue
        columns = [operand for operand in node.arguments if isinstance(operand, Column)]
        lengths = [column.char_length or 0 for column in columns if column.path[0] == TARGET]
        for column in columns if any(lengths) else ():
            side, *path = column.path
            if side == SOURCE and len(path) == 1 and column.char_length is None:
                found[path[0]] = max(found.get(path[0], 0), *lengths)
    return found


_WITHOUT_PADDING = frozenset({"is null", "rtrim"})
"""Functions whose results are the same for a padded text."""


def padding_readers(expression: Typed) -> Iterator[Column]:
    """The columns in an expression whose value would differ if they were padded: those that are
    neither compared with constants and CHAR(n) columns alone nor trimmed.
    """
    if isinstance(expression, Column):
        yield expression
    operands = operands_of(expression)
    name = expression.name if isinstance(expression, Call) else ""
    is_padded = name in _COMPARISONS and all(
        isinstance(each, Literal) or (isinstance(each, Column) and each.char_length is not None)
        for each in operands
    )
    if not (is_padded or (name in _WITHOUT_PADDING and isinstance(operands[0], Column))):
        for operand in operands:
            yield from padding_readers(operand)


def with_lengths(schema: StructType, lengths: Mapping[str, int]) -> StructType:
    """The schema with some columns as CHAR(n)."""
    return StructType(
        tuple(
            StructField(
                field.name,
                field.data_type,
                field.nullable,
                {**field.metadata, TEXT_LIMIT_KEY: f"char({lengths[field.name]})"},
            )
            if field.name in lengths
            else field
            for field in schema
        )
    )


def _split_conjuncts(node: Typed) -> Iterator[Typed]:
    match node:
        case Call("and", arguments):
            for argument in arguments:
                yield from _split_conjuncts(argument)
        case _:
            yield node


def _join_key(node: Typed) -> JoinKey | None:
    match node:
        case Call("=" | "<=>" as name, (left, right)):
            if _find_sides(left) == {SOURCE}:
                left, right = right, left
            data_type = left.data_type
            if (
                _find_sides(left) == {TARGET}
                and _find_sides(right) == {SOURCE}
                and data_type is not None
            ):
                return JoinKey(left, right, data_type, nulls_match=name == "<=>")
    return None


def _find_sides(node: Typed) -> set[str]:
    return {column.path[0] for column in walk(node) if isinstance(column, Column)}


def in_table(node: Typed) -> Typed:
    """A condition over the target alone, with the names that the table gives its columns."""
    return with_paths(node, lambda path: path[1:])


def key_condition(key: JoinKey, values: pa.ChunkedArray, *, are_bounds: bool = False) -> Typed:
    """The condition for the target's side of a key to be equal to one of many values.

    `are_bounds`: whether the values are only the least and the greatest ones, and null if there is
    one.
    """
    target, known = in_table(key.target), pc.drop_null(values)
    condition = _equal_to_any(target, key.data_type, known, are_bounds=are_bounds)
    if key.nulls_match and len(known) < len(values):
        is_null = Call("is null", (target,), BOOLEAN)
        return Call("or", (condition, is_null), BOOLEAN)
    return condition


def _equal_to_any(
    target: Typed, data_type: DataType, known: pa.ChunkedArray, *, are_bounds: bool
) -> Typed:
    if not len(known):
        return FALSE
    if data_type in _FLOATS and pc.any(pc.is_nan(known)).as_py():
        return UNKNOWN
    try:
        # If there are many keys, the first of them already show that they are too many to list: a
        # table of all of them takes more memory than the keys.
        distinct = pc.unique(known.slice(0, _MAX_LISTED_VALUES + 1))
        if len(distinct) <= _MAX_LISTED_VALUES:
            distinct = pc.unique(known)
        if len(distinct) <= _MAX_LISTED_VALUES and not are_bounds:
            listed = (Literal(value, data_type) for value in distinct.to_pylist())
            return Call("in", (target, *listed), BOOLEAN)
        bounds = pc.min_max(known).as_py()
    except (ValueError, OverflowError, pa.ArrowNotImplementedError):
        # For example, dates outside the years of Python's datetime.
        return UNKNOWN
    limits = (
        Call(operator, (target, Literal(bounds[side], data_type)), BOOLEAN)
        for operator, side in ((">=", "min"), ("<=", "max"))
    )
    return Call("and", tuple(limits), BOOLEAN)
