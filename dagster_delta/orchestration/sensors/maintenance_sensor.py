"""A sensor that maintains the tables that need it: worst first, within a budget of bytes per day.

Its cursor holds what it has requested in the last 24 hours, and at which version of each table: a
table is maintained again only after it has changed.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of ops itself.

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import dagster as dg
import msgspec
from pydantic import Field

from dagster_delta.errors import DeltaError, InvalidArgument
from dagster_delta.orchestration.checks.health_asset import tables_below
from dagster_delta.orchestration.checks.table_checks import exceeded_limits, health_measure
from dagster_delta.orchestration.maintenance.jobs import run_maintenance
from dagster_delta.orchestration.maintenance.maintained_tables import (
    Asset,
    MaintainedTable,
    maintained_tables,
    split_by_branch,
)
from dagster_delta.orchestration.maintenance.operations import (
    MAINTENANCE_POOL,
    DeltaMaintenanceConfig,
    spell_bytes,
)
from dagster_delta.orchestration.metadata_keys import counted
from dagster_delta.orchestration.storage_options import GivenStorage
from dagster_delta.table.operations.health import TableHealth

MAINTAINED_TABLE_TAG = "delta/maintained_table"
BECAUSE_TAG = "delta/maintained_because"

_DAY_SECONDS = 86_400
_TABLES_AT_ONCE = 4
_STEP = "maintain"
_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


class TableMaintenanceConfig(DeltaMaintenanceConfig):
    """The steps of maintenance of one table."""

    table: str = Field(description="Name of the table to maintain.")


class _Request(msgspec.Struct, frozen=True):
    """One run that was requested."""

    at: float
    """Seconds since the epoch."""
    num_bytes: int


class _Cursor(msgspec.Struct):
    requests: list[_Request] = msgspec.field(default_factory=list)
    """Those of the last 24 hours."""
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    """By name: id and version of the table for which a run was requested last."""


class _DueTable(msgspec.Struct, frozen=True):
    name: str
    state: str
    """Id and version of the table."""
    because: str
    severity: float
    """How often the value that exceeds its limit most is that limit."""
    num_bytes: int
    """What the maintenance reads and writes again, estimated from the log."""
    needs_checkpoint: bool


def delta_maintenance_sensor(
    name: str = "delta_maintenance_sensor",
    *,
    assets: Iterable[Asset] = (),
    selection: dg.AssetSelection | None = None,
    tables: Mapping[str, str] | None = None,
    root: str | None = None,
    storage_options: GivenStorage | None = None,
    small_files: int | None = 100,
    deleted_rows: float | None = 0.2,
    log_bytes: int | None = 64 * 1024**2,
    at_most_bytes_per_day: int | None = None,
    config: DeltaMaintenanceConfig | None = None,
    spark: str | None = None,
    minimum_interval_seconds: int = 3600,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """A sensor that starts a run of maintenance for each table that needs it, with its own job,
    called `<name>_job`. A run has one step, on one table.

    A tick reads the logs of the tables, four at a time, and no data file. Tables that exceed a
    limit are due, the worst first. Each run has the tags `delta/maintained_table` and
    `delta/maintained_because`; a tick without runs says why. A table that is being maintained, or
    has not changed since, is not maintained again.

    Args:
        name: of the sensor.
        assets: assets stored by a `DeltaIOManager`, or with their location in `dagster/uri`.
        selection: selection among the assets.
        tables: tables that are not assets, by name, with their locations.
        root: every table at or below this location, found in each tick.
        storage_options: for `tables` and `root`, and for assets with a `dagster/uri`: storage
            options, or the catalog of tables named `catalog://a.b.c`.
        small_files: a table with more files that OPTIMIZE would compact is due; None: never.
        deleted_rows: likewise with a larger share of rows that deletion vectors hide, 0 to 1.
        log_bytes: likewise with more bytes of commits since the checkpoint.
        at_most_bytes_per_day: bytes of data files and commits that the runs of any 24 hours read
            and write again, estimated from the log; None for no limit.
        config: what a run does; by default it compacts, and VACUUM only reports. A table with a
            long log also gets a checkpoint.
        spark: as for `delta_maintenance_job`.
        minimum_interval_seconds: time between two ticks.
        default_status: whether the sensor is initially running.

    Raises:
        InvalidArgument: there are no tables, or no limit.

    Examples:
        delta_maintenance_sensor(assets=[flights, weather], at_most_bytes_per_day=500 * 1024**3)
        delta_maintenance_sensor(root="s3://lake", small_files=500)
    """
    limits = _make_limits(name, small_files, deleted_rows, log_bytes)
    if at_most_bytes_per_day is not None and at_most_bytes_per_day <= 0:
        raise InvalidArgument(f"at_most_bytes_per_day of {name} is a positive number of bytes")
    given_assets = tuple(assets)
    only_root = root is not None and not given_assets and not tables
    given = () if only_root else maintained_tables(given_assets, selection, tables, storage_options)
    find_tables = partial(_list_tables, given, root, storage_options)
    defaults = dict(config or DeltaMaintenanceConfig())
    managers = {table.io_manager_key for table in given if table.io_manager_key}
    resources = managers | ({spark} if spark is not None else set())

    def tick(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        health = partial(_read_due, context.resources, limits)
        tables, left = split_by_branch(find_tables().values(), context)
        with ThreadPoolExecutor(_TABLES_AT_ONCE, "delta-maintenance") as threads:
            found = list(threads.map(health, tables))
        due = sorted(
            (one for one in found if isinstance(one, _DueTable)),
            key=lambda one: (-one.severity, one.name),
        )
        problems = [*left, *(one for one in found if isinstance(one, str))]
        cursor = _read_cursor(context.cursor)
        chosen, notes = _choose_tables(context.instance, due, cursor, at_most_bytes_per_day)
        notes = [*problems, *notes]
        for note in [*(one.because for one in chosen), *notes]:
            context.log.info(note)
        if not due and not problems:
            named = ", ".join(f"{limit} {value:g}" for limit, value in limits.items())
            notes = [f"nothing is due: {counted(len(found), 'table')} within the limits ({named})"]
        return dg.SensorResult(
            run_requests=[_request_run(one, defaults) for one in chosen],
            skip_reason=None if chosen else dg.SkipReason("; ".join(notes)),
            cursor=msgspec.json.encode(cursor).decode(),
        )

    job = _define_job(name, find_tables, resources, spark, pool=_pool_of(given, root))
    define = dg.sensor(
        name=name,
        job=job,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys=managers,
        description="Maintains the tables that need it, worst first.",
    )
    return define(tick)


def _request_run(due: _DueTable, config: Mapping[str, Any]) -> dg.RunRequest:
    asked = TableMaintenanceConfig(**{**config, "table": due.name})
    if due.needs_checkpoint:
        checkpoint = asked.checkpoint.model_copy(update={"enabled": True})
        asked = asked.model_copy(update={"checkpoint": checkpoint})
    return dg.RunRequest(
        run_key=f"{due.name}:{due.state}",
        run_config=dg.RunConfig(ops={_STEP: asked}),
        tags={MAINTAINED_TABLE_TAG: due.name, BECAUSE_TAG: due.because},
    )


def _define_job(
    name: str,
    find_tables: Callable[[], Mapping[str, MaintainedTable]],
    resources: Iterable[str],
    spark: str | None,
    *,
    pool: str,
) -> dg.JobDefinition:
    """A job of one step, on the table that a run names."""

    @dg.op(
        # Op names are unique in a code location.
        name=f"{name}__{_STEP}",
        description="Maintains the table of the run.",
        out=dg.Out(dg.Nothing),
        required_resource_keys=set(resources),
        pool=pool,
    )
    def maintain_table(context: dg.OpExecutionContext, config: TableMaintenanceConfig) -> None:
        maintained = find_tables().get(config.table)
        if maintained is None:
            raise InvalidArgument(
                f"{config.table} is not a table of {name}: it was moved or dropped since the tick"
            )
        run_maintenance(context, maintained, config, spark)

    @dg.graph(name=f"{name}_graph")
    def maintenance() -> None:
        maintain_table.alias(_STEP)()

    return maintenance.to_job(
        name=f"{name}_job", description="Maintains one table, as the sensor asks."
    )


def _make_limits(
    name: str, small_files: int | None, deleted_rows: float | None, log_bytes: int | None
) -> dict[str, float]:
    limits = {
        "num_small_files": small_files,
        "deleted_share": deleted_rows,
        "log_bytes": log_bytes,
    }
    found = {measure: limit for measure, limit in limits.items() if limit is not None}
    if not found:
        raise InvalidArgument(
            f"{name} has no limit, so that no table is ever due: give small_files, deleted_rows or "
            "log_bytes"
        )
    if deleted_rows is not None and not 0 <= deleted_rows <= 1:
        raise InvalidArgument(
            f"deleted_rows of {name} is a share of the rows, from 0 to 1, not {deleted_rows}"
        )
    return found


def _list_tables(
    given: Sequence[MaintainedTable],
    root: str | None,
    storage_options: GivenStorage | None,
) -> dict[str, MaintainedTable]:
    return {table.name: table for table in (*given, *tables_below(root, storage_options))}


def _pool_of(given: Sequence[MaintainedTable], root: str | None) -> str:
    is_one = root is None and len(given) == 1
    return given[0].pool if is_one else MAINTENANCE_POOL


def _read_due(
    resources: object, limits: Mapping[str, float], maintained: MaintainedTable
) -> _DueTable | str | None:
    """The table if it is due; why it cannot be read or maintained; None if it needs nothing, or is
    not there.
    """
    name = maintained.name
    try:
        table = maintained.open(resources)
        if table is None:
            return None
        health, table_id = table.health(), table.snapshot().metadata.id
    except DeltaError as error:
        return f"{name} cannot be read: {error}"
    exceeded = exceeded_limits(health, limits)
    if not exceeded:
        return None
    if table.refusal is not None:
        return f"{name} is not maintained: {table.refusal}"
    values = {measure: health_measure(health, measure) or 0 for measure in exceeded}
    ratios = (value / (limits[measure] or 1e-9) for measure, value in values.items())
    because = f"{name}: {', '.join(exceeded.values())}"
    state = f"{table_id}:{health.version}"
    num_bytes, is_long = _estimate_bytes(health, exceeded), "log_bytes" in exceeded
    return _DueTable(name, state, because, max(ratios), num_bytes, is_long)


def _estimate_bytes(health: TableHealth, exceeded: Iterable[str]) -> int:
    """Bytes that are read and written again: small files, files with deleted rows, commits."""
    deleted = health.size_bytes * health.num_files_with_deletions // max(1, health.num_files)
    sizes = {
        "num_small_files": health.small_files_bytes,
        "deleted_share": deleted,
        "log_bytes": health.log_bytes,
    }
    return sum(sizes[measure] for measure in exceeded)


def _read_cursor(text: str | None) -> _Cursor:
    cursor = _Cursor() if not text else msgspec.json.decode(text, type=_Cursor)
    since = time.time() - _DAY_SECONDS
    cursor.requests = [request for request in cursor.requests if request.at > since]
    return cursor


def _choose_tables(
    instance: dg.DagsterInstance,
    due: Sequence[_DueTable],
    cursor: _Cursor,
    budget: int | None,
) -> tuple[list[_DueTable], list[str]]:
    """The tables to maintain now, which the cursor notes, and why the other ones wait."""
    chosen: list[_DueTable] = []
    notes: list[str] = []
    for one in due:
        spent = sum(request.num_bytes for request in cursor.requests)
        if cursor.versions.get(one.name) == one.state:
            notes.append(f"{_describe_unchanged(instance, one.name)}: {one.because}")
        elif _is_maintained_now(instance, one.name):
            notes.append(f"{one.name} is being maintained: {one.because}")
        elif budget is not None and spent + one.num_bytes > budget:
            notes.append(
                f"{one.name} is due and waits: it needs {spell_bytes(one.num_bytes)}, and "
                f"{spell_bytes(spent)} of {spell_bytes(budget)} (at_most_bytes_per_day) were used "
                f"in the last 24 hours: {one.because}"
            )
        else:
            cursor.requests.append(_Request(time.time(), one.num_bytes))
            cursor.versions[one.name] = one.state
            chosen.append(one)
    return chosen, notes


def _describe_unchanged(instance: dg.DagsterInstance, name: str) -> str:
    """Why a table is left alone that is as it was when a run was requested."""
    filters = dg.RunsFilter(tags={MAINTAINED_TABLE_TAG: name})
    for record in instance.get_run_records(filters, limit=1):
        if record.dagster_run.status in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED):
            return (
                f"{name} is due, and its last maintenance (run {record.dagster_run.run_id}) did "
                "not succeed: see why and launch it again, or it waits until the table changes"
            )
    return f"{name} has not changed since its last maintenance"


def _is_maintained_now(instance: dg.DagsterInstance, name: str) -> bool:
    filters = dg.RunsFilter(tags={MAINTAINED_TABLE_TAG: name}, statuses=_UNFINISHED)
    return bool(instance.get_run_records(filters, limit=1))
