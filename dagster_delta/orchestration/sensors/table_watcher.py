"""Polls many tables in parallel for new commits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias

from dagster_delta.errors import (
    ChangeDataNotRecorded,
    DeltaError,
    InvalidArgument,
    StorageFailure,
    TableNotFound,
)
from dagster_delta.orchestration.sensors.watch_state import SensorState, TableState, WaitingChanges
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.commit_summary import CommitSummary
from dagster_delta.table.read.change_data_feed import changes_columns
from dagster_delta.table.read.watch import (
    NOTHING_SEEN,
    LogCursor,
    StartFrom,
    read_new_commits,
    start_cursor,
)

# Requests mostly wait for the network: 500 tables take 16 rounds.
_TABLES_AT_ONCE = 32

PartitionFilter: TypeAlias = (
    Mapping[str, Collection[str | None]] | Callable[[Mapping[str, str | None]], bool]
)
"""The partitions to include: allowed values by column, or a function of a partition's values."""


@dataclass(frozen=True, slots=True)
class CommitRules:
    """Which commits to include, and the start version of a table that is new to the sensor."""

    start_from: StartFrom = "latest"
    operations: frozenset[str] | None = None
    """Names of operations, in upper case; all by default."""
    partitions: PartitionFilter | None = None
    columns: tuple[str, ...] = ()
    """Columns of which at least one must have changed; empty for any."""
    needs_change_feed: bool = False
    """Whether every included commit must have its row changes recorded."""
    max_commits_per_tick: int = 100
    """Maximum number of commits read per table."""

    def select(self, store: ObjectStore, commit: CommitSummary) -> CommitSummary | None:
        """The commit with the changed partitions to include; None if it is not included.

        Commits that change no row are included only if `operations` names their operation.
        """
        included = commit.changes_data
        if self.operations is not None:
            is_named = (commit.operation or "").upper() in self.operations
            included = is_named and (included or not self.needs_change_feed)
        if not included:
            return None
        if self.needs_change_feed and not commit.change_feed_enabled:
            raise ChangeDataNotRecorded(
                f"The change data feed was off when version {commit.version} was made, so its row "
                "changes are not recorded: set delta.enableChangeDataFeed to true, take the whole "
                "table once, then reset the cursor of this table to go on after it",
                version=commit.version,
            )
        if self.columns and not changes_columns(store, commit, self.columns):
            return None
        partitions = self._partitions_of(commit)
        if self.partitions is not None and not partitions and commit.all_partitions_known:
            return None
        return replace(commit, partitions=partitions)

    def _partitions_of(self, commit: CommitSummary) -> tuple[Mapping[str, str | None], ...]:
        rule = self.partitions
        if rule is None:
            return commit.partitions
        if callable(rule):
            return tuple(values for values in commit.partitions if rule(values))
        for values in commit.partitions or ({},):
            missing = [column for column in rule if column not in values]
            if missing and commit.all_partitions_known:
                raise InvalidArgument(
                    f"The table is partitioned by {', '.join(values) or 'no column'} and not by "
                    f"{', '.join(missing)}: filter by its partition columns",
                    column=missing[0],
                )
        return tuple(
            values
            for values in commit.partitions
            if all(values.get(column) in allowed for column, allowed in rule.items())
        )


@dataclass(frozen=True, slots=True)
class PollResult:
    """Result of polling one table."""

    uri: str
    state: TableState | None
    """State to store for it; unchanged after an error."""
    commits: tuple[CommitSummary, ...] = ()
    """New included commits, each with the changed partitions to include."""
    ignored: tuple[str, ...] = ()
    """Operations of the new commits that the sensor does not include."""
    is_missing: bool = False
    """Whether the table does not exist yet."""
    error: DeltaError | None = None
    """Why the poll failed."""
    was_requested: bool = False
    """Whether an earlier tick has requested the runs for what waits."""


def poll_tables(
    uris: Sequence[str],
    state: SensorState,
    open_table: Callable[[str], ObjectStore],
    rules: CommitRules,
    *,
    now_ms: int,
    discovered: bool = False,
) -> list[PollResult]:
    """New commits of each table, in the given order. A failure of one table does not stop the
    others.

    `discovered` locations were found below a root: one without state, although the root was listed
    before, is then a new table with all its commits.
    """
    if not uris:
        return []
    seen_before = discovered and state.discovered_at_ms is not None

    def look(uri: str) -> PollResult:
        known = state.tables.get(uri)
        is_new = seen_before and uri not in state.tables
        try:
            return _look(open_table(uri), uri, known, rules, now_ms, is_new)
        except DeltaError as error:
            error.table = error.table or uri
            return PollResult(uri, known, error=error)
        except OSError as error:
            failure = StorageFailure(f"The storage cannot be reached ({error})", table=uri)
            failure.__cause__ = error
            return PollResult(uri, known, error=failure)

    with ThreadPoolExecutor(min(_TABLES_AT_ONCE, len(uris))) as pool:
        return list(pool.map(look, uris))


def _look(
    store: ObjectStore,
    uri: str,
    known: TableState | None,
    rules: CommitRules,
    now_ms: int,
    is_new: bool,
) -> PollResult:
    if known is not None and known.waiting is not None and known.waiting.unsent_keys is not None:
        # Its last commits are still being delivered; newer ones wait in the log.
        return PollResult(uri, known)
    if known is None:
        try:
            start = start_cursor(store, "earliest" if is_new else rules.start_from)
        except TableNotFound:
            # Every commit from here on is new.
            start = LogCursor(version=NOTHING_SEEN)
        known = TableState(log=start)
    cursor, commits = read_new_commits(store, known.log, limit=rules.max_commits_per_tick)
    selected = []
    ignored: dict[str, None] = {}
    waiting = known.waiting
    for commit in commits:
        included = rules.select(store, commit)
        if included is None:
            ignored[commit.operation or "unknown operation"] = None
            continue
        selected.append(included)
        if waiting is None:
            waiting = WaitingChanges(
                table_id=commit.table_id,
                from_version=commit.version,
                to_version=commit.version,
                seen_at_ms=now_ms,
            )
        waiting = waiting.absorb(included)
    state = TableState(log=cursor, waiting=waiting)
    is_missing = cursor.version == NOTHING_SEEN
    return PollResult(uri, state, tuple(selected), tuple(ignored), is_missing=is_missing)
