"""What the Launchpad asks before a table's schema is changed."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from dagster import Config
from pydantic import Field

__all__ = ["DeltaSchemaChangeConfig", "SchemaChangeKind"]


class SchemaChangeKind(Enum):
    """What a run of a schema change job does."""

    ALTER = "alter"
    """What `statement` says, in one commit."""
    CHANGE_COLUMN = "change_column"
    """Another type for `column`, online: any type, in batches, while others read and write. Only
    where `enable_column_change` of the resource is on, and the table's property too."""
    RESUME_COLUMN_CHANGE = "resume_column_change"
    """Go on with a column change whose run ended before it did."""
    CANCEL_COLUMN_CHANGE = "cancel_column_change"
    """End a column change without an effect."""
    MATERIALIZE_DEFAULTS = "materialize_defaults"
    """Write defaults into files whose rows take them when they are read."""


class DeltaSchemaChangeConfig(Config):
    """One change of one table's schema. By default it is only planned, and told."""

    table: str = Field(
        default="", description="Name of one of the job's tables. Empty where it has only one."
    )
    kind: SchemaChangeKind = Field(
        default=SchemaChangeKind.ALTER,
        description="ALTER: what `statement` says; CHANGE_COLUMN: another type for `column`, "
        "online, where the resource has enable_column_change; RESUME_COLUMN_CHANGE, "
        "CANCEL_COLUMN_CHANGE: what becomes of one in progress; MATERIALIZE_DEFAULTS: what "
        "`existing_rows` lazy left out of files is written to them, and other clients read the "
        "table again.",
    )
    dry_run: bool = Field(
        default=True,
        description="Only plan the change: what it does, what it costs, who reads the columns. "
        "Off: do it.",
    )
    statement: str = Field(
        default="",
        description="For ALTER: ALTER TABLE as Spark, DuckDB or MySQL spell it; `ALTER TABLE t` "
        "may be left out. Several actions, separated by commas, are one commit.",
    )
    existing_rows: Literal["rewrite", "lazy", "null"] = Field(
        default="rewrite",
        description="For ALTER: what existing rows hold in a new column with a default. rewrite: "
        "the default, as their files are written again; lazy: the default, put there when they are "
        "read, so that only this library reads the table until MATERIALIZE_DEFAULTS; null: null.",
    )
    column: str = Field(
        default="",
        description="For CHANGE_COLUMN: path of the column: `a`, `a.b`, `a.element`, `a.value`.",
    )
    new_type: str = Field(
        default="", description="For CHANGE_COLUMN: any atomic type: INT, DECIMAL(10,2), DATE."
    )
    cast: str | None = Field(
        default=None,
        description="For CHANGE_COLUMN: Spark SQL over the row for the new value. Not set: CAST.",
    )
    on_error: Literal["abort", "null"] = Field(
        default="abort",
        description="For CHANGE_COLUMN: whether a value that cannot be converted ends the change, "
        "which leaves the table as it was, or becomes null.",
    )
    nullable: bool | None = Field(
        default=None,
        description="For CHANGE_COLUMN: whether the column takes nulls then. Not set: as now.",
    )
    position: str | None = Field(
        default=None,
        description="For CHANGE_COLUMN: FIRST, or the column to stand behind. Not set: as now.",
    )
    batch_bytes: int | None = Field(
        default=None,
        description="For column changes: bytes of data files that are written again in one commit. "
        "Not set: 1 GiB.",
    )
    enable_features: bool = Field(
        default=False,
        description="Whether the table is given features that the change needs and it lacks, such "
        "as column mapping, after which older clients no longer read it.",
    )
    engine: Literal["arrow", "spark"] = Field(
        default="arrow",
        description="What writes existing rows again. arrow: the process of the step; spark: the "
        "executors of its Spark session.",
    )
