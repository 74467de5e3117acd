"""Checking constraints batch by batch, on the embedded engine.

Spec: Column Invariants; CHECK Constraints.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.plans import Constraint, WriteSpec
from dagster_delta.errors import ConstraintViolation, PartitionMismatch
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_values import python_rows
from dagster_delta.sql.expressions import parse_expression

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
    """The constraints of a spec, parsed once."""

    def __init__(self, spec: WriteSpec, schema: StructType) -> None:
        self._constraints, self._table = spec.constraints, spec.location.uri
        self._parsed = [
            parse_expression(constraint.sql, schema, spec.time_zone)
            for constraint in spec.constraints
        ]
        for expression in self._parsed:
            expression.check_embeddable()

    def checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same `pyarrow.RecordBatch`, of which every row satisfies every constraint."""
        if self._parsed:
            results = [expression.evaluate_filter(batch) for expression in self._parsed]
            refuse_violations(self._constraints, results, batch, table=self._table)
        return batch
