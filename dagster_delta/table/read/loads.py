"""The commits that brought rows to a table, from its log alone.

Spec: Commit Provenance Information; Add File and Remove File.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import msgspec

from dagster_delta.protocol.log.commit_file import CommitActions, decode_commit
from dagster_delta.table.log.commit_summary import summarise_commit
from dagster_delta.table.log.reader import commit_digest, list_log, located, read_versions
from dagster_delta.table.read.snapshot import Snapshot

_COMMITS_SEARCHED = 1_000
_AT_ONCE = 64
_LOADS = frozenset({"WRITE", "MERGE", "STREAMING UPDATE"})
"""Operations that are a load also if they bring no row."""
_CORRECTIONS = frozenset({"DELETE", "UPDATE", "TRUNCATE", "RESTORE"})
"""Operations that change rows and are no load."""
_DAY_MS = 86_400_000
_WEEKDAYS = ("Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday")
"""From the day of the epoch on."""


class Load(msgspec.Struct, frozen=True):
    """A commit that brought rows."""

    version: int
    time_ms: int
    """Time of the commit by its commitInfo, else of its file, in milliseconds since the epoch."""
    rows: int | None
    """Rows written, or changed by a MERGE; None if the log does not say it."""
    size_bytes: int
    """Size of the files that it added."""
    age_seconds: float
    """Time until the next load, or until now."""

    @property
    def weekday(self) -> str:
        """The day of the week in UTC."""
        return _WEEKDAYS[self.time_ms // _DAY_MS % 7]


def read_loads(snapshot: Snapshot, now: dt.datetime) -> Iterator[Load]:
    """The loads up to a snapshot that the log still holds, newest first; of its latest 1,000
    commits.
    """
    store, last = snapshot.store, snapshot.version
    listing = list_log(store, start=max(0, last + 1 - _COMMITS_SEARCHED), end=last)
    first = listing.first_commit_before(last)
    until_ms = int(now.timestamp() * 1000)
    for commit in read_versions(store, listing, range(last, first - 1, -1), at_once=_AT_ONCE):
        with located(store, commit.version):
            actions = decode_commit(commit.data, version=commit.version)
        summary = summarise_commit(
            actions,
            table_id="",
            partition_columns={},
            change_feed_enabled=False,
            digest=commit_digest(commit.data),
        )
        is_load = summary.changes_data or summary.operation in _LOADS
        if not is_load or summary.operation in _CORRECTIONS:
            continue
        time_ms = summary.timestamp_ms
        if time_ms is None:
            time_ms = listing.commits[commit.version].modified_ms
        # The clock of the writer may be ahead.
        age = max(0, until_ms - time_ms) / 1000
        rows = summary.rows if summary.changes_data else 0
        yield Load(commit.version, time_ms, rows, _count_new_bytes(actions), age)
        until_ms = time_ms


def _count_new_bytes(actions: CommitActions) -> int:
    # A file with another deletion vector is removed and added again.
    removed = {remove.path for remove in actions.removes}
    return sum(
        add.size_bytes for add in actions.adds if add.data_change and add.path not in removed
    )
