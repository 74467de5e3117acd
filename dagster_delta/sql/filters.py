"""Conditions that a caller writes: which rows are read, changed or replaced."""

from __future__ import annotations

import datetime as dt

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.expressions import SqlExpression, parse_expression
from dagster_delta.sql.moments import at_statement
from dagster_delta.sql.typed import Call, Literal, walk

__all__ = ["parse_filter"]

_COMPARISONS = frozenset({"=", "<=>", "<", "<=", ">", ">=", "in", "like", "ilike", "rlike"})


def parse_filter(sql: str, schema: StructType, moment: dt.datetime) -> SqlExpression:
    """The condition that a Spark SQL text stands for, with the time of its statement in it.

    Args:
        sql: text of the condition.
        schema: logical schema that its names are found in.
        moment: when the statement began, with a time zone.

    Raises:
        InvalidArgument: the text is not an expression or no condition, or compares texts with each
            other of which one is the name of a column.
        SchemaMismatch: it names a column that is not there.
    """
    expression = parse_expression(at_statement(sql, schema, moment), schema)
    expression.check_filter()
    for each in walk(expression.typed):
        if isinstance(each, Call) and each.name in _COMPARISONS:
            _refuse_quoted_column(each, schema)
    return expression


def _refuse_quoted_column(comparison: Call, schema: StructType) -> None:
    texts = [each.value for each in comparison.arguments if isinstance(each, Literal)]
    if len(texts) < len(comparison.arguments):
        return
    for text in texts:
        if isinstance(text, str) and (column := schema.get(text)) is not None:
            raise InvalidArgument(
                f"{text!r} is a text here and not the column {column.name}: in Spark SQL double "
                f"quotes quote texts too; write {column.name}, or `{column.name}` in backticks",
                column=column.name,
            )
