"""Updates rows on the embedded engine: assigned values first, then generated columns.

Spec: Generated Columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.expressions.constraint_check import ConstraintCheck
from dagster_delta.engines.plans import Assignment, Constraint
from dagster_delta.engines.rows.completion import ComputedColumns, compute, compute_assigned
from dagster_delta.engines.statements.assignments import check_computable
from dagster_delta.engines.values.store_assignment import assign_batches
from dagster_delta.protocol.features.column_values import ColumnValues
from dagster_delta.protocol.schema import StructField, StructType
from dagster_delta.protocol.values.arrow_columns import whole_array


class RowUpdate:
    """Gives rows their new values, including generated columns, on the embedded engine.

    `values`: the generated columns that follow, see `changed_values`.
    """

    def __init__(
        self,
        assignments: Sequence[Assignment],
        values: ColumnValues,
        schema: StructType,
        constraints: Sequence[Constraint],
        *,
        table: str,
    ) -> None:
        for each in assignments:
            check_computable(each)
        self._by_column: dict[str, list[Assignment]] = {}
        for assignment in assignments:
            self._by_column.setdefault(assignment.column[0], []).append(assignment)
        self._generated = ComputedColumns(values.generated, schema, schema, table=table)
        self._table, self._schema = table, schema
        assigned = tuple(self._by_column)
        self.columns = (*assigned, *self._generated.names)
        """Logical names of the top-level columns that change."""
        self._changed = StructType(tuple(schema.field(name) for name in assigned))
        self._constraints = ConstraintCheck(constraints, schema, table=table)

    def apply(
        self, rows: pa.RecordBatch, computed_from: pa.RecordBatch | None = None
    ) -> pa.RecordBatch:
        """The rows with their new values.

        `computed_from`: input of the values, row for row; by default the rows.
        """
        scope = rows if computed_from is None else computed_from
        new_values = {field.name: self._new_values(rows, scope, field) for field in self._changed}
        # The rows include the other columns, which an error shows too.
        names = rows.schema.names
        source = pa.RecordBatch.from_arrays(
            [new_values.get(name, rows.column(name)) for name in names], names=names
        )
        reader = pa.RecordBatchReader.from_batches(source.schema, [source])
        assigned = pa.Table.from_batches(
            list(assign_batches(reader, self._schema, table=self._table))
        )
        changed = {name: whole_array(assigned[name]) for name in self._changed.names}
        updated = _with_columns(rows, changed)
        if self._generated.names:
            updated = _with_columns(updated, self._generated.compute(updated))
        self._constraints.check(updated)
        return updated

    def _new_values(
        self, rows: pa.RecordBatch, scope: pa.RecordBatch, field: StructField
    ) -> pa.Array:
        own = self._by_column[field.name]
        if len(own[0].column) == 1:
            return compute_assigned(own[0], scope, table=self._table)
        nested = {each.column[1:]: compute_assigned(each, scope, table=self._table) for each in own}
        structs = {
            each.column[1 : depth + 1]: struct
            for each in own
            for depth, struct in enumerate(each.structs)
        }
        nulls = {path: compute(each, scope).is_null() for path, each in structs.items()}
        assert isinstance(field.data_type, StructType)  # noqa: S101  a path leads through structs
        return _with_fields(rows.column(field.name), field.data_type, nested, nulls)


def _with_columns(rows: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """The rows with new values in some columns."""
    arrays = [
        columns.get(name, array)
        for name, array in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


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
            inner = {path[1:]: each for path, each in nulls.items() if path[:1] == (field.name,)}
            children.append(_with_fields(child, field.data_type, below, inner))
        else:
            children.append(child)
    fields = [
        pa.field(field.name, child.type) for field, child in zip(data_type, children, strict=True)
    ]
    stays_null = pc.and_(nulls[()], struct.is_null()) if () in nulls else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=stays_null)
