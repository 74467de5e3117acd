"""Checking constraints batch by batch, on the embedded engine.

Spec: Column Invariants; CHECK Constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.plans import Constraint
from dagster_delta.errors import ConstraintViolation, PartitionMismatch
from dagster_delta.protocol.schema import StructType

_NO_PYTHON_VALUE = "(outside the years 1 to 9999)"


def python_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """The rows as values by column, to be shown: dates that Python does not have are a text."""
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except (OverflowError, ValueError):
        # Dates of Python end at the year 9999, those of a table do not.
        columns = zip(batch.schema.names, batch.columns, strict=True)
        values = {name: [_python_value(each) for each in column] for name, column in columns}
        return [{name: values[name][at] for name in values} for at in range(batch.num_rows)]
    return rows


def _python_value(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return _NO_PYTHON_VALUE


_MAX_EXAMPLES = 5
_MAX_EXAMPLE_LENGTH = 300


def refuse_violations(
    constraints: Sequence[Constraint],
    results: Sequence[pa.Array],
    batch: pa.RecordBatch,
    *,
    table: str,
) -> None:
    """Check that every row of a batch satisfies every constraint.

    `results`: for each constraint a pyarrow boolean Array or ChunkedArray, one value per row.
    """
    for constraint, result in zip(constraints, results, strict=True):
        passes = pc.fill_null(result, constraint.null_passes)
        if pc.all(passes, min_count=0).as_py():
            continue
        positions = pc.indices_nonzero(pc.invert(passes))
        raise _violation(constraint, batch, positions, table)


def _violation(
    constraint: Constraint, batch: pa.RecordBatch, positions: pa.UInt64Array, table: str
) -> ConstraintViolation:
    rows = python_rows(pc.take(batch, positions.slice(0, _MAX_EXAMPLES)))
    kind = PartitionMismatch if constraint.is_partition else ConstraintViolation
    remedy = (
        "write only rows that it covers, or widen the predicate"
        if constraint.is_partition
        else "correct the rows or drop them"
    )
    return kind(
        f"at least {len(positions)} row(s) break {constraint.name} ({constraint.sql}): {remedy}",
        table=table,
        examples=tuple(repr(row)[:_MAX_EXAMPLE_LENGTH] for row in rows),
    )


class ConstraintCheck:
    """Constraints of a table, parsed once."""

    def __init__(
        self, constraints: Sequence[Constraint], schema: StructType, *, table: str, zone: str
    ) -> None:
        self._constraints = tuple(constraints)
        self._parsed = []
        self._table = table
        if self._constraints:
            from dagster_delta.sql.expressions import parse_expression

            self._parsed = [
                parse_expression(constraint.sql, schema, zone) for constraint in constraints
            ]
        for each in self._parsed:
            each.check_embeddable()

    def checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same `pyarrow.RecordBatch`, after `check`."""
        self.check(batch)
        return batch

    def check(self, batch: pa.RecordBatch) -> None:
        """Check that every row of a `pyarrow.RecordBatch` satisfies every constraint."""
        if self._parsed:
            from dagster_delta.sql.evaluation import evaluate_filter

            results = [evaluate_filter(each, batch) for each in self._parsed]
            refuse_violations(self._constraints, results, batch, table=self._table)
