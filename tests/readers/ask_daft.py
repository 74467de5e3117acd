"""daft: `read_deltalake` and `write_deltalake`."""

from __future__ import annotations

import datetime as dt
from typing import Any

import daft
import pyarrow as pa
from asking import NotOffered, python_value, read_rows, serve


def answer(question: dict[str, Any]) -> pa.Table:
    uri = question["uri"]
    if question["kind"] == "append":
        daft.from_arrow(read_rows(question["new_rows"])).write_deltalake(uri, mode="append")
        return pa.table({})
    if question["kind"] == "changes":
        raise NotOffered("no change data feed")
    version: Any = question["version"]
    if question["timestamp"]:
        version = dt.datetime.fromisoformat(question["timestamp"])
    frame = daft.read_deltalake(uri, version=version)
    if question["filter"]:
        frame = frame.where(_condition(question["filter"]))
    if question["kind"] == "count":
        return pa.table({"n": [frame.count_rows()]})
    if question["columns"]:
        frame = frame.select(*question["columns"])
    return frame.to_arrow()


def _condition(literal: dict[str, Any]) -> Any:
    first, *fields = literal["column"]
    column = daft.col(first)
    for field in fields:
        column = column.get(field)
    if literal["op"] == "IS NULL":
        return column.is_null()
    if literal["op"] == "IS NOT NULL":
        return column.not_null()
    value = daft.lit(python_value(literal))
    return {
        "=": lambda: column == value,
        "<>": lambda: column != value,
        "% 2 =": lambda: column % 2 == value,
        "<": lambda: column < value,
        "<=": lambda: column <= value,
        ">": lambda: column > value,
        ">=": lambda: column >= value,
    }[literal["op"]]()


if __name__ == "__main__":
    serve(answer)
