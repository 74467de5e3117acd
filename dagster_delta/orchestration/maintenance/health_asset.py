"""One asset that shows the state of many tables: which need maintenance, and how they grow."""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import dagster as dg

from dagster_delta.errors import DeltaError, InvalidArgument
from dagster_delta.orchestration.checks.table_checks import check_health_limits, health_measure
from dagster_delta.orchestration.maintenance.maintained_tables import (
    Asset,
    MaintainedTable,
    maintained_tables,
)
from dagster_delta.orchestration.maintenance.steps import spell_bytes
from dagster_delta.orchestration.storage_options import StorageOptions, plain_options
from dagster_delta.orchestration.table_history import plain_markdown
from dagster_delta.storage import open_store
from dagster_delta.table.operations.health import TableHealth
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

_FIGURES_KEY = "delta/figures"
"""Metadata with the figures of each table, from which later reports show growth."""

_MAX_FINDINGS = 50
_MAX_TABLES = 500


@dataclass(frozen=True, slots=True)
class _TableState:
    """One table of the page."""

    name: str
    asset_key: dg.AssetKey | None = None
    health: TableHealth | None = None
    """None if the table could not be read, or does not exist yet."""
    committed_ms: int | None = None
    """Time of the latest commit, in milliseconds since the epoch."""
    problem: str | None = None
    """Why the table could not be read."""

    def beyond(self, thresholds: Mapping[str, float]) -> dict[str, float]:
        """The measures beyond their thresholds."""
        if self.health is None:
            return {}
        values = {name: health_measure(self.health, name) for name in thresholds}
        return {
            name: value
            for name, value in values.items()
            if value is not None and value > thresholds[name]
        }


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

    The page has a table with the state of every table, the thresholds that are exceeded, and the
    growth since the previous report. The check `delta_tables_healthy` of the asset warns if a
    threshold is exceeded, a table cannot be read, or no table was found. Totals are numbers, which
    the UI plots.

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
        InvalidArgument: there are no tables, or a threshold has an unknown name.

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
    managers = {table.io_manager_key for table in given if table.io_manager_key}
    options["required_resource_keys"] = managers.union(options.get("required_resource_keys", ()))

    check = dg.AssetCheckSpec(_CHECK, asset=key, description="No table exceeds the thresholds.")
    define: Any = dg.asset(name=name, check_specs=[check], **options)

    def health(context: dg.AssetExecutionContext) -> _Result:
        found = [*given, *_tables_below(root, storage_options)]
        with ThreadPoolExecutor(_TABLES_AT_ONCE, "delta-health") as threads:
            states = list(threads.map(lambda table: _state(table, context.resources), found))
        return dg.MaterializeResult(
            metadata=_page_metadata(states, limits, _previous_sizes(context.instance, key)),
            check_results=[_check_result(states, limits, key)],
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


def _state(maintained: MaintainedTable, resources: Any) -> _TableState:  # noqa: ANN401
    key = maintained.asset_key
    try:
        table = maintained.open(resources)
        if table is None:
            return _TableState(maintained.name, key)
        snapshot = table.snapshot()
        return _TableState(
            maintained.name, key, health=table.health(), committed_ms=snapshot.timestamp_ms
        )
    except DeltaError as error:
        return _TableState(maintained.name, key, problem=str(error))


def _previous_sizes(instance: dg.DagsterInstance, key: dg.AssetKey) -> Mapping[str, int]:
    """Bytes by table in the latest report."""
    for record in instance.fetch_materializations(key, limit=1).records:
        event = record.asset_materialization
        figures = None if event is None else event.metadata.get(_FIGURES_KEY)
        if isinstance(figures, dg.JsonMetadataValue) and isinstance(figures.data, dict):
            return figures.data
    return {}


def _check_result(
    states: list[_TableState], limits: Mapping[str, float], key: dg.AssetKey
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


def _page_metadata(
    states: Sequence[_TableState], thresholds: Mapping[str, float], earlier: Mapping[str, int]
) -> dict[str, Any]:
    """The page as metadata of an asset: report, one table with all states, totals.

    Args:
        states: of the tables.
        thresholds: the largest allowed values by measure.
        earlier: bytes by table in the previous report.
    """
    read = [(state.name, state.health) for state in states if state.health is not None]
    due = [state for state in states if state.problem or state.beyond(thresholds)]
    growth = {name: health.size_bytes - earlier[name] for name, health in read if name in earlier}
    summary = f"### {len(due)} of {len(states)} tables need attention"
    page = [summary, *_findings(due, thresholds)]
    records = [_record(state, thresholds, growth) for state in _worst_first(states, thresholds)]
    return {
        "delta/health": dg.MetadataValue.md("\n\n".join(page)),
        "delta/num_tables": len(states),
        "delta/num_due_tables": len(due),
        "delta/num_files": sum(health.num_files for _, health in read),
        "delta/num_small_files": sum(health.num_small_files for _, health in read),
        "delta/size_bytes": sum(health.size_bytes for _, health in read),
        "delta/tables": dg.MetadataValue.table(records[:_MAX_TABLES], schema=_SCHEMA),
        _FIGURES_KEY: dg.MetadataValue.json({name: health.size_bytes for name, health in read}),
    }


def _worst_first(
    states: Sequence[_TableState], thresholds: Mapping[str, float]
) -> list[_TableState]:
    def rank(state: _TableState) -> tuple[bool, int, int]:
        size = 0 if state.health is None else state.health.size_bytes
        return state.problem is None, -len(state.beyond(thresholds)), -size

    return sorted(states, key=rank)


_SCHEMA = dg.TableSchema(
    [
        dg.TableColumn("state", "string"),
        dg.TableColumn("table", "string"),
        dg.TableColumn("size", "string"),
        dg.TableColumn("growth", "string", description="Since the previous report."),
        dg.TableColumn("rows", "int"),
        dg.TableColumn("files", "int"),
        dg.TableColumn("small", "int", description="Files that OPTIMIZE would compact."),
        dg.TableColumn("deleted", "int", description="Rows that OPTIMIZE would remove."),
        dg.TableColumn("skew", "float", description="Largest partition, divided by the mean one."),
        dg.TableColumn("uncheckpointed", "int", description="Commits since the checkpoint."),
        dg.TableColumn("version", "int"),
        dg.TableColumn("last commit (UTC)", "string"),
    ]
)


def _record(
    state: _TableState, thresholds: Mapping[str, float], growth: Mapping[str, int]
) -> dg.TableRecord:
    health = state.health
    if health is None:
        cells: list[str | int | float | bool | None] = [None] * (len(_SCHEMA.columns) - 2)
        verdict = "unreadable" if state.problem else "no table yet"
        return _as_record([verdict, state.name, *cells])
    change = growth.get(state.name)
    return _as_record(
        [
            ", ".join(state.beyond(thresholds)) or "ok",
            state.name,
            _cell(spell_bytes(health.size_bytes)),
            None if change is None else _cell(_signed_bytes(change)),
            health.num_records,
            health.num_files,
            health.num_small_files,
            health.num_deleted_records,
            round(health.partition_skew, 2),
            health.commits_since_checkpoint,
            health.version,
            None if state.committed_ms is None else _minute(state.committed_ms),
        ]
    )


def _as_record(cells: Sequence[str | int | float | bool | None]) -> dg.TableRecord:
    names = [column.name for column in _SCHEMA.columns]
    return dg.TableRecord(dict(zip(names, cells, strict=True)))


def _findings(due: Sequence[_TableState], thresholds: Mapping[str, float]) -> list[str]:
    if not due:
        return []
    lines = [f"- {_link(state)}: {_finding(state, thresholds)}" for state in due[:_MAX_FINDINGS]]
    if len(due) > _MAX_FINDINGS:
        lines.append(f"- and {len(due) - _MAX_FINDINGS} more")
    return ["\n".join(lines)]


def _finding(state: _TableState, thresholds: Mapping[str, float]) -> str:
    if state.problem:
        return f"cannot be read: {plain_markdown(state.problem)}"
    return ", ".join(
        f"{plain_markdown(name)} is {value:g}; the limit is {thresholds[name]:g}"
        for name, value in state.beyond(thresholds).items()
    )


def _link(state: _TableState) -> str:
    name = plain_markdown(state.name)
    if state.asset_key is None:
        return name
    # Relative, since a run does not know the address of the UI.
    return f"[{name}](/assets/{'/'.join(state.asset_key.path)})"


def _cell(text: str) -> str:
    """The text, which the UI does not break into lines."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _signed_bytes(size: int) -> str:
    if not size:
        return "0"
    return f"{'-' if size < 0 else '+'}{spell_bytes(abs(size))}"


def _minute(timestamp_ms: int) -> str:
    return _cell(f"{dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC):%Y-%m-%d %H:%M}")
