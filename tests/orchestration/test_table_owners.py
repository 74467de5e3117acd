"""Assets whose tables lie at one location: none of them replaces rows of another unnoticed."""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
import deltalake
import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.io.table_owner import OWNER_PROPERTY
from dagster_delta.table.delta_table import DeltaTable
from tests.orchestration.conftest import library_error, table_of

SAME = {"schema": "lake", "table_name": "orders"}


def asset(prefix: str, value: int, **metadata: Any) -> dg.AssetsDefinition:
    @dg.asset(name="orders", key_prefix=prefix, metadata={**SAME, **metadata})
    def orders() -> pa.Table:
        return table_of([{"id": value}])

    return orders


def ids(lake) -> list[int]:
    return sorted(row["id"] for row in lake.rows("orders", "lake"))


def owner(lake) -> str | None:
    return lake.table("orders", "lake").metadata().configuration.get(OWNER_PROPERTY)


@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_a_table_of_another_asset_is_not_written(lake, mode):
    lake.materialize(asset("a", 1))
    error = lake.fail(asset("b", 2), mode=mode)
    assert isinstance(error, InvalidArgument)
    assert "belongs to the asset a/orders, whose rows b/orders would replace" in str(error)
    assert "renamed_from = 'a/orders'" in str(error)
    assert ids(lake) == [1]
    lake.materialize(asset("a", 3))
    assert ids(lake) == [3]


def test_keys_with_equal_ends_are_told_apart(lake):
    def named(*path: str) -> dg.AssetsDefinition:
        @dg.asset(key=list(path))
        def orders() -> pa.Table:
            return table_of([{"id": 1}])

        return orders

    lake.materialize(named("a", "raw", "orders"))
    error = lake.fail(named("b", "raw", "orders"))
    assert "belongs to the asset a/raw/orders" in str(error)


def test_a_table_of_another_asset_is_not_read_as_that_of_an_asset_without_one(lake):
    @dg.asset(key=["a", "raw", "orders"])
    def written() -> pa.Table:
        return table_of([{"id": 1}])

    def read(**metadata: Any) -> list[dict[str, Any]]:
        seen = []

        @dg.asset(ins={"orders": dg.AssetIn(key=["b", "raw", "orders"])})
        def report(orders: pa.Table) -> None:
            seen.extend(orders.to_pylist())

        lake.materialize(report, dg.AssetSpec(["b", "raw", "orders"], metadata=metadata))
        return seen

    lake.materialize(written)
    with pytest.raises(Exception) as caught:
        read()
    error = library_error(caught.value)
    assert isinstance(error, InvalidArgument)
    assert "belongs to the asset a/raw/orders" in str(error)
    assert read(table_name="orders") == [{"id": 1}]
    assert read(renamed_from="a/raw/orders") == [{"id": 1}]
    assert read(shared_table=True) == [{"id": 1}]


@pytest.mark.parametrize("former", ["a/orders", ["z", "a/orders"], dg.AssetKey(["a", "orders"])])
def test_an_asset_that_was_renamed_keeps_its_table(lake, former):
    lake.materialize(asset("a", 1))
    lake.materialize(asset("b", 2, renamed_from=former, mode="append"))
    assert ids(lake) == [1, 2]
    assert owner(lake) == "b/orders"
    # The metadata may go, and the older asset is refused.
    lake.materialize(asset("b", 3))
    assert "belongs to the asset b/orders" in str(lake.fail(asset("a", 4)))


def test_assets_that_say_so_share_a_table(lake):
    lake.materialize(asset("a", 1, mode="append"))
    lake.materialize(asset("b", 2, mode="append", shared_table=True))
    error = lake.fail(asset("a", 3, mode="append"))
    assert "is shared by several assets" in str(error)
    assert "shared_table = True" in str(error)
    lake.materialize(asset("a", 4, mode="append", shared_table=True))
    lake.materialize(asset("c", 5, mode="append", shared_table=True))
    assert ids(lake) == [1, 2, 4, 5]


def test_a_partition_and_an_asset_of_the_same_name_both_append_in_one_run(lake):
    shared = {"table_name": "orders", "schema": "lake", "shared_table": True}

    @dg.asset(
        key="orders",
        partitions_def=dg.StaticPartitionsDefinition(["eu"]),
        metadata={"partition_expr": "region", **shared},
    )
    def partitioned() -> pa.Table:
        return table_of([{"id": 1, "region": "eu"}])

    @dg.asset(key=["orders", "eu"], deps=[partitioned], metadata=shared)
    def whole() -> pa.Table:
        return table_of([{"id": 2, "region": "eu"}])

    lake.materialize(partitioned, whole, mode="append", partition="eu")
    assert ids(lake) == [1, 2]


def test_a_table_of_an_earlier_release_belongs_to_its_latest_writer(lake):
    lake.materialize(asset("a", 1))
    lake.table("orders", "lake").unset_properties([OWNER_PROPERTY])
    lake.materialize(asset("a", 2))
    assert owner(lake) is None
    error = lake.fail(asset("b", 3))
    assert "belongs to the asset a/orders" in str(error)
    lake.materialize(asset("b", 3, renamed_from="a/orders"))
    assert owner(lake) == "b/orders"


def test_tables_that_others_made_are_for_any_asset(lake):
    path = lake.root / "lake" / "orders"
    deltalake.write_deltalake(str(path), pa.table({"id": [1]}))
    lake.materialize(asset("a", 2, mode="append"))
    DeltaTable(str(path)).optimize()
    deltalake.write_deltalake(str(path), pa.table({"id": [3]}), mode="append")
    lake.materialize(asset("a", 4, mode="append"))
    assert ids(lake) == [1, 2, 3, 4]


def test_a_restored_table_stays_that_of_its_asset(lake):
    lake.materialize(asset("a", 1))
    lake.materialize(asset("a", 2))
    lake.table("orders", "lake").restore(0)
    lake.materialize(asset("a", 3, mode="append"))
    assert ids(lake) == [1, 3]
    assert "belongs to the asset a/orders" in str(lake.fail(asset("b", 3)))


def test_a_merged_and_a_replaced_table_remember_their_asset(lake):
    config = {"merge_type": "upsert", "predicate": "t.id = s.id"}
    lake.materialize(asset("a", 1, mode="merge", merge_config=config))
    assert owner(lake) == "a/orders"
    lake.materialize(asset("a", 1, schema_mode="overwrite"))
    assert owner(lake) == "a/orders"


def test_outputs_of_ops_have_no_table_of_their_own(lake):
    """Many ops name their output alike, and a job may be run under another name."""

    def run(step: str) -> None:
        @dg.op(name=step, out={"orders": dg.Out(metadata=SAME)})
        def produce() -> pa.Table:
            return table_of([{"id": 7}])

        @dg.job(name=f"job_of_{step}")
        def job() -> None:
            produce()

        manager = lake.manager()
        job.execute_in_process(resources={"io_manager": manager})

    run("one")
    run("two")
    assert owner(lake) is None
    lake.materialize(asset("a", 1))
    assert ids(lake) == [1]


def test_an_op_does_not_replace_the_table_of_an_asset(lake):
    lake.materialize(asset("a", 1))

    @dg.op(out={"orders": dg.Out(metadata=SAME)})
    def produce() -> pa.Table:
        return table_of([{"id": 7}])

    @dg.job
    def job() -> None:
        produce()

    with pytest.raises(InvalidArgument, match="belongs to the asset a/orders"):
        job.execute_in_process(resources={"io_manager": lake.manager()})
    assert ids(lake) == [1]


def test_a_write_whose_mode_leaves_a_table_alone_needs_no_claim(lake):
    lake.materialize(asset("a", 1))
    result = lake.materialize(asset("b", 2, mode="ignore"))
    assert result.success
    assert ids(lake) == [1]


def test_the_owner_costs_no_commit_and_no_feature(lake):
    lake.materialize(asset("a", 1))
    table = lake.table("orders", "lake")
    assert table.version() == 0
    assert table.protocol().writer_features is None
    log = (lake.root / "lake" / "orders" / "_delta_log" / f"{0:020}.json").read_text()
    (metadata,) = [json.loads(line)["metaData"] for line in log.splitlines() if "metaData" in line]
    assert metadata["configuration"] == {OWNER_PROPERTY: "a/orders"}
    assert deltalake.DeltaTable(table.uri).metadata().configuration == metadata["configuration"]
