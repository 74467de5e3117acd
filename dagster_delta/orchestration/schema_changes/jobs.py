"""A job by which an operator changes the schema of a table from the Launchpad.

A run first reports what a change will do, and then what it did: the plan as Markdown, the schemas
side by side, the downstream assets that read the columns. Rows do not change, so the run reports an
observation instead of a materialisation, and downstream automation does not run. The Columns tab of
the UI, which uses only materialisations and definitions, shows the change after the next
materialisation.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of ops itself.

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import dagster as dg
from dagster_shared.check import CheckError

from dagster_delta.orchestration.data_versions import data_version_tags
from dagster_delta.orchestration.maintenance.jobs import JobSettings, job_on_one_table
from dagster_delta.orchestration.maintenance.maintained_tables import (
    Asset,
    MaintainedTable,
    maintained_tables,
)
from dagster_delta.orchestration.maintenance.ops import commit_info_of_op
from dagster_delta.orchestration.metadata_keys import RawMetadata
from dagster_delta.orchestration.schema_changes.config import DeltaSchemaChangeConfig
from dagster_delta.orchestration.schema_changes.readers import readers_of_change
from dagster_delta.orchestration.schema_changes.steps import ChangeReport, change_schema_step
from dagster_delta.orchestration.storage_options import StorageOptions
from dagster_delta.orchestration.table_metadata import table_schema

if TYPE_CHECKING:
    from dagster_delta.table.delta_table import DeltaTable

SCHEMA_CHANGE_POOL = "delta_schema_change"
"""Pool of a job for several tables; set its limit to 1 in the deployment."""


def delta_schema_change_job(
    name: str = "delta_schema_change",
    *,
    assets: Iterable[Asset] = (),
    selection: dg.AssetSelection | None = None,
    tables: Mapping[str, str] | None = None,
    storage_options: StorageOptions | Mapping[str, object] | None = None,
    enable_column_change: bool = False,
    spark: str | None = None,
    description: str | None = None,
    tags: Mapping[str, str] | None = None,
    executor_def: dg.ExecutorDefinition | None = None,
) -> dg.JobDefinition:
    """A job that plans or applies a schema change of one of its tables.

    The Launchpad shows the config with types and descriptions; see `DeltaSchemaChangeConfig`. If a
    run ends in the middle of a column change, the table stays readable and writable; another run
    resumes or cancels the change.

    Readers of the columns are searched among all assets of the code location of the run, and among
    `assets`.

    The step is in the pool of its table if the job has only one, see `delta_table_pool`; otherwise
    in `SCHEMA_CHANGE_POOL`.

    `enable_column_change` lets columns change their type online in tables given by location; for
    other tables, the option of the same name of the IO manager decides. The other arguments are
    those of `delta_maintenance_job`.

    Raises:
        InvalidArgument: there are no tables.

    Examples:
        delta_schema_change_job(assets=[flights, weather])
    """
    # An iterator gives them once.
    assets = tuple(assets)
    found = tuple(
        replace(each, allow_column_changes=enable_column_change)
        for each in maintained_tables(assets, selection, tables, storage_options)
    )

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
        found,
        JobSettings(description, tags, executor_def),
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
    readers = _readers(context, chosen, report, assets)
    markdown = f"{report.markdown.rstrip()}\n\n{readers}" if readers else report.markdown
    context.log.info(f"{chosen.name}: {report.title}\n{markdown}")
    metadata = _metadata(table, report, markdown)
    context.add_output_metadata(metadata)
    if chosen.asset_key is not None and not config.dry_run:
        columns = dg.MetadataValue.table_schema(table_schema(table.snapshot().configuration))
        metadata["dagster/column_schema"] = columns
        tags = data_version_tags(table.snapshot(), context.instance, chosen.asset_key)
        context.log_event(dg.AssetObservation(chosen.asset_key, metadata=metadata, tags=tags))


def _readers(
    context: dg.OpExecutionContext,
    chosen: MaintainedTable,
    report: ChangeReport,
    assets: tuple[object, ...],
) -> str:
    """The assets that the change may affect, as Markdown; empty if it changes no column."""
    if not (report.columns or report.adds_columns):
        return ""
    if chosen.asset_key is None:
        return "Assets that read the table are not known: the job has it by location, not by asset."
    return readers_of_change(
        context.instance,
        (*assets, *_assets_of_code_location(context)),
        chosen.asset_key,
        report.columns,
        report.columns_before,
        adds_columns=report.adds_columns,
    )


def _metadata(table: "DeltaTable", report: ChangeReport, markdown: str) -> RawMetadata:
    return {
        "delta/schema_change": dg.MetadataValue.md(markdown),
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
