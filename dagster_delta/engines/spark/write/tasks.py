"""Write tasks on Spark's executors: Arrow batches in, reports out. Nothing here needs Spark.

An executor must be able to import this package and pyarrow.

Spec: Data Files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.plans import ReadPlan, WriteResult, WriteSpec
from dagster_delta.engines.spark.executor_reports import (
    IdentityMarks,
    Reports,
    joined_marks,
    report,
    reported,
)
from dagster_delta.engines.spark.read.read_tasks import ShippedPlan, decode_table
from dagster_delta.engines.statements.constraint_check import refuse_violations
from dagster_delta.parquet.store_assignment import assign_batches
from dagster_delta.parquet.writer import (
    write_data_files,
)
from dagster_delta.protocol.features.column_values import IdentityColumn
from dagster_delta.storage import open_store

_TASK_BATCH_ROWS = 65_536
_TASK_BATCH_BYTES = 32 * 1024 * 1024
"""Spark's batches are joined to about this many rows or Arrow bytes before they are cast and split.
"""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Writes the rows of one Spark partition as data files, and reports them."""

    spec: WriteSpec
    columns: tuple[str, ...]
    """Names of the DataFrame's columns. One boolean column per constraint follows them."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reports of `REPORT_SCHEMA`, once all rows are written."""
        rows = nonempty(batches)
        if rows is not None:
            yield reported(lambda: self._write(rows))

    def _write(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        location = self.spec.location
        store = open_store(location.uri, location.options)
        checked = _CheckedRows(self, batches)
        result = write_data_files(checked.conforming(), self.spec, store)
        return report_result(result, checked.marks)


@dataclass(slots=True)
class _CheckedRows:
    """Rows from Spark, cast and checked for writing."""

    task: WriteTask
    batches: Iterator[pa.RecordBatch]
    checks: list[pa.BooleanArray] = field(default_factory=list)
    """Results of the constraints for the rows of the batch that is being cast."""
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Last value so far and step of each identity column that was numbered."""

    def conforming(self) -> Iterator[pa.RecordBatch]:
        """Record batches of the table's schema in which every row satisfies every constraint."""
        spec = self.task.spec
        sources = joined_batches(self.batches)
        first = next(sources)
        reader = pa.RecordBatchReader.from_batches(
            self._rows(first).schema, map(self._take, chain([first], sources))
        )
        schema = spec.configuration.schema
        table, is_exact = spec.location.uri, spec.is_exact
        for batch in assign_batches(reader, schema, table=table, is_exact=is_exact):
            # Values are cast first, so the error names a value that does not fit, although its
            # constraints were evaluated on a null.
            results = [check.slice(0, batch.num_rows) for check in self.checks]
            self.checks = [check.slice(batch.num_rows) for check in self.checks]
            refuse_violations(spec.constraints, results, batch, table=table)
            yield batch

    def _take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.checks = batch.columns[len(self.task.columns) :]
        rows = self._rows(batch)
        for identity in self.task.spec.values.identities:
            self._mark(identity, rows.column(identity.column))
        return rows

    def _mark(self, identity: IdentityColumn, values: pa.Int64Array) -> None:
        if values.null_count:
            # The query makes a value that does not fit null.
            raise identity.overflow()
        bounds = pc.min_max(values)
        for bound in (bounds["min"].as_py(), bounds["max"].as_py()):
            if bound is not None:
                known, _ = self.marks.get(identity.column, (bound, identity.step))
                self.marks[identity.column] = (identity.farther(known, bound), identity.step)

    def _rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = self.task.columns
        fields = [
            pa.field(name, field.type, field.nullable, field.metadata)
            for name, field in zip(names, batch.schema, strict=False)
        ]
        return pa.RecordBatch.from_arrays(batch.columns[: len(names)], schema=pa.schema(fields))


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Rewrites groups of files on an executor, and reports the new files.

    No SQL is evaluated, so the rows do not pass through Spark: a task reads and writes the files as
    the embedded engine does.
    """

    plan: ShippedPlan
    rewrite: Callable[[ReadPlan], pa.RecordBatch]
    """Gives the report on the files of a plan."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reports of `REPORT_SCHEMA`, one for each group, an encoded table of files."""
        opened = None
        for batch in batches:
            opened = opened or self.plan.open()
            for files in batch.column(0).to_pylist():
                plan = msgspec.structs.replace(opened, files=decode_table(files))
                yield reported(partial(self.rewrite, plan))


def nonempty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """The batches of a task; None if there are none. Most partitions of a small shuffle are empty,
    and need no store.
    """
    first = next(batches, None)
    return None if first is None else chain([first], batches)


def joined_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches large enough for the overhead of a kernel call."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= _TASK_BATCH_ROWS or size_bytes >= _TASK_BATCH_BYTES:
            yield concatenated(waiting)
            waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield concatenated(waiting)


def concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of record batches of one schema, at least one, as one batch."""
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches)
    columns = [
        pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
        for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


class WriteDetail(msgspec.Struct, frozen=True):
    """What a write task reports besides its files."""

    num_rows: int
    """Rows of the files."""
    marks: IdentityMarks


def report_result(result: WriteResult, marks: IdentityMarks | None = None) -> pa.RecordBatch:
    """The report of a task, a `pyarrow.RecordBatch`.

    `marks`: last value and step of the columns that it numbered.
    """
    return report(result.files, details=[WriteDetail(result.num_rows, marks or {})])


def result_of(reports: Reports[WriteDetail]) -> WriteResult:
    """The combined result of all tasks."""
    return WriteResult(
        reports.files,
        sum(detail.num_rows for detail in reports.details),
        sum(file.size_bytes for file in reports.files),
        joined_marks(detail.marks for detail in reports.details),
    )
