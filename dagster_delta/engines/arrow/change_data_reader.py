"""Reads row changes from their files, with the values that are the same for all rows of a file.

Columns of partition values give what a file does not have: version and time of the commit and, for
files of the table, the kind of change. So both engines read changes like rows.

Spec: Add CDC File (Reader Requirements for AddCDCFile); Deletion Vectors.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from dagster_delta.engines.plans import ChangeFileSet
from dagster_delta.parquet.data_file_reader import DataFileReader
from dagster_delta.parquet.deletion_vectors import DeletionVectorLoader
from dagster_delta.parquet.opened_file import DataFile
from dagster_delta.parquet.ordered_prefetch import BatchSource
from dagster_delta.parquet.reader import deletion_vectors_of, read_ahead
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.storage.object_store import ObjectStore

_ROWS_AT_ONCE = 10_000


def read_changes(
    store: ObjectStore, sets: Sequence[ChangeFileSet], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The changed rows of all sets by ascending version, decoded by several threads."""
    return read_ahead(store, _sources(store, sets, columns))


def _sources(
    store: ObjectStore, sets: Sequence[ChangeFileSet], columns: Sequence[str]
) -> Iterator[BatchSource]:
    streams = [_ChangeFileReader(store, each, columns).versioned_sources() for each in sets]
    for _, source in heapq.merge(*streams, key=lambda versioned: versioned[0]):
        yield source


class _ChangeFileReader:
    def __init__(self, store: ObjectStore, changes: ChangeFileSet, columns: Sequence[str]) -> None:
        self._files = changes.files
        self._reader = DataFileReader(
            store,
            changes.configuration,
            columns,
            where=changes.where,
            expected_vectors=deletion_vectors_of(
                changes.files.filter(pc.is_null(changes.files["selection"]))
            ),
        )
        selections = DeletionVectorLoader(store)
        # A file that lost rows and got others back occurs twice, with the same two vectors.
        self._load = lru_cache(maxsize=2)(
            lambda vector, data_file: selections.load(vector, data_file=data_file)
        )

    def versioned_sources(self) -> Iterator[tuple[int, BatchSource]]:
        for row in _rows(self._files):
            file = self._data_file(row)
            if file is not None:
                for source in self._reader.sources([file]):
                    yield row["commit_version"], source

    def _data_file(self, row: dict[str, Any]) -> DataFile | None:
        """The file with the rows to read; None if there are none."""
        file = DataFile.from_row(row)
        if row["selection"] is None:
            return file
        selection = DeletionVectorDescriptor(**row["selection"])
        selected = self._load(selection, file.path)
        if file.deletion_vector is not None:
            selected = selected - self._load(file.deletion_vector, file.path)
        return replace(file, deletion_vector=None, selected=selected) if selected else None


def _rows(files: pa.Table) -> Iterator[dict[str, Any]]:
    for chunk in files.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from chunk.to_pylist()
