"""The calls of a table handle that keep a table in shape: optimize, vacuum, restore and health."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from dagster_delta.errors import InvalidArgument
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.committer import now_ms
from dagster_delta.table.snapshot import Snapshot
from dagster_delta.table.transaction import CommitResult

if TYPE_CHECKING:
    from dagster_delta.table.health import TableHealth
    from dagster_delta.table.optimize import OptimizeProgress, OptimizeResult
    from dagster_delta.table.vacuum import VacuumResult

__all__ = ["MaintenanceMethods"]


class MaintenanceMethods(ABC):
    """What maintains a table; part of `DeltaTable`."""

    _store: ObjectStore
    _snapshot: Snapshot | None

    @abstractmethod
    def _existing(self) -> Snapshot:
        """The latest version; raises TableNotFound where there is no table."""

    @abstractmethod
    def _known(self) -> Snapshot:
        """The version this handle knows; raises TableNotFound where there is no table."""

    @abstractmethod
    def _adopt(self, result: CommitResult) -> CommitResult:
        """Move the handle to the version that a commit made."""

    def optimize(
        self,
        where: str | None = None,
        *,
        target_file_size: int | None = None,
        min_file_size: int | None = None,
        max_deleted_share: float = 0.05,
        zorder_by: Sequence[str] = (),
        engine: Literal["arrow", "spark"] | None = None,
        max_commit_bytes: int | None = None,
        commit_info: Mapping[str, object] | None = None,
        on_progress: Callable[[OptimizeProgress], None] | None = None,
    ) -> OptimizeResult:
        """Write small files together, and drop rows that deletion vectors hide. No row changes.

        A large table is worked through in several commits, each of which stands by itself. A
        concurrent append disturbs none of them; where another writer changes a file meanwhile, the
        commit with that file is given up and the rest goes on.

        On a table with clustering columns the files that a clustering wrote stay as they are.

        Args:
            where: Spark SQL; only files that may hold rows for which it is true are looked at.
            target_file_size: bytes that new files should have; by default `delta.targetFileSize`,
                else 128 MiB.
            min_file_size: files below this number of bytes are small; by default three quarters of
                the target.
            max_deleted_share: files of which more than this share of rows (0 to 1) is deleted are
                written anew whatever their size; 0 purges every deleted row.
            zorder_by: columns to sort the rows of each partition by, along a Z-order curve, so that
                filters on any of them skip files. Every file is written anew then.
            engine: `arrow` (the default) works in this process, in bounded memory; `spark` on the
                executors of the active session.
            max_commit_bytes: bytes of the files that one commit replaces; 16 GiB by default.
            commit_info: recorded in each commitInfo beside ours.
            on_progress: called after each commit.

        Raises:
            InvalidArgument: an option makes no sense; a column to sort by has no statistics, or is
                a partition column.
            SchemaMismatch: a column is not in the schema.
            TableNotFound: there is no table.
            InvalidTable: a file does not hold the rows that the log counts in it.
            DataFileMissing, CorruptDeletionVector, StorageFailure: of a file.
            UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written.
            CommitStateUnknown: a commit may not have landed.
        """
        from dagster_delta.table.optimize import MAX_COMMIT_BYTES, OptimizeOptions, optimize_table

        options = OptimizeOptions(
            where=where,
            target_file_size_bytes=target_file_size,
            min_file_size_bytes=min_file_size,
            max_deleted_share=max_deleted_share,
            zorder_by=tuple(zorder_by),
            engine=engine,
            max_commit_bytes=max_commit_bytes or MAX_COMMIT_BYTES,
            commit_info=commit_info,
            on_progress=on_progress,
        )
        result = optimize_table(self._store, self._existing(), options, clock=now_ms)
        self._snapshot = result.snapshot
        return result

    def vacuum(
        self,
        retention_hours: float | None = None,
        *,
        dry_run: bool = True,
        enforce_retention: bool = True,
        record_in_log: bool = True,
        commit_info: Mapping[str, object] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> VacuumResult:
        """Delete files that neither the latest version nor a retained older one refers to.

        Only files below the table's root are looked at, and none whose name, or directory, begins
        with `_` or `.` (change data and partition directories excepted). Files that were modified
        within the retention stay: somebody may be about to commit them.

        Args:
            retention_hours: how long files are kept after they left the table; by default
                `delta.deletedFileRetentionDuration`, else a week.
            dry_run: only find the files.
            enforce_retention: refuse a retention shorter than the table's.
            record_in_log: commit `VACUUM START` and `VACUUM END`, as delta-spark does.
            commit_info: recorded in both commitInfos beside ours.
            on_progress: called with the number of files that are deleted, and are to be.

        Raises:
            InvalidArgument: the retention is too short.
            TableNotFound: there is no table.
            UnsupportedFeature, UnsupportedWriterVersion: the table may use files in a way that this
                library does not know; nothing was deleted.
            CommitConflict: the table's protocol or metadata changed meanwhile; nothing was deleted.
            StorageFailure: the store refused or failed.
        """
        from dagster_delta.table.vacuum import VacuumOptions, vacuum_table

        options = VacuumOptions(
            retention_hours, dry_run, enforce_retention, record_in_log, commit_info, on_progress
        )
        result = vacuum_table(self._store, self._existing(), options, clock=now_ms)
        self._snapshot = result.snapshot
        return result

    def restore(
        self,
        version: int | None = None,
        timestamp: datetime | str | int | None = None,
        *,
        commit_info: Mapping[str, object] | None = None,
    ) -> CommitResult:
        """Make the table what it was at an older version: rows, schema and properties.

        That is a new version, so nothing is lost and it can be undone alike. The protocol never
        goes down, and transaction ids stay known. Rows that somebody appends meanwhile count as
        later and stay. Where the table is the same already, nothing is committed and `skipped` is
        true.

        Args:
            version: the version to go back to.
            timestamp: instead: the latest version committed at or before it, spelled as for
                `snapshot`.
            commit_info: recorded in the commitInfo beside ours.

        Raises:
            InvalidArgument: neither or both are given.
            VersionNotFound: there is no such version.
            DataFileMissing: a file of that version is gone; nothing was changed.
            UnsupportedFeature: the table is append-only, or cannot be written.
            CommitConflict, CommitStateUnknown: the commit did not, or may not have, landed.
        """
        from dagster_delta.table.restore import restore_table

        if (version is None) == (timestamp is None):
            raise InvalidArgument("say what to restore by a version or by a timestamp")
        current = self._existing()
        target = Snapshot.load(self._store, version=version, timestamp=timestamp)
        return self._adopt(
            restore_table(
                self._store,
                current,
                target,
                by_timestamp=None if timestamp is None else str(timestamp),
                clock=now_ms,
                commit_info=commit_info,
            )
        )

    def health(self, *, small_file_size: int | None = None) -> TableHealth:
        """Facts about the shape of the table, from the log alone.

        Args:
            small_file_size: files below this number of bytes count as small; by default those that
                `optimize` would write together.

        Raises:
            TableNotFound, InvalidTable, StorageFailure.
        """
        from dagster_delta.table.health import table_health

        return table_health(self._known(), small_file_bytes=small_file_size)
