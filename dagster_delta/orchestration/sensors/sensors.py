"""Sensors on the transaction log: a run when a table changes, by any writer.

What happens when:
- the first tick of a table starts at `start_from`; a table found later starts at its first commit;
- commits that change no row (compaction, properties, a new column) are skipped;
- a log that does not continue from the cursor (cleaned up, restored, another table) is an error
  that says how to reset the cursor, in every tick until it is reset; unreachable storage is an
  error too;
- the other tables continue: if a tick has results for them, it logs the errors; otherwise it fails
  with them;
- all new commits of a table make one run, or one per changed partition, and a tick requests at most
  `max_runs_per_tick`: the others follow in the next ticks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, Unpack

import dagster as dg
import msgspec
from msgspec.structs import replace

from dagster_delta import clock
from dagster_delta.errors import DeltaError, InvalidArgument, TableNotFound, VersionNotFound
from dagster_delta.orchestration.io.asset_options import asset_key_of, check_choice, names_of
from dagster_delta.orchestration.known_fields import checked_arguments
from dagster_delta.orchestration.metadata_keys import counted, first_names
from dagster_delta.orchestration.op_outputs import find_lasting_tables
from dagster_delta.orchestration.partitions.mapping import PartitionKeysOf, PartitionMapping
from dagster_delta.orchestration.quarantine import without_quarantines
from dagster_delta.orchestration.sensors.table_watcher import (
    FROM_VERSION_TAG,
    TABLE_ID_TAG,
    TABLE_URI_TAG,
    TO_VERSION_TAG,
    AssetEventKind,
    CommitRules,
    PartitionFilter,
    PollResult,
    SensorState,
    TableChanges,
    TableState,
    WaitingChanges,
    commit_event,
    poll_tables,
)
from dagster_delta.orchestration.storage_options import GivenStorage, plain_options
from dagster_delta.orchestration.table_metadata import declared_location, spell_time
from dagster_delta.storage import ObjectStore, catalog_name, open_store
from dagster_delta.table.read.watch import StartFrom

WatchedTable: TypeAlias = str | dg.AssetsDefinition | dg.AssetSpec
"""The location of a table, or its asset, such as that of `observable_delta_asset`."""

AssetKeyFor: TypeAlias = Callable[[str], dg.AssetKey]
"""Maps the location of an external table to the key of its asset."""

RunConfigFor: TypeAlias = Callable[[TableChanges], "dg.RunConfig | Mapping[str, Any]"]
"""Maps the commits of a run to its config."""

_MISSING_S = 86_400

# A longer list is not useful.
_MAX_NAMED = 10


class DeltaSensorOptions(TypedDict, total=False):
    """Options that both sensors take, all of them optional.

    Attributes:
        root: Watch every table at or below this location, instead of `tables`, without those of op
            outputs.
        discover_every_seconds: How often to look for new tables below the root, in seconds; 300 by
            default. Local directories are walked; on object stores, every name below the root is
            listed.
        storage_options: Storage options, or the catalog of tables named `catalog://a.b.c`.
        target: What to run: a job, an asset selection or assets, as for `dg.sensor`. Without a
            target, the sensor only reports commits on `asset_key`.
        job_name: Alternative to `target`: the name of a job in the code location.
        start_from: Where the first tick starts: `latest` (the default), `earliest`, or a version.
        operations: Only these operations, such as WRITE or MERGE. Operations that change no rows,
            such as OPTIMIZE, count only if named here.
        partitions: Only these partitions: allowed values (as text) by partition column, or a
            function.
        columns: Only commits that change one of these columns. Inserts and deletes change all
            columns, and so does an update that the change data feed did not record; for recorded
            updates, the change data files are read.
        minimum_rows: Wait until pending commits have changed this many rows …
        minimum_age_seconds: … or until the oldest of them was seen this many seconds ago.
        partitions_def: Partitions definition of the target: one run per changed partition. Dynamic
            partitions are added.
        partition_expr: Partition column of the table that maps to the partition key, or a mapping
            from dimension to column.
        partition_keys: Alternative to `partition_expr`: a function from the values of a table
            partition to partition keys.
        asset_key: Report each commit on this asset (or key); for several tables, a function from
            location to asset key.
        asset_event: Event type of reported commits: `materialization` (the default; automation
            conditions react to it) or `observation`.
        run_config: Run config, or a function from the `TableChanges` of a run to its config.
        run_tags: Additional tags of every run.
        max_commits_per_tick: Maximum number of commits that one tick reads per table; 100 by
            default.
        max_runs_per_tick: Maximum number of runs that one tick requests; 100 by default.
        fail_missing_after_seconds: A location without a table waits for its first commit, and fails
            the tick after this time, in seconds; 86,400 (a day) by default, `math.inf` for never.
        minimum_interval_seconds: Minimum number of seconds between two ticks.
        default_status: Whether the sensor is initially running; it is stopped by default.
        description: Description of the sensor.
    """

    root: str
    discover_every_seconds: float
    storage_options: GivenStorage
    target: Any
    job_name: str
    start_from: StartFrom
    operations: Collection[str]
    partitions: PartitionFilter
    columns: str | Sequence[str]
    minimum_rows: int
    minimum_age_seconds: float
    partitions_def: dg.PartitionsDefinition[Any]
    partition_expr: str | Mapping[str, str]
    partition_keys: PartitionKeysOf
    asset_key: Any
    asset_event: AssetEventKind
    run_config: RunConfigFor
    run_tags: Mapping[str, str]
    max_commits_per_tick: int
    max_runs_per_tick: int
    fail_missing_after_seconds: float
    minimum_interval_seconds: int
    default_status: dg.DefaultSensorStatus
    description: str


@checked_arguments(DeltaSensorOptions)
def delta_table_sensor(
    name: str,
    tables: WatchedTable | Sequence[WatchedTable] = (),
    **options: Unpack[DeltaSensorOptions],
) -> dg.SensorDefinition:
    """A sensor that requests a run when commits change the rows of a table.

    The run key is `table_id:version:digest[:partition]`; the tag `delta/commits` names the table,
    the commits, the operations and the rows.

    Args:
        name: of the sensor.
        tables: location of a table, or its observable asset; or several.
        options: see `DeltaSensorOptions`.

    Raises:
        InvalidArgument: the options are inconsistent.

    Examples:
        delta_table_sensor("flights_changed", "s3://lake/raw/flights", target=[daily_report])
        delta_table_sensor("lake", root="s3://lake/raw", asset_key=lambda uri: uri.split("/")[-2:])
    """
    return _define_sensor(name, tables, options, needs_change_feed=False)


@checked_arguments(DeltaSensorOptions)
def delta_change_feed_sensor(
    name: str,
    tables: WatchedTable | Sequence[WatchedTable] = (),
    **options: Unpack[DeltaSensorOptions],
) -> dg.SensorDefinition:
    """Like `delta_table_sensor`, for tables with a change data feed.

    The change data files are in `TableChanges.change_files` and in the events on `asset_key`. A
    commit that was made while the change data feed was off is an error, since a consumer would miss
    row changes.

    Args:
        name: of the sensor.
        tables: location of a table, or its observable asset; or several.
        options: see `DeltaSensorOptions`.

    Raises:
        InvalidArgument: the options are inconsistent.
    """
    return _define_sensor(name, tables, options, needs_change_feed=True)


def _define_sensor(
    name: str,
    tables: WatchedTable | Sequence[WatchedTable],
    options: DeltaSensorOptions,
    *,
    needs_change_feed: bool,
) -> dg.SensorDefinition:
    watch = _make_watch(name, tables, options, needs_change_feed=needs_change_feed)

    define = dg.sensor(
        name=name,
        target=options.get("target"),
        job_name=options.get("job_name"),
        minimum_interval_seconds=options.get("minimum_interval_seconds"),
        default_status=options.get("default_status", dg.DefaultSensorStatus.STOPPED),
        description=options.get("description") or _describe_watch(watch),
    )
    return define(watch.tick)


def _make_watch(
    name: str,
    tables: WatchedTable | Sequence[WatchedTable],
    options: DeltaSensorOptions,
    *,
    needs_change_feed: bool,
) -> Watch:
    # In the store's spelling, so that one table has one name in the cursor.
    given = [tables] if isinstance(tables, WatchedTable) else tables
    located = [_find_location(name, table) for table in given]
    listed = tuple(dict.fromkeys(uri.rstrip("/") or uri for uri in located))
    root = options.get("root")
    if bool(listed) == bool(root):
        raise InvalidArgument(f"Sensor {name} watches either tables or a root: give one of them")
    runs_something = not (options.get("target") is None and options.get("job_name") is None)
    if not runs_something and options.get("asset_key") is None:
        raise InvalidArgument(
            f"Sensor {name} has nothing to do: give a target to run, or an asset_key to report on"
        )
    event = options.get("asset_event", "materialization")
    check_choice(f"sensor {name}", "asset_event", event, AssetEventKind)
    for option in ("max_commits_per_tick", "max_runs_per_tick"):
        value = options.get(option, 100)
        if not isinstance(value, int) or value < 1:
            raise InvalidArgument(f"{option} of sensor {name} is a positive number, not {value!r}")
    operations = options.get("operations")
    if operations is not None:
        operations = frozenset(operation.upper() for operation in names_of(operations))
    rules = CommitRules(
        start_from=options.get("start_from", "latest"),
        operations=operations,
        partitions=options.get("partitions"),
        columns=names_of(options.get("columns", ())),
        needs_change_feed=needs_change_feed,
        max_commits_per_tick=options.get("max_commits_per_tick", 100),
    )
    return Watch(
        sensor_name=name,
        tables=listed,
        options=options,
        rules=rules,
        requests_runs=runs_something,
        mapping=_make_mapping(name, options),
        asset_key=_asset_key(name, options, several=root is not None or len(listed) > 1),
    )


def _find_location(name: str, table: WatchedTable) -> str:
    """The location of a table, or that which its asset declares."""
    if isinstance(table, str):
        return table
    specs = list(table.specs) if isinstance(table, dg.AssetsDefinition) else [table]
    uri = declared_location(specs[0].metadata)
    if uri is None or len(specs) > 1:
        keys = ", ".join(spec.key.to_user_string() for spec in specs)
        raise InvalidArgument(
            f"sensor {name} does not know the location of {keys}: only single assets such as those "
            "of observable_delta_asset declare it; give the location of the table"
        )
    return uri


def _make_mapping(name: str, options: DeltaSensorOptions) -> PartitionMapping | None:
    expression, keys = options.get("partition_expr"), options.get("partition_keys")
    partitions_def = options.get("partitions_def")
    if partitions_def is not None:
        return PartitionMapping(partitions_def, expression, keys)
    for option in ("partition_expr", "partition_keys"):
        if option in options:
            raise InvalidArgument(
                f"Sensor {name} has {option} and no partitions_def: give the partitions definition "
                "of its target"
            )
    return None


def _asset_key(name: str, options: DeltaSensorOptions, *, several: bool) -> AssetKeyFor | None:
    given = options.get("asset_key")
    if given is None:
        return None
    if callable(given) and not isinstance(given, dg.AssetKey | dg.AssetsDefinition):
        return lambda uri: dg.AssetKey.from_coercible(given(uri))
    if several:
        raise InvalidArgument(
            f"Sensor {name} watches several tables: its asset_key is a function from the location "
            "of a table to the key of its asset"
        )
    key = asset_key_of(given)
    return lambda _uri: key


def _describe_watch(watch: Watch) -> str:
    root = watch.options.get("root")
    what = f"every table below {root}" if root else ", ".join(watch.tables[:5])
    kind = "row changes" if watch.rules.needs_change_feed else "new versions"
    return f"Watches {what} for {kind}."


class Watch(msgspec.Struct, frozen=True):
    """What a sensor watches, and its actions."""

    sensor_name: str
    tables: tuple[str, ...]
    options: DeltaSensorOptions
    rules: CommitRules
    requests_runs: bool
    mapping: PartitionMapping | None
    """Maps changed partitions to partition keys; None for one run per table."""
    asset_key: AssetKeyFor | None
    """Keys of the assets on which to report commits; None to report none."""
    stores: dict[str, ObjectStore] = msgspec.field(default_factory=dict)
    """Open stores, kept between ticks to reuse connections."""
    op_outputs: set[str] = msgspec.field(default_factory=set)
    """Locations of tables of op outputs below the root, kept to open each of them once."""

    def tick(self, context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """The result of one evaluation of the sensor. If tables failed, and no other has results,
        it raises.
        """
        before = SensorState.from_cursor(context.cursor)
        now_ms = clock.now_ms()
        uris, discovered_at_ms = self._find_locations(before, now_ms)
        polled = poll_tables(
            uris,
            before,
            self._open_store,
            self.rules,
            now_ms=now_ms,
            discovered=self.options.get("root") is not None,
        )
        if self.requests_runs:
            polled = [self._as_requested(context, before, result, now_ms) for result in polled]
        tick = _Tick(self, context, before, now_ms, dict(before.tables))
        # The table that has waited longest comes first, so that a busy table does not block others.
        for result in sorted(polled, key=_waiting_since):
            tick.take(result)
        tables = {uri: tick.tables[uri] for uri in uris if uri in tick.tables}
        return tick.result(SensorState(tables=tables, discovered_at_ms=discovered_at_ms))

    def _find_locations(self, state: SensorState, now_ms: int) -> tuple[Sequence[str], int | None]:
        root = self.options.get("root")
        if root is None:
            return self.tables, None
        last, seconds = state.discovered_at_ms, self.options.get("discover_every_seconds", 300)
        if last is not None and now_ms - last < seconds * 1000:
            return tuple(state.tables), last
        options = self._storage_options()
        found = find_lasting_tables(root, options, op_outputs=self.op_outputs)
        found = without_quarantines(found, options)
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
        if state.started_at_ms != known.started_at_ms:
            # It started over in this tick: the runs of before are not meant.
            return polled
        tags = {
            "dagster/sensor_name": self.sensor_name,
            TABLE_URI_TAG: polled.uri,
            TABLE_ID_TAG: state.waiting.table_id,
            FROM_VERSION_TAG: str(state.waiting.from_version),
        }
        try:
            found = context.instance.get_run_records(dg.RunsFilter(tags=tags), limit=1)
        except dg.DagsterInvariantViolationError:
            # A context that was built without an instance, in a unit test.
            return polled
        if not found:
            return polled
        commits = int(found[0].dagster_run.tags[TO_VERSION_TAG]) - known.log.version
        if commits <= 0:
            return PollResult(polled.uri, known, was_requested=True)
        rules = replace(
            self.rules, max_commits_per_tick=min(commits, self.rules.max_commits_per_tick)
        )
        (again,) = poll_tables([polled.uri], before, self._open_store, rules, now_ms=now_ms)
        return replace(again, was_requested=True)

    def _open_store(self, uri: str) -> ObjectStore:
        store = self.stores.get(uri)
        if store is None:
            store = open_store(uri, self._storage_options())
            # By another tick, a catalog may have another table by the name.
            if catalog_name(uri) is None:
                store = self.stores.setdefault(uri, store)
        return store

    def _storage_options(self) -> Mapping[str, object]:
        return plain_options(self.options.get("storage_options"))


def _waiting_since(polled: PollResult) -> tuple[float, str]:
    waiting = None if polled.state is None else polled.state.waiting
    return (float("inf") if waiting is None else waiting.seen_at_ms, polled.uri)


class _Tick(msgspec.Struct):
    """Gathers what one tick delivers."""

    watch: Watch
    context: dg.SensorEvaluationContext
    before: SensorState
    now_ms: int
    tables: dict[str, TableState | None]
    requests: list[dg.RunRequest] = msgspec.field(default_factory=list)
    events: list[dg.AssetMaterialization | dg.AssetObservation] = msgspec.field(
        default_factory=list
    )
    new_partitions: list[dg.AddDynamicPartitionsRequest] = msgspec.field(default_factory=list)
    failures: list[DeltaError] = msgspec.field(default_factory=list)
    outcomes: dict[str, list[str]] = msgspec.field(
        default_factory=lambda: {group: [] for group in _OUTCOMES}
    )
    count: int = 0

    def take(self, polled: PollResult) -> None:
        """Deliver the results of one table, all of them or, after an error, none."""
        self.count += 1
        state = polled.state
        try:
            if polled.error is not None:
                raise polled.error
            assert state is not None  # noqa: S101  there is one unless the poll failed
            if state.missing_since_ms is not None:
                self._check_missing(polled.uri, state.missing_since_ms)
            events = self._commit_events(polled, state)
            waiting, later, requests = self._run_requests(polled, state)
        except DeltaError as error:
            self._record_failure(polled.uri, error)
            return
        self.events += events
        self.requests += requests
        self.tables[polled.uri] = msgspec.structs.replace(state, waiting=waiting, later=later)
        if waiting is not None:
            group, text = "Changes wait", f"{polled.uri}: {self._waiting_text(waiting)}"
        elif later is not None and not requests:
            ends = first_names(later.unsent_keys or (), _MAX_NAMED)
            group, text = "Changes wait", f"{polled.uri}: until the time windows {ends} have ended"
        else:
            known = self.before.tables.get(polled.uri)
            group, text = _describe_outcome(polled, state, known, is_reported=bool(events))
        self.outcomes[group].append(text)

    def _check_missing(self, uri: str, since_ms: int) -> None:
        seconds = self.watch.options.get("fail_missing_after_seconds", _MISSING_S)
        if self.now_ms - since_ms >= seconds * 1000:
            raise TableNotFound(
                f"There is no table here since {spell_time(since_ms)} UTC: check the location, or "
                f"let the sensor wait longer by fail_missing_after_seconds, now {seconds:,.0f}",
                table=uri,
            )

    def _record_failure(self, uri: str, error: DeltaError) -> None:
        error.table = error.table or uri
        if isinstance(error, (VersionNotFound, TableNotFound)):
            error.message += (
                f'. In the cursor of sensor {self.watch.sensor_name}, under "tables", set '
                f'"{uri}" to null to start it over, or remove it to forget it; or delete the '
                "cursor to start over all tables of the sensor"
            )
        self.failures.append(error)
        self.outcomes["Failed"].append(str(error))

    def _commit_events(
        self, polled: PollResult, state: TableState
    ) -> list[dg.AssetMaterialization | dg.AssetObservation]:
        watch = self.watch
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
            kind = watch.options.get("asset_event", "materialization")
            events += commit_event(commit, polled.uri, key, kind, partition_keys)
        return events

    def _run_requests(
        self, polled: PollResult, state: TableState
    ) -> tuple[WaitingChanges | None, WaitingChanges | None, list[dg.RunRequest]]:
        """The commits that still wait, those that wait for a time window to end, and the runs to
        request now.
        """
        watch, waiting, later, uri = self.watch, state.waiting, state.later, polled.uri
        options = watch.options
        if not watch.requests_runs:
            if waiting is not None:
                self._add_partitions(self._find_partition_keys(uri, state, waiting)[0])
            return None, None, []
        room = max(0, options.get("max_runs_per_tick", 100) - len(self.requests))
        requests = []
        if later is not None and watch.mapping is not None:
            known = later.unsent_keys or ()
            ended = [key for key in known if watch.mapping.has(key)][:room]
            requests += self._make_run_requests(uri, later, ended)
            waits = [key for key in known if key not in ended]
            left = tuple(key for key in waits if watch.mapping.will_have(key))
            if lost := [key for key in waits if key not in left]:
                self.context.log.warning(
                    f"the asset has no partitions {first_names(lost)} any more: they get no run "
                    f"for their changes ({uri})"
                )
            later = msgspec.structs.replace(later, unsent_keys=left) if left else None
            room -= len(ended)
        due = waiting is not None and (
            polled.was_requested
            or waiting.is_due(
                self.now_ms,
                minimum_rows=options.get("minimum_rows"),
                minimum_age_seconds=options.get("minimum_age_seconds"),
            )
        )
        if waiting is None or not due or room <= 0:
            return waiting, later, requests
        keys, not_ended = self._find_partition_keys(uri, state, waiting)
        requests += self._make_run_requests(uri, waiting, keys[:room] if watch.mapping else [None])
        if not_ended:
            later = waiting.left_for(not_ended, later)
        if not keys[room:]:
            return None, later, requests
        return waiting.left_for(keys[room:], None), later, requests

    def _make_run_requests(
        self, uri: str, waiting: WaitingChanges, keys: Sequence[str | None]
    ) -> list[dg.RunRequest]:
        options, requests = self.watch.options, []
        run_config = options.get("run_config")
        for key in keys:
            changes = TableChanges.of(uri, waiting, key)
            config = None if run_config is None else run_config(changes)
            tags = {**options.get("run_tags", {}), **changes.tags}
            requests.append(dg.RunRequest(changes.run_key, config, tags, partition_key=key))
        self._add_partitions([key for key in keys if key is not None])
        return requests

    def _find_partition_keys(
        self, uri: str, state: TableState, waiting: WaitingChanges
    ) -> tuple[Sequence[str], Sequence[str]]:
        """The changed partitions of the asset, and those that it will have; none if it has no
        partitions.
        """
        if self.watch.mapping is None:
            return (), ()
        if waiting.unsent_keys is not None:
            return waiting.unsent_keys, ()
        timestamps = state.log.timestamp_columns or ()
        mapped = self.watch.mapping.map(waiting.partitions, timestamp_columns=timestamps)
        which = f"versions {waiting.from_version} to {waiting.to_version} of {uri}"
        if not (mapped.keys or mapped.later or mapped.unmapped):
            if not state.log.partition_columns:
                raise InvalidArgument(
                    f"the table has no partition columns, so its commits do not show which "
                    f"partitions changed ({which}): give it some by the metadata partition_by of "
                    "the asset that writes it, or request one run for all partitions by a sensor "
                    "without partitions_def",
                    table=uri,
                )
            self.context.log.warning(f"The commits do not show which partitions changed: {which}")
        if mapped.unmapped:
            named = ", ".join(str(dict(values)) for values in mapped.unmapped[:_MAX_NAMED])
            self.context.log.warning(
                f"{len(mapped.unmapped)} changed partitions of the table belong to no partition of "
                f"the asset, and get no run: {named} ({which})"
            )
        if mapped.later and self.watch.asset_key is not None:
            self.context.log.warning(
                f"the asset does not have the partitions {first_names(mapped.later)} yet, so that "
                f"no event reports what changed in them ({which})"
            )
        return mapped.keys, mapped.later

    def _add_partitions(self, keys: Sequence[str]) -> None:
        mapping = self.watch.mapping
        if mapping is not None and keys:
            self.new_partitions += mapping.dynamic_requests(keys, self.context.instance)

    def _waiting_text(self, waiting: WaitingChanges) -> str:
        """What pending changes are, and what they wait for."""
        options = self.watch.options
        minimum_rows = options.get("minimum_rows")
        minimum_age = options.get("minimum_age_seconds")
        versions = _spell_versions(waiting.from_version, waiting.to_version)
        what = f"{versions} with {counted(waiting.rows, 'row')}"
        if waiting.unsent_keys is not None:
            return f"{what}, {len(waiting.unsent_keys)} partitions get their runs in the next ticks"
        limits = [] if minimum_rows is None else [f"{minimum_rows:,} rows"]
        if minimum_age is not None:
            age = (self.now_ms - waiting.seen_at_ms) / 1000
            limits.append(f"an age of {minimum_age:,.0f} seconds, which is {age:,.0f} now")
        return f"{what}, until {' or '.join(limits) or 'the next tick'}"

    def result(self, after: SensorState) -> dg.SensorResult:
        """The result of the tick; the failures are raised if there is no other result."""
        # The time of the last root listing always changes.
        delivers = self.requests or self.events or self.before.tables != after.tables
        if self.failures and not delivers:
            raise self._combine_failures()
        for failure in self.failures:
            self.context.log.error(f"A table could not be watched: {failure}")
        reasons = [
            f"{group}: {first_names(texts, 10)}" for group, texts in self.outcomes.items() if texts
        ]
        skipped = ". ".join(reasons) or "There is no table below the root yet"
        return dg.SensorResult(
            run_requests=self.requests or None,
            skip_reason=None if self.requests else skipped,
            cursor=after.to_cursor(),
            dynamic_partitions_requests=self.new_partitions or None,
            asset_events=self.events,
        )

    def _combine_failures(self) -> DeltaError:
        first = self.failures[0]
        if len(self.failures) == 1:
            return first
        shown = "\n".join(f"  {failure}" for failure in self.failures[:_MAX_NAMED])
        failure = DeltaError(
            f"{len(self.failures)} of {self.count} tables could not be watched:\n{shown}"
        )
        failure.__cause__ = first
        return failure


_OUTCOMES: Sequence[str] = (
    "Changes wait",
    "Reported",
    "No partition to run for",
    "No changed rows to run for",
    "Watched from now on",
    "Not there yet",
    "Failed",
    "No new commits",
)
"""Results of a tick for a table, in the order in which a tick logs them."""


def _describe_outcome(
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
        versions = _spell_versions(known.log.version + 1, version)
        return "No changed rows to run for", f"{poll.uri} {versions} ({', '.join(poll.ignored)})"
    return "No new commits", f"{poll.uri} (version {version})"


def _spell_versions(first: int, last: int) -> str:
    return f"version {last}" if first == last else f"versions {first} to {last}"
