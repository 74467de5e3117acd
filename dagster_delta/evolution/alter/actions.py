"""Schema actions, one class per kind of change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from dagster_delta.evolution.column_paths import ColumnPath
from dagster_delta.protocol.schema import DataType

__all__ = [
    "AddColumn",
    "AddConstraint",
    "ChangeType",
    "ClusterBy",
    "DropColumn",
    "DropConstraint",
    "DropDefault",
    "DropFeature",
    "DropNotNull",
    "MoveColumn",
    "Position",
    "RenameColumn",
    "SchemaAction",
    "SetComment",
    "SetDefault",
    "SetNotNull",
    "SetProperties",
    "SetTableComment",
    "UnsetProperties",
]


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a field in its struct."""

    after: str | None = None
    """Name of the previous field; None puts it first."""


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Add a column, or a field of a struct."""

    path: ColumnPath
    """Path of the struct, then the new name."""
    data_type: DataType
    nullable: bool = True
    default: str | None = None
    """Spark SQL for rows that have no value; top-level columns only."""
    comment: str | None = None
    position: Position | None = None
    """None puts it last."""
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropColumn:
    """Drop a column or field. Data files keep it, and readers ignore it."""

    path: ColumnPath
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Rename a column or field, in the same position."""

    path: ColumnPath
    new_name: str


@dataclass(frozen=True, slots=True)
class ChangeType:
    """Change the type of a column, field, array element, map key or map value."""

    path: ColumnPath
    data_type: DataType
    using: str | None = None
    """Spark SQL over the row for the new value; None: CAST of the value."""


@dataclass(frozen=True, slots=True)
class SetNotNull:
    """Make a column NOT NULL; existing rows are checked."""

    path: ColumnPath


@dataclass(frozen=True, slots=True)
class DropNotNull:
    """Make a column, array element or map value nullable."""

    path: ColumnPath


@dataclass(frozen=True, slots=True)
class SetDefault:
    """Set the default for rows written from now on."""

    path: ColumnPath
    expression: str
    """Spark SQL."""


@dataclass(frozen=True, slots=True)
class DropDefault:
    """Drop the default for rows written from now on."""

    path: ColumnPath


@dataclass(frozen=True, slots=True)
class SetComment:
    """Set the comment of a column; None removes it."""

    path: ColumnPath
    comment: str | None


@dataclass(frozen=True, slots=True)
class MoveColumn:
    """Move a field within its struct."""

    path: ColumnPath
    position: Position


@dataclass(frozen=True, slots=True)
class AddConstraint:
    """Add a named CHECK constraint; existing rows are checked."""

    name: str
    expression: str
    """Spark SQL that must be true for every row."""


@dataclass(frozen=True, slots=True)
class DropConstraint:
    """Drop a CHECK constraint."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetProperties:
    """Set table properties."""

    properties: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnsetProperties:
    """Unset table properties."""

    keys: tuple[str, ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetTableComment:
    """Set the description of the table; None removes it."""

    comment: str | None


@dataclass(frozen=True, slots=True)
class ClusterBy:
    """Set the clustering columns; an empty list turns clustering off."""

    columns: tuple[ColumnPath, ...]


@dataclass(frozen=True, slots=True)
class DropFeature:
    """Drop a table feature; the only action of its statement."""

    name: str
    truncate_history: bool = False


@dataclass(frozen=True, slots=True)
class MaterializeDefaults:
    """Write the columns into every file whose rows get their default when they are read."""


SchemaAction: TypeAlias = (
    AddColumn
    | DropColumn
    | RenameColumn
    | ChangeType
    | SetNotNull
    | DropNotNull
    | SetDefault
    | DropDefault
    | SetComment
    | MoveColumn
    | AddConstraint
    | DropConstraint
    | SetProperties
    | UnsetProperties
    | SetTableComment
    | ClusterBy
    | DropFeature
    | MaterializeDefaults
)
