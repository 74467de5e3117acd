"""Rewriting rows of data files, with new values or without some of them, as a stream.

Spec: Add File and Remove File; Add CDC File; Change Data Files; Generated Columns; CHECK
Constraints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.arrow.change_data_files import RowWriters
from dagster_delta.engines.plans import RewriteResult, RowRewrite
from dagster_delta.nested_arrays import index_of, mask_of
from dagster_delta.parquet.data_file_reader import (
    ROW_INDEX,
    DataFileReader,
)
from dagster_delta.parquet.opened_file import data_files
from dagster_delta.parquet.ordered_prefetch import BatchSource
from dagster_delta.parquet.reader import plan_reader, read_ahead
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema

if TYPE_CHECKING:
    from dagster_delta.engines.statements.completion import RowUpdate


def with_null_columns(
    batch: pa.RecordBatch | None, num_rows: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Rows of the table; columns that were not read are null, as they will not be used."""
    read = {} if batch is None else dict(zip(batch.schema.names, batch.columns, strict=True))
    arrays = [
        read[field.name] if field.name in read else pa.nulls(num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _row_update(rewrite: RowRewrite) -> RowUpdate:
    # A delete computes no values.
    from dagster_delta.engines.statements.completion import RowUpdate

    return RowUpdate(rewrite.assignments, rewrite.data, rewrite.source.configuration.schema)


_MATCHES = "\0matches"


def rewrite_rows(rewrite: RowRewrite) -> RewriteResult:
    """Rewrite rows; those of one file stay in their order."""
    with RowWriters.opened(rewrite.data, rewrite.change_data, rewrite.source.store) as writers:
        num_changed, num_copied = rewrite_rows_to(rewrite, writers)
        return RewriteResult(*writers.finish(), num_changed, num_copied)


def rewrite_rows_to(rewrite: RowRewrite, writers: RowWriters) -> tuple[int, int]:
    """Pass the rows of a rewrite to writers, which other rows may go to as well.

    Returns:
        The numbers of rows that matched and of unchanged rows that were written.
    """
    job = _Rewriting(rewrite, writers)
    for batch in _read_rows(rewrite):
        job.take(batch)
    return job.num_changed_rows, job.num_copied_rows


def _is_mixed(rewrite: RowRewrite) -> bool:
    """Whether both the matches and the rest must be read."""
    uses_matches = bool(rewrite.assignments) or rewrite.change_data is not None
    return rewrite.keeps_rest and uses_matches


def _read_rows(rewrite: RowRewrite) -> Iterator[pa.RecordBatch]:
    """The rows that are written or recorded, as batches with a last column that marks the matches.

    If all of them are matches, or none is, the mark is omitted.
    """
    source = rewrite.source
    paths = source.files["path"].to_pylist()
    matches = [rewrite.matches.get(path) for path in paths]
    names = source.configuration.schema.names
    reader = plan_reader(source, names, with_positions=_is_mixed(rewrite))
    sources = _make_sources(rewrite, reader, matches)
    return read_ahead(source.store, sources, files=source.files)


def _make_sources(
    rewrite: RowRewrite,
    reader: DataFileReader,
    matches: list[BitMap64 | None],
) -> Iterator[BatchSource]:
    is_mixed = _is_mixed(rewrite)
    for file in data_files(rewrite.source.files):
        rows = matches[file.ordinal]
        if is_mixed:
            mark = partial(_mark_matches, matches=rows)
            yield from (source.changed(mark) for source in reader.sources([file]))
        elif rewrite.keeps_rest and rows is not None:
            yield from reader.sources([replace(file, hidden=rows)])
        elif not rewrite.keeps_rest:
            yield from reader.sources([file if rows is None else replace(file, selected=rows)])


def _mark_matches(
    batches: Iterable[pa.RecordBatch], matches: BitMap64 | None
) -> Iterator[pa.RecordBatch]:
    """The batches with a mark on matching rows instead of the positions."""
    for batch in batches:
        indexes = np.from_dlpack(batch.column(ROW_INDEX))
        marks = np.ones(len(indexes), dtype=bool)
        if matches is not None:
            marks[:] = False
            nearby = matches & BitMap64(range(int(indexes[0]), int(indexes[-1]) + 1))
            # Every match is a live row, so its insertion point is its position.
            marks[np.searchsorted(indexes, np.asarray(nearby.to_array(), dtype=np.int64))] = True
        columns = [*batch.columns[:-2], mask_of(marks)]
        names = [*batch.schema.names[:-2], _MATCHES]
        yield pa.RecordBatch.from_arrays(columns, names=names)


class _Rewriting:
    def __init__(self, rewrite: RowRewrite, writers: RowWriters) -> None:
        configuration = rewrite.source.configuration
        self._writers = writers
        self.num_changed_rows = 0
        self.num_copied_rows = 0
        self._schema = to_arrow_schema(configuration.schema)
        self._all_match = not rewrite.keeps_rest
        self._recorded_as = rewrite.recorded_as
        self._update = _row_update(rewrite) if rewrite.assignments else None

    def take(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch as `_read_rows` gives it."""
        if batch.schema.names[-1:] == [_MATCHES]:
            self._take_marked(batch)
        elif self._all_match:
            self._write_rows(self._change_rows(batch))
        else:
            self.num_copied_rows += batch.num_rows
            self._write_rows(batch)

    def _take_marked(self, batch: pa.RecordBatch) -> None:
        marks = batch.column(_MATCHES)
        rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=self._schema)
        matching = pc.filter(rows, marks)
        self.num_copied_rows += rows.num_rows - matching.num_rows
        changed = self._change_rows(matching) if matching.num_rows else None
        if changed is not None and self._update is not None:
            columns = (*self._update.columns, self._writers.ids.version_column)
            self._write_rows(_put_back(rows, changed, marks, columns))
        else:
            self._write_rows(pc.filter(rows, pc.invert(marks)) if matching.num_rows else rows)

    def _change_rows(self, matching: pa.RecordBatch) -> pa.RecordBatch | None:
        """The matching rows with new values, None if they are deleted; recorded if requested."""
        self.num_changed_rows += matching.num_rows
        if self._update is None:
            self._writers.record(matching, self._recorded_as)
            return None
        changed = self._writers.ids.as_changed(self._update.apply(matching))
        self._writers.record(matching, "update_preimage")
        self._writers.record(changed, "update_postimage")
        return changed

    def _write_rows(self, rows: pa.RecordBatch) -> None:
        if rows is not None and rows.num_rows:
            self._writers.data.add(rows)


def _put_back(
    rows: pa.RecordBatch,
    changed: pa.RecordBatch,
    marks: pa.BooleanArray,
    columns: tuple[str | None, ...],
) -> pa.RecordBatch:
    """The rows, with the changed ones at their original positions."""
    places = np.arange(rows.num_rows, dtype=np.int64)
    marked = np.from_dlpack(pc.indices_nonzero(marks))
    places[marked] = rows.num_rows + np.arange(changed.num_rows)
    index = index_of(places)
    arrays = [
        pc.take(pa.concat_arrays([old, new]), index) if name in columns else old
        for name, old, new in zip(rows.schema.names, rows.columns, changed.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)
