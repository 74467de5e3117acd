"""Whether rows written under an older schema can be read with a newer schema.

Columns that were added later are null in older rows, and widened columns are cast. After any other
change of a column, older rows cannot be read with the newer schema: values would be missing, or
appear under another column's name.

Spec: Column Mapping; Type Widening; Schema Evolution.
"""

from __future__ import annotations

from functools import partial

from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.existing_defaults import EXISTING_DEFAULT_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.type_widening import is_widening
from dagster_delta.protocol.schema import (
    PrimitiveType,
    StructField,
    fold_name,
    is_same_kind,
    paired_fields,
)
from dagster_delta.protocol.table_properties import ColumnMappingMode

_VOID = PrimitiveType("void")


def find_incompatibility(
    older: TableConfiguration, newer: TableConfiguration, *, keeps_columns: bool = True
) -> str | None:
    """Why older rows cannot be read with the newer schema, as text; None if they can.

    `keeps_columns`: whether they must have all columns that they had, under the same names.
    """
    if older.metadata == newer.metadata:
        return None
    before, after = older.column_mapping_mode, newer.column_mapping_mode
    if before != "none" and after == "none":
        return "column mapping was turned off"
    if _fold_names(older.partition_columns) != _fold_names(newer.partition_columns):
        return (
            f"the table was partitioned by {_join_names(older.partition_columns)} and is "
            f"partitioned by {_join_names(newer.partition_columns)}"
        )

    def key(field: StructField, mode: ColumnMappingMode) -> str:
        # Columns that existed before the mapping keep their name as the physical name.
        name = physical_name(field, mode)
        return fold_name(name) if after == "none" else name

    keys = partial(key, mode=before), partial(key, mode=after)
    is_followed = keeps_columns and after != "none"
    for path, field, successor in paired_fields(older.schema, newer.schema, *keys):
        if field is None or (successor is None and not keeps_columns):
            continue
        if problem := _find_problem(field, successor, is_followed=is_followed):
            return f"column {'.'.join(path)} {problem}"
    return None


def _fold_names(names: tuple[str, ...]) -> list[str]:
    return [fold_name(name) for name in names]


def _join_names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"


def _find_problem(
    older: StructField, newer: StructField | None, *, is_followed: bool
) -> str | None:
    """What makes values of a field unreadable as those of its successor. `is_followed`: whether a
    field that has another name is the same one.
    """
    if newer is None:
        return "was dropped"
    if is_followed and newer.name != older.name:
        return f"was renamed to {newer.name}"
    if older.nullable and not newer.nullable:
        return "could hold nulls and is NOT NULL"
    defaults = [field.metadata.get(EXISTING_DEFAULT_KEY) for field in (older, newer)]
    if None not in defaults and defaults[0] != defaults[1]:
        # Without column mapping, a column that was dropped and added again has one name in all
        # files.
        return "has another default in rows of older files"
    before, after = older.data_type, newer.data_type
    is_read = is_same_kind(before, after) or before in (after, _VOID) or is_widening(before, after)
    return None if is_read else f"was of type {before} and is of type {after}"
