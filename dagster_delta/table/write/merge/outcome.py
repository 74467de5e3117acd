"""Result of a MERGE, from either engine, and its commit.

Spec: Add File and Remove File; Add CDC File; Deletion Vectors.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import RewriteResult
from dagster_delta.engines.statements.merge_clauses import MergeClause
from dagster_delta.engines.statements.merge_plan import MergedRows
from dagster_delta.protocol.actions import AddFile
from dagster_delta.table.read.row_selection import SelectedRows
from dagster_delta.table.write.merge.statement import MergeStatement
from dagster_delta.table.write.row_changes import RowChangeCounts, change_rows
from dagster_delta.table.write.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot


class MergeOutcome(msgspec.Struct, frozen=True):
    """The rows that a MERGE changes, and the files written to replace them."""

    clauses: Sequence[MergeClause]
    num_source_rows: int
    merged: MergedRows
    selected: SelectedRows
    """The rows of the table that are deleted or updated."""

    @property
    def changes_nothing(self) -> bool:
        """Whether the table is unchanged."""
        return not self.merged.num_inserted_rows and not any(self.merged.num_changed_rows.values())

    def count(self, kind: str, action: str) -> int:
        """Number of rows of the table that clauses of a kind change by an action."""
        return sum(
            self.merged.num_changed_rows.get(index, 0)
            for index, each in enumerate(self.clauses)
            if each.text.kind == kind and each.text.action == action
        )


class MergeTimes(msgspec.Struct):
    """When the phases of a MERGE began, in seconds of one clock."""

    started: float
    materialised: float | None = None
    """When the source was materialised."""
    scanned: float | None = None
    """When the action for each row was known."""

    def metrics(self) -> dict[str, int]:
        """The times by the names of commitInfo."""
        now = time.perf_counter()
        materialised = now if self.materialised is None else self.materialised
        scanned = now if self.scanned is None else self.scanned
        seconds = {
            "materializeSourceTimeMs": materialised - self.started,
            "scanTimeMs": scanned - materialised,
            "rewriteTimeMs": now - scanned,
            "executionTimeMs": now - self.started,
        }
        return {name: round(value * 1000) for name, value in seconds.items()}


def stage_merge(transaction: Transaction, outcome: MergeOutcome, engine: Engine) -> RowChangeCounts:
    """Stage the new files, and the removal of the old rows."""
    transaction.stage_written(outcome.merged.files)
    transaction.stage_change_files(outcome.merged.change_files)
    transaction.stage_high_water_marks(outcome.merged.high_water_marks)
    transaction.depend_on(outcome.selected.reads)
    transaction.declare_row_ids_kept()
    if not outcome.selected.files.num_rows:
        return RowChangeCounts()
    return change_rows(
        transaction,
        outcome.selected,
        engine,
        written=RewriteResult((), (), 0, outcome.merged.num_copied_rows),
        selects=_may_match if _changes_all_matches(outcome.clauses) else None,
    )


def _may_match(added: Sequence[AddFile]) -> bool:
    # Rows added by a concurrent commit that may match, by their statistics, are not compared with
    # the source again.
    return bool(added)


def _changes_all_matches(clauses: Sequence[MergeClause]) -> bool:
    """Whether every row that decides the result of the MERGE is also changed by it: a row of the
    source is not inserted if a row of the table matches, even if that row is unchanged.
    """
    if not any(clause.text.kind == "not_matched" for clause in clauses):
        return True
    return any(clause.text.kind == "matched" and clause.condition is None for clause in clauses)


def commit_merge(
    transaction: Transaction,
    snapshot: Snapshot,
    statement: MergeStatement,
    outcome: MergeOutcome,
    engine: Engine,
    times: MergeTimes,
) -> CommitResult:
    """Commit a MERGE; as in the reference implementation, one without changes makes no version."""
    with transaction.created_files:
        counts = stage_merge(transaction, outcome, engine)
    metrics = {**_metrics(outcome, counts), **times.metrics()}
    if outcome.changes_nothing and statement.record.is_empty:
        return CommitResult(snapshot.version, metrics, snapshot, skipped=True)
    return transaction.commit(
        "MERGE",
        parameters=statement.parameters,
        metrics=metrics,
        user_info=statement.commit_info,
    )


def _metrics(outcome: MergeOutcome, counts: RowChangeCounts) -> dict[str, int | str]:
    kinds = ("matched", "not_matched_by_source")
    updated = sum(outcome.count(kind, "update") for kind in kinds)
    files, change_files = outcome.merged.files, outcome.merged.change_files
    return {
        "numSourceRows": outcome.num_source_rows,
        "numTargetRowsInserted": outcome.merged.num_inserted_rows,
        "numTargetRowsUpdated": updated,
        "numTargetRowsDeleted": sum(outcome.count(kind, "delete") for kind in kinds),
        "numTargetRowsMatchedUpdated": outcome.count("matched", "update"),
        "numTargetRowsMatchedDeleted": outcome.count("matched", "delete"),
        "numTargetRowsNotMatchedBySourceUpdated": outcome.count("not_matched_by_source", "update"),
        "numTargetRowsNotMatchedBySourceDeleted": outcome.count("not_matched_by_source", "delete"),
        "numTargetRowsCopied": counts.num_copied_rows,
        "numOutputRows": outcome.merged.num_inserted_rows + updated + counts.num_copied_rows,
        "numTargetFilesAdded": counts.num_added_files + len(files),
        "numTargetBytesAdded": counts.num_added_bytes + sum(each.size_bytes for each in files),
        "numTargetFilesRemoved": counts.num_removed_files,
        "numTargetBytesRemoved": counts.num_removed_bytes,
        "numTargetChangeFilesAdded": len(change_files),
        "numTargetChangeFileBytes": sum(each.size_bytes for each in change_files),
        "numTargetDeletionVectorsAdded": counts.num_vectors_added,
        "numTargetDeletionVectorsUpdated": counts.num_vectors_updated,
        "numTargetDeletionVectorsRemoved": counts.num_vectors_removed,
    }
