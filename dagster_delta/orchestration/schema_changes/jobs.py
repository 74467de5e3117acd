"""A job by which an operator changes the schema of a table from the Launchpad.

A run first reports what a change will do, and then what it did: the plan as Markdown, the schemas
side by side, the downstream assets that read the columns. Rows do not change, so the run reports an
observation instead of a materialisation, and downstream automation does not run. The Columns tab of
the UI, which uses only materialisations and definitions, shows the change after the next
materialisation.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of ops itself.

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

import dagster as dg
from dagster_shared.check import CheckError

from dagster_delta.orchestration.maintenance.jobs import (
    MaintenanceJobOptions,
    job_on_one_table,
    tables_of_job,
)
from dagster_delta.orchestration.maintenance.maintained_tables import MaintainedTable
from dagster_delta.orchestration.maintenance.ops import commit_info_of_op
from dagster_delta.orchestration.metadata_keys import RawMetadata
from dagster_delta.orchestration.schema_changes.config import DeltaSchemaChangeConfig
from dagster_delta.orchestration.schema_changes.steps import ChangeReport, change_schema_step
from dagster_delta.orchestration.table_metadata import table_schema

if TYPE_CHECKING:
    from dagster_delta.table.delta_table import DeltaTable

_LINEAGE_KEY = "dagster/column_lineage"
_UNKNOWN = "(no column lineage)"

SCHEMA_CHANGE_POOL = "delta_schema_change"
"""Pool of a job for several tables; set its limit to 1 in the deployment."""


class SchemaChangeJobOptions(MaintenanceJobOptions, total=False):
    """Tables and settings of a job; all optional."""

    enable_column_change: bool
    """Whether columns may change their type online in tables given by location; for other tables,
    the option of the same name of the IO manager decides."""


def delta_schema_change_job(
    name: str = "delta_schema_change", **options: Unpack[SchemaChangeJobOptions]
) -> dg.JobDefinition:
    """A job that plans or applies a schema change of one of its tables.

    The Launchpad shows the config with types and descriptions; see `DeltaSchemaChangeConfig`. If a
    run ends in the middle of a column change, the table stays readable and writable; another run
    resumes or cancels the change.

    Readers of the columns are searched among all assets of the code location of the run, and among
    `assets`.

    The step is in the pool of its table if the job has only one, see `delta_table_pool`; otherwise
    in `SCHEMA_CHANGE_POOL`.

    Args:
        name: of the job.
        options: see `SchemaChangeJobOptions`.

    Raises:
        InvalidArgument: there are no tables.

    Examples:
        delta_schema_change_job(assets=[flights, weather])
    """
    # An iterator gives them once.
    options["assets"] = assets = tuple(options.get("assets", ()))
    tables = tables_of_job(options)
    allowed = options.get("enable_column_change", False)
    tables = tuple(replace(each, allow_column_changes=allowed) for each in tables)
    spark = options.get("spark")

    def change_schema(
        context: dg.OpExecutionContext,
        chosen: MaintainedTable,
        table: "DeltaTable",
        config: DeltaSchemaChangeConfig,
    ) -> None:
        if config.engine == "spark":
            chosen.start_spark(context.resources, spark)
        _change(context, config, chosen, table, assets)

    return job_on_one_table(
        name,
        "change_schema",
        DeltaSchemaChangeConfig,
        change_schema,
        tables,
        options,
        "Plans and makes changes of the schema",
        pool=SCHEMA_CHANGE_POOL,
        resources=() if spark is None else (spark,),
    )


def _change(
    context: dg.OpExecutionContext,
    config: DeltaSchemaChangeConfig,
    chosen: MaintainedTable,
    table: "DeltaTable",
    assets: tuple[object, ...],
) -> None:
    info = commit_info_of_op(context, chosen.name)
    report = change_schema_step(table, config, context.log, info)
    readers: Mapping[str, tuple[str, ...]] = {}
    if chosen.asset_key is not None and report.columns:
        known = (*assets, *_assets_of_code_location(context))
        readers = _downstream_readers(context.instance, known, chosen.asset_key, report.columns)
    metadata = _metadata(table, report, readers)
    context.add_output_metadata(metadata)
    if chosen.asset_key is not None and not config.dry_run:
        columns = dg.MetadataValue.table_schema(table_schema(table.snapshot().configuration))
        metadata["dagster/column_schema"] = columns
        context.log_event(dg.AssetObservation(chosen.asset_key, metadata=metadata))


def _metadata(
    table: "DeltaTable", report: ChangeReport, readers: Mapping[str, tuple[str, ...]]
) -> RawMetadata:
    lines = [report.markdown]
    if readers:
        rows = [f"| `{asset}` | {', '.join(columns)} |" for asset, columns in readers.items()]
        head = "| downstream asset | reads |\n|---|---|"
        lines.append("\n".join(["### Who reads the columns", "", head, *rows]))
    return {
        "delta/schema_change": dg.MetadataValue.md("\n\n".join(lines)),
        "delta/version": table.version(),
        "delta/dry_run": report.is_dry_run,
        "dagster/uri": table.uri,
        **{
            f"delta/{name}": report.metrics[metric]
            for name, metric in _COLUMN_CHANGE_METRICS.items()
            if metric in report.metrics
        },
    }


_COLUMN_CHANGE_METRICS = {
    "rows_converted": "numCopiedRows",
    "rows_converted_late": "numLateRows",
    "values_nulled": "numNulledValues",
    "files_rewritten": "numRemovedFiles",
    "bytes_rewritten": "numRemovedBytes",
    "bytes_written": "numAddedBytes",
    "batches": "numBatches",
    "commit_retries": "numRetries",
    "longest_retry_ms": "longestRetryMs",
}
"""Metrics of an online column change by their name in the UI."""


def _assets_of_code_location(context: dg.OpExecutionContext) -> tuple[dg.AssetsDefinition, ...]:
    """All assets of the code location in which a step runs; none outside a code location, as in a
    test that executes a job directly.
    """
    try:
        return tuple(context.repository_def.assets_defs_by_key.values())
    except CheckError:
        return ()


def _downstream_readers(
    instance: dg.DagsterInstance, assets: Iterable[object], key: dg.AssetKey, columns: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """By asset key, as `a/b`: the columns that an asset reads among some top-level columns of the
    upstream asset `key`, and among columns computed from them, which are named `a/b.column`.

    The lineage is from an asset's latest materialisation, or else from its definition. Assets
    without lineage are included, because they may read every column; assets downstream of them are
    not.
    """
    # By key, since the same asset may be given twice, by the job and by the code location.
    specs = tuple({spec.key: spec for spec in _specs(assets)}.values())
    found: dict[str, set[str]] = {}
    waiting = [(key, frozenset(each.casefold() for each in columns))]
    seen: set[tuple[dg.AssetKey, str]] = set()
    while waiting:
        source, wanted = waiting.pop(0)
        wanted = frozenset(each for each in wanted if (source, each) not in seen)
        seen |= {(source, each) for each in wanted}
        for spec in _direct_readers(specs, source) if wanted else ():
            read, computed = _read_columns(instance, spec, source, wanted)
            prefix = "" if source == key else f"{source.to_user_string()}."
            if read is None:
                found.setdefault(spec.key.to_user_string(), set()).add(_UNKNOWN)
            elif read:
                columns_read = found.setdefault(spec.key.to_user_string(), set())
                columns_read |= {f"{prefix}{each}" for each in read}
                waiting.append((spec.key, frozenset(each.casefold() for each in computed)))
    return {reader: tuple(sorted(read)) for reader, read in found.items()}


def _specs(assets: Iterable[object]) -> Iterator[dg.AssetSpec]:
    for asset in assets:
        if isinstance(asset, dg.AssetsDefinition):
            yield from asset.specs
        elif isinstance(asset, dg.AssetSpec):
            yield asset


def _direct_readers(specs: Iterable[dg.AssetSpec], key: dg.AssetKey) -> Iterator[dg.AssetSpec]:
    for spec in specs:
        if any(dep.asset_key == key for dep in spec.deps):
            yield spec


def _read_columns(
    instance: dg.DagsterInstance, spec: dg.AssetSpec, source: dg.AssetKey, wanted: Collection[str]
) -> tuple[set[str] | None, set[str]]:
    """The searched columns that an asset reads, and its own columns computed from them; the first
    is None if it has no lineage.
    """
    lineage = _lineage(instance, spec)
    if lineage is None:
        return None, set()
    read: set[str] = set()
    computed: set[str] = set()
    for column, deps in lineage.deps_by_column.items():
        hits = {
            dep.column_name
            for dep in deps
            if dep.asset_key == source and dep.column_name.casefold() in wanted
        }
        read |= hits
        if hits:
            computed.add(column)
    return read, computed


def _lineage(instance: dg.DagsterInstance, spec: dg.AssetSpec) -> Any:  # noqa: ANN401
    event = instance.get_latest_materialization_event(spec.key)
    materialization = None if event is None else event.asset_materialization
    metadata = {} if materialization is None else materialization.metadata
    value = metadata.get(_LINEAGE_KEY, spec.metadata.get(_LINEAGE_KEY))
    return value.value if isinstance(value, dg.MetadataValue) else value
