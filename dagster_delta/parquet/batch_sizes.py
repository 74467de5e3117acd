"""The number of rows to decode at once, so that a record batch is bounded in bytes.

A footer gives the size of the encoded values. A dictionary entry is stored once and may be the
value of millions of rows, so the decoded size is measured while the rows are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import dagster_delta.arrow_compute as pc

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
            size_bytes += max(chunk.total_uncompressed_size, chunk.num_values * _width(column))
            is_certain = is_certain and not may_expand(chunk, column)
        self._most = BATCH_ROWS if is_certain else _FIRST_ROWS
        self._position = 0
        self.rows = self._fitting(size_bytes, row_group.num_rows)
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
        fitting = self._fitting(size_bytes, batch.num_rows)
        # A batch that ends at the end of a deletion vector's container is masked faster.
        self.rows = min(fitting, BATCH_ROWS - self._position % BATCH_ROWS)

    def _fitting(self, size_bytes: float, num_rows: int) -> int:
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


def _width(column: pq.ColumnSchema) -> float:
    """Arrow bytes of a value, without the bytes of text."""
    if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
        return max(_DEFAULT_WIDTH, int(column.length))
    return _WIDTHS.get(column.physical_type, _DEFAULT_WIDTH)


def _value_bytes(column: pa.Array) -> NDArray[Any]:
    """The bytes of the value of each row, as an array of numpy."""
    lengths = pc.cast(pc.binary_length(column.dictionary), pa.int64())
    return np.from_dlpack(pc.fill_null(lengths.take(column.indices), 0))
