"""Tasks on Spark's executors that write files: Arrow batches in, reports out. Nothing here needs
Spark.

Rows never reach the driver: it gets only files, bitmaps and counts. An executor must be able to
import this package and pyarrow.

Spec: Data Files; Add File and Remove File; Change Data Files; Deletion Vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.arrow.change_data_files import RowWriters
from dagster_delta.engines.arrow.file_rewriting import rewrite_rows
from dagster_delta.engines.arrow.predicate_matching import add_rows, bitmap_of
from dagster_delta.engines.plans import ObservedRows, ReadPlan, RowRewrite, RowRules, WriteSpec
from dagster_delta.engines.spark.executor_reports import (
    IdentityMarks,
    Reports,
    joined_marks,
    mark_numbers,
    report,
    reported,
    settle_reports,
)
from dagster_delta.engines.spark.read.read_tasks import decode_table
from dagster_delta.engines.statements.constraint_check import refuse_violations
from dagster_delta.engines.statements.expectations import (
    RowObserver,
    delete_rows_aside,
    nullable_columns,
)
from dagster_delta.nested_arrays import numbers_of
from dagster_delta.parquet.reader import merge_small
from dagster_delta.parquet.store_assignment import assign_rows, misfit
from dagster_delta.protocol.features.change_data import RowChangeType
from dagster_delta.protocol.features.column_values import IdentityColumn
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.schema import DataType
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from dagster_delta.storage import open_store
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TASK_BATCH_ROWS = 65_536
_TASK_BATCH_BYTES = 32 * 1024 * 1024
"""Spark's batches are joined to about this many rows or Arrow bytes before they are cast and split.
"""


RowAction = Literal["copy", "insert", "update", "delete"]
"""The action on a row: `copy` writes it unchanged and records no change."""


class ChangeDetail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a change task reports besides its files: several details, as a bitmap may be large."""

    counts: dict[int, int] = {}
    """Rows by action."""
    marks: IdentityMarks = {}
    file: int | None = None
    """Key of a file."""
    rows: bytes = b""
    """Which of its rows have changed, as a serialised bitmap."""
    matched: bytes = b""
    """Which rows of the source have matched, as a serialised bitmap."""
    observed: ObservedRows | None = None
    """How the rows met their expectations."""


_NO_ACTION = -1


class ChangeTask(msgspec.Struct, frozen=True):
    """Writes the changed rows of one Spark partition and reports the changes.

    Its batches have the columns: index of the action; key of the file and index of the row, if the
    row is in the table; number of the source's row, if it has one; the new columns;
    the old columns; a boolean per cast; a boolean per expectation; a boolean per constraint.
    """

    data: WriteSpec
    change_data: WriteSpec | None
    """How changes are recorded for the change data feed; None if they are not."""
    actions: tuple[RowAction, ...]
    """Actions by index; the index -1 only reports the row of the source."""
    with_positions: bool = False
    with_sources: bool = False
    with_old: bool = False
    """Whether the batches have old columns; if not, the new columns are the old ones."""
    casts: tuple[tuple[str, DataType], ...] = ()
    """Columns, and their types, that have a text for each new value that does not fit."""
    numbered: tuple[tuple[IdentityColumn, ...], ...] = ()
    """For each action, the columns that the query has numbered; by default none."""
    shown: tuple[str, ...] = ()
    """Logical names of the columns that are shown of a row that violates an expectation."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reports of `REPORT_SCHEMA`, once all rows are written."""
        joined = merge_small(batches, _TASK_BATCH_ROWS, _TASK_BATCH_BYTES)
        # Most partitions of a small shuffle are empty, and need no store.
        if (first := next(joined, None)) is not None:
            yield reported(lambda: _Changing(self).run(chain([first], joined)))

    @property
    def table(self) -> str:
        """URI of the table."""
        return self.data.location.uri


class _Changing(msgspec.Struct):
    """The state of one running task."""

    task: ChangeTask
    counts: Counter[int] = msgspec.field(default_factory=Counter)
    changed: dict[int, BitMap64] = msgspec.field(default_factory=dict)
    matched: BitMap64 = msgspec.field(default_factory=BitMap64)
    marks: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Last value and step of each identity column that was numbered."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        task = self.task
        store = open_store(task.data.location.uri, task.data.location.options)
        rules = task.data.rules
        observer = None if rules is None else RowObserver(rules)
        with (
            observer or nullcontext(),
            RowWriters.opened(task.data, task.change_data, store) as writers,
        ):
            for batch in batches:
                found = _Batch.split(task, batch)
                if observer is not None:
                    found = found.observed(observer)
                if not (observer and observer.has_failed):
                    self._take_batch(found, writers)
            written = writers.finish()
            observed = None if observer is None else observer.finish()
        return report(*written, [*self._list_details(), ChangeDetail(observed=observed)])

    def _list_details(self) -> Iterator[ChangeDetail]:
        yield ChangeDetail(counts=dict(self.counts), marks=self.marks)
        for key, rows in self.changed.items():
            yield ChangeDetail(file=key, rows=rows.serialize())
        if self.matched:
            yield ChangeDetail(matched=self.matched.serialize())

    def _take_batch(self, batch: _Batch, writers: RowWriters) -> None:
        acting = batch.actions != _NO_ACTION
        if batch.sources is not None:
            self.matched |= bitmap_of(numbers_of(batch.sources.drop_null()))
        if batch.files is not None:
            self._note_positions(batch, acting)
        for index in np.unique(batch.actions[acting]).tolist():
            places = np.flatnonzero(batch.actions == index)
            part = batch if len(places) == len(batch.actions) else batch.take(places)
            self.counts[index] += len(places)
            self._write_change(index, part, writers)

    def _note_positions(self, batch: _Batch, acting: NDArray[np.bool_]) -> None:
        places = pa.array(np.flatnonzero(acting))
        files, rows = (column.take(places).drop_null() for column in (batch.files, batch.rows))
        add_rows(self.changed, numbers_of(files), numbers_of(rows))

    def _write_change(self, index: int, batch: _Batch, writers: RowWriters) -> None:
        action, names = self.task.actions[index], self.task.data.configuration.schema.names
        new = None
        if action != "delete":
            for identity in self.task.numbered[index] if self.task.numbered else ():
                mark_numbers(self.marks, identity, batch.new[names.index(identity.column)])
            new = batch.new_rows()
            writers.data.add(new)
        if writers.changes is None or action == "copy":
            return
        if action != "insert":
            writers.record(batch.old_rows(), "delete" if new is None else "update_preimage")
        if new is not None:
            writers.record(new, "insert" if action == "insert" else "update_postimage")


class _Batch(msgspec.Struct, frozen=True):
    """The columns of a batch by role."""

    task: ChangeTask
    actions: NDArray[Any]
    """numpy int32."""
    files: pa.Int64Array
    """pyarrow Array of int64, or None; so the next two."""
    rows: pa.Int64Array
    sources: pa.Int64Array
    new: Sequence[pa.Array]
    old: Sequence[pa.Array]
    casts: Sequence[pa.StringArray]
    conditions: Sequence[pa.BooleanArray]
    checks: Sequence[pa.BooleanArray]

    @classmethod
    def split(cls, task: ChangeTask, batch: pa.RecordBatch) -> _Batch:
        columns = iter(batch.columns)
        width = len(task.data.configuration.schema)

        def some(count: int) -> list[pa.Array]:
            return [next(columns) for _ in range(count)]

        (actions,) = some(1)
        files, rows = some(2) if task.with_positions else (None, None)
        (sources,) = some(1) if task.with_sources else (None,)
        new, old = some(width), some(width if task.with_old else 0)
        rules = () if task.data.rules is None else task.data.rules.expectations
        return cls(
            task, np.from_dlpack(actions), files, rows, sources, new, old,
            some(len(task.casts)), some(len(rules)), some(len(task.data.constraints)),
        )  # fmt: skip

    def observed(self, observer: RowObserver) -> _Batch:
        """The rows to write, after counting which satisfy their expectations."""
        names = self.task.data.configuration.schema.names
        shown = pa.RecordBatch.from_arrays(
            [self.new[names.index(name)] for name in self.task.shown], names=list(self.task.shown)
        )
        kept = observer.rows_to_write(self.conditions, shown)
        return self if kept is None else self.take(np.asarray(pc.indices_nonzero(kept)))

    def take(self, places: NDArray[np.int64]) -> _Batch:
        index = pa.array(places)
        taken = ([column.take(index) for column in group] for group in
                 (self.new, self.old, self.casts, self.conditions, self.checks))  # fmt: skip
        return _Batch(self.task, self.actions[places], None, None, None, *taken)

    def new_rows(self) -> pa.RecordBatch:
        """The rows to write: a `pyarrow.RecordBatch` of the table's schema."""
        for (name, data_type), misfits in zip(self.task.casts, self.casts, strict=True):
            if misfits.null_count < len(misfits):
                examples = misfits.drop_null()[:5].to_pylist()
                raise misfit(name, data_type, examples, table=self.task.table)
        rows = self._assign_rows(self.new)
        refuse_violations(self.task.data.constraints, self.checks, rows, table=self.task.table)
        return rows

    def old_rows(self) -> pa.RecordBatch:
        """The rows before the change."""
        return self._assign_rows(self.old if self.task.with_old else self.new)

    def _assign_rows(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        spec = self.task.data
        schema = spec.configuration.schema
        fields = [
            pa.field(field.name, column.type) for field, column in zip(schema, columns, strict=True)
        ]
        source = pa.RecordBatch.from_arrays(list(columns), schema=pa.schema(fields))
        return assign_rows(source, schema, table=self.task.table, is_exact=spec.is_exact)


class ObserveTask(msgspec.Struct, frozen=True):
    """Counts the rows of one Spark partition, and sets rows aside. Its batches have a boolean for
    each expectation after the columns of the rows.
    """

    rules: RowRules

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reports of `REPORT_SCHEMA`, once all rows are counted."""
        yield reported(lambda: self._observe_rows(batches))

    def _observe_rows(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        count = len(self.rules.expectations)
        with RowObserver(self.rules) as observer:
            for batch in batches:
                rows = batch.select(list(range(batch.num_columns - count)))
                schema = nullable_columns(from_arrow_schema(rows.schema))
                shown = assign_rows(rows, schema, table="the source of the merge")
                observer.rows_to_write(batch.columns[-count:], shown)
            return report(details=[ChangeDetail(observed=observer.finish())])

    def combined(self, reports: Iterable[Sequence[Any]], store: ObjectStore) -> ObservedRows:
        """The sums of all tasks. Raises the first error of a task."""
        settled = settle_reports(
            reports,
            ChangeDetail,
            store,
            discard=lambda detail: delete_rows_aside(self.rules, detail.observed),
        )
        return changes_of(settled).observed


class WrittenChanges(Reports[ChangeDetail], frozen=True):
    """What the tasks of one job wrote, with sums in place of their details."""

    counts: Counter[int] = msgspec.field(default_factory=Counter)
    """Number of rows by the index of their action."""
    rows: dict[int, BitMap64] = msgspec.field(default_factory=dict)
    """Indexes of the changed rows by the key of their file."""
    matched: BitMap64 = msgspec.field(default_factory=BitMap64)
    """Numbers of the source's rows that matched."""
    high_water_marks: dict[str, int] = msgspec.field(default_factory=dict)
    """The last value of each identity column that was numbered."""
    observed: ObservedRows = ObservedRows()
    """How the rows met their expectations."""


def changes_of(reports: Reports[ChangeDetail]) -> WrittenChanges:
    """The combined result of all tasks."""
    counts: Counter[int] = Counter()
    rows: dict[int, BitMap64] = {}
    matched = BitMap64()
    for detail in reports.details:
        counts.update(detail.counts)
        if detail.file is not None:
            rows[detail.file] = rows.get(detail.file, BitMap64()) | BitMap64.deserialize(
                detail.rows
            )
        if detail.matched:
            matched |= BitMap64.deserialize(detail.matched)
    marks = joined_marks(detail.marks for detail in reports.details)
    observed = [detail.observed for detail in reports.details if detail.observed is not None]
    return WrittenChanges(
        reports.files,
        reports.change_files,
        (),
        counts,
        rows,
        matched,
        marks,
        ObservedRows.combined(observed),
    )


COPIED_FILE_SCHEMA = LIVE_FILE_SCHEMA.append(pa.field("matches", pa.binary()))
"""Files to copy, each with the rows to remove as a serialised bitmap, null for every row."""


def copy_files(
    data: WriteSpec, change_data: WriteSpec | None, recorded_as: RowChangeType, plan: ReadPlan
) -> pa.RecordBatch:
    """Write the remaining rows of files together, and record the removed rows.

    `change_data`, `recorded_as`: see `RowRewrite`.
    `plan`: its files are of `COPIED_FILE_SCHEMA`.

    Returns:
        A report of `REPORT_SCHEMA`: action 0 counts removed rows, action 1 the remaining rows.
    """
    files = plan.files.select(["path", "matches"]).to_pylist()
    matches = {
        file["path"]: BitMap64.deserialize(file["matches"])
        for file in files
        if file["matches"] is not None
    }
    plan = replace(plan, files=plan.files.drop_columns("matches"))
    done = rewrite_rows(RowRewrite(plan, matches, (), True, data, change_data, recorded_as))
    counts = {0: done.num_changed_rows, 1: done.num_copied_rows}
    return report(done.files, done.change_files, [ChangeDetail(counts=counts)])


class RewriteTask(msgspec.Struct, frozen=True):
    """Rewrites groups of files on an executor, and reports the new files.

    No SQL is evaluated, so the rows do not pass through Spark: a task reads and writes the files as
    the embedded engine does.
    """

    plan: ReadPlan
    """All rows of the files that it gets, with all checks."""
    rewrite: Callable[[ReadPlan], pa.RecordBatch]
    """Gives the report on the files of a plan."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reports of `REPORT_SCHEMA`, one for each group, an encoded table of files."""
        for batch in batches:
            for files in batch.column(0).to_pylist():
                plan = replace(self.plan, files=decode_table(files))
                yield reported(partial(self.rewrite, plan))
