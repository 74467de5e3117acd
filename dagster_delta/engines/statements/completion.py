"""Computes new column values on the embedded engine: those that the data lack, and assigned ones.

An update computes the assigned values first, then generated columns.

Spec: Generated Columns; Identity Columns; Default Columns.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.plans import Assignment, WriteSpec
from dagster_delta.engines.statements.assignments import (
    check_computable,
    parse_assignments,
    source_structs,
)
from dagster_delta.engines.statements.constraint_check import ConstraintCheck
from dagster_delta.errors import MAX_EXAMPLES, InvalidArgument
from dagster_delta.parquet.casts import failing_places
from dagster_delta.parquet.store_assignment import assign_rows, misfit
from dagster_delta.protocol.features.column_values import (
    ColumnExpression,
    IdentityColumn,
)
from dagster_delta.protocol.schema import StructField, StructType
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.python_values import python_value
from dagster_delta.sql.filters import at_moment
from dagster_delta.sql.typed import quote


def compute_assigned(assignment: Assignment, rows: pa.RecordBatch, *, table: str) -> pa.Array:
    """The new value of a column for each row, as one `pyarrow.Array`."""
    try:
        return assignment.value.evaluate(rows)
    except InvalidArgument as error:
        if assignment.uncast is None:
            raise
        values = assignment.uncast.evaluate(rows)
        places = failing_places(
            lambda start, stop: assignment.value.evaluate(rows.slice(start, stop - start)),
            (InvalidArgument,),
            range(rows.num_rows),
            MAX_EXAMPLES,
        )
        data_type = assignment.value.data_type
        assert data_type is not None  # noqa: S101  of a cast
        raise misfit(
            ".".join(assignment.column),
            data_type,
            [repr(python_value(values[place])) for place in places],
            table=table,
        ) from error


def exact_columns(assignments: Iterable[Assignment]) -> frozenset[str]:
    """The top-level columns of which a value may lose no part."""
    return frozenset(each.column[0] for each in assignments if each.is_exact)


class ComputedColumns:
    """Columns whose values are computed from the other columns of a row.

    `value_schema`: the columns that the expressions may use.
    `zone`: time zone of the statement.

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
        zone: str,
    ) -> None:
        values = {quote(column.column): column.sql for column in columns}
        self._assignments = (
            parse_assignments(values, schema, value_schema=value_schema, fills=True, zone=zone)
            if values
            else ()
        )
        for assignment in self._assignments:
            check_computable(assignment)
        self.names = tuple(assignment.column[0] for assignment in self._assignments)
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
            return {field.name: pa.nulls(0, field.type) for field in to_arrow_schema(self._fields)}
        arrays = [assignment.value.evaluate(rows) for assignment in self._assignments]
        source = pa.RecordBatch.from_arrays(arrays, names=list(self.names))
        fitted = assign_rows(source, self._fields, table=self._table)
        return dict(zip(self.names, fitted.columns, strict=True))


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

    `schema`: of the complete rows.
    `numbers`: assigns numbers to all rows of one commit.
    """

    def __init__(self, spec: WriteSpec, schema: StructType, numbers: IdentityNumbers) -> None:
        values, table, zone = spec.values, spec.location.uri, spec.time_zone
        filled = frozenset(values.columns)
        later = frozenset(column.column for column in values.generated)
        self.given = StructType(tuple(field for field in schema if field.name not in filled))
        """The columns that the rows have, or that are null."""
        before = StructType(tuple(field for field in schema if field.name not in later))
        self._identities, self._numbers = values.identities, numbers
        moment = dt.datetime.now(dt.UTC)
        constants = [
            replace(default, sql=at_moment(default.sql, moment)) for default in values.defaults
        ]
        nothing = StructType(())
        self._defaults = ComputedColumns(constants, schema, nothing, table=table, zone=zone)
        self._generated = ComputedColumns(values.generated, schema, before, table=table, zone=zone)
        self._default_values: dict[str, pa.Scalar] = {}
        self._schema = schema

    def complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows with all columns of the table, in its order.

        `batch`: a `pyarrow.RecordBatch` of `given`.
        """
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= self._take_defaults(batch.num_rows)
        columns |= {
            identity.column: self._numbers.take(identity, batch.num_rows)
            for identity in self._identities
        }
        columns |= self._generated.compute(_build_rows(columns, batch.num_rows))
        arrow_schema = to_arrow_schema(self._schema)
        arrays = [columns[field.name] for field in arrow_schema]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)

    def _take_defaults(self, num_rows: int) -> dict[str, pa.Array]:
        if not self._default_values and self._defaults.names:
            # Constants are computed once.
            self._default_values = self._defaults.compute(_build_rows({}, 1))
        return {name: pa.repeat(value[0], num_rows) for name, value in self._default_values.items()}


def _build_rows(columns: Mapping[str, pa.Array], num_rows: int) -> pa.RecordBatch:
    if columns:
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    # Constants only need the number of rows.
    return pa.RecordBatch.from_arrays([pa.nulls(num_rows)], names=["\0row"])


class RowUpdate:
    """Gives rows their new values, including generated columns, on the embedded engine.

    `spec`: its values are the generated columns that follow, see `changed_values`.
    `schema`: of the rows.
    """

    def __init__(
        self, assignments: Sequence[Assignment], spec: WriteSpec, schema: StructType
    ) -> None:
        for assignment in assignments:
            check_computable(assignment)
        self._by_column: dict[str, list[Assignment]] = {}
        for assignment in assignments:
            self._by_column.setdefault(assignment.column[0], []).append(assignment)
        self._exact = exact_columns(assignments)
        self._completion = RowCompletion(spec, schema, IdentityNumbers())
        self._table, self._schema = spec.location.uri, schema
        self.columns = (*self._by_column, *spec.values.columns)
        """Logical names of the top-level columns that change."""
        self._constraints = ConstraintCheck(spec, schema)

    def apply(
        self, rows: pa.RecordBatch, computed_from: pa.RecordBatch | None = None
    ) -> pa.RecordBatch:
        """The rows with their new values.

        `computed_from`: input of the values, row for row; by default the rows.
        """
        scope = rows if computed_from is None else computed_from
        new_values = {
            name: self._new_values(rows, scope, self._schema.field(name))
            for name in self._by_column
        }
        # The rows include the other columns, which an error shows too.
        given = self._completion.given
        source = pa.RecordBatch.from_arrays(
            [new_values.get(name, rows.column(name)) for name in given.names],
            names=list(given.names),
        )
        assigned = assign_rows(source, given, table=self._table, exact_columns=self._exact)
        return self._constraints.checked(self._completion.complete(assigned))

    def _new_values(
        self, rows: pa.RecordBatch, scope: pa.RecordBatch, field: StructField
    ) -> pa.Array:
        own = self._by_column[field.name]
        if len(own[0].column) == 1:
            return compute_assigned(own[0], scope, table=self._table)
        nested = {
            assignment.column[1:]: compute_assigned(assignment, scope, table=self._table)
            for assignment in own
        }
        structs = source_structs(own, field.name).items()
        nulls = {path: struct.evaluate(scope).is_null() for path, struct in structs}
        assert isinstance(field.data_type, StructType)  # noqa: S101  a path leads through structs
        return _with_fields(rows.column(field.name), field.data_type, nested, nulls)


def _with_fields(
    struct: pa.StructArray,
    data_type: StructType,
    values: Mapping[tuple[str, ...], pa.Array],
    nulls: Mapping[tuple[str, ...], pa.Array],
) -> pa.StructArray:
    """A struct array with new values of some fields.

    As in Spark, a null struct becomes a struct of nulls with these fields. It stays null if `nulls`
    has its path and marks its source as null as well.
    """
    children = []
    for field in data_type:
        child = pc.struct_field(struct, indices=[struct.type.get_field_index(field.name)])
        below = {path[1:]: value for path, value in values.items() if path[0] == field.name}
        if () in below:
            children.append(below[()])
        elif below:
            assert isinstance(field.data_type, StructType)  # noqa: S101
            inner = {path[1:]: mask for path, mask in nulls.items() if path[:1] == (field.name,)}
            children.append(_with_fields(child, field.data_type, below, inner))
        else:
            children.append(child)
    fields = [
        pa.field(field.name, child.type) for field, child in zip(data_type, children, strict=True)
    ]
    stays_null = pc.and_(nulls[()], struct.is_null()) if () in nulls else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=stays_null)
