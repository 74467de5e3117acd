"""Spark frames go to a table and come back, on the one session there is."""

from __future__ import annotations

from datetime import UTC, datetime

import dagster as dg
import pandas as pd
import pytest
from pyspark.sql import DataFrame

from dagster_delta.errors import PartitionMismatch
from dagster_delta.orchestration.resources import SparkSessionResource
from tests.orchestration.conftest import table_of

pytestmark = pytest.mark.spark

HOURS = dg.HourlyPartitionsDefinition("2013-01-01-00:00", end_date="2013-01-01-06:00")
COLORS = dg.StaticPartitionsDefinition(["red", "green", "blue", "it's"])


def test_a_spark_frame_is_stored_and_loaded(lake, events, spark):
    seen = []

    @dg.asset
    def reader(events: DataFrame) -> None:
        seen.extend(row.id for row in events.collect())

    frame = spark.createDataFrame([(1, "a"), (2, "b")], "id long, name string")
    lake.materialize(events(frame), reader, spark=SparkSessionResource())
    assert sorted(seen) == [1, 2]
    assert lake.rows() == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    told = lake.metadata_of_last("reader")["delta/input/events"]
    assert (told["version"], told["loaded_as"]) == (0, "pyspark.DataFrame")
    assert told["files"] == told["of_files"] == lake.table().snapshot().num_files


def test_a_spark_asset_reads_what_an_arrow_asset_wrote_and_the_other_way_round(lake, events, spark):
    seen = []

    @dg.asset
    def doubled(events: DataFrame):
        return events.selectExpr("id * 2 AS id")

    @dg.asset
    def reader(doubled: pd.DataFrame) -> None:
        seen.extend(sorted(doubled["id"]))

    lake.materialize(events(table_of([{"id": 1}, {"id": 2}])), doubled, reader)
    assert seen == [2, 4]


def test_a_range_of_static_partitions_is_replaced_exactly(lake, events, spark):
    def produce(generation):
        def frame(context):
            rows = [(key, generation) for key in context.partition_keys]
            return spark.createDataFrame(rows, "p string, g int")

        return events(frame, partitions_def=COLORS, metadata={"partition_expr": "p"})

    lake.materialize(produce(1), range_of=("red", "it's"))
    lake.materialize(produce(2), range_of=("green", "blue"))
    assert {row["p"]: row["g"] for row in lake.rows()} == {
        "red": 1,
        "green": 2,
        "blue": 2,
        "it's": 1,
    }


@pytest.mark.parametrize("column_type", ["timestamp", "timestamp_ntz"])
def test_an_hour_is_replaced_and_its_neighbours_stay(lake, events, spark, column_type):
    def produce(generation):
        def frame(context):
            rows = [
                (datetime.strptime(key, HOURS.fmt).strftime("%F %T"), generation)
                for key in context.partition_keys
            ]
            texts = spark.createDataFrame(rows, "text string, g int")
            return texts.selectExpr(f"CAST(text AS {column_type}) AS p", "g")

        return events(frame, partitions_def=HOURS, metadata={"partition_expr": "p"})

    lake.materialize(produce(1), range_of=("2013-01-01-00:00", "2013-01-01-05:00"))
    lake.materialize(produce(2), partition="2013-01-01-03:00")
    assert [row["g"] for row in lake.rows()] == [1, 1, 1, 2, 1, 1]


def test_a_row_outside_of_the_partition_is_an_error_that_shows_it(lake, events, spark):
    frame = spark.createDataFrame([("red",), ("mauve",)], "p string")
    stray = events(frame, partitions_def=COLORS, metadata={"partition_expr": "p"})
    error = lake.fail(stray, partition="red")
    assert isinstance(error, PartitionMismatch)
    assert "mauve" in str(error)


def test_a_partitioned_input_is_just_its_partition(lake, events, spark):
    seen = []

    def produce(context):
        rows = [
            {"p": datetime.strptime(key, HOURS.fmt).replace(tzinfo=UTC)}
            for key in context.partition_keys
        ]
        return table_of(rows)

    @dg.asset(partitions_def=HOURS)
    def reader(events: DataFrame) -> None:
        seen.append(events.count())

    asset = events(produce, partitions_def=HOURS, metadata={"partition_expr": "p"})
    lake.materialize(asset, range_of=("2013-01-01-00:00", "2013-01-01-05:00"))
    lake.materialize(asset, reader, partition="2013-01-01-02:00")
    assert seen == [1]


def test_a_retried_step_appends_once(lake, spark):
    attempts = []

    @dg.multi_asset(
        outs={"events": dg.AssetOut(), "late": dg.AssetOut()},
        retry_policy=dg.RetryPolicy(max_retries=2),
    )
    def both():
        attempts.append(1)
        yield dg.Output(spark.range(3), output_name="events")
        if len(attempts) < 3:
            raise RuntimeError("the step died after its commit")
        yield dg.Output(spark.range(1), output_name="late")

    assert lake.materialize(both, mode="append").success
    assert lake.column("id") == [0, 1, 2]
