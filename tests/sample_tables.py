"""Rows and table layouts that tests of one engine share with those of every engine."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from dagster_delta import Column, DeltaTable, Identity
from dagster_delta.storage.object_store import ObjectStore

Row = tuple[int | None, str | None, int | None]
"""Values of `id`, `v` and `p`."""

VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
MAPPED = {"delta.columnMapping.mode": "name"}

SHAPES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "rewrite": ({}, ()),
    "vectors": (VECTORS, ()),
    "partitioned": ({}, ("p",)),
    "mapped_partitioned_vectors": (VECTORS | MAPPED, ("p",)),
}
"""Table properties and partition columns."""

ORDERS = (
    Column("id", "BIGINT", nullable=False, identity=Identity(start=10, step=10)),
    Column("at", "TIMESTAMP"),
    Column("day", "DATE", generated_as="CAST(at AS DATE)"),
    Column("state", "STRING", nullable=False, default="'new'"),
    Column("size", "INT", nullable=False, generated_as="length(state)"),
)
"""Columns that fill themselves in."""

UNDEFAULTED = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int32()),
        "p": ["a", "a", "b", None],
        "s": pa.array([{"a": 1}, None, {"a": None}, {"a": 4}], pa.struct([("a", pa.int32())])),
    }
)
DEFAULTED = pa.table(
    {
        "id": pa.array([5, 6], pa.int32()),
        "p": ["a", "b"],
        "s": pa.array(
            [{"a": 5, "x": None}, {"a": 6, "x": 6}],
            pa.struct([("a", pa.int32()), ("x", pa.int32())]),
        ),
        "c": pa.array([None, 9], pa.int32()),
    }
)


IDS = pa.table({"id": pa.array([1, 2], pa.int32())})
MORE = pa.table({"id": pa.array([3], pa.int32())})


def table_of(store: ObjectStore, *appends: pa.Table, **options: Any) -> DeltaTable:
    """A table with a commit for each of these, after the one that creates it."""
    table = DeltaTable.create("", appends[0].schema, store=store, **options)
    for rows in appends:
        table.append(rows)
    return table


def data(*found: Row) -> pa.Table:
    ids, texts, parts = zip(*found, strict=True) if found else ((), (), ())
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "v": pa.array(texts, pa.string()),
            "p": pa.array(parts, pa.int32()),
        }
    )


def numbered(*ids: int, text: str = "v") -> pa.Table:
    return data(*((each, f"{text}{each}", each % 2) for each in ids))


def numbered_with_nulls(*ids: int) -> pa.Table:
    """As `numbered`, without `p` in every seventh row."""
    return data(*((each, f"v{each}", each % 2 if each % 7 else None) for each in ids))


def texts(*ids: int) -> pa.Table:
    """Rows with the id as a text."""
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [str(each) for each in ids]})


def rows(*ids: int, value: str = "") -> pa.Table:
    """Rows with a text, by default one that has the id."""
    found = [value or f"v{each}" for each in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(found, pa.string())})


def of_day(*ids: int, day: str = "2026-01-01") -> pa.Table:
    """Rows of one value of `day`, a text."""
    return pa.table({"id": list(ids), "day": [day] * len(ids)})


def noon(day: int) -> dt.datetime:
    return dt.datetime(2024, 1, day, 12, tzinfo=dt.UTC)


def moments(*days: int, **columns: Any) -> pa.Table:
    """Rows for `ORDERS`: the noons of these days."""
    times = pa.array([noon(each) for each in days], pa.timestamp("us", "UTC"))
    return pa.table({"at": times, **columns})
