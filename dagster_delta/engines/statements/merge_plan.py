"""The input and the report of an engine for a MERGE.

The layer above plans the merge once, for every engine.

Spec: Add File and Remove File; Add CDC File.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from dagster_delta.engines.plans import ReadPlan, WriteSpec
from dagster_delta.engines.statements.merge_clauses import ClauseKind, MergeClause, MergeNames
from dagster_delta.engines.statements.merge_condition import MergeCondition
from dagster_delta.errors import ConstraintViolation
from dagster_delta.protocol.actions import AddCDCFile, AddFile
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.statistics.predicates import Predicate


class SourceSummary(msgspec.Struct, frozen=True):
    """A summary of the rows of a source for planning."""

    num_rows: int
    keys: tuple[Predicate, ...]
    """The condition for a row of the table to match any row of the source."""
    materialized: float
    """Reading of `time.perf_counter` when the source had been read."""


class MergeSource(Protocol):
    """The rows of a source, read once by the engine that merges them."""

    @property
    def schema(self) -> StructType:
        """Logical schema."""

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
