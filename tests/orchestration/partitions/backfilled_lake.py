"""Definitions that the processes of a run load for themselves: a source and its incremental copy.

`LAKE_ROOT` says where the tables lie.
"""

# No `from __future__ import annotations`: annotations are looked at as users' modules have them.

import os
from typing import Any

import dagster as dg
import pyarrow as pa

from dagster_delta import DeltaIOManager, delta_asset_checks, delta_change_feed_asset

DAYS = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")
PARTITIONED: Any = {"partitions_def": DAYS, "metadata": {"partition_expr": "day"}}


@dg.asset(
    partitions_def=DAYS,
    metadata={
        "partition_expr": "day",
        "mode": "merge",
        "merge_predicate": "t.id = s.id",
        "table_properties": {"delta.enableChangeDataFeed": "true"},
    },
)
def source(context: dg.AssetExecutionContext) -> pa.Table:
    day = context.partition_key
    number = int(day[-2:])
    return pa.table({"id": [number * 10, number * 10 + 1], "day": [day, day]})


@delta_change_feed_asset("source", keys="id", **PARTITIONED)
def copied(changes: pa.Table) -> pa.Table:
    return changes


def make_job() -> dg.JobDefinition:
    return dg.Definitions(
        [source, copied],
        asset_checks=delta_asset_checks(copied, unique="id", blocking=True),
        jobs=[dg.define_asset_job("all", selection="*", executor_def=dg.multiprocess_executor)],
        resources={"io_manager": DeltaIOManager(root_uri=os.environ["LAKE_ROOT"])},
    ).resolve_job_def("all")
