"""The operations of table maintenance: the form of each in the Launchpad, with safe defaults; what
it does on one opened table, reported in the run's log and as metadata; and its op, which stores no
output, for user-defined jobs.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of ops itself.

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from logging import Logger
from typing import Any, ClassVar, Literal, Self, TypeAlias, get_args

import dagster as dg
from pydantic import Field, create_model, model_validator

from dagster_delta.engines import active_spark_session, engine_for
from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.branches import find_refusal, protect_production
from dagster_delta.orchestration.io.run_facts import RunFacts
from dagster_delta.orchestration.known_fields import KnownFieldsOnly
from dagster_delta.orchestration.metadata_keys import RawMetadata, RawMetadataValue, counted
from dagster_delta.orchestration.spark_progress import watch_spark
from dagster_delta.orchestration.storage_options import AnyStorageOptions, LocalStorageOptions
from dagster_delta.orchestration.table_metadata import history_metadata
from dagster_delta.storage import open_store
from dagster_delta.table.catalog_rules import allows_maintenance
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.log_upkeep.cleanup import DeletedFiles
from dagster_delta.table.operations.clone import CloneOptions, check_clone
from dagster_delta.table.operations.clustering import table_clustering
from dagster_delta.table.operations.health import TableHealth, table_health
from dagster_delta.table.operations.reorg import Purge
from dagster_delta.table.operations.rewrite_files import OptimizeProgress, OptimizeResult
from dagster_delta.table.programs import clone_lines
from dagster_delta.table.read.snapshot import Snapshot

MAINTENANCE_POOL = "delta_maintenance"
"""Pool of ops whose table is named only in the run's config."""

_HISTORY_LENGTH = 50

# With `start`, an op waits for other ops: `vacuum_op(start=optimize_op())`.
_START = {"start": dg.In(dg.Nothing)}
_NOTHING = dg.Out(dg.Nothing)

_MAX_NAMED_FILES = 20


StepReport: TypeAlias = tuple[str, Mapping[str, RawMetadataValue]]
"""What an operation did: one sentence, and its metadata."""


class OperationConfig(KnownFieldsOnly, dg.Config):
    """The options of an operation on a table."""

    title: ClassVar[str]
    """Its name in reports."""

    def run(self, table: DeltaTable, log: Logger, commit_info: Mapping[str, object]) -> StepReport:
        """Do the operation."""
        raise NotImplementedError


def _make_switch(*, default: bool) -> Any:  # noqa: ANN401
    return Field(default=default, description="Whether to run this step.")


class OptimizeConfig(OperationConfig):
    """How small files are compacted."""

    title = "OPTIMIZE"
    passed_to = DeltaTable.optimize

    enabled: bool = _make_switch(default=True)
    dry_run: bool = False
    where: str | None = None
    target_file_size: int | None = None
    min_file_size: int | None = None
    max_deleted_share: float = 0.05
    zorder_by: list[str] = Field(default=[])
    sort_by: list[str] = Field(default=[])
    full: bool = False
    engine: Literal["arrow", "spark"] = "arrow"
    memory_limit: str | None = Field(
        default=None,
        description="Memory for the rows that arrow holds at once, such as 2GB. Default: "
        "DAGSTER_DELTA_MEMORY_LIMIT, or about 0.5 GB, and on small machines less.",
    )

    @model_validator(mode="after")
    def _check_memory_limit(self) -> Self:
        # Here, so that definitions and the config of a run fail, and not a step of the run.
        if type(self.memory_limit) is str:
            engine_for(None, self.engine, memory_limit=self.memory_limit)
        return self

    def run(self, table: DeltaTable, log: Logger, commit_info: Mapping[str, object]) -> StepReport:
        """Compact the small files of a table, or Z-order its rows."""
        # A job may have tables of both kinds.
        full = self.full and bool(table_clustering(table.refresh()))
        options = {**self.arguments(), "full": full, "commit_info": commit_info}
        rewrite = partial(table.optimize, **options)
        if self.dry_run:
            return _planned_rewrite("optimize", rewrite())
        return _rewrite_files("optimize", "compact", rewrite, self.engine, log)


class VacuumConfig(OperationConfig):
    """How unreferenced files are deleted."""

    title = "VACUUM"
    passed_to = DeltaTable.vacuum

    enabled: bool = _make_switch(default=True)
    dry_run: bool = Field(
        default=True,
        description="Only report what would be deleted. Set to false to delete it permanently.",
    )
    retention_hours: float | None = None
    enforce_retention: bool = Field(
        default=True,
        description="Reject a retention shorter than the table's. Set to false only if no one "
        "else reads or writes the table.",
    )
    lite: bool = False
    keep_versions: list[int] = Field(default=[])
    branch_roots: list[str] = Field(
        default=[],
        description="Each branch_root_uri of branches that are not stored below the root of the "
        "tables. Files that branches read are kept for dagsterDelta.branchRetention.",
    )

    def run(self, table: DeltaTable, log: Logger, commit_info: Mapping[str, object]) -> StepReport:
        """Find the unreferenced files of a table and, unless it is a dry run, delete them."""
        result = table.vacuum(
            **self.arguments(),
            commit_info=commit_info,
            on_progress=lambda done, total: log.info(f"vacuum: {done} of {total} files deleted"),
        )
        summary, facts = _report_deleted("vacuum", result)
        hours = f"unreferenced for more than {result.retention_ms / 3_600_000:g} hours"
        first = result.files["path"].slice(0, _MAX_NAMED_FILES).to_pylist()
        facts = {**facts, "delta/vacuum_first_files": dg.MetadataValue.json(first)}
        if kept := result.kept_for_branches:
            named = ", ".join(f"{name}: {counted(count, 'file')}" for name, count in kept.items())
            hours += f"; kept, since branches read them: {named}"
            facts["delta/vacuum_kept_for_branches"] = sum(kept.values())
        return f"{summary}, {hours}", facts


class FsckConfig(OperationConfig):
    """How files that storage no longer has are removed from the log."""

    title = "FSCK"
    passed_to = DeltaTable.fsck

    enabled: bool = _make_switch(default=False)
    dry_run: bool = Field(
        default=True,
        description="Only report the files that storage no longer has. Set to false to remove "
        "them from the table: their rows are lost.",
    )

    def run(self, table: DeltaTable, log: Logger, commit_info: Mapping[str, object]) -> StepReport:
        """Find the files of a table that storage no longer has and, unless it is a dry run, remove
        them from its log.
        """
        result = table.fsck(dry_run=self.dry_run, commit_info=commit_info)
        named = result.files.slice(0, _MAX_NAMED_FILES).to_pylist()
        summary = (
            f"missing: {counted(result.files.num_rows, 'file')}; removed: {result.num_removed:,}"
        )
        for file in named:
            log.warning(f"fsck: the {file['missing']} of {file['path']} is missing")
        if result.repeated_removals:
            versions = ", ".join(map(str, result.repeated_removals[:_MAX_NAMED_FILES]))
            log.warning(
                f"fsck: the commits of the versions {versions} removed files that were removed "
                "before, so rows may be in the table twice: compare it with the version before"
            )
        return (
            summary,
            {
                "delta/fsck_missing_files": result.files.num_rows,
                "delta/fsck_removed_files": result.num_removed,
                "delta/fsck_repeated_removals": len(result.repeated_removals),
                "delta/fsck_first_files": dg.MetadataValue.json(named),
            },
        )


class RetentionConfig(OperationConfig):
    """How the rows are deleted that the metadata `retention` of an asset does not keep."""

    title = "RETENTION"

    enabled: bool = _make_switch(default=True)
    dry_run: bool = Field(
        default=True,
        description="Only report the rows that would be deleted. Set to false to delete them.",
    )
    max_share: float = Field(
        default=0.5,
        description="Refuse to delete more than this share of the rows of a table.",
    )

    @model_validator(mode="after")
    def _check_max_share(self) -> Self:
        # Components do not accept a field with bounds.
        if not 0 < self.max_share <= 1:
            raise InvalidArgument(
                f"max_share of the retention is {self.max_share}: a share of the rows is above 0, "
                "and at most 1"
            )
        return self


class ReorgConfig(OperationConfig):
    """What is purged from the files of a table."""

    title = "REORG"
    passed_to = DeltaTable.reorg

    enabled: bool = _make_switch(default=False)
    dry_run: bool = Field(
        default=False, description="Only count the files that would be rewritten, and their bytes."
    )
    where: str | None = None
    deletion_vectors: bool = Field(
        default=True, description="Whether rows that are marked as deleted leave the files."
    )
    dropped_columns: bool = Field(
        default=True, description="Whether columns that were dropped leave the files."
    )
    widened_types: bool = Field(
        default=True,
        description="Whether values of a type from before a widening get the new type.",
    )
    target_file_size: int | None = Field(
        default=None,
        description="Target size of new files in bytes. Default: delta.targetFileSize, or 128 MiB.",
    )
    engine: Literal["arrow", "spark"] = Field(
        default="arrow",
        description="arrow: in the process of the step; spark: on the executors of its session.",
    )

    def run(self, table: DeltaTable, log: Logger, commit_info: Mapping[str, object]) -> StepReport:
        """Purge deleted rows, dropped columns and old types from the files of a table."""
        purge = [kind for kind in get_args(Purge) if getattr(self, kind)]
        options = {**self.arguments(), "purge": purge, "commit_info": commit_info}
        rewrite = partial(table.reorg, **options)
        if self.dry_run:
            return _planned_rewrite("reorg", rewrite())
        return _rewrite_files("reorg", "purge", rewrite, self.engine, log)


class CheckpointConfig(OperationConfig):
    """Whether to write a checkpoint."""

    title = "CHECKPOINT"
    enabled: bool = _make_switch(default=False)
    dry_run: bool = Field(
        default=False, description="Only report whether a checkpoint would be written."
    )
    after_commits: int = Field(
        default=1,
        description="Only if the table has at least this many commits since the last checkpoint.",
    )

    def run(self, table: DeltaTable, log: Logger, commit_info: Mapping[str, object]) -> StepReport:
        """Write a checkpoint of a table's latest version."""
        table.refresh()
        health = table.health()
        waiting = health.commits_since_checkpoint
        is_damaged = any(not file.endswith(".crc") for file in health.damaged_log_files)
        if waiting < max(1, self.after_commits) and not is_damaged:
            return f"{counted(waiting, 'commit')} since the last one: none written", {}
        after = f"at version {health.version}, {counted(waiting, 'commit')} after the last one"
        if self.dry_run:
            return f"would be written {after}", {}
        table.checkpoint()
        summary = f"written {after}"
        return summary, {"delta/checkpoint_version": health.version}


class CleanLogConfig(OperationConfig):
    """How the log files of expired versions are deleted."""

    title = "CLEAN LOG"
    passed_to = DeltaTable.clean_log

    enabled: bool = Field(
        default=False,
        description="Whether to run this step. Writers clean up the log after checkpoints on "
        "their own, unless the table has delta.enableExpiredLogCleanup = false.",
    )
    dry_run: bool = Field(
        default=True,
        description="Only report what would be deleted. Set to false to delete it permanently.",
    )
    retention_hours: float | None = None
    enforce_retention: bool = True

    def run(self, table: DeltaTable, log: Logger, commit_info: Mapping[str, object]) -> StepReport:
        """Find the log files of a table's expired versions and, unless it is a dry run, delete
        them.
        """
        result = table.clean_log(**self.arguments())
        summary, facts = _report_deleted("clean_log", result)
        summary += f"; the log begins with version {result.earliest_version}"
        if result.kept_because is not None:
            summary += f": {result.kept_because}"
        return summary, {**facts, "delta/earliest_version": result.earliest_version}


class CloneConfig(OperationConfig):
    """Target and options of a clone."""

    title = "CLONE"
    target: str = Field(
        description="Location of the clone, on storage that the table's storage options can "
        "access.",
    )
    deep: bool = Field(
        default=True,
        description="Copy the data files. If false, the clone refers to the files of the source, "
        "and breaks once they are vacuumed.",
    )
    version: int | None = Field(
        default=None, description="The version to clone. Default: the latest."
    )
    timestamp: str | None = Field(
        default=None,
        description="Alternative to version: the latest version at or before this time, such as "
        "2024-05-01T12:30:00Z.",
    )
    replace: bool = Field(
        default=False,
        description="If the target is a table, make the clone a new version of it; only files it "
        "does not have yet are copied.",
    )
    dry_run: bool = Field(
        default=True, description="Only report what would be cloned. Set to false to clone."
    )

    def run(self, table: DeltaTable, log: Logger, commit_info: Mapping[str, object]) -> StepReport:
        """Clone a table to another location, or report what it would copy."""
        table.refresh()
        source = table.snapshot(version=self.version, timestamp=self.timestamp)
        kind = "deep" if self.deep else "shallow"
        facts: RawMetadata = {
            "delta/cloned_version": source.version,
            "delta/clone_target": self.target,
        }
        size = f"{counted(source.num_files, 'file')}, {spell_bytes(source.size_bytes)}"
        if self.dry_run:
            target = open_store(self.target, table.snapshot().store.location.options)
            check_clone(source, target, CloneOptions(self.deep, self.replace))
            if lines := clone_lines(source, is_shallow=not self.deep):
                log.warning("\n".join(("clone: what other programs do with it", *lines)))
            summary = f"would be a {kind} clone of version {source.version} ({size}): {self.target}"
            return summary, facts
        result = table.clone(
            self.target,
            deep=self.deep,
            version=source.version,
            replace=self.replace,
            commit_info=commit_info,
            on_progress=lambda done, total: log.info(f"clone: {done} of {total} files copied"),
        )
        if result.skipped:
            summary = f"{self.target} already is a clone of version {source.version}"
            return summary, facts
        summary = (
            f"{self.target} (version {result.version}) is a {kind} clone of version "
            f"{source.version} ({size}); {result.metrics['numCopiedFiles']} files were copied"
        )
        numbers = {
            "delta/clone_version": result.version,
            "delta/copied_files": result.metrics["numCopiedFiles"],
            "delta/copied_bytes": result.metrics["copiedFilesSize"],
        }
        return summary, {**facts, **numbers}


class RestoreConfig(OperationConfig):
    """The version to restore."""

    title = "RESTORE"
    passed_to = DeltaTable.restore

    version: int | None = None
    timestamp: str | None = Field(
        default=None,
        description="Alternative to version: the latest version at or before this time, such as "
        "2024-05-01T12:30:00Z.",
    )
    dry_run: bool = Field(
        default=True,
        description="Only report what would change. Set to false to commit the restored version.",
    )
    force: bool = Field(
        default=False,
        description="Whether to restore a version of which readers that the table names "
        "(dagsterDelta.readers) give wrong rows without an error.",
    )

    def run(self, table: DeltaTable, log: Logger, commit_info: Mapping[str, object]) -> StepReport:
        """Restore a table to an older version, or report what that would change."""
        before = table.refresh()
        target = table.snapshot(version=self.version, timestamp=self.timestamp)
        facts: RawMetadata = {
            "delta/restored_from_version": before.version,
            "delta/restored_version": target.version,
        }
        rows = f"{counted(before.num_records, 'row')} to {counted(target.num_records, 'row')}"
        if self.dry_run:
            summary = f"would go from version {before.version} back to {target.version}: {rows}"
            difference = table.plan_restore(self.version, self.timestamp).to_markdown()
            facts |= {"delta/difference": dg.MetadataValue.md(difference)}
            return summary, facts
        result = table.restore(**self.arguments(), commit_info=commit_info)
        if result.skipped:
            summary = f"the table is already as it was at version {target.version}"
            return summary, facts
        summary = f"version {result.version} is version {target.version} again: {rows}"
        numbers = {
            "delta/restored_files": result.metrics["numRestoredFiles"],
            "delta/removed_files": result.metrics["numRemovedFiles"],
        }
        return summary, {**facts, **numbers}


class DeltaMaintenanceConfig(KnownFieldsOnly, dg.Config):
    """The steps of a maintenance job for each of its tables, in this order."""

    tables: list[str] = Field(
        default=[], description="Names of the job's tables to maintain. Empty: all of them."
    )
    dry_run: bool = Field(
        default=False,
        description="Only report what each step would do, whatever its own dry_run says: nothing "
        "is written.",
    )
    fsck: FsckConfig = Field(
        default=FsckConfig(), description="Find the files that storage no longer has."
    )
    retention: RetentionConfig = Field(
        default=RetentionConfig(),
        description="Delete the rows that the metadata retention of an asset does not keep.",
    )
    reorg: ReorgConfig = Field(
        default=ReorgConfig(),
        description="Purge deleted rows, dropped columns and old types from files.",
    )
    optimize: OptimizeConfig = Field(default=OptimizeConfig(), description="Compact small files.")
    vacuum: VacuumConfig = Field(
        default=VacuumConfig(), description="Delete files that the table no longer refers to."
    )
    checkpoint: CheckpointConfig = Field(
        default=CheckpointConfig(), description="Write a checkpoint."
    )
    clean_log: CleanLogConfig = Field(
        default=CleanLogConfig(), description="Delete the log files of expired versions."
    )

    def operations(self) -> list[OperationConfig]:
        """The steps, in their order."""
        steps = [step for _, step in self if isinstance(step, OperationConfig)]
        return (
            [step.model_copy(update={"dry_run": True}) for step in steps] if self.dry_run else steps
        )


class DeltaRestoreConfig(RestoreConfig):
    """A table, and the version to restore."""

    table: str = Field(description="Name of one of the job's tables.")
    checks_passed: bool = Field(
        default=False,
        description="Alternative to version: the latest version at which all asset checks of the "
        "table passed.",
    )


class DeltaCloneConfig(CloneConfig):
    """A table, its clone target and options."""

    table: str = Field(description="Name of one of the job's tables.")


def _rewrite_files(
    name: str, purpose: str, rewrite: Callable[..., OptimizeResult], engine: str, log: Logger
) -> StepReport:
    """Rewrite files of a table, and log the progress."""

    def log_progress(progress: OptimizeProgress) -> None:
        done = spell_bytes(progress.num_done_bytes)
        what = "skipped files that other writers have changed"
        if progress.version is not None:
            files = f"{progress.num_added_files} files instead of {progress.num_removed_files}"
            what = f"version {progress.version} has {files}"
        log.info(f"{name}: {done} of {spell_bytes(progress.num_total_bytes)}; {what}")

    session = active_spark_session() if engine == "spark" else None
    with watch_spark(session, log) as spark_work:
        result = rewrite(on_progress=log_progress)
    metrics = result.metrics
    removed = counted(metrics["numRemovedFiles"], "file")
    added = f"{metrics['numAddedFiles']} ({spell_bytes(metrics['numAddedBytes'])})"
    summary = f"{removed} ({spell_bytes(metrics['numRemovedBytes'])}) became {added}"
    if result.skipped:
        summary = f"nothing to {purpose}"
    if result.num_left_files:
        skipped = f"skipped {result.num_left_files} files that other writers have changed"
        log.warning(f"{name}: {skipped}")
        summary += f"; {skipped}"
    return (
        summary,
        {
            f"delta/{name}_files_removed": metrics["numRemovedFiles"],
            f"delta/{name}_files_added": metrics["numAddedFiles"],
            f"delta/{name}_bytes_removed": metrics["numRemovedBytes"],
            f"delta/{name}_bytes_added": metrics["numAddedBytes"],
            f"delta/{name}_versions": ", ".join(map(str, result.versions)) or "none",
            **spark_work,
        },
    )


def _planned_rewrite(name: str, planned: OptimizeResult) -> StepReport:
    """What a rewrite of files would read."""
    files, size = (planned.metrics[of] for of in ("numRemovedFiles", "numRemovedBytes"))
    return f"would rewrite {counted(files, 'file')} ({spell_bytes(size)})", {
        f"delta/{name}_dry_run": True,
        f"delta/{name}_files_removed": files,
        f"delta/{name}_bytes_removed": size,
    }


def _report_deleted(name: str, result: DeletedFiles) -> StepReport:
    """What was deleted, or would be."""
    verb = "would delete" if result.dry_run else "deleted"
    size = spell_bytes(result.size_bytes)
    return f"{verb} {counted(result.num_files, 'file')} ({size})", {
        f"delta/{name}_dry_run": result.dry_run,
        f"delta/{name}_files": result.num_files,
        f"delta/{name}_bytes": result.size_bytes,
    }


def health_metadata(health: TableHealth) -> RawMetadata:
    """The facts about a table's shape, as metadata."""
    return {
        "delta/version": health.version,
        "delta/live_files": health.num_files,
        "delta/size_bytes": health.size_bytes,
        "delta/average_file_bytes": round(health.average_file_bytes),
        "delta/small_files": health.num_small_files,
        "delta/files_with_deletions": health.num_files_with_deletions,
        "delta/deleted_rows": health.num_deleted_records,
        "delta/partitions": health.num_partitions,
        "delta/partition_skew": round(health.partition_skew, 2),
        "delta/commits_since_checkpoint": health.commits_since_checkpoint,
        "delta/damaged_log_files": len(health.damaged_log_files),
        "delta/repeated_removals": len(health.repeated_removals),
    }


def spell_bytes(size_bytes: float) -> str:
    """A size for people: `1.5 GiB`."""
    size = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


class TableConfig(KnownFieldsOnly, dg.Config):
    """The table of an op."""

    uri: str = Field(description="Location of the table.")
    storage_options: AnyStorageOptions = Field(
        default=LocalStorageOptions(),
        description="Storage options. Whatever is not set is taken from the environment.",
    )

    def open(self) -> DeltaTable:
        """The table, opened."""
        return DeltaTable(self.uri, storage_options=self.storage_options.to_options())


def _define_op(name: str, operation: type[OperationConfig]) -> dg.OpDefinition:
    """An op that does an operation on the table that its config names besides the options."""
    enabled = (bool, Field(default=True, description="Whether the op does anything."))
    further: Any = {"enabled": enabled} if "enabled" in operation.model_fields else {}

    def do(context: dg.OpExecutionContext, config: Any) -> None:  # noqa: ANN401
        table = protect_production(context, config.open())
        maintain(context, table, config.uri, [config])

    do.__annotations__["config"] = create_model(
        f"Table{operation.__name__}", __base__=(TableConfig, operation), **further
    )
    described = " ".join((operation.run.__doc__ or "").split())
    define = dg.op(
        name=name, description=described, ins=_START, out=_NOTHING, pool=MAINTENANCE_POOL
    )
    return define(do)


optimize_op = _define_op("optimize_op", OptimizeConfig)
vacuum_op = _define_op("vacuum_op", VacuumConfig)
checkpoint_op = _define_op("checkpoint_op", CheckpointConfig)
clean_log_op = _define_op("clean_log_op", CleanLogConfig)
fsck_op = _define_op("fsck_op", FsckConfig)
reorg_op = _define_op("reorg_op", ReorgConfig)
clone_op = _define_op("clone_op", CloneConfig)
restore_op = _define_op("restore_op", RestoreConfig)


@dg.op(ins=_START, out=_NOTHING)
def history_op(context: dg.OpExecutionContext, config: TableConfig) -> None:
    """Show the latest commits of a table, each with the run that made it."""
    metadata = history_metadata(config.open().snapshot(), _HISTORY_LENGTH)
    for history in metadata.values():
        context.log.info(f"history of {config.uri}\n{history.value}")
    context.add_output_metadata(metadata)


def maintain(
    context: dg.OpExecutionContext,
    table: DeltaTable,
    name: str,
    operations: Iterable[OperationConfig],
) -> RawMetadata:
    """Do the enabled ones of some operations on a table. Returns its metadata, which is also added
    to the run.
    """
    info = commit_info_of_op(context, name)
    before = table.health()
    done: list[str] = []
    facts: RawMetadata = {}
    for operation in operations:
        if not getattr(operation, "enabled", True):
            continue
        if isinstance(operation, CloneConfig) and not operation.dry_run:
            reason = find_refusal(context, operation.target)
            if reason is not None:
                raise InvalidArgument(reason, table=operation.target)
        summary, found = _run_or_leave(operation, table, context.log, info)
        is_dry_run = getattr(operation, "dry_run", False)
        title = f"{operation.title} (dry run)" if is_dry_run else operation.title
        context.log.info(f"{title}: {summary}")
        done.append(f"- **{title}**: {summary}")
        facts |= found
    table.refresh()
    after = table.health()
    if after.damaged_log_files:
        # An old handle still reports repaired damage.
        after = table_health(Snapshot.load(table.snapshot().store))
    if after.damaged_log_files:
        context.log.warning(
            f"damaged files of the log, which version {after.version} can do without as long as no "
            f"commit is cleaned away: {', '.join(after.damaged_log_files)}; write a checkpoint"
        )
    markdown = _maintenance_markdown(table.uri, before, after, done)
    difference = getattr(facts.get("delta/difference"), "value", None)
    context.log.info("\n\n".join(filter(None, [name, markdown, difference])))
    metadata: RawMetadata = {
        "delta/report": dg.MetadataValue.md(markdown),
        "dagster/uri": table.uri,
        **health_metadata(after),
        **facts,
    }
    context.add_output_metadata(metadata)
    return metadata


_WORK_BY_TITLE: Mapping[str, Literal["DATA_REORGANIZATION", "DATA_CLEANUP", "METADATA_CLEANUP"]] = {
    OptimizeConfig.title: "DATA_REORGANIZATION",
    ReorgConfig.title: "DATA_REORGANIZATION",
    VacuumConfig.title: "DATA_CLEANUP",
    CleanLogConfig.title: "METADATA_CLEANUP",
}
"""What a catalog that manages a table has to permit."""


def _run_or_leave(
    operation: OperationConfig, table: DeltaTable, log: Logger, commit_info: Mapping[str, object]
) -> StepReport:
    """The report of an operation, which a catalog that manages the table may keep to itself."""
    work = _WORK_BY_TITLE.get(operation.title)
    if work is not None and not allows_maintenance(table.store, work):
        return "left to the catalog, which manages the table", {}
    return operation.run(table, log, commit_info)


def commit_info_of_op(context: dg.OpExecutionContext, name: str) -> Mapping[str, object]:
    """What commits record about the run of an op, and the name of its table."""
    facts = RunFacts(name, (), context.run_id, context.run_id, context.job_name, context.op.name)
    return facts.commit_info({})


def _maintenance_markdown(
    uri: str, before: TableHealth, after: TableHealth, done: Sequence[str]
) -> str:
    rows = [
        f"| {name} | {spelled(before)} | {spelled(after)} |" for name, spelled in _FACTS.items()
    ]
    head = ["| | before | after |", "|---|---:|---:|"]
    return "\n".join([f"### `{uri}`", "", *(done or ["- nothing"]), "", *head, *rows])


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
    "commits that removed removed files": lambda health: f"{len(health.repeated_removals):,}",
    "misread by": lambda health: ", ".join(health.misread_by) or "no measured program",
    "not read by": lambda health: ", ".join(health.refused_by) or "no measured program",
}
