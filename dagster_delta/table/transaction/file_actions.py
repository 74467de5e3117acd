"""Live files as the actions that remove them from a table, or add them again, and the files that
hold their new deletion vectors.

Spec: Add File and Remove File; Deletion Vectors; Deletion Vector File Storage Format.
"""

from __future__ import annotations

import random
import string
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from dagster_delta.protocol.actions import AddFile, DeletionVectorDescriptor, RemoveFile
from dagster_delta.protocol.features.deletion_vectors import (
    deletion_vector_path,
    encode_deletion_vector,
    encode_deletion_vector_file,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.statistics.statistics import with_record_count
from dagster_delta.split_by_size import split_by_size
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.storage.unreferenced_files import CreatedFiles

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
        tags=_copy_tags(row),
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
        tags=_copy_tags(row),
        deletion_vector=descriptor_of(row),
        base_row_id=row["base_row_id"],
        default_row_commit_version=row["default_row_commit_version"],
        clustering_provider=row["clustering_provider"],
    )


def hiding(add: AddFile, vector: DeletionVectorDescriptor, num_records: int) -> AddFile:
    """A file of so many rows, deleted ones included, with another deletion vector."""
    # Spec: numRecords MUST be there and counts the deleted rows; bounds are not tight. A commit
    # without a vector for the file may have left it with other statistics.
    stats = with_record_count(add.stats, num_records, tight_bounds=False)
    return msgspec.structs.replace(add, deletion_vector=vector, stats=stats)


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


def _copy_tags(row: Mapping[str, Any]) -> dict[str, str | None] | None:
    return None if row["tags"] is None else dict(row["tags"])


def descriptor_of(row: Mapping[str, Any]) -> DeletionVectorDescriptor | None:
    """The deletion vector of one live file, from its row of LIVE_FILE_SCHEMA."""
    fields = row["deletion_vector"]
    return None if fields is None else DeletionVectorDescriptor(**fields)


FILE_BYTES = 32 * 1024 * 1024


class StoredVectors(msgspec.Struct, frozen=True):
    """Deletion vectors that the log may refer to."""

    descriptors: tuple[DeletionVectorDescriptor, ...]
    """One per vector, in order."""
    paths: tuple[str, ...]
    """The files that were created for them, relative to the table root."""


def store_deletion_vectors(
    store: ObjectStore,
    configuration: TableConfiguration,
    vectors: Sequence[BitMap64],
    *,
    file_bytes: int = FILE_BYTES,
) -> StoredVectors:
    """Descriptors of new deletion vectors, stored in files.

    There is one bitmap of row indexes per data file. A file holds up to `file_bytes` of them.
    If the store fails, files that were created are deleted as far as it allows.
    """
    descriptors: list[DeletionVectorDescriptor] = []
    with CreatedFiles(store) as created:
        # VACUUM of delta-spark fails on vectors in the log itself, so even small ones get a file.
        for together in split_by_size(vectors, _encoded_bytes, file_bytes):
            data, made = encode_deletion_vector_file(
                together, file_id=uuid.uuid4(), prefix=_choose_file_prefix(configuration)
            )
            path = deletion_vector_path(made[0])
            created.add([path])
            store.put(path, data)
            descriptors += made
    return StoredVectors(tuple(descriptors), created.paths)


def _encoded_bytes(vector: BitMap64) -> int:
    return len(encode_deletion_vector(vector))


def _choose_file_prefix(configuration: TableConfiguration) -> str:
    properties = configuration.properties
    if not properties.randomize_file_prefixes:
        return ""
    letters = random.choices(  # noqa: S311 - no secret depends on it
        string.ascii_letters + string.digits, k=properties.random_prefix_length
    )
    return "".join(letters)
