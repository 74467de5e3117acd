"""Metadata of a write for the Dagster UI; all figures are from the log, without a scan."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dagster import (
    MetadataValue,
    TableColumn,
    TableColumnConstraints,
    TableConstraints,
    TableSchema,
)

from dagster_delta.evolution.column_paths import dotted
from dagster_delta.orchestration.io.asset_writer import WrittenAsset
from dagster_delta.orchestration.partitions.partitions import PartitionSelection
from dagster_delta.orchestration.partitions.row_counts import partition_row_counts
from dagster_delta.orchestration.table_history import history_metadata
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.table.write.clustering import table_clustering

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot

__all__ = ["commit_metadata", "rows_by_partition", "table_metadata", "table_schema"]

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def table_schema(configuration: TableConfiguration) -> TableSchema:
    """The columns of a table with their Delta types, nullability, comments and constraints."""
    invariants = dict(configuration.invariants)
    partition_columns = set(configuration.partition_columns)
    columns = [
        TableColumn(
            name=field.name,
            type=str(field.data_type),
            description=field.comment,
            constraints=TableColumnConstraints(
                nullable=field.nullable,
                other=[invariants[field.name]] if field.name in invariants else [],
            ),
            tags={"delta/partition_column": ""} if field.name in partition_columns else None,
        )
        for field in configuration.schema
    ]
    checks = [f"{name}: {sql}" for name, sql in configuration.properties.constraints.items()]
    return TableSchema(columns, constraints=TableConstraints(other=checks) if checks else None)


def table_metadata(snapshot: Snapshot, *, uri: str, table_name: str | None) -> dict[str, Any]:
    """Metadata about one version of a table.

    Args:
        snapshot: the version.
        uri: location of the table, without credentials.
        table_name: `schema.table`; None if there is no such name.
    """
    metadata: dict[str, Any] = {
        "dagster/column_schema": MetadataValue.table_schema(table_schema(snapshot.configuration)),
        "dagster/uri": MetadataValue.url(uri) if "://" in uri else MetadataValue.path(uri),
        "dagster/storage_kind": "deltalake",
        "dagster/last_updated_timestamp": MetadataValue.timestamp(snapshot.timestamp_ms / 1000),
        "delta/version": snapshot.version,
        **_totals(snapshot),
    }
    if table_name is not None:
        metadata["dagster/table_name"] = table_name
    if snapshot.metadata.description:
        metadata["delta/description"] = snapshot.metadata.description
    if clustering := table_clustering(snapshot):
        metadata["delta/clustering_columns"] = ", ".join(map(dotted, clustering))
    if snapshot.configuration.partition_columns:
        metadata["delta/partition_columns"] = ", ".join(snapshot.configuration.partition_columns)
    return metadata


def _totals(snapshot: Snapshot) -> dict[str, int]:
    """Files, bytes and rows, if the log has them; for a large table, figures that are not in its
    checksum are omitted.
    """
    if not snapshot.is_large_and_unread:
        found = (snapshot.num_files, snapshot.size_bytes, snapshot.num_records)
    elif snapshot.checksum is not None:
        found = (snapshot.checksum.num_files, snapshot.checksum.size_bytes, None)
    else:
        return {}
    names = ("delta/live_files", "dagster/size_bytes", "dagster/row_count")
    return {name: total for name, total in zip(names, found, strict=True) if total is not None}


def commit_metadata(written: WrittenAsset) -> dict[str, Any]:
    """The effect of one write, or why it did nothing, and earlier commits if requested."""
    metadata: dict[str, Any] = {"delta/mode": written.mode}
    if written.predicate is not None:
        metadata["delta/predicate"] = written.predicate
    if written.skipped_because is not None:
        metadata["delta/skipped"] = written.skipped_because
    if written.merge_type is not None:
        metadata["delta/merge_type"] = written.merge_type
    if written.compacted_version is not None:
        metadata["delta/compacted_version"] = written.compacted_version
    if written.attempts > 1:
        metadata["delta/attempts"] = written.attempts
    for name, value in written.metrics.items():
        metadata[f"delta/{_snake_case(name)}"] = value
    if written.column_lineage is not None:
        metadata["dagster/column_lineage"] = MetadataValue.column_lineage(written.column_lineage)
    return metadata | history_metadata(written.snapshot, written.history)


def rows_by_partition(written: WrittenAsset, selection: PartitionSelection) -> dict[str, int]:
    """Partition key to its current row count; keys with an unknown count are omitted."""
    large = written.snapshot.is_large_and_unread
    counts = {} if large else partition_row_counts(written.snapshot, selection)
    replaced = written.mode == "overwrite" and written.skipped_because is None
    if not counts and replaced and len(selection.keys) == 1:
        rows = written.metrics.get("numOutputRows")
        return {} if rows is None else {selection.keys[0]: int(rows)}
    return counts


def _snake_case(name: str) -> str:
    return _WORD_START.sub("_", name).lower()
