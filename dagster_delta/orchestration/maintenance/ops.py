"""Ops that maintain a table named in their config, for user-defined jobs.

They store no output; their results are in the run's log and metadata.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of ops itself.

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import dagster as dg
from pydantic import Field, create_model

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.io.run_facts import RunFacts
from dagster_delta.orchestration.known_fields import KnownFieldsOnly
from dagster_delta.orchestration.maintenance.operations import (
    CheckpointConfig,
    CleanLogConfig,
    CloneConfig,
    FsckConfig,
    OperationConfig,
    OptimizeConfig,
    ReorgConfig,
    RestoreConfig,
    StepReport,
    VacuumConfig,
    health_metadata,
    spell_bytes,
    warn_of_damage,
)
from dagster_delta.orchestration.metadata_keys import RawMetadata
from dagster_delta.orchestration.storage_options import AnyStorageOptions, LocalStorageOptions
from dagster_delta.orchestration.table_metadata import history_metadata
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.health import TableHealth, table_health
from dagster_delta.table.read.snapshot import Snapshot

MAINTENANCE_POOL = "delta_maintenance"
"""Pool of ops whose table is named only in the run's config."""

_HISTORY_LENGTH = 50

# With `start`, an op waits for other ops: `vacuum_op(start=optimize_op())`.
_START = {"start": dg.In(dg.Nothing)}
_NOTHING = dg.Out(dg.Nothing)


class TableConfig(KnownFieldsOnly, dg.Config):
    """The table of an op."""

    uri: str
    """Location of the table."""
    storage_options: AnyStorageOptions = Field(
        default=LocalStorageOptions(), discriminator="provider"
    )
    """Storage options. Whatever is not set is taken from the environment."""


def _op(name: str, operation: type[OperationConfig]) -> dg.OpDefinition:
    """An op that does an operation on the table that its config names besides the options."""
    is_optional = "enabled" in operation.model_fields
    enabled = (bool, Field(default=True, description="Whether the op does anything."))
    further: Any = {"enabled": enabled} if is_optional else {}

    def do(context: dg.OpExecutionContext, config: Any) -> None:  # noqa: ANN401
        operations = [] if is_optional and not config.enabled else [config]
        maintain(context, open_table(config), config.uri, operations)

    do.__annotations__["config"] = create_model(
        f"Table{operation.__name__}", __base__=(TableConfig, operation), **further
    )
    described = " ".join((operation.run.__doc__ or "").split())
    define = dg.op(
        name=name, description=described, ins=_START, out=_NOTHING, pool=MAINTENANCE_POOL
    )
    return define(do)


optimize_op = _op("optimize_op", OptimizeConfig)
vacuum_op = _op("vacuum_op", VacuumConfig)
checkpoint_op = _op("checkpoint_op", CheckpointConfig)
clean_log_op = _op("clean_log_op", CleanLogConfig)
fsck_op = _op("fsck_op", FsckConfig)
reorg_op = _op("reorg_op", ReorgConfig)
clone_op = _op("clone_op", CloneConfig)
restore_op = _op("restore_op", RestoreConfig)


@dg.op(ins=_START, out=_NOTHING)
def history_op(context: dg.OpExecutionContext, config: TableConfig) -> None:
    """Show the latest commits of a table, each with the run that made it."""
    metadata = history_metadata(open_table(config).snapshot(), _HISTORY_LENGTH)
    for history in metadata.values():
        context.log.info(f"history of {config.uri}\n{history.value}")
    context.add_output_metadata(metadata)


def maintain(
    context: dg.OpExecutionContext,
    table: DeltaTable,
    name: str,
    operations: Iterable[OperationConfig],
) -> RawMetadata:
    """Do operations on a table. Returns its metadata, which is also added to the run."""
    info = commit_info_of_op(context, name)
    before = table.health()
    reports = []
    for operation in operations:
        report = operation.run(table, context.log, info)
        context.log.info(f"{report.operation}: {report.summary}")
        reports.append(report)
    table.refresh()
    after = table.health()
    if after.damaged_log_files:
        # An old handle still reports repaired damage.
        after = table_health(Snapshot.load(table.snapshot().store))
    warn_of_damage(after, context.log)
    markdown = _maintenance_markdown(table.uri, before, after, reports)
    details = (report.metadata.get("delta/difference") for report in reports)
    differences = [
        detail.value for detail in details if isinstance(detail, dg.MarkdownMetadataValue)
    ]
    context.log.info("\n\n".join([name, markdown, *differences]))
    uri = table.uri
    metadata: RawMetadata = {
        "delta/report": dg.MetadataValue.md(markdown),
        "dagster/uri": dg.MetadataValue.url(uri) if "://" in uri else dg.MetadataValue.path(uri),
        **health_metadata(after),
    }
    for report in reports:
        metadata |= report.metadata
    context.add_output_metadata(metadata)
    return metadata


def commit_info_of_op(context: dg.OpExecutionContext, name: str) -> Mapping[str, object]:
    """What commits record about the run of an op, and the name of its table."""
    facts = RunFacts(name, (), context.run_id, context.run_id, context.job_name, context.op.name)
    return facts.commit_info({})


def open_table(config: TableConfig) -> DeltaTable:
    """The table that an op is configured with."""
    if not config.uri:
        raise InvalidArgument("the config names no table: set uri to its location")
    return DeltaTable(config.uri, storage_options=config.storage_options.to_options())


def _maintenance_markdown(
    uri: str, before: TableHealth, after: TableHealth, reports: Sequence[StepReport]
) -> str:
    deeds = [f"- **{report.operation}**: {report.summary}" for report in reports]
    rows = [
        f"| {name} | {spelled(before)} | {spelled(after)} |" for name, spelled in _FACTS.items()
    ]
    head = ["| | before | after |", "|---|---:|---:|"]
    return "\n".join([f"### `{uri}`", "", *(deeds or ["- nothing"]), "", *head, *rows])


_FACTS: Mapping[str, Callable[[TableHealth], str]] = {
    "version": lambda health: str(health.version),
    "rows": lambda health: "unknown" if health.num_records is None else f"{health.num_records:,}",
    "files": lambda health: f"{health.num_files:,}",
    "size": lambda health: spell_bytes(health.size_bytes),
    "average file": lambda health: spell_bytes(health.average_file_bytes),
    "small files": lambda health: f"{health.num_small_files:,}",
    "files with deleted rows": lambda health: f"{health.num_files_with_deletions:,}",
    "deleted rows": lambda health: f"{health.num_deleted_records:,}",
    "commits since checkpoint": lambda health: f"{health.commits_since_checkpoint:,}",
    "damaged files of the log": lambda health: f"{len(health.damaged_log_files):,}",
}
