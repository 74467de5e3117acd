"""Assets, sensors and jobs name their tables as a catalog does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import msgspec
import pyarrow as pa
import pytest

from dagster_delta.errors import (
    DeltaError,
    InvalidArgument,
    TableAlreadyExists,
    TableNotFound,
)
from dagster_delta.orchestration.catalogs import CatalogResource
from dagster_delta.orchestration.checks.asset_checks import delta_asset_checks
from dagster_delta.orchestration.checks.health_asset import delta_health_asset
from dagster_delta.orchestration.definition_checks import check_definitions
from dagster_delta.orchestration.incremental.change_feed_assets import delta_change_feed_asset
from dagster_delta.orchestration.io.io_manager import DeltaIOManager
from dagster_delta.orchestration.maintenance.jobs import delta_maintenance_job
from dagster_delta.orchestration.resources import DeltaTableResource
from dagster_delta.orchestration.schema_changes import delta_schema_change_job
from dagster_delta.orchestration.sensors.maintenance_sensor import delta_maintenance_sensor
from dagster_delta.orchestration.sensors.observations import observable_delta_asset
from dagster_delta.orchestration.sensors.sensors import delta_table_sensor
from dagster_delta.storage import StoreLocation
from dagster_delta.table.delta_table import DeltaTable
from tests.orchestration.conftest import library_error

ROWS = pa.table({"id": [1, 2], "amount": [10, 20]})
KEY = dg.AssetKey(["main", "shop", "orders"])


class RegisteredTables(CatalogResource):
    """A catalog that is a JSON file of locations; it manages tables in a folder of its own."""

    folder: str

    def resolve(self, name: str) -> StoreLocation:
        found = self.tables().get(name)
        if found is None or not DeltaTable.is_delta_table(found):
            raise TableNotFound("the catalog has no table of this name", table=name)
        return StoreLocation(found, {})

    def new_table(self, name: str, location: str | None = None) -> StoreLocation:
        if name in self.tables():
            raise TableAlreadyExists("the catalog has a table of this name", table=name)
        uri = location or f"{self.folder}/managed/{len(self.tables())}"
        self._file.write_bytes(msgspec.json.encode({**self.tables(), name: uri}))
        return StoreLocation(uri, {})

    @property
    def _file(self) -> Path:
        return Path(self.folder) / "catalog.json"

    def tables(self) -> dict[str, str]:
        found = self._file.read_bytes() if self._file.exists() else b"{}"
        return msgspec.json.decode(found, type=dict[str, str])


class FolderTables(CatalogResource):
    """A catalog of ten lines."""

    name_parts = 2
    root: str

    def resolve(self, name: str) -> StoreLocation:
        return StoreLocation(f"{self.root}/{name.replace('.', '/')}", {})


@pytest.fixture
def catalog(tmp_path: Path) -> RegisteredTables:
    return RegisteredTables(folder=str(tmp_path))


@dg.asset(key=KEY, description="Orders of the shop.")
def orders() -> pa.Table:
    return ROWS


@dg.asset
def total(orders: pa.Table) -> pa.Table:
    return pa.table({"total": [sum(orders["amount"].to_pylist())]})


def materialize(manager: Any, *assets: Any, **options: Any) -> dg.ExecuteInProcessResult:
    return dg.materialize([*assets], resources={"io_manager": manager}, **options)


def shown(result: dg.ExecuteInProcessResult, key: dg.AssetKey = KEY) -> Mapping[str, Any]:
    for event in result.get_asset_materialization_events():
        if event.asset_key == key:
            return {name: value.value for name, value in event.materialization.metadata.items()}
    raise AssertionError


def test_asset_key_names_table_of_catalog_that_manages_it(catalog):
    result = materialize(DeltaIOManager(catalog=catalog), orders)

    assert catalog.tables() == {"main.shop.orders": f"{catalog.folder}/managed/0"}
    assert catalog.table("main.shop.orders").snapshot().scan().to_arrow().equals(ROWS)
    assert shown(result)["dagster/table_name"] == "main.shop.orders"
    assert shown(result)["dagster/uri"].endswith("/managed/0")


def test_second_run_replaces_rows_of_the_same_table(catalog):
    manager = DeltaIOManager(catalog=catalog)
    materialize(manager, orders)
    materialize(manager, orders)

    table = catalog.table("main.shop.orders")
    assert (table.version(), table.snapshot().num_records) == (1, 2)


def test_schema_of_io_manager_completes_the_name(catalog):
    manager = DeltaIOManager(catalog=catalog, schema="main.mart")

    @dg.asset
    def orders() -> pa.Table:
        return ROWS

    @dg.asset
    def total(orders: pa.Table) -> pa.Table:
        return pa.table({"total": [sum(orders["amount"].to_pylist())]})

    materialize(manager, orders, total)
    assert set(catalog.tables()) == {"main.mart.orders", "main.mart.total"}
    assert catalog.table("main.mart.total").snapshot().scan().to_arrow()["total"].to_pylist() == [
        30
    ]


def test_metadata_names_table_and_its_location(catalog, tmp_path):
    place = str(tmp_path / "lake" / "x")

    @dg.asset(metadata={"table": "main.raw.clicks", "location": place})
    def clicks() -> pa.Table:
        return ROWS

    materialize(DeltaIOManager(catalog=catalog), clicks)
    assert catalog.tables() == {"main.raw.clicks": place}


def test_root_uri_is_where_external_tables_are_created(catalog, tmp_path):
    root = str(tmp_path / "lake")
    materialize(DeltaIOManager(catalog=catalog, root_uri=root), orders)
    assert catalog.tables() == {"main.shop.orders": f"{root}/shop/orders"}


def test_other_location_than_that_of_the_catalog_is_refused(catalog, tmp_path):
    materialize(DeltaIOManager(catalog=catalog), orders)

    @dg.asset(metadata={"table": "main.shop.orders", "location": str(tmp_path / "elsewhere")})
    def moved() -> pa.Table:
        return ROWS

    with pytest.raises(InvalidArgument, match="omit location"):
        materialize(DeltaIOManager(catalog=catalog), moved)


@pytest.mark.parametrize(
    ("key", "metadata", "schema", "says"),
    [
        (["orders"], {}, None, "'orders', and a name in the catalog has 3 parts"),
        (["shop", "orders"], {}, None, "give the asset a key of 3 parts"),
        (["orders"], {}, "shop", "'shop.orders'"),
        (["orders"], {"table": "shop.orders"}, None, "write it in the metadata table"),
        (["a", "b", "c.d"], {}, None, "'a.b.c.d'"),
    ],
)
def test_incomplete_name_is_refused_before_a_run(catalog, key, metadata, schema, says):
    @dg.asset(key=key, metadata=metadata)
    def asset() -> pa.Table:
        return ROWS

    manager = DeltaIOManager(catalog=catalog, schema=schema)
    with pytest.raises(InvalidArgument, match=says):
        check_definitions(dg.Definitions(assets=[asset], resources={"io_manager": manager}))
    with pytest.raises(InvalidArgument, match=says):
        materialize(manager, asset)


def test_two_assets_of_one_name_are_refused_before_a_run(catalog):
    @dg.asset(metadata={"table": "main.shop.orders"})
    def other() -> pa.Table:
        return ROWS

    resources = {"io_manager": DeltaIOManager(catalog=catalog)}
    with pytest.raises(InvalidArgument, match="have one table"):
        check_definitions(dg.Definitions(assets=[orders, other], resources=resources))


def test_names_are_shown_before_the_first_run(catalog):
    resources = {"io_manager": DeltaIOManager(catalog=catalog)}
    defs = check_definitions(dg.Definitions(assets=[orders], resources=resources), columns=True)
    (spec,) = defs.resolve_all_asset_specs()
    assert spec.metadata["dagster/table_name"] == "main.shop.orders"
    assert spec.metadata["dagster/uri"] == "catalog://main.shop.orders"


def test_options_of_a_catalog_need_one(tmp_path):
    @dg.asset(metadata={"table": "main.shop.orders"})
    def asset() -> pa.Table:
        return ROWS

    with pytest.raises(InvalidArgument, match="has no catalog: give it one"):
        materialize(DeltaIOManager(root_uri=str(tmp_path)), asset)


def test_io_manager_has_a_root_or_a_catalog():
    with pytest.raises(InvalidArgument, match="root_uri under which"):
        DeltaIOManager()


def test_branch_is_refused(catalog, monkeypatch):
    with pytest.raises(InvalidArgument, match="a catalog and a branch"):
        DeltaIOManager(catalog=catalog, branch="pr_1")
    monkeypatch.setenv("BRANCH", "pr_1")
    with pytest.raises(dg.DagsterResourceFunctionError) as raised:
        materialize(DeltaIOManager(catalog=catalog, branch=dg.EnvVar("BRANCH")), orders)
    assert "a catalog and a branch" in str(library_error(raised.value))


def test_value_of_an_op_names_its_table(catalog):
    @dg.op(out=dg.Out(metadata={"table": "main.shop.orders"}))
    def named() -> pa.Table:
        return ROWS

    @dg.op
    def unnamed() -> pa.Table:
        return ROWS

    @dg.job(resource_defs={"io_manager": DeltaIOManager(catalog=catalog)})
    def good() -> None:
        named()

    @dg.job(resource_defs={"io_manager": DeltaIOManager(catalog=catalog)})
    def bad() -> None:
        unnamed()

    assert good.execute_in_process().success
    with pytest.raises(InvalidArgument, match="value of an op"):
        bad.execute_in_process()


def test_rows_left_out_are_beside_the_table_in_the_catalog(catalog):
    rule = {"name": "small", "condition": "amount < 15", "on_violation": "quarantine"}

    @dg.asset(key=KEY, metadata={"expectations": [rule]})
    def orders() -> pa.Table:
        return ROWS

    materialize(DeltaIOManager(catalog=catalog), orders)
    assert set(catalog.tables()) == {"main.shop.orders", "main.shop.orders_quarantine"}
    assert catalog.table("main.shop.orders_quarantine").snapshot().num_records == 1


def test_partitioned_asset_of_a_catalog(catalog):
    days = dg.StaticPartitionsDefinition(["a", "b"])

    @dg.asset(key=KEY, partitions_def=days, metadata={"partition_expr": "day"})
    def orders(context) -> pa.Table:
        return pa.table({"day": [context.partition_key]})

    manager = DeltaIOManager(catalog=catalog)
    for key in "ab":
        materialize(manager, orders, partition_key=key)
    assert catalog.table("main.shop.orders").snapshot().num_records == 2


def test_maintenance_health_and_checks_open_the_table_of_the_asset(catalog):
    manager = DeltaIOManager(catalog=catalog)
    checks = delta_asset_checks(orders, row_count=(1, 2))
    defs = dg.Definitions(
        assets=[orders, delta_health_asset(assets=[orders])],
        asset_checks=checks,
        jobs=[
            delta_maintenance_job("upkeep", assets=[orders]),
            delta_schema_change_job("change", assets=[orders]),
        ],
        resources={"io_manager": manager},
    )
    job = defs.resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance)
        assert all(found.passed for found in result.get_asset_check_evaluations())
        assert defs.resolve_job_def("upkeep").execute_in_process(instance=instance).success


def test_table_resource_of_a_catalog(catalog, tmp_path):
    named = DeltaTableResource(catalog=catalog, name="main.shop.orders")
    assert not named.exists()
    named.create(ROWS.schema, description="Orders")
    assert named.exists()
    named.writable_table().append(ROWS)
    assert named.table().snapshot().num_records == 2
    assert named.table(version=0).version() == 0

    below = DeltaTableResource(
        catalog=catalog, schema="main.shop", name="more", root_uri=str(tmp_path / "lake")
    )
    below.create(ROWS.schema)
    assert catalog.tables()["main.shop.more"] == str(tmp_path / "lake" / "shop" / "more")
    with pytest.raises(InvalidArgument, match="neither uri nor branch"):
        DeltaTableResource(catalog=catalog, uri=str(tmp_path)).table()


def test_sensor_waits_for_the_name_and_reports_its_commits(catalog):
    sensor = delta_table_sensor(
        "watch", "catalog://main.shop.orders", storage_options=catalog, asset_key=KEY
    )
    with dg.DagsterInstance.ephemeral() as instance:
        first = sensor(dg.build_sensor_context(instance=instance))
        assert not first.asset_events
        materialize(DeltaIOManager(catalog=catalog), orders)
        second = sensor(dg.build_sensor_context(instance=instance, cursor=first.cursor))
        (event,) = second.asset_events
        assert event.metadata["delta/version"].value == 0
        third = sensor(dg.build_sensor_context(instance=instance, cursor=second.cursor))
        assert not third.asset_events
        (Path(catalog.folder) / "catalog.json").unlink()
        with pytest.raises(DeltaError, match="has no table of this name"):
            sensor(dg.build_sensor_context(instance=instance, cursor=third.cursor))


def test_observed_table_has_its_version_by_the_name(catalog):
    materialize(DeltaIOManager(catalog=catalog), orders)
    asset = observable_delta_asset("orders", "uc://main.shop.orders", storage_options=catalog)
    assert asset.specs_by_key[dg.AssetKey("orders")].metadata["dagster/uri"] == (
        "uc://main.shop.orders"
    )
    with dg.DagsterInstance.ephemeral() as instance:
        job = dg.define_asset_job("observe_it", selection=[dg.AssetKey("orders")])
        resolved = dg.Definitions(assets=[asset], jobs=[job]).resolve_job_def("observe_it")
        assert resolved.execute_in_process(instance=instance).success
        (record,) = instance.fetch_observations(dg.AssetKey("orders"), limit=1).records
    assert record.asset_observation.metadata["dagster/row_count"].value == 2


def test_jobs_take_tables_of_a_catalog_by_name(catalog):
    materialize(DeltaIOManager(catalog=catalog), orders)
    job = delta_maintenance_job(
        "upkeep", tables={"orders": "catalog://main.shop.orders"}, storage_options=catalog
    )
    assert job.execute_in_process().success


def test_own_catalog_reads_tables_and_says_that_it_creates_none(tmp_path):
    DeltaTable(str(tmp_path / "shop" / "orders"), must_exist=False).append(ROWS)
    catalog = FolderTables(root=str(tmp_path))
    manager = DeltaIOManager(catalog=catalog)

    @dg.asset(key=["shop", "orders"])
    def orders() -> pa.Table:
        return ROWS

    materialize(manager, orders)
    assert catalog.table("shop.orders").version() == 1


def test_location_that_no_catalog_has_is_refused(catalog, tmp_path):
    with pytest.raises(InvalidArgument, match="pass the catalog"):
        DeltaTable("catalog://main.shop.orders")
    with pytest.raises(InvalidArgument, match="finds tables by name"):
        DeltaTable(str(tmp_path), storage_options={"catalog": catalog})
    with pytest.raises(InvalidArgument, match="a catalog and region"):
        DeltaTable("uc://a.b.c", storage_options={"catalog": catalog, "region": "x"})
    with pytest.raises(TableNotFound):
        DeltaTable("uc://a.b.c", storage_options={"catalog": catalog})
    assert not DeltaTable.is_delta_table("uc://a.b.c", storage_options={"catalog": catalog})


def test_incremental_assets_checks_and_health_take_a_table_by_name(catalog):
    manager = DeltaIOManager(catalog=catalog)
    materialize(manager, orders)
    place = "catalog://main.shop.orders"

    @delta_change_feed_asset(
        key=["main", "shop", "copy"], upstream=orders, keys=["id"], mode="merge"
    )
    def copy(changes: pa.Table) -> pa.Table:
        return changes

    @delta_change_feed_asset(
        key=["main", "shop", "other"],
        upstream="elsewhere",
        table=place,
        storage_options=catalog,
        keys=["id"],
        mode="merge",
    )
    def other(changes: pa.Table) -> pa.Table:
        return changes

    spec = dg.AssetSpec(KEY)
    checks = delta_asset_checks(KEY, table=place, storage_options=catalog, row_count=(1, 2))
    health = delta_health_asset(tables={"orders": place}, storage_options=catalog)
    defs = dg.Definitions(
        assets=[copy, other, spec, health],
        asset_checks=checks,
        resources={"io_manager": manager},
    )
    result = defs.resolve_implicit_global_asset_job_def().execute_in_process()
    assert all(found.passed for found in result.get_asset_check_evaluations())
    for name in ("copy", "other"):
        table = catalog.table(f"main.shop.{name}")
        assert table.snapshot().scan().to_arrow().equals(ROWS)


def test_maintenance_sensor_measures_a_table_by_name(catalog):
    materialize(DeltaIOManager(catalog=catalog), orders)
    sensor = delta_maintenance_sensor(
        "upkeep", tables={"orders": "catalog://main.shop.orders"}, storage_options=catalog
    )
    with dg.DagsterInstance.ephemeral() as instance:
        tick = sensor(dg.build_sensor_context(instance=instance))
    assert "1 table within the limits" in tick.skip_reason.skip_message
