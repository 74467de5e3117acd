"""Reading row changes: the files that hold them, each with what is the same for all its rows.

What a file does not say, its columns of partition values say: version and time of the commit, and
for files of the table what became of their rows. So both engines read changes like rows.

Spec: Add CDC File (Reader Requirements for AddCDCFile); Deletion Vectors.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from dagster_delta.engines.arrow.change_data_files import CHANGE_TYPE_COLUMN
from dagster_delta.engines.parquet.read.data_file import DataFile
from dagster_delta.engines.parquet.read.data_file_reader import DataFileReader
from dagster_delta.engines.parquet.read.ordered_prefetch import BatchSource
from dagster_delta.engines.parquet.read.reader import deletion_vectors_of, read_ahead
from dagster_delta.engines.parquet.read.source import count_file_rows
from dagster_delta.engines.rows.deletion_vector_loader import DeletionVectorLoader
from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.features.column_mapping import PHYSICAL_NAME_KEY
from dagster_delta.protocol.features.deletion_vectors import encode_inline
from dagster_delta.protocol.log.tail import deletion_vector_column
from dagster_delta.protocol.schema import (
    PrimitiveType,
    StructField,
    StructType,
    nullable_field,
)
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.table_configuration import TableConfiguration
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from dagster_delta.engines.sql.expressions import SqlExpression

__all__ = [
    "COMMIT_TIMESTAMP_COLUMN",
    "COMMIT_VERSION_COLUMN",
    "ChangeFileSet",
    "feed_configuration",
    "read_changes",
    "with_plain_vectors",
]

COMMIT_VERSION_COLUMN = "_commit_version"
COMMIT_TIMESTAMP_COLUMN = "_commit_timestamp"

_COMMIT_COLUMNS = {COMMIT_VERSION_COLUMN: "long", COMMIT_TIMESTAMP_COLUMN: "timestamp"}
_ROWS_AT_ONCE = 10_000
_LOADING_THREADS = 16


def feed_configuration(
    configuration: TableConfiguration, *, has_change_type: bool
) -> TableConfiguration:
    """The table's configuration with the columns of the feed, the commit's as partition columns.

    Every column may be null: in rows from before a column came, or before it was NOT NULL, it is.

    Args:
        configuration: of the version whose schema the rows are read with.
        has_change_type: whether the files say row by row what became of it; else that is a
            partition column as well.

    Raises:
        InvalidTable: the table has a column of such a name itself.
    """
    types = {CHANGE_TYPE_COLUMN: "string", **_COMMIT_COLUMNS}
    taken = [name for name in types if configuration.schema.get(name) is not None]
    if taken:
        raise InvalidTable(
            f"the table has a column {taken[0]}, which is the name of a column of the change data "
            "feed: rename it",
            column=taken[0],
        )
    is_mapped = configuration.column_mapping_mode != "none"
    fields = [
        StructField(
            name, PrimitiveType(kind), metadata={PHYSICAL_NAME_KEY: name} if is_mapped else {}
        )
        for name, kind in types.items()
    ]
    constants = [*_COMMIT_COLUMNS] if has_change_type else [*types]
    metadata = msgspec.structs.replace(
        configuration.metadata,
        schema_string=StructType((*map(nullable_field, configuration.schema), *fields)).to_json(),
        partition_columns=(*configuration.metadata.partition_columns, *constants),
    )
    return TableConfiguration(configuration.protocol, metadata)


@dataclass(frozen=True, slots=True)
class ChangeFileSet:
    """Files with changes that are read in one way."""

    configuration: TableConfiguration
    """See `feed_configuration`."""
    files: Any
    """`pa.Table` of CHANGE_FILE_SCHEMA, by ascending version."""
    where: SqlExpression | None
    """Exact row filter; None where none is needed."""


def read_changes(
    store: ObjectStore, sets: Sequence[ChangeFileSet], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The changed rows of all sets by ascending version, decoded by several threads.

    Args:
        store: store of the table.
        sets: whose files do not belong to the same versions.
        columns: of the feed, in order.

    Raises:
        DataFileMissing, CorruptDeletionVector, InvalidTable, StorageFailure, InvalidArgument (from
        a filter).
    """
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
            expected_vectors=deletion_vectors_of(changes.files.filter(_is_whole(changes.files))),
        )
        self._selections = DeletionVectorLoader(store)
        # A file that lost rows and got others back stands there twice, with the same two vectors.
        self._load = lru_cache(maxsize=2)(self._load_vector)

    def versioned_sources(self) -> Iterator[tuple[int, BatchSource]]:
        for row in _rows(self._files):
            file = self._data_file(row)
            if file is not None:
                for source in self._reader.sources([file]):
                    yield row["commit_version"], source

    def _data_file(self, row: dict[str, Any]) -> DataFile | None:
        """The file with the rows to read; None where there are none."""
        file = DataFile.from_row(row)
        if row["selection"] is None:
            return file
        selection = DeletionVectorDescriptor(**row["selection"])
        selected = self._load(selection, file.path)
        if file.deletion_vector is not None:
            selected = selected - self._load(file.deletion_vector, file.path)
        return replace(file, deletion_vector=None, selected=selected) if selected else None

    def _load_vector(self, vector: DeletionVectorDescriptor, data_file: str) -> BitMap64:
        return self._selections.load(vector, data_file=data_file)


def _rows(files: Any) -> Iterator[dict[str, Any]]:
    for chunk in files.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from chunk.to_pylist()


def _is_whole(files: Any) -> Any:
    return pc.is_null(files["selection"])


def with_plain_vectors(files: Any, store: ObjectStore) -> Any:
    """The same files without selections: deletion vectors hide what is not selected instead.

    Args:
        files: `pa.Table` of CHANGE_FILE_SCHEMA.
        store: store of the table.

    Raises:
        DataFileMissing, CorruptDeletionVector, InvalidTable, StorageFailure.
    """
    whole = files.filter(_is_whole(files))
    partial = files.filter(pc.is_valid(files["selection"]))
    if not partial.num_rows:
        return whole
    hidden, stats = _hide_unselected(partial, store)
    for name, column in (("deletion_vector", hidden), ("stats", stats)):
        partial = partial.set_column(files.schema.get_field_index(name), name, column)
    shown = pc.is_valid(partial["deletion_vector"])
    return pa.concat_tables([whole, partial.filter(shown)])


def _hide_unselected(files: Any, store: ObjectStore) -> tuple[Any, Any]:
    """Per file a vector of the rows that are not selected (none where no row is), and statistics
    with the number of rows, which readers of vectors need.
    """
    loader = DeletionVectorLoader(store)
    counts = parse_statistics_json(files["stats"], ())["num_records"].to_pylist()

    def hide(row: dict[str, Any], known: int | None) -> tuple[DeletionVectorDescriptor | None, int]:
        path = decode_path(row["path"])
        selected = loader.load(DeletionVectorDescriptor(**row["selection"]), data_file=path)
        if row["deletion_vector"] is not None:
            vector = DeletionVectorDescriptor(**row["deletion_vector"])
            selected = selected - loader.load(vector, data_file=path)
        if not selected:
            return None, 0
        count = count_file_rows(store, path) if known is None else known
        hidden = BitMap64()
        hidden.add_range(0, count)
        return encode_inline(hidden - selected), count

    with ThreadPoolExecutor(_LOADING_THREADS) as pool:
        found = list(pool.map(hide, _rows(files), counts))
    stats = [f'{{"numRecords":{count}}}' for _, count in found]
    return deletion_vector_column([vector for vector, _ in found]), string_column(stats)
