"""The keyword DEFAULT as the value of a column, in an UPDATE and in the clauses of a MERGE.

Spec: Default Columns.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.features.column_values import (
    column_defaults,
    generated_columns,
    identity_columns,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.filters import at_moment
from dagster_delta.sql.typed import Column

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
        InvalidArgument: a field of a struct is set to DEFAULT.
        SchemaMismatch: a column does not exist.
    """
    if not any(_is_default(sql) for sql in values.values()):
        return dict(values)
    defaults = {each.column: each.sql for each in column_defaults(configuration)}
    numbered = {each.column for each in identity_columns(configuration)} if fills else set()
    computed = {each.column for each in generated_columns(configuration)} | numbered
    moment = dt.datetime.now(dt.UTC)
    resolved = {}
    for name, sql in values.items():
        if not _is_default(sql):
            resolved[name] = sql
            continue
        column = _top_level(name, schema)
        if column in computed or (fills and column in defaults):
            continue
        default = defaults.get(column or "", "NULL")
        resolved[name] = at_moment(default, moment) if embedded else default
    return resolved


def _is_default(sql: object) -> bool:
    return isinstance(sql, str) and sql.strip().lower() == _KEYWORD


def _top_level(name: str, schema: StructType) -> str | None:
    typed = parse_expression(name, schema).typed
    if not isinstance(typed, Column):
        # The assignment of the values refuses it.
        return None
    if len(typed.path) > 1:
        raise InvalidArgument(
            f"DEFAULT applies to whole columns, and {name} is a field: give its value",
            column=".".join(typed.path),
        )
    return typed.path[0]
