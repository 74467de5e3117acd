"""Live files as the actions that remove them from a table, or add them again.

Spec: Add File and Remove File.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from dagster_delta.protocol.actions import AddFile, DeletionVectorDescriptor, RemoveFile
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA

_T = TypeVar("_T")

REMOVED_COLUMNS = (
    "path",
    "partition_values",
    "size_bytes",
    "deletion_vector",
    "base_row_id",
    "default_row_commit_version",
    "tags",
)
"""Columns of LIVE_FILE_SCHEMA that a tombstone needs."""


def tombstones(files: pa.Table, now_ms: int, *, data_change: bool = True) -> tuple[RemoveFile, ...]:
    """Removes of live files.

    `data_change` is False if the rows stay in the table in other files; the time is in milliseconds
    since the epoch.
    """
    return tuple(
        tombstone(row, now_ms, data_change=data_change)
        for row in files.select(REMOVED_COLUMNS).to_pylist()
    )


def tombstone(row: Mapping[str, Any], now_ms: int, *, data_change: bool = True) -> RemoveFile:
    """The remove of one live file, from its row of LIVE_FILE_SCHEMA. The time is in milliseconds
    since the epoch.
    """
    return RemoveFile(
        path=row["path"],
        deletion_timestamp_ms=now_ms,
        data_change=data_change,
        extended_file_metadata=True,
        partition_values=dict(row["partition_values"] or ()),
        size_bytes=row["size_bytes"],
        tags=_tags(row),
        deletion_vector=descriptor_of(row),
        base_row_id=row["base_row_id"],
        default_row_commit_version=row["default_row_commit_version"],
    )


def added_again(files: pa.Table, *, data_change: bool = True) -> Iterator[AddFile]:
    """Adds of files that were live before.

    `data_change` is False if the rows are already in the table in other files.
    """
    for row in files.select(LIVE_FILE_SCHEMA.names).to_pylist():
        yield added_row(row, data_change=data_change)


def added_row(row: Mapping[str, Any], *, data_change: bool = True) -> AddFile:
    """The add of one live file, from its row of LIVE_FILE_SCHEMA."""
    return AddFile(
        path=row["path"],
        partition_values=dict(row["partition_values"] or ()),
        size_bytes=row["size_bytes"],
        modification_time_ms=row["modification_time_ms"],
        data_change=data_change,
        stats=row["stats"],
        tags=_tags(row),
        deletion_vector=descriptor_of(row),
        base_row_id=row["base_row_id"],
        default_row_commit_version=row["default_row_commit_version"],
        clustering_provider=row["clustering_provider"],
    )


def file_table(files: Iterable[AddFile]) -> pa.Table:
    """New files without deletion vectors, as a `pa.Table` of LIVE_FILE_SCHEMA."""
    rows = [
        {
            "path": file.path,
            "partition_values": list(file.partition_values.items()),
            "size_bytes": file.size_bytes,
            "modification_time_ms": file.modification_time_ms,
            "stats": file.stats,
        }
        for file in files
    ]
    return pa.Table.from_pylist(rows, LIVE_FILE_SCHEMA)


def split_by_size(
    items: Iterable[_T], size_of: Callable[[_T], int], max_bytes: int
) -> Iterator[list[_T]]:
    """The items in batches of at most `max_bytes`, or of one item."""
    batch: list[_T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and total + size > max_bytes:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch


def _tags(row: Mapping[str, Any]) -> dict[str, str | None] | None:
    return None if row["tags"] is None else dict(row["tags"])


def descriptor_of(row: Mapping[str, Any]) -> DeletionVectorDescriptor | None:
    """The deletion vector of one live file, from its row of LIVE_FILE_SCHEMA."""
    fields = row["deletion_vector"]
    return None if fields is None else DeletionVectorDescriptor(**fields)
