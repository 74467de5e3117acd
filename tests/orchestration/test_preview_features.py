"""What Dagster marks as a preview: partitioned asset checks, and virtual assets."""

from __future__ import annotations

import dagster as dg
import pyarrow as pa
import pytest

from tests.orchestration.conftest import Lake

pytestmark = pytest.mark.filterwarnings("ignore::dagster.PreviewWarning")

SHOPS = dg.StaticPartitionsDefinition(["north", "south"])


def test_a_partitioned_check_reads_the_rows_of_its_partition(lake: Lake) -> None:
    @dg.asset(partitions_def=SHOPS, metadata={"partition_expr": "shop"})
    def sales(context) -> pa.Table:
        return pa.table({"shop": [context.partition_key] * 2})

    @dg.asset_check(asset=sales, partitions_def=SHOPS)
    def has_rows(sales: pa.Table) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True, metadata={"shops": str(sales["shop"].to_pylist())})

    resources = {"io_manager": lake.manager()}
    defs = dg.Definitions([sales], asset_checks=[has_rows], resources=resources)
    job = defs.resolve_implicit_global_asset_job_def()
    for shop in SHOPS.get_partition_keys():
        result = job.execute_in_process(instance=lake.instance, partition_key=shop)
        (found,) = result.get_asset_check_evaluations()
        assert (found.partition, found.metadata["shops"].value) == (shop, str([shop] * 2))


def test_an_input_of_a_virtual_asset_is_the_table_that_its_metadata_names(
    lake: Lake, events
) -> None:
    orders = events(pa.table({"id": [1, 2]}), name="orders")
    view = dg.AssetSpec(
        "recent_orders", deps=[orders], is_virtual=True, metadata={"table_name": "orders"}
    )

    @dg.asset(ins={"recent_orders": dg.AssetIn(metadata={"where": "id > 1"})})
    def shipped(recent_orders: pa.Table) -> pa.Table:
        return recent_orders

    lake.materialize(orders, view, shipped)
    assert lake.rows("shipped") == [{"id": 2}]
