"""What the scripts `ask_*.py` share. It runs in the environment of another program, so that it
imports nothing of this library.

A script reads questions as JSON lines, and writes an answer for each: `{"id", "status", "detail"}`,
with the rows in a file of the Arrow IPC format. Each answer is flushed, so that a program that ends
the process loses only the question that ended it.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa


class NotOffered(Exception):
    """The program has no way to ask this."""


def serve(answer: Callable[[dict[str, Any]], pa.Table]) -> None:
    """Answer all questions of standard input."""
    for line in sys.stdin:
        question = json.loads(line)
        said: dict[str, Any] = {"id": question["id"], "status": "answered", "detail": ""}
        try:
            write_rows(answer(question), Path(question["rows"]))
        except NotOffered as error:
            said |= {"status": "not offered", "detail": str(error)}
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            said |= {"status": "refused", "detail": _summary(error)}
        print(json.dumps(said), flush=True)


def write_rows(rows: pa.Table, path: Path) -> None:
    """Rows as a file of the Arrow IPC format."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)


def read_rows(path: str) -> pa.Table:
    """What `write_rows` wrote."""
    with pa.OSFile(path) as file, pa.ipc.open_file(file) as reader:
        return reader.read_all()


def _summary(error: BaseException) -> str:
    # What the JVM said comes after where Python has called it.
    said = str(getattr(error, "java_exception", error))
    text = next((line for line in said.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text.strip()}"[:300]


def python_value(literal: dict[str, str]) -> Any:
    """The constant of a filter as a Python value."""
    text, kind = literal["value"], literal["type"]
    if kind.startswith("decimal"):
        return decimal.Decimal(text)
    if kind == "date":
        return dt.date.fromisoformat(text)
    if kind == "timestamp":
        return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)
    if kind == "timestamp_ntz":
        return dt.datetime.fromisoformat(text)
    if kind == "binary":
        return bytes.fromhex(text)
    readers: dict[str, Callable[[str], Any]] = {
        "int": int,
        "double": float,
        "boolean": lambda value: value == "true",
    }
    return readers.get(kind, str)(text)


def sql_value(literal: dict[str, str]) -> str:
    """The constant of a filter in the SQL of Spark, Sail and DuckDB."""
    text, kind = literal["value"], literal["type"]
    if kind in {"int", "boolean"} or kind.startswith("decimal"):
        return text
    if kind == "double":
        return f"CAST('{text}' AS DOUBLE)"
    if kind == "binary":
        return f"X'{text}'"
    word = {"date": "DATE ", "timestamp": "TIMESTAMP ", "timestamp_ntz": "TIMESTAMP_NTZ "}
    zone = "+00:00" if kind == "timestamp" else ""
    quoted = text.replace("'", "''")
    return f"{word.get(kind, '')}'{quoted}{zone}'"


def sql_condition(
    question: dict[str, Any],
    quote: str = '"',
    value: Callable[[dict[str, str]], str] = sql_value,
) -> str:
    """The filter of a question as a condition of SQL."""
    literal = question["filter"]
    column = ".".join(f"{quote}{name}{quote}" for name in literal["column"])
    operator = literal["op"]
    if operator in {"IS NULL", "IS NOT NULL"}:
        return f"{column} {operator}"
    return f"{column} {operator} {value(literal)}"


def sql_query(
    question: dict[str, Any],
    table: str,
    quote: str = '"',
    value: Callable[[dict[str, str]], str] = sql_value,
) -> str:
    """The question as a query of SQL."""
    columns = question["columns"] or []
    selected = ", ".join(f"{quote}{name}{quote}" for name in columns) or "*"
    if question["kind"] == "count":
        selected = "count(*) AS n"
    where = f" WHERE {sql_condition(question, quote, value)}" if question["filter"] else ""
    return f"SELECT {selected} FROM {table}{where}"
