"""Changing a column to any type while the table is in use: the calls of `DeltaTable`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from dagster_delta.clock import now_ms
from dagster_delta.table.table_handle import TableHandle
from dagster_delta.table.write.transaction import CommitResult

if TYPE_CHECKING:
    from dagster_delta.evolution.column_change.plan import ColumnChangePlan
    from dagster_delta.protocol.features.column_change import OnError
    from dagster_delta.protocol.schema import DataType
    from dagster_delta.table.schema.column_change import ColumnChangeJob
    from dagster_delta.table.schema.column_change_progress import (
        ColumnChangeProgress,
        ColumnChangeState,
    )

__all__ = ["ColumnChangeMethods"]


class ColumnChangeMethods(TableHandle):
    """What changes the type of a column online; part of `DeltaTable`."""

    def plan_column_change(
        self,
        column: str | Sequence[str],
        new_type: str | DataType,
        *,
        cast: str | None = None,
        on_error: OnError = "abort",
        nullable: bool | None = None,
        position: str | None = None,
        enable_features: bool = False,
        batch_bytes: int | None = None,
    ) -> ColumnChangePlan:
        """The plan of `change_column` and its cost; nothing is written. Takes its arguments and
        raises its errors, but tells switches that are off as `missing_switches` of the plan.
        """
        from dagster_delta.evolution.column_change.plan import ColumnChangeRequest
        from dagster_delta.table.schema.column_change import plan_for

        request = ColumnChangeRequest(
            column,
            new_type,
            cast,
            on_error,
            nullable,
            position,
            enable_features,
            self._allow_column_changes,
        )
        return plan_for(self._existing(), request, batch_bytes=batch_bytes, dry_run=True)

    def change_column(
        self,
        column: str | Sequence[str],
        new_type: str | DataType,
        *,
        cast: str | None = None,
        on_error: OnError = "abort",
        nullable: bool | None = None,
        position: str | None = None,
        enable_features: bool = False,
        batch_bytes: int | None = None,
        engine: str | None = None,
        commit_info: Mapping[str, object] | None = None,
        on_progress: Callable[[ColumnChangeProgress], None] | None = None,
    ) -> CommitResult:
        """Change a column to any atomic type online, while others read and write the table.

        Every data file is written again with both columns, batch by batch; one last commit puts the
        new one in the old one's place. Files that others write meanwhile are caught up with first.
        If the process ends in between, `resume_column_change` goes on from the log.

        Args:
            column: path of the column, or of a struct field, `element` or `value` in it.
            new_type: as SQL spells it (`INT`, `DECIMAL(10,2)`, `DATE`), or a type of the schema.
            cast: Spark SQL over the row for the new value of a top-level column, of what the
                embedded engine computes, as every writer fills the new column meanwhile; with it
                the type may stay as it is. By default the value is converted as CAST does in a
                session in UTC.
            on_error: what a value does that cannot be converted: `abort` the change, which leaves
                the table as it was, or become `null`.
            nullable: whether the changed column takes nulls; None as it does now.
            position: `FIRST`, or the name of the column to stand behind; None where it is.
            enable_features: whether the table is given what it lacks for this: the switch
                `dagsterDelta.enableColumnChange`, column mapping, metadata domains.
            batch_bytes: size of the data files that are written again in one commit; 1 GiB.
            engine: `arrow` in this process (the default), or `spark` on the executors of the active
                session.
            commit_info: recorded in every commit beside ours.
            on_progress: told of every commit.

        Returns:
            What the last commit did. Its metrics count the whole run: `numCopiedRows` rows
            converted, `numLateRows` of them in files that others wrote meanwhile without the new
            column, `numNulledValues`, `numRemovedFiles` and `numRemovedBytes` of the files that
            were rewritten, `numAddedFiles` and `numAddedBytes` of those in their place,
            `numBatches`, `numRetries` attempts to commit that other writers were faster than, and
            `longestRetryMs`, the longest time from the first attempt at a commit to its success.

        Raises:
            ColumnChangeFailed: values cannot be converted, or rows break a constraint under the new
                type; the message counts them, with examples and their files. The change was
                cancelled.
            SchemaChangeRefused: something depends on the column in a way that cannot be carried
                along, another change is in progress, or the table lacks what the change needs.
            SchemaMismatch, InvalidArgument: the arguments make no sense on this table.
            UnsupportedExpression: values cannot be converted exactly as Spark converts them.
            CommitConflict: others change the table faster than its files can be written again.
        """
        from dagster_delta.evolution.column_change.plan import ColumnChangeRequest
        from dagster_delta.table.schema.column_change import begin_column_change

        request = ColumnChangeRequest(
            column,
            new_type,
            cast,
            on_error,
            nullable,
            position,
            enable_features,
            self._allow_column_changes,
        )
        # Made first, so that arguments without sense are refused before anything is committed.
        job = self._job(engine, batch_bytes, None, commit_info, on_progress)
        begun = begin_column_change(
            self._store, self._existing(), request, clock=now_ms, commit_info=commit_info
        )
        return self._adopt(job.run(self._adopt(begun).snapshot))

    def column_change(self) -> ColumnChangeState | None:
        """The column change in progress at the latest version, or None.

        Raises:
            TableNotFound: there is no table yet.
            InvalidTable: the mark of the change is damaged.
        """
        from dagster_delta.table.schema.column_change_progress import state_of

        return state_of(self._existing())

    def resume_column_change(
        self,
        *,
        batch_bytes: int | None = None,
        engine: str | None = None,
        worker: tuple[int, int] | None = None,
        commit_info: Mapping[str, object] | None = None,
        on_progress: Callable[[ColumnChangeProgress], None] | None = None,
    ) -> CommitResult:
        """Continue the column change in progress, to its end.

        Args:
            batch_bytes: as for `change_column`.
            engine: as for `change_column`.
            worker: number of this worker and how many there are, as in (0, 4): each takes its own
                share of the files, and whoever finds nothing left makes the change public. For the
                others the result is what they found, and `skipped` is true; so it is for one that
                comes when the change is over.
            commit_info: as for `change_column`.
            on_progress: as for `change_column`.

        Returns:
            As `change_column`; the metrics count what this run and worker did.

        Raises:
            InvalidArgument: no change is in progress, and there is one worker.
            ColumnChangeFailed, SchemaChangeRefused, CommitConflict: as for `change_column`.
        """
        job = self._job(engine, batch_bytes, worker, commit_info, on_progress)
        return self._adopt(job.run(self._existing()))

    def _job(
        self,
        engine: str | None,
        batch_bytes: int | None,
        worker: tuple[int, int] | None,
        commit_info: Mapping[str, object] | None,
        on_progress: Callable[[ColumnChangeProgress], None] | None,
    ) -> ColumnChangeJob:
        from dagster_delta.engines import engine_for
        from dagster_delta.table.schema.column_change import BATCH_BYTES, ColumnChangeJob

        return ColumnChangeJob(
            self._store,
            engine_for(None, engine),
            clock=now_ms,
            batch_bytes=BATCH_BYTES if batch_bytes is None else batch_bytes,
            worker=(0, 1) if worker is None else worker,
            commit_info=commit_info,
            on_progress=on_progress,
        )

    def cancel_column_change(
        self, *, commit_info: Mapping[str, object] | None = None
    ) -> CommitResult:
        """Cancel the column change in progress: the column stays as it was.

        Converted values stay in the files, where no reader sees them, until the files are written
        again.

        Raises:
            InvalidArgument: no change is in progress.
            CommitConflict: another writer changed the metadata at the same time.
        """
        job = self._job(None, None, None, commit_info, None)
        return self._adopt(job.cancel(self._existing()))
