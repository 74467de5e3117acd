"""Watches a log from outside: the commits after a cursor, from any writer.

A poll costs only the new commits: one listing from the cursor on, and one read of each commit, all
at once. On local disks, where a listing goes through the whole directory, it takes two small reads
besides those of the commits: of the one that is not there yet, and of that of the cursor, to see
that the log is still the same.

Spec: Delta Log Entries; Metadata Cleanup.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from dagster_delta.errors import InvalidArgument, LogGap, TableNotFound, VersionNotFound
from dagster_delta.protocol.actions import Metadata
from dagster_delta.protocol.features.column_mapping import PHYSICAL_NAME_KEY
from dagster_delta.protocol.log.commit_file import CommitActions, decode_commit
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.protocol.schema import PrimitiveType, StructType
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.commit_summary import CommitSummary, summarise_commit
from dagster_delta.table.log.reader import (
    KnownCommit,
    commit_digest,
    is_newest,
    list_commits_after,
    list_log,
    located,
    probe_commits_after,
    read_last_checkpoint,
)
from dagster_delta.table.read.snapshot import Snapshot

StartFrom: TypeAlias = Literal["earliest", "latest"] | int
"""Where a watch begins: after the latest commit, at the oldest commit, or at a version."""

NOTHING_SEEN = -1
"""The version of a cursor before the first commit of a table."""


class LogCursor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a log was read, and how the log is recognized.

    Only the version is required: other fields that are missing cost opening the table once.
    """

    version: int
    """The last version that was read; -1 before the first."""
    table_id: str | None = None
    """UUID of the table."""
    commit_digest: str | None = None
    """Digest of the commit file of the version: a log with another such file has another
    history."""
    commit_modified_ms: int | None = None
    """Time of that file. If it is unchanged, the file need not be read to recognize it."""
    partition_columns: dict[str, str] | None = None
    """Physical to logical name of the partition columns."""
    timestamp_columns: tuple[str, ...] | None = None
    """Logical names of the partition columns of type timestamp, whose values are instants: in UTC
    if they name no zone. Cursors of older releases lack it."""
    change_feed_enabled: bool | None = None
    """Whether the change data feed is on at the version."""

    def __post_init__(self) -> None:
        if self.version < NOTHING_SEEN:
            raise ValueError(f"a version must be ≥ 0, not {self.version}")

    @property
    def commit(self) -> KnownCommit | None:
        """The commit of the version; None if the table has to be opened to read on."""
        if self.commit_digest is None or self.partition_columns is None:
            return None
        if self.partition_columns and self.timestamp_columns is None:
            return None
        return KnownCommit(self.version, None, self.commit_modified_ms or 0, self.commit_digest)


def start_cursor(store: ObjectStore, start_from: StartFrom = "latest") -> LogCursor:
    """The cursor to read a log with for the first time.

    Args:
        store: rooted at the table.
        start_from: `latest` skips every existing commit; `earliest` begins with the oldest commit
            in the log; a version begins with that version.

    Raises:
        TableNotFound: the table does not exist.
        VersionNotFound: the table has not reached the version yet.
        InvalidTable, UnsupportedFeature, StorageFailure: the table cannot be opened.
    """
    snapshot = Snapshot.load(store)
    version = _version_before(store, snapshot, start_from)
    if version == NOTHING_SEEN:
        return LogCursor(version=version, table_id=snapshot.metadata.id)
    return _complete_cursor(store, LogCursor(version=version), _as_of(store, version, snapshot))


def _as_of(store: ObjectStore, version: int, latest: Snapshot) -> Snapshot:
    if version == latest.version:
        return latest
    try:
        return Snapshot.load(store, version=version)
    except (VersionNotFound, LogGap):
        # The clean-up deleted the commits that this version needs.
        return latest


def _version_before(store: ObjectStore, snapshot: Snapshot, start_from: StartFrom) -> int:
    if start_from == "latest":
        return snapshot.version
    if start_from == "earliest":
        listing = list_log(store, end=snapshot.version)
        return listing.first_commit_before(snapshot.version) - 1
    if isinstance(start_from, bool) or not isinstance(start_from, int) or start_from < 0:
        raise InvalidArgument(
            f"A watch starts from 'latest', 'earliest' or a version, not {start_from!r}"
        )
    if start_from > snapshot.version + 1:
        raise VersionNotFound(
            f"The table has not reached version {start_from} yet: it is at {snapshot.version}; "
            "start from an older version, or from 'latest'",
            table=store.location.uri,
            version=start_from,
        )
    return start_from - 1


def read_new_commits(
    store: ObjectStore, cursor: LogCursor, *, limit: int = 100
) -> tuple[LogCursor, tuple[CommitSummary, ...]]:
    """The commits after the cursor, in order, and the cursor after them.

    A table that does not exist yet has no commits, if the cursor is before its first commit.

    Args:
        store: rooted at the table.
        cursor: how far the log was read.
        limit: maximum number of commits; the next call returns the others.

    Raises:
        VersionNotFound: the log does not continue from the cursor: the next commit was cleaned up,
            another table replaced this one, or the log was reset to an older state.
        TableNotFound: the table no longer exists.
        CorruptLog: a commit is damaged.
        StorageFailure: the store cannot be reached.
    """
    listed, known = None, cursor.commit
    if known is not None and store.local_path("") is None:
        # Where a request is a round trip, a listing takes the place of several.
        listed = list_commits_after(store, cursor.version, at_most=limit, commit=known)
    if listed is not None:
        commits = [(raw.version, raw.data) for _, raw in listed]
    else:
        commits = probe_commits_after(store, cursor.version, at_most=limit)
        cursor = _check_history(store, cursor, has_successor=bool(commits))
    if not commits:
        return cursor, ()
    found = []
    for version, data in commits:
        with located(store, version):
            actions = decode_commit(data, version=version)
            cursor = _advance_cursor(cursor, actions)
            found.append(_summarise_by_cursor(actions, cursor, data))
    last, data = commits[-1]
    meta = store.head(commit_path(last)) if listed is None else listed[-1][0]
    cursor = msgspec.structs.replace(
        cursor,
        commit_digest=commit_digest(data),
        commit_modified_ms=None if meta is None else meta.modified_ms,
    )
    return cursor, tuple(found)


def last_data_change(
    store: ObjectStore, cursor: LogCursor, *, after: int = NOTHING_SEEN
) -> tuple[int, CommitSummary | None]:
    """The version after which no commit up to the cursor changed rows, and its own commit if that
    changed them. Otherwise nothing older was read: the version is `after`, or 0, or the newest one
    whose commit was cleaned up.
    """
    for version in range(cursor.version, after, -1):
        try:
            data = store.read(commit_path(version))
        except FileNotFoundError:
            return version, None
        with located(store, version):
            summary = _summarise_by_cursor(decode_commit(data, version=version), cursor, data)
        if summary.changes_data:
            return version, summary
    return max(after, 0), None


def data_version(table_id: str, version: int) -> str:
    """Names the rows of a table, which last changed at a version.

    The table's id is part of it: a recreated table may reach the same version.
    """
    return f"{table_id}:{version}"


def _summarise_by_cursor(actions: CommitActions, cursor: LogCursor, data: bytes) -> CommitSummary:
    return summarise_commit(
        actions,
        table_id=cursor.table_id or "",
        partition_columns=cursor.partition_columns or {},
        change_feed_enabled=bool(cursor.change_feed_enabled),
        digest=commit_digest(data),
    )


def _advance_cursor(cursor: LogCursor, actions: CommitActions) -> LogCursor:
    # A table that is replaced in its own log may get another id: its history continues.
    facts = {} if actions.metadata is None else _facts_of_metadata(actions.metadata)
    return msgspec.structs.replace(cursor, version=actions.version, **facts)


def _facts_of_metadata(metadata: Metadata) -> dict[str, Any]:
    # An invalid property of a version must not keep a watch from the versions after it.
    properties, names = metadata.configuration, metadata.partition_columns
    is_mapped = properties.get("delta.columnMapping.mode", "none").lower() != "none"
    schema = StructType.from_json(metadata.schema_string) if names else StructType(())
    fields = {
        str(field.metadata.get(PHYSICAL_NAME_KEY, field.name) if is_mapped else field.name): field
        for field in map(schema.get, names)
        if field is not None
    }
    former = properties.get("delta.enableChangeDataCapture", "")
    return {
        "table_id": metadata.id,
        "partition_columns": {physical: field.name for physical, field in fields.items()},
        "timestamp_columns": tuple(
            field.name for field in fields.values() if field.data_type == PrimitiveType("timestamp")
        ),
        "change_feed_enabled": properties.get("delta.enableChangeDataFeed", former).lower()
        == "true",
    }


def _check_history(store: ObjectStore, cursor: LogCursor, *, has_successor: bool) -> LogCursor:
    """The cursor, if the log continues from it. Raises as `read_new_commits` does."""
    if cursor.version == NOTHING_SEEN:
        return cursor if has_successor else _check_absent(store, cursor)
    known = cursor.commit
    is_continued = has_successor or is_newest(store, cursor.version)
    # A copy of the log has other file times but the same commits.
    if known is not None and is_continued and known.is_in(store):
        return cursor
    snapshot = _load_snapshot(store, cursor)
    # A clean-up may have deleted the commit of the cursor, and nothing is lost if its successor is
    # there. That is looked up after the commits that the snapshot has were made.
    is_at_end = snapshot.version == cursor.version
    if not (has_successor or is_at_end or store.head(commit_path(cursor.version + 1))):
        raise _explain_broken_history(store, cursor, snapshot)
    return _complete_cursor(store, cursor, snapshot)


def _check_absent(store: ObjectStore, cursor: LogCursor) -> LogCursor:
    # Tables are cloned and restored with a checkpoint and without their first commits.
    if read_last_checkpoint(store) is None:
        return cursor
    raise _explain_broken_history(store, cursor, _load_snapshot(store, cursor))


def _load_snapshot(store: ObjectStore, cursor: LogCursor) -> Snapshot:
    try:
        snapshot = Snapshot.load(store)
    except TableNotFound as error:
        raise TableNotFound(
            f"The table is gone; it was read up to version {cursor.version}: restore it, or stop "
            "watching it",
            table=store.location.uri,
        ) from error
    if cursor.table_id is not None and snapshot.metadata.id != cursor.table_id:
        raise _explain_broken_history(store, cursor, snapshot)
    return snapshot


def _complete_cursor(store: ObjectStore, cursor: LogCursor, snapshot: Snapshot) -> LogCursor:
    """The cursor with all fields filled in that a snapshot of its table gives."""
    facts = _facts_of_metadata(snapshot.metadata)
    known = KnownCommit.read(store, cursor.version)
    if known is not None and cursor.commit_digest not in {None, known.digest}:
        raise _explain_broken_history(store, cursor, snapshot)
    return msgspec.structs.replace(
        cursor,
        commit_digest=None if known is None else known.digest,
        commit_modified_ms=None if known is None else known.modified_ms,
        # Values read at the cursor's own version take precedence over the latest state.
        **{name: fact for name, fact in facts.items() if getattr(cursor, name) is None},
    )


def _explain_broken_history(
    store: ObjectStore, cursor: LogCursor, snapshot: Snapshot
) -> VersionNotFound:
    if cursor.table_id is not None and snapshot.metadata.id != cursor.table_id:
        what = (
            f"Another table is here now: {snapshot.metadata.id} at version {snapshot.version}, "
            f"where {cursor.table_id} was read up to version {cursor.version}"
        )
    elif snapshot.version > cursor.version and store.head(commit_path(cursor.version + 1)) is None:
        what = (
            f"The commits after version {cursor.version} were cleaned up before they were read; "
            f"the table is at version {snapshot.version}"
        )
    else:
        what = (
            f"The log was set back and has another history now: it was read up to version "
            f"{cursor.version}, and the table is at version {snapshot.version}"
        )
    return VersionNotFound(
        f"{what}. Read the whole table again if you keep what its commits reported, then reset the "
        "cursor of this table to start over",
        table=store.location.uri,
        version=cursor.version + 1,
    )
