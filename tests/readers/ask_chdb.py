"""chdb: ClickHouse in the process, by its table function for Delta tables."""

from __future__ import annotations

from typing import Any

import chdb
import pyarrow as pa
from asking import NotOffered, read_rows, serve, sql_query, sql_value


def literal(found: dict[str, str]) -> str:
    """ClickHouse's constants: times have a scale and a zone."""
    if found["type"] in {"timestamp", "timestamp_ntz"}:
        return f"toDateTime64('{found['value']}', 6, 'UTC')"
    if found["type"] == "date":
        return f"toDate32('{found['value']}')"
    if found["type"].startswith("decimal"):
        precision, scale = found["type"][8:-1].split(",")
        del precision
        return f"toDecimal128('{found['value']}', {scale})"
    if found["type"] == "binary":
        return f"unhex('{found['value']}')"
    return sql_value(found)


def answer(question: dict[str, Any]) -> pa.Table:
    if question["kind"] == "changes" or question["timestamp"]:
        raise NotOffered("only versions")
    uri = question["uri"].replace("'", "''")
    table = f"deltaLakeLocal('{uri}')"
    settings = ["session_timezone = 'UTC'"]
    if question["version"] is not None:
        settings.append(f"delta_lake_snapshot_version = {question['version']}")
    if question["kind"] == "append":
        new_rows = read_rows(question["new_rows"])  # noqa: F841 - the query names it
        chdb.query(
            f"INSERT INTO FUNCTION {table} SELECT * FROM Python(new_rows) "
            "SETTINGS allow_experimental_delta_lake_writes = 1"
        )
        return pa.table({})
    query = sql_query(question, table, quote="`", value=literal)
    return chdb.query(f"{query} SETTINGS {', '.join(settings)}", "ArrowTable")


if __name__ == "__main__":
    serve(answer)
