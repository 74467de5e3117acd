"""DuckDB and its extension for Delta tables."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from asking import NotOffered, read_rows, serve, sql_query, sql_value

# The package has the file of the extension; nothing is downloaded.
EXTENSION = next(
    Path(sysconfig.get_path("purelib"), "duckdb_extension_delta").rglob("*.duckdb_extension")
)


def connect() -> duckdb.DuckDBPyConnection:
    """A database of its own: some errors end one."""
    connection = duckdb.connect()
    connection.execute(f"LOAD '{EXTENSION}'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


CONNECTION = connect()


def literal(found: dict[str, str]) -> str:
    """DuckDB's constants: `TIMESTAMP` has no zone there."""
    if found["type"] == "timestamp":
        return f"TIMESTAMPTZ '{found['value']}+00:00'"
    if found["type"] == "timestamp_ntz":
        return f"TIMESTAMP '{found['value']}'"
    if found["type"] == "binary":
        return f"unhex('{found['value']}')"
    return sql_value(found)


def answer(question: dict[str, Any]) -> pa.Table:
    uri = question["uri"].replace("'", "''")
    if question["kind"] == "append":
        connection = connect()
        connection.execute(f"ATTACH '{uri}' AS target (TYPE delta)")
        connection.register("new_rows", read_rows(question["new_rows"]))
        connection.execute("INSERT INTO target SELECT * FROM new_rows")
        connection.close()
        return pa.table({})
    if question["kind"] == "changes" or question["timestamp"]:
        raise NotOffered("only versions")
    version = "" if question["version"] is None else f", version = {question['version']}"
    query = sql_query(question, f"delta_scan('{uri}'{version})", value=literal)
    return CONNECTION.sql(query).to_arrow_table()


if __name__ == "__main__":
    serve(answer)
