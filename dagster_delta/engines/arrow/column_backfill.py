"""Rewrites data files with the shadow of a column whose type is being changed.

The live rows stay the same: deleted rows are dropped, and small files of one batch are joined. A
value that cannot be converted stops the batch, and is reported with its file.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.plans import Backfilled, Problems, ReadPlan, WriteSpec
from dagster_delta.errors import InvalidArgument
from dagster_delta.parquet.data_file_reader import FILE_ORDINAL
from dagster_delta.parquet.opened_file import data_files
from dagster_delta.parquet.ordered_prefetch import BatchSource
from dagster_delta.parquet.reader import plan_reader, read_ahead
from dagster_delta.parquet.shadow_column import ShadowColumn
from dagster_delta.parquet.writer import DataFileWriter

_NUM_POSITION_COLUMNS = 2


class _Stopped(Exception):
    """Problems were found: the written files are useless."""


def backfill_files(plan: ReadPlan, spec: WriteSpec) -> Backfilled:
    """Rewrite the live rows of files, with the shadow."""
    shadow = ShadowColumn.of(plan.configuration)
    if shadow is None:
        raise InvalidArgument(
            "no column of the table is being changed", table=plan.store.location.uri
        )
    job = _Backfill(plan, shadow, spec)
    try:
        return job.run()
    except _Stopped:
        return Backfilled((), 0, job.num_nulled, job.problems)


class _Backfill:
    def __init__(self, plan: ReadPlan, shadow: ShadowColumn, spec: WriteSpec) -> None:
        self._plan = plan
        self._shadow = shadow
        self._spec = spec
        self._paths = plan.files["path"].to_pylist()
        self.problems = Problems()
        self.num_nulled = 0

    def run(self) -> Backfilled:
        spec = self._shadow.write_spec(self._spec)
        with DataFileWriter(spec, self._plan.store) as writer:
            for batch in read_ahead(self._plan.store, self._sources()):
                self._take(batch, writer)
            if self.problems.num_rows:
                raise _Stopped
            written = writer.finish()
        files = tuple(msgspec.structs.replace(file, data_change=False) for file in written.files)
        return Backfilled(files, written.num_rows, self.num_nulled, self.problems)

    def _sources(self) -> Iterator[BatchSource]:
        plan = self._plan
        reader = plan_reader(plan, plan.configuration.schema.names)
        return reader.sources(data_files(plan.files))

    def _take(self, batch: pa.RecordBatch, writer: DataFileWriter) -> None:
        filled = self._shadow.fill(_rows(batch))
        if filled.num_problems:
            self._report(batch)
        else:
            self.num_nulled += filled.num_nulled
        # After the first problem, the rest is only checked, to count all problems.
        if not self.problems.num_rows:
            writer.add(filled.batch)

    def _report(self, batch: pa.RecordBatch) -> None:
        """Find out which files of a batch the problems are in."""
        start = 0
        for run in pc.run_end_encode(batch.column(FILE_ORDINAL)).run_ends.to_pylist():
            piece = batch.slice(start, run - start)
            start = run
            filled = self._shadow.fill(_rows(piece))
            path = self._paths[piece.column(FILE_ORDINAL)[0].as_py()]
            self.problems.add(filled.num_problems, filled.problems, path)


def _rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(list(range(batch.num_columns - _NUM_POSITION_COLUMNS)))
