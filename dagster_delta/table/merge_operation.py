"""MERGE as one commit: pruned by the log, joined on the keys, written only where rows change.

Spec: Add File and Remove File; Deletion Vectors; Add CDC File; Per-file Statistics.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from dagster_delta.engines.arrow_engine import ArrowEngine
from dagster_delta.engines.engine import Constraint
from dagster_delta.engines.row_changes.merge_clauses import (
    ClauseKind,
    ClauseText,
    MergeClause,
    MergeNames,
    parse_clauses,
)
from dagster_delta.engines.row_changes.merge_condition import (
    MergeCondition,
    key_predicate,
    split_condition,
    target_predicate,
)
from dagster_delta.engines.row_changes.merge_join import ClauseChoice, MergeJoin
from dagster_delta.engines.row_changes.merge_matching import (
    MergeTarget,
    RowActions,
    find_row_actions,
)
from dagster_delta.engines.row_changes.merge_source import MergeSource
from dagster_delta.engines.row_changes.merge_writing import MergedFiles, MergeWriting, write_merged
from dagster_delta.protocol.arrow_columns import index_column
from dagster_delta.protocol.conflict_checker import ReadScope
from dagster_delta.protocol.file_skipping import skip_files
from dagster_delta.protocol.log_replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.predicates import And, Constant, IsTrue, Or, Predicate
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.row_changes import RowChangeCounts, change_rows, refuse_append_only
from dagster_delta.table.row_selection import SelectedRows, may_hold_matches
from dagster_delta.table.transaction import ApplicationProgress, CommitResult, Transaction
from dagster_delta.table.write_planning import write_spec

if TYPE_CHECKING:
    from dagster_delta.engines.engine import Clock
    from dagster_delta.table.snapshot import Snapshot

__all__ = ["MergeStatement", "merge_rows"]


@dataclass(frozen=True, slots=True)
class MergeStatement:
    """What a caller asks for."""

    source: object
    """Rows, in any form that an append takes but a Spark frame."""
    on: str
    """Spark SQL over both sides."""
    target_alias: str
    source_alias: str
    clauses: tuple[ClauseText, ...]
    commit_info: Mapping[str, object] | None = None
    """Recorded in the commitInfo."""
    idempotency: tuple[str, int] | None = None
    """Application id and version under which the merge is done at most once."""
    check: str | None = None
    """Spark SQL that every new row has to satisfy."""
    progress: tuple[ApplicationProgress, ...] = ()
    """Applications that get on with the merge, and only from where they stood."""

    @property
    def constraints(self) -> list[Constraint]:
        """What new rows have to satisfy besides the constraints of the table."""
        return [] if self.check is None else [Constraint("check", self.check, is_partition=True)]

    def is_done(self, snapshot: Snapshot) -> bool:
        """Whether the table says that it was merged before."""
        if self.idempotency is None:
            return False
        app_id, version = self.idempotency
        committed = snapshot.transaction_version(app_id)
        return committed is not None and committed >= version

    def record(self, transaction: Transaction) -> None:
        """Make what is to be remembered of it part of the commit.

        Raises:
            ConcurrentTransaction: an application is not where it should go on from.
        """
        if self.idempotency is not None:
            transaction.record_application(*self.idempotency)
        for each in self.progress:
            transaction.advance_application(each)


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
    started = time.perf_counter()
    transaction = Transaction(store, snapshot, clock=clock)
    if statement.is_done(snapshot):
        return CommitResult(snapshot.version, {}, snapshot, skipped=True)
    statement.record(transaction)
    if any(each.action != "insert" for each in statement.clauses):
        refuse_append_only(transaction, "this MERGE")
    with tempfile.TemporaryDirectory(prefix="merge-") as directory:
        source = MergeSource(statement.source, directory)
        names = MergeNames(
            snapshot.schema, source.schema, statement.target_alias, statement.source_alias
        )
        clauses = parse_clauses(statement.clauses, names, snapshot.configuration)
        condition = split_condition(names.condition(statement.on, "matched"))
        materialised = time.perf_counter()
        wanted = ClauseChoice([each for each in clauses if each.text.kind == "matched"]).columns
        with closing(MergeJoin(condition, source, wanted, directory)) as join:
            scope = _Scope.of(snapshot, condition, join, clauses)
            actions = find_row_actions(scope.target, source, join, clauses)
        found = _Found(transaction, snapshot, scope, source, names, clauses, actions)
        times = {
            "materializeSourceTimeMs": materialised - started,
            "scanTimeMs": time.perf_counter() - materialised,
        }
        return found.commit(statement, started, times)


@dataclass(frozen=True, slots=True)
class _Scope:
    """The part of the table that a MERGE depends on."""

    target: MergeTarget
    predicate: Predicate
    """True of every row that may match, or change otherwise."""

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        condition: MergeCondition,
        join: MergeJoin,
        clauses: Sequence[MergeClause],
    ) -> _Scope:
        matching = _matching_predicate(condition, join)
        lacking = Or(
            tuple(
                Constant(True)
                if each.condition is None
                else IsTrue(target_predicate(each.condition))
                for each in clauses
                if each.text.kind == "not_matched_by_source"
            )
        )
        files = snapshot.live_files(LIVE_FILE_SCHEMA.names)
        configuration = snapshot.configuration
        may_match, may_lack = (
            skip_files(
                each, configuration, files["partition_values"], snapshot.statistics
            ).may_match
            for each in (matching, lacking)
        )
        kept = pc.or_(may_match, may_lack)
        target = MergeTarget(
            snapshot.store,
            configuration,
            files.filter(kept),
            may_match.filter(kept),
            may_lack.filter(kept),
        )
        return cls(target, Or((matching, lacking)))


def _matching_predicate(condition: MergeCondition, join: MergeJoin) -> Predicate:
    """What is true of every row of the table that may match a row of the source."""
    if not join.num_candidates:
        return Constant(False)
    parts = [target_predicate(each) for each in condition.target_only]
    parts += [
        key_predicate(key, values) for key, values in zip(condition.keys, join.keys, strict=True)
    ]
    return And(tuple(parts))


@dataclass(slots=True)
class _Found:
    """A MERGE whose effect on every row is known."""

    transaction: Transaction
    snapshot: Snapshot
    scope: _Scope
    source: MergeSource
    names: MergeNames
    clauses: tuple[MergeClause, ...]
    actions: RowActions
    _merged: MergedFiles | None = field(default=None, init=False)

    def commit(
        self, statement: MergeStatement, started: float, times: Mapping[str, float]
    ) -> CommitResult:
        rewriting = time.perf_counter()
        try:
            counts = self._stage(statement)
        except BaseException:
            self.transaction.abandon()
            raise
        finished = time.perf_counter()
        seconds = {
            **times,
            "rewriteTimeMs": finished - rewriting,
            "executionTimeMs": finished - started,
        }
        metrics = self._metrics(counts)
        metrics |= {name: round(value * 1000) for name, value in seconds.items()}
        if not len(self.actions) and not self._inserted and not statement.progress:
            # As in the reference implementation, what changes nothing makes no version.
            return CommitResult(self.snapshot.version, metrics, self.snapshot, skipped=True)
        return self.transaction.commit(
            "MERGE",
            parameters=_parameters(statement),
            metrics=metrics,
            user_info=statement.commit_info,
        )

    @property
    def _inserted(self) -> int:
        return 0 if self._merged is None else self._merged.num_inserted_rows

    def _stage(self, statement: MergeStatement) -> RowChangeCounts:
        transaction, target = self.transaction, self.scope.target
        configuration = transaction.configuration
        location = transaction.store.location
        merged = write_merged(
            MergeWriting(
                target,
                self.source,
                self.names,
                self.clauses,
                self.actions,
                data=write_spec(configuration, location, constraints=statement.constraints),
                change_data=write_spec(configuration, location) if self._records else None,
            )
        )
        self._merged = merged
        transaction.stage_written(merged.files)
        transaction.declare_row_ids_kept()
        transaction.stage_change_files(merged.change_files)
        transaction.stage_high_water_marks(merged.high_water_marks)
        reads = self._reads()
        transaction.depend_on(reads)
        if not len(self.actions):
            return RowChangeCounts()
        bitmaps = self.actions.bitmaps()
        selected = SelectedRows(
            files=target.files.take(index_column(bitmaps)),
            rows={target.files["path"][each].as_py(): rows for each, rows in bitmaps.items()},
            reads=reads,
        )
        return change_rows(transaction, selected, ArrowEngine(), records_changes=False)

    @property
    def _records(self) -> bool:
        """Whether change data files are needed: adds and removes say all there is to say of new
        rows, and of rows that leave by deletion vectors.
        """
        configuration = self.transaction.configuration
        if not configuration.change_data_feed_enabled or not len(self.actions):
            return False
        if not configuration.deletion_vectors_enabled:
            return True
        return any(
            self.clauses[index].text.action == "update"
            for index in np.unique(self.actions.clauses).tolist()
        )

    def _reads(self) -> ReadScope:
        paths = self.scope.target.files["path"]
        return ReadScope(
            may_hold=may_hold_matches(self.scope.predicate, self.transaction.configuration),
            paths=frozenset(paths[each].as_py() for each in self.actions.used_files),
        )

    def _metrics(self, counts: RowChangeCounts) -> dict[str, int | str]:
        changed = {
            (kind, action): self._count(kind, action)
            for kind in ("matched", "not_matched_by_source")
            for action in ("update", "delete")
        }
        updated = sum(count for (_, action), count in changed.items() if action == "update")
        merged = () if self._merged is None else self._merged.files
        change_files = () if self._merged is None else self._merged.change_files
        return {
            "numSourceRows": self.source.num_rows,
            "numTargetRowsInserted": self._inserted,
            "numTargetRowsUpdated": updated,
            "numTargetRowsDeleted": sum(changed.values()) - updated,
            "numTargetRowsMatchedUpdated": changed["matched", "update"],
            "numTargetRowsMatchedDeleted": changed["matched", "delete"],
            "numTargetRowsNotMatchedBySourceUpdated": changed["not_matched_by_source", "update"],
            "numTargetRowsNotMatchedBySourceDeleted": changed["not_matched_by_source", "delete"],
            "numTargetRowsCopied": counts.num_copied_rows,
            "numOutputRows": self._inserted + updated + counts.num_copied_rows,
            "numTargetFilesAdded": counts.num_added_files + len(merged),
            "numTargetBytesAdded": counts.num_added_bytes + sum(each.size_bytes for each in merged),
            "numTargetFilesRemoved": counts.num_removed_files,
            "numTargetBytesRemoved": counts.num_removed_bytes,
            "numTargetChangeFilesAdded": len(change_files),
            "numTargetChangeFileBytes": sum(each.size_bytes for each in change_files),
            "numTargetDeletionVectorsAdded": counts.num_vectors_added,
            "numTargetDeletionVectorsUpdated": counts.num_vectors_updated,
            "numTargetDeletionVectorsRemoved": counts.num_vectors_removed,
        }

    def _count(self, kind: str, action: str) -> int:
        indexes = [
            index
            for index, each in enumerate(self.clauses)
            if each.text.kind == kind and each.text.action == action
        ]
        return int(np.isin(self.actions.clauses, indexes).sum())


def _parameters(statement: MergeStatement) -> dict[str, object]:
    def predicates(kind: ClauseKind) -> list[dict[str, str]]:
        return [
            {**({"predicate": each.condition} if each.condition else {}), "actionType": each.action}
            for each in statement.clauses
            if each.kind == kind
        ]

    return {
        "predicate": [statement.on],
        "matchedPredicates": predicates("matched"),
        "notMatchedPredicates": predicates("not_matched"),
        "notMatchedBySourcePredicates": predicates("not_matched_by_source"),
    }
