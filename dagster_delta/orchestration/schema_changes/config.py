"""Launchpad config of schema changes."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from dagster import Config
from pydantic import Field

from dagster_delta.orchestration.known_fields import KnownFieldsOnly


class SchemaChangeKind(Enum):
    """The kind of change that a run of a schema change job makes."""

    ALTER = "alter"
    """Run `statement` in one commit; MODIFY, CHANGE and ALTER … TYPE to a type that is not wider
    are an online change of the column, with the switches of CHANGE_COLUMN."""
    CHANGE_COLUMN = "change_column"
    """Change the type of `column` online: to any type, in batches, during reads and writes. Only if
    `enable_column_change` of the resource is on, and the table's property too."""
    RESUME_COLUMN_CHANGE = "resume_column_change"
    """Resume a column change whose run ended before the change."""
    CANCEL_COLUMN_CHANGE = "cancel_column_change"
    """Cancel a column change, without effect on the column."""
    MATERIALIZE_DEFAULTS = "materialize_defaults"
    """Write defaults into files whose rows get them when they are read."""


class DeltaSchemaChangeConfig(KnownFieldsOnly, Config):
    """One schema change of one table. By default, it is a dry run."""

    table: str = Field(
        default="",
        description="Name of one of the job's tables. May be omitted if the job has only one.",
    )
    kind: SchemaChangeKind = Field(
        default=SchemaChangeKind.ALTER,
        description="ALTER: run `statement`; CHANGE_COLUMN: change the type of `column` online, "
        "if the resource has enable_column_change; RESUME_COLUMN_CHANGE, CANCEL_COLUMN_CHANGE: "
        "continue or cancel the change in progress; MATERIALIZE_DEFAULTS: write lazy defaults "
        "into the data files, so that other clients can read the table again.",
    )
    dry_run: bool = Field(
        default=True,
        description="Only plan the change: what it does, what it costs, which assets read the "
        "columns. Set to false to apply it.",
    )
    statement: str = Field(
        default="",
        description="For ALTER: an ALTER TABLE statement in the syntax of Spark, DuckDB or "
        "MySQL; `ALTER TABLE t` may be omitted. Several actions, separated by commas, are one "
        "commit. MODIFY, CHANGE and ALTER … TYPE to a type that is not wider run online, in the "
        "order of the statement.",
    )
    existing_rows: Literal["rewrite", "lazy", "null"] = Field(
        default="rewrite",
        description="For ALTER: the value of existing rows in a new column with a default. "
        "rewrite: the default, written by rewriting their files; lazy: the default, filled in "
        "when they are read, so that only this library can read the table until "
        "MATERIALIZE_DEFAULTS; null: null.",
    )
    column: str = Field(
        default="",
        description="For CHANGE_COLUMN: path of the column: `a`, `a.b`, `a.element`, `a.value`.",
    )
    new_type: str = Field(
        default="",
        description="For CHANGE_COLUMN: the new type, any atomic one: INT, DECIMAL(10,2), DATE.",
    )
    cast: str | None = Field(
        default=None,
        description="For CHANGE_COLUMN: Spark SQL expression over the row that computes the new "
        "value. Default: CAST.",
    )
    on_error: Literal["abort", "null"] = Field(
        default="abort",
        description="For CHANGE_COLUMN: whether a value that cannot be converted aborts the "
        "change, leaving the column as it was, or becomes null.",
    )
    nullable: bool | None = Field(
        default=None,
        description="For CHANGE_COLUMN: whether the changed column is nullable. Default: "
        "unchanged.",
    )
    position: str | None = Field(
        default=None,
        description="For CHANGE_COLUMN: FIRST, or the name of the column to place it after. "
        "Default: unchanged.",
    )
    batch_bytes: int | None = Field(
        default=None,
        description="For column changes: bytes of data files to rewrite per commit. Default: 1 "
        "GiB.",
    )
    enable_features: bool = Field(
        default=False,
        description="Whether to enable table features that the change needs, such as column "
        "mapping. Clients without these features can then no longer read the table.",
    )
    engine: Literal["arrow", "spark"] = Field(
        default="arrow",
        description="What rewrites existing rows. arrow: the process of the step; spark: the "
        "executors of its Spark session.",
    )
