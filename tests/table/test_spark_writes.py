"""Spark DataFrames through the same calls: executors write, the driver commits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_delta import Column
from dagster_delta.errors import ConstraintViolation, PartitionMismatch, SchemaMismatch
from dagster_delta.table.delta_table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def ids(table: DeltaTable) -> list[int]:
    return sorted(table.snapshot().scan(columns=["id"]).to_arrow()["id"].to_pylist())


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> DeltaTable:
    """Ids 0 to 9, in partitions by parity, created by a DataFrame."""
    created = DeltaTable(tmp_path / "t", must_exist=False)
    frame = spark.range(10).selectExpr("id", "id % 2 AS p", "1 AS one")
    assert created.append(frame, partition_by=["p"]).version == 0
    return created


def test_a_frame_creates_a_table_whose_columns_are_nullable(table: DeltaTable) -> None:
    assert ids(table) == list(range(10))
    assert all(field.nullable for field in table.schema())
    assert table.snapshot().num_records == 10


def test_a_frame_replaces_a_partition(spark: SparkSession, table: DeltaTable) -> None:
    frame = spark.range(20, 22).selectExpr("id", "1L AS p", "1 AS one")
    table.overwrite(frame, where="p = 1")
    assert ids(table) == [0, 2, 4, 6, 8, 20, 21]


def test_a_frame_replaces_rows_and_the_others_stay(spark: SparkSession, table: DeltaTable) -> None:
    frame = spark.range(3, 4).selectExpr("id", "1L AS p", "7 AS one")
    result = table.overwrite(frame, where="id = 3")
    assert ids(table) == list(range(10))
    assert table.snapshot().scan(where="one = 7").count() == 1
    assert int(result.metrics["numCopiedRows"]) > 0


def test_a_frame_may_not_replace_by_an_empty_partition_value_which_becomes_null(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    table = DeltaTable.create(tmp_path / "t", schema, partition_by=["p"])
    with pytest.raises(ConstraintViolation, match="empty string becomes null"):
        table.overwrite(spark.range(1).selectExpr("id", "'' AS p"), where="p = ''")
    table.append(spark.range(1).selectExpr("id", "'' AS p"))
    assert table.snapshot().scan(where="p IS NULL").count() == 1


def test_a_frame_replaces_the_partitions_it_has_rows_for(
    spark: SparkSession, table: DeltaTable
) -> None:
    table.overwrite(spark.range(30, 31).selectExpr("id", "0L AS p", "1 AS one"), where="dynamic")
    assert ids(table) == [1, 3, 5, 7, 9, 30]


def test_rows_outside_the_predicate_are_refused_on_the_executors(
    spark: SparkSession, table: DeltaTable
) -> None:
    with pytest.raises(PartitionMismatch):
        table.overwrite(spark.range(2).selectExpr("id", "id AS p", "1 AS one"), where="p = 1")
    assert ids(table) == list(range(10))


def test_a_predicate_means_what_it_means_in_the_time_zone_of_the_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC"
    table = DeltaTable(tmp_path / "t", must_exist=False)
    hours = [1_700_000_000 + 3600 * hour for hour in range(4)]
    stamps = pa.array([second * 1_000_000 for second in hours], pa.timestamp("us", "UTC"))
    table.append(pa.table({"id": [0, 1, 2, 3], "at": stamps}), partition_by=["at"])
    try:
        # 22:13:20 UTC is 14:13:20 in Los Angeles, where this predicate takes the last two hours.
        spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
        frame = spark.range(9, 10).selectExpr("id", "timestamp_seconds(1700007200) AS at")
        table.overwrite(frame, where="at >= TIMESTAMP '2023-11-14 16:13:20'")
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert ids(table) == [0, 1, 9]


def test_new_columns_of_a_frame_merge_into_the_table(
    spark: SparkSession, table: DeltaTable
) -> None:
    frame = spark.range(10, 12).selectExpr("id", "id % 2 AS p", "1 AS one", "'x' AS added")
    with pytest.raises(SchemaMismatch, match="merge"):
        table.append(frame)
    table.append(frame, schema_mode="merge")
    rows = table.snapshot().scan(columns=["added"]).to_arrow()["added"]
    assert sorted(rows.to_pylist(), key=str) == [None] * 10 + ["x", "x"]


def test_a_frame_is_written_once_per_application_version(
    spark: SparkSession, table: DeltaTable
) -> None:
    frame = spark.range(10, 12).selectExpr("id", "id % 2 AS p", "1 AS one")
    assert not table.append(frame, idempotency=("nightly", 1)).skipped
    assert table.append(frame, idempotency=("nightly", 1)).skipped
    assert ids(table) == list(range(12))


def test_a_filter_on_a_base_column_skips_partitions_for_spark_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = [
        Column("at", "TIMESTAMP"),
        Column("day", "DATE", generated_as="CAST(at AS DATE)"),
    ]
    table = DeltaTable.create(tmp_path / "days", columns, partition_by=["day"])
    days = spark.range(30).selectExpr(
        "timestampadd(DAY, id, TIMESTAMP '2024-01-01 12:00:00') AS at"
    )
    table.append(days)
    scan = table.snapshot().scan(where="at > TIMESTAMP '2024-01-28 00:00:00Z'")
    assert len(scan.to_spark(spark).inputFiles()) <= 5
    assert scan.to_spark(spark).count() == 3
