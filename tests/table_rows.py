"""The rows of a table in a form and an order in which tests compare them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.delta_table import DeltaTable

Row = tuple[Any, ...]


def stored_rows(place: DeltaTable | ObjectStore | str, **scan: Any) -> list[dict[str, Any]]:
    """What a new handle reads, sorted as text; `scan` goes to `Snapshot.scan`."""
    if isinstance(place, DeltaTable):
        table = DeltaTable(place.uri, store=place.store)
    elif isinstance(place, str):
        table = DeltaTable(place)
    else:
        table = DeltaTable("", store=place)
    return sorted(table.snapshot().scan(**scan).to_arrow().to_pylist(), key=repr)


def ids_of(table: DeltaTable | str | Path, version: int | None = None) -> list[int]:
    """The sorted ids of a version, by default of the latest."""
    handle = table if isinstance(table, DeltaTable) else DeltaTable(table)
    return sorted(handle.snapshot(version=version).scan(["id"]).to_arrow()["id"].to_pylist())


def row_ids_of(table: DeltaTable) -> dict[int, tuple[int, int]]:
    """The row id and the commit version of each id."""
    found = table.snapshot().scan(["id"], row_ids=True).to_arrow().to_pylist()
    return {row["id"]: (row["_row_id"], row["_row_commit_version"]) for row in found}


def stored_tuples(table: DeltaTable, *columns: str) -> list[Row]:
    """The values of these columns, or of all, in `row_order`."""
    return sorted_rows(table.snapshot().scan(list(columns) or None).to_arrow())


def sorted_rows(rows: pa.Table) -> list[Row]:
    """Rows as tuples, in `row_order`."""
    return sorted((tuple(row.values()) for row in rows.to_pylist()), key=row_order)


def row_order(row: Row) -> list[tuple[bool, Any]]:
    """A sort key: by the first column, then by the second, nulls last."""
    plain = (int, float, str, dt.date, Decimal)
    return [(value is None, value if isinstance(value, plain) else repr(value)) for value in row]
