"""MERGE as one commit: pruned by the log, joined on the keys, written only where rows change.

Spec: Add File and Remove File; Deletion Vectors; Add CDC File; Per-file Statistics.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dagster_delta.engines import is_spark_frame, universal_engine
from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.engines.arrow.merge_join import ClauseChoice, MergeJoin
from dagster_delta.engines.arrow.merge_matching import (
    MergeTarget,
    RowActions,
    find_row_actions,
)
from dagster_delta.engines.arrow.merge_source import MergeSource
from dagster_delta.engines.arrow.merge_writing import MergedFiles, MergeWriting, write_merged
from dagster_delta.engines.statements.merge_clauses import (
    MergeClause,
    MergeNames,
    parse_clauses,
)
from dagster_delta.engines.statements.merge_condition import key_predicate, split_condition
from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.protocol.statistics.predicates import Constant, Predicate
from dagster_delta.protocol.values.arrow_columns import index_column
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.storage.scratch_directory import scratch_directory
from dagster_delta.table.read.row_selection import SelectedRows
from dagster_delta.table.write.merge.outcome import MergeOutcome, MergeTimes, commit_merge
from dagster_delta.table.write.merge.schema_change import merged_configuration
from dagster_delta.table.write.merge.scope import MergeScope, matching_predicate
from dagster_delta.table.write.merge.statement import MergeStatement
from dagster_delta.table.write.planning import write_spec
from dagster_delta.table.write.row_changes import refuse_append_only
from dagster_delta.table.write.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.engines.engine import Clock
    from dagster_delta.table.read.snapshot import Snapshot

__all__ = ["MergeStatement", "merge_rows"]


def merge_rows(
    store: ObjectStore, snapshot: Snapshot, statement: MergeStatement, *, clock: Clock
) -> CommitResult:
    """Change, remove and add rows by what a source says.

    Args:
        store: store of the table.
        snapshot: the latest one.
        statement: what to do.
        clock: milliseconds since the epoch.

    Raises:
        ConstraintViolation: several rows of the source would change one row, or a new row breaks a
            constraint.
        InvalidCast: a new value does not fit its column.
        InvalidArgument, SchemaMismatch, UnsupportedExpression, UnsupportedFeature, CommitConflict:
            nothing was committed, and no file is left behind where the store allows.
        CommitStateUnknown: the store would not say.
    """
    times = MergeTimes(time.perf_counter())
    transaction = Transaction(store, snapshot, clock=clock)
    if statement.record.is_done(snapshot):
        return CommitResult(snapshot.version, {}, snapshot, skipped=True)
    statement.record.stage(transaction)
    if any(each.action != "insert" for each in statement.clauses):
        refuse_append_only(transaction, "this MERGE")
    if statement.engine not in (None, "arrow", "spark"):
        raise InvalidArgument(f"engine is 'arrow' or 'spark', not {statement.engine!r}")
    is_frame = is_spark_frame(statement.source)
    with scratch_directory("merge-") as directory:
        if statement.engine == "spark" or (statement.engine is None and is_frame):
            return _merge_on_spark(transaction, snapshot, statement, times, directory)
        source = MergeSource(statement.source, directory)
        times.materialised = time.perf_counter()
        try:
            merging = _Merging.plan(transaction, snapshot, statement, source, directory)
        except UnsupportedExpression:
            if statement.engine is not None or universal_engine(store) is None:
                raise
            return _merge_on_spark(transaction, snapshot, statement, times, directory, source)
        outcome = merging.run(times)
        return commit_merge(transaction, snapshot, statement, outcome, ArrowEngine(), times)


def _merge_on_spark(
    transaction: Transaction,
    snapshot: Snapshot,
    statement: MergeStatement,
    times: MergeTimes,
    directory: str,
    source: MergeSource | None = None,
) -> CommitResult:
    from dagster_delta.engines.spark.engine import SparkEngine
    from dagster_delta.table.write.merge.on_spark import merge_frames

    session = getattr(statement.source, "sparkSession", None)
    engine = SparkEngine(session)
    data = statement.source if source is None else source
    outcome = merge_frames(engine, transaction, snapshot, statement, data, times, directory)
    return commit_merge(transaction, snapshot, statement, outcome, engine, times)


@dataclass(frozen=True, slots=True)
class _Merging:
    """A MERGE on the embedded engine."""

    transaction: Transaction
    snapshot: Snapshot
    statement: MergeStatement
    source: MergeSource
    names: MergeNames
    clauses: tuple[MergeClause, ...]
    directory: str

    @classmethod
    def plan(
        cls,
        transaction: Transaction,
        snapshot: Snapshot,
        statement: MergeStatement,
        source: MergeSource,
        directory: str,
    ) -> _Merging:
        """What the names mean, and what the table will look like.

        Raises:
            UnsupportedExpression: the embedded engine cannot compute an expression exactly.
        """
        configuration = merged_configuration(snapshot.configuration, source.schema, statement)
        names = MergeNames(
            snapshot.schema,
            source.schema,
            statement.target_alias,
            statement.source_alias,
            assigned=configuration.schema,
        )
        statement = statement.at_moment(names.scope("matched"), dt.datetime.now(dt.UTC))
        clauses = parse_clauses(statement.clauses, names, configuration, evolves=statement.evolves)
        names.condition(statement.on, "matched")
        if configuration is not snapshot.configuration:
            transaction.stage_configuration(configuration)
        return cls(transaction, snapshot, statement, source, names, clauses, directory)

    def run(self, times: MergeTimes) -> MergeOutcome:
        """Find the rows that change, and write what replaces them."""
        condition = split_condition(self.names.condition(self.statement.on, "matched"))
        matched = [each for each in self.clauses if each.text.kind == "matched"]
        wanted = ClauseChoice(matched).columns
        with closing(MergeJoin(condition, self.source, wanted, self.directory)) as join:
            matching: Predicate = Constant(False)
            if join.num_candidates:
                keys = map(key_predicate, condition.keys, join.keys)
                matching = matching_predicate(condition, keys)
            scope = MergeScope.of(self.snapshot, matching, self.clauses)
            target = MergeTarget(
                self.snapshot.store,
                self.transaction.configuration,
                scope.files,
                scope.may_match,
                scope.may_lack_source,
            )
            actions = find_row_actions(target, self.source, join, self.clauses)
        times.scanned = time.perf_counter()
        merged = self._write(target, actions)
        paths = target.files["path"]
        bitmaps = actions.bitmaps()
        selected = SelectedRows(
            files=target.files.take(index_column(bitmaps)),
            rows={paths[each].as_py(): rows for each, rows in bitmaps.items()},
            reads=scope.reads(paths[each].as_py() for each in actions.used_files),
        )
        return MergeOutcome(
            self.clauses,
            self.source.num_rows,
            merged.num_inserted_rows,
            Counter(actions.clauses.tolist()),
            selected,
            merged.files,
            merged.change_files,
            merged.high_water_marks,
            keeps_row_ids=True,
        )

    def _write(self, target: MergeTarget, actions: RowActions) -> MergedFiles:
        configuration = self.transaction.configuration
        location = self.transaction.store.location
        return write_merged(
            MergeWriting(
                target,
                self.source,
                self.names,
                self.clauses,
                actions,
                data=write_spec(configuration, location, constraints=self.statement.constraints),
                change_data=write_spec(configuration, location) if self._records(actions) else None,
            )
        )

    def _records(self, actions: RowActions) -> bool:
        """Whether change data files are needed: adds and removes say all there is to say of new
        rows, and of rows that leave by deletion vectors.
        """
        configuration = self.transaction.configuration
        if not configuration.change_data_feed_enabled or not len(actions):
            return False
        if not configuration.deletion_vectors_enabled:
            return True
        return any(
            self.clauses[index].text.action == "update"
            for index in np.unique(actions.clauses).tolist()
        )
