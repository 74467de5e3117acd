"""Calls of a table handle that maintain a table, copy it or report its condition."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from dagster_delta.clock import now_ms
from dagster_delta.engines import engine_for
from dagster_delta.errors import InvalidArgument
from dagster_delta.storage import open_store
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table import operations
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.table_handle import TableHandle
from dagster_delta.table.transaction.commit_result import CommitResult

if TYPE_CHECKING:
    from dagster_delta.table.log_upkeep.cleanup import LogCleanupResult
    from dagster_delta.table.operations.fsck import MissingFiles
    from dagster_delta.table.operations.health import TableHealth
    from dagster_delta.table.operations.reorg import Purge
    from dagster_delta.table.operations.restore import RestorePlan
    from dagster_delta.table.operations.rewrite_files import OptimizeProgress, OptimizeResult
    from dagster_delta.table.operations.vacuum import VacuumResult
    from dagster_delta.table.operations.vacuum_plan import UnreferencedFiles


class MaintenanceMethods(TableHandle):
    """Maintenance of a table; part of `DeltaTable`."""

    def optimize(
        self,
        where: str | None = None,
        *,
        target_file_size: int | None = None,
        min_file_size: int | None = None,
        max_deleted_share: float = 0.05,
        zorder_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        full: bool = False,
        engine: Literal["arrow", "spark"] | None = None,
        memory_limit: int | str | None = None,
        max_commit_bytes: int | None = None,
        dry_run: bool = False,
        commit_info: Mapping[str, object] | None = None,
        on_progress: Callable[[OptimizeProgress], None] | None = None,
    ) -> OptimizeResult:
        """Compact small files, and purge rows that deletion vectors mark as deleted. No row
        changes.

        A large table is processed in several independent commits. A concurrent append conflicts
        with none of them, nor does one that hides rows by deletion vectors. If it changes a file in
        another way, the files that were to be compacted with it are left unchanged.

        On a table with clustering columns, files that are new since the last call are clustered
        along a Hilbert curve through these columns, together with rows that were clustered in small
        amounts before; larger amounts are left unchanged.

        Args:
            where: Spark SQL; only files that may hold rows that satisfy it are considered.
            target_file_size: bytes that new files should have; by default `delta.targetFileSize`,
                else 128 MiB.
            min_file_size: files below this number of bytes are small; by default three quarters of
                the target.
            max_deleted_share: files with more than this share of deleted rows (0 to 1) are
                rewritten at any size; 0 purges every deleted row.
            zorder_by: columns to sort the rows of each partition by, along a Z-order curve, so that
                filters on any of them skip files. Every file is then rewritten.
            sort_by: columns to sort the rows of each file by, nulls last; files of a partition
                divide the values of the first one among them. Every file is then rewritten.
            full: on a table with clustering columns, whether files that were clustered by other
                columns than the present ones are clustered again too.
            engine: `arrow` (the default) works in this process, in bounded memory; `spark` on the
                executors of the active session.
            memory_limit: bytes, or a size such as `2GB` (at least 64 MiB), for the rows that
                `arrow` holds at once; more are sorted by way of temporary files. By default
                `DAGSTER_DELTA_MEMORY_LIMIT`, or about 0.5 GB, and on small machines less.
            max_commit_bytes: bytes of the files that one commit replaces; 16 GiB by default.
            dry_run: only count the files that would be rewritten, and their bytes.
            commit_info: recorded in each commitInfo beside this library's own fields.
            on_progress: called after each commit.

        Raises:
            InvalidArgument: an option is invalid; a column to sort by has no statistics, or is a
                partition column.
            SchemaMismatch: a column is not in the schema.
            TableNotFound: the table does not exist.
            InvalidTable: a file does not hold the rows that the log counts in it.
            DataFileMissing, CorruptDeletionVector, StorageFailure: for a file.
            UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written.
            CommitStateUnknown: a commit may have failed.
        """
        options = operations.optimize.OptimizeOptions(
            where=where,
            target_file_size_bytes=target_file_size,
            min_file_size_bytes=min_file_size,
            max_deleted_share=max_deleted_share,
            zorder_by=zorder_by,
            sort_by=sort_by,
            full=full,
            engine=engine_for(None, engine, memory_limit=memory_limit),
            max_commit_bytes=max_commit_bytes or operations.rewrite_files.MAX_COMMIT_BYTES,
            dry_run=dry_run,
            commit_info=commit_info,
            on_progress=on_progress,
        )
        result = operations.optimize.optimize_table(self._existing(), options, clock=now_ms)
        self._snapshot = result.snapshot
        return result

    def reorg(
        self,
        where: str | None = None,
        *,
        purge: Collection[Purge] = ("deletion_vectors", "dropped_columns", "widened_types"),
        target_file_size: int | None = None,
        engine: Literal["arrow", "spark"] | None = None,
        dry_run: bool = False,
        commit_info: Mapping[str, object] | None = None,
        on_progress: Callable[[OptimizeProgress], None] | None = None,
    ) -> OptimizeResult:
        """Rewrite the files that hold deleted rows, dropped columns, or values of a type from
        before a widening. No row changes, and other files stay.

        Older versions keep their files until VACUUM deletes them: only then is what was purged
        gone from storage.

        Args:
            where: Spark SQL; only files that may hold rows that satisfy it are considered.
            purge: what to remove: `deletion_vectors`, `dropped_columns` and `widened_types`; the
                last two read the footer of every file.
            target_file_size: as for `optimize`.
            engine: as for `optimize`.
            dry_run: as for `optimize`.
            commit_info: recorded in each commitInfo beside this library's own fields.
            on_progress: called after each commit.

        Raises:
            InvalidArgument: an option is invalid.
            TableNotFound, SchemaMismatch, InvalidTable, DataFileMissing, CorruptDeletionVector,
            StorageFailure, UnsupportedFeature, ConditionalPutUnsupported, CommitStateUnknown: as
            for `optimize`.
        """
        options = operations.reorg.ReorgOptions(
            where=where,
            purge=purge,
            target_file_size_bytes=target_file_size,
            engine=engine_for(None, engine),
            dry_run=dry_run,
            commit_info=commit_info,
            on_progress=on_progress,
        )
        result = operations.reorg.reorganize_table(self._existing(), options, clock=now_ms)
        self._snapshot = result.snapshot
        return result

    def vacuum(
        self,
        retention_hours: float | None = None,
        *,
        dry_run: bool = True,
        enforce_retention: bool = True,
        record_in_log: bool = True,
        lite: bool = False,
        keep_versions: Sequence[int] = (),
        commit_info: Mapping[str, object] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> VacuumResult:
        """Delete files that neither the latest version nor a retained older version refers to.

        Only files below the table's root are considered, and none whose name, or directory, begins
        with `_` or `.` (except change data and partition directories). Files that were modified
        within the retention are kept: a writer may be about to commit them.

        VACUUM LITE lists no directory: it deletes the files that commits since the last VACUUM have
        removed, and leaves those that no commit refers to. `unreferenced_files` reports these.

        Args:
            retention_hours: how long files are kept after they were removed from the table; by
                default `delta.deletedFileRetentionDuration`, else a week.
            dry_run: only find the files.
            enforce_retention: refuse a retention shorter than the table's.
            record_in_log: commit `VACUUM START` and `VACUUM END`, as delta-spark does.
            lite: whether to read the files from the log. It needs every commit since the last
                VACUUM, or since version 0 if there was none.
            keep_versions: versions whose files are kept, whatever the retention.
            commit_info: recorded in both commitInfos beside this library's own fields.
            on_progress: called with the number of files deleted so far, and of all to delete.

        Raises:
            InvalidArgument: the retention is too short; the log no longer has a commit that VACUUM
                LITE needs.
            TableNotFound: the table does not exist.
            VersionNotFound: a version to keep does not exist.
            UnsupportedFeature, UnsupportedWriterVersion: the table may use files in a way that this
                library does not know; nothing was deleted.
            CommitConflict: a concurrent commit changed the table's protocol or metadata; nothing
                was deleted.
            StorageFailure: the store refused or failed.
        """
        options = operations.vacuum.VacuumOptions(
            retention_hours,
            dry_run,
            enforce_retention,
            record_in_log,
            commit_info,
            on_progress,
            lite,
            tuple(keep_versions),
        )
        result = operations.vacuum.vacuum_table(
            self._store, self._existing(), options, clock=now_ms
        )
        self._snapshot = result.snapshot
        return result

    def unreferenced_files(self) -> UnreferencedFiles:
        """The files under the root that no version in the log refers to.

        Nothing is deleted: `vacuum` deletes those with ordinary names once they are older than the
        retention, and leaves hidden ones, which may belong to other programs.

        Raises:
            TableNotFound, InvalidTable, StorageFailure.
        """
        return operations.vacuum_plan.find_unreferenced_files(self._existing())

    def generate_symlink_manifests(self) -> tuple[str, ...]:
        """Write the symlink manifests of the latest version, by which Presto, Athena and Hive read
        it, and return their paths, relative to the root.

        On a table with `delta.compatibility.symlinkFormatManifest.enabled`, each commit writes
        those of the partitions that it changes.

        Raises:
            TableNotFound, InvalidTable, StorageFailure.
            UnsupportedFeature: the table has column mapping, or files have deletion vectors.
        """
        from dagster_delta.table.log_upkeep.symlink_manifests import generate_manifests

        return generate_manifests(self._existing())

    def fsck(
        self, *, dry_run: bool = True, commit_info: Mapping[str, object] | None = None
    ) -> MissingFiles:
        """Find the live files that storage no longer has, and remove them from the table, so that
        the rest can be read again.

        Their rows are lost: try first to copy the files back from a backup, or `restore`. A file
        whose deletion vector is missing is reported and stays, as its deleted rows would come back.

        Args:
            dry_run: only find the files.
            commit_info: recorded in the commitInfo beside this library's own fields.

        Raises:
            TableNotFound: the table does not exist.
            UnsupportedFeature, ConditionalPutUnsupported: the table is append-only, or cannot be
                written.
            CommitConflict, CommitStateUnknown, StorageFailure: the commit failed, or may have
                failed.
        """
        snapshot = self._existing()
        result = operations.fsck.repair_table(
            self._store, snapshot, dry_run=dry_run, clock=now_ms, commit_info=commit_info
        )
        self._snapshot = result.snapshot
        return result

    def checkpoint(self) -> None:
        """Write a checkpoint of the version of this handle.

        Raises:
            TableNotFound, StorageFailure, UnsupportedWriterVersion.
            UnsupportedFeature: the table cannot be written, or its old checkpoints are protected.
        """
        from dagster_delta.table.log_upkeep.post_commit import checkpoint_version

        checkpoint_version(self._known(), now_ms=now_ms())

    def clean_log(
        self,
        retention_hours: float | None = None,
        *,
        dry_run: bool = True,
        enforce_retention: bool = True,
    ) -> LogCleanupResult:
        """Delete the log files of versions older than the table's log retention.

        The log is cut at a checkpoint, which is written if none is near: the version that was the
        latest at midnight (UTC), the retention ago, and all newer ones stay readable. Rows are
        unchanged; files that only older versions need are deleted by the next `vacuum`.

        A reader of commits (a sensor, a stream, a change feed) that is further behind gets an error
        for the missing commits and has to start over.

        Writes do the same after each checkpoint, as far as checkpoints exist, unless the table has
        `delta.enableExpiredLogCleanup = false`.

        Args:
            retention_hours: how long versions stay readable; by default
                `delta.logRetentionDuration`, else 30 days.
            dry_run: only find the files.
            enforce_retention: refuse a retention shorter than the table's, and tables that have
                `delta.enableExpiredLogCleanup = false`.

        Raises:
            InvalidArgument: the retention is too short, or the table keeps its log.
            TableNotFound: the table does not exist.
            InvalidTable: the version that the log will begin with cannot be read; nothing was
                deleted.
            UnsupportedFeature, UnsupportedWriterVersion: this library cannot write the table.
            StorageFailure: the store refused or failed.
        """
        from dagster_delta.table.log_upkeep.cleanup import clean_log

        result = clean_log(
            self._store,
            self._existing(),
            clock=now_ms,
            retention_hours=retention_hours,
            dry_run=dry_run,
            enforce_retention=enforce_retention,
        )
        if not dry_run and result.num_files:
            # The snapshot may still have to read the checkpoint that it was opened with.
            self._snapshot = Snapshot.load(self._store)
        return result

    def restore(
        self,
        version: int | None = None,
        timestamp: datetime | str | int | None = None,
        *,
        commit_info: Mapping[str, object] | None = None,
    ) -> CommitResult:
        """Restore the table to an older version: rows, schema and properties.

        The result is a new version, so nothing is lost and a second restore can undo it. The
        protocol is never lowered, and transaction ids are kept, except for the positions of
        incremental assets, which go back with the rows. Rows of a concurrent append count
        as later and are kept. If the table already has that state, nothing is committed and
        `skipped` is true.

        Args:
            version: the version to restore.
            timestamp: instead: the latest version committed at or before it, spelled as for
                `snapshot`.
            commit_info: recorded in the commitInfo beside this library's own fields.

        Raises:
            InvalidArgument: neither or both are given.
            VersionNotFound: the version does not exist.
            DataFileMissing: a file of that version is missing; the table is as before. If a VACUUM
                deleted it meanwhile, the restore was committed and taken back by another version.
            UnsupportedFeature: the table is append-only, or cannot be written.
            CommitConflict, CommitStateUnknown: the commit failed, or may have failed; or a VACUUM
                is under way, and the restore was taken back.
        """
        return self._adopt(
            operations.restore.restore_table(
                self.plan_restore(version, timestamp),
                by_timestamp=None if timestamp is None else str(timestamp),
                clock=now_ms,
                commit_info=commit_info,
            )
        )

    def plan_restore(
        self, version: int | None = None, timestamp: datetime | str | int | None = None
    ) -> RestorePlan:
        """The difference between the latest version and an older one: rows, files, bytes, schema
        and properties. It writes nothing.

        Args:
            version: as for `restore`.
            timestamp: as for `restore`.

        Raises:
            InvalidArgument: neither or both are given.
            VersionNotFound: the version does not exist.
            DataFileMissing: a file of that version is missing, so that it cannot be restored.
        """
        if (version is None) == (timestamp is None):
            raise InvalidArgument("say what to restore by a version or by a timestamp")
        current = self._existing()
        target = Snapshot.load(self._store, version=version, timestamp=timestamp)
        return operations.restore.plan_restore(current, target)

    def clone(
        self,
        target: str | os.PathLike[str],
        *,
        deep: bool = True,
        version: int | None = None,
        timestamp: datetime | str | int | None = None,
        replace: bool = False,
        properties: Mapping[str, object] | None = None,
        storage_options: Mapping[str, object] | None = None,
        store: ObjectStore | None = None,
        commit_info: Mapping[str, object] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> CommitResult:
        """Clone one version of the table to another location; the result is the clone's.

        Schema, partitioning, properties, constraints, table features, row ids, clustering and the
        positions of incremental assets are copied. Older versions, transaction ids and metadata
        domains of other writers are not: the clone has its own log and id, and a write to one table
        does not appear in the other.

        A shallow clone refers to the data files of its source, so it costs one commit at any size.
        VACUUM of the source deletes files that only the clone needs: such clones are for tests and
        short-lived copies. VACUUM of the clone does not delete files of the source. A deep clone
        copies data files and deletion vectors to the same relative paths.

        With `replace`, a new version of the existing table equals the source; files that it already
        has are not copied again. If it already equals the source, nothing is committed and
        `skipped` is true. After an interrupted deep clone, a new attempt reuses the copied files
        for one day.

        Args:
            target: path or URI of the clone's root, neither in the source nor around it.
            deep: copy the files instead of referring to them.
            version: which version of the source; the one this handle knows by default.
            timestamp: instead: the latest version committed at or before it, spelled as for
                `snapshot`.
            replace: whether an existing table becomes the clone, as a new version.
            properties: table properties of the clone that replace, or are added to, the source's.
            storage_options: options of the target's storage; those of the source by default.
            store: an opened store instead of the target's own.
            commit_info: recorded in the commitInfo beside this library's own fields.
            on_progress: called with the number of files copied so far, and of all to copy.

        Raises:
            TableAlreadyExists: a table exists, and `replace` is false.
            InvalidArgument: one location is inside the other, the storage of a shallow clone cannot
                open the files, or an argument is invalid.
            TableNotFound, VersionNotFound: the source has no such version.
            DataFileMissing: a file of the version is missing; nothing was committed.
            UnsupportedFeature, ConditionalPutUnsupported: the clone could not be written.
            CommitConflict, CommitStateUnknown, StorageFailure: the commit failed, or may have
                failed.
        """
        source = self.snapshot(version, timestamp)
        if store is None:
            own = self._store.location.options
            store = open_store(target, own if storage_options is None else storage_options)
        options = operations.clone.CloneOptions(deep, replace, properties, commit_info, on_progress)
        return operations.clone.clone_table(source, store, options, clock=now_ms)

    def health(self, *, small_file_size: int | None = None) -> TableHealth:
        """Statistics on the table's files, from the log alone.

        Args:
            small_file_size: files below this number of bytes count as small; by default those that
                `optimize` would compact.

        Raises:
            TableNotFound, InvalidTable, StorageFailure.
        """
        return operations.health.table_health(self._known(), small_file_bytes=small_file_size)
