"""CREATE TABLE, which may replace a table: its rows leave, its older versions stay.

Spec: Protocol Evolution; Change Metadata; Clustered Table.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from dagster_delta.clock import now_ms
from dagster_delta.engines.embedded_values import EMBEDDED_VALUES
from dagster_delta.errors import CommitConflict, InvalidArgument, TableAlreadyExists
from dagster_delta.evolution.column_definition import schema_of_columns
from dagster_delta.evolution.properties import (
    COMMENT_KEY,
    is_protocol_property,
    normalize_properties,
)
from dagster_delta.evolution.table_definition import TableDefinition, define_table
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.schema import StructField, StructType
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from dagster_delta.storage.object_store import ObjectStore, is_in_catalog
from dagster_delta.table.catalog_rules import with_catalog_properties
from dagster_delta.table.operations.clustering import define_clustering
from dagster_delta.table.read.snapshot import Snapshot, before_creation
from dagster_delta.table.transaction.file_actions import REMOVED_COLUMNS, tombstones
from dagster_delta.table.transaction.transaction import Transaction

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_delta.evolution.column_definition import Column
    from dagster_delta.protocol.actions import DomainMetadata
    from dagster_delta.protocol.features.table_configuration import TableConfiguration
    from dagster_delta.table.table_handle import TableHandle

CreateMode = Literal["error", "ignore", "replace"]


def create(
    table_class: type[TableHandle],
    /,
    uri: str | os.PathLike[str],
    schema: StructType | pa.Schema | Sequence[Column | StructField],
    *,
    partition_by: Sequence[str] | None = None,
    cluster_by: Sequence[str] | None = None,
    properties: Mapping[str, object] | None = None,
    name: str | None = None,
    description: str | None = None,
    mode: CreateMode = "error",
    storage_options: Mapping[str, object] | None = None,
    store: ObjectStore | None = None,
    allow_column_changes: bool = True,
) -> TableHandle:
    """Create an empty table with the lowest protocol that its schema and properties need.

    Args:
        uri: path or URI of the table's root.
        schema: logical schema, partition columns included: a `StructType`, a
            `pyarrow.Schema`, or a list of `Column`s, which may have defaults, generation
            expressions or identity values.
        partition_by: partition columns, in directory order.
        cluster_by: columns that OPTIMIZE clusters rows by; not with partition columns.
        properties: table properties; `delta.*` names are checked.
        name: shown by catalogs and tools.
        description: shown by catalogs and tools.
        mode: what to do if a table exists: `error`, `ignore` (open it), or `replace` (a new
            version without rows; older versions stay readable).
        storage_options: credentials and settings of the storage.
        store: an opened store instead of `uri`'s own.
        allow_column_changes: as for the constructor.

    Raises:
        TableAlreadyExists: a table exists, and the mode is `error`.
        InvalidArgument: a column, a property or the mode is invalid.
        UnsupportedFeature: the table would need a feature that this library does not write.
        CommitConflict: a concurrent commit changed the table that is replaced.
    """
    table = table_class(
        uri,
        storage_options=storage_options,
        store=store,
        must_exist=False,
        allow_column_changes=allow_column_changes,
    )
    definition = definition_of(schema, partition_by, properties, name, description, cluster_by)
    table._snapshot = create_table(table.store, table._snapshot, definition, mode)
    return table


def create_table(
    store: ObjectStore, existing: Snapshot | None, definition: TableDefinition, mode: CreateMode
) -> Snapshot:
    """The new table; with the mode `ignore`, the one that exists."""
    if mode not in ("error", "ignore", "replace"):
        raise InvalidArgument(f"mode is 'error', 'ignore' or 'replace', not {mode!r}")
    if existing is not None and mode == "ignore":
        return existing
    if existing is not None and mode == "error":
        raise _already_exists(store)
    transaction = Transaction(store, existing)
    configuration, domains = define_new_table(store, definition, existing)
    transaction.stage_configuration(configuration)
    transaction.stage_domain(*domains)
    if existing is not None:
        transaction.stage_removed(tombstones(existing.live_files(REMOVED_COLUMNS), now_ms()))
        transaction.follow_rows_of(None)
        transaction.depend_on(ReadScope(whole_table=True))
    try:
        return transaction.commit(
            "CREATE TABLE" if existing is None else "CREATE OR REPLACE TABLE",
            parameters={
                "isManaged": is_in_catalog(store),
                "description": definition.description,
                "partitionBy": list(configuration.partition_columns),
                "clusterBy": list(definition.cluster_by),
                "properties": configuration.metadata.configuration,
            },
        ).snapshot
    except CommitConflict:
        # Another writer has created the table first, or changed it.
        if existing is not None or mode == "replace":
            raise
        if mode == "ignore":
            return Snapshot.load(store)
        raise _already_exists(store) from None


def define_new_table(
    store: ObjectStore, definition: TableDefinition, existing: Snapshot | None
) -> tuple[TableConfiguration, tuple[DomainMetadata, ...]]:
    """The configuration and the metadata domains of a new table, which may replace one."""
    properties = with_catalog_properties(store, definition.properties)
    configuration = define_table(
        replace(definition, properties=properties),
        table_id=str(uuid.uuid4()),
        created_time_ms=now_ms(),
        values=EMBEDDED_VALUES,
        replaces=existing.configuration if existing else None,
    )
    return define_clustering(configuration, definition.cluster_by, existing)


def snapshot_before_creation(
    store: ObjectStore, definition: TableDefinition
) -> tuple[Snapshot, tuple[DomainMetadata, ...]]:
    """A table without a version, for the statement whose commit creates it; its domains."""
    configuration, domains = define_new_table(store, definition, None)
    return before_creation(store, configuration), domains


def definition_of(
    schema: StructType | pa.Schema | Sequence[Column | StructField],
    partition_by: Sequence[str] | None,
    properties: Mapping[str, object] | None,
    name: str | None,
    description: str | None,
    cluster_by: Sequence[str] | None,
) -> TableDefinition:
    """A new table as its caller describes it."""
    if isinstance(schema, Sequence | Mapping):
        schema = schema_of_columns(schema)
    elif not isinstance(schema, StructType):
        schema = from_arrow_schema(schema)
    return TableDefinition(
        schema, partition_by or (), properties, name, description, cluster_by or ()
    )


def differing_properties(
    existing: Snapshot | None, properties: Mapping[str, object]
) -> dict[str, tuple[str | None, str]]:
    """Properties for a new table that an existing one has otherwise: its value and the given one,
    by name. Raises InvalidArgument for an invalid property, also if there is no table.
    """
    given = normalize_properties(properties)
    if existing is None:
        return {}
    present = {**existing.metadata.configuration, COMMENT_KEY: existing.metadata.description}
    return {
        key: (present.get(key), value)
        for key, value in sorted(given.items())
        if present.get(key) != value and not is_protocol_property(key)
    }


def _already_exists(store: ObjectStore) -> TableAlreadyExists:
    return TableAlreadyExists(
        'a table is there already; open it, or pass mode="ignore" or mode="replace"',
        table=store.location.uri,
    )
