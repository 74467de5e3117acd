"""The columns that row changes have in addition to those of their table.

Spec: Change Data Files; Add CDC File.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.features.column_mapping import PHYSICAL_NAME_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType, nullable_field

CHANGE_TYPE_COLUMN = "_change_type"
COMMIT_VERSION_COLUMN = "_commit_version"
COMMIT_TIMESTAMP_COLUMN = "_commit_timestamp"

RowChangeType: TypeAlias = Literal["insert", "delete", "update_preimage", "update_postimage"]

_COMMIT_COLUMNS = {COMMIT_VERSION_COLUMN: "long", COMMIT_TIMESTAMP_COLUMN: "timestamp"}


def change_data_configuration(configuration: TableConfiguration) -> TableConfiguration:
    """The table's configuration with the column for the change type."""
    field = StructField(
        CHANGE_TYPE_COLUMN,
        PrimitiveType("string"),
        # Readers find it by its own name, with or without column mapping; it has no id.
        metadata={PHYSICAL_NAME_KEY: CHANGE_TYPE_COLUMN},
    )
    return configuration.with_schema(StructType((*configuration.schema.fields, field)))


def feed_configuration(
    configuration: TableConfiguration, *, has_change_type: bool
) -> TableConfiguration:
    """The table's configuration with the columns of the feed; columns about the commit are
    partition columns.

    Every column may be null: older rows predate the column, or its NOT NULL. Without a change type
    per row in the files, it is a partition column too. A column of the table with such a name is an
    InvalidTable.
    """
    types = {CHANGE_TYPE_COLUMN: "string", **_COMMIT_COLUMNS}
    taken = [name for name in types if configuration.schema.get(name) is not None]
    if taken:
        raise InvalidTable(
            f"the table has a column {taken[0]}, which is the name of a column of the change data "
            "feed: rename it",
            column=taken[0],
        )
    is_mapped = configuration.column_mapping_mode != "none"
    fields = [
        StructField(
            name, PrimitiveType(kind), metadata={PHYSICAL_NAME_KEY: name} if is_mapped else {}
        )
        for name, kind in types.items()
    ]
    constants = [*_COMMIT_COLUMNS] if has_change_type else [*types]
    metadata = msgspec.structs.replace(
        configuration.metadata,
        schema_string=StructType((*map(nullable_field, configuration.schema), *fields)).to_json(),
        partition_columns=(*configuration.metadata.partition_columns, *constants),
    )
    return TableConfiguration(configuration.protocol, metadata)
