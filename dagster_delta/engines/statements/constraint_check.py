"""Generated columns and constraints of a statement: which columns to compute, and checks of rows
batch by batch, on the embedded engine.

Spec: Column Invariants; CHECK Constraints; Generated Columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.plans import WriteSpec
from dagster_delta.errors import MAX_EXAMPLES, ConstraintViolation, PartitionMismatch
from dagster_delta.protocol.features.column_values import (
    ColumnExpression,
    ColumnValues,
    updated_values,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_values import FALSE, TRUE
from dagster_delta.python_values import python_rows
from dagster_delta.sql.constraint import Constraint
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.typed import quote


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
        passes = pc.fill_null(result, TRUE if constraint.null_passes else FALSE)
        if pc.all(passes, min_count=0).as_py():
            continue
        positions = pc.indices_nonzero(pc.invert(passes))
        raise _describe_violation(constraint, batch, positions, table)


def _describe_violation(
    constraint: Constraint, batch: pa.RecordBatch, positions: pa.UInt64Array, table: str
) -> ConstraintViolation:
    rows = python_rows(pc.take(batch, positions.slice(0, MAX_EXAMPLES)))
    kind = PartitionMismatch if constraint.is_partition else ConstraintViolation
    remedy = (
        "write only rows that it covers, or widen the predicate"
        if constraint.is_partition
        else "correct the rows or drop them"
    )
    problem = f"break {constraint.name} ({constraint.sql})"
    if constraint.is_slice:
        problem = f"are outside of {constraint.name}, for which {constraint.sql} holds"
        remedy = "write rows of the slice alone"
    return kind(
        f"at least {len(positions)} row(s) {problem}: {remedy}",
        table=table,
        examples=tuple(map(repr, rows)),
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


def rows_outside(
    batches: Iterable[pa.RecordBatch], condition: str, spec: WriteSpec
) -> Iterator[pa.RecordBatch]:
    """The rows for which a condition is not true, as `pa.RecordBatch`es."""
    expression = parse_expression(condition, spec.configuration.schema, spec.time_zone)
    expression.check_embeddable()
    for batch in batches:
        inside = pc.fill_null(expression.evaluate_filter(batch), fill_value=False)
        yield batch.filter(pc.invert(inside))


def generation_constraints(values: ColumnValues) -> tuple[Constraint, ...]:
    """The constraints on generated columns that the data contain."""
    # Spec: (<value> <=> <generation expression>) IS TRUE.
    return tuple(
        Constraint(
            f"GENERATED {column.column}", f"{quote(column.column)} <=> {_add_parentheses(column)}"
        )
        for column in values.verified
    )


def _add_parentheses(column: ColumnExpression) -> str:
    # A line break ends a comment at the end of the text.
    return f"({column.sql}\n)" if "--" in column.sql else f"({column.sql})"


def changed_values(configuration: TableConfiguration, assigned: Collection[str]) -> ColumnValues:
    """How to complete rows of a table that get new values in some columns: as `updated_values`,
    without generated columns that read none of them.

    `assigned`: logical names of the top-level columns that change, in whole or in part.

    Raises:
        InvalidArgument: an identity column is assigned.
        SchemaMismatch: a generated column is computed from a column that does not exist.
        InvalidTable, UnsupportedFeature: of the schema.
    """
    values = updated_values(configuration, assigned)
    if not values.generated:
        return values
    schema = configuration.schema
    changed = {schema.field(name).name for name in assigned}
    affected = tuple(
        column
        for column in values.generated
        if changed.intersection(path[0] for path in parse_expression(column.sql, schema).references)
    )
    return replace(values, generated=affected)
