"""Writing data files again with the shadow of a changing column, on the executors.

Each task takes a few files and does with them what the embedded engine would do here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from dagster_delta.engines.arrow.column_backfill import backfill_files
from dagster_delta.engines.engine import Backfilled, Problems, ReadPlan, WriteSpec
from dagster_delta.engines.spark.session.errors import spark_failures
from dagster_delta.engines.spark.session.session import frame_of
from dagster_delta.engines.spark.write.tasks import decode_error, encode_error
from dagster_delta.engines.spark.write.writer import delete_files
from dagster_delta.errors import DeltaError, StorageFailure
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.table_configuration import TableConfiguration
from dagster_delta.storage import StoreLocation, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["backfill_on_spark"]

TASK_BYTES = 128 * 1024 * 1024
"""Bytes of data files that one task writes again."""

_REPORT_SCHEMA = "report binary"


class _Report(msgspec.Struct, frozen=True):
    """What a task tells the driver."""

    files: tuple[AddFile, ...] = ()
    num_rows: int = 0
    num_nulled: int = 0
    num_problems: int = 0
    examples: tuple[str, ...] = ()
    error: str | None = None


def backfill_on_spark(plan: ReadPlan, spec: WriteSpec, *, session: SparkSession) -> Backfilled:
    """As `backfill_files` does, on the executors.

    Args:
        plan: as there.
        spec: as there.
        session: classic or Connect.

    Raises:
        InvalidArgument: the executors cannot import this package.
        DataFileMissing, CorruptDeletionVector, InvalidTable, UnsupportedFeature, StorageFailure:
            of a file; files already written are deleted as far as the store lets it.
    """
    task = BackfillTask(spec.location, plan.version, plan.configuration, plan.columns, spec)
    shares = pa.table({"files": pa.array([_encode(each) for each in _shares(plan.files)])})
    with spark_failures(table=spec.location.uri):
        frame = frame_of(session, shares, "files binary").repartition(shares.num_rows)
        rows = frame.mapInArrow(task, _REPORT_SCHEMA).collect()
    reports = [msgspec.msgpack.decode(bytes(each["report"]), type=_Report) for each in rows]
    return _joined(reports, plan)


def _joined(reports: list[_Report], plan: ReadPlan) -> Backfilled:
    files = tuple(file for each in reports for file in each.files)
    problems = Problems()
    for each in reports:
        problems.join(Problems(each.num_problems, list(each.examples)))
    error = next((each.error for each in reports if each.error is not None), None)
    if error is not None or problems.num_rows:
        delete_files([each.path for each in files], plan.store)
    if error is not None:
        raise decode_error(error)
    return Backfilled(
        () if problems.num_rows else files,
        sum(each.num_rows for each in reports),
        sum(each.num_nulled for each in reports),
        problems,
    )


@dataclass(frozen=True, slots=True)
class BackfillTask:
    """Writes the files again that rows of one binary column name."""

    location: StoreLocation
    version: int
    configuration: TableConfiguration
    columns: tuple[str, ...]
    spec: WriteSpec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One report for each share of the files.

        Raises:
            StorageFailure: the store refused or failed; the task may be run again.
        """
        store = None
        for batch in batches:
            for share in batch.column(0).to_pylist():
                store = store or open_store(self.location.uri, self.location.options)
                plan = ReadPlan(
                    store=store,
                    version=self.version,
                    configuration=self.configuration,
                    files=_decode(share),
                    columns=self.columns,
                )
                report = msgspec.msgpack.encode(self._run(plan))
                yield pa.record_batch({"report": pa.array([report], pa.binary())})

    def _run(self, plan: ReadPlan) -> _Report:
        try:
            done = backfill_files(plan, self.spec)
        except StorageFailure:
            raise
        except DeltaError as error:
            # Spark would run the task again, to meet the same file.
            return _Report(error=encode_error(error))
        return _Report(
            done.files,
            done.num_rows,
            done.num_nulled,
            done.problems.num_rows,
            tuple(done.problems.examples),
        )


def _shares(files: Any) -> Iterator[Any]:
    """The files in runs of about TASK_BYTES."""
    start = size = 0
    for index, size_bytes in enumerate(files["size_bytes"].to_pylist()):
        if index > start and size + size_bytes > TASK_BYTES:
            yield files.slice(start, index - start)
            start, size = index, 0
        size += size_bytes
    yield files.slice(start)


def _encode(files: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, files.schema) as writer:
        writer.write_table(files)
    return bytes(sink.getvalue())


def _decode(data: bytes) -> Any:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
