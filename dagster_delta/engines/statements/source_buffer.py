"""The source of a MERGE: read once, and kept until the merge ends, in memory or in a file.

A query or a stream must not be read twice: the second read could give other rows.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.data_input import RepeatableRows, to_reader
from dagster_delta.engines.statements.merge_plan import with_lengths
from dagster_delta.nested_arrays import index_of, rows_without_columns, runs_of
from dagster_delta.parquet.store_assignment import assign_batches
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema, to_arrow_schema
from dagster_delta.storage.scratch import scratch_directory

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MEMORY_BYTES = 256 * 1024 * 1024
_TAKEN_BYTES = 64 * 1024 * 1024


class SourceRows:
    """The rows of a source by their number.

    `data`: anything that an append takes, except a Spark frame.
    `directory`: where a large source may be stored; it must outlive the source.
    `memory_bytes`: Arrow bytes that are kept in memory; a larger source goes to a file, unless the
    caller's own table can be used as it is.
    """

    def __init__(self, data: object, directory: str, *, memory_bytes: int = _MEMORY_BYTES) -> None:
        reader = to_reader(data)
        self.schema: StructType = from_arrow_schema(reader.schema)
        """Logical schema."""
        batches = assign_batches(reader, self.schema, table="the source of the merge")
        # Nothing more than what the batches are needs to be known of nulls.
        self._arrow_schema = to_arrow_schema(self.schema)
        if isinstance(data, pa.Table) and reader.schema.equals(self._arrow_schema):
            # The batches are slices of it: it is in memory in any case, and a file only a copy.
            self._batches = [batch for batch in batches if batch.num_rows]
        else:
            self._batches = _keep_or_spill(batches, self._arrow_schema, directory, memory_bytes)
        sizes = [batch.num_rows for batch in self._batches]
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)

    def rows(self) -> RepeatableRows:
        """The rows, to be written as often as needed."""
        return RepeatableRows(
            self._arrow_schema,
            lambda: pa.RecordBatchReader.from_batches(self._arrow_schema, self._batches),
        )

    def padded(self, lengths: Mapping[str, int]) -> Self:
        """The rows with some columns as CHAR(n), by the length of each."""
        batches = self._batches
        for name, length in lengths.items():
            place = self.schema.names.index(name)
            batches = [
                batch.set_column(
                    place, batch.schema.field(place), pc.utf8_rpad(batch.column(place), length)
                )
                for batch in batches
            ]
        found = copy.copy(self)
        found.schema = with_lengths(self.schema, lengths)
        found._batches = batches  # noqa: SLF001  of this class
        return found

    @property
    def arrow_schema(self) -> pa.Schema:
        """The `pa.Schema` of the rows."""
        return self._arrow_schema

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self._starts[-1])

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows as `pyarrow.RecordBatch`es, each with the number of its first row."""
        for start, batch in zip(self._starts, self._batches, strict=False):
            yield int(start), batch

    def parts(self, rows: NDArray[np.int64], columns: Sequence[str]) -> Iterator[slice]:
        """Parts of row numbers that may be taken at once: about `_TAKEN_BYTES` each, judged by the
        mean width of the rows of a batch.
        """
        names = list(columns)
        widths = np.array([batch.select(names).nbytes / batch.num_rows for batch in self._batches])
        if len(rows) * widths.max(initial=0) <= _TAKEN_BYTES:
            yield slice(0, len(rows))
            return
        yield from runs_of(np.cumsum(widths[self._find_owners(rows)]) // _TAKEN_BYTES)

    def take(self, rows: NDArray[np.int64], columns: Sequence[str]) -> pa.RecordBatch:
        """Some columns of some rows, as a `pyarrow.RecordBatch`.

        `rows`: numpy int64 array of row numbers, in any order, maybe repeated.
        """
        if not columns or not self._batches:
            return rows_without_columns(len(rows))
        found = [batch.select(list(columns)) for batch in self._batches]
        if len(found) == 1:
            return pc.take(found[0], index_of(rows))
        # A string column of many batches may be longer than one array can be, so it is not joined
        # before the rows are taken.
        owners = self._find_owners(rows)
        order = np.argsort(owners, kind="stable")
        parts = []
        for run in runs_of(owners[order]):
            owner, wanted = int(owners[order[run.start]]), rows[order[run]]
            parts.append(pc.take(found[owner], index_of(wanted - self._starts[owner])))
        if not parts:
            return found[0].slice(0, 0)
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        joined = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        return pc.take(joined, index_of(back))

    def _find_owners(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Index of the batch that has each row."""
        return np.searchsorted(self._starts, rows, side="right") - 1


@contextmanager
def rows_on_disk(data: object) -> Iterator[SourceRows]:
    """The rows of anything that an append takes, except a Spark frame, in a temporary file."""
    with scratch_directory("delta-changes-") as directory:
        yield SourceRows(data, directory, memory_bytes=0)


def _keep_or_spill(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, directory: str, memory_bytes: int
) -> list[pa.RecordBatch]:
    kept: list[pa.RecordBatch] = []
    size = 0
    remaining = iter(batches)
    for batch in remaining:
        kept.append(batch)
        size += batch.nbytes
        if size > memory_bytes:
            return _put_down(kept, remaining, schema, directory)
    return [batch for batch in kept if batch.num_rows]


def _put_down(
    kept: list[pa.RecordBatch],
    remaining: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    directory: str,
) -> list[pa.RecordBatch]:
    """The batches, mapped from a file: the system drops its pages if memory is short."""
    path = str(Path(directory) / f"source-{secrets.token_hex(8)}.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        while kept:
            writer.write_batch(kept.pop(0))
        for batch in remaining:
            writer.write_batch(batch)
    table = pa.ipc.open_file(pa.memory_map(path)).read_all()
    return [batch for batch in table.to_batches() if batch.num_rows]
