"""VACUUM: deletes the files that no retained version of a table refers to.

VACUUM LITE finds them in the log: `_delta_log/_last_vacuum_info` says how far earlier VACUUMs went,
in the format of delta-spark.

Spec: Action Reconciliation (tombstones); Vacuum Protocol Check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.clock import Clock, now_ms
from dagster_delta.errors import CommitConflict, InvalidArgument, StorageFailure
from dagster_delta.protocol.actions import AddCDCFile, RemoveFile
from dagster_delta.protocol.features.deletion_vectors import deletion_vector_path
from dagster_delta.protocol.log.commit_file import (
    decode_lines,
    garbage_collection_paused,
)
from dagster_delta.protocol.log.paths import LOG_DIRECTORY
from dagster_delta.protocol.values.arrow_columns import boolean_column, string_column, whole_array
from dagster_delta.protocol.values.arrow_values import every
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.locations import scheme_of
from dagster_delta.storage.object_store import ObjectMeta, ObjectStore
from dagster_delta.storage.unreferenced_files import FILES_PER_DELETE, delete_with_checksums
from dagster_delta.table.catalog_rules import check_maintenance
from dagster_delta.table.log.columns import listed_files
from dagster_delta.table.log.commit_range import newest_version_until
from dagster_delta.table.log.reader import check_writable, list_log, read_versions
from dagster_delta.table.log_upkeep.cleanup import DeletedFiles, retention_in_ms
from dagster_delta.table.operations.unreferenced_files import (
    EmptiedDirectories,
    FoundFiles,
    NeededFiles,
    ReferencedFiles,
    is_vacuumed,
    list_unneeded_files,
)
from dagster_delta.table.read.branch_tables import branches_of_table
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.retries import (
    ConflictRetries,
    StatementOptions,
    run_with_retries,
)
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.table.table_handle import TableHandle

_LOG = logging.getLogger(__name__)

_HOUR_MS = 60 * 60 * 1000
_MAX_WORKERS = 8
_END_RETRIES = StatementOptions(on_conflict=ConflictRetries(attempts=5))


def vacuum(
    table: TableHandle,
    /,
    retention_hours: float | None = None,
    *,
    dry_run: bool = True,
    enforce_retention: bool = True,
    record_in_log: bool = True,
    lite: bool = False,
    keep_versions: Sequence[int] = (),
    branch_roots: Sequence[str] | Mapping[str, Mapping[str, object]] = (),
    commit_info: Mapping[str, object] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> VacuumResult:
    """Delete files that neither the latest version nor a retained older version refers to.

    Only files below the table's root are considered, and none whose name, or directory, begins
    with `_` or `.` (except change data and partition directories). Files that were modified
    within the retention are kept: a writer may be about to commit them.

    VACUUM LITE lists no directory: it deletes the files that commits since the last VACUUM have
    removed, and leaves those that no commit refers to. `unreferenced_files` reports these.

    Files that a branch still reads are kept for `dagsterDelta.branchRetention` after the branch
    began, two weeks by default. Branches are found below the directories above the table, and at
    `branch_roots`.

    Args:
        retention_hours: how long files are kept after they were removed from the table; by
            default `delta.deletedFileRetentionDuration`, else a week.
        dry_run: only find the files.
        enforce_retention: refuse a retention shorter than the table's.
        record_in_log: commit `VACUUM START` and `VACUUM END`, as delta-spark does.
        lite: whether to read the files from the log. It needs every commit since the last
            VACUUM, or since version 0 if there was none.
        keep_versions: versions whose files are kept, whatever the retention.
        branch_roots: each `branch_root_uri` of branches that are stored elsewhere; or a mapping
            from these to storage options, if they differ from the table's.
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
    options = VacuumOptions(
        retention_hours,
        dry_run,
        enforce_retention,
        record_in_log,
        commit_info,
        on_progress,
        lite,
        tuple(keep_versions),
        branch_roots if isinstance(branch_roots, Mapping) else dict.fromkeys(branch_roots),
    )
    result = vacuum_table(table.store, table._existing(), options, clock=now_ms)
    table._snapshot = result.snapshot
    return result


class VacuumOptions(msgspec.Struct, frozen=True):
    """Options of the caller."""

    retention_hours: float | None = None
    dry_run: bool = True
    enforce_retention: bool = True
    record_in_log: bool = True
    commit_info: Mapping[str, object] | None = None
    on_progress: Callable[[int, int], None] | None = None
    lite: bool = False
    """Whether files are found in the log instead of in a listing."""
    keep_versions: Sequence[int] = ()
    """Versions whose files are kept."""
    branch_roots: Mapping[str, Mapping[str, object] | None] = msgspec.field(default_factory=dict)
    """Where else branches are, with their storage options."""


class VacuumResult(DeletedFiles, frozen=True):
    """What a VACUUM deleted, or would delete. For VACUUM LITE, the time of a file is that of its
    removal from the table, and a file may be gone already.
    """

    num_listed_files: int
    """Number of files under the root that are not hidden, or that VACUUM LITE found in the log."""
    snapshot: Snapshot
    """The table after the VACUUM; at the version of `VACUUM END` if one was committed."""
    kept_for_branches: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Number of files that were kept because a branch reads them, by the name of the branch."""


def vacuum_table(
    store: ObjectStore, snapshot: Snapshot, options: VacuumOptions, *, clock: Clock
) -> VacuumResult:
    """Delete the files that neither the latest version nor a retained older one refers to.

    After an error of the store, all files deleted until then were unreferenced.
    """
    # Spec: a writer MUST check the writer protocol before it deletes files. It applies with or
    # without vacuumProtocolCheck: a feature that is not known may refer to files.
    check_writable(store, snapshot.configuration, snapshot.version)
    check_maintenance(store, "DATA_CLEANUP", "VACUUM")
    retention_ms = retention_in_ms(
        options.retention_hours,
        snapshot.configuration.properties.deleted_file_retention_ms,
        "delta.deletedFileRetentionDuration): readers of older versions and writers that have not "
        "committed yet would lose their files; leave it out, or pass enforce_retention=False if no "
        "one else uses the table",
        enforce=options.enforce_retention,
        table=store.location.uri,
    )
    before_ms = clock() - retention_ms
    kept = tuple(Snapshot.load(store, version=version) for version in options.keep_versions)
    needed = NeededFiles(before_ms, retention_ms, kept)
    last: int | None = None
    if options.lite:
        found, last = _find_logged(snapshot, needed)
    else:
        is_ours = is_vacuumed(snapshot.configuration)
        found = list_unneeded_files(snapshot, needed, is_ours, modified_before_ms=before_ms)
    files, spared = _spare_branches(found, options, clock())
    result = VacuumResult(
        options.dry_run, files, retention_ms, found.num_seen, found.latest, spared
    )
    if options.dry_run:
        return result
    if files.num_rows:
        result = _Vacuum(store, options, clock, needed).run(result)
    if not kept and not spared:
        # Files of kept versions remain, and a later VACUUM LITE has to find them again.
        _record_last_vacuum(store, last if options.lite else _last_removed(found, before_ms))
    return result


def _spare_branches(
    found: FoundFiles, options: VacuumOptions, now_ms: int
) -> tuple[pa.Table, dict[str, int]]:
    """The files to delete without those that a young branch reads, and how many each reads."""
    files, spared, latest = found.files, dict[str, int](), found.latest
    if not files.num_rows:
        return files, spared
    paths, kept = whole_array(files["path"]), every(False, files.num_rows)
    retention_ms = latest.configuration.properties.branch_retention_ms
    for table in branches_of_table(latest.store, options.branch_roots):
        if table.branch.created_ms < now_ms - retention_ms:
            continue
        referenced = ReferencedFiles()
        for version in table.versions(latest.store):
            for batch in version.file_batches(["path", "deletion_vector"]):
                referenced.add(batch.files)
        is_read = referenced.mask(paths)
        if count := is_read.true_count:
            spared[table.branch.name] = count
            kept = pc.or_(kept, is_read)
    return files.filter(pc.invert(kept)), spared


def _last_removed(found: FoundFiles, before_ms: int) -> int | None:
    """The version up to which all removed files are among those that a listing found."""
    # Clocks differ: a file as old as its commit may count as younger, and is kept.
    until_ms, latest = before_ms - _HOUR_MS - 1, found.latest
    commits = list_log(latest.store, end=latest.version)
    return newest_version_until(latest.store, commits, latest.configuration, until_ms)


def _find_logged(snapshot: Snapshot, needed: NeededFiles) -> tuple[FoundFiles, int | None]:
    """The files to delete, and the last version whose removed files are among them, or were found
    by an earlier VACUUM.
    """
    removed, last = _removed_files(snapshot, needed.before_ms)
    is_ours = is_vacuumed(snapshot.configuration)
    inside = [_is_relative(path) and is_ours(path) for path in removed["path"].to_pylist()]
    files = removed.filter(boolean_column(inside))
    # A restore that was committed while the log was read may have made files live again.
    latest = snapshot.update()
    files = files.filter(pc.invert(needed.of(latest).mask(files["path"])))
    return FoundFiles(files, removed.num_rows, latest), last


def _is_relative(path: str) -> bool:
    names = path.split("/")
    return scheme_of(path) is None and not {"", ".", ".."}.intersection(names)


class _Vacuum(msgspec.Struct, frozen=True):
    store: ObjectStore
    options: VacuumOptions
    clock: Clock
    needed: NeededFiles

    def run(self, planned: VacuumResult) -> VacuumResult:
        files, snapshot = planned.files, planned.snapshot
        if self.options.record_in_log:
            snapshot = self._record_start(planned)
            # A restore that was committed first may have made files live again.
            files = files.filter(pc.invert(self.needed.of(snapshot).mask(files["path"])))
        paths = files["path"].to_pylist()
        directories = EmptiedDirectories(self.store, paths, before_ms=self.needed.before_ms)
        deleted, failure = self._delete_files(paths)
        num_directories = directories.remove()
        files = files.filter(pc.is_in(files["path"], value_set=string_column(deleted)))
        if self.options.record_in_log:
            snapshot = self._record_end(snapshot, files, num_directories, completed=failure is None)
        if failure is not None:
            raise failure
        return msgspec.structs.replace(planned, dry_run=False, files=files, snapshot=snapshot)

    def _delete_files(self, paths: Sequence[str]) -> tuple[list[str], StorageFailure | None]:
        chunks = [
            paths[first : first + FILES_PER_DELETE]
            for first in range(0, len(paths), FILES_PER_DELETE)
        ]
        deleted: list[str] = []
        failure = None
        with ThreadPoolExecutor(min(_MAX_WORKERS, len(chunks) or 1), "delta-vacuum") as workers:
            running = {
                workers.submit(delete_with_checksums, self.store, chunk): chunk for chunk in chunks
            }
            for future in as_completed(running):
                try:
                    future.result()
                except StorageFailure as error:
                    failure = failure or error
                    continue
                deleted += running[future]
                if self.options.on_progress is not None:
                    self.options.on_progress(len(deleted), len(paths))
        return deleted, failure

    def _record_start(self, planned: VacuumResult) -> Snapshot:
        is_asked = self.options.retention_hours is not None
        properties = planned.snapshot.configuration.properties
        parameters = {
            "retentionCheckEnabled": self.options.enforce_retention,
            "specifiedRetentionMillis": planned.retention_ms if is_asked else None,
            "defaultRetentionMillis": properties.deleted_file_retention_ms,
        }
        metrics = {"numFilesToDelete": planned.num_files, "sizeOfDataToDelete": planned.size_bytes}
        return self._record_commit(planned.snapshot, "VACUUM START", parameters, metrics).snapshot

    def _record_end(
        self, snapshot: Snapshot, deleted: pa.Table, num_directories: int, *, completed: bool
    ) -> Snapshot:
        status = {"status": "COMPLETED" if completed else "FAILED"}
        metrics = {"numDeletedFiles": deleted.num_rows, "numVacuumedDirectories": num_directories}

        def record(newest: Snapshot) -> CommitResult:
            return self._record_commit(newest, "VACUUM END", status, metrics)

        try:
            # It depends on nothing, so it can follow any concurrent commit.
            return run_with_retries(record, self.store, snapshot, _END_RETRIES).snapshot
        except CommitConflict:
            _LOG.warning(
                "VACUUM of %s is done, but its end was not recorded", self.store.location.uri
            )
            return snapshot.update()

    def _record_commit(
        self,
        snapshot: Snapshot,
        operation: str,
        parameters: Mapping[str, object],
        metrics: Mapping[str, int],
    ) -> CommitResult:
        transaction = Transaction(self.store, snapshot, clock=self.clock)
        info = self.options.commit_info
        return transaction.commit(operation, parameters=parameters, metrics=metrics, user_info=info)


_LAST_VACUUM_PATH = f"{LOG_DIRECTORY}/_last_vacuum_info"


class _RemovedLine(msgspec.Struct, gc=False):
    remove: RemoveFile | None = None
    cdc: AddCDCFile | None = None


_DECODER = msgspec.json.Decoder(_RemovedLine)


class _LastVacuum(msgspec.Struct, frozen=True, rename="camel"):
    latest_commit_version_outside_of_retention_window: int | None = None


def _removed_files(snapshot: Snapshot, before_ms: int) -> tuple[pa.Table, int | None]:
    """The data files, deletion vectors and change data that commits before a time removed since the
    last VACUUM, with the time of the removal; and the last version whose removed files are among
    them, or were found by an earlier VACUUM.

    Files with absolute paths are left out: a VACUUM that lists the directory finds those in it. The
    range ends before the first commit that is as young as `before_ms`, in milliseconds since the
    epoch, or that removed a file then. A commit of the range that is no longer in the log is an
    InvalidArgument.
    """
    store = snapshot.store
    last = _read_last_vacuum(store)
    start = 0 if last is None else last + 1
    found: dict[str, ObjectMeta] = {}
    with garbage_collection_paused():
        for version, lines in _commits_before(snapshot, start, before_ms):
            removes = [line.remove for line in lines if line.remove is not None]
            if any((remove.deletion_timestamp_ms or 0) >= before_ms for remove in removes):
                break
            changes = [line.cdc for line in lines if line.cdc is not None]
            for file in _files_of(removes, changes):
                found.setdefault(file.path, file)
            last = version
    return listed_files(found.values()), last


def _record_last_vacuum(store: ObjectStore, version: int | None) -> None:
    """Record how far a VACUUM went, unless an earlier one went further."""
    last = _read_last_vacuum(store)
    if version is None or (last is not None and last >= version):
        return
    try:
        store.put(_LAST_VACUUM_PATH, msgspec.json.encode(_LastVacuum(version)) + b"\n")
    except StorageFailure:
        # The next VACUUM LITE reads more commits.
        _LOG.warning("%s could not be written", _LAST_VACUUM_PATH, exc_info=True)


def _read_last_vacuum(store: ObjectStore) -> int | None:
    try:
        info = msgspec.json.decode(store.read(_LAST_VACUUM_PATH), type=_LastVacuum)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return info.latest_commit_version_outside_of_retention_window


def _commits_before(
    snapshot: Snapshot, start: int, before_ms: int
) -> Iterator[tuple[int, list[_RemovedLine]]]:
    store = snapshot.store
    listing = list_log(store, start=start, end=snapshot.version)
    listed = listing.commits
    versions = []
    for version in range(start, snapshot.version + 1):
        if version not in listed:
            raise InvalidArgument(
                f"VACUUM LITE reads the removed files from the log, and commit {version} is not "
                "there any more: run a full VACUUM (lite=False), after which LITE goes on from "
                "its version",
                table=store.location.uri,
                version=version,
            )
        if listed[version].modified_ms >= before_ms:
            break
        versions.append(version)
    for commit in read_versions(store, listing, versions):
        version, data, path = commit.version, commit.data, commit.path
        yield version, list(decode_lines(data, _DECODER, version=version, path=path))


def _files_of(removes: Iterable[RemoveFile], changes: Iterable[AddCDCFile]) -> Iterator[ObjectMeta]:
    for remove in removes:
        removed_ms = remove.deletion_timestamp_ms or 0
        yield ObjectMeta(decode_path(remove.path), remove.size_bytes or 0, removed_ms)
        vector = remove.deletion_vector
        if vector is not None and vector.storage_type != "i":
            path = deletion_vector_path(vector)
            yield ObjectMeta(path, vector.size_in_bytes, removed_ms)
    for change in changes:
        yield ObjectMeta(decode_path(change.path), change.size_bytes, 0)
