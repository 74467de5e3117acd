"""Exact values of expressions over batches."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import pyarrow as pa

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.values.arrow_columns import whole_array
from dagster_delta.sql.evaluator import Evaluator, as_type
from dagster_delta.sql.expressions import SqlExpression


def evaluate_filter(expression: SqlExpression, batch: pa.RecordBatch | pa.Table) -> pa.BooleanArray:
    """Where a condition is true: a pa.BooleanArray with one value per row of a pa.RecordBatch or
    pa.Table, with nulls as in SQL.

    Raises:
        InvalidArgument: it is not a condition, or fails on a value.
        UnsupportedExpression: as `SqlExpression.check_embeddable` does.
    """
    expression.check_filter()
    return as_type(whole_array(_values(expression, batch)), pa.bool_())


def evaluate(
    expression: SqlExpression, batch: pa.RecordBatch | pa.Table
) -> pa.Array | pa.ChunkedArray:
    """The values of an expression: a pa.ChunkedArray of the Arrow type of its `data_type`.

    `batch`: pa.RecordBatch or pa.Table with at least the columns it names.
    """
    found = _values(expression, batch)
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])


_EVALUATORS: WeakKeyDictionary[SqlExpression, Evaluator] = WeakKeyDictionary()


def _evaluator(expression: SqlExpression) -> Evaluator:
    found = _EVALUATORS.get(expression)
    if found is None:
        found = Evaluator(expression.typed)
        if not found.is_compiled:
            expression.check_embeddable()
        _EVALUATORS[expression] = found
    return found


def _values(
    expression: SqlExpression, batch: pa.RecordBatch | pa.Table
) -> pa.Array | pa.ChunkedArray:
    try:
        return _evaluator(expression).of_batch(batch)
    except InvalidArgument as error:
        if "\n" in expression.sql:
            # It was composed here, of what a caller wrote.
            raise
        error.message = error.message.replace(
            "the expression fails", f"{expression.sql!r} fails", 1
        )
        raise
