"""Checking constraints batch by batch, on the embedded engine.

Spec: Column Invariants; CHECK Constraints.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dagster_delta.engines.expressions.constraint_violations import refuse_violations
from dagster_delta.engines.plans import Constraint
from dagster_delta.protocol.schema import StructType

__all__ = ["ConstraintCheck"]


class ConstraintCheck:
    """Constraints of a table, parsed once.

    Args:
        constraints: constraints that every row must satisfy.
        schema: logical schema of the rows.
        table: URI of the table, for errors.

    Raises:
        UnsupportedExpression: the embedded engine cannot evaluate one of them exactly.
    """

    def __init__(
        self, constraints: Sequence[Constraint], schema: StructType, *, table: str
    ) -> None:
        self._constraints = tuple(constraints)
        self._parsed = []
        self._table = table
        if self._constraints:
            from dagster_delta.sql.expressions import parse_expression

            self._parsed = [parse_expression(each.sql, schema) for each in self._constraints]
        for each in self._parsed:
            each.check_embeddable()

    def check(self, batch: pa.RecordBatch) -> None:
        """Check that every row of a `pyarrow.RecordBatch` satisfies every constraint.

        Raises:
            ConstraintViolation, PartitionMismatch: with the count and a few examples of the
                violating rows.
        """
        if self._parsed:
            from dagster_delta.engines.expressions.evaluation import evaluate_filter

            results = [evaluate_filter(each, batch) for each in self._parsed]
            refuse_violations(self._constraints, results, batch, table=self._table)
