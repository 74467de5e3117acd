"""The code location whose pages the browser looks at: what each kind of table shows of itself."""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

import datetime as dt
import os

import dagster as dg
import pyarrow as pa

from dagster_delta import (
    DeltaIOManager,
    check_definitions,
    delta_asset_checks,
    observable_delta_asset,
)

LAKE = os.environ["DAGSTER_DELTA_BROWSER_LAKE"]
MONTHS = dg.MonthlyPartitionsDefinition("2024-01-01", end_date="2024-04-01")


@dg.asset(
    metadata={
        "mode": "merge",
        "merge_config": {"predicate": "s.tailnum = t.tailnum"},
        "sample_rows": 2,
        "masked_columns": "owner",
    }
)
def planes() -> pa.Table:
    """Planes by tail number."""
    return pa.table(
        {"tailnum": ["N10156", "N102UW", "N103US"], "seats": [55, 182, 182], "owner": ["Ann"] * 3}
    )


@dg.asset(partitions_def=MONTHS, metadata={"partition_expr": "day", "partition_by": "month"})
def flights(context: dg.AssetExecutionContext) -> pa.Table:
    """One flight a day in January, two in February, and so on."""
    rows = []
    for key in context.partition_keys:
        first = dt.date.fromisoformat(key)
        rows += [{"day": first, "month": first.month}] * first.month
    return pa.Table.from_pylist(rows)


@dg.asset
def not_made_yet() -> pa.Table:
    """An asset without a table."""
    return pa.table({"id": [1]})


bookings = observable_delta_asset("bookings", f"{LAKE}/bookings")


CHECKS = delta_asset_checks(planes, unique="owner")

defs = check_definitions(
    dg.Definitions(
        assets=[planes, flights, not_made_yet, bookings],
        asset_checks=CHECKS,
        jobs=[
            dg.define_asset_job("make_planes", selection=[planes]),
            dg.define_asset_job("make_flights", selection=[flights]),
            dg.define_asset_job("observe_bookings", selection=[bookings]),
        ],
        resources={"io_manager": DeltaIOManager(root_uri=LAKE)},
        executor=dg.in_process_executor,
    )
)
