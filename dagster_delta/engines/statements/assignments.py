"""The SET of an UPDATE: which columns get which values, and how rows get them.

Every value is computed from the row as it was. Values are cast as Spark casts them: by store
assignment where it allows the pair of types, by an ANSI cast otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.expressions.constraint_check import ConstraintCheck
from dagster_delta.engines.expressions.evaluation import evaluate
from dagster_delta.engines.plans import Assignment, Constraint
from dagster_delta.engines.values.ansi_cast import can_store
from dagster_delta.engines.values.store_assignment import assign_batches, misfit
from dagster_delta.errors import InvalidArgument, SchemaMismatch, UnsupportedExpression
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.sql.expressions import SqlExpression, parse_expression
from dagster_delta.sql.typed import Column
from dagster_delta.sql.types import VARIANT, is_primitive, sql_type_name

if TYPE_CHECKING:
    from dagster_delta.engines.rows.completion import ComputedColumns

__all__ = [
    "RowUpdate",
    "check_computable",
    "compute",
    "compute_assigned",
    "parse_assignments",
    "refuse_lacking_fields",
]


def parse_assignments(
    values: Mapping[str, str],
    schema: StructType,
    *,
    value_schema: StructType | None = None,
    casts: bool = True,
    fills: bool = False,
) -> tuple[Assignment, ...]:
    """What an UPDATE sets.

    Args:
        values: Spark SQL by column; `a.b` is a field of a struct, backticks quote odd names.
        schema: logical schema of the table.
        value_schema: what the values are computed from, where that is not the row of the table.
        casts: whether the SQL casts what store assignment would refuse; else who computes it does.
        fills: whether fields of structs that a value lacks become null.

    Raises:
        InvalidArgument: nothing is set, a column is set twice, a name or a value is no SQL text.
        SchemaMismatch: a column is not there, or a value lacks a field of it.
    """
    if not values:
        raise InvalidArgument("an update sets at least one column: pass {column: expression}")
    assignments = []
    for name, sql in values.items():
        if not isinstance(sql, str):
            raise InvalidArgument(
                f"the value of column {name} is a Spark SQL expression, not {sql!r}: write "
                'strings as "\'text\'" and numbers as "1"',
                column=name,
            )
        column, data_type = _find_target(name, schema)
        scope = schema if value_schema is None else value_schema
        value = parse_expression(sql, scope)
        if not fills and value.data_type is not None:
            refuse_lacking_fields(column, value.data_type, data_type)
        cast = _cast_where_refused(sql, value, scope, data_type) if casts else None
        if cast is None:
            assignments.append(Assignment(column, value))
        else:
            assignments.append(Assignment(column, cast, uncast=value))
    _refuse_overlaps(assignments)
    return tuple(assignments)


def refuse_lacking_fields(column: Sequence[str], source: DataType, target: DataType) -> None:
    """Make sure that a value has every field of the column that it replaces, at any depth: one that
    it lacks would lose what it holds.

    Args:
        column: logical path of the column.
        source: type of the value.
        target: type of the column.

    Raises:
        SchemaMismatch: it does not.
    """
    for path in _lacking_fields(source, target):
        name = ".".join((*column, *path))
        raise SchemaMismatch(
            f"the new value of column {'.'.join(column)} has no field {'.'.join(path)}, and what "
            "that holds would be lost: add the field to the value, or set the other fields one by "
            'one; in a merge, schema_mode="merge" leaves it as it is',
            column=name,
        )


def _lacking_fields(source: DataType, target: DataType) -> Iterator[tuple[str, ...]]:
    match source, target:
        case StructType(), StructType():
            for each in target:
                held = source.get(each.name)
                below = [()] if held is None else _lacking_fields(held.data_type, each.data_type)
                yield from ((each.name, *path) for path in below)
        case ArrayType(held_type), ArrayType(wanted):
            yield from (("element", *path) for path in _lacking_fields(held_type, wanted))
        case MapType(), MapType():
            keys = _lacking_fields(source.key_type, target.key_type)
            yield from (("key", *path) for path in keys)
            values = _lacking_fields(source.value_type, target.value_type)
            yield from (("value", *path) for path in values)


def _find_target(name: str, schema: StructType) -> tuple[tuple[str, ...], DataType]:
    target = parse_expression(name, schema).typed
    if not isinstance(target, Column):
        raise InvalidArgument(
            f"there is no column {name!r}: an update sets columns and struct fields", column=name
        )
    return target.path, target.data_type


def _cast_where_refused(
    sql: str, value: SqlExpression, schema: StructType, target: DataType
) -> SqlExpression | None:
    """The value in an ANSI cast, or None where store assignment takes its type as it is."""
    source = value.data_type
    if source is None or not is_primitive(source) or not is_primitive(target):
        return None
    if can_store(to_arrow_type(source), target):
        return None
    # The line break ends a comment that the text may end in.
    return parse_expression(f"CAST(({sql}\n) AS {sql_type_name(target)})", schema)


def _refuse_overlaps(assignments: Sequence[Assignment]) -> None:
    set_columns: set[tuple[str, ...]] = set()
    within: dict[tuple[str, ...], tuple[str, ...]] = {}
    """A column that is set, by each struct that it is in and by itself."""
    for assignment in assignments:
        column = assignment.column
        leading = [column[:length] for length in range(1, len(column) + 1)]
        whole = next((path for path in leading if path in set_columns), None)
        other = within.get(column, whole)
        if other is not None:
            raise InvalidArgument(
                f"columns {'.'.join(column)} and {'.'.join(other)} overlap: set only one of them",
                column=".".join(column),
            )
        set_columns.add(column)
        for path in leading:
            within.setdefault(path, column)


class RowUpdate:
    """Gives rows their new values, on the embedded engine.

    Args:
        assignments: what is set.
        schema: logical schema of the table.
        constraints: what the new rows have to satisfy.
        table: URI of the table, for errors.
        generated: columns that are computed from the new rows.

    Raises:
        UnsupportedExpression: a value or a constraint cannot be computed exactly.
    """

    def __init__(
        self,
        assignments: Sequence[Assignment],
        schema: StructType,
        constraints: Sequence[Constraint],
        *,
        table: str,
        generated: ComputedColumns | None = None,
    ) -> None:
        for each in assignments:
            check_computable(each)
        self._by_column: dict[str, list[Assignment]] = {}
        for assignment in assignments:
            self._by_column.setdefault(assignment.column[0], []).append(assignment)
        self._generated = generated
        self._table, self._schema = table, schema
        assigned = tuple(self._by_column)
        self.columns = assigned if generated is None else (*assigned, *generated.names)
        """Logical names of the top-level columns that change."""
        self._changed = StructType(tuple(schema.field(name) for name in assigned))
        self._constraints = ConstraintCheck(constraints, schema, table=table)

    def apply(
        self, rows: pa.RecordBatch, computed_from: pa.RecordBatch | None = None
    ) -> pa.RecordBatch:
        """The rows with their new values.

        Args:
            rows: `pyarrow.RecordBatch` of all columns of the table.
            computed_from: what the values are computed from, row for row; by default the rows.

        Raises:
            InvalidArgument: a value cannot be computed, as in Spark's ANSI mode.
            InvalidCast: a value does not fit its column.
            ConstraintViolation: a new row breaks a constraint, NOT NULL included.
        """
        scope = rows if computed_from is None else computed_from
        new_values = {field.name: self._new_values(rows, scope, field) for field in self._changed}
        # With the other columns, which an error shows too.
        names = rows.schema.names
        source = pa.RecordBatch.from_arrays(
            [new_values.get(name, rows.column(name)) for name in names], names=names
        )
        reader = pa.RecordBatchReader.from_batches(source.schema, [source])
        assigned = pa.Table.from_batches(
            list(assign_batches(reader, self._schema, table=self._table))
        )
        changed = {name: _one_array(assigned[name]) for name in self._changed.names}
        updated = _with_columns(rows, changed)
        if self._generated is not None:
            updated = _with_columns(updated, self._generated.compute(updated))
        self._constraints.check(updated)
        return updated

    def _new_values(self, rows: Any, scope: Any, field: StructField) -> Any:
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


def _with_columns(rows: Any, columns: Mapping[str, Any]) -> Any:
    """The rows with other values in some columns."""
    arrays = [
        columns.get(name, array)
        for name, array in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


def check_computable(assignment: Assignment) -> None:
    """Make sure that the embedded engine can compute a value.

    Raises:
        UnsupportedExpression: it cannot.
    """
    value = assignment.value
    if isinstance(value.typed, Column):
        return
    value.check_embeddable()
    data_type = value.data_type
    if data_type is not None and not is_primitive(data_type) and data_type != VARIANT:
        raise UnsupportedExpression(
            f"the embedded engine cannot compute {value.sql!r}, a value of type "
            f"{sql_type_name(data_type)}: use the Spark engine",
            column=".".join(assignment.column),
        )


def compute(value: SqlExpression, rows: pa.RecordBatch) -> Any:
    """The value for each row, as one `pyarrow.Array`.

    Raises:
        InvalidArgument, UnsupportedExpression: of the expression.
    """
    columns: Any = rows
    match value.typed:
        case Column(path=(name, *nested)):
            # Of nested columns the SQL engine only gets where they are null.
            array = columns.column(name)
            for step in nested:
                array = _struct_child(array, step)
            return array
    return _one_array(evaluate(value, rows))


def _struct_child(struct: Any, name: str) -> Any:
    """A field of a struct array, null where the struct is."""
    index = struct.type.get_field_index(name)
    if not struct.null_count:
        # The kernel takes time in proportion to the number of fields, for each of them.
        return struct.field(index)
    return pc.struct_field(struct, indices=[index])


def compute_assigned(assignment: Assignment, rows: pa.RecordBatch, *, table: str) -> Any:
    """The new value of a column for each row, as one `pyarrow.Array`.

    Args:
        assignment: what is set.
        rows: what it is computed from.
        table: URI of the table, for errors.

    Raises:
        InvalidCast: the value can be computed, and does not fit the type of the column.
        InvalidArgument, UnsupportedExpression: of the expression.
    """
    try:
        return compute(assignment.value, rows)
    except InvalidArgument as error:
        if assignment.uncast is None:
            raise
        compute(assignment.uncast, rows)
        raise misfit(".".join(assignment.column), 1, table=table) from error


def _with_fields(
    struct: Any,
    data_type: StructType,
    values: Mapping[tuple[str, ...], Any],
    nulls: Mapping[tuple[str, ...], Any],
) -> Any:
    """A struct array with other values of some fields.

    Where the struct was null it is one of nulls now, but for these fields, as in Spark; unless
    `nulls` has its path, and says that what it is taken from is null as well.
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


def _one_array(values: Any) -> Any:
    if not isinstance(values, pa.ChunkedArray):
        return values
    return values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks)
