"""The values that assignments give to columns, computed over Arrow from the rows as they were."""

from __future__ import annotations

import pyarrow as pa

from dagster_delta.engines.expressions.evaluation import column_at, evaluate
from dagster_delta.engines.plans import Assignment
from dagster_delta.engines.values.store_assignment import misfit
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.values.arrow_columns import whole_array
from dagster_delta.sql.expressions import SqlExpression
from dagster_delta.sql.typed import Column

_MAX_EXAMPLES = 5


def compute(value: SqlExpression, rows: pa.RecordBatch) -> pa.Array:
    """The value for each row, as one `pyarrow.Array`."""
    if isinstance(value.typed, Column):
        # The SQL engine only gets the nulls of nested columns.
        return column_at(rows, value.typed.path)
    return whole_array(evaluate(value, rows))


def compute_assigned(assignment: Assignment, rows: pa.RecordBatch, *, table: str) -> pa.Array:
    """The new value of a column for each row, as one `pyarrow.Array`."""
    try:
        return compute(assignment.value, rows)
    except InvalidArgument as error:
        if assignment.uncast is None:
            raise
        values = compute(assignment.uncast, rows)
        data_type = assignment.value.data_type
        assert data_type is not None  # noqa: S101  of a cast
        raise misfit(
            ".".join(assignment.column),
            data_type,
            [repr(values[place].as_py()) for place in _failing_rows(assignment.value, rows)],
            table=table,
        ) from error


def _failing_rows(value: SqlExpression, rows: pa.RecordBatch, start: int = 0) -> list[int]:
    """Positions of up to `_MAX_EXAMPLES` rows for which a value fails, found by bisection."""
    try:
        compute(value, rows)
    except InvalidArgument:
        if rows.num_rows == 1:
            return [start]
    else:
        return []
    middle = rows.num_rows // 2
    found = _failing_rows(value, rows.slice(0, middle), start)
    if len(found) < _MAX_EXAMPLES:
        found += _failing_rows(value, rows.slice(middle), start + middle)
    return found[:_MAX_EXAMPLES]
