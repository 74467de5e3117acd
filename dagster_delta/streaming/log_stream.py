"""A log read as a stream of files: where it begins, where a batch ends, which files it holds.

Rows are read with the schema that the table had when the query started. The files of a batch depend
only on its two offsets, so a repeated batch holds the same rows.

Spec: Delta Log Entries; Add File and Remove File; Change Data Files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

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
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.schema_compatibility import find_incompatibility
from dagster_delta.protocol.values.arrow_columns import integer_column, string_column
from dagster_delta.protocol.values.arrow_values import every, integer_scalar
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.streaming.options import BEGINNING, Admission, SourceOptions, StreamOffset
from dagster_delta.table.log.commit_range import first_version_since, read_commit_range
from dagster_delta.table.log.reader import commit_digest, is_newest, located, read_commit
from dagster_delta.table.read.change_feed_plan import ChangeFileRows, FeedFiles
from dagster_delta.table.read.file_planner import FilePlanner
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.file_actions import descriptor_of

_REMEMBERED_VERSIONS = 1000
SNAPSHOT_COLUMNS = ("path", "partition_values", "size_bytes", "deletion_vector")
"""Columns of LIVE_FILE_SCHEMA that a stream needs to read files."""

_KEY = ("modification_time_ms", "path")
STRETCH_FILES = 250_000
"""Files of a large table that are in memory at a time, about."""
_MAX_SAMPLES = 100_000


_ROWS_AT_ONCE = 10_000

# A batch without rows costs a job, and keeps the offset near the end of a log that is cleaned up:
# so one is run every this many commits.
_COMMITS_PER_EMPTY_BATCH = 20
_KEPT_COMMITS = 8
_NO_CONSTANTS: Mapping[str, str] = {}


class LogStream:
    """One run of a query over one table."""

    def __init__(
        self,
        store: ObjectStore,
        options: SourceOptions,
        latest: Snapshot,
        *,
        stretch_files: int = STRETCH_FILES,
    ) -> None:
        self._stretch_files = stretch_files
        self._store = store
        self._options = options
        self._latest = latest
        self._rules = CommitRules(store, options, latest)
        self._load_commit = lru_cache(_KEPT_COMMITS)(self._read_commit)
        self._snapshot_files = lru_cache(1)(self._read_snapshot_files)
        self._seen_version = latest.version
        self._newest_commit = latest.version, store.head(commit_path(latest.version))
        self._idle: tuple[StreamOffset, StreamOffset] | None = None
        self._identified: str | UnsetType = UNSET

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
            SchemaMismatch, UnsupportedFeature, ChangeDataNotRecorded: see `CommitRules.check`.
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
                changes = self._rules.changes_of(actions)
            except DeltaError:
                if admission.files:
                    break
                raise
            offset = self._take_commit(offset, changes, admission)
        if admission.files or offset.version - start.version >= _COMMITS_PER_EMPTY_BATCH:
            return self._with_identity(offset)
        self._idle = (start, offset)
        return start

    def _with_identity(self, offset: StreamOffset) -> StreamOffset:
        self._identified = self._digest_before(offset)
        return replace(offset, commit=self._identified)

    def _digest_before(self, offset: StreamOffset) -> str | UnsetType:
        """Digest of the last commit that was read; none if a clean-up has deleted it."""
        try:
            return commit_digest(read_commit(self._store, offset.last_read))
        except VersionNotFound:
            return UNSET

    def _take_snapshot(self, offset: StreamOffset, admission: Admission) -> StreamOffset:
        total = 0
        for sizes in self._snapshot_files(offset.version).sizes_from(offset.index):
            taken = admission.take(sizes)
            total += taken
            if taken < len(sizes):
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
        if start.version == BEGINNING:
            newest = end.version if end.is_snapshot else end.version - 1
            start = self.initial_offset(newest) if end.origin is UNSET else end.origin
        found = _BatchFiles(self._options, self._latest)
        if start.is_snapshot:
            stop = end.index if end.is_snapshot else None
            self._collect_snapshot(start, stop, found)
            start = end if end.is_snapshot else start.next_version()
        last = end.version if end.index else end.version - 1
        if not end.is_snapshot and start.version <= last:
            for actions, timestamp_ms in self._commits(start.version, last):
                first = start.index if actions.version == start.version else 0
                stop = end.index if actions.version == end.version else None
                with located(self._store, actions.version):
                    changes = self._rules.changes_of(actions)[first:stop]
                    found.carry_defaults_of(self._rules.configuration_at(actions))
                    found.add(actions.version, timestamp_ms, changes)
        return found.to_sets()

    def _commits(self, first: int, last: int) -> Iterator[tuple[CommitActions, int]]:
        if self._options.read_change_feed:
            for commit in read_commit_range(self._store, first, last):
                yield commit.actions, commit.timestamp_ms
            return
        for version in range(first, last + 1):
            yield self._load_present_commit(version), 0

    def _collect_snapshot(self, start: StreamOffset, stop: int | None, found: _BatchFiles) -> None:
        snapshot = self._snapshot_at(start.version)
        chosen = self._snapshot_files(start.version).between(start.index, stop)
        found.carry_defaults_of(snapshot.configuration)
        timestamp_ms = snapshot.timestamp_ms if self._options.read_change_feed else 0
        for files in chosen:
            for batch in files.to_batches(max_chunksize=_ROWS_AT_ONCE):
                changes = [_inserted(row) for row in batch.to_pylist()]
                found.add(start.version, timestamp_ms, changes)

    def _read_snapshot_files(self, version: int) -> SnapshotFiles:
        snapshot = self._snapshot_at(version)
        self._rules.check_schema(snapshot.configuration, version)
        return SnapshotFiles(snapshot, stretch_files=self._stretch_files)

    def _snapshot_at(self, version: int) -> Snapshot:
        if version == self._latest.version:
            return self._latest
        try:
            return Snapshot.load(self._store, version=version)
        except VersionNotFound as error:
            raise VersionNotFound(
                f"The stream was reading the rows that the table had at version {version}, and the "
                "log does not reach back to it any more: start a new query, with a checkpoint "
                "location of its own",
                table=self._store.location.uri,
                version=version,
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
            raise VersionNotFound(
                f"The stream goes on with version {version}, whose commit a clean-up of the log "
                "has removed, so that its rows would be lost: start a new query, with a "
                "checkpoint location of its own",
                table=self._store.location.uri,
                version=version,
            ) from error

    def _read_commit(self, version: int) -> CommitActions:
        data = read_commit(self._store, version)
        if version > self._newest_commit[0]:
            self._check_same_log(version)
        with located(self._store, version):
            return decode_commit(data, version=version)

    def _check_same_log(self, version: int) -> None:
        """Check that the log still holds the newest commit that was read, unchanged: a table that
        is recreated under a running query has the same version numbers.
        """
        before, seen = self._newest_commit
        found = self._store.head(commit_path(before))
        if seen is not None and found is not None and found != seen:
            raise SchemaMismatch(
                f"The table was deleted and created again since its version {before} was read: "
                "start a new query, with a checkpoint location of its own",
                table=self._store.location.uri,
                version=version,
            )
        self._newest_commit = version, self._store.head(commit_path(version))

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
        if offset.commit in {UNSET, self._identified}:
            return
        if self._digest_before(offset) not in {UNSET, offset.commit}:
            raise VersionNotFound(
                f"The version {offset.last_read} that the query has read is another one now: the "
                "log of the table was set back and has grown again; start a new query, with a "
                "checkpoint location of its own",
                table=table,
                version=offset.last_read,
            )
        self._identified = offset.commit

    def _set_back(self, read: int, found: int) -> VersionNotFound:
        return VersionNotFound(
            f"The query has read the table up to version {read}, and it is at {found}: its log was "
            "set back, or the table was created again; start a new query, with a checkpoint "
            "location of its own",
            table=self._store.location.uri,
            version=read + 1,
        )


def files_of_snapshot(snapshot: Snapshot) -> ChangeFileSet:
    """The live files of a version, as one set to read."""
    rows = ChangeFileRows()
    files = snapshot.live_files(SNAPSHOT_COLUMNS)
    for batch in files.select(SNAPSHOT_COLUMNS).to_batches(max_chunksize=_ROWS_AT_ONCE):
        for row in batch.to_pylist():
            rows.add(snapshot.version, _inserted(row), _NO_CONSTANTS)
    return ChangeFileSet(snapshot.configuration, rows.to_table(), None)


class _BatchFiles:
    def __init__(self, options: SourceOptions, latest: Snapshot) -> None:
        self._feed = FeedFiles() if options.read_change_feed else None
        self._rows = ChangeFileRows()
        self._configuration = latest.configuration

    def carry_defaults_of(self, configuration: TableConfiguration) -> None:
        """Read files of a version with the defaults of that version, see
        `with_existing_defaults_of`.
        """
        self._configuration = self._configuration.with_existing_defaults_of(configuration)

    def add(self, version: int, timestamp_ms: int, changes: Sequence[FileChange]) -> None:
        """Append the files of a commit, or of a snapshot."""
        for change in changes:
            if self._feed is None:
                self._rows.add(version, change, _NO_CONSTANTS)
            else:
                self._feed.add(version, timestamp_ms, change)

    def to_sets(self) -> tuple[ChangeFileSet, ...]:
        """The groups that have files."""
        if self._feed is None:
            sets = [ChangeFileSet(self._configuration, self._rows.to_table(), None)]
        else:
            sets = [*self._feed.sets(self._configuration)]
        return tuple(changes for changes in sets if changes.files.num_rows)


def _inserted(row: Mapping[str, Any]) -> FileChange:
    return FileChange(
        path=row["path"],
        partition_values=dict(row["partition_values"] or ()),
        size_bytes=row["size_bytes"],
        change_type="insert",
        deletion_vector=descriptor_of(row),
    )


class CommitRules:
    """The rules of one run of a query."""

    def __init__(self, store: ObjectStore, options: SourceOptions, latest: Snapshot) -> None:
        self._store = store
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
        return tuple(
            FileChange(
                path=add.path,
                partition_values=add.partition_values,
                size_bytes=add.size_bytes,
                change_type="insert",
                deletion_vector=add.deletion_vector,
            )
            for add in adds
        )

    def _check_allowed(self, actions: CommitActions, *, has_new_rows: bool) -> None:
        operation = (actions.commit_info or {}).get("operation") or "a commit"
        if has_new_rows and not self._options.allows_changes:
            raise UnsupportedFeature(
                f"The stream cannot show that rows were changed, as version {actions.version} "
                f"({operation}) did: pass skipChangeCommits to leave such commits out, "
                "ignoreChanges to read all rows of the files they rewrote, or readChangeFeed to "
                "read the changes",
                table=self._store.location.uri,
                version=actions.version,
            )
        if not has_new_rows and not self._options.allows_deletes:
            raise UnsupportedFeature(
                f"The stream cannot show that rows were deleted, as version {actions.version} "
                f"({operation}) did: pass ignoreDeletes or skipChangeCommits to go on without it, "
                "or readChangeFeed to read the changes",
                table=self._store.location.uri,
                version=actions.version,
            )

    def _check_configuration(self, actions: CommitActions) -> None:
        configuration = self.configuration_at(actions)
        version = actions.version
        if configuration is not self._latest.configuration:
            self.check_schema(configuration, version)
        is_recorded = configuration.properties.enable_change_data_feed
        if self._options.read_change_feed and not is_recorded:
            raise ChangeDataNotRecorded(
                f"The change data feed was off at version {version} (delta.enableChangeDataFeed), "
                "so that its changes are not recorded: start a new query from a version after "
                "which it is on",
                table=self._store.location.uri,
                version=version,
            )

    def configuration_at(self, actions: CommitActions) -> TableConfiguration:
        """The configuration of the version of a commit."""
        version = actions.version
        if version in self._known:
            return self._known[version]
        before = self._known.get(version - 1)
        if before is not None:
            found = before
            if actions.protocol is not None or actions.metadata is not None:
                found = TableConfiguration(
                    actions.protocol or before.protocol, actions.metadata or before.metadata
                )
                found.check_readable(table=self._store.location.uri, version=version)
        else:
            found = self._load(version)
        if len(self._known) > _REMEMBERED_VERSIONS:
            self._known = {self._latest.version: self._latest.configuration}
        self._known[version] = found
        return found

    def _load(self, version: int) -> TableConfiguration:
        try:
            found = Snapshot.load(self._store, version=version).configuration
        except VersionNotFound as error:
            raise VersionNotFound(
                f"The log does not have the schema that version {version} was written with, as the "
                "checkpoint before it was cleaned up: start a new query from a later version",
                table=self._store.location.uri,
                version=version,
            ) from error
        latest = self._latest.configuration
        # If nothing changed, return the same object, so that later comparisons are fast.
        is_same = found.metadata == latest.metadata and found.protocol == latest.protocol
        return latest if is_same else found

    def check_schema(self, configuration: TableConfiguration, version: int) -> None:
        """Raises SchemaMismatch if the query cannot show rows of a version with its schema."""
        latest, table = self._latest, self._store.location.uri
        if configuration.metadata.id != latest.metadata.id:
            raise SchemaMismatch(
                f"Version {version} made another table of it: start a new query, with a "
                "checkpoint location of its own",
                table=table,
                version=version,
            )
        problem = find_incompatibility(configuration, latest.configuration)
        if version > latest.version:
            # A new column would be lost, so the schemas must fit in both directions.
            problem = problem or find_incompatibility(latest.configuration, configuration)
            if problem is not None:
                raise SchemaMismatch(
                    f"The schema of the table changed at version {version}: start the query again, "
                    "and it continues with the new schema from its position",
                    table=table,
                    version=version,
                )
        elif problem is not None:
            raise SchemaMismatch(
                f"The rows of version {version} cannot be shown with the schema of version "
                f"{latest.version}, with which the stream is read: {problem}. Start a new query, "
                "with a checkpoint location of its own, from a version after that change",
                table=table,
                version=version,
            )


class SnapshotFiles:
    """The live files of a version by modification time and path, an order that is the same in every
    run of a query. Of a large table a range of files is in memory at a time, for which the log is
    read once.

    `stretch_files` of a large table are in memory at a time, about; `max_samples` files divide it
    into such ranges.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        stretch_files: int = STRETCH_FILES,
        max_samples: int = _MAX_SAMPLES,
    ) -> None:
        self._snapshot = snapshot
        self._bounds: list[_Bound] = []
        self._starts = [0]
        if snapshot.is_large_and_unread:
            self._bounds = _sampled_bounds(snapshot, stretch_files, max_samples)
            self._starts += _positions(snapshot, self._bounds)
        self._held: tuple[int, pa.Table] | None = None

    def sizes_from(self, index: int) -> Iterator[list[int]]:
        """Sizes in bytes of the files from a position on, range by range."""
        for stretch in range(bisect_right(self._starts, index) - 1, len(self._starts)):
            files = self._files_of(stretch)
            yield files["size_bytes"].slice(max(0, index - self._starts[stretch])).to_pylist()

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
            found = self._read(stretch).sort_by([(name, "ascending") for name in _KEY])
            self._held = stretch, found.select(SNAPSHOT_COLUMNS)
        return self._held[1]

    def _read(self, stretch: int) -> pa.Table:
        names = [*SNAPSHOT_COLUMNS, "modification_time_ms"]
        if not self._bounds:
            return self._snapshot.live_files(names)
        low = self._bounds[stretch - 1] if stretch else None
        high = self._bounds[stretch] if stretch < len(self._bounds) else None

        def is_inside(files: pa.Table) -> pa.ChunkedArray:
            inside = every(True, files.num_rows)
            if low is not None:
                inside = pc.and_(inside, pc.invert(low.is_after(files)))
            return inside if high is None else pc.and_(inside, high.is_after(files))

        return FilePlanner(self._snapshot).choose(names, is_inside)


class _Bound:
    """A boundary between two ranges: the file that begins the later one."""

    def __init__(self, time_ms: int, path: str) -> None:
        self._time = integer_scalar(time_ms)
        self._path = string_column([path])[0]

    def is_after(self, files: pa.Table) -> pa.ChunkedArray:
        """For each file whether it is before this boundary; files without a time come last."""
        times, paths = files["modification_time_ms"], files["path"]
        same = pc.and_(pc.equal(times, self._time), pc.less(paths, self._path))
        return pc.fill_null(pc.or_(pc.less(times, self._time), same), False)


def _sampled_bounds(snapshot: Snapshot, stretch_files: int, max_samples: int) -> list[_Bound]:
    """Boundaries that divide the files into ranges of about equal length."""
    stride = max(1, -(-snapshot.max_file_actions // max_samples))
    samples = [pa.Table.from_batches([], pa.schema(map(LIVE_FILE_SCHEMA.field, _KEY)))]
    first = 0
    for batch in FilePlanner(snapshot).batches(_KEY):
        num_files = batch.files.num_rows
        samples.append(batch.files.take(integer_column(range(first, num_files, stride))))
        first = (first - num_files) % stride
    ordered = pa.concat_tables(samples).drop_null()
    ordered = ordered.sort_by([(name, "ascending") for name in _KEY])
    step = max(1, stretch_files // stride)
    chosen = ordered.take(integer_column(range(step, ordered.num_rows, step)))
    return [_Bound(*row.values()) for row in chosen.to_pylist()]


def _positions(snapshot: Snapshot, bounds: list[_Bound]) -> list[int]:
    positions = [0] * len(bounds)
    for batch in FilePlanner(snapshot).batches(_KEY):
        for number, bound in enumerate(bounds):
            positions[number] += pc.sum(bound.is_after(batch.files), min_count=0).as_py()
    return positions
