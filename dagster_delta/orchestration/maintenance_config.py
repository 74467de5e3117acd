"""What the Launchpad asks before tables are maintained, with defaults that harm nobody."""

from __future__ import annotations

from typing import Literal

from dagster import Config
from pydantic import Field

from dagster_delta.orchestration.storage_options import AnyStorageOptions, LocalStorageOptions

__all__ = [
    "CheckpointConfig",
    "CleanLogConfig",
    "CloneConfig",
    "DeltaCloneConfig",
    "DeltaMaintenanceConfig",
    "DeltaRestoreConfig",
    "OptimizeConfig",
    "TableCleanLogConfig",
    "TableCloneConfig",
    "TableConfig",
    "TableOptimizeConfig",
    "TableRestoreConfig",
    "TableVacuumConfig",
    "VacuumConfig",
]

MaintenanceEngine = Literal["arrow", "spark"]


class OptimizeConfig(Config):
    """How small files are written together."""

    enabled: bool = Field(default=True, description="Whether it is done.")
    where: str | None = Field(
        default=None,
        description="Spark SQL; only files that may hold rows for which it is true are looked at.",
    )
    target_file_size: int | None = Field(
        default=None,
        description="Bytes that new files should have. Not set: delta.targetFileSize, or 128 MiB.",
    )
    min_file_size: int | None = Field(
        default=None,
        description="Files below this number of bytes are small. Not set: 3/4 of the target.",
    )
    max_deleted_share: float = Field(
        default=0.05,
        description="Files with a larger share of deleted rows (0 to 1) are written anew; 0 purges "
        "every deleted row.",
    )
    zorder_by: list[str] = Field(
        default=[],
        description="Columns to sort the rows of each partition by, along a Z-order curve. Every "
        "file is written anew then.",
    )
    engine: MaintenanceEngine = Field(
        default="arrow",
        description="arrow: in the process of the step, in bounded memory; spark: on the executors "
        "of its Spark session.",
    )


class VacuumConfig(Config):
    """How files that nothing refers to are deleted."""

    enabled: bool = Field(default=True, description="Whether it is done.")
    dry_run: bool = Field(
        default=True, description="Only tell what would be deleted. Off: delete it, for good."
    )
    retention_hours: float | None = Field(
        default=None,
        description="How long files are kept after they left the table. Not set: "
        "delta.deletedFileRetentionDuration, else a week.",
    )
    enforce_retention: bool = Field(
        default=True,
        description="Refuse a retention that is shorter than the table's. Off only where nobody "
        "else reads or writes the table.",
    )


class CheckpointConfig(Config):
    """Whether readers are spared the replay of commits."""

    enabled: bool = Field(default=False, description="Whether it is done.")
    after_commits: int = Field(
        default=1, description="Only where this many commits were made since the last checkpoint."
    )


class CleanLogConfig(Config):
    """How the log of versions that nobody has to read any more is deleted."""

    enabled: bool = Field(
        default=False,
        description="Whether it is done. Writers do it by themselves after checkpoints, unless the "
        "table has delta.enableExpiredLogCleanup = false.",
    )
    dry_run: bool = Field(
        default=True, description="Only tell what would be deleted. Off: delete it, for good."
    )
    retention_hours: float | None = Field(
        default=None,
        description="How long versions can be read. Not set: delta.logRetentionDuration, else 30 "
        "days.",
    )
    enforce_retention: bool = Field(
        default=True,
        description="Refuse a retention that is shorter than the table's, and tables that keep "
        "their log.",
    )


class CloneConfig(Config):
    """Where a table is cloned to, and how."""

    target: str = Field(
        description="Location of the clone, in storage that the options of the table reach."
    )
    deep: bool = Field(
        default=True,
        description="Copy the files. Off: refer to them, which costs nothing and breaks when the "
        "table is vacuumed.",
    )
    version: int | None = Field(
        default=None, description="The version to clone. Not set: the latest."
    )
    timestamp: str | None = Field(
        default=None,
        description="Instead: the latest version at or before it, such as 2024-05-01T12:30:00Z.",
    )
    replace: bool = Field(
        default=False,
        description="A table that is at the target becomes the clone, as a new version; only what "
        "it does not have is copied.",
    )
    dry_run: bool = Field(
        default=True, description="Only tell what would be cloned. Off: make the clone."
    )


class DeltaMaintenanceConfig(Config):
    """What a maintenance job does with each of its tables, in this order."""

    tables: list[str] = Field(
        default=[], description="Only these of the job's tables, by name. Empty: all of them."
    )
    optimize: OptimizeConfig = Field(
        default=OptimizeConfig(), description="Write small files together."
    )
    vacuum: VacuumConfig = Field(
        default=VacuumConfig(), description="Delete files that nothing refers to."
    )
    checkpoint: CheckpointConfig = Field(
        default=CheckpointConfig(), description="Write a checkpoint."
    )
    clean_log: CleanLogConfig = Field(
        default=CleanLogConfig(), description="Delete the log of expired versions."
    )


class DeltaRestoreConfig(Config):
    """Which table goes back to which version."""

    table: str = Field(description="Name of one of the job's tables.")
    version: int | None = Field(default=None, description="The version to go back to.")
    timestamp: str | None = Field(
        default=None,
        description="Instead: the latest version at or before it, such as 2024-05-01T12:30:00Z.",
    )
    dry_run: bool = Field(
        default=True, description="Only tell what would change. Off: commit the restored version."
    )


class DeltaCloneConfig(CloneConfig):
    """Which table is cloned, where to and how."""

    table: str = Field(description="Name of one of the job's tables.")


class TableConfig(Config):
    """Which table an op works on."""

    uri: str = Field(description="Location of the table.")
    storage_options: AnyStorageOptions = Field(
        default=LocalStorageOptions(),
        discriminator="provider",
        description="How to reach the storage. What is not set comes from the environment.",
    )


class TableOptimizeConfig(TableConfig, OptimizeConfig):
    """A table, and how its small files are written together."""


class TableVacuumConfig(TableConfig, VacuumConfig):
    """A table, and how its unreferenced files are deleted."""


class TableCleanLogConfig(TableConfig, CleanLogConfig):
    """A table, and how its log is cleaned up."""


class TableCloneConfig(TableConfig, CloneConfig):
    """A table, and where it is cloned to."""


class TableRestoreConfig(TableConfig):
    """A table, and the version it goes back to."""

    version: int | None = Field(default=None, description="The version to go back to.")
    timestamp: str | None = Field(
        default=None,
        description="Instead: the latest version at or before it, such as 2024-05-01T12:30:00Z.",
    )
    dry_run: bool = Field(
        default=True, description="Only tell what would change. Off: commit the restored version."
    )
