"""The time of a statement as a constant: one write has one time, as in Spark."""

from __future__ import annotations

import datetime as dt
import re

from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.tokens import tokenize

__all__ = ["at_moment", "at_statement"]

_CALL = re.compile(r"\s*\(*\s*([a-z_]+)\s*(?:\(\s*\))?[\s)]*", re.IGNORECASE)


def at_moment(sql: str, moment: dt.datetime) -> str:
    """The constant for a default that reads the clock; other text unchanged.

    Args:
        sql: Spark SQL of a default, such as `current_timestamp()`.
        moment: when the statement began, with a time zone. The embedded session is in UTC.
    """
    match = _CALL.fullmatch(sql)
    if match is None or sql.count("(") != sql.count(")"):
        return sql
    in_utc = moment.astimezone(dt.UTC).replace(tzinfo=None)
    match match[1].lower():
        case "current_timestamp" | "now":
            return f"TIMESTAMP '{in_utc.isoformat(sep=' ')}+00:00'"
        case "localtimestamp":
            return f"TIMESTAMP_NTZ '{in_utc.isoformat(sep=' ')}'"
        case "current_date" | "curdate":
            return f"DATE '{in_utc.date().isoformat()}'"
    return sql


_MOMENTS = {
    "current_timestamp": "TIMESTAMP '{time}+00:00'",
    "now": "TIMESTAMP '{time}+00:00'",
    "current_date": "CAST(TIMESTAMP '{time}+00:00' AS DATE)",
    "curdate": "CAST(TIMESTAMP '{time}+00:00' AS DATE)",
    "localtimestamp": "CAST(TIMESTAMP '{time}+00:00' AS TIMESTAMP_NTZ)",
}


def at_statement(sql: str, schema: StructType, moment: dt.datetime) -> str:
    """The text with each function of the clock replaced by the time of the statement.

    Every part of a statement then gives the same result in each evaluation; days are still those
    of the session's time zone.

    Args:
        sql: Spark SQL.
        schema: its columns are never read as functions, whatever their name.
        moment: when the statement began, with a time zone.

    Raises:
        InvalidArgument: a character starts no lexeme.
    """
    if not any(each in sql.casefold() for each in _MOMENTS):
        return sql
    time = moment.astimezone(dt.UTC).replace(tzinfo=None).isoformat(sep=" ")
    tokens = tokenize(sql)
    parts, position, index = [], 0, 0
    while index < len(tokens):
        token, following = tokens[index], tokens[index + 1 : index + 3]
        name = token.text.casefold()
        called = [each.text for each in following] == ["(", ")"]
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
