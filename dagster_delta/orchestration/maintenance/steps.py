"""Maintenance of one opened table, reported in the run's log and as metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import Logger
from typing import Any

from dagster import Config, MetadataValue

from dagster_delta.engines.spark.session.active_session import active_spark_session
from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.maintenance.config import (
    CheckpointConfig,
    CleanLogConfig,
    CloneConfig,
    FsckConfig,
    OptimizeConfig,
    ReorgConfig,
    RestoreConfig,
    VacuumConfig,
)
from dagster_delta.orchestration.metadata_keys import RawMetadata, RawMetadataValue
from dagster_delta.orchestration.spark.progress import watch_spark
from dagster_delta.storage import open_store
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.clone import CloneOptions, check_clone
from dagster_delta.table.operations.clustering import table_clustering
from dagster_delta.table.operations.health import TableHealth
from dagster_delta.table.operations.optimize import OptimizeProgress
from dagster_delta.table.operations.outdated_files import Purge

_MAX_NAMED_FILES = 20


@dataclass(frozen=True, slots=True)
class StepReport:
    """Result of one operation on one table."""

    operation: str
    summary: str
    """One sentence."""
    metadata: Mapping[str, RawMetadataValue] = field(default_factory=dict)


def optimize_step(
    table: DeltaTable, config: OptimizeConfig, log: Logger, commit_info: Mapping[str, object]
) -> StepReport:
    """Compact small files of the table."""

    def log_progress(progress: OptimizeProgress) -> None:
        done, total = spell_bytes(progress.num_done_bytes), spell_bytes(progress.num_total_bytes)
        if progress.version is None:
            log.info(f"optimize: {done} of {total}; skipped files that other writers have changed")
            return
        log.info(
            f"optimize: {done} of {total}; version {progress.version} has "
            f"{progress.num_added_files} files instead of {progress.num_removed_files}"
        )

    session = active_spark_session() if config.engine == "spark" else None
    with watch_spark(session, log) as spark_work:
        options = _options(config, OptimizeConfig)
        # A job may have tables of both kinds.
        options["full"] = config.full and bool(table_clustering(table.refresh()))
        result = table.optimize(**options, commit_info=commit_info, on_progress=log_progress)
    metrics = result.metrics
    summary = _rewritten(metrics)
    if result.skipped:
        summary = "nothing to compact"
    if result.num_left_files:
        log.warning(
            f"optimize: skipped {result.num_left_files} files that other writers have changed"
        )
        summary += f"; skipped {result.num_left_files} files that other writers have changed"
    return StepReport(
        "OPTIMIZE",
        summary,
        {
            "delta/optimize_files_removed": metrics["numRemovedFiles"],
            "delta/optimize_files_added": metrics["numAddedFiles"],
            "delta/optimize_bytes_removed": metrics["numRemovedBytes"],
            "delta/optimize_bytes_added": metrics["numAddedBytes"],
            "delta/optimize_versions": ", ".join(map(str, result.versions)) or "none",
            **spark_work.metadata,
        },
    )


def vacuum_step(
    table: DeltaTable, config: VacuumConfig, log: Logger, commit_info: Mapping[str, object]
) -> StepReport:
    """Find or delete unreferenced files."""
    result = table.vacuum(
        **_options(config, VacuumConfig),
        commit_info=commit_info,
        on_progress=lambda done, total: log.info(f"vacuum: {done} of {total} files deleted"),
    )
    size = spell_bytes(result.size_bytes)
    hours = f"unreferenced for more than {result.retention_ms / 3_600_000:g} hours"
    summary = f"deleted {result.num_files} files ({size}), {hours}"
    if result.dry_run:
        summary = f"would delete {result.num_files} files ({size}), {hours}"
    log.info(f"vacuum: {summary}")
    return StepReport(
        "VACUUM (dry run)" if result.dry_run else "VACUUM",
        summary,
        {
            "delta/vacuum_dry_run": result.dry_run,
            "delta/vacuum_files": result.num_files,
            "delta/vacuum_bytes": result.size_bytes,
            "delta/vacuum_first_files": MetadataValue.json(
                result.files["path"].slice(0, _MAX_NAMED_FILES).to_pylist()
            ),
        },
    )


def checkpoint_step(
    table: DeltaTable, config: CheckpointConfig, log: Logger, _commit_info: Mapping[str, object]
) -> StepReport:
    """Write a checkpoint if there are enough commits since the last one, or if it is damaged."""
    table.refresh()
    health = table.health()
    waiting = health.commits_since_checkpoint
    is_damaged = any(not file.endswith(".crc") for file in health.damaged_log_files)
    if waiting < max(1, config.after_commits) and not is_damaged:
        return StepReport("CHECKPOINT", f"{waiting} commits since the last one: none written")
    table.checkpoint()
    summary = f"written at version {health.version}, {waiting} commits after the last one"
    log.info(f"checkpoint: {summary}")
    return StepReport("CHECKPOINT", summary, {"delta/checkpoint_version": health.version})


def warn_of_damage(health: TableHealth, log: Logger) -> None:
    """Name the damaged files of the log, if any, and what replaces them."""
    if health.damaged_log_files:
        log.warning(
            f"damaged files of the log, which version {health.version} can do without as long as "
            f"no commit is cleaned away: {', '.join(health.damaged_log_files)}; write a checkpoint"
        )


def clean_log_step(
    table: DeltaTable, config: CleanLogConfig, log: Logger, _commit_info: Mapping[str, object]
) -> StepReport:
    """Find or delete the log of expired versions."""
    result = table.clean_log(**_options(config, CleanLogConfig))
    verb = "would delete" if result.dry_run else "deleted"
    summary = (
        f"{verb} {result.num_files} files ({spell_bytes(result.size_bytes)}); the log begins with "
        f"version {result.earliest_version}"
    )
    if result.kept_because is not None:
        summary += f": {result.kept_because}"
    log.info(f"clean log: {summary}")
    return StepReport(
        "CLEAN LOG (dry run)" if result.dry_run else "CLEAN LOG",
        summary,
        {
            "delta/clean_log_dry_run": result.dry_run,
            "delta/clean_log_files": result.num_files,
            "delta/clean_log_bytes": result.size_bytes,
            "delta/earliest_version": result.earliest_version,
        },
    )


def clone_step(
    table: DeltaTable, config: CloneConfig, log: Logger, commit_info: Mapping[str, object]
) -> StepReport:
    """Clone the table, or report what it would copy."""
    table.refresh()
    source = table.snapshot(version=config.version, timestamp=config.timestamp)
    kind = "deep" if config.deep else "shallow"
    facts: RawMetadata = {
        "delta/cloned_version": source.version,
        "delta/clone_target": config.target,
    }
    size = f"{source.num_files} files, {spell_bytes(source.size_bytes)}"
    if config.dry_run:
        target = open_store(config.target, table.snapshot().store.location.options)
        check_clone(source, target, CloneOptions(config.deep, config.replace))
        summary = f"would be a {kind} clone of version {source.version} ({size}): {config.target}"
        log.info(f"clone: {summary}")
        return StepReport("CLONE (dry run)", summary, facts)
    result = table.clone(
        config.target,
        deep=config.deep,
        version=source.version,
        replace=config.replace,
        commit_info=commit_info,
        on_progress=lambda done, total: log.info(f"clone: {done} of {total} files copied"),
    )
    if result.skipped:
        return StepReport(
            "CLONE", f"{config.target} already is a clone of version {source.version}", facts
        )
    summary = (
        f"{config.target} (version {result.version}) is a {kind} clone of version "
        f"{source.version} ({size}); {result.metrics['numCopiedFiles']} files were copied"
    )
    log.info(f"clone: {summary}")
    numbers = {
        "delta/clone_version": result.version,
        "delta/copied_files": result.metrics["numCopiedFiles"],
        "delta/copied_bytes": result.metrics["copiedFilesSize"],
    }
    return StepReport("CLONE", summary, {**facts, **numbers})


def restore_step(
    table: DeltaTable, config: RestoreConfig, log: Logger, commit_info: Mapping[str, object]
) -> StepReport:
    """Restore an older version, or report what it would change."""
    if config.version is None and config.timestamp is None:
        raise InvalidArgument("a restore needs the version or the timestamp to go back to")
    before = table.refresh()
    target = table.snapshot(version=config.version, timestamp=config.timestamp)
    facts = {
        "delta/restored_from_version": before.version,
        "delta/restored_version": target.version,
    }
    rows = f"{_count(before.num_records)} rows to {_count(target.num_records)}"
    if config.dry_run:
        summary = f"would go from version {before.version} back to {target.version}: {rows}"
        log.info(f"restore: {summary}")
        difference = MetadataValue.md(table.plan_restore(target.version).to_markdown())
        return StepReport("RESTORE (dry run)", summary, {"delta/difference": difference, **facts})
    result = table.restore(target.version, commit_info=commit_info)
    if result.skipped:
        return StepReport(
            "RESTORE", f"the table is already as it was at version {target.version}", facts
        )
    summary = f"version {result.version} is version {target.version} again: {rows}"
    log.info(f"restore: {summary}")
    numbers = {
        "delta/restored_files": result.metrics["numRestoredFiles"],
        "delta/removed_files": result.metrics["numRemovedFiles"],
    }
    return StepReport("RESTORE", summary, {**facts, **numbers})


def fsck_step(
    table: DeltaTable, config: FsckConfig, log: Logger, commit_info: Mapping[str, object]
) -> StepReport:
    """Find or remove files that storage no longer has."""
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


def reorg_step(
    table: DeltaTable, config: ReorgConfig, log: Logger, commit_info: Mapping[str, object]
) -> StepReport:
    """Purge the files of the table."""
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
    summary = _rewritten(metrics)
    return StepReport(
        "REORG",
        "nothing to purge" if result.skipped else summary,
        {
            "delta/reorg_files_removed": metrics["numRemovedFiles"],
            "delta/reorg_files_added": metrics["numAddedFiles"],
            **spark_work.metadata,
        },
    )


def _rewritten(metrics: Mapping[str, int]) -> str:
    return (
        f"{metrics['numRemovedFiles']} files ({spell_bytes(metrics['numRemovedBytes'])}) became "
        f"{metrics['numAddedFiles']} ({spell_bytes(metrics['numAddedBytes'])})"
    )


def _purge(config: ReorgConfig) -> list[Purge]:
    wanted: dict[Purge, bool] = {
        "deletion_vectors": config.deletion_vectors,
        "dropped_columns": config.dropped_columns,
        "widened_types": config.widened_types,
    }
    return [purge for purge, is_wanted in wanted.items() if is_wanted]


def _options(config: Config, kind: type[Config]) -> dict[str, Any]:
    """The options of a kind of config as arguments of the method of `DeltaTable`, which have the
    same names.
    """
    names = kind.model_fields.keys() - {"enabled"}
    return {name: getattr(config, name) for name in names}


Step = Callable[[DeltaTable, Any, Logger, Mapping[str, object]], StepReport]

STEPS: Mapping[str, Step] = {
    "fsck": fsck_step,
    "reorg": reorg_step,
    "optimize": optimize_step,
    "vacuum": vacuum_step,
    "checkpoint": checkpoint_step,
    "clean_log": clean_log_step,
}
"""The steps of a maintenance job in their order, by their field of `DeltaMaintenanceConfig`."""


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
    }


def spell_bytes(size_bytes: float) -> str:
    """A size for people: `1.5 GiB`."""
    size = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _count(rows: int | None) -> str:
    return "an unknown number of" if rows is None else f"{rows:,}"
