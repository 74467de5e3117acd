"""A code location as `dagster` loads it: its schema change job knows of one asset alone.

`LAKE_ROOT` says where the tables lie.
"""

# No `from __future__ import annotations`: annotations are looked at as users' modules have them.

import os

import dagster as dg
import pyarrow as pa

from dagster_delta import DeltaIOManager, delta_schema_change_job


@dg.asset
def orders() -> pa.Table:
    return pa.table({"id": [1], "price": [2]})


@dg.asset(deps=[orders])
def report() -> None:
    """Stands in the code location, and in nothing that the job was given."""


defs = dg.Definitions(
    [orders, report],
    jobs=[delta_schema_change_job(assets=[orders])],
    resources={"io_manager": DeltaIOManager(root_uri=os.environ["LAKE_ROOT"])},
)
