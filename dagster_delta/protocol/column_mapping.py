"""Logical names against the physical names and ids that data files carry.

Spec: Column Mapping.
"""

from __future__ import annotations

from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.schema import StructField
from dagster_delta.protocol.table_properties import ColumnMappingMode

__all__ = [
    "ID_KEY",
    "NESTED_IDS_KEY",
    "PHYSICAL_NAME_KEY",
    "field_id",
    "physical_name",
]

ID_KEY = "delta.columnMapping.id"
PHYSICAL_NAME_KEY = "delta.columnMapping.physicalName"
NESTED_IDS_KEY = "delta.columnMapping.nested.ids"


def physical_name(field: StructField, mode: ColumnMappingMode = "name") -> str:
    """The name of a field in data files, statistics and partition values.

    Args:
        field: a field of the logical schema.
        mode: mapping mode of the table; under `none` leftover metadata of a mapping means nothing.

    Raises:
        InvalidTable: the table is mapped and the field has no physical name.
    """
    if mode == "none":
        return field.name
    name = field.metadata.get(PHYSICAL_NAME_KEY)
    if not isinstance(name, str) or not name:
        raise InvalidTable(
            f"the table maps columns by {mode}, and column {field.name} has no physical name "
            f"({PHYSICAL_NAME_KEY}): the schema is damaged; restore an older version of the table",
            column=field.name,
        )
    return name


def field_id(field: StructField) -> int | None:
    """The column id of a field, or None where it has none."""
    value = field.metadata.get(ID_KEY)
    return value if isinstance(value, int) else None
