"""A code location as `dagster` loads it: an asset with checks, and the job that restores its table.

`LAKE_ROOT` says where the tables lie.
"""

# No `from __future__ import annotations`: annotations are looked at as users' modules have them.

import os

import dagster as dg
import pyarrow as pa

from dagster_delta import DeltaIOManager, delta_asset_checks, delta_restore_job


@dg.asset(metadata={"mode": "append"})
def orders() -> pa.Table:
    return pa.table({"id": [1]})


@dg.asset_check(asset=orders)
def few_rows(orders: pa.Table) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=orders.num_rows < 2)


defs = dg.Definitions(
    [orders],
    asset_checks=[few_rows, *delta_asset_checks(orders, unique="id")],
    jobs=[
        delta_restore_job(assets=[orders]),
        dg.define_asset_job("make", selection=dg.AssetSelection.all()),
    ],
    resources={"io_manager": DeltaIOManager(root_uri=os.environ["LAKE_ROOT"])},
    executor=dg.in_process_executor,
)
