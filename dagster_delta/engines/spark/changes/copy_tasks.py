"""Rewrites data files without some of their rows, on Spark's executors. Nothing here needs
Spark.

No SQL is evaluated, so the rows do not pass through Spark: a task reads its files and writes the
rows that remain, as the embedded engine does.

Spec: Add File and Remove File; Change Data Files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyroaring import BitMap64

from dagster_delta.engines.plans import RewriteResult, RowRewrite, WriteSpec
from dagster_delta.engines.spark.changes.change_tasks import ChangeDetail
from dagster_delta.engines.spark.executor_reports import report, reported
from dagster_delta.engines.spark.shipped_plan import ShippedPlan
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA

COPIED_FILES_SCHEMA = "files string"
"""Input of a copy task, as a Spark schema: `CopiedFile`s that are written together, as JSON."""


class CopiedFile(msgspec.Struct, frozen=True):
    """A data file to copy."""

    path: str
    size_bytes: int
    partition_values: list[tuple[str, str | None]] | None
    deletion_vector: dict[str, str | int | None] | None
    base_row_id: int | None
    default_row_commit_version: int | None
    matches: bytes | None
    """The rows to remove, as a serialised bitmap; None for every row."""


_COLUMNS = list(CopiedFile.__struct_fields__[:-1])
_DECODER = msgspec.json.Decoder(list[CopiedFile])


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Writes the remaining rows of files, and records the removed rows."""

    plan: ShippedPlan
    data: WriteSpec
    change_data: WriteSpec | None
    """How removed rows are recorded; None if they are not."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reports of `REPORT_SCHEMA`, once all files of a batch are written: action 0 counts
        removed rows, action 1 the remaining rows.
        """
        for batch in batches:
            if batch.num_rows:
                yield reported(partial(self._report, batch))

    def _report(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        done = self._copy(batch)
        counts = {0: done.num_changed_rows, 1: done.num_copied_rows}
        return report(done.files, done.change_files, [ChangeDetail(counts=counts)])

    def _copy(self, batch: pa.RecordBatch) -> RewriteResult:
        from dagster_delta.engines.arrow.row_rewriting import rewrite_rows

        copied = [
            file for text in batch.column("files").to_pylist() for file in _DECODER.decode(text)
        ]
        rows = [{name: getattr(file, name) for name in _COLUMNS} for file in copied]
        schema = pa.schema([LIVE_FILE_SCHEMA.field(name) for name in _COLUMNS])
        matches = {
            file.path: BitMap64.deserialize(file.matches)
            for file in copied
            if file.matches is not None
        }
        plan = replace(self.plan.open(), files=pa.Table.from_pylist(rows, schema))
        return rewrite_rows(
            RowRewrite(plan, matches, (), True, self.data, change_data=self.change_data)
        )
