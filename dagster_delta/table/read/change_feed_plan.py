"""From the commits of a range to the files that hold their row changes.

Spec: Change Data Files; Add CDC File (Reader Requirements for AddCDCFile).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from msgspec.structs import replace

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
)
from dagster_delta.protocol.log.commit_file import CommitActions
from dagster_delta.protocol.schema_compatibility import find_incompatibility
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.commit_range import RangeCommit, read_commit_range
from dagster_delta.table.log.reader import located
from dagster_delta.table.read.file_planner import CandidateFiles
from dagster_delta.table.read.snapshot import Snapshot

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  spelled without a zone, like partition values
_ROWS_PER_BATCH = 10_000


class ChangedFiles(msgspec.Struct, frozen=True):
    """The files with the row changes of a range of versions."""

    sets: tuple[ChangeFileSet, ...]
    """Change data files, whose rows say how they changed; and files of the table, whose rows were
    all inserted, or all deleted."""
    changes_metadata: bool = False
    """Whether a version of the range has changed the schema or properties of the table."""

    def matching(self, where: SqlExpression) -> ChangedFiles:
        """Without the files in which no row satisfies a filter."""

        def skip(changes: ChangeFileSet) -> ChangeFileSet:
            found = CandidateFiles.among(changes.files, changes.configuration, where.typed)
            needed = None if found.is_decided else where
            return msgspec.structs.replace(changes, files=found.files, where=needed)

        return replace(self, sets=tuple(map(skip, self.sets)))


def plan_changes(
    store: ObjectStore, start: int, end: Snapshot, *, appends_suffice: bool = False
) -> ChangedFiles:
    """The files with the row changes of the versions from `start` to `end`, both included.

    If `appends_suffice`, the feed may be off at versions that only add rows: the files that they
    add are enough.
    """
    collected = _Collected(is_partitioned=bool(end.configuration.partition_columns))
    shown = end.configuration
    if start <= end.version:
        for commit in read_commit_range(store, start, end.version):
            with located(store, commit.actions.version):
                collected.take(commit)
        found = _check_configurations(store, start, end, collected, appends_suffice=appends_suffice)
        shown = reduce(TableConfiguration.with_existing_defaults_of, found, shown)
    with located(store, end.version):
        sets = collected.files.sets(shown)
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

    def add(self, version: int, timestamp_ms: int, change: FileChange) -> None:
        """Append a file of a commit."""
        if not self._is_feed:
            self._derived.add(version, change, {})
            return
        constants = _commit_constants(version, timestamp_ms)
        if change.change_type is None:
            self._recorded.add(version, change, constants)
        else:
            typed = {**constants, CHANGE_TYPE_COLUMN: change.change_type}
            self._derived.add(version, change, typed)

    def sets(self, configuration: TableConfiguration) -> tuple[ChangeFileSet, ...]:
        """Both groups, or the only one, to be read with the schema of a configuration."""
        if not self._is_feed:
            return (ChangeFileSet(configuration, self._derived.to_table(), None),)
        recorded = feed_configuration(configuration, has_change_type=True)
        derived = feed_configuration(configuration, has_change_type=False)
        return (
            ChangeFileSet(recorded, self._recorded.to_table(), None),
            ChangeFileSet(derived, self._derived.to_table(), None),
        )


class _Collected:
    def __init__(self, *, is_partitioned: bool) -> None:
        self.files = FeedFiles()
        self.configuration_changes: list[CommitActions] = []
        """Commits that change protocol or metadata, without their other actions."""
        self.removals: list[int] = []
        """Versions that removed rows, ascending."""
        self.replacements: set[int] = set()
        """Versions for which `removes_older_rows` is true."""
        self._is_partitioned = is_partitioned

    def take(self, commit: RangeCommit) -> None:
        actions = commit.actions
        if actions.protocol is not None or actions.metadata is not None:
            self.configuration_changes.append(
                CommitActions(
                    version=actions.version, protocol=actions.protocol, metadata=actions.metadata
                )
            )
        if actions.removes_data:
            self.removals.append(actions.version)
        if removes_older_rows(actions):
            self.replacements.add(actions.version)
        for change in file_changes(actions, partitioned=self._is_partitioned):
            self.files.add(actions.version, commit.timestamp_ms, change)


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
    store: ObjectStore,
    start: int,
    end: Snapshot,
    collected: _Collected,
    *,
    appends_suffice: bool,
) -> list[TableConfiguration]:
    """The configurations under which the rows of the range were written, checked so that all of
    them can be read with the last one.
    """
    table = store.location.uri
    found = list(_list_configurations(store, start, end, collected.configuration_changes))
    removed = []
    ends = [*(version for version, _ in found[1:]), end.version + 1]
    for (version, configuration), until in zip(found, ends, strict=True):
        configuration.check_readable(table=table, version=version)
        is_recorded = configuration.properties.enable_change_data_feed
        if not is_recorded and appends_suffice:
            _refuse_removals(collected.removals, version, until, table=table)
        elif not is_recorded:
            raise ChangeDataNotRecorded(
                f"The change data feed was off at version {version} (delta.enableChangeDataFeed), "
                f"so that the changes from version {start} to {end.version} are not recorded: "
                "only the whole table can be read, or the changes of versions at which it was on",
                table=table,
                version=version,
            )
        problem = find_incompatibility(configuration, end.configuration)
        if problem is None and version == start and start in collected.replacements:
            removed = [Snapshot.load(store, version=start - 1).configuration]
            # A commit that changes the schema, as a RESTORE may, shows removed rows in its own.
            problem = find_incompatibility(removed[0], end.configuration, keeps_columns=False)
        if problem is not None:
            raise SchemaMismatch(
                f"The rows of version {version} cannot be shown with the schema of version "
                f"{end.version}, with which the feed is read: {problem}. The changes up to "
                "that change of the schema and those after it can only be read apart",
                table=table,
                version=version,
            )
    return [*removed, *(configuration for _, configuration in found)]


def _refuse_removals(removals: Sequence[int], start: int, until: int, *, table: str) -> None:
    removing = next((removal for removal in removals if start <= removal < until), None)
    if removing is not None:
        raise ChangeDataNotRecorded(
            f"Version {removing} removed or rewrote rows while the change data feed was off, so "
            "that nothing says which: set the table property delta.enableChangeDataFeed to true, "
            "as ALTER TABLE … SET TBLPROPERTIES (delta.enableChangeDataFeed = true) does, and take "
            "the whole table once",
            table=table,
            version=removing,
        )


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
