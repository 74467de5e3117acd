"""A log read as a stream of files: where it begins, where a batch ends, which files it holds.

Rows are read with the schema that the table had when the query started. The files of a batch depend
only on its two offsets, so a repeated batch holds the same rows.

Spec: Delta Log Entries; Add File and Remove File; Change Data Files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache

import numpy as np
import pyarrow as pa
from msgspec import UNSET
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.plans import ChangeFileSet
from dagster_delta.errors import (
    ChangeDataNotRecorded,
    DeltaError,
    InvalidArgument,
    SchemaMismatch,
    UnsupportedFeature,
    VersionNotFound,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.change_data import FileChange, file_changes
from dagster_delta.protocol.log.commit_file import CommitActions, decode_commit
from dagster_delta.protocol.schema_compatibility import find_incompatibility
from dagster_delta.protocol.values.arrow_values import integer_scalar
from dagster_delta.streaming.options import BEGINNING, Admission, SourceOptions, StreamOffset
from dagster_delta.table.log.commit_range import first_version_since, read_commit_range
from dagster_delta.table.log.reader import (
    KnownCommit,
    check_readable,
    is_newest,
    located,
    read_commit,
)
from dagster_delta.table.read.change_feed_plan import FeedFiles, removes_older_rows
from dagster_delta.table.read.file_planner import FilePlanner
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.file_actions import descriptor_of

_REMEMBERED_VERSIONS = 1000
SNAPSHOT_COLUMNS = ("path", "partition_values", "size_bytes", "deletion_vector")
"""Columns of LIVE_FILE_SCHEMA that a stream needs to read files."""

_KEY = ("modification_time_ms", "path")
STRETCH_FILES = 250_000
"""Files of a large table that are in memory at a time, and more only where files have one time."""

_ROWS_AT_ONCE = 10_000

# A batch without rows costs a job, and keeps the offset near the end of a log that is cleaned up:
# so one is run every this many commits.
_COMMITS_PER_EMPTY_BATCH = 20
_KEPT_COMMITS = 8


class LogStream:
    """One run of a query over one table."""

    def __init__(self, options: SourceOptions, latest: Snapshot) -> None:
        self._store = latest.store
        self._options = options
        self._latest = latest
        self._rules = CommitRules(options, latest)
        self._load_commit = lru_cache(_KEPT_COMMITS)(self._read_commit)
        self._snapshot_files = lru_cache(1)(self._read_snapshot_files)
        self._seen_version = latest.version
        self._idle: tuple[StreamOffset, StreamOffset] | None = None
        self._identified: KnownCommit | None = None
        """The last commit that was read before the end of the latest batch."""

    def initial_offset(self, version: int | None = None) -> StreamOffset:
        """Where a query without a checkpoint begins.

        `version`: newest version of the table at the time; that of this run by default.
        """
        table_id = self._latest.metadata.id
        version = self._latest.version if version is None else version
        start = self._options.starting_version
        if self._options.starting_timestamp is not None:
            start = first_version_since(self._store, self._options.starting_timestamp)
        if start is None:
            return StreamOffset(table_id=table_id, version=version, is_snapshot=True)
        if start == "latest":
            start = version + 1
        if int(start) > version + 1:
            raise VersionNotFound(
                f"The table has not reached version {start} yet: it is at {version}; start the "
                "stream from an older version, or from latest",
                table=self._store.location.uri,
                version=int(start),
            )
        return StreamOffset(table_id=table_id, version=int(start))

    def latest_version(self) -> int:
        """The newest version of the table at the moment.

        Raises:
            VersionNotFound: the table had a newer version before.
        """
        version = self._latest.update().version
        if version < self._seen_version:
            raise self._set_back(self._seen_version, version)
        self._seen_version = version
        return version

    def advance(
        self, start: StreamOffset, admission: Admission, *, until: int | None = None
    ) -> StreamOffset:
        """The end of a batch that begins at `start`; `start` itself if there is nothing to read.

        A commit that stops the stream ends the batch before it; it is an error if it is the first
        of the batch.

        Args:
            start: where the batch begins; the end of one from BEGINNING names its origin.
            admission: limits of the batch.
            until: the last version to read; the newest one by default.

        Raises:
            VersionNotFound: the log no longer continues from `start`.
            SchemaMismatch, UnsupportedFeature, ChangeDataNotRecorded: see `CommitRules.changes_of`.
            InvalidArgument: `start` belongs to another table.
            InvalidTable, StorageFailure: for the log.
        """
        self._check_offset(start)
        if start.version == BEGINNING:
            origin = self.initial_offset()
            return replace(self.advance(origin, admission, until=until), origin=origin)
        offset = start
        if self._idle is not None and self._idle[0] == start:
            offset = self._idle[1]
        if offset.is_snapshot:
            offset = self._take_snapshot(offset, admission)
        while not (offset.is_snapshot or admission.is_full):
            if until is not None and offset.version > until:
                break
            actions = self._find_commit(offset.version)
            if actions is None:
                break
            try:
                with located(self._store, offset.version):
                    changes = self._rules.changes_of(actions)
            except DeltaError:
                if admission.files:
                    break
                raise
            offset = self._take_commit(offset, changes, admission)
        if admission.files or offset.version - start.version >= _COMMITS_PER_EMPTY_BATCH:
            self._check_same_log(start)
            self._identified = known = KnownCommit.read(self._store, offset.last_read)
            return replace(offset, commit=UNSET if known is None else known.digest)
        self._idle = (start, offset)
        return start

    def _take_snapshot(self, offset: StreamOffset, admission: Admission) -> StreamOffset:
        total = 0
        for files in self._snapshot_files(offset.version).between(offset.index, None):
            taken = admission.take(files["size_bytes"].to_pylist())
            total += taken
            if taken < files.num_rows:
                return offset.past(total)
        return offset.next_version()

    def _take_commit(
        self, offset: StreamOffset, changes: Sequence[FileChange], admission: Admission
    ) -> StreamOffset:
        sizes = [change.size_bytes for change in changes[offset.index :]]
        if self._options.read_change_feed:
            # The row before an update and the row after it may be in different files.
            admission.take_whole(sizes)
            return offset.next_version()
        taken = admission.take(sizes)
        return offset.past(taken) if taken < len(sizes) else offset.next_version()

    def files_between(self, start: StreamOffset, end: StreamOffset) -> tuple[ChangeFileSet, ...]:
        """The files of a batch, in sets by how they are read.

        Its end alone decides about a batch from BEGINNING. A Spark that does not limit batches ends
        the first one with the newest commit: it has the rows of the table at that version.
        """
        self._check_offset(end)
        self._check_same_log(end)
        if start.version == BEGINNING:
            newest = end.version if end.is_snapshot else end.version - 1
            start = self.initial_offset(newest) if end.origin is UNSET else end.origin
        found = FeedFiles(is_feed=self._options.read_change_feed)
        # Files of a version are read with the defaults of that version.
        shown = self._latest.configuration
        if start.is_snapshot:
            stop = end.index if end.is_snapshot else None
            snapshot = self._snapshot_at(start.version)
            shown = shown.with_existing_defaults_of(snapshot.configuration)
            timestamp_ms = snapshot.timestamp_ms if self._options.read_change_feed else 0
            for files in self._snapshot_files(start.version).between(start.index, stop):
                _add_inserted(found, start.version, timestamp_ms, files)
            start = end if end.is_snapshot else start.next_version()
        last = end.version if end.index else end.version - 1
        if not end.is_snapshot and start.version <= last:
            for actions, timestamp_ms in self._read_commits(start.version, last):
                first = start.index if actions.version == start.version else 0
                stop = end.index if actions.version == end.version else None
                with located(self._store, actions.version):
                    changes = self._rules.changes_of(actions)[first:stop]
                    for configuration in self._rules.configurations_of(actions):
                        shown = shown.with_existing_defaults_of(configuration)
                    for change in changes:
                        found.add(actions.version, timestamp_ms, change)
        return found.sets(shown)

    def _read_commits(self, first: int, last: int) -> Iterator[tuple[CommitActions, int]]:
        if self._options.read_change_feed:
            for commit in read_commit_range(self._store, first, last):
                yield commit.actions, commit.timestamp_ms
            return
        for version in range(first, last + 1):
            yield self._load_present_commit(version), 0

    def _read_snapshot_files(self, version: int) -> SnapshotFiles:
        snapshot = self._snapshot_at(version)
        with located(self._store, version):
            self._rules.check_schema(snapshot.configuration, version)
        return SnapshotFiles(snapshot)

    def _snapshot_at(self, version: int) -> Snapshot:
        if version == self._latest.version:
            return self._latest
        try:
            return Snapshot.load(self._store, version=version)
        except VersionNotFound as error:
            raise self._describe_lost_history(
                f"The stream was reading the rows that the table had at version {version}, and the "
                "log does not reach back to it any more",
                version,
            ) from error

    def _find_commit(self, version: int) -> CommitActions | None:
        """A commit, or None if the table has not reached that version yet."""
        try:
            actions = self._load_commit(version)
        except VersionNotFound:
            if is_newest(self._store, version - 1):
                return None
            # It may have been committed between the two requests.
            actions = self._load_present_commit(version)
        self._seen_version = max(self._seen_version, version)
        return actions

    def _load_present_commit(self, version: int) -> CommitActions:
        try:
            return self._load_commit(version)
        except VersionNotFound as error:
            raise self._describe_lost_history(
                f"The stream goes on with version {version}, whose commit a clean-up of the log "
                "has removed, so that its rows would be lost",
                version,
            ) from error

    def _read_commit(self, version: int) -> CommitActions:
        data = read_commit(self._store, version)
        with located(self._store, version):
            return decode_commit(data, version=version)

    def _check_offset(self, offset: StreamOffset) -> None:
        table = self._store.location.uri
        if offset.table_id != self._latest.metadata.id:
            raise InvalidArgument(
                f"the checkpoint of the query belongs to the table {offset.table_id}, and this is "
                f"{self._latest.metadata.id}: start a new query, with a checkpoint location of its "
                "own",
                table=table,
            )
        if offset.version > self._seen_version + 1:
            raise self._set_back(offset.version - 1, self._seen_version)

    def _check_same_log(self, offset: StreamOffset) -> None:
        """Check that the log still holds the last commit that was read before an offset."""
        known = self._identified
        if offset.commit is UNSET or (
            known is not None and known.digest == offset.commit and known.is_in(self._store)
        ):
            return
        known = KnownCommit.read(self._store, offset.last_read)
        if known is not None and known.digest != offset.commit:
            raise self._describe_lost_history(
                f"The version {offset.last_read} that the query has read is another one now, as "
                "the table was created again, or its log was set back and has grown again",
                offset.last_read,
            )
        self._identified = known

    def _set_back(self, read: int, found: int) -> VersionNotFound:
        return self._describe_lost_history(
            f"The query has read the table up to version {read}, and it is at {found}, as its log "
            "was set back, or the table was created again",
            read + 1,
        )

    def _describe_lost_history(self, why: str, version: int) -> VersionNotFound:
        return VersionNotFound(
            f"{why}: start a new query, with a checkpoint location of its own",
            table=self._store.location.uri,
            version=version,
        )


def files_of_snapshot(snapshot: Snapshot) -> ChangeFileSet:
    """The live files of a version, as one set to read."""
    found = FeedFiles(is_feed=False)
    _add_inserted(found, snapshot.version, 0, snapshot.live_files(SNAPSHOT_COLUMNS))
    return found.sets(snapshot.configuration)[0]


def _add_inserted(found: FeedFiles, version: int, timestamp_ms: int, files: pa.Table) -> None:
    for batch in files.to_batches(max_chunksize=_ROWS_AT_ONCE):
        for row in batch.to_pylist():
            values, size_bytes = dict(row["partition_values"] or ()), row["size_bytes"]
            vector = descriptor_of(row)
            change = FileChange(row["path"], values, size_bytes, "insert", deletion_vector=vector)
            found.add(version, timestamp_ms, change)


class CommitRules:
    """The rules of one run of a query."""

    def __init__(self, options: SourceOptions, latest: Snapshot) -> None:
        self._store = latest.store
        self._options = options
        self._latest = latest
        self._known = {latest.version: latest.configuration}

    def changes_of(self, actions: CommitActions) -> tuple[FileChange, ...]:
        """The files whose rows the stream takes from a commit, in a stable order.

        A schema change for which the query has to be restarted is a SchemaMismatch; deleted or
        changed rows that no option allows are an UnsupportedFeature.
        """
        self._check_configuration(actions)
        if self._options.read_change_feed:
            is_partitioned = bool(self._latest.configuration.partition_columns)
            return file_changes(actions, partitioned=is_partitioned)
        adds = [add for add in actions.adds if add.data_change]
        if any(remove.data_change for remove in actions.removes):
            if self._options.skip_change_commits:
                return ()
            self._check_allowed(actions, has_new_rows=bool(adds))
        # Without statistics, which tasks would carry.
        return tuple(
            FileChange(
                add.path,
                add.partition_values,
                add.size_bytes,
                "insert",
                deletion_vector=add.deletion_vector,
            )
            for add in adds
        )

    def _check_allowed(self, actions: CommitActions, *, has_new_rows: bool) -> None:
        operation = (actions.commit_info or {}).get("operation") or "a commit"
        options = self._options
        kind, allowed = "deleted", options.ignore_deletes or options.ignore_changes
        advice = "ignoreDeletes to go on without it"
        if has_new_rows:
            kind, allowed = "changed", options.ignore_changes
            advice = "ignoreChanges to read all rows of the files they rewrote"
        if not allowed:
            raise UnsupportedFeature(
                f"The stream cannot show that rows were {kind}, as version {actions.version} "
                f"({operation}) did: pass {advice}, skipChangeCommits to leave such commits out, "
                "or readChangeFeed to read the changes"
            )

    def _check_configuration(self, actions: CommitActions) -> None:
        configuration, *older = self.configurations_of(actions)
        version = actions.version
        if configuration is not self._latest.configuration:
            self.check_schema(configuration, version)
        if not self._options.read_change_feed:
            return
        for before in older:
            self._check_rows(before, version, keeps_columns=False)
        if not configuration.properties.enable_change_data_feed:
            raise ChangeDataNotRecorded(
                f"The change data feed was off at version {version} (delta.enableChangeDataFeed), "
                "so that its changes are not recorded: start a new query from a version after "
                "which it is on"
            )

    def configurations_of(self, actions: CommitActions) -> list[TableConfiguration]:
        """The configurations under which the rows of a commit were written: that of its version,
        and for a feed that of the rows that the commit replaced, unless the log lost it.
        """
        found = [self._configuration_at(actions)]
        if self._options.read_change_feed and removes_older_rows(actions):
            before = actions.version - 1
            with suppress(VersionNotFound):
                found.append(self._known.get(before) or self._load_configuration(before))
        return found

    def _configuration_at(self, actions: CommitActions) -> TableConfiguration:
        version = actions.version
        if version in self._known:
            return self._known[version]
        before = self._known.get(version - 1)
        if before is not None:
            found = before.after(actions.protocol, actions.metadata)
            if found is not before:
                check_readable(self._store, found, version)
        else:
            found = self._load_configuration(version)
        if len(self._known) > _REMEMBERED_VERSIONS:
            self._known = {self._latest.version: self._latest.configuration}
        self._known[version] = found
        return found

    def _load_configuration(self, version: int) -> TableConfiguration:
        try:
            return Snapshot.load(self._store, version=version).configuration
        except VersionNotFound as error:
            raise VersionNotFound(
                f"The log does not have the schema that version {version} was written with, as the "
                "checkpoint before it was cleaned up: start a new query from a later version"
            ) from error

    def check_schema(self, configuration: TableConfiguration, version: int) -> None:
        """Raises SchemaMismatch if the query cannot show rows of a version with its schema."""
        if configuration.metadata.id != self._latest.metadata.id:
            raise SchemaMismatch(
                f"Version {version} made another table of it: start a new query, with a "
                "checkpoint location of its own"
            )
        self._check_rows(configuration, version)

    def _check_rows(
        self, configuration: TableConfiguration, version: int, *, keeps_columns: bool = True
    ) -> None:
        latest = self._latest
        problem = find_incompatibility(
            configuration, latest.configuration, keeps_columns=keeps_columns
        )
        if version > latest.version:
            # A new column would be lost, so the schemas must fit in both directions.
            problem = problem or find_incompatibility(latest.configuration, configuration)
            if problem is not None:
                raise SchemaMismatch(
                    f"The schema of the table changed at version {version}: start the query again, "
                    "and it continues with the new schema from its position"
                )
        elif problem is not None:
            raise SchemaMismatch(
                f"The rows of version {version} cannot be shown with the schema of version "
                f"{latest.version}, with which the stream is read: {problem}. Start a new query, "
                "with a checkpoint location of its own, from a version after that change"
            )


class SnapshotFiles:
    """The live files of a version by modification time and path, an order that is the same in every
    run of a query. Of a large table a range of times is in memory at a time, for which the log is
    read once.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._bounds: list[int] = []
        """Times that begin the ranges after the first one."""
        self._starts = [0]
        if snapshot.is_large_and_unread:
            batches = FilePlanner(snapshot).batches(["modification_time_ms"])
            times = np.sort(
                np.concatenate(
                    [_modification_times_of(batch.files).to_numpy() for batch in batches]
                )
            )
            bounds = np.unique(times[STRETCH_FILES::STRETCH_FILES])
            self._bounds = bounds.tolist()
            self._starts += np.searchsorted(times, bounds).tolist()
        self._held: tuple[int, pa.Table] | None = None

    def between(self, start: int, stop: int | None) -> Iterator[pa.Table]:
        """The files from one position to another, or to the end, in `pa.Table`s of
        SNAPSHOT_COLUMNS.
        """
        for stretch in range(bisect_right(self._starts, start) - 1, len(self._starts)):
            first = self._starts[stretch]
            if stop is not None and first >= stop:
                return
            skipped = max(0, start - first)
            length = None if stop is None else max(0, stop - first - skipped)
            yield self._files_of(stretch).slice(skipped, length)

    def _files_of(self, stretch: int) -> pa.Table:
        if self._held is None or self._held[0] != stretch:
            self._held = None
            found = self._read_stretch(stretch).sort_by([(name, "ascending") for name in _KEY])
            self._held = stretch, found.select(SNAPSHOT_COLUMNS)
        return self._held[1]

    def _read_stretch(self, stretch: int) -> pa.Table:
        names = [*SNAPSHOT_COLUMNS, "modification_time_ms"]
        if not self._bounds:
            return self._snapshot.live_files(names)
        low, high = [_ALWAYS_MS, *self._bounds][stretch], [*self._bounds, None][stretch]

        def is_inside(files: pa.Table) -> pa.ChunkedArray:
            times = _modification_times_of(files)
            inside = pc.greater_equal(times, integer_scalar(low))
            return inside if high is None else pc.and_(inside, pc.less(times, integer_scalar(high)))

        return FilePlanner(self._snapshot).choose(names, is_inside)


_ALWAYS_MS, _NEVER_MS = -(2**63), 2**63 - 1


def _modification_times_of(files: pa.Table) -> pa.ChunkedArray:
    """Modification times in milliseconds; files without one come last."""
    return pc.fill_null(files["modification_time_ms"], integer_scalar(_NEVER_MS))
