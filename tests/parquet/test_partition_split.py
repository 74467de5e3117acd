"""Batches fall apart by partition values, each part in its own order."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import SchemaMismatch
from dagster_delta.parquet import writer
from dagster_delta.parquet.writer import split_by_partition
from dagster_delta.protocol.schema import DataType, PrimitiveType, StructField

STRING = PrimitiveType("string")
LONG = PrimitiveType("long")


def split(batch: pa.RecordBatch, *types: DataType, **options: Any) -> dict[Any, list[Any]]:
    return {
        key: rows.column(batch.num_columns - 1).to_pylist()
        for key, rows in split_by_partition(batch, values(batch, *types), **options)
    }


def values(batch: pa.RecordBatch, *types: DataType) -> dict[StructField, pa.Array]:
    columns = zip(batch.schema.names, types, batch.columns, strict=False)
    return {StructField(name, kind): column for name, kind, column in columns}


@pytest.mark.parametrize("largest_code", [2**62, 3])
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "", None]), st.sampled_from([1, 2, None]), st.booleans()
        )
    )
)
def test_each_row_is_in_the_part_of_its_values(
    largest_code: int, rows: list[tuple[str | None, int | None, bool]]
) -> None:
    expected: dict[Any, list[int]] = defaultdict(list)
    for index, (p, q, flag) in enumerate(rows):
        expected[p or None, None if q is None else str(q), str(flag).lower()].append(index)
    batch = pa.record_batch(
        [
            pa.array([p for p, _, _ in rows], pa.string()),
            pa.array([q for _, q, _ in rows], pa.int64()),
            pa.array([flag for _, _, flag in rows], pa.bool_()),
            pa.array(range(len(rows)), pa.int64()),
        ],
        names=["p", "q", "flag", "n"],
    )
    with mock.patch.object(writer, "_MAX_CODE", largest_code):
        found = split(batch, STRING, LONG, PrimitiveType("boolean"))
    assert found == expected


def test_many_partitions_are_told_apart() -> None:
    count = 70_000
    batch = pa.record_batch({"p": [f"p{i}" for i in range(count)], "n": range(count)})
    parts = split(batch, STRING)
    assert len(parts) == count
    assert parts["p69999",] == [69_999]


def test_a_part_does_not_keep_the_batch_in_memory() -> None:
    batch = pa.record_batch({"p": ["a"] + ["b"] * 100_000, "n": range(100_001)})
    parts = dict(split_by_partition(batch, values(batch, STRING)))
    assert parts["a",].get_total_buffer_size() < 10_000


def test_all_rows_of_one_partition_are_handed_on_uncopied() -> None:
    batch = pa.record_batch({"d": [dt.date(2020, 1, 1)] * 3, "n": [1, 2, 3]})
    ((key, rows),) = split_by_partition(batch, values(batch, PrimitiveType("date")))
    assert key == ("2020-01-01",)
    assert rows is batch


def test_a_value_without_a_text_is_refused_by_its_column() -> None:
    batch = pa.record_batch({"b": [b"\xff"], "n": [1]})
    with pytest.raises(SchemaMismatch) as caught:
        list(split_by_partition(batch, values(batch, PrimitiveType("binary"))))
    assert caught.value.column == "b"
