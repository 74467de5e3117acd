"""One data file: as in the log, then opened with its footer read, then decoded in batches.

Batches are bounded in bytes. A footer gives the size of the encoded values; a dictionary entry is
stored once and may be the value of millions of rows, so the decoded size is measured while the rows
are read.

Spec: Add File and Remove File; Data Files; Deletion Vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.cached_property import cached_property
from dagster_delta.errors import (
    FILE_MISSING,
    DataFileMissing,
    DeltaError,
    InvalidTable,
    MemoryExhausted,
)
from dagster_delta.nested_arrays import (
    bits_of,
    leaf_ranges,
    mask_of,
    rows_without_columns,
    without_views,
)
from dagster_delta.parquet_format.footer import (
    ChunkStatistics,
    ParquetFooter,
    read_footer,
)
from dagster_delta.parquet_format.page_excerpt import PageExcerpt, extract_pages
from dagster_delta.parquet_format.reader import (
    column_ranges,
    decoding_pool,
    open_parquet_reader,
    storage_failure,
)
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.features.deletion_vectors import deleted_row_mask
from dagster_delta.protocol.log.replay import ROW_ID_COLUMNS
from dagster_delta.protocol.statistics.statistics import NUM_RECORDS, parse_statistics_json
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import FetchBudget, ObjectStore, RangeStore

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

BATCH_ROWS = 65_536
"""Maximum rows of a batch: a multiple of the rows in a container of a deletion vector."""
BATCH_BYTES = 32 * 1024 * 1024
"""Maximum Arrow bytes of a batch, unless one row alone has more."""

_FIRST_ROWS = 1024
_MAX_GROWTH = 64
_WIDTHS = {"BOOLEAN": 0.125, "INT32": 4, "FLOAT": 4}
_DEFAULT_WIDTH = 8
_EXPANDING_ENCODINGS = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY"})

_INT96_UNIT = "us"
"""INT96 is read as microseconds: it holds times outside the range of nanoseconds."""
STREAM_BYTES = 256 * 1024
"""Bytes read at once from a column of a local file: it takes a third less memory than the whole."""
_MAX_INDEX_BYTES = 2
"""Maximum bytes per value, dictionary included, of a repetitive column."""
_REMOTE_STREAM_BYTES = 1024 * 1024
"""Bytes read at once from a column, if a read costs a round trip."""
WIDE_ROW_GROUP_BYTES = 16 * 1024 * 1024
"""At least this many bytes of columns are decoded by several threads, column by column: a worker
that reads ahead in one row group would fill the buffer and wait."""

_MAX_SHARE = 0.5
"""Above this part of the pages, leaving out the rest does not pay for copying them."""
_BLOCK_ROWS = 4096
"""Rows by which this is estimated, before the pages are known."""

_FILES_AT_ONCE = 10_000
_NEEDED_COLUMNS = ("path", "size_bytes", "partition_values", "deletion_vector")
_OPTIONAL_COLUMNS = (*ROW_ID_COLUMNS, "selection", NUM_RECORDS)


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
    """Indexes of the rows to read, if they are live; None for all."""
    selection: DeletionVectorDescriptor | None = None
    """Where `selected` is stored, if it is not known before the file is opened."""
    hidden: BitMap64 | None = None
    """Indexes of rows to skip besides the deleted ones."""
    base_row_id: int | None = None
    """Row id of the first row, if it was read from the log."""
    default_row_commit_version: int | None = None
    """Version of rows without a materialized one, if it was read from the log."""
    num_records: int | None = None
    """Rows by the log, deleted ones included; None if unknown or not read from it."""


def data_files(files: pa.Table) -> Iterator[DataFile]:
    """The files of a `pyarrow.Table` with columns of `LIVE_FILE_SCHEMA` or `CHANGE_FILE_SCHEMA`,
    numbered in order.
    """
    if NUM_RECORDS not in files.column_names and "stats" in files.column_names:
        counts = parse_statistics_json(files["stats"], ())[NUM_RECORDS]
        files = files.append_column(NUM_RECORDS, counts)
    optional = (name for name in _OPTIONAL_COLUMNS if name in files.column_names)
    for ordinal, row in enumerate(file_rows(files.select([*_NEEDED_COLUMNS, *optional]))):
        vector, selection = row["deletion_vector"], row.get("selection")
        yield DataFile(
            path=decode_path(row["path"]),
            size_bytes=row["size_bytes"],
            partition_values=dict(row["partition_values"] or ()),
            deletion_vector=None if vector is None else DeletionVectorDescriptor(**vector),
            ordinal=ordinal,
            selection=None if selection is None else DeletionVectorDescriptor(**selection),
            base_row_id=row.get("base_row_id"),
            default_row_commit_version=row.get("default_row_commit_version"),
            num_records=row.get(NUM_RECORDS),
        )


def file_rows(files: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of a `pyarrow.Table` of many files as Python values, not all of them at once."""
    for chunk in files.to_batches(max_chunksize=_FILES_AT_ONCE):
        yield from chunk.to_pylist()


class OpenedFile(msgspec.Struct, dict=True):
    """A data file whose footer has been read."""

    file: DataFile
    handle: pa.NativeFile
    """`pyarrow.NativeFile`; its reads at a position may come from several threads."""
    footer: pq.FileMetaData
    """`pyarrow.parquet.FileMetaData`."""
    arrow_schema: pa.Schema
    """`pyarrow.Schema` of the file."""
    statistics: ChunkStatistics
    is_remote: bool
    """Whether a read costs a round trip."""
    verifies_pages: bool
    """Whether to verify Parquet page checksums."""
    budget: FetchBudget
    """Of the files that are read together."""
    store: RangeStore | None = None
    """The store, if it fetches ranges together."""
    left_out: BitMap64 | None = None
    """Indexes of the rows that are deleted or hidden."""
    has_selective_pages: bool = True
    """Whether bounds of pages may rule out rows."""

    @cached_property
    def first_rows(self) -> list[int]:
        """Index in the file of the first row of each row group, the skipped ones included."""
        starts = [0]
        for group in range(self.footer.num_row_groups):
            starts.append(starts[-1] + self.footer.row_group(group).num_rows)
        return starts

    def may_hold_wanted(self, group: int) -> bool:
        """Whether any row of a row group is wanted, without regard to a filter."""
        start, end = self.first_rows[group], self.first_rows[group + 1]
        if self.left_out is not None and self.left_out.range_cardinality(start, end) == end - start:
            return False
        selected = self.file.selected
        return selected is None or selected.range_cardinality(start, end) > 0

    def wanted_rows(self, position: int, count: int) -> pa.BooleanArray | None:
        """A `pyarrow.BooleanArray` of the wanted rows; None for all."""
        wanted = None
        if self.left_out is not None:
            wanted = pc.invert(deleted_row_mask(self.left_out, position, count))
        if self.file.selected is not None:
            selected = deleted_row_mask(self.file.selected, position, count)
            wanted = selected if wanted is None else pc.and_(wanted, selected)
        return None if wanted is None or wanted.true_count == count else wanted

    def decode(self, group: int, parquet_columns: list[int]) -> Iterator[pa.RecordBatch]:
        """Parquet columns of a row group, as `pyarrow.RecordBatch`es of at most `BATCH_BYTES` after
        their dictionaries are expanded.
        """
        row_group = self.footer.row_group(group)
        dictionaries = self._choose_dictionaries(group, parquet_columns)
        sizes = BatchSizes(self.footer, group, parquet_columns, dictionaries)
        encoded = (row_group.column(column).total_uncompressed_size for column in parquet_columns)
        is_wide = sum(encoded) >= WIDE_ROW_GROUP_BYTES
        missing = row_group.num_rows
        # Use a separate reader: one reader must not decode on two threads.
        with self._open_reader(group, parquet_columns, dictionaries) as parquet:
            for batch in parquet.iter_batches(
                sizes.rows, [group], parquet_columns, use_threads=is_wide
            ):
                missing -= batch.num_rows
                sizes.observe(batch)
                # The decoder asks for the size again before each batch.
                parquet.set_batch_size(sizes.rows)
                yield from split_by_bytes(batch)
        # Arrow skips a page whose header, maybe damaged, says neither data nor dictionary.
        if missing:
            raise InvalidTable(
                f"the data file lacks {missing} of the {row_group.num_rows} rows of a row group: "
                "it is damaged; restore it from a copy, or restore the table to an older version"
            )

    def rows_at_once(self, group: int, parquet_columns: list[int]) -> int:
        """Number of rows of a row group that `decode_wanted` takes."""
        row_group = self.footer.row_group(group)
        encoded = sum(row_group.column(index).total_uncompressed_size for index in parquet_columns)
        most = BATCH_BYTES * row_group.num_rows // max(1, encoded)
        # A read per page would be a round trip.
        return 0 if self.is_remote or not parquet_columns else min(BATCH_ROWS, most)

    def decode_wanted(
        self, group: int, parquet_columns: list[int], start: int, mask: pa.BooleanArray
    ) -> Iterable[pa.RecordBatch] | None:
        """As `decode`, the wanted rows alone, and only the pages that hold them. None if decoding
        all pages takes less time.

        `start`: position in the row group of the first row of the mask; others are not wanted.
        """
        bits = bits_of(mask)
        blocks = np.logical_or.reduceat(bits, range(0, len(bits), _BLOCK_ROWS))
        is_sparse = np.mean(blocks) <= _MAX_SHARE
        if not is_sparse or mask.true_count > self.rows_at_once(group, parquet_columns):
            return None
        wanted = np.zeros(self.footer.row_group(group).num_rows, dtype=bool)
        wanted[start : start + len(bits)] = bits
        named = set(parquet_columns)
        columns = [
            leaves for leaves in leaf_ranges(list(self.arrow_schema)) if leaves.start in named
        ]
        share = _MAX_SHARE * len(bits) / len(wanted)
        found = extract_pages(self.handle, self.statistics, group, columns, wanted, share)
        if not found:
            return None
        arrays: dict[int, pa.ChunkedArray] = {}
        for part in found:
            rows = self._decode_excerpt(part)
            arrays |= zip((leaves.start for leaves in part.columns), rows.columns, strict=True)
        ordered = [arrays[leaf] for leaf in sorted(arrays)]
        rows = pa.Table.from_arrays(ordered, [*map(str, arrays)])
        batches = rows.combine_chunks(decoding_pool()).to_batches()
        return chain.from_iterable(map(split_by_bytes, batches))

    def _decode_excerpt(self, part: PageExcerpt) -> pa.Table:
        """The wanted rows of some pages."""
        handle = pa.BufferReader(part.data)
        footer = open_parquet_reader(handle, coerce_int96_timestamp_unit=_INT96_UNIT).metadata
        opened = replace(self, handle=handle, footer=footer)
        mask, position, batches = mask_of(part.wanted), 0, []
        for raw in opened.decode(0, [leaf for leaves in part.columns for leaf in leaves]):
            batches.append(filter_rows(raw, mask.slice(position, raw.num_rows))[0])
            position += raw.num_rows
        return pa.Table.from_batches(batches)

    def remote_ranges(self, group: int, parquet_columns: list[int]) -> list[tuple[int, int]]:
        """Offset and length of columns of a row group; empty if a read is not a round trip."""
        return column_ranges(self.footer, group, parquet_columns) if self.is_remote else []

    def _choose_dictionaries(self, group: int, parquet_columns: list[int]) -> list[int]:
        """The Parquet columns to decode as dictionaries: top-level text with few distinct values,
        which takes half the time, and with long entries. Any row may have such an entry, so the
        decoded size of rows is known only from their indexes into the dictionary.
        """
        repetitive, expandable = [], []
        for index in parquet_columns:
            chunk = self.footer.row_group(group).column(index)
            column = self.footer.schema.column(index)
            is_text = column.physical_type == "BYTE_ARRAY" and column.path == column.name
            if not is_text or not chunk.has_dictionary_page:
                continue
            if chunk.total_uncompressed_size <= chunk.num_values * _MAX_INDEX_BYTES:
                repetitive.append(index)
            elif may_expand(chunk, column):
                expandable.append(index)
        if self.is_remote or not expandable:
            # Checking a dictionary costs a round trip.
            return repetitive
        reader = self._open_parquet(self.handle, expandable, buffer_size=STREAM_BYTES)
        first = next(reader.iter_batches(1, [group], expandable, use_threads=False), None)
        # The columns of a batch are in the order of the file.
        entries = zip(sorted(expandable), first.columns if first is not None else (), strict=False)
        return repetitive + [
            index
            for index, column in entries
            if longest_entry(column.dictionary) * BATCH_ROWS > BATCH_BYTES
        ]

    @contextmanager
    def _open_reader(
        self, group: int, parquet_columns: list[int], dictionaries: list[int]
    ) -> Iterator[pq.core.ParquetReader]:
        """A reader of columns of a row group. If a read is a round trip, they are fetched ahead,
        or, while others hold too many bytes, read in large pieces.
        """
        ranges = self.remote_ranges(group, parquet_columns)
        checks = {"page_checksum_verification": self.verifies_pages}
        if ranges and self.store is not None:
            size = self.handle.size()
            with self.store.open_ranges(self.file.path, ranges, size, self.budget) as handle:
                yield self._open_parquet(
                    handle, dictionaries, buffer_size=_REMOTE_STREAM_BYTES, **checks
                )
            return
        size_bytes = sum(length for _, length in ranges)
        is_fetched = size_bytes > 0 and self.budget.take(size_bytes)
        buffer_bytes = _REMOTE_STREAM_BYTES if self.is_remote else STREAM_BYTES
        try:
            yield self._open_parquet(
                self.handle,
                dictionaries,
                # Columns that are fetched together are read whole.
                buffer_size=0 if is_fetched else buffer_bytes,
                pre_buffer=is_fetched,
                **checks,
            )
        finally:
            if is_fetched:
                self.budget.give_back(size_bytes)

    def _open_parquet(
        self,
        handle: pa.NativeFile,
        dictionaries: Sequence[int],
        *,
        pre_buffer: bool = False,
        **options: object,
    ) -> pq.core.ParquetReader:
        """A reader that decodes some Parquet columns into dictionary arrays."""
        return open_parquet_reader(
            handle,
            metadata=self.footer,
            read_dictionary=list(dictionaries) or None,
            pre_buffer=pre_buffer,
            coerce_int96_timestamp_unit=_INT96_UNIT,
            **options,
        )


def read_data_footer(handle: pa.NativeFile, num_records: int | None = None) -> ParquetFooter:
    """The footer of an open data file. InvalidTable if it contradicts itself or the log in the
    number of rows: readers would return fewer rows without an error.

    `num_records`: rows by the log; None if unknown.
    """
    footer = read_footer(handle, coerce_int96_timestamp_unit=_INT96_UNIT)
    metadata = footer.metadata
    groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    counts = {
        "its footer counts": metadata.num_rows,
        "its row groups hold": sum(groups),
        "the log counts": metadata.num_rows if num_records is None else num_records,
    }
    if len({*counts.values()}) > 1 or min(groups, default=0) < 0:
        found = ", ".join(f"{who} {count}" for who, count in counts.items())
        raise InvalidTable(
            f"the number of rows of the data file is uncertain ({found}): the file or its "
            "statistics are damaged; restore the file from a copy, or restore the table to an "
            "older version. If only the statistics are wrong, Spark reads the rows"
        )
    return footer


def filter_rows(rows: pa.RecordBatch, mask: pa.BooleanArray | None) -> tuple[pa.RecordBatch, int]:
    """The rows of a `pyarrow.RecordBatch` where the mask is true (all without one), counted."""
    if mask is None:
        return rows, rows.num_rows
    count = mask.true_count
    if count == rows.num_rows:
        return rows, count
    # A batch without columns cannot be filtered: it would lose its number of rows.
    if not rows.num_columns:
        return rows_without_columns(count), count
    # `RecordBatch.filter` has no parameter for an allocator.
    drop = pc.FilterOptions("drop")
    return pc.call_function("filter", [without_views(rows), mask], drop, decoding_pool()), count


class BatchSizes:
    """Chooses the size of each batch of a row group from the footer and the batches before it.

    `dictionaries`: indexes of those that are decoded as dictionaries, see `split_by_bytes`.
    """

    def __init__(
        self,
        footer: pq.FileMetaData,
        group: int,
        parquet_columns: Sequence[int],
        dictionaries: Sequence[int],
    ) -> None:
        row_group = footer.row_group(group)
        size_bytes = 0.0
        is_certain = True
        for index in parquet_columns:
            chunk, column = row_group.column(index), footer.schema.column(index)
            if index in dictionaries:
                continue
            size_bytes += max(
                chunk.total_uncompressed_size, chunk.num_values * _estimate_width(column)
            )
            is_certain = is_certain and not may_expand(chunk, column)
        self._most = BATCH_ROWS if is_certain else _FIRST_ROWS
        self._position = 0
        self.rows = self._limit_rows(size_bytes, row_group.num_rows)
        """Rows to decode next."""

    def observe(self, batch: pa.RecordBatch) -> None:
        """Choose the size of the next batch from a decoded one."""
        self._position += batch.num_rows
        self._most = min(BATCH_ROWS, _MAX_GROWTH * self._most)
        size_bytes = batch.nbytes - sum(
            column.dictionary.nbytes
            for column in batch.columns
            if pa.types.is_dictionary(column.type)
        )
        fitting = self._limit_rows(size_bytes, batch.num_rows)
        # A batch that ends at the end of a deletion vector's container is masked faster.
        self.rows = min(fitting, BATCH_ROWS - self._position % BATCH_ROWS)

    def _limit_rows(self, size_bytes: float, num_rows: int) -> int:
        if size_bytes * self._most <= BATCH_BYTES * num_rows:
            return self._most
        self._most = max(1, int(BATCH_BYTES * num_rows / size_bytes))
        return self._most


def may_expand(chunk: pq.ColumnChunkMetaData, column: pq.ColumnSchema) -> bool:
    """Whether decoded values may take many times the bytes of the encoded ones."""
    if column.physical_type != "BYTE_ARRAY" or _EXPANDING_ENCODINGS.isdisjoint(chunk.encodings):
        return False
    # No value is longer than the uncompressed chunk.
    return bool(min(chunk.num_values, BATCH_ROWS) * chunk.total_uncompressed_size > BATCH_BYTES)


def split_by_bytes(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of a batch that stay below `BATCH_BYTES` after dictionaries are expanded."""
    lengths = [
        (column, longest_entry(column.dictionary))
        for column in batch.columns
        if pa.types.is_dictionary(column.type)
    ]
    if batch.num_rows * sum(longest for _, longest in lengths) <= BATCH_BYTES:
        yield batch
        return
    weights = np.zeros(batch.num_rows, dtype=np.int64)
    for column, _ in lengths:
        weights += _value_bytes(column)
    ends = np.cumsum(weights)
    start = done_bytes = 0
    while start < batch.num_rows:
        end = int(np.searchsorted(ends, done_bytes + BATCH_BYTES, side="right"))
        end = max(end, start + 1)
        yield batch.slice(start, end - start)
        start, done_bytes = end, int(ends[end - 1])


def longest_entry(dictionary: pa.Array) -> int:
    """An upper bound for the bytes of the longest text of a `pyarrow.Array`, maybe sliced."""
    # Most dictionaries have few bytes in total, which is known without reading the entries.
    if dictionary.nbytes * BATCH_ROWS <= BATCH_BYTES or not len(dictionary):
        return int(dictionary.nbytes)
    return int(pc.max(pc.binary_length(dictionary)).as_py() or 0)


def _estimate_width(column: pq.ColumnSchema) -> float:
    """Arrow bytes of a value, without the bytes of text."""
    if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
        return max(_DEFAULT_WIDTH, int(column.length))
    return _WIDTHS.get(column.physical_type, _DEFAULT_WIDTH)


def _value_bytes(column: pa.Array) -> NDArray[Any]:
    """The bytes of the value of each row, as an array of numpy."""
    lengths = pc.cast(pc.binary_length(column.dictionary), pa.int64())
    return np.from_dlpack(pc.fill_null(lengths.take(column.indices), 0))


@contextmanager
def naming_data_file(store: ObjectStore, path: str) -> Iterator[None]:
    """Errors in this block name the table and the data file, and say whether the file is missing,
    the storage failed, or the bytes are bad.
    """
    table = store.location.uri
    try:
        yield
    except DeltaError as error:
        error.table = error.table or table
        error.file = error.file or path
        raise
    except FileNotFoundError as error:
        raise DataFileMissing(FILE_MISSING, table=table, file=path) from error
    except MemoryError as error:
        raise MemoryExhausted.of_file(error, table=table, file=path) from error
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        failure = storage_failure(error, table=table, file=path)
        if failure is not None:
            raise failure from error
        if store.local_path("") is None:
            # Over HTTP, the error page of a proxy does not decode either. Reading
            # from the store shows whether the object exists.
            with suppress(FileNotFoundError):
                store.read_range(path, 0, 1)
        raise InvalidTable(
            f"the data file cannot be read ({error}): it is cut or damaged; restore it from a "
            "copy, or restore the table to an older version",
            table=table,
            file=path,
        ) from error
