"""One asset that shows the state of many tables: which need maintenance, and how they grow."""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import dagster as dg
import msgspec
from msgspec.structs import replace

from dagster_delta.errors import DeltaError
from dagster_delta.orchestration.checks.table_checks import check_health_limits, exceeded_limits
from dagster_delta.orchestration.known_fields import checked_arguments
from dagster_delta.orchestration.maintenance.maintained_tables import (
    Asset,
    MaintainedTable,
    maintained_tables,
)
from dagster_delta.orchestration.maintenance.operations import spell_bytes
from dagster_delta.orchestration.metadata_keys import first_names
from dagster_delta.orchestration.op_outputs import find_lasting_tables
from dagster_delta.orchestration.storage_options import GivenStorage, plain_options
from dagster_delta.orchestration.table_metadata import plain_markdown, spell_time
from dagster_delta.storage import open_store
from dagster_delta.table.operations.health import TableHealth

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
    "repeated_removals": 0,
    "num_small_partitions": 1000,
}
"""Largest allowed values of a table that needs no maintenance."""

_CHECK = "delta_tables_healthy"

# Opening a table waits for storage; more at once would hold the file lists of more tables.
_TABLES_AT_ONCE = 4

_FIGURES_KEY = "delta/figures"
"""Metadata with the figures of each table, from which later reports show growth."""

_MAX_FINDINGS = 50
_MAX_TABLES = 500


class _TableState(msgspec.Struct, frozen=True):
    """One table of the page."""

    name: str
    asset_key: dg.AssetKey | None = None
    health: TableHealth | None = None
    """None if the table could not be read, or does not exist yet."""
    committed_ms: int | None = None
    """Time of the latest commit, in milliseconds since the epoch."""
    problem: str | None = None
    """Why the table could not be read."""
    exceeded: Mapping[str, str] = msgspec.field(default_factory=dict)
    """By measure: how the table exceeds its threshold."""
    growth: int | None = None
    """Bytes since the previous report."""

    @property
    def is_due(self) -> bool:
        return bool(self.problem or self.exceeded)


@checked_arguments(dg.asset)
def delta_health_asset(
    name: str = "delta_health",
    *,
    assets: Iterable[Asset] = (),
    selection: dg.AssetSelection | None = None,
    tables: Mapping[str, str] | None = None,
    root: str | None = None,
    storage_options: GivenStorage | None = None,
    thresholds: Mapping[str, float | None] | None = None,
    **asset_options: Any,
) -> dg.AssetsDefinition:
    """An asset whose materialization reports the files and logs of all its tables on one page.

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
        root: every table at or below this location, found in each run, without those of op outputs.
        storage_options: for `tables` and `root`, and for assets with a `dagster/uri`: storage
            options, or the catalog of tables named `catalog://a.b.c`.
        thresholds: largest allowed values by a name of `TableHealth`, merged with the defaults:
            100 small files, a share of 0.2 deleted rows, 100 commits since the checkpoint, no
            damaged log files, 1,000 partitions smaller than a file should be. None as a value
            disables a default.
        asset_options: of `dg.asset`: key_prefix, group_name, automation_condition, …

    Raises:
        InvalidArgument: there are no tables, or a threshold has an unknown name.

    Examples:
        delta_health_asset(assets=[flights, weather], thresholds={"partition_skew": 20})
        delta_health_asset(root="s3://lake", automation_condition=AutomationCondition.on_cron(…))
    """
    limits = _merge_limits(thresholds or {})
    assets = tuple(assets)
    only_root = root is not None and not assets and not tables
    given = () if only_root else maintained_tables(assets, selection, tables, storage_options)
    options = {
        "kinds": {"deltalake"},
        "description": "Files and logs of Delta tables.",
        **asset_options,
    }
    key = dg.AssetKey(name).with_prefix(options.get("key_prefix") or [])
    managers = {table.io_manager_key for table in given if table.io_manager_key}
    options["required_resource_keys"] = managers.union(options.get("required_resource_keys", ()))
    check = dg.AssetCheckSpec(_CHECK, asset=key, description="No table exceeds the thresholds.")
    define: Any = dg.asset(name=name, check_specs=[check], **options)

    def health(context: dg.AssetExecutionContext) -> _Result:
        state = partial(
            _read_state, context.resources, limits, _previous_sizes(context.instance, key)
        )
        with ThreadPoolExecutor(_TABLES_AT_ONCE, "delta-health") as threads:
            states = list(threads.map(state, [*given, *tables_below(root, storage_options)]))
        metadata = _page_metadata(states)
        return dg.MaterializeResult(
            metadata=metadata, check_results=[_check_result(states, limits)]
        )

    return cast("dg.AssetsDefinition", define(health))


def _merge_limits(thresholds: Mapping[str, float | None]) -> dict[str, float]:
    check_health_limits(thresholds)
    merged = {**DEFAULT_THRESHOLDS, **thresholds}
    return {name: limit for name, limit in merged.items() if limit is not None}


def tables_below(root: str | None, storage_options: GivenStorage | None) -> list[MaintainedTable]:
    """The tables at or below a location, without those of op outputs; none without a location."""
    if root is None:
        return []
    options = plain_options(storage_options)
    base = open_store(root, options).location.uri.rstrip("/")
    return [
        MaintainedTable(uri.removeprefix(f"{base}/"), uri=uri, storage_options=storage_options)
        for uri in find_lasting_tables(root, options)
    ]


def _read_state(
    resources: Any,  # noqa: ANN401
    limits: Mapping[str, float],
    earlier: Mapping[str, int],
    maintained: MaintainedTable,
) -> _TableState:
    state = _TableState(maintained.name, maintained.asset_key)
    before = earlier.get(maintained.name)
    try:
        table = maintained.open(resources)
        if table is None:
            return state
        health = table.health()
        return replace(
            state,
            health=health,
            committed_ms=table.snapshot().timestamp_ms,
            exceeded=exceeded_limits(health, limits),
            growth=None if before is None else health.size_bytes - before,
        )
    except DeltaError as error:
        return replace(state, problem=str(error))


def _previous_sizes(instance: dg.DagsterInstance, key: dg.AssetKey) -> Mapping[str, int]:
    """Bytes by table in the latest report."""
    for record in instance.fetch_materializations(key, limit=1).records:
        event = record.asset_materialization
        figures = None if event is None else event.metadata.get(_FIGURES_KEY)
        if isinstance(figures, dg.JsonMetadataValue) and isinstance(figures.data, dict):
            return figures.data
    return {}


def _check_result(states: list[_TableState], limits: Mapping[str, float]) -> dg.AssetCheckResult:
    due = [state.name for state in states if state.is_due]
    described = (
        f"Files and logs of {len(due)} of {len(states)} tables are beyond a threshold: "
        f"{first_names(due, 10)}"
    )
    if not states:
        described = "No table was found: is the root the right one?"
    elif not due:
        described = f"All {len(states)} tables are within the thresholds"
    return dg.AssetCheckResult(
        passed=bool(states) and not due,
        check_name=_CHECK,
        severity=dg.AssetCheckSeverity.WARN,
        description=described,
        metadata={f"delta/limit_{name}": limit for name, limit in limits.items()},
    )


def _page_metadata(states: Sequence[_TableState]) -> dict[str, Any]:
    """The page as metadata of an asset: report, one table with all states, totals."""
    read = [(state.name, state.health) for state in states if state.health is not None]
    due = [state for state in states if state.is_due]
    page = [f"### Files and logs: {len(due)} of {len(states)} tables beyond a threshold", ""]
    page += [f"- {_link_asset(state)}: {_describe_finding(state)}" for state in due[:_MAX_FINDINGS]]
    if len(due) > _MAX_FINDINGS:
        page.append(f"- and {len(due) - _MAX_FINDINGS} more")
    records = [_make_record(state) for state in sorted(states, key=_worst_first)]
    schema = dg.TableSchema([column for column, _ in _COLUMNS])
    return {
        "delta/health": dg.MetadataValue.md("\n".join(page)),
        "delta/num_tables": len(states),
        "delta/num_due_tables": len(due),
        "delta/num_files": sum(health.num_files for _, health in read),
        "delta/num_small_files": sum(health.num_small_files for _, health in read),
        "delta/size_bytes": sum(health.size_bytes for _, health in read),
        "delta/tables": dg.MetadataValue.table(records[:_MAX_TABLES], schema=schema),
        _FIGURES_KEY: dg.MetadataValue.json({name: health.size_bytes for name, health in read}),
    }


def _worst_first(state: _TableState) -> tuple[bool, int, int]:
    size = 0 if state.health is None else state.health.size_bytes
    return state.problem is None, -len(state.exceeded), -size


_Cell = str | int | float | None
_COLUMNS: Sequence[tuple[dg.TableColumn, Callable[[_TableState, TableHealth], _Cell]]] = (
    (dg.TableColumn("state", "string"), lambda s, _: ", ".join(s.exceeded) or "ok"),
    (dg.TableColumn("table", "string"), lambda s, _: s.name),
    (dg.TableColumn("size", "string"), lambda _, h: _format_cell(spell_bytes(h.size_bytes))),
    (
        dg.TableColumn("growth", "string", description="Since the previous report."),
        lambda s, _: None if s.growth is None else _format_cell(_signed_bytes(s.growth)),
    ),
    (dg.TableColumn("rows", "int"), lambda _, h: h.num_records),
    (dg.TableColumn("files", "int"), lambda _, h: h.num_files),
    (
        dg.TableColumn("small", "int", description="Files that OPTIMIZE would compact."),
        lambda _, h: h.num_small_files,
    ),
    (
        dg.TableColumn("deleted", "int", description="Rows that OPTIMIZE would remove."),
        lambda _, h: h.num_deleted_records,
    ),
    (
        dg.TableColumn("skew", "float", description="Largest partition, divided by the mean one."),
        lambda _, h: round(h.partition_skew, 2),
    ),
    (
        dg.TableColumn(
            "small partitions",
            "int",
            description="Partitions smaller than a file should be: partitioned too finely.",
        ),
        lambda _, h: h.num_small_partitions,
    ),
    (
        dg.TableColumn("uncheckpointed", "int", description="Commits since the checkpoint."),
        lambda _, h: h.commits_since_checkpoint,
    ),
    (
        dg.TableColumn("misread by", "string", description="Programs that give wrong rows."),
        lambda _, h: _format_cell(", ".join(h.misread_by)),
    ),
    (dg.TableColumn("version", "int"), lambda _, h: h.version),
    (
        dg.TableColumn("last commit (UTC)", "string"),
        lambda s, _: (
            None if s.committed_ms is None else _format_cell(spell_time(s.committed_ms)[:16])
        ),
    ),
)
"""Columns of the page, and their values."""


def _make_record(state: _TableState) -> dg.TableRecord:
    names = [column.name for column, _ in _COLUMNS]
    cells = dict.fromkeys(names)
    if state.health is None:
        verdict = "unreadable" if state.problem else "no table yet"
        return dg.TableRecord({**cells, "state": verdict, "table": state.name})
    health = state.health
    return dg.TableRecord({column.name: value(state, health) for column, value in _COLUMNS})


def _describe_finding(state: _TableState) -> str:
    if state.problem:
        return f"cannot be read: {plain_markdown(state.problem)}"
    return ", ".join(map(plain_markdown, state.exceeded.values()))


def _link_asset(state: _TableState) -> str:
    name = plain_markdown(state.name)
    if state.asset_key is None:
        return name
    # Relative, since a run does not know the address of the UI.
    return f"[{name}](/assets/{'/'.join(state.asset_key.path)})"


def _format_cell(text: str) -> str:
    """The text, which the UI does not break into lines."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _signed_bytes(size: int) -> str:
    if not size:
        return "0"
    return f"{'-' if size < 0 else '+'}{spell_bytes(abs(size))}"
