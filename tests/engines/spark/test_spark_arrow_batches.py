"""The bounds of the batches in which Spark hands rows to Python, lent for the time of a write."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_delta.engines.spark.session.session import MAX_RECORDS, frame_of
from dagster_delta.engines.spark.write import arrow_batches, tasks
from dagster_delta.engines.spark.write.arrow_batches import collect_counted
from dagster_delta.parquet.reader import merge_small

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
UNBOUNDED = "2147483647"


def bounds_of(session: SparkSession) -> tuple[int, str]:
    return int(session.conf.get(MAX_RECORDS) or 0), str(session.conf.get(MAX_BYTES))


@pytest.fixture
def bounded(spark: SparkSession) -> Iterator[SparkSession]:
    before = spark.conf.get(MAX_RECORDS)
    yield spark
    spark.conf.unset(MAX_BYTES)
    spark.conf.set(MAX_RECORDS, str(before))


def bounds_within(frame: DataFrame, table: str | None = None) -> list[tuple[int, str]]:
    """The bounds while a job runs, each time that it does."""
    found = []

    def job(rows: DataFrame) -> DataFrame:
        found.append(bounds_of(rows.sparkSession))
        return rows

    rows = collect_counted(frame, job, table=table or f"memory://{uuid.uuid4()}")
    assert len(rows) == frame.count()
    return found


@pytest.mark.parametrize(("records", "lent"), [("65536", 512), ("0", 512), ("100", 100)])
def test_rows_alone_bound_a_batch_until_the_write_is_over(
    bounded: SparkSession, records: str, lent: int
) -> None:
    bounded.conf.set(MAX_RECORDS, records)
    before = bounds_of(bounded)
    frame = bounded.range(1).selectExpr("id", "CAST(NULL AS STRING) AS s", "struct('x' AS `a.b`)")
    assert bounds_within(frame) == [(lent, UNBOUNDED)]
    assert bounds_of(bounded) == before

    def failing(rows: DataFrame) -> DataFrame:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        collect_counted(frame, failing, table="memory://t")
    assert bounds_of(bounded) == before


def test_what_spark_hands_over_has_that_many_rows(bounded: SparkSession) -> None:
    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": pa.array([batch.num_rows], pa.int64())})

    frame = bounded.range(0, 1200, 1, 1).selectExpr("id", "CAST(id AS STRING) AS s")
    found = collect_counted(
        frame, lambda rows: rows.mapInArrow(sizes, "rows long"), table="memory://t"
    )
    assert [row.rows for row in found] == [512, 512, 176]


@pytest.mark.parametrize("chosen", ["1048576", UNBOUNDED])
def test_a_bound_that_somebody_chose_stays(bounded: SparkSession, chosen: str) -> None:
    bounded.conf.set(MAX_BYTES, chosen)
    assert bounds_within(bounded.range(1)) == [bounds_of(bounded)]


@pytest.mark.parametrize(
    "column",
    [
        "CAST('a' AS BINARY)",
        "parse_json('1')",
        "named_struct('d', array('a'))",
        "map('k', 1)",
    ],
)
def test_columns_without_a_cheap_measure_are_bounded_by_bytes(
    bounded: SparkSession, column: str
) -> None:
    assert bounds_within(bounded.sql(f"SELECT {column} AS c")) == [bounds_of(bounded)]


@pytest.mark.parametrize("column", ["repeat('é', 65000)", "struct(repeat('x', 130000) AS `a.b`)"])
def test_a_job_that_finds_a_long_row_is_run_again_bounded_by_bytes(
    bounded: SparkSession, column: str
) -> None:
    before = bounds_of(bounded)
    short = bounded.sql(f"SELECT {column} AS c, 'short' AS s")
    assert bounds_within(short) == [(512, UNBOUNDED)]
    long = bounded.sql(f"SELECT {column} AS c, repeat('x', 2000) AS s")
    assert bounds_within(long, column) == [(512, UNBOUNDED), before]
    assert bounds_within(short, column) == [before]
    assert bounds_of(bounded) == before


def test_default_bounds_are_not_left_as_a_choice(bounded: SparkSession) -> None:
    bounded.conf.unset(MAX_RECORDS)
    bounds_within(bounded.range(1))
    assert bounded.conf.get(MAX_RECORDS, None) is None
    assert bounded.conf.get(MAX_BYTES, None) is None


@pytest.mark.parametrize("other", ["'text'", "array(1)"])
def test_jobs_at_the_same_time_do_not_take_each_others_bounds(
    bounded: SparkSession, other: str
) -> None:
    """The second begins within the first, and reads rows that may be long, or not."""
    before, lent = bounds_of(bounded), (512, UNBOUNDED)
    is_measured = other == "'text'"
    found = []

    def job(rows: DataFrame) -> DataFrame:
        found.append(bounds_of(bounded))
        found.extend(bounds_within(bounded.sql(f"SELECT {other} AS c")))
        found.append(bounds_of(bounded))
        return rows

    collect_counted(bounded.range(1), job, table="memory://t")
    assert found == ([lent] * 3 if is_measured else [lent, before, before])
    assert bounds_of(bounded) == before


def test_a_long_row_is_found_whoever_has_lent_the_bounds(bounded: SparkSession) -> None:
    long = bounded.sql("SELECT repeat('x', 200000) AS s")
    found: list[tuple[int, str]] = []

    def job(rows: DataFrame) -> DataFrame:
        found.extend(bounds_within(long))
        return rows

    before = bounds_of(bounded)
    collect_counted(bounded.range(1), job, table="memory://t")
    assert found == [(512, UNBOUNDED), before]


def test_a_session_that_is_gone_fails_no_job_of_another() -> None:
    class Closed:
        def __getattr__(self, name: str) -> object:
            raise ConnectionError("the session is closed")

    lending = arrow_batches._Lending()
    lending._loans.append(arrow_batches._ConfOverride(Closed(), None))  # type: ignore[arg-type]
    with lending.suspended():
        assert not lending._loans
    assert not lending._suspensions


def test_batches_are_joined_until_they_are_long_or_large() -> None:
    short = pa.record_batch({"n": pa.array([1] * 30_000)})
    limits = tasks._TASK_BATCH_ROWS, tasks._TASK_BATCH_BYTES
    assert [each.num_rows for each in merge_small([short] * 4, *limits)] == [90_000, 30_000]
    large = pa.record_batch({"s": pa.array(["x" * (12 << 20)] * 2)})
    assert [each.num_rows for each in merge_small([large] * 5, *limits)] == [4, 4, 2]


def test_a_table_without_chunks_becomes_an_empty_frame(spark: SparkSession) -> None:
    nested = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.int64()))])
    schema = "id bigint, tags array<bigint>"
    assert frame_of(spark, pa.Table.from_batches([], nested), schema).collect() == []
