"""Metadata about one version of a table for the Dagster UI, from the log alone."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any

import dagster as dg

from dagster_delta.errors import DeltaError, TableNotFound
from dagster_delta.evolution.column_paths import dotted
from dagster_delta.orchestration.metadata_keys import DETAILS, RawMetadata, RawMetadataValue, shown
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.types import sql_type_name
from dagster_delta.storage.locations import holds_password, local_root, scheme_of
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.clustering import table_clustering
from dagster_delta.table.read.snapshot import Snapshot

DELTA_KIND = "deltalake"
"""Kind of an asset that is a Delta table; the UI has an icon for it."""

_log = logging.getLogger(__name__)

IO_MANAGER_KEY = "dagster/io_manager_key"
"""Metadata key that names the IO manager of an asset, for code that has only its spec."""


def op_name(key: dg.AssetKey, prefix: str = "") -> str:
    """Name of the op of an asset that Dagster accepts, unique per key."""
    parts = [re.sub(r"\W|__", "_", part, flags=re.ASCII) for part in key.path]
    name = prefix + "__".join(parts)
    if parts == list(key.path):
        return name
    return f"{name}_{sha256(key.to_user_string().encode()).hexdigest()[:8]}"


def definition_metadata(uri: str, **further: RawMetadataValue) -> RawMetadata:
    """Metadata for the definition of the asset of a table: its location, unless that holds a
    password, and further keys such as `table_name` and `column_schema`.
    """
    path = local_root(uri) if scheme_of(uri) in {None, "file"} else uri
    return shown(
        {
            "dagster/uri": None if holds_password(uri) else path,
            **{f"dagster/{key}": value for key, value in further.items()},
        }
    )


def columns_from_log(
    uri: str, storage_options: Mapping[str, Any], key: dg.AssetKey
) -> dg.TableSchemaMetadataValue | None:
    """The columns of a table, read while definitions are loaded; None if there is no table, or if
    it cannot be opened, which is logged.
    """
    try:
        snapshot = DeltaTable(uri, storage_options=storage_options).snapshot()
        return dg.MetadataValue.table_schema(table_schema(snapshot.configuration))
    except TableNotFound:
        return None
    except (DeltaError, OSError) as error:
        _log.warning("the columns of %s are not shown: %s", key.to_user_string(), error)
        return None


def table_schema(configuration: TableConfiguration) -> dg.TableSchema:
    """The columns of a table with their types, nullability, comments and constraints."""
    invariants = dict(configuration.invariants)
    columns = table_columns(configuration.schema, configuration.partition_columns, invariants)
    checks = [f"{name}: {sql}" for name, sql in configuration.properties.constraints.items()]
    return dg.TableSchema(
        columns, constraints=dg.TableConstraints(other=checks) if checks else None
    )


def table_columns(
    schema: StructType,
    partition_columns: Collection[str],
    invariants: Mapping[str, str] | None = None,
) -> list[dg.TableColumn]:
    """The columns of a table with their types in SQL, which the UI has icons for."""
    return [
        dg.TableColumn(
            name=field.name,
            type=sql_type_name(field.data_type),
            description=field.comment,
            constraints=dg.TableColumnConstraints(
                nullable=field.nullable,
                other=[rule] if (rule := (invariants or {}).get(field.name)) else [],
            ),
            tags={"delta/partition_column": ""} if field.name in partition_columns else None,
        )
        for field in schema
    ]


def table_metadata(snapshot: Snapshot, *, uri: str, table_name: str | None) -> RawMetadata:
    """Metadata about one version of a table; `table_name` is `schema.table`, if there is such a
    name.
    """
    return shown(
        {
            "delta/version": snapshot.version,
            **_totals(snapshot),
            "dagster/last_updated_timestamp": dg.MetadataValue.timestamp(
                snapshot.timestamp_ms / 1000
            ),
            "dagster/table_name": table_name,
            "dagster/uri": uri,
            "dagster/column_schema": dg.MetadataValue.table_schema(
                table_schema(snapshot.configuration)
            ),
            DETAILS: {
                "description": snapshot.metadata.description,
                "partition_columns": ", ".join(snapshot.configuration.partition_columns),
                "clustering_columns": ", ".join(map(dotted, table_clustering(snapshot) or ())),
            },
        }
    )


def _totals(snapshot: Snapshot) -> dict[str, int | None]:
    """Files, bytes and rows, if the log has them; for a large table, figures that are not in its
    checksum are omitted.
    """
    names = ("delta/live_files", "dagster/size_bytes", "dagster/row_count")
    found: tuple[int | None, ...] = ()
    if not snapshot.is_large_and_unread:
        found = (snapshot.num_files, snapshot.size_bytes, snapshot.num_records)
    elif snapshot.checksum is not None:
        found = (snapshot.checksum.num_files, snapshot.checksum.size_bytes, None)
    return dict(zip(names, found, strict=False))
