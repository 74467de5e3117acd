"""One data file with its footer read: its wanted rows, and their raw columns.

Spec: Data Files; Deletion Vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.cached_property import cached_property
from dagster_delta.errors import InvalidTable
from dagster_delta.parquet.batch_sizes import BatchSizes, split_by_bytes
from dagster_delta.parquet.source import (
    STREAM_BYTES,
    columns_with_long_entries,
    open_parquet,
    repetitive_columns,
)
from dagster_delta.protocol.checkpoint.parquet_footer import ChunkStatistics
from dagster_delta.protocol.checkpoint.parquet_reader import column_ranges
from dagster_delta.protocol.features.deletion_vectors import deleted_row_mask
from dagster_delta.storage.object_store import FetchBudget, RangeStore

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from dagster_delta.parquet.data_file import DataFile

_REMOTE_STREAM_BYTES = 1024 * 1024
"""Bytes read at once from a column, if a read costs a round trip."""
WIDE_ROW_GROUP_BYTES = 16 * 1024 * 1024
"""At least this many bytes of columns are decoded by several threads, column by column: a worker
that reads ahead in one row group would fill the buffer and wait."""


@dataclass
class OpenedFile:
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
    _wanted: dict[tuple[int, int], pa.BooleanArray | None] = field(default_factory=dict, init=False)

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
        if self.left_out is None and self.file.selected is None:
            return None
        # Columns that are read separately request the same rows.
        known = self._wanted.get((position, count))
        if known is None:
            known = self._wanted[position, count] = self._find_wanted(position, count)
        return None if known.true_count == count else known

    def _find_wanted(self, position: int, count: int) -> pa.BooleanArray:
        wanted = None
        if self.left_out is not None:
            wanted = pc.invert(deleted_row_mask(self.left_out, position, count))
        if self.file.selected is not None:
            selected = deleted_row_mask(self.file.selected, position, count)
            wanted = selected if wanted is None else pc.and_(wanted, selected)
        return wanted

    def decode(self, group: int, parquet_columns: list[int]) -> Iterator[pa.RecordBatch]:
        """Parquet columns of a row group, as `pyarrow.RecordBatch`es of at most `BATCH_BYTES` after
        their dictionaries are expanded.
        """
        row_group = self.footer.row_group(group)
        dictionaries = self._dictionaries(group, parquet_columns)
        sizes = BatchSizes(self.footer, group, parquet_columns, dictionaries)
        encoded = (row_group.column(column).total_uncompressed_size for column in parquet_columns)
        is_wide = sum(encoded) >= WIDE_ROW_GROUP_BYTES
        missing = row_group.num_rows
        # Use a separate reader: one reader must not decode on two threads.
        with self._reader(group, parquet_columns, dictionaries) as parquet:
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

    def remote_ranges(self, group: int, parquet_columns: list[int]) -> list[tuple[int, int]]:
        """Offset and length of columns of a row group; empty if a read is no round trip."""
        return column_ranges(self.footer, group, parquet_columns) if self.is_remote else []

    def _dictionaries(self, group: int, parquet_columns: list[int]) -> list[int]:
        """The Parquet columns to decode as dictionaries."""
        repetitive = repetitive_columns(self.footer, group, parquet_columns)
        if self.is_remote:
            # Checking the other dictionaries costs a round trip each.
            return repetitive
        rest = [index for index in parquet_columns if index not in repetitive]
        return [*repetitive, *columns_with_long_entries(self.handle, self.statistics, group, rest)]

    @contextmanager
    def _reader(
        self, group: int, parquet_columns: list[int], dictionaries: list[int]
    ) -> Iterator[pq.core.ParquetReader]:
        """A reader of columns of a row group. If a read is a round trip, they are fetched ahead,
        or, while others hold too many bytes, read in large pieces.
        """
        ranges = self.remote_ranges(group, parquet_columns)
        options = {
            "footer": self.footer,
            "dictionaries": dictionaries,
            "verifies_pages": self.verifies_pages,
        }
        if ranges and self.store is not None:
            size = self.handle.size()
            with self.store.open_ranges(self.file.path, ranges, size, self.budget) as handle:
                yield open_parquet(handle, buffer_bytes=_REMOTE_STREAM_BYTES, **options)
            return
        size_bytes = sum(length for _, length in ranges)
        is_fetched = size_bytes > 0 and self.budget.take(size_bytes)
        buffer_bytes = _REMOTE_STREAM_BYTES if self.is_remote else STREAM_BYTES
        try:
            yield open_parquet(
                self.handle,
                buffer_bytes=0 if is_fetched else buffer_bytes,
                fetches_ahead=is_fetched,
                **options,
            )
        finally:
            if is_fetched:
                self.budget.give_back(size_bytes)
