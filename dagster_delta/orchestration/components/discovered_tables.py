"""The tables below a root, their asset keys, and metadata from their logs that can be stored."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from dagster import AssetKey, MetadataValue, TableSchema

from dagster_delta.errors import DeltaError, InvalidArgument
from dagster_delta.orchestration.metadata_keys import RawMetadata
from dagster_delta.orchestration.table_metadata import table_columns
from dagster_delta.protocol.schema import StructType
from dagster_delta.storage import open_store
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.table_discovery import find_tables

_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_.-]")

_log = logging.getLogger(__name__)

# Opening a table waits for storage, not for the CPU.
_TABLES_AT_ONCE = 16


class DiscoveredTable(msgspec.Struct, frozen=True):
    """A table, with metadata of its latest version."""

    uri: str
    description: str | None = None
    schema_string: str | None = None
    """As in the log; None if the table could not be opened."""
    partition_columns: tuple[str, ...] = ()

    def metadata(self) -> RawMetadata:
        """Metadata for the definition of its asset."""
        if self.schema_string is None:
            return {}
        columns = table_columns(StructType.from_json(self.schema_string), self.partition_columns)
        return {"dagster/column_schema": MetadataValue.table_schema(TableSchema(columns))}


class Discovery(msgspec.Struct, frozen=True):
    """The tables discovered below a root."""

    root: str
    """Location of the root, in its store's spelling."""
    tables: tuple[DiscoveredTable, ...]


def discover_tables(root: str, storage_options: Mapping[str, object]) -> Discovery:
    """The tables at or below a root.

    A table that cannot be opened is included, without its columns; the log says why.
    """
    uris = find_tables(root, storage_options)
    with ThreadPoolExecutor(_TABLES_AT_ONCE) as threads:
        tables = tuple(threads.map(lambda uri: _describe(uri, storage_options), uris))
    return Discovery(open_store(root, storage_options).location.uri.rstrip("/"), tables)


def _describe(uri: str, storage_options: Mapping[str, object]) -> DiscoveredTable:
    try:
        metadata = DeltaTable(uri, storage_options=storage_options).metadata()
    except DeltaError as error:
        _log.warning("the columns of %s stay unknown: %s", uri, error)
        return DiscoveredTable(uri)
    partition_columns = tuple(metadata.partition_columns)
    return DiscoveredTable(uri, metadata.description, metadata.schema_string, partition_columns)


def path_below(root: str, uri: str) -> str:
    """Path of a table relative to the root, both in their store's spelling; empty for the root
    itself.
    """
    root, uri = root.rstrip("/"), uri.rstrip("/")
    if uri != root and not uri.startswith(f"{root}/"):
        raise InvalidArgument(f"The table {uri} does not lie below {root}")
    return uri[len(root) + 1 :]


def table_key(prefix: Sequence[str], root: str, uri: str) -> AssetKey:
    """Key of the asset of a table: the prefix, and its path below the root.

    A table at the root itself is named by the last part of its location. Characters that Dagster
    does not accept become underscores.
    """
    path = path_below(root, uri) or uri.rstrip("/").rsplit("/", 1)[-1]
    parts = [_NOT_IN_KEYS.sub("_", part) for part in path.split("/")]
    return AssetKey([*prefix, *parts])
