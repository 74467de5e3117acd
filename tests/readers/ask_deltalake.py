"""deltalake: `to_pyarrow_table`, with filters as it takes them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from asking import NotOffered, python_value, read_rows, serve
from deltalake import DeltaTable, write_deltalake


def answer(question: dict[str, Any]) -> pa.Table:
    uri = question["uri"]
    if question["kind"] == "append":
        write_deltalake(uri, read_rows(question["new_rows"]), mode="append")
        return pa.table({})
    if question["kind"] == "changes":
        # Opened at a version, it leaves out the columns that came later.
        return pa.table(DeltaTable(uri).load_cdf(starting_version=question["version"] or 0))
    table = DeltaTable(uri, version=question["version"])
    if question["timestamp"]:
        table.load_as_version(question["timestamp"])
    return _rows(table, question)


def _rows(table: DeltaTable, question: dict[str, Any]) -> pa.Table:
    dataset = table.to_pyarrow_dataset()
    condition = _condition(question["filter"]) if question["filter"] else None
    if question["kind"] == "count":
        return pa.table({"n": [dataset.count_rows(filter=condition)]})
    return dataset.to_table(columns=question["columns"], filter=condition)


def _condition(literal: dict[str, Any]) -> Any:
    import pyarrow.compute as pc

    field = pc.field(*literal["column"])
    if literal["op"] == "IS NULL":
        return field.is_null()
    if literal["op"] == "IS NOT NULL":
        return field.is_valid()
    value = pa.scalar(python_value(literal))
    compare = {
        "=": field.__eq__,
        "<>": field.__ne__,
        "<": field.__lt__,
        "<=": field.__le__,
        ">": field.__gt__,
        ">=": field.__ge__,
    }
    if literal["op"] not in compare:
        raise NotOffered(literal["op"])
    return compare[literal["op"]](value)


if __name__ == "__main__":
    serve(answer)
