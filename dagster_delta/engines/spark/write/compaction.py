"""Rewriting the rows of data files on Spark's executors.

In compaction each executor reads and writes the files of a group itself: rows are not shuffled and
do not enter the JVM. A Z-order needs the rows of all files, so Spark reads them, shuffles by ranges
of the curve and sorts. While a column changes its type, each task fills in its shadow in a few
files, as the embedded engine does.

Spec: Add File and Remove File (dataChange).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import types

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.arrow.column_backfill import backfill_files
from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.engines.plans import Backfilled, Problems, ReadPlan, WriteResult, WriteSpec
from dagster_delta.engines.spark.executor_reports import (
    REPORT_SCHEMA,
    Reports,
    report,
    settle_reports,
)
from dagster_delta.engines.spark.read.read_tasks import FILE_SCHEMA, encode_table
from dagster_delta.engines.spark.read.reader import read_frame
from dagster_delta.engines.spark.session.errors import spark_failures
from dagster_delta.engines.spark.session.session import frame_of, functions_of
from dagster_delta.engines.spark.write.tasks import RewriteTask
from dagster_delta.engines.spark.write.writer import write_frame
from dagster_delta.engines.zorder import SAMPLE_ROWS, ZOrderCurve
from dagster_delta.nested_arrays import index_of
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.split_by_size import split_by_size
from dagster_delta.storage.unreferenced_files import delete_unreferenced

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_PLACE = "__zorder_place"
_MAX_TASKS = 2048
_UNCOUNTED_SHARE = 0.01

_Detail = TypeVar("_Detail", bound=msgspec.Struct)


def rewrite_in_tasks(
    session: SparkSession,
    plan: ReadPlan,
    groups: Sequence[pa.Table],
    rewrite: Callable[[ReadPlan], pa.RecordBatch],
    detail: type[_Detail],
) -> Reports[_Detail]:
    """The reports on groups of files, each rewritten by one task.

    `plan`: its own files are ignored.
    `rewrite`: see `RewriteTask`.
    """
    encoded = pa.table({"files": pa.array([encode_table(group) for group in groups], pa.binary())})
    frame = frame_of(session, encoded, "files binary").repartition(min(len(groups), _MAX_TASKS))
    whole = msgspec.structs.replace(
        plan, files=FILE_SCHEMA.empty_table(), where=None, verifies_pages=True
    )
    task = RewriteTask(whole, rewrite)
    with spark_failures(table=plan.store.location.uri, in_query=False):
        reports = frame.mapInArrow(task, REPORT_SCHEMA).collect()
    return settle_reports(reports, detail, plan.store)


class _CompactedGroup(msgspec.Struct, frozen=True):
    """What a task reports of a group besides its files."""

    source: str
    """The first of its old files."""
    paths: tuple[str, ...]
    """Of the new files, as in the log."""
    num_rows: int


def compact_on_spark(
    groups: Sequence[ReadPlan], spec: WriteSpec, *, session: SparkSession
) -> list[WriteResult]:
    """New files with the rows of each group, which is written by one task."""
    tables = [group.files for group in groups]
    reports = rewrite_in_tasks(
        session, groups[0], tables, partial(_compact_group, spec), _CompactedGroup
    )
    files = {file.path: file for file in reports.files}
    details = {detail.source: detail for detail in reports.details}
    results = []
    for table in tables:
        detail = details[table["path"][0].as_py()]
        written = tuple(files[path] for path in detail.paths)
        results.append(WriteResult(written, detail.num_rows))
    return results


def _compact_group(spec: WriteSpec, plan: ReadPlan) -> pa.RecordBatch:
    (written,) = ArrowEngine().compact([plan], spec)
    paths = tuple(file.path for file in written.files)
    source = plan.files["path"][0].as_py()
    return report(written.files, details=[_CompactedGroup(source, paths, written.num_rows)])


def sort_on_spark(
    groups: Sequence[ReadPlan],
    spec: WriteSpec,
    columns: Sequence[tuple[str, ...]],
    *,
    session: SparkSession,
    is_hilbert: bool = False,
) -> WriteResult:
    """New files with the rows of each partition sorted along a curve through all of them."""
    plan = msgspec.structs.replace(
        groups[0], files=pa.concat_tables([group.files for group in groups])
    )
    rows = read_frame(session, plan)
    # PySpark does not find columns with a dot or a backtick in their name for `mapInArrow`.
    plain = {name: f"_{index}" for index, name in enumerate(rows.columns)}
    frame, functions = rows.toDF(*plain.values()), functions_of(rows)
    columns = [(plain[path[0]], *path[1:]) for path in columns]
    sample = _sample_rows(frame, plan, columns)
    curve = ZOrderCurve.through(columns, sample, is_hilbert=is_hilbert)
    schema = types.StructType([*frame.schema.fields]).add(_PLACE, "long")
    placed = frame.mapInArrow(_PlaceTask(curve), schema)
    partition_columns = plan.configuration.partition_columns
    keys = [functions.col(name) for name in (*map(plain.get, partition_columns), _PLACE)]
    sizes = [pc.sum(group.files["size_bytes"]).as_py() for group in groups]
    if max(sizes) <= spec.target_file_size_bytes:
        # Ranges would split most partitions in two, but each should be one file.
        spread = placed.repartition(len(groups), *keys[:-1])
    else:
        count = max(len(groups), -(-sum(sizes) // spec.target_file_size_bytes))
        spread = placed.repartitionByRange(count, *keys)
    arranged = spread.sortWithinPartitions(*keys).drop(_PLACE)
    return write_frame(arranged.toDF(*plain), spec, plan.store, is_arranged=True)


class _PlaceTask(msgspec.Struct, frozen=True):
    """Adds a column with each row's position along the curve."""

    curve: ZOrderCurve

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            # 63 bits at most, so the sign bit is never set.
            places = index_of(self.curve.positions(batch))
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, places], names=[*batch.schema.names, _PLACE]
            )


def _sample_rows(frame: DataFrame, plan: ReadPlan, columns: Sequence[tuple[str, ...]]) -> pa.Table:
    counts = parse_statistics_json(plan.files["stats"], ())["num_records"]
    num_rows = pc.sum(counts, skip_nulls=False).as_py()
    share = _UNCOUNTED_SHARE if num_rows is None else min(1.0, SAMPLE_ROWS / max(1, num_rows))
    names = dict.fromkeys(path[0] for path in columns)
    rows = frame.select(*names)
    return (rows.sample(share, seed=0) if share < 1 else rows).toArrow()


_BACKFILL_BYTES = 128 * 1024 * 1024
"""Bytes of data files that one task fills in."""


def backfill_on_spark(plan: ReadPlan, spec: WriteSpec, *, session: SparkSession) -> Backfilled:
    """As `backfill_files` does, on the executors."""
    sizes = plan.files["size_bytes"].to_pylist()
    shares = split_by_size(range(len(sizes)), sizes.__getitem__, _BACKFILL_BYTES)
    groups = [plan.files.slice(rows[0], len(rows)) for rows in shares]
    reports = rewrite_in_tasks(session, plan, groups, partial(_backfill_group, spec), Backfilled)
    problems = Problems()
    for detail in reports.details:
        problems.join(detail.problems)
    if problems.num_rows:
        delete_unreferenced(plan.store, reports.paths)
    return Backfilled(
        () if problems.num_rows else reports.files,
        sum(detail.num_rows for detail in reports.details),
        sum(detail.num_nulled for detail in reports.details),
        problems,
    )


def _backfill_group(spec: WriteSpec, plan: ReadPlan) -> pa.RecordBatch:
    done = backfill_files(plan, spec)
    return report(done.files, details=[msgspec.structs.replace(done, files=())])
