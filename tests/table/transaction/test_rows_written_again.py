"""Rows whose files do not fit the version that a concurrent commit made are written again, if they
can be read again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from dagster_delta import Column, DeltaTable, Identity
from dagster_delta.errors import LogGap, MetadataChanged
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.testing.faulty_store import FaultyStore

COLUMNS = (Column("v", "BIGINT"), Column("seq", "BIGINT", nullable=False, identity=Identity()))
ROWS = pa.table({"v": pa.array([3], pa.int64())})


def numbered(value: int) -> pa.Table:
    return pa.table({"v": pa.array([value], pa.int64())})


def beside(store: MemoryStore, commits: int) -> DeltaTable:
    """A handle of a table in which another writer commits before each of its first commits."""
    done: list[str] = []

    def before_call(operation: str, path: str) -> None:
        if operation == "put_if_absent" and path.endswith(".json") and len(done) < commits:
            done.append(path)
            DeltaTable("", store=store).append(numbered(100 + len(done)))

    return DeltaTable("", store=FaultyStore(store, before_call=before_call))


@pytest.mark.parametrize("write", ["append", "overwrite"])
@pytest.mark.parametrize(
    "data", [ROWS, ROWS.to_batches()[0], ROWS.to_pandas(), pl.from_arrow(ROWS)], ids=type
)
def test_rows_in_memory_are_numbered_again_after_each_conflict(data: Any, write: str) -> None:
    store = MemoryStore()
    DeltaTable.create("", COLUMNS, store=store).append(numbered(1))
    table = beside(store, 3)
    result = getattr(table, write)(data)
    assert result.attempts >= 3
    rows = table.snapshot().scan().to_arrow()
    values = {"append": {1, 101, 102, 103, 3}, "overwrite": {3}}[write]
    assert set(rows["v"].to_pylist()) == values
    assert len(set(rows["seq"].to_pylist())) == len(values) == rows.num_rows
    if write == "append":
        live = set(table.snapshot().files()["path"].to_pylist())
        assert {file.path for file in store.list_from("") if file.path.endswith(".parquet")} == live


def test_rows_of_a_reader_are_not_written_twice() -> None:
    store = MemoryStore()
    DeltaTable.create("", COLUMNS, store=store).append(numbered(1))
    table = beside(store, 1)
    with pytest.raises(MetadataChanged, match="repeat the write"):
        table.append(ROWS.to_reader())
    values = DeltaTable("", store=store).snapshot().scan().to_arrow()["v"].to_pylist()
    assert sorted(values) == [1, 101]


def test_half_read_rows_of_a_reader_are_not_written_without_those_read_before() -> None:
    store = MemoryStore()
    table = DeltaTable.create("", ROWS.schema, store=store)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from numbered(1).to_batches()
        # As where the rows come from the table itself, whose log is cleaned up meanwhile.
        raise LogGap("commit 0 vanished", table=store.location.uri, version=0)

    with pytest.raises(LogGap):
        table.append(pa.RecordBatchReader.from_batches(ROWS.schema, batches()))
    assert DeltaTable("", store=store).snapshot().scan().to_arrow().num_rows == 0
