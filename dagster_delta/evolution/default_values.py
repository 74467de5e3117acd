"""Whether the default of a column is a value of it, found before any row takes it.

Spec: Default Columns.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from dagster_delta.engines.row_completion import ComputedColumns
from dagster_delta.errors import (
    ConstraintViolation,
    InvalidArgument,
    SchemaMismatch,
    UnsupportedExpression,
)
from dagster_delta.protocol.column_values import DEFAULT_KEY, ColumnExpression
from dagster_delta.protocol.schema import StructField, StructType

__all__ = ["check_default_values"]


def check_default_values(fields: Iterable[StructField]) -> None:
    """Refuse defaults that no row could take.

    Args:
        fields: top-level columns with a default.

    Raises:
        InvalidArgument: a default does not fit the type of its column. One that only Spark can
            compute passes: the write that takes it will tell.
    """
    one_row = pa.RecordBatch.from_arrays([pa.nulls(1)], names=["\0row"])
    for field in fields:
        sql = str(field.metadata[DEFAULT_KEY])
        try:
            ComputedColumns(
                [ColumnExpression(field.name, sql)], StructType((field,)), StructType(()), table=""
            ).compute(one_row)
        except UnsupportedExpression:
            continue
        except (SchemaMismatch, ConstraintViolation, InvalidArgument) as error:
            raise InvalidArgument(
                f"the default of column {field.name} ({sql}) is no value of type "
                f"{field.data_type}: {error.message}",
                column=field.name,
            ) from None
