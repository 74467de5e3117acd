"""The tables below a root and metadata from their logs, in a form that can be stored."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec
from dagster import MetadataValue, TableColumn, TableColumnConstraints, TableSchema

from dagster_delta.errors import DeltaError
from dagster_delta.orchestration.metadata_values import RawMetadata
from dagster_delta.storage import open_store
from dagster_delta.table.table_discovery import find_tables

_log = logging.getLogger(__name__)

# Opening a table waits for storage, not for the CPU.
_TABLES_AT_ONCE = 16


class DiscoveredColumn(msgspec.Struct, frozen=True):
    """A top-level column of a table's schema."""

    name: str
    type: str
    nullable: bool
    comment: str | None


class DiscoveredTable(msgspec.Struct, frozen=True):
    """A table, with metadata of its latest version."""

    uri: str
    description: str | None = None
    columns: tuple[DiscoveredColumn, ...] = ()
    """Empty if the table could not be opened."""
    partition_columns: tuple[str, ...] = ()

    def metadata(self) -> RawMetadata:
        """Metadata for the definition of its asset."""
        if not self.columns:
            return {}
        columns = [
            TableColumn(
                each.name,
                each.type,
                description=each.comment,
                constraints=TableColumnConstraints(nullable=each.nullable),
                tags={"delta/partition_column": ""} if each.name in self.partition_columns else {},
            )
            for each in self.columns
        ]
        return {"dagster/column_schema": MetadataValue.table_schema(TableSchema(columns))}


class Discovery(msgspec.Struct, frozen=True):
    """The tables discovered below a root."""

    root: str
    """Location of the root, in its store's spelling."""
    tables: tuple[DiscoveredTable, ...]

    def to_json(self) -> str:
        """The value as text."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @classmethod
    def from_json(cls, text: str) -> Discovery:
        """Parse the text of `to_json`."""
        return msgspec.json.decode(text, type=cls)


def discover_tables(root: str, storage_options: Mapping[str, object]) -> Discovery:
    """The tables at or below a root.

    A table that cannot be opened is included, without its columns; the log says why.
    """
    uris = find_tables(root, storage_options)
    with ThreadPoolExecutor(_TABLES_AT_ONCE) as threads:
        tables = tuple(threads.map(lambda uri: _describe(uri, storage_options), uris))
    return Discovery(open_store(root, storage_options).location.uri.rstrip("/"), tables)


def _describe(uri: str, storage_options: Mapping[str, object]) -> DiscoveredTable:
    from dagster_delta.table.delta_table import DeltaTable

    try:
        snapshot = DeltaTable(uri, storage_options=storage_options).snapshot()
    except DeltaError as error:
        _log.warning("the columns of %s stay unknown: %s", uri, error)
        return DiscoveredTable(uri)
    return DiscoveredTable(
        uri,
        snapshot.metadata.description,
        tuple(
            DiscoveredColumn(each.name, str(each.data_type), each.nullable, each.comment)
            for each in snapshot.schema
        ),
        tuple(snapshot.configuration.partition_columns),
    )
