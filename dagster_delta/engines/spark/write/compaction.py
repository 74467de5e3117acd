"""Rewriting the rows of data files on Spark's executors.

In compaction each executor reads and writes the files of a group itself: rows are not shuffled and
do not enter the JVM. A Z-order needs the rows of all files, so Spark reads them, shuffles by ranges
of the curve and sorts.

Spec: Add File and Remove File (dataChange).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.engines.plans import ReadPlan, WriteResult, WriteSpec
from dagster_delta.engines.rows.zorder import SAMPLE_ROWS, ZOrderCurve
from dagster_delta.engines.spark.executor_reports import (
    REPORT_SCHEMA,
    Reports,
    report,
    reported,
    settle_reports,
)
from dagster_delta.engines.spark.read.reader import read_frame
from dagster_delta.engines.spark.session.columns import quote
from dagster_delta.engines.spark.session.errors import spark_failures
from dagster_delta.engines.spark.session.session import frame_of, functions_of
from dagster_delta.engines.spark.shipped_plan import ShippedPlan, decode_table, encode_table
from dagster_delta.engines.spark.write.writer import write_frame
from dagster_delta.engines.values.nested_arrays import index_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession, types

_GROUP_SCHEMA = "position int, files binary"
_PLACE = "__zorder_place"
_UNCOUNTED_SHARE = 0.01


def compact_on_spark(
    groups: Sequence[ReadPlan], spec: WriteSpec, *, session: SparkSession
) -> list[WriteResult]:
    """New files with the rows of each group, which is written by one task."""
    first = groups[0]
    task = _CompactionTask(ShippedPlan.of(first), spec)
    encoded = pa.table(
        {
            "position": pa.array(range(len(groups)), pa.int32()),
            "files": pa.array([encode_table(each.files) for each in groups], pa.binary()),
        }
    )
    frame = frame_of(session, encoded, _GROUP_SCHEMA).repartition(len(groups))
    with spark_failures(table=spec.location.uri, in_query=False):
        reports = frame.mapInArrow(task, REPORT_SCHEMA).collect()
    return _by_group(settle_reports(reports, _CompactedGroup, first.store))


class _CompactedGroup(msgspec.Struct, frozen=True):
    """What a task reports of a group besides its files."""

    position: int
    paths: tuple[str, ...]
    """Of the new files, as in the log."""
    num_rows: int


def _by_group(reports: Reports[_CompactedGroup]) -> list[WriteResult]:
    files = {each.path: each for each in reports.files}
    results = []
    for group in sorted(reports.details, key=attrgetter("position")):
        written = tuple(files[path] for path in group.paths)
        num_bytes = sum(each.size_bytes for each in written)
        results.append(WriteResult(written, group.num_rows, num_bytes))
    return results


@dataclass(frozen=True, slots=True)
class _CompactionTask:
    """Rewrites groups of files on an executor, and reports the new files."""

    plan: ShippedPlan
    spec: WriteSpec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened = None
        for batch in batches:
            opened = opened or self.plan.open()
            for position, files in zip(*(each.to_pylist() for each in batch.columns), strict=True):
                plan = msgspec.structs.replace(opened, files=decode_table(files))
                yield reported(partial(self._compact, position, plan))

    def _compact(self, position: int, plan: ReadPlan) -> pa.RecordBatch:
        (written,) = ArrowEngine().compact([plan], self.spec)
        paths = tuple(each.path for each in written.files)
        return report(written.files, details=[_CompactedGroup(position, paths, written.num_rows)])


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
        groups[0], files=pa.concat_tables([each.files for each in groups])
    )
    frame = read_frame(session, plan)
    functions = functions_of(frame)
    sample = _sample(frame, plan, columns)
    curve = ZOrderCurve.through(columns, sample, is_hilbert=is_hilbert)
    placed = frame.mapInArrow(_PlaceTask(curve), _with_place(frame))
    partition_columns = plan.configuration.partition_columns
    keys = [functions.col(quote(each)) for each in (*partition_columns, _PLACE)]
    sizes = [pc.sum(each.files["size_bytes"]).as_py() for each in groups]
    if max(sizes) <= spec.target_file_size_bytes:
        # Ranges would split most partitions in two, but each should be one file.
        spread = placed.repartition(len(groups), *keys[:-1])
    else:
        count = max(len(groups), -(-sum(sizes) // spec.target_file_size_bytes))
        spread = placed.repartitionByRange(count, *keys)
    arranged = spread.sortWithinPartitions(*keys).drop(_PLACE)
    return write_frame(arranged, _as_arranged(spec), plan.store)


@dataclass(frozen=True, slots=True)
class _PlaceTask:
    """Adds a column with each row's position along the curve."""

    curve: ZOrderCurve

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            # 63 bits at most, so the sign bit is never set.
            places = index_of(self.curve.positions(batch))
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, places], names=[*batch.schema.names, _PLACE]
            )


def _with_place(frame: DataFrame) -> types.StructType:
    from pyspark.sql import types

    return types.StructType([*frame.schema.fields, types.StructField(_PLACE, types.LongType())])


def _sample(frame: DataFrame, plan: ReadPlan, columns: Sequence[tuple[str, ...]]) -> pa.Table:
    from dagster_delta.protocol.statistics.statistics import parse_statistics_json

    counts = parse_statistics_json(plan.files["stats"], ())["num_records"]
    num_rows = pc.sum(counts, skip_nulls=False).as_py()
    share = _UNCOUNTED_SHARE if num_rows is None else min(1.0, SAMPLE_ROWS / max(1, num_rows))
    names = dict.fromkeys(path[0] for path in columns)
    rows = frame.select(*(functions_of(frame).col(quote(each)) for each in names))
    return (rows.sample(share, seed=0) if share < 1 else rows).toArrow()


def _as_arranged(spec: WriteSpec) -> WriteSpec:
    """The spec for rows that are already arranged, so that they are not shuffled."""
    metadata = spec.configuration.metadata
    properties = {**metadata.configuration, "delta.autoOptimize.optimizeWrite": "false"}
    return msgspec.structs.replace(
        spec,
        configuration=replace(
            spec.configuration,
            metadata=msgspec.structs.replace(metadata, configuration=properties),
        ),
    )
