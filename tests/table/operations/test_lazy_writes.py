"""A polars LazyFrame that is written: its rows stream, and its errors leave nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.engines.data_input import collected_frames
from dagster_delta.errors import ConstraintViolation, SchemaMismatch

COUNT = 500_000
SCHEMA = {"id": pl.Int64, "x": pl.Float64}
LAZY = pl.LazyFrame({"id": range(COUNT)}).with_columns(x=pl.col("id") * 1.5)


class Failure(Exception):
    """Of a function in a query."""


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable.create(
        str(tmp_path / "table"), pa.schema([("id", pa.int64()), ("x", pa.float64())])
    )


def _data_files(table: DeltaTable) -> list[Path]:
    return list(Path(table.uri).glob("**/*.parquet"))


def test_the_rows_are_stored_in_their_order(table: DeltaTable) -> None:
    table.append(LAZY)
    assert table.snapshot().scan().to_polars().equals(LAZY.collect())
    table.overwrite(LAZY.head(0))
    assert table.snapshot().num_records == 0


def test_the_query_runs_once(table: DeltaTable) -> None:
    calls: list[int] = []

    def count(frame: pl.DataFrame) -> pl.DataFrame:
        calls.append(frame.height)
        return frame

    table.append(LAZY.map_batches(count, schema=SCHEMA))
    assert sum(calls) == COUNT


def test_a_lazy_frame_is_merged(table: DeltaTable) -> None:
    table.append(LAZY.head(10))
    source = LAZY.slice(5, 10).with_columns(x=pl.lit(0.0))
    merge = table.merge(source, on="t.id = s.id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert table.snapshot().num_records == 15
    assert table.snapshot().scan(where="x = 0").count() == 11


@pytest.mark.parametrize(
    "change", [lambda rows: rows.with_columns(z=1), lambda rows: rows.with_columns(x=pl.lit("a"))]
)
def test_a_wrong_schema_is_found_before_the_query_runs(
    table: DeltaTable, change: Callable[[pl.LazyFrame], pl.LazyFrame]
) -> None:
    def fail(frame: pl.DataFrame) -> pl.DataFrame:
        raise Failure

    with pytest.raises(SchemaMismatch):
        table.append(change(LAZY.map_batches(fail, schema=SCHEMA)))
    assert not _data_files(table)


def _failing_function() -> pl.LazyFrame:
    def fail(frame: pl.DataFrame) -> pl.DataFrame:
        raise Failure("no rows today")

    return LAZY.map_batches(fail, schema=SCHEMA)


def _failing_at_the_end() -> pl.LazyFrame:
    text = pl.when(pl.col("id") == COUNT - 1).then(pl.lit("a")).otherwise(pl.lit("1"))
    return LAZY.with_columns(x=text.cast(pl.Float64))


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (_failing_function(), Failure),
        (_failing_at_the_end(), pl.exceptions.InvalidOperationError),
        (LAZY.select("nothing"), pl.exceptions.ColumnNotFoundError),
        (pl.scan_parquet("nothing.parquet"), FileNotFoundError),
    ],
)
def test_an_error_of_the_query_comes_out_and_leaves_no_file(
    table: DeltaTable, rows: pl.LazyFrame, error: type[Exception]
) -> None:
    with pytest.raises(error):
        table.append(rows)
    assert table.version() == 0
    assert not _data_files(table)


def test_a_write_that_fails_ends_the_query(table: DeltaTable) -> None:
    table.alter("ALTER TABLE t ADD CONSTRAINT few CHECK (id < 1000)")
    with pytest.raises(ConstraintViolation):
        table.append(LAZY)
    assert not _data_files(table)
    assert "polars-query" not in [thread.name for thread in threading.enumerate()]


def test_batches_wait_for_the_writer() -> None:
    """What is not written yet is not made."""
    made: list[int] = []

    def count(frame: pl.DataFrame) -> pl.DataFrame:
        made.append(frame.height)
        return frame

    frames = [pl.LazyFrame({"id": range(1000)}).map_batches(count) for _ in range(500)]
    collected = collected_frames(pl.concat(frames), 1000)
    next(collected)
    before = len(made)
    del collected
    assert before < 400
