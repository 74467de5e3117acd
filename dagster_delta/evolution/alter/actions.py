"""What can be done to the schema of a table, one value per kind of change."""

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
    """Where in its struct a field stands."""

    after: str | None = None
    """Name of the field before it; None puts it first."""


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A new column, or a new field of a struct."""

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
    """A column or field less. Data files keep it, and no reader sees it any more."""

    path: ColumnPath
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Another name for a column or field, in the same place."""

    path: ColumnPath
    new_name: str


@dataclass(frozen=True, slots=True)
class ChangeType:
    """Another type for a column, field, array element, map key or map value."""

    path: ColumnPath
    data_type: DataType
    using: str | None = None
    """Spark SQL over the row for the new value; None: the value itself, converted."""


@dataclass(frozen=True, slots=True)
class SetNotNull:
    """A column may no longer be null; existing rows are looked at."""

    path: ColumnPath


@dataclass(frozen=True, slots=True)
class DropNotNull:
    """A column, array element or map value may be null."""

    path: ColumnPath


@dataclass(frozen=True, slots=True)
class SetDefault:
    """A default for rows written from now on."""

    path: ColumnPath
    expression: str
    """Spark SQL."""


@dataclass(frozen=True, slots=True)
class DropDefault:
    """No default for rows written from now on."""

    path: ColumnPath


@dataclass(frozen=True, slots=True)
class SetComment:
    """Another comment on a column; None removes it."""

    path: ColumnPath
    comment: str | None


@dataclass(frozen=True, slots=True)
class MoveColumn:
    """Another place for a field within its struct."""

    path: ColumnPath
    position: Position


@dataclass(frozen=True, slots=True)
class AddConstraint:
    """A named CHECK; existing rows are looked at."""

    name: str
    expression: str
    """Spark SQL that has to be true of every row."""


@dataclass(frozen=True, slots=True)
class DropConstraint:
    """A CHECK less."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetProperties:
    """Table properties, new or changed."""

    properties: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnsetProperties:
    """Table properties less."""

    keys: tuple[str, ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetTableComment:
    """Another description of the table; None removes it."""

    comment: str | None


@dataclass(frozen=True, slots=True)
class ClusterBy:
    """Other clustering columns; none at all turn clustering off."""

    columns: tuple[ColumnPath, ...]


@dataclass(frozen=True, slots=True)
class DropFeature:
    """A table feature less; it stands alone in its statement."""

    name: str
    truncate_history: bool = False


@dataclass(frozen=True, slots=True)
class MaterializeDefaults:
    """Every file gets the columns whose default its rows take when they are read."""


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
