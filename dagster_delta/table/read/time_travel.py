"""Which version a table had at a time.

Spec: the In-Commit Timestamps of the shipped protocol. Without them the times of the commit files
are used, made monotonic as in the reference implementation.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from dagster_delta.errors import InvalidArgument, InvalidTable, VersionNotFound
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_file import decode_commit_info
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.protocol.log.segment import LogListing
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.commit_range import commit_times
from dagster_delta.table.log.reader import list_settled_log, located, read_commit
from dagster_delta.table.log.state import open_state


def version_at(store: ObjectStore, timestamp: dt.datetime | str | int) -> int:
    """The newest version that was committed at or before a time."""
    search, versions = _search(store)
    return search.version_at(versions, parse_timestamp(timestamp))


def first_version_since(store: ObjectStore, timestamp: dt.datetime | str | int) -> int:
    """The oldest version that was committed at or after a time."""
    wanted_ms = parse_timestamp(timestamp)
    search, versions = _search(store)
    times = search.times_of(versions)
    index = bisect_left(versions, wanted_ms, key=times)
    if index < len(versions):
        return versions[index]
    raise VersionNotFound(
        f"Nothing was committed since {_spell(wanted_ms)}: the latest version, {versions[-1]}, "
        f"is of {_spell(times(versions[-1]))}; wait for the next commit",
        table=store.location.uri,
    )


def newest_version_until(
    store: ObjectStore, listing: LogListing, configuration: TableConfiguration, until_ms: int
) -> int | None:
    """The newest version that was committed at or before a time; None if all are newer."""
    versions = _readable_versions(listing)
    times = _Search(store, listing, configuration).times_of(versions)
    index = bisect_right(versions, until_ms, key=times)
    return versions[index - 1] if index else None


def _readable_versions(listing: LogListing) -> list[int]:
    earliest = listing.earliest_version
    return sorted(commit for commit in listing.commits if earliest is None or commit >= earliest)


def _search(store: ObjectStore) -> tuple[_Search, list[int]]:
    """A search of the log, and the versions that it can find, in ascending order."""
    listing = list_settled_log(store)
    table = store.location.uri
    segment = listing.segment(table=table)
    _, configuration, _ = open_state(store, segment)
    versions = _readable_versions(listing)
    if not versions:
        raise VersionNotFound(
            "The log holds no commit any more, only a checkpoint: open the table by version "
            f"{segment.version}",
            table=table,
        )
    return _Search(store, listing, configuration), versions


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
                f"{timestamp!r} is no ISO 8601 timestamp such as 2024-05-01T12:30:00Z"
            ) from error
    if isinstance(timestamp, dt.datetime):
        aware = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=dt.UTC)
        # Exact: a float of seconds would sometimes be off by a millisecond.
        return (aware - dt.datetime.fromtimestamp(0, dt.UTC)) // dt.timedelta(milliseconds=1)
    if isinstance(timestamp, bool) or not isinstance(timestamp, int):
        raise InvalidArgument(
            f"A timestamp is a datetime, an ISO 8601 text or milliseconds, not {timestamp!r}"
        )
    return timestamp


class _Search:
    def __init__(
        self, store: ObjectStore, listing: LogListing, configuration: TableConfiguration
    ) -> None:
        self._store = store
        self._listing = listing
        self._configuration = configuration

    def version_at(self, versions: Sequence[int], wanted_ms: int) -> int:
        if not self._configuration.in_commit_timestamps_enabled:
            return self._by_file_times(versions, wanted_ms)
        properties = self._configuration.properties
        # Without an enablement version the table has had them from its first commit.
        enabled_at = properties.in_commit_timestamp_enablement_version or 0
        own = [version for version in versions if version >= enabled_at]
        older = [version for version in versions if version < enabled_at]
        if own and (not older or wanted_ms >= self._own_time(own[0])):
            return self._by_own_times(own, wanted_ms)
        return self._by_file_times(older, wanted_ms, is_tail=not own)

    def times_of(self, versions: Sequence[int]) -> Callable[[int], int]:
        """A function that gives the time of each of some versions, ascending, in milliseconds."""
        enabled_at = None
        if self._configuration.in_commit_timestamps_enabled:
            enabled_at = self._configuration.properties.in_commit_timestamp_enablement_version or 0
        older = [version for version in versions if enabled_at is None or version < enabled_at]
        file_times = dict(zip(older, commit_times(self._listing, older), strict=True))
        return lambda version: (
            file_times[version] if version in file_times else self._own_time(version)
        )

    def _by_file_times(
        self, versions: Sequence[int], wanted_ms: int, *, is_tail: bool = True
    ) -> int:
        times = commit_times(self._listing, versions)
        self._check_not_before(versions[0], times[0], wanted_ms)
        if is_tail:
            self._check_not_after(versions[-1], times[-1], wanted_ms)
        found = versions[0]
        for version, time in zip(versions, times, strict=True):
            if time <= wanted_ms:
                found = version
        return found

    def _by_own_times(self, versions: Sequence[int], wanted_ms: int) -> int:
        self._check_not_before(versions[0], self._own_time(versions[0]), wanted_ms)
        self._check_not_after(versions[-1], self._own_time(versions[-1]), wanted_ms)
        low, high = 0, len(versions)
        while high - low > 1:
            middle = (low + high) // 2
            if self._own_time(versions[middle]) <= wanted_ms:
                low = middle
            else:
                high = middle
        return versions[low]

    def _own_time(self, version: int) -> int:
        with located(self._store, version):
            data = read_commit(self._store, version)
            info = decode_commit_info(data, version=version, path=commit_path(version))
            timestamp = info.get("inCommitTimestamp")
            if not isinstance(timestamp, int):
                raise InvalidTable(
                    "The commit has no in-commit timestamp, though the table keeps them since "
                    "before; open the table by version"
                )
            return timestamp

    def _check_not_before(self, version: int, time_ms: int, wanted_ms: int) -> None:
        if wanted_ms < time_ms:
            raise VersionNotFound(
                f"The table cannot be read as of {_spell(wanted_ms)}: its log begins with version "
                f"{version}, committed at {_spell(time_ms)}",
                table=self._store.location.uri,
            )

    def _check_not_after(self, version: int, time_ms: int, wanted_ms: int) -> None:
        if wanted_ms > time_ms:
            raise VersionNotFound(
                f"The table has no version as of {_spell(wanted_ms)} yet: the latest one, "
                f"{version}, was committed at {_spell(time_ms)}; open it without a timestamp",
                table=self._store.location.uri,
            )


def _spell(time_ms: int) -> str:
    try:
        moment = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms since the epoch"
    return moment.isoformat(timespec="milliseconds")
