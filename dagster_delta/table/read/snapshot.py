"""One immutable version of a table.

Spec: Action Reconciliation; Table Versions.
"""

from __future__ import annotations

# ruff: noqa: SLF001 - functions of this module read the state of a snapshot
import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta import clock
from dagster_delta.cached_property import cached_property
from dagster_delta.errors import InvalidArgument, LogGap, TableNotFound, VersionNotFound
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.protocol.log.segment import EMPTY_SEGMENT, LogSegment
from dagster_delta.protocol.log.tail import RawCommit, decode_tail
from dagster_delta.protocol.log.version_checksum import VersionChecksum
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.columns import with_logical_keys
from dagster_delta.table.log.commit_range import version_at
from dagster_delta.table.log.reader import (
    check_readable,
    configuration_of,
    extended_segment,
    find_segment,
    located,
    read_checksum_after,
    read_commits_after,
)
from dagster_delta.table.log.state import LogState, open_state
from dagster_delta.table.log.version import LogVersion
from dagster_delta.table.read.file_planner import (
    FilePlanner,
    count_records,
    live_records,
)
from dagster_delta.table.read.scan import Scan

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression


# Probing costs a request per commit: for a reader that is far behind, a listing is cheaper.
_LISTINGS = 3
"""How often the log is listed before a version that cannot be read is an error."""
_MAX_PROBES = 100


class Snapshot(LogVersion):
    """One immutable version of a table. Its files are listed only when needed.

    Immutable and thread-safe: data that was read is cached, column by column.
    """

    @classmethod
    def load(
        cls,
        store: ObjectStore,
        *,
        version: int | None = None,
        timestamp: dt.datetime | str | int | None = None,
    ) -> Snapshot:
        """The latest version of a table, a given version, or the version at a timestamp.

        Args:
            store: rooted at the table.
            version: which version; the latest one by default.
            timestamp: the newest version committed at or before this time: a datetime (naive means
                UTC), an ISO 8601 text, or milliseconds since the epoch.

        Raises:
            TableNotFound: the table does not exist.
            VersionNotFound: the version does not exist or no longer exists, or there is none at
                that time.
            InvalidTable: the log is damaged; its subclasses say how.
            UnsupportedFeature: the table needs a feature that this library does not support.
            InvalidArgument: both version and timestamp are given, or one of them is invalid.
        """
        if timestamp is not None:
            if version is not None:
                raise InvalidArgument("pass a version or a timestamp, not both")
            version = version_at(store, timestamp)
        if version is not None and version < 0:
            raise InvalidArgument(f"a version must be ≥ 0, not {version}")
        if version is not None:
            return snapshot_of_segment(store, find_segment(store, version))
        return _load_latest(store)

    def __repr__(self) -> str:
        return f"Snapshot({self.store.location.uri!r}, version={self.version})"

    @cached_property
    def num_records(self) -> int | None:
        """Rows of the table, from statistics alone; None if a file has no statistics."""
        return count_records(FilePlanner(self))

    def record_counts(self) -> pa.ChunkedArray:
        """Live rows of each file, row for row with `live_files`; null for a file without
        statistics. Raises CorruptLog if the number of rows of a file is negative.
        """
        vectors = self.live_files(["deletion_vector"])["deletion_vector"]
        counts = self.statistics([])["num_records"]
        return live_records(self, counts, vectors, lambda: self.live_files(["path"])["path"])

    def files(self) -> pa.Table:
        """The live files for inspection: a `pa.Table` with one row per file.

        Columns: `path` (as in the log, percent-encoded), `size_bytes`, `partition_values` (by
        logical column name), `num_records` (without the rows that deletion vectors hide; null if
        unknown), `modification_time_ms`, `has_deletion_vector`, `stats`, `tags`.
        """
        found = self.live_files()
        columns = {
            "path": found["path"],
            "size_bytes": found["size_bytes"],
            "partition_values": with_logical_keys(found["partition_values"], self.configuration),
            "num_records": self.record_counts(),
            "modification_time_ms": found["modification_time_ms"],
            "has_deletion_vector": pc.is_valid(found["deletion_vector"]),
            "stats": found["stats"],
            "tags": found["tags"],
        }
        return pa.Table.from_arrays(list(columns.values()), names=list(columns))

    def update(self) -> Snapshot:
        """The latest version: this snapshot, or a new one updated with the commits since.

        Raises:
            TableNotFound, InvalidTable, UnsupportedFeature, StorageFailure.
        """
        if not self.exists:
            return find_snapshot(self.store) or self
        started_ms = clock.now_ms()
        commits = read_commits_after(
            self.store, self.version, at_most=_MAX_PROBES, commit=self.known_commit
        )
        if commits is None or len(commits) == _MAX_PROBES:
            return Snapshot.load(self.store)
        latest = self
        if commits:
            checksum = read_checksum_after(self.store, self.checksum, commits)
            latest = advanced(self.store, self, commits, checksum=checksum)
        latest.seen_ms = started_ms
        return latest

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: str | SqlExpression | None = None,
        *,
        row_ids: bool = False,
        verify_checksums: bool = False,
    ) -> Scan:
        """Plan a read of this version. Nothing is read yet.

        Args:
            columns: logical names of the columns to read, in order; all by default.
            where: Spark SQL, or a parsed expression; only rows that satisfy it are read.
            row_ids: whether the columns `_row_id` and `_row_commit_version` follow; the table must
                have `delta.enableRowTracking`.
            verify_checksums: whether to verify Parquet page checksums, which takes about a tenth
                more CPU time.

        Raises:
            SchemaMismatch, InvalidArgument, UnsupportedExpression.
        """
        return Scan(self, columns, where, row_ids=row_ids, verify_checksums=verify_checksums)


def _load_latest(store: ObjectStore) -> Snapshot:
    """The latest version. A clean-up may delete one between listing and reading: then it is listed
    again.
    """
    attempt = 1
    while True:
        started_ms = clock.now_ms()
        try:
            snapshot = snapshot_of_segment(store, find_segment(store))
        except (LogGap, VersionNotFound):
            if attempt == _LISTINGS:
                raise
            attempt += 1
        else:
            snapshot.seen_ms = started_ms
            return snapshot


def find_snapshot(store: ObjectStore) -> Snapshot | None:
    """The latest version of a table; None if there is none. Raises as `Snapshot.load` does."""
    try:
        return Snapshot.load(store)
    except TableNotFound:
        return None


def snapshot_of_segment(store: ObjectStore, segment: LogSegment) -> Snapshot:
    """The version that a log segment describes. Raises as `Snapshot.load` does."""
    state, configuration, checksum = open_state(store, segment)
    return Snapshot(store, segment, configuration, state, checksum)


def before_creation(store: ObjectStore, configuration: TableConfiguration) -> Snapshot:
    """Version -1 of a table that a commit is to create: without rows, and not in the log."""
    empty = LogState.of_segment(store, EMPTY_SEGMENT)
    return Snapshot(store, EMPTY_SEGMENT, configuration, empty)


def advanced(
    store: ObjectStore,
    base: Snapshot | None,
    commits: Sequence[tuple[int, bytes]],
    *,
    checksum: VersionChecksum | None = None,
    is_own: bool = False,
) -> Snapshot:
    """The version after the next commits, from their bytes alone: (version, contents of the file),
    in order.

    `base` is None if the first of them creates the table. `checksum` is that of the last of them,
    if the caller knows it; `is_own` says that this process has just written it. InvalidArgument:
    the versions do not follow the base.
    """
    if base is not None and not commits:
        return base
    version = -1 if base is None else base.version
    versions = [number for number, _ in commits]
    if versions != list(range(version + 1, version + 1 + len(commits))):
        raise InvalidArgument(
            f"Commits {versions} do not follow version {version}",
            table=store.location.uri,
            version=version,
        )
    with located(store, versions[-1]):
        tail = decode_tail(RawCommit(n, commit_path(n), data) for n, data in commits)
        if base is None:
            state, segment = LogState.of_segment(store, EMPTY_SEGMENT), EMPTY_SEGMENT
            configuration = configuration_of(tail.protocol, tail.metadata)
        else:
            state, segment = base._state, base.log_segment
            configuration = base.configuration.after(tail.protocol, tail.metadata)
        if base is None or configuration is not base.configuration:
            check_readable(store, configuration, versions[-1])
        segment = extended_segment(segment, commits)
        state = state.advance(tail, segment, is_own=is_own)
    latest = Snapshot(store, segment, configuration, state, checksum, commits[-1][1])
    latest.seen_ms = 0 if base is None else base.seen_ms
    return latest


def with_checksum(snapshot: Snapshot, checksum: VersionChecksum) -> Snapshot:
    """The same version with a checksum that matches its state."""
    other = Snapshot(
        snapshot.store, snapshot.log_segment, snapshot.configuration, snapshot._state, checksum
    )
    other._comparison = snapshot._comparison or other._comparison
    other.seen_ms, other.known_commit = snapshot.seen_ms, snapshot.known_commit
    return other
