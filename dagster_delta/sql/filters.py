"""Conditions written by a caller: which rows to read, change or replace.

A condition is computed more than once: to find the files, to change the rows, to record the
changes. So the time of a statement is a constant in it, as in Spark, and functions that give
another result for the same row are refused: rows would be lost or duplicated.
"""

from __future__ import annotations

import datetime as dt
from itertools import pairwise

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.expressions import SqlExpression, parse_expression
from dagster_delta.sql.functions.built_in import OF_THE_SESSION, RANDOM
from dagster_delta.sql.tokens import tokenize
from dagster_delta.sql.typed import Call, Column, Literal, Refused, Typed, walk
from dagster_delta.sql.types import BOOLEAN

_MOMENTS = {
    "current_timestamp": "TIMESTAMP '{time}+00:00'",
    "now": "TIMESTAMP '{time}+00:00'",
    "current_date": "CAST(TIMESTAMP '{time}+00:00' AS DATE)",
    "curdate": "CAST(TIMESTAMP '{time}+00:00' AS DATE)",
    "localtimestamp": "CAST(TIMESTAMP '{time}+00:00' AS TIMESTAMP_NTZ)",
}


def at_moment(sql: str, moment: dt.datetime, schema: StructType = StructType(())) -> str:  # noqa: B008
    """The text with each function of the clock replaced by the time of the statement.

    Every part of a statement then gives the same result in each evaluation; days are still those
    of the session's time zone.

    `moment`: when the statement began, with a time zone.
    `schema`: its columns are never read as functions, whatever their name. Defaults have none.

    Raises:
        InvalidArgument: a character starts no lexeme.
    """
    if not any(name in sql.casefold() for name in _MOMENTS):
        return sql
    time = moment.astimezone(dt.UTC).replace(tzinfo=None).isoformat(sep=" ")
    tokens = tokenize(sql)
    parts, position, index = [], 0, 0
    while index < len(tokens):
        token, following = tokens[index], tokens[index + 1 : index + 3]
        name = token.text.casefold()
        called = [lexeme.text for lexeme in following] == ["(", ")"]
        is_part = index > 0 and tokens[index - 1].is_operator(".")
        is_name = token.kind == "word" and name in _MOMENTS and not is_part
        is_column = not called and (name in ("now", "curdate") or schema.get(token.text))
        if is_name and not is_column:
            parts += [sql[position : token.position], _MOMENTS[name].format(time=time)]
            last = following[1] if called else token
            position = last.position + len(last.text)
            index += 2 if called else 0
        index += 1
    return "".join((*parts, sql[position:]))


def parse_filter(sql: str, schema: StructType, moment: dt.datetime, zone: str) -> SqlExpression:
    """Parse a Spark SQL text as a condition, with the statement's time as a constant.

    `moment`: when the statement began, with a time zone.
    `zone`: time zone of the statement.

    Raises:
        InvalidArgument: it is not an expression, not a condition, or tests only text
            literals, one of which is the name of a column.
        SchemaMismatch: it names a column that does not exist.
    """
    expression = parse_expression(at_moment(sql, moment, schema), schema, zone)
    expression.check_filter()
    refuse_quoted_columns(expression.typed, schema)
    return expression


def refuse_quoted_columns(condition: Typed, schema: StructType) -> None:
    """Refuse a condition on text literals alone, one of which names a column: `"name" IS NOT NULL`.

    Raises:
        InvalidArgument: a part of it is such a condition.
    """
    for node in walk(condition):
        if not isinstance(node, Call) or node.data_type != BOOLEAN:
            continue
        parts = list(walk(node))
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


def unsteady_functions(expression: SqlExpression) -> list[str]:
    """Sorted names of an expression's functions that are random or read the clock or the
    session.
    """
    return _find_called_functions(expression, RANDOM | OF_THE_SESSION)


def check_repeatable(expression: SqlExpression, what: str) -> None:
    """Check that an expression gives every row one result within a statement.

    `what`: its name in the error: "the condition of a merge".

    Raises:
        InvalidArgument: it has a random function.
    """
    found = _find_called_functions(expression, RANDOM)
    if found:
        raise InvalidArgument(
            f"{what} holds {', '.join(found)}, which gives another answer each time it is asked: "
            "compute it into a column first"
        )


def _find_called_functions(expression: SqlExpression, functions: frozenset[str]) -> list[str]:
    tokens = tokenize(expression.sql)
    columns = {part.lower() for path in expression.references for part in path}
    return sorted(
        {
            word
            for token, following in pairwise(tokens)
            if token.kind == "word"
            and (word := token.text.lower()) in functions
            and (word not in columns or following.is_operator("("))
        }
    )
