"""Assets whose tables lie at one location: none of them replaces rows of another unnoticed."""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
import deltalake
import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument, PartitionMismatch
from dagster_delta.orchestration.definition_checks import check_definitions
from dagster_delta.orchestration.incremental.change_feed_assets import delta_change_feed_asset
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


# ---- rows that an asset owns

DAYS = dg.StaticPartitionsDefinition(["mon", "tue"])


def feed(source: str, n: int = 1, *, days: Any = DAYS, rows: Any = None, **metadata: Any) -> Any:
    """An asset that feeds the shared table with rows of its own source."""
    expression = {} if days is None else {"partition_expr": "day"}
    owned = {"owned_rows": {"source": source}}

    @dg.asset(
        name=f"feed_{source}",
        partitions_def=days,
        metadata={**SAME, "shared_table": True, **expression, **owned, **metadata},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def one(context) -> pa.Table:
        keys = context.partition_keys if days is not None else ["mon"]
        given = rows or [{"source": source, "day": day} for day in keys]
        return table_of([{**row, "n": n} for row in given])

    return one


def shares(lake) -> list[tuple[Any, ...]]:
    return sorted((row["source"], row["day"], row["n"]) for row in lake.rows("orders", "lake"))


def test_assets_replace_their_own_rows_of_a_partition_in_a_shared_table(lake):
    for source, n in (("web", 1), ("shop", 1), ("web", 2)):
        lake.materialize(feed(source, n), partition="mon")
    assert shares(lake) == [("shop", "mon", 1), ("web", "mon", 2)]
    result = lake.materialize(feed("shop", 3), range_of=("mon", "tue"))
    assert shares(lake) == [("shop", "mon", 3), ("shop", "tue", 3), ("web", "mon", 2)]
    events = result.asset_materializations_for_node("feed_shop")
    counts = {e.partition: e.metadata["dagster/partition_row_count"].value for e in events}
    assert counts == {"mon": 1, "tue": 1}


def test_assets_without_partitions_replace_their_own_rows_of_a_shared_table(lake):
    for source, n in (("web", 1), ("shop", 1), ("web", 2)):
        lake.materialize(feed(source, n, days=None))
    assert shares(lake) == [("shop", "mon", 1), ("web", "mon", 2)]


def test_an_asset_owns_rows_of_several_values(lake):
    rows = [{"source": source, "day": "mon"} for source in ("web", "app")]
    owned = {"source": ["web", "app"]}
    lake.materialize(feed("shop", days=None))
    for n in (1, 2):
        lake.materialize(feed("web", n, days=None, rows=rows, owned_rows=owned))
    assert shares(lake) == [("app", "mon", 2), ("shop", "mon", 1), ("web", "mon", 2)]


@pytest.mark.parametrize("days", [DAYS, None])
@pytest.mark.parametrize("mode", ["overwrite", "append", "ignore"])
def test_rows_that_the_asset_does_not_own_are_refused(lake, days, mode):
    lake.materialize(feed("shop", days=days), partition=days and "mon")
    wrong = feed("web", days=days, rows=[{"source": "shop", "day": "mon"}], mode=mode)
    error = lake.fail(wrong, partition=days and "mon")
    assert isinstance(error, PartitionMismatch)
    assert "`source` = 'web'" in str(error)
    assert shares(lake) == [("shop", "mon", 1)]


def test_an_asset_of_a_shared_table_is_loaded_as_the_rows_that_it_owns(lake):
    seen = []

    @dg.asset
    def report(feed_web: pa.Table) -> None:
        seen.extend(feed_web["source"].to_pylist())

    web = feed("web", days=None)
    lake.materialize(feed("shop", days=None))
    lake.materialize(web, report)
    assert seen == ["web"]


@pytest.mark.parametrize("mode", ["ignore", "error"])
def test_rows_of_others_do_not_count_as_those_of_the_asset(lake, mode):
    lake.materialize(feed("shop"), partition="mon")
    lake.materialize(feed("web", mode=mode), partition="mon")
    assert shares(lake) == [("shop", "mon", 1), ("web", "mon", 1)]
    lake.materialize(feed("shop", 9, days=None, mode="ignore"))
    assert shares(lake) == [("shop", "mon", 1), ("web", "mon", 1)]


@pytest.mark.parametrize("alias", ["s", "source"])
def test_a_merge_deletes_only_rows_that_the_asset_owns(lake, alias):
    merge = {
        "merge_type": "replace_delete_unmatched",
        "predicate": f"t.day = {alias}.day",
        "source_alias": alias,
    }
    for source in ("web", "shop"):
        lake.materialize(feed(source), range_of=("mon", "tue"))
    rows = [{"source": "web", "day": "tue"}]
    lake.materialize(feed("web", 2, days=None, rows=rows, mode="merge", merge_config=merge))
    assert shares(lake) == [("shop", "mon", 1), ("shop", "tue", 1), ("web", "tue", 2)]


DELETING = {"merge_type": "replace_delete_unmatched", "predicate": "t.day = s.day"}
CLAUSES = {"when_not_matched_by_source_delete": [{"predicate": "t.n > 5"}]}


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"mode": "merge", "merge_config": DELETING},
        {
            "mode": "merge",
            "merge_config": {"merge_type": "custom", "predicate": "t.day = s.day"},
            "merge_operations_config": CLAUSES,
        },
    ],
    ids=["overwrite", "replace_delete_unmatched", "custom"],
)
def test_rows_of_a_shared_table_are_not_replaced_without_knowing_their_owner(lake, metadata):
    lake.materialize(feed("shop"), partition="mon")
    unknown = feed("web", owned_rows=None, **metadata)
    error = lake.fail(unknown, partition="mon")
    assert isinstance(error, InvalidArgument)
    assert "name its own in the metadata owned_rows" in str(error)
    resources = {"io_manager": lake.manager()}
    with pytest.raises(InvalidArgument, match="owned_rows"):
        check_definitions(dg.Definitions([unknown], resources=resources))
    assert shares(lake) == [("shop", "mon", 1)]
    every = feed("web", owned_rows={}, **metadata)
    check_definitions(dg.Definitions([every], resources=resources))
    lake.materialize(every, partition="mon")
    assert ("web", "mon", 1) in shares(lake) or metadata


def test_a_full_refresh_replaces_only_rows_that_the_asset_owns(lake):
    @dg.asset
    def upstream() -> pa.Table:
        return table_of([{"id": 1, "source": "web", "day": "mon", "n": 1}])

    def incremental(**metadata: Any) -> Any:
        @delta_change_feed_asset(
            upstream,
            name="feed_web",
            keys="id",
            returns="rows",
            metadata={**SAME, "shared_table": True, **metadata},
        )
        def feed_web(changes: pa.Table) -> pa.Table:
            return changes.select(["id", "source", "day", "n"])

        return feed_web

    lake.materialize(feed("shop", days=None, rows=[{"id": 7, "source": "shop", "day": "mon"}]))
    lake.materialize(upstream)
    assert "owned_rows" in str(lake.fail(upstream, incremental()))
    for _ in range(2):
        lake.materialize(
            upstream,
            incremental(owned_rows={"source": "web"}),
            tags={"delta/full_refresh": "true"},
        )
    assert shares(lake) == [("shop", "mon", 1), ("web", "mon", 1)]


def test_a_value_that_its_column_cannot_have_is_refused(lake):
    error = lake.fail(feed("web", days=None, owned_rows={"n": "many"}))
    assert isinstance(error, InvalidArgument)
    assert "'many' cannot be a value" in str(error)
    for wrong in ({"source": []}, {"source": None}, "source = 'web'"):
        assert "owned_rows" in str(lake.fail(feed("web", days=None, owned_rows=wrong)))
