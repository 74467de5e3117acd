"""The SET of an UPDATE: which columns get which values, also by the keyword DEFAULT.

Every value is computed from the old row. Values are cast as Spark casts them: by store
assignment where it allows the pair of types, by an ANSI cast otherwise.

Spec: Default Columns.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dagster_delta.engines.plans import Assignment
from dagster_delta.errors import InvalidArgument, SchemaMismatch, UnsupportedExpression
from dagster_delta.parquet.casts import can_store
from dagster_delta.protocol.features.column_values import (
    column_defaults,
    generated_columns,
    identity_columns,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    StructType,
    inner_parts,
    inner_types,
)
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.sql.casts import cast_depends_on_time_zone
from dagster_delta.sql.expressions import SqlExpression, parse_expression
from dagster_delta.sql.filters import at_moment
from dagster_delta.sql.time_zone import UTC
from dagster_delta.sql.typed import Column
from dagster_delta.sql.types import VARIANT, is_primitive, sql_type_name


def parse_assignments(
    values: Mapping[str, str],
    schema: StructType,
    *,
    value_schema: StructType | None = None,
    casts: bool = True,
    fills: bool = False,
    zone: str = UTC,
) -> tuple[Assignment, ...]:
    """Parse the assignments of an UPDATE.

    `values`: Spark SQL by column; `a.b` is a field of a struct, backticks quote special names.
    `value_schema`: schema of the input of the values, if it is not the row of the table.
    `casts`: whether the SQL casts values that store assignment refuses; otherwise the engine that
    computes them does.
    `fills`: whether fields of structs that a value lacks become null.
    `zone`: time zone of the statement.

    Raises:
        InvalidArgument: nothing is set, a column is set twice, a name or a value is not SQL text.
        SchemaMismatch: a column does not exist, or a value lacks one of its fields.
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
        value = parse_expression(sql, scope, zone)
        if not fills and value.data_type is not None:
            refuse_lacking_fields(column, value.data_type, data_type)
        cast = _cast_where_refused(value, data_type) if casts else None
        if cast is None:
            assignments.append(Assignment(column, value))
        else:
            assignments.append(Assignment(column, cast, uncast=value))
    _refuse_overlaps(assignments)
    return tuple(assignments)


def refuse_lacking_fields(column: Sequence[str], source: DataType, target: DataType) -> None:
    """Check that a value has every field of the column that it replaces, at any depth: a missing
    field would lose its data.
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
            for field in target:
                held = source.get(field.name)
                below = [()] if held is None else _lacking_fields(held.data_type, field.data_type)
                yield from ((field.name, *path) for path in below)
        case (ArrayType(), ArrayType()) | (MapType(), MapType()):
            for held_type, (step, wanted) in zip(
                inner_types(source), inner_parts(target), strict=True
            ):
                yield from ((step, *path) for path in _lacking_fields(held_type, wanted))


def _find_target(name: str, schema: StructType) -> tuple[tuple[str, ...], DataType]:
    target = parse_expression(name, schema).typed
    if not isinstance(target, Column):
        raise InvalidArgument(
            f"there is no column {name!r}: an update sets columns and struct fields", column=name
        )
    return target.path, target.data_type


def _cast_where_refused(value: SqlExpression, target: DataType) -> SqlExpression | None:
    """The value in an ANSI cast; None if store assignment accepts its type, in any time zone."""
    source = value.data_type
    if source is None or not is_primitive(source) or not is_primitive(target):
        return None
    is_zoned = value.zone != UTC and cast_depends_on_time_zone(source, target)
    if can_store(to_arrow_type(source), target) and not is_zoned:
        return None
    # The line break ends a comment at the end of the text.
    sql = f"CAST(({value.sql}\n) AS {sql_type_name(target)})"
    return parse_expression(sql, value.schema, value.zone)


def _refuse_overlaps(assignments: Sequence[Assignment]) -> None:
    set_columns: set[tuple[str, ...]] = set()
    within: dict[tuple[str, ...], tuple[str, ...]] = {}
    """The assigned columns, by their own path and by the path of each struct around them."""
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


def check_computable(assignment: Assignment) -> None:
    """Check that the embedded engine can compute a value."""
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


def source_structs(
    assignments: Iterable[Assignment], column: str
) -> dict[tuple[str, ...], SqlExpression]:
    """The source structs of the assignments of fields of a column, by their path inside it."""
    return {
        assignment.column[1 : depth + 1]: struct
        for assignment in assignments
        if assignment.column[0] == column
        for depth, struct in enumerate(assignment.structs)
    }


_KEYWORD = "default"


def resolve_defaults(
    values: Mapping[str, str],
    configuration: TableConfiguration,
    schema: StructType,
    *,
    fills: bool = False,
    embedded: bool = True,
) -> dict[str, str]:
    """The values with each `DEFAULT` replaced by the column's default, or by NULL if it has none.

    A generated column is omitted: its computed value is its default.

    `values`: Spark SQL by column; a column with the name DEFAULT is written in backticks.
    `fills`: whether omitted columns get their defaults, as in an INSERT.
    `embedded`: whether the embedded engine computes the values, with one time for all rows.

    Raises:
        InvalidArgument: a field of a struct, or what is not a column, is set to DEFAULT.
        SchemaMismatch: a column does not exist.
    """
    if not any(_is_default(sql) for sql in values.values()):
        return dict(values)
    defaults = {value.column: value.sql for value in column_defaults(configuration)}
    numbered = {value.column for value in identity_columns(configuration)} if fills else set()
    computed = {value.column for value in generated_columns(configuration)} | numbered
    moment = dt.datetime.now(dt.UTC)
    resolved = {}
    for name, sql in values.items():
        if not _is_default(sql):
            resolved[name] = sql
            continue
        column = _top_level(name, schema)
        if column in computed or (fills and column in defaults):
            continue
        default = defaults.get(column, "NULL")
        resolved[name] = at_moment(default, moment) if embedded else default
    return resolved


def _is_default(sql: object) -> bool:
    return isinstance(sql, str) and sql.strip().lower() == _KEYWORD


def _top_level(name: str, schema: StructType) -> str:
    path, _ = _find_target(name, schema)
    if len(path) > 1:
        raise InvalidArgument(
            f"DEFAULT applies to whole columns, and {name} is a field: give its value",
            column=".".join(path),
        )
    return path[0]
