"""The position of an incremental asset in its upstream table, and what it reads next.

The target's own log records it: a transaction identifier with the upstream table, and the partition
if any, advances in the same commit that applies the changes. So a change is applied once, despite
crashes, retries and concurrent runs. A full refresh also records that positions in other tables no
longer hold, so that a table that returns, as tables that are swapped do, is read in full.

Spec: Transaction Identifiers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from dagster_delta.errors import (
    ChangeDataNotRecorded,
    DeltaError,
    InvalidArgument,
    LogGap,
    SchemaMismatch,
    VersionNotFound,
)
from dagster_delta.orchestration.incremental.upstream_changes import UpstreamChanges
from dagster_delta.orchestration.partitions.partitions import SelectPartitions
from dagster_delta.orchestration.partitions.predicates import partition_slice
from dagster_delta.table.operations.write_planning import ColumnDivergence, find_divergences
from dagster_delta.table.read.branch_tables import BranchBase
from dagster_delta.table.transaction.commit_result import (
    FOLLOWED_TABLE_PREFIX,
    NOT_FOLLOWED,
    lasting_transactions,
)
from dagster_delta.table.transaction.followed_tables import application_id, position_at, version_of
from dagster_delta.table.transaction.transaction import AppTransaction

if TYPE_CHECKING:
    from dagster_delta.table.read.scan import Scan
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.transaction.commit_result import SetTransaction

OnGap = Literal["refresh", "fail"]
"""What to do if changes can no longer be read."""


class Consumer(msgspec.Struct, frozen=True):
    """The reader of an upstream table."""

    name: str
    """Of the asset, for messages."""
    upstream: Scan
    """The table, opened at the last version to read, with a filter that all its rows satisfy."""
    partition_keys: tuple[str, ...]
    """Of the run; none if the asset is not partitioned."""
    selection: SelectPartitions | None
    """Selects some of these partitions, by the columns of the upstream table that hold them."""
    has_partitions: bool
    """Whether the filter of `upstream` selects the partitions of the run already."""
    on_gap: OnGap
    full_refresh: str | None
    """Who requested a full refresh; None if no one requested it."""
    updates_rows: bool = False
    """Whether the target has the current row of each key, not one for each change."""
    max_bytes: int | None = None
    """The most bytes of upstream files to compare where the feed was off; None for no limit."""
    replaces_schema: bool = False
    """Whether a full refresh replaces the target's columns by those of the upstream table: with the
    schema_mode overwrite."""

    @property
    def advice(self) -> str:
        """How to read every row."""
        return (
            f". To process every row, launch {self.name} with full_refresh in its config, or with "
            'the run tag delta/full_refresh = "true"'
        )

    @property
    def keys(self) -> tuple[str | None, ...]:
        """The partition keys; only None if the asset is not partitioned."""
        return self.partition_keys or (None,)

    @property
    def where(self) -> str | None:
        """Spark SQL of the rows to read; None for every row."""
        if self.selection is not None and not self.has_partitions:
            return self.predicate(self.partition_keys)
        return None if self.upstream.where is None else self.upstream.where.sql

    def predicate(self, keys: Sequence[str]) -> str:
        """Spark SQL of the rows to read of some partitions of the run.

        Raises:
            InvalidArgument: the upstream table has no column for them.
        """
        assert self.selection is not None  # noqa: S101  there are partitions
        try:
            slice_ = partition_slice(self.selection, keys, asset=self.name)
            chosen = slice_.sql(self.upstream.snapshot.schema)
        except SchemaMismatch as error:
            raise InvalidArgument(
                f"the partitions of {self.name} cannot be found in its upstream table: {error}. "
                "Name the column that holds them there with upstream_partition_expr; or, where the "
                "partitions of a run were read up to different versions, launch them one by one",
                table=error.table,
                column=error.column,
            ) from error
        filtered = self.upstream.where
        # The filter may end with a comment.
        return chosen if filtered is None else f"({filtered.sql}\n) AND ({chosen})"


class Consumption(msgspec.Struct, frozen=True):
    """The part of an upstream table that one run reads."""

    consumer: Consumer
    changes: UpstreamChanges
    progress: tuple[AppTransaction, ...]
    """`txn` actions that the target's commit records."""
    target: Snapshot | None = None
    """The table of the asset when the run started; None if it did not exist."""
    replaced: tuple[AppTransaction, ...] = ()
    """`txn` actions that a full refresh records, too: positions that no longer hold."""
    columns_not_followed: str | None = None
    """Changes of upstream columns that the target does not adopt."""

    @property
    def is_nothing_new(self) -> bool:
        """Whether every version of the upstream table was read."""
        is_refresh = self.changes.is_full_refresh
        return not is_refresh and all(
            application.after is not None
            and version_of(application.version) == version_of(application.after)
            for application in self.progress
        )

    def refreshed(self, reason: str) -> Consumption:
        """The consumption as a full refresh, with every row instead of changes."""
        snapshot, columns = self.changes.snapshot, self.changes.columns
        where = self.consumer.where
        changes = UpstreamChanges(snapshot, (), where=where, columns=columns, refresh_reason=reason)
        progress = (*self.progress, *self.replaced)
        return Consumption(self.consumer, changes, progress, self.target)

    def without_changes(self, error: DeltaError) -> Consumption:
        """A full refresh instead of unreadable changes; reraises the error if the asset must
        fail.
        """
        properties = self.changes.snapshot.configuration.properties
        is_off = not properties.enable_change_data_feed
        stays_off = isinstance(error, ChangeDataNotRecorded) and is_off
        if stays_off or self.consumer.on_gap == "fail":
            error.message += self.consumer.advice
            raise error
        return self.refreshed(f"the changes are no longer available: {error}")


def plan_consumption(consumer: Consumer, target: Snapshot | None) -> Consumption:
    """What a run reads, up to the opened version of the upstream table."""
    upstream = consumer.upstream
    table_id = upstream.snapshot.metadata.id
    recorded = _recorded_positions(target)
    current = [_Position(table_id, key) for key in consumer.keys]
    found = [_find_transaction(recorded, position) for position in current]
    known = _inherit_positions(recorded, upstream.snapshot)
    done = {position.key: _find_done_version(known, position) for position in current}
    newest = position_at(upstream.snapshot, upstream.snapshot.version)
    planned = Consumption(
        consumer,
        UpstreamChanges(upstream.snapshot, (), columns=upstream.columns),
        tuple(
            AppTransaction(application_id(*position), newest, None if txn is None else txn.version)
            for position, txn in zip(current, found, strict=True)
        ),
        target,
        _end_replaced(recorded, current),
    )
    reason = (
        consumer.full_refresh
        or _first_time(known, upstream.snapshot, done)
        or _set_back(upstream, done)
    )
    if reason is not None:
        return planned.refreshed(reason)
    changes = UpstreamChanges(
        upstream.snapshot,
        _plan_ranges(consumer, done),
        columns=upstream.columns,
        max_bytes=consumer.max_bytes,
    )
    try:
        # Only reading the log shows whether changes can still be read.
        _ = changes.is_empty
        before = changes.snapshot_before()
        moved: list[ColumnDivergence] = []
        if before is not None and target is not None:
            tables = (table.configuration for table in (before, upstream.snapshot, target))
            moved = find_divergences(*tables, columns=changes.columns)
    except (VersionNotFound, LogGap, SchemaMismatch) as error:
        return planned.without_changes(error)
    # A rename splits a column into two in any mode. If the target keeps its columns, a dropped
    # column keeps its values, and values of a wider column are cast or refused as in any write.
    # Rows that were added one by one keep what they had then.
    refreshing = {"renamed"}
    if consumer.updates_rows:
        refreshing |= {"filled", "readded"}
    if consumer.replaces_schema:
        refreshing |= {"dropped", "widened"}
    if any(change.kind in refreshing for change in moved):
        return planned.refreshed(_other_columns(moved, consumer))
    return replace(
        planned, changes=changes, columns_not_followed="; ".join(map(str, moved)) or None
    )


def _other_columns(moved: Sequence[ColumnDivergence], consumer: Consumer) -> str:
    """Why every row is read; raises if the asset must fail."""
    listed = "; ".join(map(str, moved))
    if consumer.on_gap == "fail":
        raise SchemaMismatch(
            f"the columns of the upstream table of {consumer.name} have changed: {listed}. Change "
            f"the table of {consumer.name} in the same way, with delta_schema_change_job or "
            f"DeltaTable.alter{consumer.advice}",
            table=consumer.upstream.snapshot.store.location.uri,
            version=consumer.upstream.snapshot.version,
        )
    return f"the columns of the upstream table have changed: {listed}"


class _Position(NamedTuple):
    """What is read: a partition of an upstream table, or all of it."""

    table_id: str
    key: str | None


_Recorded = Mapping[str | None, Mapping[str, "SetTransaction"]]
"""The latest transaction by partition key and id of the upstream table."""


def _recorded_positions(target: Snapshot | None) -> _Recorded:
    found: dict[str | None, dict[str, SetTransaction]] = {}
    for txn in () if target is None else lasting_transactions(target):
        if txn.app_id.startswith(FOLLOWED_TABLE_PREFIX):
            table_id, slash, key = txn.app_id.removeprefix(FOLLOWED_TABLE_PREFIX).partition("/")
            found.setdefault(key if slash else None, {})[table_id] = txn
    return found


def _inherit_positions(recorded: _Recorded, upstream: Snapshot) -> _Recorded:
    """The positions, those in the table that the upstream one began with as a branch included: who
    has read that up to the version of the beginning has read the first version of the branch's one.
    """
    base = BranchBase.of(upstream)
    if base is None:
        return recorded
    known = {key: dict(found) for key, found in recorded.items()}
    for found in known.values():
        txn = found.get(base.table_id)
        if txn is None or txn.version == NOT_FOLLOWED:
            continue
        if version_of(txn.version) == base.version:
            del found[base.table_id]
            found.setdefault(upstream.metadata.id, replace(txn, version=base.clone_version))
    return known


def _find_transaction(recorded: _Recorded, position: _Position) -> SetTransaction | None:
    return recorded.get(position.key, {}).get(position.table_id)


def _end_replaced(recorded: _Recorded, current: Sequence[_Position]) -> tuple[AppTransaction, ...]:
    """The `txn` actions that end the other positions, once the rows of the current ones are
    replaced. That of a whole table stays while partitions are read: runs of several partitions at
    once would conflict in it.
    """
    ended = {
        position: txn.version
        for own in current
        for position, txn in _find_overlapping(recorded, own)
        if position.key is not None or own.key is None
    }
    return tuple(
        AppTransaction(application_id(*position), NOT_FOLLOWED, after)
        for position, after in ended.items()
    )


def _find_done_version(recorded: _Recorded, own: _Position) -> int | None:
    """The position up to which the target has the rows of a partition, or of the whole table."""
    found = _find_transaction(recorded, own)
    if found is None or found.version == NOT_FOLLOWED:
        return None
    # Releases before the first one that ends replaced positions left them as they were.
    times = [txn.last_updated_ms or 0 for _, txn in _find_overlapping(recorded, own)]
    return None if max(times, default=0) > (found.last_updated_ms or 0) else found.version


def _find_overlapping(
    recorded: _Recorded, own: _Position
) -> Iterator[tuple[_Position, SetTransaction]]:
    """The other positions that hold for rows of the same partition of the target."""
    keys = recorded if own.key is None else (own.key, None)
    for key in keys:
        for table_id, txn in recorded.get(key, {}).items():
            position = _Position(table_id, key)
            if position != own and txn.version != NOT_FOLLOWED:
                yield position, txn


def _first_time(
    recorded: _Recorded, upstream: Snapshot, done: Mapping[str | None, int | None]
) -> str | None:
    table_id, base = upstream.metadata.id, BranchBase.of(upstream)
    fresh = [_Position(table_id, key) for key, position in done.items() if position is None]
    if not fresh:
        return None
    others = [position for own in fresh for position, _ in _find_overlapping(recorded, own)]
    if base is not None and any(other.table_id == base.table_id for other in others):
        return (
            f"the upstream table of the branch began with version {base.version} of production's, "
            "and the asset had read another version of that"
        )
    if any(other.table_id != table_id for other in others):
        return "the upstream table was replaced by another one"
    if others:
        return "the partitions of the asset have changed since it was last read"
    return "nothing was read before"


def _set_back(upstream: Scan, done: Mapping[str | None, int | None]) -> str | None:
    positions = {position for position in done.values() if position is not None}
    latest = upstream.snapshot.version
    for position in sorted(positions, key=version_of, reverse=True):
        version = version_of(position)
        if version > latest:
            return (
                f"the upstream log was rolled back: it was read up to version {version}, "
                f"and is at {latest}"
            )
        found = position_at(upstream.snapshot, version)
        if version not in (position, found) and found != position:
            return (
                f"the upstream log was rolled back and has grown again: its version {version} is "
                "another commit than the one that was read"
            )
    return None


def _plan_ranges(
    consumer: Consumer, done: Mapping[str | None, int | None]
) -> list[tuple[int, str | None]]:
    starts: dict[int, list[str]] = {}
    for key, position in done.items():
        starts.setdefault(version_of(position or 0) + 1, []).append(key or "")
    if len(starts) == 1:
        return [(start, consumer.where) for start in starts]
    return [(start, consumer.predicate(keys)) for start, keys in starts.items()]
