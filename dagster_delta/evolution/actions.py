"""Schema actions, one class per kind of change."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dagster_delta.evolution.column_paths import ColumnPath
from dagster_delta.protocol.features.column_change import Position
from dagster_delta.protocol.schema import DataType


class SchemaAction(msgspec.Struct, frozen=True):
    """One change of a schema."""


class AddColumn(SchemaAction, frozen=True):
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


class DropColumn(SchemaAction, frozen=True):
    """Drop a column or field. Data files keep it, and readers ignore it."""

    path: ColumnPath
    if_exists: bool = False


class RenameColumn(SchemaAction, frozen=True):
    """Rename a column or field, in the same position."""

    path: ColumnPath
    new_name: str


class ChangeType(SchemaAction, frozen=True):
    """Change the type of a column, field, array element, map key or map value."""

    path: ColumnPath
    data_type: DataType
    using: str | None = None
    """Spark SQL over the row for the new value; None: CAST of the value."""


class SetNotNull(SchemaAction, frozen=True):
    """Make a column NOT NULL; existing rows are checked."""

    path: ColumnPath


class DropNotNull(SchemaAction, frozen=True):
    """Make a column, array element or map value nullable."""

    path: ColumnPath


class SetDefault(SchemaAction, frozen=True):
    """Set the default for rows written from now on."""

    path: ColumnPath
    expression: str
    """Spark SQL."""


class DropDefault(SchemaAction, frozen=True):
    """Drop the default for rows written from now on."""

    path: ColumnPath


class SetComment(SchemaAction, frozen=True):
    """Set the comment of a column; None removes it."""

    path: ColumnPath
    comment: str | None


class MoveColumn(SchemaAction, frozen=True):
    """Move a field within its struct."""

    path: ColumnPath
    position: Position


class AddConstraint(SchemaAction, frozen=True):
    """Add a named CHECK constraint; existing rows are checked."""

    name: str
    expression: str
    """Spark SQL that must be true for every row."""


class DropConstraint(SchemaAction, frozen=True):
    """Drop a CHECK constraint."""

    name: str
    if_exists: bool = False


class SetProperties(SchemaAction, frozen=True):
    """Set table properties."""

    properties: Mapping[str, object] = {}


class UnsetProperties(SchemaAction, frozen=True):
    """Unset table properties."""

    keys: tuple[str, ...]
    if_exists: bool = False


class SetTableComment(SchemaAction, frozen=True):
    """Set the description of the table; None removes it."""

    comment: str | None


class ClusterBy(SchemaAction, frozen=True):
    """Set the clustering columns; an empty list turns clustering off."""

    columns: tuple[ColumnPath, ...]


class DropFeature(SchemaAction, frozen=True):
    """Drop a table feature; the only action of its statement."""

    name: str
    truncate_history: bool = False


class MaterializeDefaults(SchemaAction, frozen=True):
    """Write the columns into every file whose rows get their default when they are read."""
