"""Rewrites data files without some of their rows, on Spark's executors. Nothing here needs
Spark.

No SQL is evaluated, so the rows do not pass through Spark: a task reads its files and writes the
rows that remain, as the embedded engine does.

Spec: Add File and Remove File; Change Data Files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from dagster_delta.engines.plans import ReadPlan, RewriteResult, RowRewrite, WriteSpec
from dagster_delta.engines.spark.changes.change_tasks import ChangeDetail
from dagster_delta.engines.spark.executor_reports import report, reported
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.storage import StoreLocation, open_store

__all__ = ["COPIED_FILE_SCHEMA", "CopyTask", "encode_copied_files"]

COPIED_FILE_SCHEMA = "file string, matches binary"
"""Input of a copy task, as a Spark schema: a live file as JSON, and its rows to remove."""


class _CopiedFile(msgspec.Struct, frozen=True):
    path: str
    size_bytes: int
    partition_values: list[tuple[str, str | None]] | None
    deletion_vector: dict[str, str | int | None] | None
    base_row_id: int | None
    default_row_commit_version: int | None


_COLUMNS = list(_CopiedFile.__struct_fields__)


def encode_copied_files(files: pa.Table, matches: Mapping[str, BitMap64]) -> pa.Table:
    """Files and their rows to remove, as a pyarrow.Table of `COPIED_FILE_SCHEMA`.

    Args:
        files: pyarrow.Table of `LIVE_FILE_SCHEMA`.
        matches: indexes of rows by path; every row of a file without an entry is removed.
    """
    rows = files.select(_COLUMNS).to_pylist()
    bitmaps = [matches.get(each["path"]) for each in rows]
    return pa.table(
        {
            "file": pa.array([msgspec.json.encode(each).decode() for each in rows], pa.string()),
            "matches": pa.array(
                [None if each is None else each.serialize() for each in bitmaps], pa.binary()
            ),
        }
    )


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Writes the remaining rows of files, and records the removed rows."""

    location: StoreLocation
    version: int
    configuration: TableConfiguration
    """The read plan of the rows."""
    columns: tuple[str, ...]
    data: WriteSpec
    change_data: WriteSpec | None
    """How removed rows are recorded; None if they are not."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reports of `REPORT_SCHEMA`, once all files of a batch are written: action 0 counts
        removed rows, action 1 the remaining rows.

        Raises:
            StorageFailure: the store refused or failed; the task may be run again.
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

        rows = [
            msgspec.structs.asdict(msgspec.json.decode(each, type=_CopiedFile))
            for each in batch.column("file").to_pylist()
        ]
        schema = pa.schema([LIVE_FILE_SCHEMA.field(name) for name in _COLUMNS])
        matches = {
            row["path"]: BitMap64.deserialize(bits)
            for row, bits in zip(rows, batch.column("matches").to_pylist(), strict=True)
            if bits is not None
        }
        plan = ReadPlan(
            store=open_store(self.location.uri, self.location.options),
            version=self.version,
            configuration=self.configuration,
            files=pa.Table.from_pylist(rows, schema),
            columns=self.columns,
        )
        return rewrite_rows(
            RowRewrite(plan, matches, (), True, self.data, change_data=self.change_data)
        )
