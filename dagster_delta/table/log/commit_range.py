"""The commits of a range of versions, one by one, and when versions were committed.

Spec: Delta Log Entries; In-Commit Timestamps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dagster_delta.errors import InvalidTable, LogGap, VersionNotFound
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_file import CommitActions, decode_actions
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.protocol.log.segment import LogListing, LogSegment, spell_versions
from dagster_delta.protocol.log.version_checksum import VersionChecksum
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.reader import list_log, located, read_commit_info, read_versions

# File times are made monotonic starting this many versions before the range, as in the reference
# implementation.
_VERSIONS_BEFORE = 100
_COMMITS_AT_ONCE = 64
_MAX_TIMESTAMP_MS = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class RangeCommit:
    """One commit of a range."""

    timestamp_ms: int
    """Milliseconds since the epoch: the commit's own timestamp under in-commit timestamps, else the
    time of its file."""
    actions: CommitActions


def read_commit_range(store: ObjectStore, start: int, end: int) -> Iterator[RangeCommit]:
    """The commits from `start` to `end`, both included, decoded while they are consumed.

    VersionNotFound: the log no longer reaches back to `start`; LogGap: a commit inside the range is
    missing. Other errors of a commit are raised when it is reached.
    """
    listing = list_log(store, start=max(0, start - _VERSIONS_BEFORE), end=end)
    present = sorted(version for version in listing.commits if version >= start)
    _refuse_missing(present, start, end, table=store.location.uri)
    return _decoded(store, listing, present)


def _refuse_missing(present: Sequence[int], start: int, end: int, *, table: str) -> None:
    missing = []
    expected = start
    # In steps: a range may span very many versions.
    for version in (*present, end + 1):
        if version > expected:
            missing.append((expected, version - 1))
        expected = version + 1
    if not missing:
        return
    first, last = missing[0]
    if first == start:
        ahead = f"read the changes from version {last + 1} on" if last < end else "wait for changes"
        raise VersionNotFound(
            f"The log does not hold the commits of {spell_versions(missing[:1])} any more, so that "
            f"their changes are lost: take the whole table as of version {last}, or a later one, "
            f"and {ahead}",
            table=table,
            version=start,
        )
    raise LogGap(
        f"The log lacks the commits of {spell_versions(missing)}, whose changes are lost: restore "
        f"the files, or take the whole table as of version {missing[-1][1]} and read the changes "
        "after it",
        table=table,
        version=first,
    )


def _decoded(
    store: ObjectStore, listing: LogListing, versions: Sequence[int]
) -> Iterator[RangeCommit]:
    file_times: dict[int, int] | None = None
    for raw in read_versions(store, listing, versions, at_once=_COMMITS_AT_ONCE):
        with located(store, raw.version):
            actions = decode_actions(raw.data, version=raw.version, path=raw.path)
            timestamp = _own_time(actions)
        if timestamp is None:
            # Done only here, because the time of a file may cost a request.
            file_times = file_times or _file_times(listing)
            timestamp = file_times[raw.version]
        yield RangeCommit(timestamp, actions)


def _file_times(listing: LogListing) -> dict[int, int]:
    versions = sorted(listing.commits)
    return dict(zip(versions, commit_times(listing, versions), strict=True))


def _own_time(actions: CommitActions) -> int | None:
    time = (actions.commit_info or {}).get("inCommitTimestamp")
    if not isinstance(time, int) or isinstance(time, bool):
        return None
    if not 0 <= time <= _MAX_TIMESTAMP_MS:
        raise InvalidTable(f"The in-commit timestamp {time} is no time; the commit is damaged")
    return time


def committed_at_ms(
    store: ObjectStore,
    segment: LogSegment,
    configuration: TableConfiguration,
    checksum: VersionChecksum | None,
) -> int:
    """When the newest version of a segment was committed, in milliseconds since the epoch.

    The commit's own timestamp if the table keeps them, else the time of its file.
    """
    if configuration.in_commit_timestamps_enabled:
        timestamp = _in_commit_timestamp(store, segment, checksum)
        if timestamp is not None:
            return timestamp
    file = segment.commit
    if file is None or not file.modified_ms:
        file = store.head(commit_path(segment.version))
    if file is None and segment.checkpoint is not None:
        file = segment.checkpoint.files[0]
    return 0 if file is None else file.modified_ms


def _in_commit_timestamp(
    store: ObjectStore, segment: LogSegment, checksum: VersionChecksum | None
) -> int | None:
    if checksum is not None and checksum.in_commit_timestamp_ms is not None:
        return checksum.in_commit_timestamp_ms
    if segment.commit is None:
        return None
    timestamp = read_commit_info(store, segment.version).get("inCommitTimestamp")
    return timestamp if isinstance(timestamp, int) else None


def commit_times(listing: LogListing, versions: Sequence[int]) -> list[int]:
    """Times of commit files in milliseconds, ascending versions, each later than the one before.

    Copying a table or a skewed clock may change the order of file times; a version is then dated
    one millisecond after its predecessor.
    """
    times: list[int] = []
    for version in versions:
        modified = listing.commits[version].modified_ms
        times.append(max(modified, times[-1] + 1) if times else modified)
    return times
