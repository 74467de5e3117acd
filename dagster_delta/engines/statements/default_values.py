"""Checks that the default of a column is a value of its type, before any row uses it.

Spec: Default Columns.
"""

from __future__ import annotations

import datetime as dt

import pyarrow as pa

from dagster_delta.engines.statements.completion import ComputedColumns
from dagster_delta.errors import (
    ConstraintViolation,
    InvalidArgument,
    SchemaMismatch,
    UnsupportedExpression,
)
from dagster_delta.parquet.casts import can_store
from dagster_delta.protocol.features.column_values import DEFAULT_KEY, ColumnExpression
from dagster_delta.protocol.schema import StructField, StructType
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.filters import at_moment
from dagster_delta.sql.table_expressions import check_table_expression
from dagster_delta.sql.time_zone import UTC


def check_default_value(field: StructField) -> None:
    """Refuse a default that no row could use, or that does more than compute a value.

    A default that only Spark can compute is accepted, unless its type cannot be stored in the
    column: a write that uses it checks the value.
    """
    sql, what = str(field.metadata[DEFAULT_KEY]), f"the default of column {field.name}"
    check_table_expression(sql, StructType(()), what, is_default=True)
    try:
        compute_default(field, sql)
    except UnsupportedExpression:
        _check_type(field, sql)


def compute_default(field: StructField, sql: str, zone: str = UTC) -> object:
    """The value of a default, Spark SQL without columns, as from Arrow's `as_py`, in a statement of
    a time zone; UnsupportedExpression if only Spark can compute it.
    """
    one_row = pa.RecordBatch.from_arrays([pa.nulls(1)], names=["\0row"])
    try:
        found = ComputedColumns(
            [ColumnExpression(field.name, sql)],
            StructType((field,)),
            StructType(()),
            table="",
            zone=zone,
        ).compute(one_row)
    except (SchemaMismatch, ConstraintViolation, InvalidArgument) as error:
        raise InvalidArgument(
            f"the default of column {field.name} ({sql}) is not a value of type {field.data_type}: "
            f"{error.message}",
            column=field.name,
        ) from None
    value: object = found[field.name][0].as_py()
    return value


def _check_type(field: StructField, sql: str) -> None:
    # Any time works: only the type is needed.
    moment = at_moment(sql, dt.datetime(2000, 1, 1, tzinfo=dt.UTC))
    found = parse_expression(moment, StructType(())).data_type
    if found is not None and not can_store(to_arrow_type(found), field.data_type):
        raise InvalidArgument(
            f"the default of column {field.name} ({sql}) is of type {found}, which cannot be "
            f"stored as {field.data_type}: cast it",
            column=field.name,
        )
