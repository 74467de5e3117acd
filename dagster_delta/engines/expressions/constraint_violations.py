"""The error for rows that violate a constraint, the same for every engine.

Spec: Column Invariants; CHECK Constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_delta.engines.plans import Constraint
from dagster_delta.errors import ConstraintViolation, PartitionMismatch

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["refuse_violations"]

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

    Args:
        constraints: constraints that the rows must satisfy.
        results: for each constraint a pyarrow boolean Array or ChunkedArray, one value per row.
        batch: the rows, a pyarrow RecordBatch or Table.
        table: URI of the target, for the error.

    Raises:
        ConstraintViolation: a row violates a constraint; with the first few as examples.
        PartitionMismatch: likewise, for a constraint on the partition that is written.
    """
    import pyarrow.compute as pc

    for constraint, result in zip(constraints, results, strict=True):
        passes = result.fill_null(constraint.null_passes)
        if pc.all(passes, min_count=0).as_py():
            continue
        positions = pc.indices_nonzero(pc.invert(passes))
        raise _violation(constraint, batch, positions, table)


def _violation(
    constraint: Constraint, batch: pa.RecordBatch, positions: pa.UInt64Array, table: str
) -> ConstraintViolation:
    from dagster_delta.engines.expressions.example_rows import python_rows

    rows = python_rows(batch.take(positions.slice(0, _MAX_EXAMPLES)))
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
