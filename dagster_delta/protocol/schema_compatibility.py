"""Whether rows written under an older schema can be read with a newer schema.

Columns that were added later are null in older rows, and widened columns are cast. After any other
change of a column, older rows cannot be read with the newer schema: values would be missing, or
appear under another column's name.

Spec: Column Mapping; Type Widening; Schema Evolution.
"""

from __future__ import annotations

from collections.abc import Iterator

from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.existing_defaults import EXISTING_DEFAULT_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.type_widening import is_widening
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
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
    if _folded(older.partition_columns) != _folded(newer.partition_columns):
        return (
            f"the table was partitioned by {_listed(older.partition_columns)} and is partitioned "
            f"by {_listed(newer.partition_columns)}"
        )
    comparison = _Comparison(before, after, keeps_columns=keeps_columns)
    return next(comparison.differences(older.schema, newer.schema, ()), None)


def _folded(names: tuple[str, ...]) -> list[str]:
    return [name.casefold() for name in names]


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"


class _Comparison:
    def __init__(
        self, before: ColumnMappingMode, after: ColumnMappingMode, *, keeps_columns: bool
    ) -> None:
        self._before, self._after, self._keeps_columns = before, after, keeps_columns

    def differences(self, older: DataType, newer: DataType, path: tuple[str, ...]) -> Iterator[str]:
        match older, newer:
            case StructType(), StructType():
                yield from self._fields(older, newer, path)
            case ArrayType(element, null), ArrayType(new_element, new_null):
                here = (*path, "element")
                yield from _tightened(null, new_null, here)
                yield from self.differences(element, new_element, here)
            case MapType(key, value, null), MapType(new_key, new_value, new_null):
                yield from self.differences(key, new_key, (*path, "key"))
                yield from _tightened(null, new_null, (*path, "value"))
                yield from self.differences(value, new_value, (*path, "value"))
            case _ if older not in (newer, _VOID) and not is_widening(older, newer):
                yield f"column {'.'.join(path)} was of type {older} and is of type {newer}"

    def _fields(self, older: StructType, newer: StructType, path: tuple[str, ...]) -> Iterator[str]:
        successors = {self._key(field, self._after): field for field in newer}
        for field in older:
            here = (*path, field.name)
            successor = successors.get(self._key(field, self._before))
            if successor is None:
                if self._keeps_columns:
                    yield f"column {'.'.join(here)} was dropped"
            elif self._keeps_columns and self._after != "none" and successor.name != field.name:
                yield f"column {'.'.join(here)} was renamed to {successor.name}"
            else:
                yield from _tightened(field.nullable, successor.nullable, here)
                yield from _other_default(field, successor, here)
                yield from self.differences(field.data_type, successor.data_type, here)

    def _key(self, field: StructField, mode: ColumnMappingMode) -> str:
        # Columns that existed before the mapping keep their name as the physical name.
        name = physical_name(field, mode)
        return name.casefold() if self._after == "none" else name


def _other_default(older: StructField, newer: StructField, path: tuple[str, ...]) -> Iterator[str]:
    """Without column mapping, a column that was dropped and added again has one name in all
    files.
    """
    defaults = [field.metadata.get(EXISTING_DEFAULT_KEY) for field in (older, newer)]
    if None not in defaults and defaults[0] != defaults[1]:
        yield f"column {'.'.join(path)} has another default in rows of older files"


def _tightened(older: bool, newer: bool, path: tuple[str, ...]) -> Iterator[str]:
    if older and not newer:
        yield f"column {'.'.join(path)} could hold nulls and is NOT NULL"
