"""Fills in column values that the data lack, on the embedded engine.

Spec: Generated Columns; Identity Columns; Default Columns.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.engines.expressions.evaluation import column_at, evaluate
from dagster_delta.engines.plans import Assignment
from dagster_delta.engines.statements.assignments import check_computable, parse_assignments
from dagster_delta.engines.statements.generated_columns import quoted
from dagster_delta.engines.values.store_assignment import assign_batches, misfit
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.features.column_values import (
    ColumnExpression,
    ColumnValues,
    IdentityColumn,
)
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_columns import whole_array
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.sql.expressions import SqlExpression
from dagster_delta.sql.filters import at_moment
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


class ComputedColumns:
    """Columns whose values are computed from the other columns of a row.

    `value_schema`: the columns that the expressions may use.

    Raises:
        UnsupportedExpression: the embedded engine cannot compute one exactly.
        InvalidArgument, SchemaMismatch: of an expression.
    """

    def __init__(
        self,
        columns: Iterable[ColumnExpression],
        schema: StructType,
        value_schema: StructType,
        *,
        table: str,
    ) -> None:
        values = {quoted(each.column): each.sql for each in columns}
        self._assignments = (
            parse_assignments(values, schema, value_schema=value_schema, fills=True)
            if values
            else ()
        )
        for each in self._assignments:
            check_computable(each)
        self.names = tuple(each.column[0] for each in self._assignments)
        """Logical names of the columns."""
        self._fields = StructType(tuple(schema.field(name) for name in self.names))
        self._table = table

    def compute(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The values by column: `pyarrow.Array`s of the columns' own types.

        Raises:
            InvalidArgument: a value cannot be computed, as in Spark's ANSI mode.
            InvalidCast, ConstraintViolation: a value does not fit its column, or is null if
                that is not allowed.
        """
        if not self._assignments or not rows.num_rows:
            return {each.name: pa.nulls(0, each.type) for each in to_arrow_schema(self._fields)}
        arrays = [compute(each.value, rows) for each in self._assignments]
        source = pa.RecordBatch.from_arrays(arrays, names=list(self.names))
        reader = pa.RecordBatchReader.from_batches(source.schema, [source])
        assigned = list(assign_batches(reader, self._fields, table=self._table))
        fitted = pa.Table.from_batches(assigned).combine_chunks()
        return {name: fitted[name].chunk(0) for name in self.names}


class IdentityNumbers:
    """Assigns the values of identity columns in one write, each of them once."""

    def __init__(self) -> None:
        self._given: dict[str, tuple[IdentityColumn, int]] = {}

    @property
    def high_water_marks(self) -> Mapping[str, int]:
        """The last value assigned, by identity column; empty if there were no rows."""
        return {name: identity.value(count - 1) for name, (identity, count) in self._given.items()}

    def take(self, identity: IdentityColumn, count: int) -> pa.Array:
        """The next values of a column: a `pyarrow.Int64Array` of that many."""
        if not count:
            return pa.nulls(0, pa.int64())
        _, taken = self._given.get(identity.column, (identity, 0))
        first, _ = identity.value(taken), identity.value(taken + count - 1)
        self._given[identity.column] = (identity, taken + count)
        return pa.array(np.arange(count, dtype=np.int64) * identity.step + first)


class RowCompletion:
    """Completes the rows of one write, batch by batch.

    `numbers`: assigns numbers to all rows of one commit.
    """

    def __init__(
        self,
        values: ColumnValues,
        schema: StructType,
        numbers: IdentityNumbers,
        *,
        table: str,
    ) -> None:
        filled = frozenset(values.columns)
        later = frozenset(each.column for each in values.generated)
        self.given = StructType(tuple(each for each in schema if each.name not in filled))
        """The columns that the rows have, or that are null."""
        before = StructType(tuple(each for each in schema if each.name not in later))
        self._identities, self._numbers = values.identities, numbers
        moment = dt.datetime.now(dt.UTC)
        constants = [replace(each, sql=at_moment(each.sql, moment)) for each in values.defaults]
        self._defaults = ComputedColumns(constants, schema, StructType(()), table=table)
        self._generated = ComputedColumns(values.generated, schema, before, table=table)
        self._default_values: dict[str, pa.Scalar] = {}
        self._schema = schema

    def complete(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same rows with all columns of the table, in its order.

        `batches`: `pyarrow.RecordBatch`es of `given`.
        """
        arrow_schema = to_arrow_schema(self._schema)
        for batch in batches:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns |= self._take_defaults(batch.num_rows)
            columns |= {
                each.column: self._numbers.take(each, batch.num_rows) for each in self._identities
            }
            columns |= self._generated.compute(_rows(columns, batch.num_rows))
            arrays = [columns[each.name] for each in arrow_schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)

    def _take_defaults(self, num_rows: int) -> dict[str, pa.Array]:
        if not self._default_values and self._defaults.names:
            # Constants are computed once.
            self._default_values = self._defaults.compute(_rows({}, 1))
        return {name: pa.repeat(each[0], num_rows) for name, each in self._default_values.items()}


def _rows(columns: Mapping[str, pa.Array], num_rows: int) -> pa.RecordBatch:
    if columns:
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    # Constants only need the number of rows.
    return pa.RecordBatch.from_arrays([pa.nulls(num_rows)], names=["\0row"])
