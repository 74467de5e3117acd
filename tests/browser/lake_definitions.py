"""The code location that the browser sees: three assets and their health, two jobs for operators and a sensor."""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

import os

import dagster as dg
import pyarrow as pa

from dagster_delta import (
    DeltaIOManager,
    delta_health_asset,
    delta_maintenance_job,
    delta_schema_change_job,
    delta_table_sensor,
)

LAKE = os.environ["DAGSTER_DELTA_BROWSER_LAKE"]


@dg.asset(kinds={"deltalake"}, metadata={"mode": "append"})
def planes() -> pa.Table:
    """Planes by tail number."""
    return pa.table(
        {
            "tailnum": ["N10156", "N102UW", "N103US"],
            "seats": pa.array([55, 182, 182], pa.int32()),
        }
    )


@dg.asset(kinds={"deltalake"})
def airports() -> pa.Table:
    """Where the planes fly to."""
    return pa.table(
        {"faa": ["EWR", "JFK", "LGA"], "altitude_feet": pa.array([18, 13, 22], pa.int32())}
    )


@dg.asset(kinds={"deltalake"})
def lowest_airport(airports: pa.Table) -> pa.Table:
    """The one nearest to the sea."""
    return airports.sort_by("altitude_feet").slice(0, 1)


@dg.op
def count_bookings(context: dg.OpExecutionContext) -> None:
    """Follows the table that others write."""
    context.log.info("somebody booked")


@dg.job
def bookings_report() -> None:
    """Runs when somebody books."""
    count_bookings()


TABLES = [planes, airports, lowest_airport]

defs = dg.Definitions(
    assets=[*TABLES, delta_health_asset("lake_health", assets=TABLES)],
    jobs=[
        bookings_report,
        delta_maintenance_job(assets=TABLES),
        delta_schema_change_job(assets=TABLES),
    ],
    sensors=[
        delta_table_sensor(
            "bookings_changed",
            f"{LAKE}/bookings",
            target=bookings_report,
            minimum_interval_seconds=1,
        ),
        delta_table_sensor(
            "many_bookings",
            f"{LAKE}/quiet_bookings",
            target=bookings_report,
            minimum_rows=1000,
            minimum_interval_seconds=1,
        ),
    ],
    resources={"io_manager": DeltaIOManager(root_uri=LAKE, schema="fleet")},
    # One process per run is enough.
    executor=dg.in_process_executor,
)
