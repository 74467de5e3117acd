"""Merges and incremental assets of Spark frames; delta-spark reads the same rows back."""

# No `from __future__ import annotations`: annotations are looked at as users' modules have them.

from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dagster_delta.orchestration.incremental.change_feed_assets import delta_change_feed_asset
from dagster_delta.orchestration.resources import SparkSessionResource
from dagster_delta.table.delta_table import DeltaTable
from tests.sample_tables import FEED

pytestmark = pytest.mark.spark


def theirs(spark, lake, name: str = "events") -> list[tuple[Any, ...]]:
    """The rows as delta-spark reads them."""
    frame = spark.read.format("delta").load(str(lake.root / "public" / name))
    return sorted(tuple(row) for row in frame.collect())


def test_a_spark_frame_is_merged_into_partitions_of_a_run(lake, events, delta_spark):
    days = dg.StaticPartitionsDefinition(["mon", "tue"])
    config = {"merge_type": "upsert", "predicate": "t.id = s.id"}
    options = {
        "partitions_def": days,
        "metadata": {"partition_expr": "day", "mode": "merge", "merge_config": config},
    }
    spark = delta_spark
    first = spark.createDataFrame([(1, "mon", 1), (2, "tue", 1)], "id long, day string, v long")
    lake.materialize(events(first, **options), range_of=("mon", "tue"))
    second = spark.createDataFrame([(2, "tue", 2), (3, "tue", 2)], "id long, day string, v long")
    result = lake.materialize(events(second, **options), partition="tue")
    assert theirs(spark, lake) == [(1, "mon", 1), (2, "tue", 2), (3, "tue", 2)]
    assert lake.metadata(result)["delta/rows_updated"] == 1


def test_changes_are_taken_and_applied_by_spark(lake, delta_spark):
    table = DeltaTable(str(lake.root / "public" / "source"), must_exist=False)
    table.append(pa.table({"id": [1, 2], "v": [1, 2]}), properties=FEED)
    source = dg.AssetSpec("source").with_io_manager_key("io_manager")

    @delta_change_feed_asset("source", keys="id")
    def events(changes: DataFrame) -> DataFrame:
        return changes.withColumn("v", F.col("v") * 10)

    def run() -> dict[str, Any]:
        result = lake.materialize(source, events, spark=SparkSessionResource())
        return lake.metadata(result)

    first = run()
    assert first["delta/full_refresh"] is True
    assert "Physical Plan" in first["spark/plan"]
    assert theirs(delta_spark, lake) == [(1, 10), (2, 20)]
    table.append(pa.table({"id": [3], "v": [3]}))
    table.update({"v": "v + 1"}, where="id >= 2")
    table.delete("id = 1")
    assert run()["delta/full_refresh"] is False
    assert theirs(delta_spark, lake) == [(2, 30), (3, 40)]
    assert "delta/skipped" in run()


def test_several_rows_of_one_key_are_refused(lake, delta_spark):
    table = DeltaTable(str(lake.root / "public" / "source"), must_exist=False)
    table.append(pa.table({"id": [1, 1]}), properties=FEED)
    source = dg.AssetSpec("source").with_io_manager_key("io_manager")

    @delta_change_feed_asset("source", keys="id")
    def events(changes: DataFrame) -> DataFrame:
        return changes

    error = lake.fail(source, events, spark=SparkSessionResource())
    assert "several rows with the same key (id)" in str(error)
