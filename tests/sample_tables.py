"""Rows and table layouts that tests of one engine share with those of every engine."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa

from dagster_delta import Column, Identity

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


def of_day(*ids: int, day: str = "2026-01-01") -> pa.Table:
    """Rows of one value of `day`, a text."""
    return pa.table({"id": list(ids), "day": [day] * len(ids)})


def noon(day: int) -> dt.datetime:
    return dt.datetime(2024, 1, day, 12, tzinfo=dt.UTC)
