"""Weather readings that arrive as CSV files, one a day: a local disk, no Java."""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

import datetime as dt
import os
from pathlib import Path

import dagster as dg
import pandas as pd

from dagster_delta import (
    DeltaIOManager,
    check_definitions,
    delta_asset_checks,
    delta_sql_asset,
    delta_table_sensor,
    observable_delta_asset,
)

HERE = Path(__file__).parent
LAKE = os.environ.get("WEATHER_LAKE", str(HERE / "lake"))
STATIONS = f"{LAKE}/external/stations"
DAYS = dg.DailyPartitionsDefinition("2026-03-01", end_date="2026-03-04")


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
def readings(context: dg.AssetExecutionContext) -> pd.DataFrame:
    """The readings of a day; to run it again replaces that day."""
    day = context.partition_key
    frame = pd.read_csv(HERE / "arrived" / f"{day}.csv")
    return frame.assign(day=dt.date.fromisoformat(day))


daily_means = delta_sql_asset(
    "daily_means",
    "SELECT day, station, avg(celsius) AS celsius FROM {readings} GROUP BY day, station",
    {"readings": readings},
)

stations = observable_delta_asset(["external", "stations"], STATIONS)


@dg.asset(ins={"stations": dg.AssetIn(["external", "stations"])})
def warmest(daily_means: pd.DataFrame, stations: pd.DataFrame) -> pd.DataFrame:
    """The warmest station of each day, by its name."""
    named = daily_means.merge(stations, on="station")
    return named.loc[named.groupby("day")["celsius"].idxmax(), ["day", "name", "celsius"]]


defs = check_definitions(
    dg.Definitions(
        assets=[readings, daily_means, stations, warmest],
        asset_checks=delta_asset_checks(
            readings, unique=["day", "hour", "station"], row_count=(1, None)
        ),
        # Somebody else writes the stations: a new name makes the report anew.
        sensors=[delta_table_sensor("stations_changed", STATIONS, target=[warmest])],
        resources={"io_manager": DeltaIOManager(root_uri=LAKE)},
    )
)
