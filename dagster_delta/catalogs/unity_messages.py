"""What Unity Catalog says of a table, and what it is told of a commit.

Spec: Unity Catalog Managed Tables Specification 1.0 (Load a Table; Write a Commit; Catalog and log
consistency).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dagster_delta.protocol.actions import DomainMetadata, Metadata, Protocol
from dagster_delta.protocol.log.commit_file import CommitActions, in_commit_timestamp

CATALOG_FEATURE = "delta.feature.catalogManaged"
TABLE_ID_KEY = "io.unitycatalog.tableId"
"""Property that binds a table to its id in the catalog."""

_DOMAINS = {"delta.clustering": "clusteringColumns", "delta.rowTracking": "rowIdHighWaterMark"}
"""The metadata domains that the catalog knows, and the value that it takes of each."""
_SYNTHETIC = frozenset(
    {
        *("delta.minReaderVersion", "delta.minWriterVersion"),
        *("delta.lastUpdateVersion", "delta.lastCommitTimestamp"),
        *("delta.clusteringColumns", "clusteringColumns"),
        "delta.rowTracking.rowIdHighWaterMark",
    }
)
_FEATURE_PREFIX = "delta.feature."


class CatalogCommit(msgspec.Struct, frozen=True, rename="kebab"):
    """A commit that the catalog has accepted and that may not be published yet."""

    version: int
    timestamp: int
    """In-commit timestamp in milliseconds since the epoch."""
    file_name: str
    """Of the staged commit, below `_delta_log/_staged_commits`."""
    file_size: int
    """In bytes."""
    file_modification_timestamp: int
    """In milliseconds since the epoch."""


class TableMetadata(msgspec.Struct, frozen=True, rename="kebab"):
    """A table as the catalog describes it."""

    etag: str
    table_type: str
    """`MANAGED` or `EXTERNAL`."""
    table_uuid: str
    location: str
    columns: dict[str, Any]
    """Struct type in the catalog's spelling."""
    partition_columns: tuple[str, ...] | None = None
    properties: dict[str, str] = {}
    """Properties of the table, and keys that the catalog derives."""

    @property
    def is_catalog_managed(self) -> bool:
        """Whether commits go through the catalog."""
        return self.properties.get(CATALOG_FEATURE) == "supported"

    @property
    def log_properties(self) -> dict[str, str]:
        """The properties without the keys that the catalog derives."""
        return {
            key: value
            for key, value in self.properties.items()
            if key not in _SYNTHETIC and not key.startswith(_FEATURE_PREFIX)
        }


class LoadedTable(msgspec.Struct, frozen=True, rename="kebab"):
    """The answer to loading, creating and updating a table."""

    metadata: TableMetadata
    commits: tuple[CatalogCommit, ...] | None = None
    """Those that may not be published yet, newest first."""
    latest_table_version: int | None = None
    allowed_maintenance_operations: tuple[str, ...] | None = None
    """What the catalog permits besides what the protocol does."""


class StorageCredential(msgspec.Struct, frozen=True, rename="kebab"):
    """Credentials of a storage for a while. Never shown."""

    prefix: str = ""
    """URI below which they are valid."""
    operation: str = ""
    expiration_time_ms: int | None = None
    config: dict[str, str | None] = {}

    def __repr__(self) -> str:
        return f"StorageCredential({self.prefix!r})"


class Credentials(msgspec.Struct, frozen=True, rename="kebab"):
    """The answer to a request for credentials."""

    storage_credentials: tuple[StorageCredential, ...] = ()


class ProtocolMessage(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """A protocol in the catalog's spelling."""

    min_reader_version: int | None = None
    min_writer_version: int | None = None
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None

    @classmethod
    def of_action(cls, protocol: Protocol) -> ProtocolMessage:
        """The protocol of a log."""
        return cls(
            protocol.min_reader_version,
            protocol.min_writer_version,
            None if protocol.reader_features is None else tuple(protocol.reader_features),
            None if protocol.writer_features is None else tuple(protocol.writer_features),
        )


class StagingTable(msgspec.Struct, frozen=True, rename="kebab"):
    """A place for a new table, and what its first commit must have."""

    table_id: str
    location: str
    required_protocol: ProtocolMessage = ProtocolMessage()
    suggested_protocol: ProtocolMessage | None = None
    required_properties: dict[str, str | None] = {}
    suggested_properties: dict[str, str | None] | None = None

    def new_table_properties(self) -> dict[str, str]:
        """The properties of the first commit, features included. What a writer generates itself is
        left out.
        """
        found = dict[str, str]()
        suggested = self.suggested_protocol or ProtocolMessage()
        for protocol in (self.required_protocol, suggested):
            for feature in (*(protocol.reader_features or ()), *(protocol.writer_features or ())):
                found[_FEATURE_PREFIX + feature] = "supported"
        for properties in (self.suggested_properties or {}, self.required_properties):
            found |= {key: value for key, value in properties.items() if value is not None}
        return found


def describe_commit(
    commit: CommitActions, file: CatalogCommit, known: TableMetadata, before: Metadata | None
) -> list[dict[str, object]]:
    """The updates that tell the catalog of a commit, and of what it changes besides rows.

    Args:
        commit: the commit.
        file: its staged file.
        known: the table as the catalog describes it.
        before: metadata of the version before; None if it is not known.
    """
    return [{"action": "add-commit", "commit": file}, *_describe_changes(commit, known, before)]


def describe_external_change(
    commit: CommitActions, known: TableMetadata, before: Metadata | None
) -> list[dict[str, object]]:
    """The updates that tell the catalog how a commit changes an external table; none if it changes
    rows alone.
    """
    changes = list(_describe_changes(commit, known, before))
    if not changes:
        return []
    info = commit.commit_info or {}
    version: dict[str, object] = {
        "action": "update-metadata-snapshot-version",
        "last-commit-version": commit.version,
        "last-commit-timestamp-ms": commit_timestamp_ms(info),
    }
    return [*changes, version]


def describe_metrics(table_id: str, commit: CommitActions) -> dict[str, object]:
    """The report on the files and the rows of a commit."""
    counts: dict[str, object] = {
        "num-files-added": len(commit.adds),
        "num-bytes-added": sum(file.size_bytes for file in commit.adds),
        "num-files-removed": len(commit.removes),
        "num-bytes-removed": sum(file.size_bytes or 0 for file in commit.removes),
    }
    measured = (commit.commit_info or {}).get("operationMetrics") or {}
    for name, keys in _ROW_COUNTS.items():
        found = next((str(measured[key]) for key in keys if key in measured), "")
        if found.isdecimal():
            counts[name] = int(found)
    return {"table-id": table_id, "report": {"commit-report": counts}}


_ROW_COUNTS = {
    "num-rows-inserted": ("numTargetRowsInserted", "numOutputRows"),
    "num-rows-removed": ("numTargetRowsDeleted", "numDeletedRows"),
    "num-rows-updated": ("numTargetRowsUpdated", "numUpdatedRows"),
}
"""Of which operation metrics the catalog takes each count of rows, as delta-spark 4.3 does."""


def commit_timestamp_ms(info: Mapping[str, Any]) -> int:
    """The time of a commit by its commitInfo: in-commit, or else the writer's clock."""
    found = in_commit_timestamp(info)
    if found is not None:
        return found
    stated = info.get("timestamp")
    return stated if type(stated) is int else 0


def describe_new_table(
    name: str, location: str, table_type: str, commit: CommitActions
) -> dict[str, object]:
    """The request that registers a table by its first commit, which has protocol and metadata."""
    metadata, protocol = commit.metadata, commit.protocol
    assert metadata is not None and protocol is not None  # noqa: S101, PT018
    request: dict[str, object] = {
        "name": name,
        "location": location,
        "table-type": table_type,
        "columns": columns_of_schema(metadata.schema_string),
        "protocol": ProtocolMessage.of_action(protocol),
        "properties": dict(metadata.configuration),
        "last-commit-timestamp-ms": commit_timestamp_ms(commit.commit_info or {}),
    }
    if metadata.description is not None:
        request["comment"] = metadata.description
    if metadata.partition_columns:
        request["partition-columns"] = list(metadata.partition_columns)
    if domains := _known_domains(commit.domain_metadata):
        request["domain-metadata"] = domains
    return request


def changes_metadata(updates: list[dict[str, object]]) -> bool:
    """Whether updates change what the etag stands for."""
    return any(update["action"] not in ("add-commit", "set-domain-metadata") for update in updates)


def _describe_changes(
    commit: CommitActions, known: TableMetadata, before: Metadata | None
) -> Iterator[dict[str, object]]:
    if commit.metadata is not None:
        yield from _describe_metadata(commit.metadata, known, before)
    if commit.protocol is not None:
        yield {"action": "set-protocol", "protocol": ProtocolMessage.of_action(commit.protocol)}
    yield from _describe_domains(commit.domain_metadata)


def _describe_metadata(
    metadata: Metadata, known: TableMetadata, before: Metadata | None
) -> Iterator[dict[str, object]]:
    columns = columns_of_schema(metadata.schema_string)
    if columns != known.columns:
        yield {"action": "set-columns", "columns": columns}
    if tuple(metadata.partition_columns) != (known.partition_columns or ()):
        partitioning = list(metadata.partition_columns)
        yield {"action": "set-partition-columns", "partition-columns": partitioning}
    described = None if before is None else before.description
    if metadata.description != described:
        yield {"action": "set-table-comment", "comment": metadata.description or ""}
    held, wanted = known.log_properties, metadata.configuration
    changed = {key: value for key, value in wanted.items() if held.get(key) != value}
    if changed:
        yield {"action": "set-properties", "updates": changed}
    # Keys that the log never had are the catalog's own.
    earlier = held if before is None else before.configuration
    if gone := sorted(key for key in earlier if key in held and key not in wanted):
        yield {"action": "remove-properties", "removals": gone}


def _describe_domains(domains: tuple[DomainMetadata, ...]) -> Iterator[dict[str, object]]:
    if known := _known_domains(domains):
        yield {"action": "set-domain-metadata", "updates": known}
    gone = [domain.domain for domain in domains if domain.removed and domain.domain in _DOMAINS]
    if gone:
        yield {"action": "remove-domain-metadata", "domains": gone}


def _known_domains(domains: tuple[DomainMetadata, ...]) -> dict[str, object]:
    found = dict[str, object]()
    for domain in domains:
        key = _DOMAINS.get(domain.domain)
        if key is None or domain.removed:
            continue
        value = msgspec.json.decode(domain.configuration).get(key)
        if value is not None:
            found[domain.domain] = {key: value}
    return found


_TO_CATALOG = {
    "elementType": "element-type",
    "containsNull": "contains-null",
    "keyType": "key-type",
    "valueType": "value-type",
    "valueContainsNull": "value-contains-null",
}
"""Keys of array and map types, which the catalog spells with hyphens."""


def columns_of_schema(schema_string: str) -> dict[str, Any]:
    """The columns of a table in the catalog's spelling, by the schema of its log."""
    found = _respell_type(msgspec.json.decode(schema_string))
    assert isinstance(found, dict)  # noqa: S101
    return found


def _respell_type(data_type: Any) -> Any:  # noqa: ANN401
    if not isinstance(data_type, dict):
        return data_type
    spelled = {_TO_CATALOG.get(key, key): value for key, value in data_type.items()}
    for key in ("element-type", "key-type", "value-type"):
        if key in spelled:
            spelled[key] = _respell_type(spelled[key])
    if "fields" in spelled:
        spelled["fields"] = [
            {**field, "type": _respell_type(field["type"]), "metadata": field.get("metadata") or {}}
            for field in spelled["fields"]
        ]
    return spelled
