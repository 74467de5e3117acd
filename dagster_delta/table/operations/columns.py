"""The columns of a table, one call for each change: what `alter` does by a statement.

A column is named by its path: `a.b` is a field of a struct, `a.element` the element of an array,
`a.key` and `a.value` those of a map; backticks quote names with special characters, and a list of
names needs no quotes. Every call makes one commit, planned again after a conflict, or none if the
table already has that state (`skipped` is true).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import pyarrow as pa

from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution import actions
from dagster_delta.evolution.column_paths import to_path
from dagster_delta.protocol.features.column_change import Position
from dagster_delta.protocol.schema import DataType
from dagster_delta.table.operations.change_schema import (
    AlterOptions,
    SchemaChangeResult,
    change_table,
    parse_column_type,
)

if TYPE_CHECKING:
    from dagster_delta.evolution.plan import ExistingRows
    from dagster_delta.table.table_handle import TableHandle


def add_column(
    table: TableHandle,
    /,
    column: str | Sequence[str],
    data_type: str | DataType | pa.DataType,
    *,
    nullable: bool = True,
    default: str | None = None,
    comment: str | None = None,
    first: bool = False,
    after: str | None = None,
    if_not_exists: bool = False,
    existing_rows: ExistingRows = "rewrite",
    **options: Unpack[AlterOptions],
) -> SchemaChangeResult:
    """Add a column, or a field to a struct.

    Args:
        column: its path.
        data_type: SQL (`"DECIMAL(10,2)"`), a `DataType` of this library, or a pyarrow.DataType.
        nullable: False needs a default, or a table without rows.
        default: Spark SQL, for future rows and, depending on `existing_rows`, for existing
            rows. For a field of a struct: only for existing rows, with `existing_rows="lazy"`.
        comment: comment of the column.
        first: whether to place it first in its struct; by default it is last.
        after: name of the field to place it after.
        if_not_exists: whether a column of that name is not an error.
        existing_rows: as for `alter`.
        **options: `dry_run`, `enable_features`, `engine`, `commit_info` and `on_progress`, as
            for `alter`.

    Raises:
        InvalidArgument, SchemaMismatch, and all that `alter` raises.
    """
    action = actions.AddColumn(
        to_path(column),
        parse_column_type(data_type),
        nullable=nullable,
        default=default,
        comment=comment,
        position=_choose_position(first=first, after=after) if first or after else None,
        if_not_exists=if_not_exists,
    )
    return change_table(table, action, existing_rows=existing_rows, **options)


def drop_column(
    table: TableHandle,
    /,
    column: str | Sequence[str],
    *,
    if_exists: bool = False,
    **options: Unpack[AlterOptions],
) -> SchemaChangeResult:
    """Drop a column or struct field, as a metadata-only change.

    Args:
        column: its path.
        if_exists: whether a missing column is not an error.
        **options: `dry_run`, `enable_features` and `commit_info`, as for `alter`.

    Raises:
        SchemaChangeRefused: something depends on it, or the table has no column mapping.
        SchemaMismatch, and all that `alter` raises.
    """
    return change_table(table, actions.DropColumn(to_path(column), if_exists), **options)


def rename_column(
    table: TableHandle,
    /,
    column: str | Sequence[str],
    new_name: str,
    **options: Unpack[AlterOptions],
) -> SchemaChangeResult:
    """Rename a column or struct field, as a metadata-only change.

    Args:
        column: its path.
        new_name: the name alone, without quotes.
        **options: `dry_run`, `enable_features` and `commit_info`, as for `alter`.

    Raises:
        SchemaChangeRefused: an expression names it, or the table has no column mapping.
        InvalidArgument, SchemaMismatch, and all that `alter` raises.
    """
    return change_table(table, actions.RenameColumn(to_path(column), new_name), **options)


def widen_column(
    table: TableHandle,
    /,
    column: str | Sequence[str],
    data_type: str | DataType | pa.DataType,
    **options: Unpack[AlterOptions],
) -> SchemaChangeResult:
    """Widen the type of a column, field, array element, map key or map value, as a
    metadata-only change.

    Args:
        column: its path.
        data_type: as for `add_column`.
        **options: `dry_run`, `enable_features` and `commit_info`, as for `alter`.

    Raises:
        SchemaChangeRefused: the type is not wider, something depends on the old one, or the
            table does not have `delta.enableTypeWidening`.
        SchemaMismatch, and all that `alter` raises.
    """
    action = actions.ChangeType(to_path(column), parse_column_type(data_type))
    return change_table(table, action, **options)


def set_nullable(
    table: TableHandle,
    /,
    column: str | Sequence[str],
    nullable: bool = True,
    **options: Unpack[AlterOptions],
) -> SchemaChangeResult:
    """Make a column nullable, or NOT NULL after validating existing rows.

    Args:
        column: its path; also of an array element or a map value, to make it nullable.
        nullable: False to set NOT NULL.
        **options: `dry_run`, `engine` and `commit_info`, as for `alter`.

    Raises:
        ConstraintViolation: the column is null in an existing row.
        SchemaChangeRefused: the column is in an array or a map. SchemaMismatch, and all that
        `alter` raises.
    """
    action = actions.SetNullable(to_path(column), nullable)
    return change_table(table, action, **options)


def set_default(
    table: TableHandle,
    /,
    column: str | Sequence[str],
    default: str | None,
    **options: Unpack[AlterOptions],
) -> SchemaChangeResult:
    """Set the default of a column for future rows; existing rows keep their values.

    Args:
        column: its path.
        default: Spark SQL without columns; None removes the default.
        **options: `dry_run` and `commit_info`, as for `alter`.

    Raises:
        SchemaChangeRefused: the column is a field of another column, or its values are
        generated. InvalidArgument, SchemaMismatch, and all that `alter` raises.
    """
    action = actions.SetDefault(to_path(column), default)
    return change_table(table, action, **options)


def set_comment(
    table: TableHandle,
    /,
    column: str | Sequence[str],
    comment: str | None,
    **options: Unpack[AlterOptions],
) -> SchemaChangeResult:
    """Set or remove the comment of a column.

    Args:
        column: its path.
        comment: None removes the comment.
        **options: `dry_run` and `commit_info`, as for `alter`.

    Raises:
        SchemaMismatch, and all that `alter` raises.
    """
    return change_table(table, actions.SetComment(to_path(column), comment), **options)


def move_column(
    table: TableHandle,
    /,
    column: str | Sequence[str],
    *,
    first: bool = False,
    after: str | None = None,
    **options: Unpack[AlterOptions],
) -> SchemaChangeResult:
    """Move a column, or a struct field, to another position.

    Args:
        column: its path.
        first: True to put it first.
        after: name of the field to place it after; give exactly one of the two.
        **options: `dry_run` and `commit_info`, as for `alter`.

    Raises:
        InvalidArgument: both or neither are given.
        SchemaMismatch, and all that `alter` raises.
    """
    action = actions.MoveColumn(to_path(column), _choose_position(first=first, after=after))
    return change_table(table, action, **options)


def add_constraint(
    table: TableHandle, /, name: str, check: str, **options: Unpack[AlterOptions]
) -> SchemaChangeResult:
    """Add a CHECK constraint, after validating existing rows.

    Args:
        name: of the constraint; kept in lower case.
        check: Spark SQL; a row for which it is not true is rejected.
        **options: `dry_run`, `engine` and `commit_info`, as for `alter`.

    Raises:
        ConstraintViolation: an existing row breaks it; with a few such rows as examples.
        UnsupportedExpression: the embedded engine cannot evaluate it exactly.
        InvalidArgument, SchemaMismatch, and all that `alter` raises.
    """
    return change_table(table, actions.AddConstraint(name, check), **options)


def drop_constraint(
    table: TableHandle, /, name: str, *, if_exists: bool = False, **options: Unpack[AlterOptions]
) -> SchemaChangeResult:
    """Drop a CHECK constraint.

    Args:
        name: of the constraint.
        if_exists: whether a missing constraint is not an error.
        **options: `dry_run` and `commit_info`, as for `alter`.

    Raises:
        InvalidArgument: no constraint has that name; and all that `alter` raises.
    """
    return change_table(table, actions.DropConstraint(name, if_exists), **options)


def cluster_by(
    table: TableHandle, /, *columns: str | Sequence[str], **options: Unpack[AlterOptions]
) -> SchemaChangeResult:
    """Change the clustering columns; existing files are unchanged until they are optimized.

    Args:
        *columns: their paths, at most four; none to end the clustering.
        **options: `dry_run` and `commit_info`, as for `alter`.

    Raises:
        SchemaChangeRefused: the table is partitioned, or a column has no statistics.
        InvalidArgument, SchemaMismatch, and all that `alter` raises.
    """
    return change_table(table, actions.ClusterBy(tuple(map(to_path, columns))), **options)


def _choose_position(*, first: bool, after: str | None) -> Position:
    if first == (after is not None):
        raise InvalidArgument(
            "a column is placed first or after another: pass first=True or after=…"
        )
    return Position(after)
