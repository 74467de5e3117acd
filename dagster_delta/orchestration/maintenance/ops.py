"""Ops that maintain a table named in their config, for user-defined jobs.

They store no output; their results are in the run's log and metadata.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of ops itself.

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import dagster as dg

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.io.run_facts import RunFacts, commit_info
from dagster_delta.orchestration.maintenance.config import (
    CheckpointConfig,
    TableCleanLogConfig,
    TableCloneConfig,
    TableConfig,
    TableOptimizeConfig,
    TableRestoreConfig,
    TableVacuumConfig,
)
from dagster_delta.orchestration.maintenance.report import maintenance_metadata
from dagster_delta.orchestration.maintenance.steps import (
    StepReport,
    checkpoint_step,
    clean_log_step,
    clone_step,
    optimize_step,
    restore_step,
    vacuum_step,
    warn_of_damage,
)
from dagster_delta.orchestration.metadata_values import RawMetadata
from dagster_delta.orchestration.table_history import history_metadata

if TYPE_CHECKING:
    from dagster_delta.table.delta_table import DeltaTable
    from dagster_delta.table.maintenance.health import TableHealth

__all__ = [
    "MAINTENANCE_POOL",
    "checkpoint_op",
    "clean_log_op",
    "clone_op",
    "history_op",
    "maintain",
    "open_table",
    "optimize_op",
    "restore_op",
    "vacuum_op",
]

MAINTENANCE_POOL = "delta_maintenance"
"""Pool of ops whose table is named only in the run's config."""

_HISTORY_LENGTH = 50

# With `start`, an op waits for other ops: `vacuum_op(start=optimize_op())`.
_START = {"start": dg.In(dg.Nothing)}
_NOTHING = dg.Out(dg.Nothing)


@dg.op(ins=_START, out=_NOTHING, pool=MAINTENANCE_POOL)
def optimize_op(context: dg.OpExecutionContext, config: TableOptimizeConfig) -> None:
    """Compact the small files of a table, or Z-order its rows."""
    _on(
        context,
        config,
        lambda table, info: (
            [optimize_step(table, config, context.log, info)] if config.enabled else []
        ),
    )


@dg.op(ins=_START, out=_NOTHING, pool=MAINTENANCE_POOL)
def vacuum_op(context: dg.OpExecutionContext, config: TableVacuumConfig) -> None:
    """Find the unreferenced files of a table and, unless it is a dry run, delete them."""
    _on(
        context,
        config,
        lambda table, info: (
            [vacuum_step(table, config, context.log, info)] if config.enabled else []
        ),
    )


@dg.op(ins=_START, out=_NOTHING, pool=MAINTENANCE_POOL)
def checkpoint_op(context: dg.OpExecutionContext, config: TableConfig) -> None:
    """Write a checkpoint of a table's latest version."""
    _on(
        context,
        config,
        lambda table, _: [checkpoint_step(table, CheckpointConfig(enabled=True), context.log)],
    )


@dg.op(ins=_START, out=_NOTHING, pool=MAINTENANCE_POOL)
def clean_log_op(context: dg.OpExecutionContext, config: TableCleanLogConfig) -> None:
    """Find the log files of a table's expired versions and, unless it is a dry run, delete them."""
    _on(
        context,
        config,
        lambda table, _: [clean_log_step(table, config, context.log)] if config.enabled else [],
    )


@dg.op(ins=_START, out=_NOTHING, pool=MAINTENANCE_POOL)
def clone_op(context: dg.OpExecutionContext, config: TableCloneConfig) -> None:
    """Clone a table to another location, or report what it would copy."""
    _on(context, config, lambda table, info: [clone_step(table, config, context.log, info)])


@dg.op(ins=_START, out=_NOTHING, pool=MAINTENANCE_POOL)
def restore_op(context: dg.OpExecutionContext, config: TableRestoreConfig) -> None:
    """Restore a table to an older version, or report what that would change."""
    _on(
        context,
        config,
        lambda table, info: [restore_step(table, config, context.log, info)],
    )


@dg.op(ins=_START, out=_NOTHING)
def history_op(context: dg.OpExecutionContext, config: TableConfig) -> None:
    """Show the latest commits of a table, each with the run that made it."""
    snapshot = open_table(config).snapshot()
    context.add_output_metadata(history_metadata(snapshot, _HISTORY_LENGTH))


def maintain(
    context: dg.OpExecutionContext,
    table: "DeltaTable",
    name: str,
    work: Callable[["DeltaTable", Mapping[str, object]], list[StepReport]],
) -> RawMetadata:
    """Do some work on a table. Returns its metadata, which is also added to the step.

    Args:
        context: of the step.
        table: the table, opened.
        name: name of the work in the commits.
        work: receives the table and the commitInfo about the run.
    """
    facts = RunFacts(name, (), context.run_id, context.run_id, context.job_name, context.op.name)
    before = table.health()
    reports = work(table, commit_info(facts, {}))
    table.refresh()
    after = _health_anew(table)
    warn_of_damage(after, context.log)
    metadata = maintenance_metadata(table.uri, before, after, reports)
    context.add_output_metadata(metadata)
    return metadata


def _health_anew(table: "DeltaTable") -> "TableHealth":
    """The current shape of the table, read again: an old handle still reports repaired damage."""
    from dagster_delta.table.maintenance.health import table_health
    from dagster_delta.table.read.snapshot import Snapshot

    health = table.health()
    if not health.damaged_log_files:
        return health
    return table_health(Snapshot.load(table.snapshot().store))


def _on(
    context: dg.OpExecutionContext,
    config: TableConfig,
    work: Callable[["DeltaTable", Mapping[str, object]], list[StepReport]],
) -> None:
    maintain(context, open_table(config), config.uri, work)


def open_table(config: TableConfig) -> "DeltaTable":
    """The table that an op is configured with.

    Raises:
        InvalidArgument: the config names none.
        TableNotFound, InvalidTable, StorageFailure.
    """
    from dagster_delta.table.delta_table import DeltaTable

    if not config.uri:
        raise InvalidArgument("the config names no table: set uri to its location")
    return DeltaTable(config.uri, storage_options=config.storage_options.to_options())
