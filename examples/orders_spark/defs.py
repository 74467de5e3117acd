"""Orders as JSON lines whose columns grow, read and written by Spark."""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

import os
from pathlib import Path

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from dagster_delta import (
    DeltaIOManager,
    SparkSessionResource,
    check_definitions,
    delta_schema_change_job,
)

HERE = Path(__file__).parent
LAKE = os.environ.get("ORDERS_LAKE", str(HERE / "lake"))
SPARK = SparkSessionResource(shared=True, conf={"spark.sql.shuffle.partitions": "2"})
DAYS = dg.DailyPartitionsDefinition("2026-03-01", end_date="2026-03-03")


@dg.asset(
    partitions_def=DAYS,
    metadata={
        "partition_expr": "day",
        # A day with a new column adds it to the table; rows of earlier days have null in it.
        "schema_mode": "merge",
        "table_properties": {"delta.enableTypeWidening": "true"},
    },
)
def orders(context: dg.AssetExecutionContext, spark: SparkSessionResource) -> DataFrame:
    """The orders of a day."""
    day = context.partition_key
    arrived = spark.session.read.json(str(HERE / "arrived" / f"{day}.json"))
    return arrived.withColumns(
        {"day": F.lit(day).cast("date"), "quantity": F.col("quantity").cast("int")}
    )


@dg.asset
def quantities(orders: DataFrame) -> DataFrame:
    """How many of each article were ordered."""
    return orders.groupBy("article").agg(F.sum("quantity").alias("quantity"))


defs = check_definitions(
    dg.Definitions(
        assets=[orders, quantities],
        jobs=[delta_schema_change_job(assets=[orders, quantities])],
        resources={"io_manager": DeltaIOManager(root_uri=LAKE, spark=SPARK), "spark": SPARK},
    )
)
