"""From the commits of a range to the files that hold their row changes.

Spec: Change Data Files; Add CDC File (Reader Requirements for AddCDCFile).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.plans import ChangeFileSet
from dagster_delta.errors import ChangeDataNotRecorded, SchemaMismatch
from dagster_delta.protocol.features.change_data import (
    CHANGE_TYPE_COLUMN,
    COMMIT_TIMESTAMP_COLUMN,
    COMMIT_VERSION_COLUMN,
    feed_configuration,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.change_data import (
    CHANGE_FILE_SCHEMA,
    FileChange,
    change_file_batch,
    file_changes,
    may_have_moved,
)
from dagster_delta.protocol.log.commit_file import CommitActions
from dagster_delta.protocol.log.segment import spell_versions
from dagster_delta.protocol.schema import DataType
from dagster_delta.protocol.schema_compatibility import find_incompatibility
from dagster_delta.protocol.values.arrow_columns import boolean_column
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.commit_range import RangeCommit, read_commit_range
from dagster_delta.table.log.reader import check_readable, located
from dagster_delta.table.read.file_planner import CandidateFiles
from dagster_delta.table.read.snapshot import Snapshot

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  spelled without a zone, like partition values
_ROWS_PER_BATCH = 10_000


class ChangedFiles(msgspec.Struct, frozen=True):
    """The files with the row changes of a range of versions."""

    sets: tuple[ChangeFileSet, ...]
    """Change data files, whose rows say how they changed; files of the table, whose rows were all
    inserted, or all deleted; and those among which rows may have moved."""
    changes_metadata: bool = False
    """Whether a version of the range has changed the schema or properties of the table."""

    def matching(self, where: SqlExpression) -> ChangedFiles:
        """Without the files in which no row satisfies a filter."""

        def skip(changes: ChangeFileSet) -> ChangeFileSet:
            filtered = msgspec.structs.replace(changes, where=where)
            if filtered.filters_kinds:
                return filtered
            found = CandidateFiles.among(changes.files, changes.configuration, where.typed)
            needed = None if found.is_decided else where
            return msgspec.structs.replace(changes, files=found.files, where=needed)

        return replace(self, sets=tuple(map(skip, self.sets)))

    def check_compared(self, max_bytes: int | None, *, table: str) -> None:
        """Refuse to compare files of more than `max_bytes`; None for no limit."""
        if max_bytes is None or self.compared_bytes <= max_bytes:
            return
        (compared,) = (changes for changes in self.sets if changes.is_compared)
        versions = pc.unique(compared.files["commit_version"]).sort().to_pylist()
        raise ChangeDataNotRecorded(
            "The change data feed was off (delta.enableChangeDataFeed) at "
            f"{spell_versions(_join_versions(versions))}, which removed and added files of "
            f"{self.compared_bytes:,} bytes in {compared.files.num_rows} files. To find their "
            f"changes, the rows of these files are compared, and max_bytes is {max_bytes:,}: pass "
            "a larger one, read fewer versions or take the whole table; and set the table property "
            "delta.enableChangeDataFeed to true, so that later versions record their changes",
            table=table,
            version=versions[0],
        )

    @property
    def compared_bytes(self) -> int:
        """Bytes of the files whose rows are compared, as the feed was off; 0 if there are none."""
        sizes = (changes.files["size_bytes"] for changes in self.sets if changes.is_compared)
        return sum(pc.sum(size, min_count=0).as_py() for size in sizes)


def _join_versions(versions: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending versions as ranges."""
    ranges: list[tuple[int, int]] = []
    for version in versions:
        start = ranges.pop()[0] if ranges and ranges[-1][1] == version - 1 else version
        ranges.append((start, version))
    return ranges


def plan_changes(store: ObjectStore, start: int, end: Snapshot) -> ChangedFiles:
    """The files with the row changes of the versions from `start` to `end`, both included.

    Where the feed was off, the files that a version has removed and added are enough: its changes
    are their rows, without those that only moved.
    """
    collected = _Collected(end.configuration.partition_types)
    shown, unrecorded = end.configuration, list[tuple[int, int]]()
    if start <= end.version:
        for commit in read_commit_range(store, start, end.version):
            with located(store, commit.actions.version):
                collected.take(commit)
        found, unrecorded = _check_configurations(store, start, end, collected)
        shown = reduce(TableConfiguration.with_existing_defaults_of, found, shown)
    with located(store, end.version):
        sets = collected.files.sets(shown, unrecorded)
    changes_metadata = any(
        change.metadata is not None for change in collected.configuration_changes
    )
    return ChangedFiles(sets, changes_metadata)


class _ChangeFileRows:
    """Grows into a table of CHANGE_FILE_SCHEMA without keeping an object per file."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, FileChange, Mapping[str, str]]] = []
        self._batches: list[pa.RecordBatch] = []

    def add(self, version: int, change: FileChange, constants: Mapping[str, str]) -> None:
        """Append a file; see `change_file_batch`."""
        self._waiting.append((version, change, constants))
        if len(self._waiting) >= _ROWS_PER_BATCH:
            self._append_batch()

    def to_table(self) -> pa.Table:
        """The table so far."""
        self._append_batch()
        return pa.Table.from_batches(self._batches, CHANGE_FILE_SCHEMA)

    def _append_batch(self) -> None:
        if self._waiting:
            self._batches.append(change_file_batch(self._waiting))
            self._waiting = []


class FeedFiles:
    """The files of a change data feed, grouped by whether their rows say how they changed; or only
    the files of inserted rows, which are read without the columns of the feed.
    """

    def __init__(self, *, is_feed: bool = True) -> None:
        self._is_feed = is_feed
        self._recorded = _ChangeFileRows()
        self._derived = _ChangeFileRows()
        self._may_have_moved: list[bool] = []

    def add_commit(
        self,
        version: int,
        timestamp_ms: int,
        changes: Sequence[FileChange],
        partition_types: Iterable[tuple[str, DataType]],
    ) -> None:
        """Append the files of a commit. `partition_types`: see `may_have_moved`."""
        moved_of = may_have_moved(changes, partition_types)
        for change, moved in zip(changes, moved_of, strict=True):
            self.add(version, timestamp_ms, change)
            if change.change_type is not None:
                self._may_have_moved.append(moved)

    def add(self, version: int, timestamp_ms: int, change: FileChange) -> None:
        """Append a file of a commit whose changes are recorded."""
        if not self._is_feed:
            self._derived.add(version, change, {})
            return
        constants = _commit_constants(version, timestamp_ms)
        if change.change_type is None:
            self._recorded.add(version, change, constants)
        else:
            typed = {**constants, CHANGE_TYPE_COLUMN: change.change_type}
            self._derived.add(version, change, typed)

    def sets(
        self, configuration: TableConfiguration, unrecorded: Sequence[tuple[int, int]] = ()
    ) -> tuple[ChangeFileSet, ...]:
        """Both groups, or the only one, to be read with the schema of a configuration; and files
        among which rows may have moved, in ranges of versions that did not record it.
        """
        if not self._is_feed:
            return (ChangeFileSet(configuration, self._derived.to_table(), None),)
        recorded = feed_configuration(configuration, has_change_type=True)
        derived = feed_configuration(configuration, has_change_type=False)
        files = self._derived.to_table()
        sets = [ChangeFileSet(recorded, self._recorded.to_table(), None)]
        if unrecorded and any(self._may_have_moved):
            versions = files["commit_version"].to_pylist()
            flags = zip(versions, self._may_have_moved, strict=True)
            compared = boolean_column(
                [
                    moved and any(a <= version <= b for a, b in unrecorded)
                    for version, moved in flags
                ]
            )
            moving = pc.filter(files, compared)
            files = pc.filter(files, pc.invert(compared))
            if moving.num_rows:
                sets.append(ChangeFileSet(derived, moving, None, is_compared=True))
        return (*sets, ChangeFileSet(derived, files, None))


class _Collected:
    def __init__(self, partition_types: tuple[tuple[str, DataType], ...]) -> None:
        self.files = FeedFiles()
        self.configuration_changes: list[CommitActions] = []
        """Commits that change protocol or metadata, without their other actions."""
        self.replacements: set[int] = set()
        """Versions for which `removes_older_rows` is true."""
        self._partition_types = partition_types

    def take(self, commit: RangeCommit) -> None:
        actions = commit.actions
        if actions.protocol is not None or actions.metadata is not None:
            self.configuration_changes.append(
                CommitActions(
                    version=actions.version, protocol=actions.protocol, metadata=actions.metadata
                )
            )
        if removes_older_rows(actions):
            self.replacements.add(actions.version)
        types = self._partition_types
        changes = file_changes(actions, partitioned=bool(types))
        self.files.add_commit(actions.version, commit.timestamp_ms, changes, types)


def removes_older_rows(actions: CommitActions) -> bool:
    """Whether a commit removed rows that were written under another configuration than its own, as
    a commit that replaces the table does.
    """
    changes = actions.protocol is not None or actions.metadata is not None
    return changes and actions.version > 0 and actions.removes_data


@lru_cache(maxsize=1)
def _commit_constants(version: int, timestamp_ms: int) -> dict[str, str]:
    """The values of the feed's columns for a commit, serialised like partition values."""
    moment = _EPOCH + dt.timedelta(milliseconds=timestamp_ms)
    return {
        COMMIT_VERSION_COLUMN: str(version),
        COMMIT_TIMESTAMP_COLUMN: moment.isoformat(sep=" ", timespec="milliseconds"),
    }


def _check_configurations(
    store: ObjectStore, start: int, end: Snapshot, collected: _Collected
) -> tuple[list[TableConfiguration], list[tuple[int, int]]]:
    """The configurations under which the rows of the range were written, checked so that all of
    them can be read with the last one; and the ranges of versions at which the feed was off.
    """
    table = store.location.uri
    found = list(_list_configurations(store, start, end, collected.configuration_changes))
    removed, unrecorded = [], []
    ends = [*(version for version, _ in found[1:]), end.version + 1]
    for (version, configuration), until in zip(found, ends, strict=True):
        check_readable(store, configuration, version)
        if not configuration.properties.enable_change_data_feed:
            unrecorded.append((version, until - 1))
        problem = find_incompatibility(configuration, end.configuration)
        if problem is None and version == start and start in collected.replacements:
            removed = [Snapshot.load(store, version=start - 1).configuration]
            # A commit that changes the schema, as a RESTORE may, shows removed rows in its own.
            problem = find_incompatibility(removed[0], end.configuration, keeps_columns=False)
        if problem is not None:
            ranges = _readable_ranges(found, ends, collected.replacements)
            raise SchemaMismatch(
                f"The rows of version {version} cannot be shown with the schema of version "
                f"{end.version}, with which the feed is read: {problem}. What can be read, each "
                f"range by itself: the changes of {spell_versions(ranges)}",
                table=table,
                version=version,
            )
    return [*removed, *(configuration for _, configuration in found)], unrecorded


def _readable_ranges(
    found: Sequence[tuple[int, TableConfiguration]], ends: Sequence[int], replaced: Collection[int]
) -> list[tuple[int, int]]:
    """The longest ranges of versions whose rows can be shown with the schema at their end."""
    ranges: list[tuple[int, int]] = []
    shown: TableConfiguration | None = None
    for (version, configuration), until in zip(reversed(found), reversed(ends), strict=True):
        if shown is not None and find_incompatibility(configuration, shown) is None:
            ranges[-1] = (version, ranges[-1][1])
            continue
        shown = configuration
        ranges.append((version, until - 1))
    # A commit that replaces the table shows the rows of both schemas.
    kept = [(low + (low in replaced), high) for low, high in reversed(ranges)]
    return [(low, high) for low, high in kept if low <= high] or kept


def _list_configurations(
    store: ObjectStore, start: int, end: Snapshot, changes: list[CommitActions]
) -> Iterator[tuple[int, TableConfiguration]]:
    later = [change for change in changes if change.version > start]
    if not later:
        # Nothing has changed since: the table at the start need not be read.
        yield start, end.configuration
        return
    configuration = Snapshot.load(store, version=start).configuration
    yield start, configuration
    for change in later:
        configuration = configuration.after(change.protocol, change.metadata)
        yield change.version, configuration
