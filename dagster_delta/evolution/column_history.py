"""How the columns of a table have changed for another table that follows its rows.

Older rows of the follower do not follow column changes. An added column needs no work if older rows
have no value for it. With a default they may have one, and no change tells it; nor does one tell
that a dropped column was added again. A renamed column would leave its older values under the old
name; the ids of column mapping distinguish it from a new column.

Spec: Column Mapping; Type Widening; Default Columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Literal

import msgspec

from dagster_delta.evolution.column_paths import ColumnPath
from dagster_delta.evolution.merge_schema import diff_schemas
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.column_values import DEFAULT_KEY
from dagster_delta.protocol.features.existing_defaults import EXISTING_DEFAULT_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.type_widening import is_widening
from dagster_delta.protocol.schema import (
    StructField,
    StructType,
    fold_name,
    paired_fields,
    walk_fields,
)


class ColumnDivergence(msgspec.Struct, frozen=True):
    """One column of the table that is followed, before and now."""

    kind: Literal["renamed", "dropped", "readded", "widened", "filled"]
    """`readded`: another column has its name now. `filled`: it was added with a default, which
    older rows may have."""
    path: ColumnPath
    """Previous logical path; of a filled column the current one."""
    new_path: ColumnPath | None
    """Current logical path; None for a dropped column."""
    what: str
    """The change, as the end of a sentence about the column."""

    def __str__(self) -> str:
        return f"column {'.'.join(self.path)} {self.what}"


def find_divergences(
    before: TableConfiguration,
    now: TableConfiguration,
    target: TableConfiguration,
    *,
    columns: tuple[str, ...],
    grown: StructType,
) -> list[ColumnDivergence]:
    """Changes of columns that the target also has, but has not adopted, since the table that it
    follows was last read.

    `columns` are the names of the columns that are read now; `grown` is the schema that the target
    has after a write of them. A column that the target does not have under the old name needs no
    work: it was renamed there too, or is not in the table.
    """
    names = {fold_name(name) for name in columns}
    reads_all = len(columns) == len(now.schema)
    known = {_fold_path(path) for path, _ in walk_fields(target.schema)}
    found = [
        change
        for change in _moved_columns(before, now)
        if not known.isdisjoint(_older_names(change))
        and (reads_all if change.new_path is None else fold_name(change.new_path[0]) in names)
    ]
    retyped = {
        _fold_path(difference.path)
        for difference in diff_schemas(before.schema, now.schema).retyped
    }
    found += [
        change
        for change in columns_narrower_than(now.schema, grown)
        if _fold_path(change.path) in retyped and fold_name(change.path[0]) in names
    ]
    # Columns that were added with a default, unless they were added so to the target, too.
    filled = {fold_name(name) for name in before.schema.names}
    filled |= {fold_name(field.name) for field in target.schema if _has_default(field)}
    what = "was added with a default, which older rows may have"
    return found + [
        ColumnDivergence("filled", (field.name,), (field.name,), what)
        for field in now.schema
        if field.name in columns and _has_default(field) and fold_name(field.name) not in filled
    ]


def _has_default(field: StructField) -> bool:
    return not field.metadata.keys().isdisjoint((DEFAULT_KEY, EXISTING_DEFAULT_KEY))


def columns_narrower_than(rows: StructType, grown: StructType) -> list[ColumnDivergence]:
    """The columns whose type is narrower than in the rows to write, in the schema that a table has
    after the write.
    """
    return [
        ColumnDivergence(
            "widened",
            difference.path,
            difference.path,
            f"is of type {difference.data_type} now, and of type {difference.table_type} here",
        )
        for difference in diff_schemas(grown, rows).retyped
        if difference.table_type is not None
        and difference.data_type is not None
        and is_widening(difference.table_type, difference.data_type)
    ]


def _moved_columns(
    before: TableConfiguration, now: TableConfiguration
) -> Iterator[ColumnDivergence]:
    """Columns that were renamed or dropped; a field below a renamed column only if the field itself
    was renamed or dropped. Without column mapping neither is possible, because only the name
    identifies a column.
    """
    if now.column_mapping_mode == "none":
        return
    old_mode, mode = before.column_mapping_mode, now.column_mapping_mode
    keys = partial(physical_name, mode=old_mode), partial(physical_name, mode=mode)
    names = {_fold_path(path) for path, _ in walk_fields(now.schema)}
    new_paths: dict[ColumnPath, ColumnPath] = {(): ()}
    for path, field, successor in paired_fields(before.schema, now.schema, *keys):
        if field is None:
            continue
        if successor is not None:
            new_path = new_paths[path] = (*new_paths[path[:-1]], successor.name)
            if _fold_path(new_path[-1:]) != _fold_path(path[-1:]):
                what = f"was renamed to {'.'.join(new_path)}"
                yield ColumnDivergence("renamed", path, new_path, what)
        elif _fold_path(path) in names:
            what = "was dropped, and another one has its name"
            yield ColumnDivergence("readded", path, path, what)
        else:
            yield ColumnDivergence("dropped", path, None, "was dropped")


def _older_names(change: ColumnDivergence) -> set[ColumnPath]:
    """Possible paths of the column in a table that has not adopted the change; its parents may have
    adopted it.
    """
    above = change.path[:-1] if change.new_path is None else change.new_path[:-1]
    return {_fold_path(change.path), _fold_path((*above, change.path[-1]))}


def _fold_path(path: ColumnPath) -> ColumnPath:
    return tuple(fold_name(step) for step in path)
