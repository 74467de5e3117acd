"""The clauses of a MERGE, and the columns of target and source that they name.

Names are resolved as in Spark: first after an alias, else in the only side that has a column of
that name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.engines.plans import Assignment
from dagster_delta.engines.statements.assignments import (
    check_computable,
    parse_assignments,
    resolve_defaults,
)
from dagster_delta.engines.statements.constraint_check import changed_values
from dagster_delta.errors import InvalidArgument, SchemaMismatch
from dagster_delta.parquet.casts import can_store
from dagster_delta.protocol.features.column_values import (
    NO_VALUES,
    ColumnValues,
    filled_columns,
    inserted_values,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import DataType, StructField, StructType, fold_name
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.sql.expressions import SqlExpression, parse_expression
from dagster_delta.sql.filters import check_repeatable
from dagster_delta.sql.time_zone import UTC
from dagster_delta.sql.typed import Column, Typed, quote_path, with_paths
from dagster_delta.sql.types import is_primitive, sql_type_name

ClauseKind = Literal["matched", "not_matched", "not_matched_by_source"]
_Filled = Collection[str] | None

TARGET, SOURCE = "target", "source"
"""The first parts of every path in the typed trees of a MERGE."""

_SIDES: dict[ClauseKind, tuple[str, ...]] = {
    "matched": (TARGET, SOURCE),
    "not_matched": (SOURCE,),
    "not_matched_by_source": (TARGET,),
}


class ClauseText(msgspec.Struct, frozen=True):
    """One WHEN clause as the caller wrote it."""

    kind: ClauseKind
    action: Literal["update", "delete", "insert"]
    condition: str | None = None
    """Spark SQL; None is always true."""
    values: Mapping[str, str] | None = None
    """Spark SQL by target column; None takes every column from the source."""


class MergeClause(msgspec.Struct, frozen=True):
    """One WHEN clause with resolved names."""

    text: ClauseText
    condition: Typed | None
    """Paths start with `TARGET` or `SOURCE`; None is always true."""
    assignments: tuple[Assignment, ...]
    """Assignments of values over the batches that `MergeNames.rows` makes."""
    values: ColumnValues = NO_VALUES
    """Sources of the columns that are not assigned: all others of an insert, and the columns that
    an update must recompute."""
    fills: bool = False
    """Whether fields of structs that a value lacks become null."""


class MergeNames:
    """The columns that expressions of one MERGE may name.

    `assigned`: logical schema of the table for writing rows, if columns are added.
    `embedded`: whether the embedded engine will compute the expressions.
    `zone`: time zone of the statement.

    Raises:
        InvalidArgument: both have the same alias, or one of them has none.
    """

    def __init__(
        self,
        target: StructType,
        source: StructType,
        target_alias: str,
        source_alias: str,
        *,
        assigned: StructType | None = None,
        embedded: bool = True,
        zone: str = UTC,
    ) -> None:
        if not target_alias or not source_alias:
            raise InvalidArgument("the aliases of a merge may not be empty")
        if fold_name(target_alias) == fold_name(source_alias):
            raise InvalidArgument(
                f"target and source of the merge have the same alias {target_alias!r}: give them "
                "different aliases"
            )
        self._schemas = {TARGET: target, SOURCE: source}
        self._aliases = {TARGET: target_alias, SOURCE: source_alias}
        self._scopes = {sides: self._build_scope(sides) for sides in _SIDES.values()}
        self.assigned = target if assigned is None else assigned
        """Logical schema for writing rows."""
        self.embedded = embedded
        """Whether the embedded engine computes the expressions."""
        self.zone = zone
        """Time zone of the statement."""

    @property
    def target(self) -> StructType:
        """Logical schema of the table."""
        return self._schemas[TARGET]

    @property
    def source(self) -> StructType:
        """Logical schema of the source."""
        return self._schemas[SOURCE]

    def scope(self, kind: ClauseKind) -> StructType:
        """The schema in which names in clauses of a kind are resolved."""
        return self._scopes[_SIDES[kind]]

    def parse(self, sql: str, kind: ClauseKind, *, decides: bool = False) -> SqlExpression:
        """An expression in a clause of a kind.

        Raises:
            InvalidArgument: it is not an expression, or a name is in both sides.
            SchemaMismatch: it names a column that the clause cannot use.
            UnsupportedExpression: the embedded engine cannot compute it exactly.
        """
        if not isinstance(sql, str):
            raise InvalidArgument(
                f"expressions are strings of Spark SQL, not {sql!r}: write the condition as in "
                '"t.id = s.id", and a value as in "s.price * 2"'
            )
        try:
            expression = parse_expression(sql, self.scope(kind), self.zone)
        except SchemaMismatch as mismatch:
            if len(_SIDES[kind]) == 1:
                mismatch.message += f"; this clause sees only {self._aliases[_SIDES[kind][0]]}"
            raise
        if decides:
            check_repeatable(expression, "a condition of the merge")
        if self.embedded and not isinstance(expression.typed, Column):
            expression.check_embeddable()
        for path in expression.references:
            if len(path) == 1 and self._side_of_alias(path[0]) is not None:
                raise self._alias_alone(path[0])
            if len(_SIDES[kind]) > 1:
                self._refuse_unclear(path[0])
        return expression

    def condition(self, sql: str, kind: ClauseKind) -> Typed:
        """A condition, with paths that start with `TARGET` or `SOURCE`. Raises as `parse` does."""
        expression = self.parse(sql, kind, decides=True)
        expression.check_filter()
        if self.embedded:
            expression.check_embeddable()
        return with_paths(expression.typed, lambda path: self._whole_path(path, kind))

    def paths(self, clause: MergeClause) -> frozenset[tuple[str, ...]]:
        """The columns that the values of a clause read; paths start with `TARGET` or `SOURCE`."""
        found = (path for assignment in clause.assignments for path in assignment.value.references)
        return frozenset(self._whole_path(path, clause.text.kind) for path in found)

    def target_column(self, name: str) -> tuple[str, ...]:
        """Logical path in the table of a column that a clause sets, with or without an alias.

        Raises:
            InvalidArgument: it is not a column.
            SchemaMismatch: the table does not have it.
        """
        if not isinstance(name, str):
            raise InvalidArgument(f"expressions are strings of Spark SQL, not {name!r}")
        alias = self._aliases[TARGET]
        typed = parse_expression(name, _side_scope(alias, self.assigned)).typed
        if not isinstance(typed, Column):
            raise InvalidArgument(f"the table has no column {name!r}", column=name)
        path = typed.path
        if fold_name(path[0]) != fold_name(alias):
            return path
        if len(path) == 1:
            # A column of that name is set, as there is no other thing that could be.
            column = self.assigned.get(alias)
            if column is None:
                raise self._alias_alone(alias)
            return (column.name,)
        return path[1:]

    def rows(self, sides: Mapping[str, pa.RecordBatch]) -> pa.RecordBatch:
        """Rows of one side or both in the form for the values of assignments.

        `sides`: a `pyarrow.RecordBatch` by `TARGET` or `SOURCE`; columns that no value reads may be
        missing.
        """
        columns: dict[str, pa.Array] = {}
        for side, batch in sides.items():
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                # Expressions of the MERGE cannot read a column that it adds to the table.
                if self._schemas[side].get(name) is not None:
                    columns.setdefault(name, array)
            if not batch.num_columns:
                continue
            columns[self._aliases[side]] = pa.StructArray.from_arrays(
                batch.columns, fields=[field.with_nullable(True) for field in batch.schema]
            )
        if not columns:
            # Constants only need the number of rows.
            count = next(iter(sides.values())).num_rows
            columns["\0row"] = pa.nulls(count)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def is_of_source(self, path: tuple[str, ...], kind: ClauseKind) -> bool:
        """Whether a path in an expression of a clause leads to a column of the source."""
        return self._whole_path(path, kind)[0] == SOURCE

    def alias(self, side: str) -> str:
        """The alias of a side in expressions."""
        return self._aliases[side]

    def _alias_alone(self, name: str) -> InvalidArgument:
        return InvalidArgument(
            f"{name} is an alias of this merge: qualify a column of that name with an alias, as in "
            f"{self._aliases[TARGET]}.{name}"
        )

    def _build_scope(self, sides: Sequence[str]) -> StructType:
        """A struct per alias, and the columns that need no alias."""
        fields = [StructField(self._aliases[side], self._schemas[side]) for side in sides]
        taken = {fold_name(name) for name in self._aliases.values()}
        for side in sides:
            fields += [field for field in self._schemas[side] if fold_name(field.name) not in taken]
            taken.update(fold_name(name) for name in self._schemas[side].names)
        return StructType(tuple(fields))

    def _refuse_unclear(self, name: str) -> None:
        target, source = self._aliases[TARGET], self._aliases[SOURCE]
        is_alias = self._side_of_alias(name) is not None
        if not is_alias and all(schema.get(name) is not None for schema in self._schemas.values()):
            raise InvalidArgument(
                f"both sides of the merge have a column {name}: write {target}.{name} or "
                f"{source}.{name}",
                column=name,
            )

    def _side_of_alias(self, name: str) -> str | None:
        for side, alias in self._aliases.items():
            if fold_name(alias) == fold_name(name):
                return side
        return None

    def _whole_path(self, path: tuple[str, ...], kind: ClauseKind) -> tuple[str, ...]:
        side = self._side_of_alias(path[0])
        if side is not None:
            return (side, *path[1:])
        # The scope has a name without an alias only if it is in one side.
        return next((side, *path) for side in _SIDES[kind] if self._schemas[side].get(path[0]))


def _side_scope(alias: str, schema: StructType) -> StructType:
    """The columns of one side, with and without its alias."""
    columns = (field for field in schema if fold_name(field.name) != fold_name(alias))
    return StructType((StructField(alias, schema), *columns))


def parse_clauses(
    texts: Sequence[ClauseText],
    names: MergeNames,
    configuration: TableConfiguration,
    *,
    evolves: bool = False,
    new_columns: Collection[str] = (),
) -> tuple[MergeClause, ...]:
    """The clauses of a MERGE, in order.

    `evolves`: whether the source may have only some of the table's columns.
    `new_columns`: columns added since the statement began, which the source may lack.

    Raises:
        InvalidArgument: there are none, an unconditional one precedes others of its kind, or an
            expression is invalid.
        SchemaMismatch: a name is not a column; the source or a value lacks one of its fields.
        UnsupportedExpression: the embedded engine cannot compute an expression exactly.
    """
    if not texts:
        raise InvalidArgument("a merge needs at least one clause, such as when_matched_update")
    for position, text in enumerate(texts):
        if text.condition is None and any(
            later.kind == text.kind for later in texts[position + 1 :]
        ):
            kind = text.kind.replace("_", " ")
            raise InvalidArgument(
                f"a 'when {kind}' clause without a condition precedes another one, which would "
                "never be reached: give it a condition, or move it to the end"
            )
    filled = None if evolves else filled_columns(configuration).union(new_columns)
    return tuple(_parse_clause(text, names, configuration, filled) for text in texts)


def _parse_clause(
    text: ClauseText, names: MergeNames, configuration: TableConfiguration, filled: _Filled
) -> MergeClause:
    evolves = filled is None
    condition = None
    if text.condition is not None:
        condition = names.condition(text.condition, text.kind)
    if text.action == "delete":
        return MergeClause(text, condition, ())
    if text.values is None:
        values = _every_column(names, filled)
        if evolves and text.action == "update":
            values = _every_field(names)
    else:
        values = _by_path(text, names)
        values = resolve_defaults(
            values,
            configuration,
            names.assigned,
            fills=text.action == "insert",
            embedded=names.embedded,
        )
    for sql in values.values():
        if isinstance(sql, str):
            names.parse(sql, text.kind)
    assignments = parse_assignments(
        values,
        names.assigned,
        value_schema=names.scope(text.kind),
        casts=names.embedded,
        fills=evolves,
        zone=names.zone,
    )
    if not evolves:
        kept = (_with_exact_values(each, names, text.kind) for each in assignments)
        assignments = tuple(kept)
    if text.values is None:
        assignments = tuple(_with_structs(assignment, names) for assignment in assignments)
    for assignment in assignments if names.embedded else ():
        check_computable(assignment)
    assigned = {assignment.column[0] for assignment in assignments}
    complete = inserted_values if text.action == "insert" else changed_values
    return MergeClause(text, condition, assignments, complete(configuration, assigned), evolves)


def _with_exact_values(assignment: Assignment, names: MergeNames, kind: ClauseKind) -> Assignment:
    """The assignment of a column of the source as an append stores it: no value loses a part. A
    computed value is cast as Spark casts it.
    """
    value = assignment.uncast or assignment.value
    typed = value.typed
    if not isinstance(typed, Column) or not names.is_of_source(typed.path, kind):
        return assignment
    target = names.assigned.fields_along(assignment.column)[-1].data_type
    source = typed.data_type
    is_atomic = is_primitive(source) and is_primitive(target)
    if is_atomic and not can_store(to_arrow_type(source), target):
        column = ".".join(assignment.column)
        raise SchemaMismatch(
            f"{value.sql} of the source is a {sql_type_name(source)}, which cannot be stored in "
            f"column {column} of type {sql_type_name(target)}: cast it first",
            column=column,
        )
    # A cast that was added all the same converts times in the zone of the statement.
    return assignment if assignment.uncast else replace(assignment, is_exact=True)


def _by_path(text: ClauseText, names: MergeNames) -> dict[str, str]:
    assert text.values is not None  # noqa: S101  that means every column
    values: dict[str, str] = {}
    for name, sql in text.values.items():
        path = names.target_column(name)
        if text.action == "insert" and len(path) > 1:
            raise InvalidArgument(
                f"an insert sets whole columns, and {name} is a field", column=name
            )
        quoted = quote_path(path)
        if quoted in values:
            raise InvalidArgument(f"column {name} is set twice", column=name)
        values[quoted] = sql
    return values


def _every_column(names: MergeNames, filled: _Filled) -> dict[str, str]:
    """All columns of the table from those of the source; others of the source are ignored.

    `filled`: columns that the source may lack; None for all.
    """
    lacking = [field.name for field in names.assigned if names.source.get(field.name) is None]
    missing = [name for name in lacking if filled is not None and name not in filled]
    if missing:
        raise SchemaMismatch(
            f"the source of the merge has no column {', '.join(missing)}: add it, or list the "
            "assignments with when_matched_update or when_not_matched_insert, or pass "
            'schema_mode="merge" to leave such columns unchanged',
            column=missing[0],
        )
    alias = names.alias(SOURCE)
    return {
        quote_path((field.name,)): quote_path((alias, field.name))
        for field in names.assigned
        if field.name not in lacking
    }


def _every_field(names: MergeNames) -> dict[str, str]:
    """The assignments of an update from a source that may lack columns: columns and struct fields
    that it lacks do not change.
    """
    alias = names.alias(SOURCE)
    return {
        quote_path(path): quote_path((alias, *path))
        for path in _shared_paths(names.assigned, names.source)
    }


def _with_structs(assignment: Assignment, names: MergeNames) -> Assignment:
    """The assignment of a field with its source structs: a struct that is null on both sides stays
    null.
    """
    alias, path = names.alias(SOURCE), assignment.column
    structs = (quote_path((alias, *path[:depth])) for depth in range(1, len(path)))
    return replace(assignment, structs=tuple(names.parse(struct, "matched") for struct in structs))


def _shared_paths(table: StructType, source: StructType) -> Iterator[tuple[str, ...]]:
    """The fields that both have; inside a struct only if the source's lacks some."""
    for field in table:
        theirs = source.get(field.name)
        if theirs is None:
            continue
        match field.data_type, theirs.data_type:
            case StructType() as ours, StructType() as found if not _covers_fields(found, ours):
                yield from ((field.name, *path) for path in _shared_paths(ours, found))
            case _:
                yield (field.name,)


def _covers_fields(source: DataType, table: DataType) -> bool:
    """Whether a struct of the source has all fields of the table's, at every depth of structs."""
    if not isinstance(source, StructType) or not isinstance(table, StructType):
        return True
    found = ((source.get(field.name), field) for field in table)
    return all(
        theirs is not None and _covers_fields(theirs.data_type, ours.data_type)
        for theirs, ours in found
    )
