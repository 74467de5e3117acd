"""Writing a DataFrame: the executors write the data files, the driver learns their names.

The rows never reach the driver, and the DataFrame is evaluated once.
"""

from __future__ import annotations

import logging
from types import ModuleType
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from dagster_delta.engines.engine import WriteResult, WriteSpec
from dagster_delta.engines.spark.errors import executor_failure
from dagster_delta.engines.spark.schema import from_spark_schema, to_spark_type
from dagster_delta.engines.spark.session import functions_of
from dagster_delta.engines.spark.tasks import REPORT_SCHEMA, WriteTask, decode_reports
from dagster_delta.engines.store_assignment import assign_batches
from dagster_delta.errors import DeltaError
from dagster_delta.protocol.arrow_schema import to_arrow_schema
from dagster_delta.protocol.partition_values import decode_path
from dagster_delta.protocol.schema import ArrayType, MapType, StructField, StructType
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["write_frame"]

_LOG = logging.getLogger(__name__)

_OPTIMIZE_WRITE = "delta.autoOptimize.optimizeWrite"


def write_frame(frame: DataFrame, spec: WriteSpec, store: ObjectStore) -> WriteResult:
    """The data files that now hold the rows of the DataFrame.

    Only the files of tasks whose reports arrived are in the result; those of a speculative or
    repeated attempt stay unreferenced until VACUUM removes them.

    Raises:
        SchemaMismatch, InvalidCast, ConstraintViolation, PartitionMismatch: as the Arrow engine;
            files already written are deleted where that is possible.
        StorageFailure: the store refused or failed on an executor.
        InvalidArgument: the executors cannot import this package.
    """
    schema = from_spark_schema(frame.schema)
    _check_columns(schema, spec)
    task = WriteTask(spec, schema.names)
    rows = _arranged(_with_constraints(frame, schema, spec), schema, spec)
    try:
        reports = rows.mapInArrow(task, REPORT_SCHEMA).collect()
    except Exception as error:
        failure = executor_failure(error, table=spec.location.uri)
        if failure is None:
            raise
        raise failure from error
    result, data_error = decode_reports([(each["kind"], each["payload"]) for each in reports])
    if data_error is not None:
        _delete_files(result, store)
        raise data_error
    return result


def _check_columns(schema: StructType, spec: WriteSpec) -> None:
    """Refuse columns that cannot be stored before a job is started for them."""
    arrow_schema = to_arrow_schema(schema)
    reader = pa.RecordBatchReader.from_batches(arrow_schema, iter(()))
    assign_batches(reader, spec.configuration.schema, table=spec.location.uri)


def _delete_files(result: WriteResult, store: ObjectStore) -> None:
    try:
        store.delete([decode_path(each.path) for each in result.files])
    except (DeltaError, OSError):
        # The error in the data matters more; VACUUM finds what is left.
        _LOG.warning(
            "%d unreferenced data files may be left in %s",
            len(result.files),
            store.location.uri,
            exc_info=True,
        )


def _source_name(index: int) -> str:
    return f"__source_{index}"


def _with_constraints(frame: DataFrame, schema: StructType, spec: WriteSpec) -> DataFrame:
    """The columns of the DataFrame, numbered, and behind them one boolean per constraint."""
    functions = functions_of(frame)
    numbered = frame.toDF(*(_source_name(index) for index in range(len(schema))))
    if not spec.constraints:
        return numbered
    sources = [functions.col(_source_name(index)) for index in range(len(schema))]
    # Constraints speak of the table's columns and types, whatever the DataFrame has.
    targets = [
        _as_stored(each, schema, functions).alias(each.name) for each in spec.configuration.schema
    ]
    checks = [
        functions.expr(constraint.sql).cast("boolean").alias(f"__check_{index}")
        for index, constraint in enumerate(spec.constraints)
    ]
    return numbered.select(*sources, *targets).select(*sources, *checks)


def _as_stored(field: StructField, schema: StructType, functions: ModuleType) -> Column:
    """A column of the table as it will be stored; null where a value does not fit, which the task
    refuses before it looks at the constraints.
    """
    target = to_spark_type(field.data_type)
    found = schema.get(field.name)
    if found is None:
        return cast("Column", functions.lit(None).cast(target))
    source: Column = functions.col(_source_name(schema.names.index(found.name)))
    if isinstance(field.data_type, (StructType, ArrayType, MapType)):
        return source
    if found.data_type == field.data_type:
        return source
    return source.try_cast(target)


def _arranged(rows: DataFrame, schema: StructType, spec: WriteSpec) -> DataFrame:
    """The rows brought together by partition, so that a partition is not scattered over as many
    files as there are tasks. Adaptive execution splits what is too big for one task.

    The shuffle is what that costs; a table whose rows come clustered already can decline it by the
    property that delta-spark has for it.
    """
    configuration = spec.configuration
    if configuration.metadata.configuration.get(_OPTIMIZE_WRITE, "").lower() == "false":
        return rows
    functions = functions_of(rows)
    found = [schema.get(each) for each in configuration.partition_columns]
    columns = [functions.col(_source_name(schema.names.index(each.name))) for each in found if each]
    return rows.hint("rebalance", *columns) if columns else rows
