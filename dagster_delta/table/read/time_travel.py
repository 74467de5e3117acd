"""Which version a table had at a time.

Spec: the In-Commit Timestamps of the shipped protocol. Without them the times of the commit files
are used, made monotonic as in the reference implementation.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right

from dagster_delta.errors import InvalidArgument, InvalidTable, VersionNotFound
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.segment import LogListing
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.commit_range import commit_times
from dagster_delta.table.log.reader import list_settled_log, read_commit_info
from dagster_delta.table.log.state import open_state


def version_at(store: ObjectStore, timestamp: dt.datetime | str | int) -> int:
    """The newest version that was committed at or before a time."""
    wanted_ms = parse_timestamp(timestamp)
    times = _times(store)
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
            f"The table cannot be read as of {_spell(wanted_ms)}: its log begins with version "
            f"{versions[0]}, committed at {_spell(times.of(versions[0]))}",
            table=store.location.uri,
        )
    found = versions[index - 1]
    if found == times.versions[-1] and wanted_ms > times.of(found):
        raise VersionNotFound(
            f"The table has no version as of {_spell(wanted_ms)} yet: the latest one, {found}, was "
            f"committed at {_spell(times.of(found))}; open it without a timestamp",
            table=store.location.uri,
        )
    return found


def first_version_since(store: ObjectStore, timestamp: dt.datetime | str | int) -> int:
    """The oldest version that was committed at or after a time."""
    wanted_ms = parse_timestamp(timestamp)
    times = _times(store)
    index = bisect_left(times.versions, wanted_ms, key=times.of)
    if index < len(times.versions):
        return times.versions[index]
    latest = times.versions[-1]
    raise VersionNotFound(
        f"Nothing was committed since {_spell(wanted_ms)}: the latest version, {latest}, is of "
        f"{_spell(times.of(latest))}; wait for the next commit",
        table=store.location.uri,
    )


def newest_version_until(
    store: ObjectStore, listing: LogListing, configuration: TableConfiguration, until_ms: int
) -> int | None:
    """The newest version that was committed at or before a time; None if all are newer."""
    times = _Times(store, listing, configuration)
    index = bisect_right(times.versions, until_ms, key=times.of)
    return times.versions[index - 1] if index else None


def _times(store: ObjectStore) -> _Times:
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
                f"{timestamp!r} is no ISO 8601 timestamp such as 2024-05-01T12:30:00Z"
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
        self._file_times = dict(zip(by_file, commit_times(listing, by_file), strict=True))

    def of(self, version: int) -> int:
        if version in self._file_times:
            return self._file_times[version]
        timestamp = read_commit_info(self._store, version).get("inCommitTimestamp")
        if not isinstance(timestamp, int):
            raise InvalidTable(
                "The commit has no in-commit timestamp, though the table keeps them since before; "
                "open the table by version",
                table=self._store.location.uri,
                version=version,
            )
        return timestamp


def _spell(time_ms: int) -> str:
    try:
        moment = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms since the epoch"
    return moment.isoformat(timespec="milliseconds")
