"""Branches in Dagster: a code location with a branch writes its own tables, and reads production's."""

# No `from __future__ import annotations`: annotations are looked at as users' modules have them.

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from dagster_delta.errors import InvalidArgument, TableNotFound
from dagster_delta.orchestration.checks.asset_checks import delta_asset_checks
from dagster_delta.orchestration.incremental.change_feed_assets import delta_change_feed_asset
from dagster_delta.orchestration.incremental.upstream_changes import UpstreamChanges
from dagster_delta.orchestration.maintenance.branch_job import DeltaBranchConfig, delta_branch_job
from dagster_delta.orchestration.maintenance.jobs import delta_maintenance_job
from dagster_delta.orchestration.maintenance.operations import (
    DeltaMaintenanceConfig,
    VacuumConfig,
)
from dagster_delta.orchestration.resources import DeltaTableResource
from dagster_delta.orchestration.schema_changes import delta_schema_change_job
from dagster_delta.table.branches.branch import Branch
from dagster_delta.table.delta_table import DeltaTable
from tests.sample_tables import FEED

rows_of = {"orders": [1, 2, 3]}


@dg.asset(metadata={"table_properties": FEED})
def orders() -> pa.Table:
    return pa.table({"id": rows_of["orders"]})


@dg.asset
def totals(orders: pa.Table) -> pa.Table:
    return pa.table({"total": [sum(orders["id"].to_pylist())]})


@delta_change_feed_asset(upstream=orders, mode="append")
def copied(changes: UpstreamChanges) -> pa.Table:
    return changes.to_arrow().select(["id", "_change_type"])


@pytest.fixture(autouse=True)
def _fresh_rows():
    rows_of["orders"] = [1, 2, 3]


def digest(directory: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file()
    }


def column(table: DeltaTable, name: str) -> list[int]:
    return sorted(table.refresh().scan().to_arrow()[name].to_pylist())


def table(lake, name: str) -> DeltaTable:
    return DeltaTable(str(lake.root / "public" / name))


def branch_of(lake) -> Branch:
    return Branch(str(lake.root), "dev")


def materialization(result: dg.ExecuteInProcessResult, key: str) -> Mapping[str, Any]:
    events = result.get_asset_materialization_events()
    [event] = [event for event in events if event.asset_key == dg.AssetKey(key)]
    return event.materialization.metadata


def run_branch_job(lake, action: Any, *, dry_run: bool = False, **options):
    job = delta_branch_job(assets=[orders, totals, copied])
    config = DeltaBranchConfig(action=action, branch="dev", dry_run=dry_run, **options)
    result = job.execute_in_process(
        instance=lake.instance,
        resources={"io_manager": lake.manager()},
        run_config=config.model_dump(),
    )
    [event] = [e for e in result.all_events if e.event_type_value == "STEP_OUTPUT"]
    return event.step_output_data.metadata["delta/report"].value


def test_assets_of_a_branch_read_production_and_write_their_own_tables(lake) -> None:
    lake.materialize(orders)
    before = digest(lake.root)
    result = lake.materialize(totals, orders.to_source_asset(), branch="dev")
    assert column(DeltaTable(branch_of(lake).uri + "/public/totals"), "total") == [6]
    read = materialization(result, "totals")["delta/input/orders"].value
    assert (read["branch"], read["version"]) == ("production", 0)
    after = digest(lake.root)
    assert {path: after[path] for path in before} == before
    rows_of["orders"] = [1, 2, 3, 4]
    result = lake.materialize(orders, totals, branch="dev")
    read = materialization(result, "totals")["delta/input/orders"].value
    assert (read["branch"], read["branch_base"]) == ("dev", 0)
    written = materialization(result, "orders")
    assert written["delta/branch"].value == "dev"
    assert written["delta/branch_base"].value == 0
    assert "| rows | 3 | 4 | +1 |" in written["delta/branch_difference"].value
    assert column(table(lake, "orders"), "id") == [1, 2, 3]


def test_empty_branch_is_production(lake) -> None:
    lake.materialize(orders, branch="")
    assert column(table(lake, "orders"), "id") == [1, 2, 3]


def test_branch_of_an_environment_variable(lake, monkeypatch) -> None:
    monkeypatch.setenv("DEV_BRANCH", "dev")
    lake.materialize(orders, branch=dg.EnvVar("DEV_BRANCH"))
    assert branch_of(lake).tables() == [str(lake.root / "public" / "orders")]
    with pytest.raises(TableNotFound):
        table(lake, "orders")


def test_published_assets_are_materialized(lake) -> None:
    lake.materialize(orders, totals)
    rows_of["orders"] = [1, 2, 3, 4]
    lake.materialize(orders, totals, branch="dev")
    assert "orders" in run_branch_job(lake, "list")
    difference = run_branch_job(lake, "diff")
    assert "| rows | 3 | 4 | +1 |" in difference
    assert "| id | &#95;change&#95;type | &#95;commit&#95;version |" in difference
    assert "| 4 | insert | 1 |" in difference
    run_branch_job(lake, "publish", dry_run=True)
    assert column(table(lake, "orders"), "id") == [1, 2, 3]
    assert run_branch_job(lake, "publish") == "2 tables published, 0 had nothing to publish"
    assert column(table(lake, "orders"), "id") == [1, 2, 3, 4]
    assert column(table(lake, "totals"), "total") == [10]
    [event] = lake.instance.fetch_materializations(orders.key, limit=1).records
    assert event.asset_materialization.description == "Published as version 1"
    assert event.asset_materialization.metadata["delta/version"].value == 1
    assert run_branch_job(lake, "publish") == "0 tables published, 2 had nothing to publish"
    assert lake.instance.fetch_materializations(orders.key, limit=1).records == [event]
    # An event that a killed run did not report is made up for.
    lake.instance.wipe_assets([orders.key])
    run_branch_job(lake, "publish")
    assert lake.instance.fetch_materializations(orders.key, limit=1).records
    run_branch_job(lake, "drop")
    assert not Path(branch_of(lake).uri).exists()
    assert run_branch_job(lake, "drop").startswith("nothing to drop: there is no branch 'dev'")


def test_masked_values_are_not_in_the_difference(lake) -> None:
    @dg.asset(metadata={"masked_columns": "iban"})
    def accounts() -> pa.Table:
        return pa.table({"iban": ["DE1234"], "n": rows_of["orders"][:1]})

    lake.materialize(accounts, branch="dev")
    job = delta_branch_job(assets=[accounts])
    result = job.execute_in_process(
        instance=lake.instance,
        resources={"io_manager": lake.manager(branch="dev")},
        run_config={"action": "diff"},
    )
    [event] = [e for e in result.all_events if e.event_type_value == "STEP_OUTPUT"]
    report = str(event.step_output_data.metadata["delta/report"].value)
    assert "iban" in report
    assert "DE1234" not in report


def test_one_table_is_published_by_the_key_of_its_asset(lake) -> None:
    lake.materialize(orders, totals)
    rows_of["orders"] = [5]
    lake.materialize(orders, totals, branch="dev")
    run_branch_job(lake, "publish", tables=["orders"])
    assert column(table(lake, "orders"), "id") == [5]
    assert column(table(lake, "totals"), "total") == [6]


def test_incremental_asset_that_was_behind_reads_everything_and_says_why(lake) -> None:
    lake.materialize(orders, copied)
    table(lake, "orders").append(pa.table({"id": [4]}))
    upstream = branch_of(lake).begin(str(lake.root / "public" / "orders"))
    assert upstream is not None
    done = lake.materialize(copied, orders.to_source_asset(), branch="dev")
    (made,) = done.asset_materializations_for_node("copied")
    assert "began with version 1 of production's" in str(made.metadata)
    mine = DeltaTable(branch_of(lake).table_uri(str(lake.root / "public" / "copied")))
    assert column(mine, "id") == [1, 2, 3, 4]


def test_history_by_the_versions_of_a_branch_is_refused(lake) -> None:
    @delta_change_feed_asset(
        upstream=orders,
        keys=["id"],
        mode="auto_cdc",
        metadata={"merge_config": {"stored_as_scd_type": 2}},
    )
    def history(changes: UpstreamChanges) -> pa.Table:
        return changes.to_arrow()

    lake.materialize(orders, history)
    # Where the branch reads production's table, its versions order the changes.
    lake.materialize(history, orders.to_source_asset(), branch="dev")
    upstream = branch_of(lake).begin(str(lake.root / "public" / "orders"))
    assert upstream is not None
    upstream.append(pa.table({"id": [5]}))
    with pytest.raises(InvalidArgument, match="the branch 'dev' counts its own") as caught:
        lake.materialize(history, orders.to_source_asset(), branch="dev")
    assert "sequence_by" in str(caught.value)


def test_incremental_asset_goes_on_where_production_was(lake) -> None:
    lake.materialize(orders, copied)
    table(lake, "orders").append(pa.table({"id": [4]}))
    lake.materialize(copied, orders.to_source_asset())
    branch = branch_of(lake)
    upstream = branch.begin(str(lake.root / "public" / "orders"))
    assert upstream is not None
    upstream.append(pa.table({"id": [5]}))
    lake.materialize(copied, orders.to_source_asset(), branch="dev")
    mine = DeltaTable(branch.table_uri(str(lake.root / "public" / "copied")))
    assert column(mine, "id") == [1, 2, 3, 4, 5]
    lake.materialize(copied, orders.to_source_asset(), branch="dev")
    assert column(mine, "id") == [1, 2, 3, 4, 5]
    run_branch_job(lake, "publish")
    table(lake, "orders").append(pa.table({"id": [6]}))
    lake.materialize(copied, orders.to_source_asset())
    assert column(table(lake, "copied"), "id") == [1, 2, 3, 4, 5, 6]


def test_incremental_asset_that_has_not_read_everything_is_not_published(lake) -> None:
    lake.materialize(orders, copied)
    branch = branch_of(lake)
    upstream = branch.begin(str(lake.root / "public" / "orders"))
    assert upstream is not None
    upstream.append(pa.table({"id": [4]}))
    lake.materialize(copied, orders.to_source_asset(), branch="dev")
    upstream.append(pa.table({"id": [5]}))
    before = digest(lake.root / "public" / "copied")
    with pytest.raises(InvalidArgument, match="publish that table too"):
        branch.publish([str(lake.root / "public" / "copied")])
    with pytest.raises(InvalidArgument, match="materializing this asset in the branch once more"):
        branch.publish()
    assert digest(lake.root / "public" / "copied") == before
    lake.materialize(copied, orders.to_source_asset(), branch="dev")
    branch.publish()
    lake.materialize(copied, orders.to_source_asset())
    assert column(table(lake, "copied"), "id") == [1, 2, 3, 4, 5]


def test_incremental_asset_of_a_branch_goes_on_after_publications(lake) -> None:
    lake.options = {"mode": "append"}

    def run(new: list[int], **options: Any) -> None:
        rows_of["orders"] = new
        lake.materialize(orders, copied, **options)

    run([1])
    run([2], branch="dev")
    branch_of(lake).publish([table(lake, "orders").uri])
    run([3], branch="dev")
    branch_of(lake).publish()
    assert column(table(lake, "copied"), "id") == [1, 2, 3]
    run([4])
    rows_of["orders"] = [5]
    lake.materialize(orders)
    branch_of(lake).begin(table(lake, "orders").uri)
    lake.materialize(copied, orders.to_source_asset(), branch="dev")
    branch_of(lake).publish()
    run([6])
    for name in ("orders", "copied"):
        assert column(table(lake, name), "id") == [1, 2, 3, 4, 5, 6]


def test_jobs_of_a_branch_do_not_write_production(lake) -> None:
    lake.materialize(orders)
    before = digest(lake.root)
    resources = {"io_manager": lake.manager(branch="dev")}
    maintenance = delta_maintenance_job(
        assets=[orders],
        config=DeltaMaintenanceConfig(vacuum=VacuumConfig(dry_run=False)),
    )
    assert maintenance.execute_in_process(instance=lake.instance, resources=resources).success
    change = delta_schema_change_job(assets=[orders])
    run_config = {"statement": "ALTER TABLE orders ADD COLUMNS (n INT)", "dry_run": False}
    with pytest.raises(InvalidArgument, match="branch 'dev' has no table of its own"):
        change.execute_in_process(
            instance=lake.instance, resources=resources, run_config=run_config
        )
    assert digest(lake.root) == before
    branch_of(lake).begin(str(lake.root / "public" / "orders"))
    change.execute_in_process(instance=lake.instance, resources=resources, run_config=run_config)
    assert {path: found for path, found in digest(lake.root).items() if path in before} == before
    assert table(lake, "orders").schema().names == ("id",)
    run_branch_job(lake, "publish")
    assert table(lake, "orders").schema().names == ("id", "n")


def test_checks_see_the_table_of_the_branch(lake) -> None:
    lake.materialize(orders)
    checks = delta_asset_checks(orders, unique=["id"])
    rows_of["orders"] = [1, 1]
    result = lake.materialize(orders, *checks, branch="dev")
    assert not all(found.passed for found in result.get_asset_check_evaluations())
    production = lake.materialize(*checks, raise_on_error=False)
    assert all(found.passed for found in production.get_asset_check_evaluations())


def test_resource_resolves_tables_as_the_io_manager_does(lake) -> None:
    lake.materialize(orders)
    resource = DeltaTableResource(
        root_uri=str(lake.root), schema="public", name="orders", branch="dev"
    )
    assert resource.table().uri == str(lake.root / "public" / "orders")
    with pytest.raises(InvalidArgument, match="branch 'dev'"):
        resource.table().append(pa.table({"id": [9]}))
    resource.writable_table().append(pa.table({"id": [9]}))
    assert column(resource.table(), "id") == [1, 2, 3, 9]
    assert column(table(lake, "orders"), "id") == [1, 2, 3]
    with pytest.raises(InvalidArgument, match="root_uri and name"):
        DeltaTableResource(uri=str(lake.root / "public" / "orders"), branch="dev").table()


def test_writable_table_is_the_newest_version_of_the_branch(lake) -> None:
    lake.materialize(orders)
    lake.materialize(orders)
    resource = DeltaTableResource(
        root_uri=str(lake.root), schema="public", name="orders", branch="dev", version=1
    )
    resource.writable_table().append(pa.table({"id": [9]}))
    assert column(resource.writable_table(), "id") == [1, 2, 3, 9]
    assert column(table(lake, "orders"), "id") == [1, 2, 3]


def test_version_of_an_input_is_one_of_production(lake) -> None:
    @dg.asset(ins={"orders": dg.AssetIn(metadata={"version": 1})})
    def earlier(orders: pa.Table) -> pa.Table:
        return orders

    for rows_of["orders"] in ([1], [2], [3]):
        lake.materialize(orders)
    rows_of["orders"] = [9]
    lake.materialize(orders, branch="dev")
    lake.materialize(earlier, orders.to_source_asset(), branch="dev")
    location = {"root_uri": str(lake.root), "schema": "public", "branch": "dev"}
    assert column(DeltaTableResource(**location, name="earlier").table(), "id") == [2]
    chosen = DeltaTableResource(**location, name="orders", version=1).table()
    assert chosen.snapshot().scan().to_arrow()["id"].to_pylist() == [2]
    # Only the branch has this one.
    own = DeltaTableResource(**location, name="earlier", version=0).table()
    assert own.snapshot().scan().to_arrow()["id"].to_pylist() == [2]


def test_partitions_of_a_branch_are_written_as_in_production(lake) -> None:
    @dg.asset(
        partitions_def=dg.StaticPartitionsDefinition(["a", "b"]),
        metadata={"partition_expr": "p"},
    )
    def parts(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"p": [context.partition_key], "n": [len(rows_of["orders"])]})

    for key in ("a", "b"):
        lake.materialize(parts, partition=key)
    rows_of["orders"] = [1]
    lake.materialize(parts, partition="a", branch="dev")
    found = DeltaTable(branch_of(lake).uri + "/public/parts").snapshot().scan().to_arrow()
    assert sorted(zip(*found.to_pydict().values(), strict=True)) == [("a", 1), ("b", 3)]
    branch_of(lake).publish()
    assert column(table(lake, "parts"), "n") == [1, 3]


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_published_partitions_are_materialized(lake, kind: str) -> None:
    dynamic = dg.DynamicPartitionsDefinition(name="parts")
    known = dg.StaticPartitionsDefinition(["a", "b", "c"])

    @dg.asset(
        partitions_def=known if kind == "static" else dynamic, metadata={"partition_expr": "p"}
    )
    def parts(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"p": [context.partition_key], "n": [len(rows_of["orders"])]})

    def publish() -> None:
        delta_branch_job(assets=[parts]).execute_in_process(
            instance=lake.instance,
            resources={"io_manager": lake.manager()},
            run_config={"action": "publish", "branch": "dev", "dry_run": False},
        )

    lake.instance.add_dynamic_partitions("parts", ["a", "b", "c"])
    lake.materialize(parts, partition="a")
    rows_of["orders"] = [1]
    for key in ("b", "c"):
        lake.materialize(parts, partition=key, branch="dev")
    # Production's instance is another one than that of a branch on a laptop.
    lake.instance.wipe_assets([parts.key])
    lake.instance.delete_dynamic_partition("parts", "c")
    publish()
    assert lake.instance.get_materialized_partitions(parts.key) == {"b", "c"}
    assert lake.instance.has_dynamic_partition("parts", "c") == (kind == "dynamic")
    records = lake.instance.fetch_materializations(parts.key, limit=9).records
    events = [record.asset_materialization for record in records]
    assert {event.description for event in events} == {"Published as version 1"}
    figures = ("dagster/partition_row_count", "delta/partition_files", "dagster/row_count")
    for event in events:
        assert [event.metadata[name].value for name in figures] == [1, 1, 3]
    publish()
    assert lake.instance.fetch_materializations(parts.key, limit=9).records == records


def test_rebase_leaves_tables_of_the_branch_alone(lake) -> None:
    lake.materialize(orders)
    rows_of["orders"] = [9]
    lake.materialize(orders, totals, branch="dev")
    assert run_branch_job(lake, "rebase", dry_run=True).startswith("1 table would begin again")
    assert column(DeltaTable(branch_of(lake).uri + "/public/orders"), "id") == [9]
    assert run_branch_job(lake, "rebase") == (
        "1 table began again from production; 1 in the branch alone stay as they are"
    )
    assert column(DeltaTable(branch_of(lake).uri + "/public/orders"), "id") == [1, 2, 3]
    assert column(DeltaTable(branch_of(lake).uri + "/public/totals"), "total") == [9]


@pytest.mark.parametrize("action", ["list", "drop"])
def test_action_on_the_whole_branch_refuses_tables(lake, action: str) -> None:
    lake.materialize(orders, branch="dev")
    with pytest.raises(InvalidArgument, match=f"{action} takes no tables"):
        run_branch_job(lake, action, tables=["orders"])
    assert branch_of(lake).tables()


def test_unknown_table_of_a_branch_is_named(lake) -> None:
    lake.materialize(orders, branch="dev")
    with pytest.raises(InvalidArgument, match="did you mean orders"):
        run_branch_job(lake, "publish", tables=["ordrs"])


def test_list_of_branches_is_a_table_with_any_name(lake) -> None:
    lake.materialize(orders, branch="a|b\nc")
    lines = run_branch_job(lake, "list").splitlines()
    assert [line.count("|") for line in lines] == [4, 4, 4]


def test_unknown_branch_is_named(lake) -> None:
    with pytest.raises(InvalidArgument, match="there is no branch 'dev'"):
        run_branch_job(lake, "diff")


def test_outputs_of_ops_are_not_published(lake) -> None:
    @dg.op
    def made() -> pa.Table:
        return pa.table({"n": [1]})

    @dg.op
    def read(made: pa.Table) -> None:
        rows_of["read"] = made["n"].to_pylist()

    @dg.job
    def job() -> None:
        read(made())

    before = digest(lake.root)
    job.execute_in_process(
        instance=lake.instance, resources={"io_manager": lake.manager(branch="dev")}
    )
    assert rows_of.pop("read") == [1]
    assert branch_of(lake).tables() == []
    assert not list(lake.root.glob("public/*"))
    assert before == {}


def test_spark_writes_and_reads_tables_of_a_branch(lake, spark: SparkSession) -> None:
    @dg.asset
    def numbers() -> DataFrame:
        return spark.createDataFrame([(n, n % 2) for n in rows_of["orders"]], "id long, odd long")

    @dg.asset
    def odd(numbers: DataFrame) -> DataFrame:
        return numbers.where("odd = 1")

    lake.materialize(numbers, odd)
    before = digest(lake.root)
    rows_of["orders"] = [1, 2, 3, 4, 5]
    lake.materialize(numbers, odd, branch="dev")
    own = branch_of(lake).begin(str(lake.root / "public" / "numbers"))
    assert own is not None
    merge = own.merge(spark.createDataFrame([(5, 9), (6, 0)], "id long, odd long"), "t.id = s.id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    after = digest(lake.root)
    assert {path: after[path] for path in before} == before
    branch_of(lake).publish()
    assert column(table(lake, "odd"), "id") == [1, 3, 5]
    numbers_now = table(lake, "numbers").snapshot().scan().to_spark(spark)
    assert sorted(map(tuple, numbers_now.collect())) == [
        (1, 1),
        (2, 0),
        (3, 1),
        (4, 0),
        (5, 9),
        (6, 0),
    ]
