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
from typing import Any, TypedDict, TypeVar, Unpack

import dagster as dg

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.partitions.mapping import PartitionKeysOf, PartitionMapping
from dagster_delta.orchestration.sensors.table_changes import AssetEventKind
from dagster_delta.orchestration.sensors.table_watcher import CommitRules, PartitionFilter
from dagster_delta.orchestration.sensors.watch_tick import RunConfigFor, Watch
from dagster_delta.orchestration.storage_options import StorageOptions, plain_options
from dagster_delta.table.read.watch import StartFrom

_R = TypeVar("_R", CommitRules, Watch)


class DeltaSensorOptions(TypedDict, total=False):
    """Options that both sensors take, all of them optional.

    Attributes:
        root: Watch every table at or below this location, instead of `tables`.
        discover_every_seconds: How often to look for new tables below the root, in seconds; 300 by
            default. Local directories are walked; on object stores, every name below the root is
            listed.
        storage_options: Storage options.
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
        asset_key: Report each commit on this asset; for several tables, a function from location to
            asset key.
        asset_event: Event type of reported commits: `materialization` (the default; automation
            conditions react to it) or `observation`.
        run_config: Run config, or a function from the `TableChanges` of a run to its config.
        run_tags: Additional tags of every run.
        max_commits_per_tick: Maximum number of commits that one tick reads per table; 100 by
            default.
        max_runs_per_tick: Maximum number of runs that one tick requests; 100 by default.
        minimum_interval_seconds: Minimum number of seconds between two ticks.
        default_status: Whether the sensor is initially running; it is stopped by default.
        description: Description of the sensor.
    """

    root: str
    discover_every_seconds: float
    storage_options: StorageOptions | Mapping[str, object]
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
    minimum_interval_seconds: int
    default_status: dg.DefaultSensorStatus
    description: str


def delta_table_sensor(
    name: str,
    tables: str | Sequence[str] = (),
    **options: Unpack[DeltaSensorOptions],
) -> dg.SensorDefinition:
    """A sensor that requests a run when commits change the rows of a table.

    The run key is `table_id:version:digest[:partition]`; tags name the table, the range of commits,
    the operations and the rows.

    Args:
        name: of the sensor.
        tables: location of a table, or of several.
        options: see `DeltaSensorOptions`.

    Raises:
        InvalidArgument: the options are inconsistent.

    Examples:
        delta_table_sensor("flights_changed", "s3://lake/raw/flights", target=[daily_report])
        delta_table_sensor("lake", root="s3://lake/raw", asset_key=lambda uri: uri.split("/")[-2:])
    """
    return _sensor(name, tables, options, needs_change_feed=False)


def delta_change_feed_sensor(
    name: str,
    tables: str | Sequence[str] = (),
    **options: Unpack[DeltaSensorOptions],
) -> dg.SensorDefinition:
    """Like `delta_table_sensor`, for tables with a change data feed.

    The change data files are in `TableChanges.change_files` and in the events on `asset_key`. A
    commit that was made while the change data feed was off is an error, since a consumer would miss
    row changes.

    Args:
        name: of the sensor.
        tables: location of a table, or of several.
        options: see `DeltaSensorOptions`.

    Raises:
        InvalidArgument: the options are inconsistent.
    """
    return _sensor(name, tables, options, needs_change_feed=True)


def _sensor(
    name: str,
    tables: str | Sequence[str],
    options: DeltaSensorOptions,
    *,
    needs_change_feed: bool,
) -> dg.SensorDefinition:
    unknown = sorted(set(options) - set(DeltaSensorOptions.__annotations__))
    if unknown:
        raise InvalidArgument(
            f"Sensor {name} has no option {', '.join(unknown)}; it takes "
            f"{', '.join(sorted(DeltaSensorOptions.__annotations__))}"
        )
    watch = _watch(name, tables, options, needs_change_feed=needs_change_feed)

    @dg.sensor(
        name=name,
        target=options.get("target"),
        job_name=options.get("job_name"),
        minimum_interval_seconds=options.get("minimum_interval_seconds"),
        default_status=options.get("default_status", dg.DefaultSensorStatus.STOPPED),
        description=options.get("description") or _description(watch),
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return watch.tick(context)

    return sensor


def _watch(
    name: str,
    tables: str | Sequence[str],
    options: DeltaSensorOptions,
    *,
    needs_change_feed: bool,
) -> Watch:
    listed = tuple(dict.fromkeys(_names(tables)))
    root = options.get("root")
    if bool(listed) == bool(root):
        raise InvalidArgument(f"Sensor {name} watches either tables or a root: give one of them")
    runs_something = not (options.get("target") is None and options.get("job_name") is None)
    if not runs_something and options.get("asset_key") is None:
        raise InvalidArgument(
            f"Sensor {name} has nothing to do: give a target to run, or an asset_key to report on"
        )
    given: dict[str, Any] = dict(options)
    for option in ("max_commits_per_tick", "max_runs_per_tick"):
        value = given.get(option, 100)
        if not isinstance(value, int) or value < 1:
            raise InvalidArgument(f"{option} of sensor {name} is a positive number, not {value!r}")
    operations = options.get("operations")
    if operations is not None:
        operations = frozenset(operation.upper() for operation in _names(operations))
    rules = _with_options(
        CommitRules,
        given,
        operations=operations,
        columns=_names(options.get("columns", ())),
        needs_change_feed=needs_change_feed,
    )
    return _with_options(
        Watch,
        given,
        sensor_name=name,
        # In the store's spelling, so that one table has one name in the cursor.
        tables=tuple(uri.rstrip("/") or uri for uri in listed),
        storage_options=lambda: plain_options(options.get("storage_options")),
        rules=rules,
        requests_runs=runs_something,
        mapping=_mapping(name, options),
        asset_key=_asset_key(name, options, several=root is not None or len(listed) > 1),
    )


def _with_options(record: type[_R], options: Mapping[str, Any], **derived: Any) -> _R:
    """A record whose fields are options of the sensor, or derived from them."""
    names = record.__dataclass_fields__.keys() & options.keys()
    return record(**{**{name: options[name] for name in names}, **derived})


def _names(names: str | Collection[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _mapping(name: str, options: DeltaSensorOptions) -> PartitionMapping | None:
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


def _asset_key(
    name: str, options: DeltaSensorOptions, *, several: bool
) -> Callable[[str], dg.AssetKey] | None:
    given = options.get("asset_key")
    if given is None:
        return None
    if callable(given) and not isinstance(given, dg.AssetKey):
        return lambda uri: dg.AssetKey.from_coercible(given(uri))
    if several:
        raise InvalidArgument(
            f"Sensor {name} watches several tables: its asset_key is a function from the location "
            "of a table to the key of its asset"
        )
    key = dg.AssetKey.from_coercible(given)
    return lambda _uri: key


def _description(watch: Watch) -> str:
    what = f"every table below {watch.root}" if watch.root else ", ".join(watch.tables[:5])
    kind = "row changes" if watch.rules.needs_change_feed else "new versions"
    return f"Watches {what} for {kind}."
