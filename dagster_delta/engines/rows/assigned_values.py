"""The values that assignments give to columns, computed over Arrow from the rows as they were."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.expressions.evaluation import evaluate
from dagster_delta.engines.plans import Assignment
from dagster_delta.engines.values.store_assignment import misfit
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.values.arrow_columns import whole_array
from dagster_delta.sql.expressions import SqlExpression
from dagster_delta.sql.typed import Column

_MAX_EXAMPLES = 5


def compute(value: SqlExpression, rows: pa.RecordBatch) -> pa.Array:
    """The value for each row, as one `pyarrow.Array`."""
    columns: Any = rows
    match value.typed:
        case Column(path=(name, *nested)):
            # The SQL engine only gets the nulls of nested columns.
            array = columns.column(name)
            for step in nested:
                array = _struct_child(array, step)
            return array
    return whole_array(evaluate(value, rows))


def _struct_child(struct: pa.StructArray, name: str) -> pa.Array:
    """A field of a struct array, null if the struct is."""
    index = struct.type.get_field_index(name)
    if not struct.null_count:
        # The kernel's time for each field is proportional to the number of fields.
        return struct.field(index)
    return pc.struct_field(struct, indices=[index])


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
