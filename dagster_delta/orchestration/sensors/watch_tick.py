"""One tick of a log sensor: poll tables, store state, request runs, report failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import dagster as dg
import msgspec

from dagster_delta import clock
from dagster_delta.errors import DeltaError, InvalidArgument, TableNotFound, VersionNotFound
from dagster_delta.orchestration.metadata_keys import counted, first_names
from dagster_delta.orchestration.partitions.mapping import PartitionMapping
from dagster_delta.orchestration.sensors.table_changes import (
    AssetEventKind,
    TableChanges,
    commit_event,
)
from dagster_delta.orchestration.sensors.table_watcher import CommitRules, PollResult, poll_tables
from dagster_delta.orchestration.sensors.watch_state import SensorState, TableState, WaitingChanges
from dagster_delta.storage import open_store
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.table_discovery import find_tables

AssetKeyFor: TypeAlias = Callable[[str], dg.AssetKey]
"""Maps the location of an external table to the key of its asset."""

RunConfigFor: TypeAlias = Callable[[TableChanges], "dg.RunConfig | Mapping[str, Any]"]
"""Maps the commits of a run to its config."""

# A longer list is not useful.
_MAX_NAMED = 10


@dataclass(frozen=True, slots=True)
class Watch:
    """What a sensor watches, and its actions."""

    sensor_name: str
    tables: tuple[str, ...]
    storage_options: Callable[[], Mapping[str, object]]
    rules: CommitRules
    requests_runs: bool
    mapping: PartitionMapping | None
    """Maps changed partitions to partition keys; None for one run per table."""
    asset_key: AssetKeyFor | None
    """Keys of the assets on which to report commits; None to report none."""
    root: str | None = None
    """Root below which to find tables, instead of `tables`."""
    discover_every_seconds: float = 300
    minimum_rows: int | None = None
    minimum_age_seconds: float | None = None
    max_runs_per_tick: int = 100
    run_config: RunConfigFor | None = None
    run_tags: Mapping[str, str] = field(default_factory=dict)
    asset_event: AssetEventKind = "materialization"
    stores: dict[str, ObjectStore] = field(default_factory=dict)
    """Open stores, kept between ticks to reuse connections."""

    def tick(self, context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """The result of one evaluation of the sensor. If tables failed, and no other has results,
        it raises.
        """
        before = SensorState.from_cursor(context.cursor)
        now_ms = clock.now_ms()
        uris, discovered_at_ms = self._locations(before, now_ms)
        polled = poll_tables(
            uris,
            before,
            self._open,
            self.rules,
            now_ms=now_ms,
            discovered=self.root is not None,
        )
        if self.requests_runs:
            polled = [self._as_requested(context, before, result, now_ms) for result in polled]
        tick = _Tick(self, context, before, now_ms)
        # The table that has waited longest comes first, so that a busy table does not block others.
        for result in sorted(polled, key=_waiting_since):
            tick.take(result)
        tables = {uri: tick.tables[uri] for uri in uris if uri in tick.tables}
        return tick.result(SensorState(tables=tables, discovered_at_ms=discovered_at_ms))

    def _locations(self, state: SensorState, now_ms: int) -> tuple[Sequence[str], int | None]:
        if self.root is None:
            return self.tables, None
        last = state.discovered_at_ms
        if last is not None and now_ms - last < self.discover_every_seconds * 1000:
            return tuple(state.tables), last
        found = find_tables(self.root, self.storage_options())
        # A table that no longer exists is reported as an error until its entry is removed.
        return tuple(sorted({*found, *state.tables})), now_ms

    def _as_requested(
        self,
        context: dg.SensorEvaluationContext,
        before: SensorState,
        polled: PollResult,
        now_ms: int,
    ) -> PollResult:
        """The result as an earlier tick delivered it whose cursor was lost, as its process died
        after it requested the runs: with the same run keys, Dagster drops those that it started.
        """
        known, state = before.tables.get(polled.uri), polled.state
        if known is None or state is None or state.waiting is None or not polled.commits:
            return polled
        tags = {
            "dagster/sensor_name": self.sensor_name,
            "delta/table_uri": polled.uri,
            "delta/table_id": state.waiting.table_id,
            "delta/from_version": str(state.waiting.from_version),
        }
        try:
            found = context.instance.get_run_records(dg.RunsFilter(tags=tags), limit=1)
        except dg.DagsterInvariantViolationError:
            # A context that was built without an instance, in a unit test.
            return polled
        if not found:
            return polled
        commits = int(found[0].dagster_run.tags["delta/to_version"]) - known.log.version
        if commits <= 0:
            return PollResult(polled.uri, known, was_requested=True)
        rules = replace(
            self.rules, max_commits_per_tick=min(commits, self.rules.max_commits_per_tick)
        )
        (again,) = poll_tables([polled.uri], before, self._open, rules, now_ms=now_ms)
        return replace(again, was_requested=True)

    def _open(self, uri: str) -> ObjectStore:
        store = self.stores.get(uri)
        if store is None:
            store = self.stores.setdefault(uri, open_store(uri, self.storage_options()))
        return store


def _waiting_since(polled: PollResult) -> tuple[float, str]:
    waiting = None if polled.state is None else polled.state.waiting
    return (float("inf") if waiting is None else waiting.seen_at_ms, polled.uri)


class _Tick:
    """Gathers what one tick delivers."""

    def __init__(
        self,
        watch: Watch,
        context: dg.SensorEvaluationContext,
        before: SensorState,
        now_ms: int,
    ) -> None:
        self.tables = dict(before.tables)
        self._watch = watch
        self._context = context
        self._before = before
        self._now_ms = now_ms
        self._requests: list[dg.RunRequest] = []
        self._events: list[dg.AssetMaterialization | dg.AssetObservation] = []
        self._new_partitions: list[dg.AddDynamicPartitionsRequest] = []
        self._failures: list[DeltaError] = []
        self._outcomes: dict[str, list[str]] = {group: [] for group in _OUTCOMES}
        self._count = 0

    def take(self, polled: PollResult) -> None:
        """Deliver the results of one table, all of them or, after an error, none."""
        self._count += 1
        state = polled.state
        try:
            if polled.error is not None:
                raise polled.error
            assert state is not None  # noqa: S101  there is one unless the poll failed
            events = self._commit_events(polled, state)
            waiting, requests = self._run_requests(polled, state)
        except DeltaError as error:
            self._fail(polled.uri, error)
            return
        self._events += events
        self._requests += requests
        self.tables[polled.uri] = TableState(log=state.log, waiting=waiting)
        if waiting is not None:
            group, text = "Changes wait", f"{polled.uri}: {self._waiting_text(waiting)}"
        else:
            known = self._before.tables.get(polled.uri)
            group, text = _outcome(polled, state, known, is_reported=bool(events))
        self._outcomes[group].append(text)

    def _fail(self, uri: str, error: DeltaError) -> None:
        error.table = error.table or uri
        if isinstance(error, (VersionNotFound, TableNotFound)):
            error.message += (
                f'. In the cursor of sensor {self._watch.sensor_name}, under "tables", set '
                f'"{uri}" to null to start it over, or remove it to forget it; or delete the '
                "cursor to start over all tables of the sensor"
            )
        self._failures.append(error)
        self._outcomes["Failed"].append(str(error))

    def _commit_events(
        self, polled: PollResult, state: TableState
    ) -> list[dg.AssetMaterialization | dg.AssetObservation]:
        watch = self._watch
        if watch.asset_key is None:
            return []
        key = watch.asset_key(polled.uri)
        events: list[dg.AssetMaterialization | dg.AssetObservation] = []
        for commit in polled.commits:
            partition_keys: Sequence[str | None] = [None]
            if watch.mapping is not None:
                timestamps = state.log.timestamp_columns or ()
                mapped = watch.mapping.map(commit.partitions, timestamp_columns=timestamps)
                partition_keys = mapped.keys
            events += commit_event(
                commit.summary, polled.uri, key, watch.asset_event, partition_keys
            )
        return events

    def _run_requests(
        self, polled: PollResult, state: TableState
    ) -> tuple[WaitingChanges | None, list[dg.RunRequest]]:
        """The commits that still wait, and the runs to request now."""
        watch, waiting, uri = self._watch, state.waiting, polled.uri
        if waiting is None:
            return None, []
        if not watch.requests_runs:
            self._add_partitions(self._keys(uri, state, waiting))
            return None, []
        room = watch.max_runs_per_tick - len(self._requests)
        due = polled.was_requested or waiting.is_due(
            self._now_ms,
            minimum_rows=watch.minimum_rows,
            minimum_age_seconds=watch.minimum_age_seconds,
        )
        if not due or room <= 0:
            return waiting, []
        keys = self._keys(uri, state, waiting)
        requests = []
        for key in keys[:room] if watch.mapping is not None else [None]:
            changes = TableChanges.of(uri, waiting, key)
            config = None if watch.run_config is None else watch.run_config(changes)
            requests.append(changes.run_request(config, dict(watch.run_tags)))
        self._add_partitions(keys[:room])
        if not keys[room:]:
            return None, requests
        left = tuple(keys[room:])
        return msgspec.structs.replace(waiting, unsent_keys=left, partitions=()), requests

    def _keys(self, uri: str, state: TableState, waiting: WaitingChanges) -> Sequence[str]:
        """The changed partitions of the asset; none if it has no partitions."""
        if self._watch.mapping is None:
            return ()
        if waiting.unsent_keys is not None:
            return waiting.unsent_keys
        timestamps = state.log.timestamp_columns or ()
        mapped = self._watch.mapping.map(waiting.partitions, timestamp_columns=timestamps)
        which = f"versions {waiting.from_version} to {waiting.to_version} of {uri}"
        if not mapped.keys and not mapped.unmapped:
            if not state.log.partition_columns:
                raise InvalidArgument(
                    f"the table has no partition columns, so its commits do not show which "
                    f"partitions changed ({which}): give it some by the metadata partition_by of "
                    "the asset that writes it, or request one run for all partitions by a sensor "
                    "without partitions_def",
                    table=uri,
                )
            self._context.log.warning(f"The commits do not show which partitions changed: {which}")
        if mapped.unmapped:
            named = ", ".join(str(dict(values)) for values in mapped.unmapped[:_MAX_NAMED])
            self._context.log.warning(
                f"{len(mapped.unmapped)} changed partitions of the table belong to no partition of "
                f"the asset, and get no run: {named} ({which})"
            )
        return mapped.keys

    def _add_partitions(self, keys: Sequence[str]) -> None:
        mapping = self._watch.mapping
        if mapping is not None and keys:
            self._new_partitions += mapping.dynamic_requests(keys, self._context.instance)

    def _waiting_text(self, waiting: WaitingChanges) -> str:
        """What pending changes are, and what they wait for."""
        minimum_rows, minimum_age = self._watch.minimum_rows, self._watch.minimum_age_seconds
        rows = "an unknown number of rows"
        if waiting.rows is not None:
            rows = counted(waiting.rows, "row")
        what = f"{_versions(waiting.from_version, waiting.to_version)} with {rows}"
        if waiting.unsent_keys is not None:
            return f"{what}, {len(waiting.unsent_keys)} partitions get their runs in the next ticks"
        limits = [] if minimum_rows is None else [f"{minimum_rows:,} rows"]
        if minimum_age is not None:
            age = (self._now_ms - waiting.seen_at_ms) / 1000
            limits.append(f"an age of {minimum_age:,.0f} seconds, which is {age:,.0f} now")
        return f"{what}, until {' or '.join(limits) or 'the next tick'}"

    def result(self, after: SensorState) -> dg.SensorResult:
        """The result of the tick; the failures are raised if there is no other result."""
        # The time of the last root listing always changes.
        delivers = self._requests or self._events or self._before.tables != after.tables
        if self._failures and not delivers:
            raise self._failure()
        for failure in self._failures:
            self._context.log.error(f"A table could not be watched: {failure}")
        reasons = [
            f"{group}: {first_names(texts, 10)}" for group, texts in self._outcomes.items() if texts
        ]
        skipped = ". ".join(reasons) or "There is no table below the root yet"
        return dg.SensorResult(
            run_requests=self._requests or None,
            skip_reason=None if self._requests else skipped,
            cursor=after.to_cursor(),
            dynamic_partitions_requests=self._new_partitions or None,
            asset_events=self._events,
        )

    def _failure(self) -> DeltaError:
        first = self._failures[0]
        if len(self._failures) == 1:
            return first
        shown = "\n".join(f"  {failure}" for failure in self._failures[:_MAX_NAMED])
        failure = DeltaError(
            f"{len(self._failures)} of {self._count} tables could not be watched:\n{shown}"
        )
        failure.__cause__ = first
        return failure


_OUTCOMES = (
    "Changes wait",
    "Reported",
    "No partition to run for",
    "No changed rows to run for",
    "Watched from now on",
    "Not there yet",
    "Failed",
    "No new commits",
)
"""What a tick came to for a table, those with news first."""


def _outcome(
    poll: PollResult, state: TableState, known: TableState | None, *, is_reported: bool
) -> tuple[str, str]:
    version = state.log.version
    if poll.is_missing:
        return "Not there yet", poll.uri
    if poll.commits:
        commits = counted(len(poll.commits), "commit")
        # A commit without a run or a report changed no partition that the target has.
        group = "Reported" if is_reported else "No partition to run for"
        return group, f"{commits} of {poll.uri}, up to version {version}"
    if known is None:
        return "Watched from now on", f"{poll.uri} after version {version}"
    if poll.ignored:
        versions = _versions(known.log.version + 1, version)
        return "No changed rows to run for", f"{poll.uri} {versions} ({', '.join(poll.ignored)})"
    return "No new commits", f"{poll.uri} (version {version})"


def _versions(first: int, last: int) -> str:
    return f"version {last}" if first == last else f"versions {first} to {last}"
