"""polars: `read_delta` for whole tables, `scan_delta` for all else, `write_delta`."""

from __future__ import annotations

import datetime as dt
from typing import Any

import polars as pl
import pyarrow as pa
from asking import NotOffered, python_value, read_rows, serve


def answer(question: dict[str, Any]) -> pa.Table:
    uri = question["uri"]
    if question["kind"] == "append":
        pl.from_arrow(read_rows(question["new_rows"])).write_delta(uri, mode="append")
        return pa.table({})
    if question["kind"] == "changes":
        raise NotOffered("no change data feed")
    version: Any = question["version"]
    if question["timestamp"]:
        version = dt.datetime.fromisoformat(question["timestamp"])
    whole = question["kind"] == "rows" and not question["filter"] and not question["columns"]
    if whole:
        return pl.read_delta(uri, version=version).to_arrow()
    frame = pl.scan_delta(uri, version=version)
    if question["filter"]:
        frame = frame.filter(_condition(question["filter"]))
    if question["kind"] == "count":
        frame = frame.select(pl.len().alias("n"))
    elif question["columns"]:
        frame = frame.select(question["columns"])
    return frame.collect().to_arrow()


def _condition(literal: dict[str, Any]) -> pl.Expr:
    first, *fields = literal["column"]
    column = pl.col(first)
    for field in fields:
        column = column.struct.field(field)
    if literal["op"] == "IS NULL":
        return column.is_null()
    if literal["op"] == "IS NOT NULL":
        return column.is_not_null()
    value = pl.lit(python_value(literal))
    return {
        "=": column == value,
        "<>": column != value,
        "% 2 =": column % 2 == value,
        "<": column < value,
        "<=": column <= value,
        ">": column > value,
        ">=": column >= value,
    }[literal["op"]]


if __name__ == "__main__":
    serve(answer)
