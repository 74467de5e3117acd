"""What is wrong with assets is an error when definitions are loaded, before anything was computed."""

# No `from __future__ import annotations`: annotations are looked at as users' modules have them.

from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import (
    SparkSessionResource,
    check_definitions,
    delta_asset_checks,
    delta_table_sensor,
)
from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.incremental.change_feed_assets import delta_change_feed_asset
from dagster_delta.orchestration.incremental.file_assets import delta_files_asset
from dagster_delta.orchestration.io.io_manager import DeltaIOManager
from dagster_delta.orchestration.io.sql_assets import delta_sql_asset
from dagster_delta.orchestration.maintenance.maintained_tables import maintained_tables
from dagster_delta.table.delta_table import DeltaTable
from tests.orchestration.conftest import QUIET

MANAGER = DeltaIOManager(root_uri=dg.EnvVar("LAKE_THAT_IS_NOT_SET"))


def asset(*path: str, **options: Any) -> dg.AssetsDefinition:
    @dg.asset(key=list(path), **options)
    def made() -> pa.Table:
        raise AssertionError("nothing is computed")

    return made


def check(*assets: Any, **resources: Any) -> dg.Definitions:
    resources = {"io_manager": MANAGER, **resources}
    return check_definitions(dg.Definitions(assets=list(assets), resources=resources))


def refused(*assets: Any, **resources: Any) -> str:
    with pytest.raises(InvalidArgument) as caught:
        check(*assets, **resources)
    return str(caught.value)


def test_definitions_that_make_sense_come_back():
    @dg.multi_asset(outs={"one": dg.AssetOut(metadata={"mode": "append"}), "two": dg.AssetOut()})
    def several():
        raise AssertionError

    @dg.op
    def produce():
        raise AssertionError

    @dg.graph_asset
    def graph():
        return produce()

    @dg.observable_source_asset
    def observed():
        raise AssertionError

    @delta_change_feed_asset("orders", keys="id", metadata={"schema_mode": "overwrite"})
    def late(changes: pa.Table) -> pa.Table:
        raise AssertionError

    definitions = check(asset("orders"), several, graph, observed, late, dg.AssetSpec("outside"))
    assert isinstance(definitions, dg.Definitions)
    assert definitions.resolve_assets_def("late") is not None


def spec_of(definitions: dg.Definitions, key: str) -> dg.AssetSpec:
    asset_key = dg.AssetKey.from_user_string(key)
    return definitions.resolve_assets_def(asset_key).get_asset_spec(asset_key)


def test_assets_show_where_their_tables_are_before_the_first_run(monkeypatch):
    monkeypatch.setenv("LAKE_OF_TODAY", "s3://lake")
    manager = DeltaIOManager(root_uri=dg.EnvVar("LAKE_OF_TODAY"), spark=SparkSessionResource())

    @delta_change_feed_asset(dg.AssetKey(["raw", "orders"]), keys="id")
    def late(changes: pa.Table) -> pa.Table:
        raise AssertionError

    named = asset("named", kinds={"pandas"}, metadata={"dagster/table_name": "mine", "schema": "s"})
    sql = delta_sql_asset("sql", "SELECT 1 FROM {orders}", {"orders": dg.AssetKey("orders")})
    elsewhere = asset("elsewhere", io_manager_key="files")
    definitions = check(
        asset("raw", "orders"),
        late,
        named,
        sql,
        elsewhere,
        io_manager=manager,
        files=dg.FilesystemIOManager(),
    )
    found = {
        key: (spec.metadata.get("dagster/uri"), spec.metadata.get("dagster/table_name"))
        for key in ("raw/orders", "late", "named", "sql", "elsewhere")
        for spec in [spec_of(definitions, key)]
    }
    assert found == {
        "raw/orders": ("s3://lake/raw/orders", "raw.orders"),
        "late": ("s3://lake/public/late", "public.late"),
        "named": ("s3://lake/s/named", "mine"),
        "sql": ("s3://lake/public/sql", "public.sql"),
        "elsewhere": (None, None),
    }
    assert spec_of(definitions, "named").kinds == {"pandas", "deltalake"}
    assert "deltalake" not in spec_of(definitions, "elsewhere").kinds


def test_maintenance_of_described_assets_uses_their_io_manager():
    definitions = check(asset("orders"), lake=MANAGER)
    spec = spec_of(definitions, "orders").merge_attributes(metadata={"dagster/uri": "s3://lake/o"})
    (table,) = maintained_tables([spec], None, {}, None)
    assert (table.io_manager_key, table.uri) == ("io_manager", None)


def test_without_its_environment_variable_only_the_kind_is_known():
    spec = spec_of(check(asset("orders")), "orders")
    assert spec.kinds == {"deltalake"}
    assert dict(spec.metadata) == dict.fromkeys(
        ("dagster/io_manager_key", "dagster_delta/placed_by"), "io_manager"
    )


def test_the_columns_of_existing_tables_are_shown_if_wanted(tmp_path, caplog):
    def check_columns() -> dict[str, object]:
        definitions = check_definitions(
            dg.Definitions(
                assets=[asset(name) for name in ("orders", "broken", "later")],
                resources={"io_manager": DeltaIOManager(root_uri=str(tmp_path))},
            ),
            columns=True,
        )
        return {
            key: spec_of(definitions, key).metadata.get("dagster/column_schema")
            for key in ("orders", "broken", "later")
        }

    assert set(check_columns().values()) == {None}
    DeltaTable.create(str(tmp_path / "public/orders"), pa.schema({"id": pa.int64()}))
    log = tmp_path / "public/broken/_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("{")
    found = check_columns()
    assert [(each.name, each.type) for each in found["orders"].schema.columns] == [("id", "bigint")]
    assert found["broken"] is found["later"] is None
    assert "the columns of broken are not shown" in caplog.text


def test_described_assets_run_and_are_found_by_jobs_sensors_and_checks(tmp_path):
    @dg.asset
    def orders() -> pa.Table:
        return pa.table({"id": [1]})

    definitions = check_definitions(
        dg.Definitions(
            assets=[orders],
            asset_checks=delta_asset_checks(orders, unique="id"),
            jobs=[dg.define_asset_job("daily", selection=[orders])],
            schedules=[dg.ScheduleDefinition(name="s", target=[orders], cron_schedule="@daily")],
            sensors=[delta_table_sensor("watch", str(tmp_path / "t"), target=[orders])],
            resources={"io_manager": DeltaIOManager(root_uri=str(tmp_path))},
        )
    )
    dg.Definitions.validate_loadable(definitions)
    result = definitions.resolve_job_def("daily").execute_in_process(run_config=QUIET)
    assert result.success
    passed = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert passed["delta_unique"]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"partition_exprs": "day"}, "did you mean 'partition_expr'?"),
        ({"partition_expression": "day"}, "docs/migration.md"),
        ({"delta/mod": "append"}, "did you mean 'mode'?"),
        ({"mode": "upsert"}, "should be 'append', 'overwrite'"),
        ({"mode": "merge", "merge_predicate": "t.id = s.id", "sort_by": "id"}, "support sort_by"),
        ({"mode": "merge"}, "predicate"),
        ({"merge_predicate": "t.id = s.id"}, "which does not merge"),
        ({"mode": "merge", "merge_predicate": "t.id = = s.id"}, "merge of asset orders: this is"),
        ({"partition_by": ["day", "Day"]}, "partition_by of asset orders names 'day' twice"),
        ({"partition_by": ["day"], "cluster_by": ["id"]}, "either partitioned or clustered"),
    ],
)
def test_metadata_that_make_no_sense_are_refused(metadata, message):
    assert message in refused(asset("orders", metadata=metadata))


def test_the_mode_of_the_io_manager_counts():
    merging = DeltaIOManager(root_uri="lake", mode="merge")
    assert "there is no predicate" in refused(asset("orders"), io_manager=merging)
    check(asset("orders", metadata={"merge_predicate": "t.id = s.id"}), io_manager=merging)
    check(asset("orders", metadata={"mode": "append"}), io_manager=merging)

    @delta_change_feed_asset("orders", keys="id")
    def late(changes: pa.Table) -> pa.Table:
        raise AssertionError

    check(late, dg.AssetSpec("orders"), io_manager=merging)


def test_a_partitioned_asset_names_its_column():
    colors = dg.StaticPartitionsDefinition(["red"])
    assert "has no 'partition_expr'" in refused(asset("orders", partitions_def=colors))
    two = dg.MultiPartitionsDefinition({"a": colors, "b": colors})
    metadata = {"partition_expr": {"a": "x"}}
    assert "map each of the dimensions a, b" in refused(
        asset("o", partitions_def=two, metadata=metadata)
    )
    check(asset("orders", partitions_def=colors, metadata={"partition_expr": "color"}))


def test_options_that_no_io_manager_reads_are_refused():
    by_day = asset("orders", metadata={"partition_by": ["day"]})
    resources = {"delta": MANAGER}
    with pytest.raises(InvalidArgument, match=r"orders has the option partition_by.*'io_manager'"):
        check_definitions(dg.Definitions([by_day], resources=resources))
    named = asset("orders", metadata={"partition_by": ["day"]}, io_manager_key="delta")
    check_definitions(dg.Definitions([named, asset("notes")], resources=resources))
    check_definitions(dg.Definitions([by_day], resources={"other": 1}))


def test_a_misspelled_name_of_an_io_manager_is_refused():
    lake = {"io_manger": DeltaIOManager(root_uri="lake")}
    with pytest.raises(InvalidArgument, match="that name instead of 'io_manger'"):
        check_definitions(dg.Definitions([asset("orders")], resources=lake))
    files = {**lake, "io_manager": dg.FilesystemIOManager()}
    check_definitions(dg.Definitions([asset("orders")], resources=files))


def test_metadata_of_inputs_are_checked():
    @dg.asset(ins={"orders": dg.AssetIn("orders", metadata={"column": ["id"]})})
    def report(orders: pa.Table) -> pa.Table:
        raise AssertionError

    assert "did you mean 'columns'?" in refused(asset("orders"), report)

    @dg.asset(ins={"orders": dg.AssetIn("orders", metadata={"where": "day > '2026-01-01"})})
    def late(orders: pa.Table) -> pa.Table:
        raise AssertionError

    assert "where of the input 'orders' of late: this is not" in refused(asset("orders"), late)


def test_sql_that_only_spark_knows_is_accepted():
    clause = {"predicate": "regexp_count(s.v, 'a') > 1 AND s.a & 1 = 1"}
    operations = {"when_matched_update": [{**clause, "updates": {"v": "try_add(t.v, s.v)"}}]}
    merge = {"merge_type": "custom", "merge_operations_config": operations}
    merge["predicate"] = "t.id = s.id"
    check(asset("orders", metadata={"mode": "merge", "merge_config": merge}))
    merge["merge_operations_config"]["when_matched_update"][0]["updates"]["v"] = "t.v +"
    assert "merge of asset orders" in refused(
        asset("orders", metadata={"mode": "merge", "merge_config": merge})
    )


MISSPELLED: Any = {"metadata": {"colums": ["x"]}}


def test_inputs_of_assets_that_store_nothing_and_of_checks_are_checked():
    orders = asset("orders")

    @dg.asset(ins={"orders": dg.AssetIn(**MISSPELLED)})
    def mail(orders: pa.Table) -> None: ...

    @dg.asset_check(asset="reports", additional_ins={"orders": dg.AssetIn(**MISSPELLED)})
    def sums(reports: pa.Table, orders: pa.Table) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    @dg.asset(ins={"elsewhere": dg.AssetIn(**MISSPELLED)})
    def load(elsewhere: pa.Table) -> None: ...

    external = dg.AssetSpec("elsewhere")
    assert "of the input 'orders' of mail has the key 'colums'" in refused(orders, mail)
    assert "of the input 'elsewhere' of load has the key 'colums'" in refused(external, load)
    with pytest.raises(
        InvalidArgument, match="input 'orders' of reports_sums has the key 'colums'"
    ):
        check_definitions(
            dg.Definitions(
                [orders, asset("reports")], asset_checks=[sums], resources={"io_manager": MANAGER}
            )
        )
    # Nothing of another IO manager is looked at.
    other = {"io_manager": dg.FilesystemIOManager(), "lake": MANAGER}
    assert check(orders, mail, **other)


def test_an_asset_that_returns_a_result_with_a_typed_value_is_checked():
    @dg.asset(metadata={"mod": "append"})
    def typed() -> dg.MaterializeResult[pa.Table]:
        raise AssertionError

    @dg.asset(metadata={"mod": "append"})
    def untyped() -> dg.MaterializeResult:
        raise AssertionError

    @dg.asset(metadata={"mod": "append"})
    def nothing() -> dg.MaterializeResult[None]:
        raise AssertionError

    assert "the metadata of asset typed has the key 'mod'" in refused(typed)
    assert check(untyped, nothing)


@pytest.mark.parametrize("key", ["timestamp", "timestampAsOf", "versionAsOf"])
def test_an_input_of_another_time_names_the_page(key):
    @dg.asset(ins={"orders": dg.AssetIn("orders", metadata={key: "2024-01-01"})})
    def report(orders: pa.Table) -> pa.Table:
        raise AssertionError

    assert "docs/migration.md" in refused(asset("orders"), report)


def test_two_assets_with_one_table_are_refused():
    message = refused(asset("a", "raw", "orders"), asset("b", "raw", "orders"))
    assert "the assets a/raw/orders and b/raw/orders have one table, raw/orders" in message
    same = {"schema": "lake", "table_name": "t"}
    assert "have one table" in refused(asset("x", metadata=same), asset("y", metadata=same))
    shared = {**same, "shared_table": True, "owned_rows": {}}
    assert "have one table" in refused(asset("x", metadata=shared), asset("y", metadata=same))
    check(asset("x", metadata=shared), asset("y", metadata=shared))


def test_other_roots_and_other_io_managers_are_other_places():
    other = DeltaIOManager(root_uri="s3://other")
    there = asset("b", "raw", "orders", io_manager_key="other")
    check(asset("a", "raw", "orders"), there, other=other)
    check(asset("a", "raw", "orders"), there, other=dg.mem_io_manager)
    same = DeltaIOManager(root_uri=dg.EnvVar("LAKE_THAT_IS_NOT_SET"))
    assert "have one table" in refused(asset("a", "raw", "orders"), there, other=same)


@pytest.mark.parametrize(
    "root",
    [
        "./lake",
        "lake/",
        "{here}/lake",
        "{here}//x/../lake/",
        "file:{here}/lake",
        "file://{here}/la%6be",
    ],
)
def test_other_spellings_of_a_local_root_are_the_same_place(tmp_path, monkeypatch, root):
    monkeypatch.chdir(tmp_path)
    manager = DeltaIOManager(root_uri="lake")
    other = DeltaIOManager(root_uri=root.format(here=tmp_path))
    there = asset("b", "raw", "orders", io_manager_key="other")
    message = refused(asset("a", "raw", "orders"), there, io_manager=manager, other=other)
    assert "the assets a/raw/orders and b/raw/orders have one table, raw/orders" in message
    inside = asset("items", metadata={"schema": "raw/orders"}, io_manager_key="other")
    message = refused(asset("a", "raw", "orders"), inside, io_manager=manager, other=other)
    assert "the table of items lies inside" in message
    elsewhere = DeltaIOManager(root_uri=f"{tmp_path}/lake2")
    check(asset("a", "raw", "orders"), there, io_manager=manager, other=elsewhere)


def test_other_schemes_of_a_bucket_are_the_same_place():
    manager, other = DeltaIOManager(root_uri="s3://lake"), DeltaIOManager(root_uri="s3a://lake/")
    there = asset("b", "raw", "orders", io_manager_key="other")
    assert "have one table" in refused(
        asset("raw", "orders"), there, io_manager=manager, other=other
    )
    shouted = DeltaIOManager(root_uri="S3A://lake")
    assert "have one table" in refused(
        asset("raw", "orders"), there, io_manager=manager, other=shouted
    )
    check(
        asset("raw", "orders"),
        there,
        io_manager=manager,
        other=DeltaIOManager(root_uri="gs://lake"),
    )


@pytest.mark.parametrize("metadata", [{"table_name": "../x"}, {"schema": ".."}, {"schema": "a/.."}])
def test_a_table_outside_of_the_root_is_refused(tmp_path, metadata):
    outside = asset("orders", metadata=metadata)
    assert "is not below root_uri" in refused(outside)
    manager = DeltaIOManager(root_uri=str(tmp_path / "lake"))
    with pytest.raises(InvalidArgument, match="is not below root_uri"):
        manager.asset_table_uri(dg.AssetKey("orders"), metadata)
    check(asset("a..b", metadata={"schema": "a/..b"}))


def test_a_table_inside_another_is_refused():
    inner = asset("items", metadata={"schema": "raw/orders"})
    message = refused(asset("raw", "orders"), inner)
    assert "the table of items lies inside the table of raw/orders" in message
    assert "VACUUM" in message


def test_assets_that_write_by_themselves_have_no_table_here():
    @dg.asset(key=["a", "raw", "orders"])
    def one() -> None:
        raise AssertionError

    @dg.asset(key=["b", "raw", "orders"])
    def two() -> dg.MaterializeResult:
        raise AssertionError

    check(one, two, asset("c", "raw", "orders"))


def test_incremental_sql_and_files_assets_are_refused_as_all_others(tmp_path):
    @delta_change_feed_asset("orders", keys="id", metadata={"schema_modes": "merge"})
    def late(changes: pa.Table) -> pa.Table:
        raise AssertionError

    orders = asset("orders")
    assert "did you mean 'schema_mode'" in refused(orders, late)
    misspelled = {"mod": "append"}
    query = delta_sql_asset("late", "SELECT 1 FROM {o}", {"o": "orders"}, metadata=misspelled)
    assert "did you mean 'mode'" in refused(orders, query)
    files = delta_files_asset("late", str(tmp_path), metadata={"partition_byy": "a"})
    assert "did you mean 'partition_by'" in refused(files)
