"""Rewrites data files with the shadow of a changing column, on the executors.

Each task does for a few files what the embedded engine does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.engines.arrow.column_backfill import backfill_files
from dagster_delta.engines.plans import Backfilled, Problems, ReadPlan, WriteSpec
from dagster_delta.engines.spark.executor_reports import (
    REPORT_SCHEMA,
    report,
    reported,
    settle_reports,
)
from dagster_delta.engines.spark.session.errors import spark_failures
from dagster_delta.engines.spark.session.session import frame_of
from dagster_delta.engines.spark.shipped_plan import ShippedPlan, decode_table, encode_table
from dagster_delta.storage.unreferenced_files import delete_unreferenced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 128 * 1024 * 1024
"""Bytes of data files that one task rewrites."""


class _BackfillDetail(msgspec.Struct, frozen=True):
    """What a task reports besides its files."""

    num_rows: int
    num_nulled: int
    num_problems: int
    examples: tuple[str, ...]


def backfill_on_spark(plan: ReadPlan, spec: WriteSpec, *, session: SparkSession) -> Backfilled:
    """As `backfill_files` does, on the executors."""
    task = BackfillTask(ShippedPlan.of(plan), spec)
    shares = pa.table({"files": pa.array([encode_table(each) for each in _shares(plan.files)])})
    with spark_failures(table=spec.location.uri):
        frame = frame_of(session, shares, "files binary").repartition(shares.num_rows)
        rows = frame.mapInArrow(task, REPORT_SCHEMA).collect()
    reports = settle_reports(rows, _BackfillDetail, plan.store)
    problems = Problems()
    for each in reports.details:
        problems.join(Problems(each.num_problems, list(each.examples)))
    if problems.num_rows:
        delete_unreferenced(plan.store, reports.paths)
    return Backfilled(
        () if problems.num_rows else reports.files,
        sum(each.num_rows for each in reports.details),
        sum(each.num_nulled for each in reports.details),
        problems,
    )


@dataclass(frozen=True, slots=True)
class BackfillTask:
    """Rewrites the files that are encoded in the rows of one binary column."""

    plan: ShippedPlan
    spec: WriteSpec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One report for each share of the files."""
        opened = None
        for batch in batches:
            for share in batch.column(0).to_pylist():
                opened = opened or self.plan.open()
                plan = replace(opened, files=decode_table(share))
                yield reported(partial(self._fill, plan))

    def _fill(self, plan: ReadPlan) -> pa.RecordBatch:
        done = backfill_files(plan, self.spec)
        problems = done.problems
        detail = _BackfillDetail(
            done.num_rows, done.num_nulled, problems.num_rows, tuple(problems.examples)
        )
        return report(done.files, details=[detail])


def _shares(files: pa.Table) -> Iterator[pa.Table]:
    """The files in groups of about TASK_BYTES."""
    start = size = 0
    for index, size_bytes in enumerate(files["size_bytes"].to_pylist()):
        if index > start and size + size_bytes > TASK_BYTES:
            yield files.slice(start, index - start)
            start, size = index, 0
        size += size_bytes
    yield files.slice(start)
