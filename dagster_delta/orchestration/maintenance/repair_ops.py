"""Ops that repair a table or purge its files, for user-defined jobs: `fsck_op` and `reorg_op`.

They store no output; their results are in the run's log and metadata.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of ops itself.

from collections.abc import Mapping
from typing import TYPE_CHECKING

import dagster as dg
from dagster import MetadataValue

from dagster_delta.engines.spark.session.active_session import active_spark_session
from dagster_delta.orchestration.maintenance.config import FsckConfig, ReorgConfig, TableStepConfig
from dagster_delta.orchestration.maintenance.ops import MAINTENANCE_POOL, maintain, open_table
from dagster_delta.orchestration.maintenance.steps import Log, StepReport, spell_bytes
from dagster_delta.orchestration.spark.progress import watch_spark

if TYPE_CHECKING:
    from dagster_delta.table.delta_table import DeltaTable
    from dagster_delta.table.schema.outdated_files import Purge

__all__ = [
    "TableFsckConfig",
    "TableReorgConfig",
    "fsck_op",
    "fsck_step",
    "reorg_op",
    "reorg_step",
]

_MAX_NAMED_FILES = 20
_START = {"start": dg.In(dg.Nothing)}
_NOTHING = dg.Out(dg.Nothing)


class TableFsckConfig(TableStepConfig, FsckConfig):
    """A table whose missing files are found, and removed from its log."""


class TableReorgConfig(TableStepConfig, ReorgConfig):
    """A table, and what is purged from its files."""


@dg.op(ins=_START, out=_NOTHING, pool=MAINTENANCE_POOL)
def fsck_op(context: dg.OpExecutionContext, config: TableFsckConfig) -> None:
    """Find the files of a table that storage no longer has and, unless it is a dry run, remove them
    from its log.
    """
    maintain(
        context,
        open_table(config),
        config.uri,
        lambda table, info: [fsck_step(table, config, context.log, info)] if config.enabled else [],
    )


@dg.op(ins=_START, out=_NOTHING, pool=MAINTENANCE_POOL)
def reorg_op(context: dg.OpExecutionContext, config: TableReorgConfig) -> None:
    """Purge deleted rows, dropped columns and old types from the files of a table."""
    maintain(
        context,
        open_table(config),
        config.uri,
        lambda table, info: (
            [reorg_step(table, config, context.log, info)] if config.enabled else []
        ),
    )


def fsck_step(
    table: "DeltaTable", config: FsckConfig, log: Log, commit_info: Mapping[str, object]
) -> StepReport:
    """Find or remove files that storage no longer has. Raises as `DeltaTable.fsck` does."""
    result = table.fsck(dry_run=config.dry_run, commit_info=commit_info)
    named = result.files.slice(0, _MAX_NAMED_FILES).to_pylist()
    summary = f"{result.files.num_rows} files are missing, {result.num_removed} were removed"
    for file in named:
        log.warning(f"fsck: the {file['missing']} of {file['path']} is missing")
    return StepReport(
        "FSCK (dry run)" if result.dry_run else "FSCK",
        summary,
        {
            "delta/fsck_missing_files": result.files.num_rows,
            "delta/fsck_removed_files": result.num_removed,
            "delta/fsck_first_files": MetadataValue.json(named),
        },
    )


def _purge(config: ReorgConfig) -> list["Purge"]:
    purge: list[Purge] = []
    if config.deletion_vectors:
        purge.append("deletion_vectors")
    if config.dropped_columns:
        purge.append("dropped_columns")
    if config.widened_types:
        purge.append("widened_types")
    return purge


def reorg_step(
    table: "DeltaTable", config: ReorgConfig, log: Log, commit_info: Mapping[str, object]
) -> StepReport:
    """Purge the files of the table. Raises as `DeltaTable.reorg` does."""
    session = active_spark_session() if config.engine == "spark" else None
    with watch_spark(session, log) as spark_work:
        result = table.reorg(
            config.where,
            purge=_purge(config),
            target_file_size=config.target_file_size,
            engine=config.engine,
            commit_info=commit_info,
        )
    metrics = result.metrics
    summary = (
        f"{metrics['numRemovedFiles']} files ({spell_bytes(metrics['numRemovedBytes'])}) became "
        f"{metrics['numAddedFiles']} ({spell_bytes(metrics['numAddedBytes'])})"
    )
    return StepReport(
        "REORG",
        "nothing to purge" if result.skipped else summary,
        {
            "delta/reorg_files_removed": metrics["numRemovedFiles"],
            "delta/reorg_files_added": metrics["numAddedFiles"],
            **spark_work.metadata,
        },
    )
