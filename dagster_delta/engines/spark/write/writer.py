"""Writing a DataFrame: the executors write the data files, the driver gets their names.

The rows never reach the driver. The DataFrame is evaluated once, or again if a row is long.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_delta.engines.plans import WriteResult, WriteSpec
from dagster_delta.engines.spark.executor_reports import REPORT_SCHEMA, settle_reports
from dagster_delta.engines.spark.session.errors import executor_failures
from dagster_delta.engines.spark.session.session import MAX_RECORDS, functions_of, session_conf
from dagster_delta.engines.spark.write.arrow_batches import collect_counted
from dagster_delta.engines.spark.write.partition_exchange import (
    PACKED_PARTITION,
    PACKED_SCHEMA,
    PackTask,
    UnpackTask,
    slice_size_bytes,
)
from dagster_delta.engines.spark.write.tasks import WriteDetail, WriteTask, result_of
from dagster_delta.engines.spark.write.written_rows import WrittenRows
from dagster_delta.engines.values.store_assignment import assign_batches
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["write_frame"]


def write_frame(frame: DataFrame, spec: WriteSpec, store: ObjectStore) -> WriteResult:
    """Write the rows of the DataFrame; returns the data files.

    Only the files of tasks whose reports arrived are in the result; those of a speculative or
    repeated attempt stay unreferenced until VACUUM removes them.

    Raises:
        SchemaMismatch, InvalidCast, ConstraintViolation, PartitionMismatch: as the Arrow engine;
            files already written are deleted if possible.
        StorageFailure: the store refused or failed on an executor.
        InvalidArgument: the executors cannot import this package, or an identity column has no
            values left.
    """
    rows = WrittenRows.of(frame, spec)
    _check_columns(rows.schema, spec)
    rows = rows.completed()
    with executor_failures(table=spec.location.uri):
        reports = collect_counted(
            rows.frame,
            lambda frame: _reporting(replace(rows, frame=frame)),
            table=spec.location.uri,
        )
    return result_of(settle_reports(reports, WriteDetail, store))


def _reporting(rows: WrittenRows) -> DataFrame:
    """The query that writes the rows: its own rows are the reports of its tasks."""
    checked, task = rows.checked(), WriteTask(rows.spec, rows.schema.names)
    if not rows.is_packed:
        return checked.mapInArrow(task, REPORT_SCHEMA)
    max_records = int(session_conf(checked.sparkSession, MAX_RECORDS) or 0)
    packed = checked.mapInArrow(PackTask(task, slice_size_bytes(max_records)), PACKED_SCHEMA)
    gathered = packed.hint("rebalance", functions_of(checked).col(PACKED_PARTITION))
    return gathered.mapInArrow(UnpackTask(rows.spec), REPORT_SCHEMA)


def _check_columns(schema: StructType, spec: WriteSpec) -> None:
    """Refuse columns that cannot be stored, before the job starts."""
    filled = frozenset(spec.values.columns)
    target = StructType(
        tuple(each for each in spec.configuration.schema if each.name not in filled)
    )
    reader = pa.RecordBatchReader.from_batches(to_arrow_schema(schema), iter(()))
    assign_batches(reader, target, table=spec.location.uri)
