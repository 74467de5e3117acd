"""One data file as in the log, before it is opened.

Spec: Add File and Remove File; Data Files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyroaring import BitMap64

from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.log.replay import ROW_ID_COLUMNS
from dagster_delta.protocol.values.partition_values import decode_path

_FILES_AT_ONCE = 10_000
_NEEDED_COLUMNS = ("path", "size_bytes", "partition_values", "deletion_vector")


class DataFile(msgspec.Struct, frozen=True):
    """One logical file of the table."""

    path: str
    """Decoded: relative to the table root, or absolute."""
    size_bytes: int
    partition_values: Mapping[str, str | None]
    """Serialised values by physical column name."""
    deletion_vector: DeletionVectorDescriptor | None
    ordinal: int = 0
    """Its index among the files that are read together."""
    selected: BitMap64 | None = None
    """Indexes of the live rows to read; None for all."""
    hidden: BitMap64 | None = None
    """Indexes of rows to skip besides the deleted ones."""
    base_row_id: int | None = None
    """Row id of the first row, if it was read from the log."""
    default_row_commit_version: int | None = None
    """Version of rows without a materialised one, if it was read from the log."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> DataFile:
        """The file of one row of `LIVE_FILE_SCHEMA`, as `to_pylist` gives it."""
        vector = row.get("deletion_vector")
        return cls(
            path=decode_path(row["path"]),
            size_bytes=row["size_bytes"],
            partition_values=dict(row["partition_values"] or ()),
            deletion_vector=None if vector is None else DeletionVectorDescriptor(**vector),
            base_row_id=row.get("base_row_id"),
            default_row_commit_version=row.get("default_row_commit_version"),
        )


def data_files(files: pa.Table) -> Iterator[DataFile]:
    """The files of a `pyarrow.Table` with columns of `LIVE_FILE_SCHEMA`, numbered in order."""
    names = [*_NEEDED_COLUMNS, *(each for each in ROW_ID_COLUMNS if each in files.column_names)]
    needed = files.select(names)
    ordinals = count()
    for chunk in needed.to_batches(max_chunksize=_FILES_AT_ONCE):
        for row in chunk.to_pylist():
            yield replace(DataFile.from_row(row), ordinal=next(ordinals))
