"""Conditions written by a caller: which rows to read, change or replace."""

from __future__ import annotations

import datetime as dt

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.expressions import SqlExpression, parse_expression
from dagster_delta.sql.moments import at_statement
from dagster_delta.sql.typed import Call, Column, Literal, Refused, Typed, walk
from dagster_delta.sql.types import BOOLEAN

__all__ = ["parse_filter", "refuse_quoted_columns"]


def parse_filter(sql: str, schema: StructType, moment: dt.datetime) -> SqlExpression:
    """Parse a Spark SQL text as a condition, with the statement's time as a constant.

    Args:
        sql: text of the condition.
        schema: logical schema that its names are found in.
        moment: when the statement began, with a time zone.

    Raises:
        InvalidArgument: the text is not an expression, or not a condition, or tests only text
            literals, one of which is the name of a column.
        SchemaMismatch: it names a column that does not exist.
    """
    expression = parse_expression(at_statement(sql, schema, moment), schema)
    expression.check_filter()
    refuse_quoted_columns(expression.typed, schema)
    return expression


def refuse_quoted_columns(condition: Typed, schema: StructType) -> None:
    """Refuse a condition on text literals alone, one of which names a column: `"name" IS NOT NULL`.

    Args:
        condition: condition of a statement.
        schema: schema that has the columns.

    Raises:
        InvalidArgument: a part of it is such a condition.
    """
    for each in walk(condition):
        if not isinstance(each, Call) or each.data_type != BOOLEAN:
            continue
        parts = list(walk(each))
        if any(isinstance(part, Column | Refused) for part in parts):
            continue
        for part in parts:
            if not isinstance(part, Literal) or not isinstance(part.value, str):
                continue
            if (column := schema.get(part.value)) is not None:
                raise InvalidArgument(
                    f"{part.value!r} is a text here and not the column {column.name}: in Spark SQL "
                    f"double quotes quote texts too; write {column.name}, or `{column.name}` in "
                    "backticks",
                    column=column.name,
                )
