"""One asset that shows the state of many tables: which need maintenance, and how they grow."""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

import datetime as dt
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import dagster as dg

from dagster_delta.errors import DeltaError, InvalidArgument
from dagster_delta.orchestration.checks.table_checks import check_health_limits
from dagster_delta.orchestration.maintenance.health_page import (
    FIGURES_KEY,
    EarlierReport,
    TableState,
    health_page_metadata,
)
from dagster_delta.orchestration.maintenance.maintained_tables import (
    Asset,
    MaintainedTable,
    maintained_tables,
)
from dagster_delta.orchestration.storage_options import StorageOptions, plain_options
from dagster_delta.storage import open_store
from dagster_delta.table.table_discovery import find_tables

if TYPE_CHECKING:
    _Result = dg.MaterializeResult[None]
else:
    # Dagster does not accept the generic class.
    _Result = dg.MaterializeResult

DEFAULT_THRESHOLDS: Mapping[str, float] = {
    "num_small_files": 100,
    "deleted_share": 0.2,
    "commits_since_checkpoint": 100,
    "damaged_log_files": 0,
}
"""Largest allowed values of a table that needs no maintenance."""

_CHECK = "delta_tables_healthy"

# Opening a table waits for storage; more at once would hold the file lists of more tables.
_TABLES_AT_ONCE = 4

_REPORTS_SHOWN = 30


def delta_health_asset(
    name: str = "delta_health",
    *,
    assets: Iterable[Asset] = (),
    selection: dg.AssetSelection | None = None,
    tables: Mapping[str, str] | None = None,
    root: str | None = None,
    storage_options: StorageOptions | Mapping[str, Any] | None = None,
    thresholds: Mapping[str, float | None] | None = None,
    **asset_options: Any,
) -> dg.AssetsDefinition:
    """An asset whose materialization reports the health of all its tables on one page.

    The page has a table with the state of every table, the thresholds that are exceeded, and plots
    of sizes, files, partition skew and growth. The check `delta_tables_healthy` of the asset warns
    if a threshold is exceeded, a table cannot be read, or no table was found. Totals are numbers,
    which the UI plots.

    A run reads the logs of the tables, four at a time, and no data file.

    Args:
        name: of the asset.
        assets: assets stored by a `DeltaIOManager`, or with their location in `dagster/uri`.
        selection: selection among the assets.
        tables: tables that are not assets, by name, with their locations.
        root: every table at or below this location, found in each run.
        storage_options: for `tables` and `root`, and for assets with a `dagster/uri`.
        thresholds: largest allowed values by a name of `TableHealth`, merged with the defaults:
            100 small files, a share of 0.2 deleted rows, 100 commits since the checkpoint, no
            damaged log files. None as a value disables a default.
        asset_options: of `dg.asset`: key_prefix, group_name, automation_condition, …

    Raises:
        InvalidArgument: there are no tables, or a threshold has an unknown name or is no number.

    Examples:
        delta_health_asset(assets=[flights, weather], thresholds={"partition_skew": 20})
        delta_health_asset(root="s3://lake", automation_condition=AutomationCondition.on_cron(…))
    """
    limits = _limits(thresholds or {})
    assets = tuple(assets)
    only_root = root is not None and not assets and not tables
    given = () if only_root else maintained_tables(assets, selection, tables or {}, storage_options)
    options = {"kinds": {"deltalake"}, "description": "Health of Delta tables.", **asset_options}
    key = dg.AssetKey([*_prefix(options), name])
    resources = {each.io_manager_key for each in given if each.io_manager_key}
    options["required_resource_keys"] = {*options.pop("required_resource_keys", ()), *resources}

    define: Any = dg.asset(
        name=name,
        check_specs=[
            dg.AssetCheckSpec(
                _CHECK, asset=key, description="No table exceeds the thresholds of the report."
            )
        ],
        **options,
    )

    def health(context: dg.AssetExecutionContext) -> _Result:
        found = [*given, *_tables_below(root, storage_options)]
        with ThreadPoolExecutor(_TABLES_AT_ONCE, "delta-health") as threads:
            states = list(threads.map(lambda each: _state(each, context.resources), found))
        earlier = _earlier_reports(context.instance, key)
        metadata = health_page_metadata(states, limits, earlier, dt.datetime.now(dt.UTC))
        return dg.MaterializeResult(
            metadata=metadata, check_results=[_check_result(states, limits, key)]
        )

    return cast("dg.AssetsDefinition", define(health))


def _limits(thresholds: Mapping[str, float | None]) -> dict[str, float]:
    check_health_limits(thresholds)
    merged = {**DEFAULT_THRESHOLDS, **thresholds}
    return {name: limit for name, limit in merged.items() if limit is not None}


def _prefix(options: Mapping[str, Any]) -> list[str]:
    prefix = options.get("key_prefix") or []
    if "key" in options:
        raise InvalidArgument("a health asset has a name and a key_prefix instead of a key")
    return [prefix] if isinstance(prefix, str) else list(prefix)


def _tables_below(
    root: str | None, storage_options: StorageOptions | Mapping[str, Any] | None
) -> list[MaintainedTable]:
    if root is None:
        return []
    options = plain_options(storage_options)
    base = open_store(root, options).location.uri.rstrip("/")
    return [
        MaintainedTable(uri.removeprefix(f"{base}/"), uri=uri, storage_options=storage_options)
        for uri in find_tables(root, options)
    ]


def _state(maintained: MaintainedTable, resources: Any) -> TableState:  # noqa: ANN401
    key = maintained.asset_key
    try:
        table = maintained.open(resources)
        if table is None:
            return TableState(maintained.name, key)
        snapshot = table.snapshot()
        return TableState(
            maintained.name, key, health=table.health(), committed_ms=snapshot.timestamp_ms
        )
    except DeltaError as error:
        return TableState(maintained.name, key, problem=str(error))


def _earlier_reports(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[EarlierReport]:
    """The latest reports, oldest first."""
    reports = []
    for record in instance.fetch_materializations(key, limit=_REPORTS_SHOWN).records:
        event = record.asset_materialization
        figures = None if event is None else event.metadata.get(FIGURES_KEY)
        if isinstance(figures, dg.JsonMetadataValue) and isinstance(figures.data, dict):
            time = dt.datetime.fromtimestamp(record.timestamp, dt.UTC)
            reports.append(EarlierReport(time, figures.data))
    return reports[::-1]


def _check_result(
    states: list[TableState], limits: Mapping[str, float], key: dg.AssetKey
) -> dg.AssetCheckResult:
    due = [state.name for state in states if state.problem or state.beyond(limits)]
    described = f"{len(due)} of {len(states)} tables need attention: {', '.join(due[:10])}"
    if not states:
        described = "No table was found: is the root the right one?"
    elif not due:
        described = f"All {len(states)} tables are within the thresholds"
    elif len(due) > 10:
        described += " …"
    return dg.AssetCheckResult(
        passed=bool(states) and not due,
        asset_key=key,
        check_name=_CHECK,
        severity=dg.AssetCheckSeverity.WARN,
        description=described,
        metadata={f"delta/limit_{name}": limit for name, limit in limits.items()},
    )
