"""Writing a DataFrame: all of its rows are inserted.

Spec: Generated Columns; Identity Columns; Default Columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.engines.plans import ObservedRows, RowRules, WriteResult, WriteSpec
from dagster_delta.engines.spark.executor_reports import REPORT_SCHEMA
from dagster_delta.engines.spark.session.errors import spark_failures
from dagster_delta.engines.spark.session.schema import (
    from_spark_schema,
    sql_column,
    to_spark_type,
)
from dagster_delta.engines.spark.session.session import functions_of
from dagster_delta.engines.spark.write.arrow_batches import collect_counted
from dagster_delta.engines.spark.write.change_query import ChangingRows, RowChange, write_changes
from dagster_delta.engines.spark.write.tasks import ObserveTask
from dagster_delta.errors import InvalidArgument
from dagster_delta.parquet.store_assignment import assign_batches
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    StructType,
)
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.sql.casts import cast_depends_on_time_zone
from dagster_delta.sql.types import DATE, STRING, TIMESTAMP_NTZ
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_OPTIMIZE_WRITE = "delta.autoOptimize.optimizeWrite"


def write_frame(
    frame: DataFrame, spec: WriteSpec, store: ObjectStore, *, is_arranged: bool = False
) -> WriteResult:
    """Write the rows of the DataFrame; returns the data files.

    `is_arranged`: whether the rows of a partition are together already, so that they are not
    shuffled.
    """
    conditions = rule_columns(frame, spec.rules)
    rows, schema, given = _given_columns(frame, spec, conditions)
    _check_columns(schema, spec)
    functions, values, properties = functions_of(frame), spec.values, spec.configuration.metadata
    given |= {default.column: sql_column(default.sql, functions) for default in values.defaults}
    # The constraints of the spec verify the generated columns that are given.
    completion = msgspec.structs.replace(values, defaults=(), verified=())
    # A partition should not get one file per task. A table whose rows are already clustered can
    # avoid the cost of the shuffle.
    is_wanted = properties.configuration.get(_OPTIMIZE_WRITE, "").lower() != "false"
    is_gathered = is_wanted and not is_arranged and bool(spec.configuration.partition_columns)
    changes = ChangingRows(
        rows,
        (RowChange("insert", completion=completion, given=given),),
        spec,
        None,
        old=functions.col,
        is_gathered=is_gathered,
        conditions=tuple(rows.columns[len(frame.columns) :]),
        shown=tuple(given),
    )
    written = write_changes(changes, store, in_query=False)
    observed = None if spec.rules is None else written.observed
    return WriteResult(written.files, written.counts[0], written.high_water_marks, observed)


def rule_columns(frame: DataFrame, rules: RowRules | None) -> list[Column]:
    """For each expectation whether a row of the frame satisfies it.

    Raises:
        InvalidArgument: a condition is not boolean.
    """
    if rules is None:
        return []
    functions = functions_of(frame)
    columns = [
        sql_column(known.condition, functions).alias(f"__rule_{index}")
        for index, known in enumerate(rules.expectations)
    ]
    types = [field.dataType.simpleString() for field in frame.select(*columns).schema.fields]
    for known, found in zip(rules.expectations, types, strict=True):
        if found not in ("boolean", "void"):
            raise InvalidArgument(
                f"the expectation {known.name!r} must be a condition, and {known.condition!r} is "
                f"a value of type {found.upper()}: compare it with something"
            )
    return columns


class ObservedFrame(AbstractContextManager["ObservedFrame"]):
    """The rows of a DataFrame that are merged, which is evaluated once, and how they met their
    expectations.

    Args:
        frame: the rows.
        rules: what is expected of them.
        store: store of the table.

    Raises:
        InvalidArgument: a condition is not boolean, or fails on a row.
    """

    def __init__(self, frame: DataFrame, rules: RowRules, store: ObjectStore) -> None:
        self._rules, self._store, table = rules, store, store.location.uri
        conditions = rule_columns(frame, rules)
        with spark_failures(table=table):
            self._checked = frame.select("*", *conditions).localCheckpoint()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to delete: its files are known to who has the report."""

    @property
    def rows(self) -> DataFrame:
        """The rows to merge."""
        functions, names = functions_of(self._checked), []
        kept = functions.lit(True)
        for index, known in enumerate(self._rules.expectations):
            names.append(f"__rule_{index}")
            if known.on_violation in ("drop", "quarantine"):
                holds = functions.coalesce(functions.col(names[-1]), functions.lit(False))
                kept = kept & holds
        return self._checked.where(kept).drop(*names)

    def finish(self) -> ObservedRows:
        """The report on all rows."""
        task = ObserveTask(self._rules)
        with spark_failures(table=self._store.location.uri, in_query=False):
            reports = collect_counted(
                self._checked,
                lambda frame: frame.mapInArrow(task, REPORT_SCHEMA),
                table=self._store.location.uri,
            )
        return task.combined(reports, self._store)


def _given_columns(
    frame: DataFrame, spec: WriteSpec, conditions: Sequence[Column]
) -> tuple[DataFrame, StructType, dict[str, Column]]:
    """The rows under names that never collide with the table's, their schema before the tasks cast
    them, and the columns by the name in the table. Spark casts what depends on its time zone. The
    conditions follow the columns.
    """
    functions, table, fields = functions_of(frame), spec.configuration.schema, []
    names = [f"__source_{index}" for index in range(len(frame.columns))]
    given: dict[str, Column] = {}
    for name, field in zip(names, from_spark_schema(frame.schema), strict=True):
        stored, column, data_type = table.get(field.name), functions.col(name), field.data_type
        if stored is not None:
            data_type = _keep_zone_casts(field.data_type, stored.data_type)
            is_cast = data_type != field.data_type
            given[stored.name] = column.cast(to_spark_type(data_type)) if is_cast else column
        fields.append(replace(field, data_type=data_type))
    rules = [f"__rule_{index}" for index in range(len(conditions))]
    rows = frame.select("*", *conditions) if conditions else frame
    return rows.toDF(*names, *rules), StructType(tuple(fields)), given


def _check_columns(schema: StructType, spec: WriteSpec) -> None:
    """Refuse columns that cannot be stored, before the job starts."""
    filled = frozenset(spec.values.columns)
    target = StructType(
        tuple(field for field in spec.configuration.schema if field.name not in filled)
    )
    reader = pa.RecordBatchReader.from_batches(to_arrow_schema(schema), iter(()))
    assign_batches(reader, target, table=spec.location.uri)


def _keep_zone_casts(source: DataType, target: DataType) -> DataType:
    """The source type, with the results of casts that depend on the time zone. The tasks cast all
    other values, in UTC.
    """
    match source, target:
        case StructType(fields), StructType():
            return StructType(
                tuple(
                    replace(field, data_type=_keep_zone_casts(field.data_type, found.data_type))
                    if (found := target.get(field.name))
                    else field
                    for field in fields
                )
            )
        case ArrayType(element_type=held), ArrayType(element_type=wanted):
            return replace(source, element_type=_keep_zone_casts(held, wanted))
        case MapType(), MapType():
            return replace(
                source,
                key_type=_keep_zone_casts(source.key_type, target.key_type),
                value_type=_keep_zone_casts(source.value_type, target.value_type),
            )
    if source == STRING or not cast_depends_on_time_zone(source, target):
        return source
    # The task makes the date of the local time, to see whether the time of day is lost.
    return TIMESTAMP_NTZ if target == DATE else target
