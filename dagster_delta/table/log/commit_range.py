"""The commits of a range of versions, one by one.

Spec: Delta Log Entries; the In-Commit Timestamps of the shipped protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dagster_delta.errors import InvalidTable, LogGap, VersionNotFound
from dagster_delta.protocol.log.commit_file import CommitActions, decode_actions
from dagster_delta.protocol.log.segment import CommitFile, LogListing, spell_versions
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.commit_times import commit_times
from dagster_delta.table.log.reader import list_log, located, read_commits

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
    for at in range(0, len(versions), _COMMITS_AT_ONCE):
        files = [
            CommitFile(version, version, listing.commits[version])
            for version in versions[at : at + _COMMITS_AT_ONCE]
        ]
        for raw in read_commits(store, files):
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
