"""The commits of a range of versions, one by one, when versions were committed, and which version a
table had at a time.

Spec: Delta Log Entries; the In-Commit Timestamps of the shipped protocol. Without them the times of
the commit files are used, made monotonic as in the reference implementation.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from dagster_delta.errors import InvalidArgument, InvalidTable, LogGap, VersionNotFound
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_file import (
    CommitActions,
    decode_commit,
    in_commit_timestamp,
)
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.protocol.log.segment import LogListing, LogSegment, spell_versions
from dagster_delta.protocol.log.version_checksum import VersionChecksum
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.reader import (
    list_log,
    list_settled_log,
    located,
    read_commit_info,
    read_versions,
)
from dagster_delta.table.log.state import open_state

# File times are made monotonic starting this many versions before the range, as in the reference
# implementation.
_VERSIONS_BEFORE = 100
_COMMITS_AT_ONCE = 64
_MAX_TIMESTAMP_MS = 253_402_300_799_999


class RangeCommit(msgspec.Struct, frozen=True):
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
    return _decode_range(store, listing, present)


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


def _decode_range(
    store: ObjectStore, listing: LogListing, versions: Sequence[int]
) -> Iterator[RangeCommit]:
    file_times: dict[int, int] | None = None
    for raw in read_versions(store, listing, versions, at_once=_COMMITS_AT_ONCE):
        with located(store, raw.version):
            actions = decode_commit(raw.data, version=raw.version)
            timestamp = _own_time(actions)
        if timestamp is None:
            # Done only here, because the time of a file may cost a request.
            file_times = file_times or commit_times(listing, sorted(listing.commits))
            timestamp = file_times[raw.version]
        yield RangeCommit(timestamp, actions)


def _own_time(actions: CommitActions) -> int | None:
    time = in_commit_timestamp(actions.commit_info or {})
    if time is not None and not 0 <= time <= _MAX_TIMESTAMP_MS:
        raise InvalidTable(f"The in-commit timestamp {time} is not a time; the commit is damaged")
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
        timestamp = None if checksum is None else checksum.in_commit_timestamp_ms
        if timestamp is None and segment.commit is not None:
            timestamp = in_commit_timestamp(read_commit_info(store, segment.version))
        if timestamp is not None:
            return timestamp
    file = segment.commit
    if file is None or not file.modified_ms:
        file = store.head(commit_path(segment.version))
    if file is None and segment.checkpoint is not None:
        file = segment.checkpoint.files[0]
    return 0 if file is None else file.modified_ms


def commit_times(listing: LogListing, versions: Sequence[int]) -> dict[int, int]:
    """Times of the commit files of ascending versions in milliseconds, each later than the one
    before.

    Copying a table or a skewed clock may change the order of file times; a version is then dated
    one millisecond after its predecessor.
    """
    times: dict[int, int] = {}
    latest_ms = -1
    for version in versions:
        times[version] = latest_ms = max(listing.commits[version].modified_ms, latest_ms + 1)
    return times


def version_at(store: ObjectStore, timestamp: dt.datetime | str | int) -> int:
    """The newest version that was committed at or before a time."""
    wanted_ms = parse_timestamp(timestamp)
    times = _load_commit_times(store)
    versions = times.versions
    own = versions[times.num_by_file :]
    # Where both kinds of times occur, the first in-commit timestamp divides them.
    if own and (len(own) == len(versions) or wanted_ms >= times.of(own[0])):
        versions = own
    else:
        versions = versions[: times.num_by_file]
    index = bisect_right(versions, wanted_ms, key=times.of)
    if not index:
        raise VersionNotFound(
            f"The table cannot be read as of {_spell_time(wanted_ms)}: its log begins with version "
            f"{versions[0]}, committed at {_spell_time(times.of(versions[0]))}",
            table=store.location.uri,
        )
    found = versions[index - 1]
    if found == times.versions[-1] and wanted_ms > times.of(found):
        raise VersionNotFound(
            f"The table has no version as of {_spell_time(wanted_ms)} yet: the latest one, "
            f"{found}, was committed at {_spell_time(times.of(found))}; open it without a "
            "timestamp",
            table=store.location.uri,
        )
    return found


def first_version_since(store: ObjectStore, timestamp: dt.datetime | str | int) -> int:
    """The oldest version that was committed at or after a time."""
    wanted_ms = parse_timestamp(timestamp)
    times = _load_commit_times(store)
    index = bisect_left(times.versions, wanted_ms, key=times.of)
    if index < len(times.versions):
        return times.versions[index]
    latest = times.versions[-1]
    raise VersionNotFound(
        f"Nothing was committed since {_spell_time(wanted_ms)}: the latest version, {latest}, is "
        f"of {_spell_time(times.of(latest))}; wait for the next commit",
        table=store.location.uri,
    )


def newest_version_until(
    store: ObjectStore, listing: LogListing, configuration: TableConfiguration, until_ms: int
) -> int | None:
    """The newest version that was committed at or before a time; None if all are newer."""
    times = _Times(store, listing, configuration)
    index = bisect_right(times.versions, until_ms, key=times.of)
    return times.versions[index - 1] if index else None


def _load_commit_times(store: ObjectStore) -> _Times:
    listing = list_settled_log(store)
    table = store.location.uri
    segment = listing.segment(table=table)
    _, configuration, _ = open_state(store, segment)
    times = _Times(store, listing, configuration)
    if not times.versions:
        raise VersionNotFound(
            "The log holds no commit any more, only a checkpoint: open the table by version "
            f"{segment.version}",
            table=table,
        )
    return times


def parse_timestamp(timestamp: dt.datetime | str | int) -> int:
    """Milliseconds since the epoch.

    A datetime that is naive means UTC; a text is ISO 8601; an integer is the milliseconds
    themselves.
    """
    if isinstance(timestamp, str):
        try:
            timestamp = dt.datetime.fromisoformat(timestamp)
        except ValueError as error:
            raise InvalidArgument(
                f"{timestamp!r} is not an ISO 8601 timestamp such as 2024-05-01T12:30:00Z"
            ) from error
    if isinstance(timestamp, dt.datetime):
        aware = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=dt.UTC)
        # Exact: a float of seconds would sometimes be off by a millisecond.
        return (aware - dt.datetime.fromtimestamp(0, dt.UTC)) // dt.timedelta(milliseconds=1)
    return timestamp


class _Times:
    """When versions were committed, in milliseconds since the epoch."""

    def __init__(
        self, store: ObjectStore, listing: LogListing, configuration: TableConfiguration
    ) -> None:
        self._store = store
        earliest = listing.earliest_version or 0
        self.versions = sorted(version for version in listing.commits if version >= earliest)
        """The readable versions that have a commit, in ascending order."""
        by_file = self.versions
        if configuration.in_commit_timestamps_enabled:
            # Without an enablement version the table has had them from its first commit.
            since = configuration.properties.in_commit_timestamp_enablement_version or 0
            by_file = [version for version in by_file if version < since]
        self.num_by_file = len(by_file)
        """How many versions, the first ones, have the time of their file."""
        self._file_times = commit_times(listing, by_file)

    def of(self, version: int) -> int:
        if version in self._file_times:
            return self._file_times[version]
        timestamp = in_commit_timestamp(read_commit_info(self._store, version))
        if timestamp is None:
            raise InvalidTable(
                "The commit has no in-commit timestamp, though the table keeps them since before; "
                "open the table by version",
                table=self._store.location.uri,
                version=version,
            )
        return timestamp


def _spell_time(time_ms: int) -> str:
    try:
        moment = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms since the epoch"
    return moment.isoformat(timespec="milliseconds")
