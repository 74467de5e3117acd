"""Column changes of an upstream table that older rows of the target do not reflect.

An added column needs no work if older rows have no value for it. With a default they may have one,
and no change tells it; nor does one tell that a dropped column was added again. A renamed column
would leave its older values under the old name; the ids of column mapping distinguish it from a new
column.

Spec: Column Mapping; Type Widening; Default Columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dagster_delta.evolution.merge_schema import diff_schemas, widenable_columns
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.column_values import DEFAULT_KEY
from dagster_delta.protocol.features.existing_defaults import EXISTING_DEFAULT_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.type_widening import is_widening
from dagster_delta.protocol.schema import (
    PrimitiveType,
    StructField,
    StructType,
    walk_fields,
)

_Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """One column of the upstream table, before and now."""

    kind: Literal["renamed", "dropped", "readded", "widened", "filled"]
    """`readded`: another column has its name now. `filled`: it was added with a default, which
    older rows may have."""
    path: _Path
    """Previous logical path; of a filled column the current one."""
    new_path: _Path | None
    """Current logical path; None for a dropped column."""
    what: str
    """The change, as the end of a sentence about the column."""

    def __str__(self) -> str:
        return f"column {'.'.join(self.path)} {self.what}"


def column_changes(
    before: TableConfiguration,
    now: TableConfiguration,
    target: TableConfiguration,
    *,
    columns: tuple[str, ...],
) -> list[ColumnChange]:
    """Changes of columns that the target also has, but has not adopted, since the upstream table
    was last read. `columns` are the names of the columns that are read now.

    A column that the target does not have under the old name needs no work: it was renamed there
    too, or is not in the table.
    """
    names = {name.casefold() for name in columns}
    reads_all = len(columns) == len(now.schema)
    known = {_folded(path) for path, _ in walk_fields(target.schema)}
    found = [
        change
        for change in _moved_columns(before, now)
        if not known.isdisjoint(_older_names(change))
        and (reads_all if change.new_path is None else change.new_path[0].casefold() in names)
    ]
    retyped = {
        _folded(difference.path) for difference in diff_schemas(before.schema, now.schema).retyped
    }
    found += [
        change
        for change in columns_narrower_than(now.schema, target)
        if _folded(change.path) in retyped and change.path[0].casefold() in names
    ]
    # Columns that were added with a default, unless they were added so to the target, too.
    filled = {name.casefold() for name in before.schema.names}
    filled |= {field.name.casefold() for field in target.schema if _has_default(field)}
    what = "was added with a default, which older rows may have"
    return found + [
        ColumnChange("filled", (field.name,), (field.name,), what)
        for field in now.schema
        if field.name in columns and _has_default(field) and field.name.casefold() not in filled
    ]


def _has_default(field: StructField) -> bool:
    return not field.metadata.keys().isdisjoint((DEFAULT_KEY, EXISTING_DEFAULT_KEY))


def columns_narrower_than(rows: StructType, target: TableConfiguration) -> list[ColumnChange]:
    """The columns whose type is narrower than in the rows to write, and which a write does not
    widen automatically.
    """
    grown = set()
    if target.type_widening_enabled:
        grown = {
            column.path
            for column in widenable_columns(target.schema, rows)
            if column.data_type != PrimitiveType("timestamp_ntz") or target.supports("timestampNtz")
        }
    return [
        ColumnChange(
            "widened",
            difference.path,
            difference.path,
            f"is of type {difference.data_type} now, and of type {difference.table_type} here",
        )
        for difference in diff_schemas(target.schema, rows).retyped
        if difference.path not in grown
        and difference.table_type is not None
        and difference.data_type is not None
        and is_widening(difference.table_type, difference.data_type)
    ]


def _moved_columns(before: TableConfiguration, now: TableConfiguration) -> list[ColumnChange]:
    """Columns that were renamed or dropped; a field below a renamed column only if the field itself
    was renamed or dropped. Without column mapping neither is possible, because only the name
    identifies a column.
    """
    if now.column_mapping_mode == "none":
        return []
    successors = _by_physical_path(now)
    names = {_folded(path) for path in successors.values()}
    found: list[ColumnChange] = []
    dropped: set[_Path] = set()
    for physical, path in _by_physical_path(before).items():
        successor = successors.get(physical)
        if successor is None:
            if physical[:-1] in dropped:
                pass
            elif _folded(path) in names:
                what = "was dropped, and another one has its name"
                found.append(ColumnChange("readded", path, path, what))
            else:
                found.append(ColumnChange("dropped", path, None, "was dropped"))
            dropped.add(physical)
        elif successor[-1].casefold() != path[-1].casefold():
            what = f"was renamed to {'.'.join(successor)}"
            found.append(ColumnChange("renamed", path, successor, what))
    return found


def _by_physical_path(configuration: TableConfiguration) -> dict[_Path, _Path]:
    """Physical path to logical path of every field, parents before children."""
    mode = configuration.column_mapping_mode
    physical: dict[_Path, _Path] = {(): ()}
    for path, field in walk_fields(configuration.schema):
        parent = next(path[:end] for end in range(len(path) - 1, -1, -1) if path[:end] in physical)
        steps = path[len(parent) : -1]
        physical[path] = (*physical[parent], *steps, physical_name(field, mode))
    return {key: path for path, key in physical.items() if path}


def _older_names(change: ColumnChange) -> set[_Path]:
    """Possible paths of the column in a table that has not adopted the change; its parents may have
    adopted it.
    """
    above = change.path[:-1] if change.new_path is None else change.new_path[:-1]
    return {_folded(change.path), _folded((*above, change.path[-1]))}


def _folded(path: _Path) -> _Path:
    return tuple(step.casefold() for step in path)
