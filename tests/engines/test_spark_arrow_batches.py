"""The bounds of the batches in which Spark hands rows to Python, lent for the time of a write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_delta.engines.spark.arrow_batches import counted_batches
from dagster_delta.engines.spark.session import MAX_RECORDS
from dagster_delta.engines.spark.tasks import joined_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


@pytest.mark.parametrize(("records", "lent"), [("65536", 512), ("0", 512), ("100", 100)])
def test_rows_alone_bound_a_batch_until_the_write_is_over(
    bounded: SparkSession, records: str, lent: int
) -> None:
    bounded.conf.set(MAX_RECORDS, records)
    before = bounds_of(bounded)
    with counted_batches(bounded.range(1)):
        assert bounds_of(bounded) == (lent, UNBOUNDED)
    assert bounds_of(bounded) == before
    with pytest.raises(RuntimeError), counted_batches(bounded.range(1)):
        raise RuntimeError
    assert bounds_of(bounded) == before


def test_what_spark_hands_over_has_that_many_rows(bounded: SparkSession) -> None:
    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": pa.array([batch.num_rows], pa.int64())})

    frame = bounded.range(0, 1200, 1, 1).selectExpr("id", "CAST(id AS STRING) AS s")
    with counted_batches(frame):
        found = [row.rows for row in frame.mapInArrow(sizes, "rows long").collect()]
    assert found == [512, 512, 176]


def test_a_bound_that_somebody_chose_stays(bounded: SparkSession) -> None:
    bounded.conf.set(MAX_BYTES, "1048576")
    before = bounds_of(bounded)
    with counted_batches(bounded.range(1)):
        assert bounds_of(bounded) == before


@pytest.mark.parametrize(
    "column",
    [
        "CAST('a' AS BINARY)",
        "parse_json('1')",
        "array(named_struct('d', CAST('a' AS BINARY)))",
        "map('k', parse_json('1'))",
    ],
)
def test_columns_of_documents_are_bounded_by_bytes(bounded: SparkSession, column: str) -> None:
    before = bounds_of(bounded)
    with counted_batches(bounded.sql(f"SELECT {column} AS c")):
        assert bounds_of(bounded) == before


def test_batches_are_joined_until_they_are_long_or_large() -> None:
    short = pa.record_batch({"n": pa.array([1] * 30_000)})
    assert [each.num_rows for each in joined_batches(iter([short] * 4))] == [90_000, 30_000]
    large = pa.record_batch({"s": pa.array(["x" * (12 << 20)] * 2)})
    assert [each.num_rows for each in joined_batches(iter([large] * 5))] == [4, 4, 2]
