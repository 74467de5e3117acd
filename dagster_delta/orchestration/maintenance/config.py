"""Launchpad config of table maintenance, with safe defaults."""

from __future__ import annotations

from typing import Literal, Self

from dagster import Config
from pydantic import Field, model_validator

from dagster_delta.engines import engine_for
from dagster_delta.orchestration.known_fields import KnownFieldsOnly
from dagster_delta.orchestration.storage_options import AnyStorageOptions, LocalStorageOptions

MaintenanceEngine = Literal["arrow", "spark"]


class OptimizeConfig(KnownFieldsOnly, Config):
    """How small files are compacted."""

    enabled: bool = Field(default=True, description="Whether to run this step.")
    where: str | None = Field(
        default=None,
        description="Spark SQL predicate; only files that may contain matching rows are "
        "considered.",
    )
    target_file_size: int | None = Field(
        default=None,
        description="Target size of new files in bytes. Default: delta.targetFileSize, or 128 MiB.",
    )
    min_file_size: int | None = Field(
        default=None,
        description="Files smaller than this many bytes are compacted. Default: 3/4 of the "
        "target size.",
    )
    max_deleted_share: float = Field(
        default=0.05,
        description="Files with a larger share of deleted rows (0 to 1) are rewritten; 0 purges "
        "every deleted row.",
    )
    zorder_by: list[str] = Field(
        default=[],
        description="Columns to Z-order the rows of each partition by. This rewrites every file.",
    )
    sort_by: list[str] = Field(
        default=[],
        description="Columns to sort the rows of each partition by. This rewrites every file.",
    )
    full: bool = Field(
        default=False,
        description="Also cluster files again that were clustered by other columns. Tables without "
        "clustering columns are compacted as usual.",
    )
    engine: MaintenanceEngine = Field(
        default="arrow",
        description="arrow: in the process of the step, in bounded memory; spark: on the "
        "executors of its Spark session.",
    )
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


class VacuumConfig(KnownFieldsOnly, Config):
    """How unreferenced files are deleted."""

    enabled: bool = Field(default=True, description="Whether to run this step.")
    dry_run: bool = Field(
        default=True,
        description="Only report what would be deleted. Set to false to delete it permanently.",
    )
    retention_hours: float | None = Field(
        default=None,
        description="How long to keep files after they were removed from the table. Default: "
        "delta.deletedFileRetentionDuration, or one week.",
    )
    enforce_retention: bool = Field(
        default=True,
        description="Reject a retention shorter than the table's. Set to false only if no one "
        "else reads or writes the table.",
    )
    lite: bool = Field(
        default=False,
        description="Whether to find the files in the log instead of listing the directory: much "
        "faster, and files that no commit refers to stay. It needs every commit since the last "
        "vacuum.",
    )
    keep_versions: list[int] = Field(
        default=[], description="Versions whose files are kept, whatever the retention."
    )


class FsckConfig(KnownFieldsOnly, Config):
    """How files that storage no longer has are removed from the log."""

    enabled: bool = Field(default=False, description="Whether to run this step.")
    dry_run: bool = Field(
        default=True,
        description="Only report the files that storage no longer has. Set to false to remove them "
        "from the table: their rows are lost.",
    )


class ReorgConfig(KnownFieldsOnly, Config):
    """What is purged from the files of a table."""

    enabled: bool = Field(default=False, description="Whether to run this step.")
    where: str | None = Field(
        default=None,
        description="Spark SQL predicate; only files that may contain matching rows are "
        "considered.",
    )
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
    engine: MaintenanceEngine = Field(
        default="arrow",
        description="arrow: in the process of the step; spark: on the executors of its session.",
    )


class CheckpointConfig(KnownFieldsOnly, Config):
    """Whether to write a checkpoint."""

    enabled: bool = Field(default=False, description="Whether to run this step.")
    after_commits: int = Field(
        default=1,
        description="Only if the table has at least this many commits since the last checkpoint.",
    )


class CleanLogConfig(KnownFieldsOnly, Config):
    """How the log files of expired versions are deleted."""

    enabled: bool = Field(
        default=False,
        description="Whether to run this step. Writers clean up the log after checkpoints on "
        "their own, unless the table has delta.enableExpiredLogCleanup = false.",
    )
    dry_run: bool = Field(
        default=True,
        description="Only report what would be deleted. Set to false to delete it permanently.",
    )
    retention_hours: float | None = Field(
        default=None,
        description="How long versions stay readable. Default: delta.logRetentionDuration, or 30 "
        "days.",
    )
    enforce_retention: bool = Field(
        default=True,
        description="Reject a retention shorter than the table's, and tables whose log clean-up is "
        "disabled.",
    )


class CloneConfig(KnownFieldsOnly, Config):
    """Target and options of a clone."""

    target: str = Field(
        description="Location of the clone, on storage that the table's storage options can access."
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


class RestoreConfig(KnownFieldsOnly, Config):
    """The version to restore."""

    version: int | None = Field(default=None, description="The version to restore.")
    timestamp: str | None = Field(
        default=None,
        description="Alternative to version: the latest version at or before this time, such as "
        "2024-05-01T12:30:00Z.",
    )
    dry_run: bool = Field(
        default=True,
        description="Only report what would change. Set to false to commit the restored version.",
    )


class DeltaMaintenanceConfig(KnownFieldsOnly, Config):
    """The steps of a maintenance job for each of its tables, in this order."""

    tables: list[str] = Field(
        default=[], description="Names of the job's tables to maintain. Empty: all of them."
    )
    fsck: FsckConfig = Field(
        default=FsckConfig(), description="Find the files that storage no longer has."
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


class DeltaRestoreConfig(RestoreConfig):
    """A table, and the version to restore."""

    table: str = Field(description="Name of one of the job's tables.")


class DeltaCloneConfig(CloneConfig):
    """A table, its clone target and options."""

    table: str = Field(description="Name of one of the job's tables.")


class TableConfig(KnownFieldsOnly, Config):
    """The table of an op."""

    uri: str = Field(description="Location of the table.")
    storage_options: AnyStorageOptions = Field(
        default=LocalStorageOptions(),
        discriminator="provider",
        description="Storage options. Whatever is not set is taken from the environment.",
    )


class TableStepConfig(TableConfig):
    """The table of an op that is a step of maintenance jobs too."""

    enabled: bool = Field(default=True, description="Whether the op does anything.")
