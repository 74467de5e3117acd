"""Calls of `DeltaTable` that change a column to any type while the table is in use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from dagster_delta.clock import now_ms
from dagster_delta.table.table_handle import TableHandle
from dagster_delta.table.transaction.commit_result import CommitResult

if TYPE_CHECKING:
    from dagster_delta.evolution.column_change.plan import ColumnChangePlan
    from dagster_delta.protocol.features.column_change import OnError
    from dagster_delta.protocol.schema import DataType
    from dagster_delta.table.operations.column_change import ColumnChangeJob
    from dagster_delta.table.operations.column_change_progress import (
        ColumnChangeProgress,
        ColumnChangeState,
    )


class ColumnChangeMethods(TableHandle):
    """Online changes of the type of a column; part of `DeltaTable`."""

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
        """The plan of `change_column` and its cost; nothing is written. It takes the same arguments
        and raises the same errors, but returns missing switches as `missing_switches` of the plan.
        """
        from dagster_delta.evolution.column_change.plan import ColumnChangeRequest
        from dagster_delta.table.operations.column_change import plan_for

        asked = (column, new_type, cast, on_error, nullable, position, enable_features)
        request = ColumnChangeRequest(*asked, self._allow_column_changes)
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

        Every data file is rewritten with both columns, batch by batch; one last commit replaces the
        old column by the new one. Before it, files that other writers added during the change are
        rewritten too. If the process ends in between, `resume_column_change` continues from the
        log.

        Args:
            column: path of the column, or of a struct field, `element` or `value` in it.
            new_type: as SQL spells it (`INT`, `DECIMAL(10,2)`, `DATE`), or a type of the schema.
            cast: Spark SQL over the row for the new value of a top-level column. It must be SQL
                that the embedded engine supports, because every writer computes the new column
                during the change. With `cast`, the type may stay the same. By default the value is
                converted as CAST does in a session in UTC.
            on_error: for a value that cannot be converted: `abort` cancels the change, which leaves
                the table unchanged; `null` stores a null.
            nullable: whether the changed column takes nulls; None keeps the present setting.
            position: `FIRST`, or the name of the column to place it after; None keeps the position.
            enable_features: whether to enable what the table lacks for this: the switch
                `dagsterDelta.enableColumnChange`, column mapping, metadata domains.
            batch_bytes: size of the data files that are rewritten in one commit; 1 GiB.
            engine: `arrow` in this process (the default), or `spark` on the executors of the active
                session.
            commit_info: recorded in every commit beside this library's own fields.
            on_progress: called for every commit.

        Returns:
            What the last commit did. Its metrics count the whole run: `numCopiedRows` rows
            converted, `numLateRows` of them in files that other writers added without the new
            column, `numNulledValues`, `numRemovedFiles` and `numRemovedBytes` of the files that
            were rewritten, `numAddedFiles` and `numAddedBytes` of those that replace them,
            `numBatches`, `numRetries` attempts to commit that lost to a concurrent commit, and
            `longestRetryMs`, the longest time from the first attempt at a commit to its success.

        Raises:
            ColumnChangeFailed: values cannot be converted, or rows break a constraint under the new
                type; the message counts them, with examples and their files. The change was
                cancelled.
            SchemaChangeRefused: something depends on the column in a way that the change cannot
                preserve, another change is in progress, or the table lacks what the change needs.
            SchemaMismatch, InvalidArgument: the arguments are invalid for this table.
            UnsupportedExpression: values cannot be converted exactly as Spark converts them.
            CommitConflict: others change the table faster than its files can be rewritten.
        """
        from dagster_delta.evolution.column_change.plan import ColumnChangeRequest
        from dagster_delta.table.operations.column_change import begin_column_change

        asked = (column, new_type, cast, on_error, nullable, position, enable_features)
        request = ColumnChangeRequest(*asked, self._allow_column_changes)
        # This comes first, so that invalid arguments are refused before anything is committed.
        job = self._job(engine, batch_bytes, commit_info, on_progress)
        begun = begin_column_change(
            self._existing(), request, clock=now_ms, commit_info=commit_info
        )
        return self._adopt(job.run(self._adopt(begun).snapshot))

    def column_change(self) -> ColumnChangeState | None:
        """The column change in progress at the latest version, or None.

        Raises:
            TableNotFound: the table does not exist yet.
            InvalidTable: the record of the change is damaged.
        """
        from dagster_delta.table.operations.column_change_progress import state_of

        return state_of(self._existing())

    def resume_column_change(
        self,
        *,
        batch_bytes: int | None = None,
        engine: str | None = None,
        commit_info: Mapping[str, object] | None = None,
        on_progress: Callable[[ColumnChangeProgress], None] | None = None,
    ) -> CommitResult:
        """Continue the column change in progress until it is complete.

        Args:
            batch_bytes: as for `change_column`.
            engine: as for `change_column`.
            commit_info: as for `change_column`.
            on_progress: as for `change_column`.

        Returns:
            As for `change_column`; the metrics count what this run did. `skipped` is true where
            another process completed the change first.

        Raises:
            InvalidArgument: no change is in progress.
            ColumnChangeFailed, SchemaChangeRefused, CommitConflict: as for `change_column`.
        """
        job = self._job(engine, batch_bytes, commit_info, on_progress)
        return self._adopt(job.run(self._existing()))

    def _job(
        self,
        engine: str | None,
        batch_bytes: int | None,
        commit_info: Mapping[str, object] | None,
        on_progress: Callable[[ColumnChangeProgress], None] | None,
    ) -> ColumnChangeJob:
        from dagster_delta.engines import engine_for
        from dagster_delta.table.operations.column_change import ColumnChangeJob

        return ColumnChangeJob(
            self._store,
            engine_for(None, engine),
            clock=now_ms,
            batch_bytes=batch_bytes,
            commit_info=commit_info,
            on_progress=on_progress,
        )

    def cancel_column_change(
        self, *, commit_info: Mapping[str, object] | None = None
    ) -> CommitResult:
        """Cancel the column change in progress: the column stays unchanged.

        Converted values stay in the files, invisible to readers, until the files are rewritten.

        Raises:
            InvalidArgument: no change is in progress.
            CommitConflict: a concurrent commit changed the metadata.
        """
        job = self._job(None, None, commit_info, None)
        return self._adopt(job.cancel(self._existing()))
