"""Filters, changes and merges that look into arrays and maps, on the embedded engine."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.storage.memory_store import MemoryStore

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "tags": pa.list_(pa.string()),
        "counts": pa.map_(pa.string(), pa.int64()),
        "seen": pa.map_(pa.string(), pa.timestamp("us", "UTC")),
        "text": pa.string(),
    }
)


@pytest.fixture
def table() -> DeltaTable:
    """A file per row, so that a file left out wrongly loses a row."""
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    tags = [["a", "b"], [], None, [None, "c"]]
    counts = [[("x", 1)], [], None, [("x", None), ("y", 2)]]
    seen = [[("x", NOON)], [], None, [("x", None)]]
    text = ["NaN", "1d", None, "Infinity"]
    rows = pa.table([[1, 2, 3, 4], tags, counts, seen, text], schema=SCHEMA)
    for n in range(4):
        table.append(rows.slice(n, 1))
    return table


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("size(tags) > 0", [1, 4]),
        ("size(tags) IS NULL", [3]),
        ("NOT size(counts) = 1", [2, 4]),
        ("array_contains(tags, 'a')", [1]),
        ("NOT array_contains(tags, 'a')", [2]),
        ("array_contains(tags, 'a') IS NULL", [3, 4]),
        ("counts['x'] = 1", [1]),
        ("counts.x IS NULL", [2, 3, 4]),
        ("counts['y'] = 2 OR size(tags) = 0", [2, 4]),
        ("seen['x'] = TIMESTAMP '2024-01-01 12:00:00'", [1]),
        ("size(tags) > 0 AND tags[0] = 'a'", [1]),
        ("text LIKE ANY ('N%', '%y')", [1, 4]),
        ("text NOT LIKE ALL ('N%', '%y')", [2]),
        ("(text LIKE ANY ('N%', NULL)) IS NULL", [2, 3, 4]),
        ("cast(text AS double) > 1", [1, 4]),
    ],
)
def test_no_file_is_left_out_that_holds_a_row(
    table: DeltaTable, where: str, expected: list[int]
) -> None:
    found = table.snapshot().scan(columns=["id"], where=where).to_arrow()
    assert sorted(found["id"].to_pylist()) == expected


def test_rows_are_changed_by_what_their_arrays_and_maps_hold(table: DeltaTable) -> None:
    table.update({"id": "coalesce(counts['x'], 0) + 10"}, where="size(counts) < 2")
    table.delete("array_contains(tags, 'c')")
    found = table.snapshot().scan().to_arrow().sort_by("id")
    assert found["id"].to_pylist() == [3, 10, 11]


def test_a_merge_looks_into_arrays_and_maps_of_both_sides(table: DeltaTable) -> None:
    source = pa.table(
        {"id": [1, 4, 7], "m": pa.array([[("x", 1)], [("y", 2)], []], SCHEMA.field("counts").type)}
    )
    merge = table.merge(source, "t.id = s.id AND t.counts['x'] <=> s.m['x']")
    merge = merge.when_matched_update({"text": "t.tags[1]"}, condition="size(t.seen) = size(s.m)")
    merge.when_not_matched_insert({"id": "s.id", "text": "concat('size ', size(s.m))"}).execute()
    found = table.snapshot().scan().to_arrow().sort_by("id")
    assert found["id"].to_pylist() == [1, 2, 3, 4, 7]
    assert found["text"].to_pylist() == ["b", "1d", None, "c", "size 0"]
