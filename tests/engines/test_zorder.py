"""Z-order: rows near each other along every column, in bounded memory, and none of them lost."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.engines.arrow.compaction import sorted_along
from dagster_delta.engines.zorder import ZOrderCurve


def test_a_curve_through_one_column_is_its_order() -> None:
    values = pa.table({"a": pa.array([5, None, -3, 9, 5, 0], pa.int64())})
    places = ZOrderCurve.through([("a",)], values).positions(values)
    order = values.take(pa.array(np.argsort(places, kind="stable")))
    assert order["a"].to_pylist() == [None, -3, 0, 5, 5, 9]


def test_the_bits_of_two_columns_take_turns() -> None:
    grid = [(x, y) for x in range(4) for y in range(4)]
    table = pa.table({"x": [x for x, _ in grid], "y": [y for _, y in grid]})
    places = ZOrderCurve.through([("x",), ("y",)], table).positions(table)
    order = [grid[each] for each in np.argsort(places, kind="stable")]
    # Each quarter of the curve is a quadrant of the grid, and so on inside of it.
    for start in range(0, 16, 4):
        quadrant = order[start : start + 4]
        assert {x // 2 for x, _ in quadrant} == {quadrant[0][0] // 2}
        assert {y // 2 for _, y in quadrant} == {quadrant[0][1] // 2}


@pytest.mark.parametrize(
    ("values", "data_type"),
    [
        ([1.5, float("inf"), None, -1.0], pa.float64()),
        ([Decimal("1.5"), None, Decimal("-2.25")], pa.decimal128(38, 10)),
        ([dt.date(2024, 1, 1), dt.date(1, 1, 1), None], pa.date32()),
        ([dt.datetime(2024, 1, 1), None, dt.datetime(1800, 1, 1)], pa.timestamp("us")),
        ([True, None, False], pa.bool_()),
        (["b", "ü", None, "", "a", "\U0001f6eb"], pa.string()),
        ([b"\xff", b"\x00", None, b""], pa.binary()),
        ([None, None], pa.int32()),
        ([], pa.string()),
    ],
)
def test_values_of_every_type_come_in_their_order(values: list[Any], data_type: Any) -> None:
    table = pa.table({"a": pa.array(values, data_type)})
    places = ZOrderCurve.through([("a",)], table).positions(table)
    found = [values[each] for each in np.argsort(places, kind="stable")]
    assert found == sorted(values, key=lambda each: (each is not None, _comparable(each)))


def _comparable(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value if value is not None else 0


def test_fields_of_structs_are_columns_too() -> None:
    table = pa.table({"s": pa.array([{"a": 2}, None, {"a": None}, {"a": 1}])})
    places = ZOrderCurve.through([("s", "a")], table).positions(table)
    assert np.argsort(places, kind="stable").tolist() == [1, 2, 3, 0]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.text(max_size=2) | st.none()), max_size=200),
    st.integers(1, 4000),
    st.booleans(),
)
def test_no_row_is_lost_however_little_memory_there_is(
    rows: list[tuple[int, str | None]], sort_bytes: int, counted: bool
) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    columns = [[a for a, _ in rows], [b for _, b in rows]]
    table = pa.table(dict(zip("ab", columns, strict=True)), schema=schema)
    curve = ZOrderCurve.through([("a",), ("b",)], table)
    reader = pa.RecordBatchReader.from_batches(schema, table.to_batches(max_chunksize=7))
    num_rows = len(rows) if counted else None
    found = list(sorted_along(curve, reader, num_rows=num_rows, sort_bytes=sort_bytes))
    assert Counter(
        row for each in found for row in zip(*(c.to_pylist() for c in each.columns), strict=True)
    ) == Counter(rows)


def test_rows_that_are_spilled_come_back_in_order(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    rng = np.random.default_rng(0)
    table = pa.table({"a": rng.permutation(20_000)})
    curve = ZOrderCurve.through([("a",)], table)
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=500))
    found = pa.Table.from_batches(sorted_along(curve, reader, num_rows=20_000, sort_bytes=20_000))
    assert found["a"].to_pylist() == list(range(20_000))
    assert list(tmp_path.iterdir()) == []
