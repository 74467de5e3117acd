"""deltalake: its `QueryBuilder`, which is DataFusion."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from asking import NotOffered, serve, sql_query, sql_value
from deltalake import DeltaTable, QueryBuilder


def literal(found: dict[str, str]) -> str:
    """DataFusion has no `TIMESTAMP_NTZ`."""
    if found["type"] in {"timestamp", "timestamp_ntz"}:
        zone = "Z" if found["type"] == "timestamp" else ""
        kind = "TIMESTAMPTZ" if zone else "TIMESTAMP"
        return f"CAST('{found['value']}{zone}' AS {kind})"
    if found["type"].startswith("decimal"):
        return f"CAST('{found['value']}' AS {found['type'].upper()})"
    return sql_value(found)


def answer(question: dict[str, Any]) -> pa.Table:
    if question["kind"] in {"append", "changes"}:
        raise NotOffered("as deltalake")
    table = DeltaTable(question["uri"], version=question["version"])
    if question["timestamp"]:
        table.load_as_version(question["timestamp"])
    query = sql_query(question, "t", value=literal)
    return pa.table(QueryBuilder().register("t", table).execute(query).read_all())


if __name__ == "__main__":
    serve(answer)
