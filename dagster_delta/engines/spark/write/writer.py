"""Writing a DataFrame: the executors write the data files, the driver gets their names.

The rows never reach the driver. The DataFrame is evaluated once, or again if a row is long.

Spec: Generated Columns; Identity Columns; Default Columns; Column Invariants; CHECK Constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_delta.engines.plans import WriteResult, WriteSpec
from dagster_delta.engines.spark.executor_reports import REPORT_SCHEMA, settle_reports
from dagster_delta.engines.spark.session.errors import spark_failures
from dagster_delta.engines.spark.session.schema import (
    declared_column,
    from_spark_schema,
    sql_column,
    to_spark_type,
)
from dagster_delta.engines.spark.session.session import functions_of
from dagster_delta.engines.spark.write.arrow_batches import collect_counted
from dagster_delta.engines.spark.write.tasks import (
    ChangeDetail,
    ChangeTask,
    changes_of,
)
from dagster_delta.parquet.store_assignment import assign_batches
from dagster_delta.protocol.features.column_values import (
    LONG_MAX,
    LONG_MIN,
    ColumnExpression,
    ColumnValues,
    IdentityColumn,
)
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_OPTIMIZE_WRITE = "delta.autoOptimize.optimizeWrite"


@dataclass(frozen=True, slots=True)
class _WrittenRows:
    """Rows to write; make them with `_WrittenRows.of`."""

    frame: DataFrame
    """The columns have numbers as names, so that they never collide with the table's names."""
    schema: StructType
    """Name and type of each column, before the cast to the table's types."""
    spec: WriteSpec

    @classmethod
    def of(cls, frame: DataFrame, spec: WriteSpec) -> _WrittenRows:
        """The rows of a DataFrame; Spark casts values that depend on the zone of its session."""
        schema = from_spark_schema(frame.schema)
        numbered = frame.toDF(*map(_source_name, range(len(schema))))
        return _in_session_zone(cls(numbered, schema, spec))

    def completed(self, *, is_arranged: bool) -> _WrittenRows:
        """The rows with every column that the spec defines how to fill.

        Rows are numbered last, in the stage that writes them: if Spark retries a task, only the
        files of one attempt count. So the shuffle comes before.
        """
        values = self.spec.values
        early, late = _by_need(values, self.spec.configuration.schema)
        rows = _computed(_computed(self, values.defaults), early)
        rows = rows if is_arranged else _gathered(rows)
        return _computed(_numbered(rows), late)

    def arranged(self) -> DataFrame:
        """The rows as a `ChangeTask` inserts them: the number of the action, the columns of the
        table, which the task casts, and one boolean per constraint.
        """
        functions, constraints = functions_of(self.frame), self.spec.constraints
        new = [
            _source_of(field, self.schema, functions).alias(f"__new_{index}")
            for index, field in enumerate(self.spec.configuration.schema)
        ]
        checks = [
            sql_column(constraint.sql, functions).cast("boolean").alias(f"__check_{index}")
            for index, constraint in enumerate(constraints)
        ]
        rows = _named(self) if constraints else self.frame
        return rows.select(functions.lit(0).alias("__action"), *new, *checks)


_ZONED_CASTS = frozenset(
    {
        ("date", "timestamp"),
        ("timestamp_ntz", "timestamp"),
        ("timestamp", "timestamp_ntz"),
        ("timestamp", "string"),
    }
)
"""Casts whose result depends on the time zone. The tasks cast all other values, in UTC."""


def _in_session_zone(rows: _WrittenRows) -> _WrittenRows:
    table = rows.spec.configuration.schema
    fields = []
    for field in rows.schema:
        stored = table.get(field.name)
        data_type = field.data_type if stored is None else _zoned(field.data_type, stored.data_type)
        fields.append(replace(field, data_type=data_type))
    schema = StructType(tuple(fields))
    if schema == rows.schema:
        return rows
    columns = [
        source if old.data_type == new.data_type else source.cast(to_spark_type(new.data_type))
        for source, old, new in zip(_sources(rows), rows.schema, schema, strict=True)
    ]
    named = [column.alias(_source_name(index)) for index, column in enumerate(columns)]
    return _WrittenRows(rows.frame.select(*named), schema, rows.spec)


def _zoned(source: DataType, target: DataType) -> DataType:
    """The source type, with the results of casts that depend on the time zone."""
    match source, target:
        case StructType(fields), StructType():
            return StructType(
                tuple(
                    replace(field, data_type=_zoned(field.data_type, found.data_type))
                    if (found := target.get(field.name))
                    else field
                    for field in fields
                )
            )
        case ArrayType(element_type=held), ArrayType(element_type=wanted):
            return replace(source, element_type=_zoned(held, wanted))
        case MapType(), MapType():
            return replace(
                source,
                key_type=_zoned(source.key_type, target.key_type),
                value_type=_zoned(source.value_type, target.value_type),
            )
    if (str(source), str(target)) == ("timestamp", "date"):
        # The task makes the date of the local time, to see whether the time of day is lost.
        return PrimitiveType("timestamp_ntz")
    return target if (str(source), str(target)) in _ZONED_CASTS else source


def _sources(rows: _WrittenRows) -> list[Column]:
    functions = functions_of(rows.frame)
    return [functions.col(_source_name(index)) for index in range(len(rows.schema))]


def _named(rows: _WrittenRows) -> DataFrame:
    """The columns, followed by the table's: expressions use its names and types, not those of the
    DataFrame.
    """
    functions = functions_of(rows.frame)
    targets = [
        declared_column(_as_stored(field, rows.schema, functions), field)
        for field in rows.spec.configuration.schema
    ]
    return rows.frame.select(*_sources(rows), *targets)


def _computed(rows: _WrittenRows, columns: Sequence[ColumnExpression]) -> _WrittenRows:
    if not columns:
        return rows
    functions = functions_of(rows.frame)
    values = [sql_column(column.sql, functions) for column in columns]
    return _extended(rows, _named(rows), [column.column for column in columns], values)


def _numbered(rows: _WrittenRows) -> _WrittenRows:
    identities = rows.spec.values.identities
    if not identities:
        return rows
    functions = functions_of(rows.frame)
    values = [identity_value(identity, functions) for identity in identities]
    return _extended(rows, rows.frame, [identity.column for identity in identities], values)


def _extended(
    rows: _WrittenRows, frame: DataFrame, names: Sequence[str], values: Sequence[Column]
) -> _WrittenRows:
    known = len(rows.schema)
    new = [value.alias(_source_name(known + index)) for index, value in enumerate(values)]
    extended = frame.select(*_sources(rows), *new)
    types = from_spark_schema(extended.schema, with_collations=True).fields[known:]
    fields = [StructField(name, field.data_type) for name, field in zip(names, types, strict=True)]
    return _WrittenRows(extended, StructType((*rows.schema, *fields)), rows.spec)


def _gathered(rows: _WrittenRows) -> _WrittenRows:
    """The rows shuffled by partition, so that a partition does not get one file per task.

    Adaptive execution splits a partition too big for one task. A table whose rows are already
    clustered can avoid the cost with the property that delta-spark has for it.
    """
    configuration = rows.spec.configuration
    if configuration.metadata.configuration.get(_OPTIMIZE_WRITE, "").lower() == "false":
        return rows
    functions, schema = functions_of(rows.frame), rows.schema
    found = [schema.get(column) for column in configuration.partition_columns]
    columns = [
        functions.col(_source_name(schema.names.index(field.name))) for field in found if field
    ]
    if not columns:
        return rows
    return _WrittenRows(rows.frame.hint("rebalance", *columns), schema, rows.spec)


def _by_need(
    values: ColumnValues, schema: StructType
) -> tuple[list[ColumnExpression], list[ColumnExpression]]:
    """The generated columns that can be computed before rows are numbered, and the others."""
    if not values.identities:
        return list(values.generated), []
    numbered = {identity.column for identity in values.identities}
    early: list[ColumnExpression] = []
    late: list[ColumnExpression] = []
    for column in values.generated:
        bases = {path[0] for path in parse_expression(column.sql, schema).references}
        (late if bases & numbered else early).append(column)
    return early, late


def _source_name(index: int) -> str:
    return f"__source_{index}"


def _as_stored(field: StructField, schema: StructType, functions: ModuleType) -> Column:
    """A column of the table as stored; null if a value does not fit, which the task refuses before
    it checks the constraints.
    """
    source, found = _source_of(field, schema, functions), schema.get(field.name)
    is_nested = isinstance(field.data_type, (StructType, ArrayType, MapType))
    if found is None or is_nested or found.data_type == field.data_type:
        return source
    return source.try_cast(to_spark_type(field.data_type))


def _source_of(field: StructField, schema: StructType, functions: ModuleType) -> Column:
    """The source of a column of the table; nulls if the rows lack it."""
    found = schema.get(field.name)
    if found is None:
        null: Column = functions.lit(None).cast(to_spark_type(field.data_type))
        return null
    source: Column = functions.col(_source_name(schema.names.index(found.name)))
    return source


def write_frame(
    frame: DataFrame, spec: WriteSpec, store: ObjectStore, *, is_arranged: bool = False
) -> WriteResult:
    """Write the rows of the DataFrame; returns the data files.

    Only the files of tasks whose reports arrived are in the result; those of a speculative or
    repeated attempt stay unreferenced until VACUUM removes them.

    `is_arranged`: whether the rows of a partition are together already, so that they are not
    shuffled.
    """
    rows = _WrittenRows.of(frame, spec)
    _check_columns(rows.schema, spec)
    rows = rows.completed(is_arranged=is_arranged)
    task = ChangeTask(spec, None, ("insert",), numbered=(spec.values.identities,))
    with spark_failures(table=spec.location.uri, in_query=False):
        reports = collect_counted(
            rows.frame,
            lambda frame: replace(rows, frame=frame).arranged().mapInArrow(task, REPORT_SCHEMA),
            table=spec.location.uri,
        )
    written = changes_of(settle_reports(reports, ChangeDetail, store))
    size_bytes = sum(file.size_bytes for file in written.files)
    return WriteResult(written.files, written.counts[0], size_bytes, written.high_water_marks)


def _check_columns(schema: StructType, spec: WriteSpec) -> None:
    """Refuse columns that cannot be stored, before the job starts."""
    filled = frozenset(spec.values.columns)
    target = StructType(
        tuple(field for field in spec.configuration.schema if field.name not in filled)
    )
    reader = pa.RecordBatchReader.from_batches(to_arrow_schema(schema), iter(()))
    assign_batches(reader, target, table=spec.location.uri)


_ROW_BITS = 33
"""Spark numbers the rows of a task with this many low bits; the task's number is above them."""


def identity_value(identity: IdentityColumn, functions: ModuleType) -> Column:
    """The unique value of an identity column for each row of a query; null if it does not
    fit a 64-bit integer.

    The number of tasks is unknown when rows are numbered. So row `k` of task `t` takes
    the number whose low bits are the Elias gamma code of `t + 1`, and whose high bits are `k`: no
    such code is a prefix of another, so tasks never collide, and few tasks leave small gaps.
    """

    def long(value: int) -> Column:
        return functions.lit(value).cast("bigint")

    number = functions.monotonically_increasing_id()
    row = number.bitwiseAND(long((1 << _ROW_BITS) - 1))
    task = functions.shiftright(number, _ROW_BITS) + long(1)
    # The length of the binary form minus one: logarithms would be rounded.
    width = functions.length(functions.bin(task)) - functions.lit(1)
    power = _shifted(long(1), width, functions)
    code = power + _shifted(task - power, width + functions.lit(1), functions)
    stride = _shifted(long(1), width * functions.lit(2) + functions.lit(1), functions)
    index = functions.try_add(functions.try_multiply(row, stride), code)
    first = identity.next_value
    if not LONG_MIN <= first <= LONG_MAX:
        return functions.lit(None).cast("bigint")
    # The lowest of all codes is 1.
    distance = functions.try_multiply(index - long(1), long(identity.step))
    return functions.try_add(long(first), distance)


def _shifted(value: Column, bits: Column, functions: ModuleType) -> Column:
    # The function of that name takes no column of bits.
    return functions.call_function("shiftleft", value, bits.cast("int"))
