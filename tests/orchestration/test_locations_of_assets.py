"""An asset is loaded, checked and maintained where its metadata says that its table is."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.checks.asset_checks import delta_asset_checks
from dagster_delta.orchestration.checks.health_asset import delta_health_asset
from dagster_delta.orchestration.components.external_tables import DeltaTableComponent
from dagster_delta.orchestration.definition_checks import check_definitions
from dagster_delta.orchestration.incremental.change_feed_assets import delta_change_feed_asset
from dagster_delta.orchestration.io.sql_assets import delta_sql_asset
from dagster_delta.orchestration.maintenance.jobs import delta_maintenance_job
from dagster_delta.orchestration.sensors.observations import observable_delta_asset
from dagster_delta.table.delta_table import DeltaTable
from tests.orchestration.conftest import library_error

KEY = dg.AssetKey(["raw", "rates"])


@pytest.fixture
def external(lake, tmp_path) -> str:
    """A table of another program; an old copy of it is where an IO manager would store the asset."""
    uri = str(tmp_path / "external" / "rates")
    DeltaTable(uri, must_exist=False).append(pa.table({"id": [1], "rate": [2.0]}))
    copy = str(lake.root / "raw" / "rates")
    DeltaTable(copy, must_exist=False).append(pa.table({"id": [1, 2], "rate": [9.0, 9.0]}))
    return uri


def observable(uri: str) -> Any:
    return observable_delta_asset(KEY, uri)


def spec(uri: str) -> Any:
    return dg.AssetSpec(KEY, metadata={"dagster/uri": uri})


def source(uri: str) -> Any:
    return dg.SourceAsset(KEY, metadata={"dagster/uri": uri})


def of_component(uri: str) -> Any:
    component: Any = DeltaTableComponent(key=KEY, uri=uri)
    (asset,) = component.build_defs(None).assets
    return asset


def writing_itself(uri: str) -> Any:
    @dg.asset(key=KEY, metadata={"dagster/uri": uri})
    def rates() -> None: ...

    return rates


@dg.asset(ins={"rates": dg.AssetIn(KEY)})
def by_function(rates: pa.Table) -> pa.Table:
    return rates


KINDS = [observable, spec, source, of_component, writing_itself]


@pytest.mark.parametrize("is_checked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_assets_load_the_table_that_their_input_names(lake, external, kind, is_checked):
    by_query = delta_sql_asset("by_query", "SELECT * FROM {rates}", {"rates": KEY})

    @delta_change_feed_asset(KEY, keys="id", returns="rows")
    def by_changes(changes: pa.Table) -> pa.Table:
        return changes.select(["id", "rate"])

    users = [by_function, by_query, by_changes]
    definitions = dg.Definitions([kind(external), *users], resources={"io_manager": lake.manager()})
    if is_checked:
        definitions = check_definitions(definitions)
    job = definitions.get_implicit_global_asset_job_def()
    job.execute_in_process(instance=lake.instance, asset_selection=[user.key for user in users])
    for user in users:
        assert lake.rows(user.key.path[-1]) == [{"id": 1, "rate": 2.0}]


def test_an_op_loads_the_table_that_its_source_names(lake, external):
    seen = []

    @dg.op
    def read(rates: pa.Table) -> None:
        seen.extend(rates["rate"].to_pylist())

    @dg.job(resource_defs={"io_manager": lake.manager()})
    def reading() -> None:
        read(source(external))

    reading.execute_in_process(instance=lake.instance)
    assert seen == [2.0]


@pytest.mark.parametrize("kind", KINDS)
def test_checks_health_and_maintenance_open_the_table_that_the_asset_names(lake, external, kind):
    asset = kind(external)
    checks = delta_asset_checks(asset, row_count=(1, 1), constraints=False)
    health = delta_health_asset(assets=[asset])
    upkeep = delta_maintenance_job(assets=[asset])
    definitions = dg.Definitions(
        [asset, health],
        asset_checks=checks,
        jobs=[upkeep],
        resources={"io_manager": lake.manager()},
    )
    before = lake.table("rates", "raw").version()
    for name in ("__ASSET_JOB", upkeep.name):
        job = definitions.get_job_def(name)
        selection = None if name == upkeep.name else [health.key]
        result = job.execute_in_process(instance=lake.instance, asset_selection=selection)
        assert result.success
    (page,) = result_of_health(lake)
    assert page == {"raw/rates": DeltaTable(external).health().size_bytes}
    only_checks = dg.AssetSelection.checks(*checks)
    job = dg.Definitions(
        [asset],
        asset_checks=checks,
        jobs=[dg.define_asset_job("checks", selection=only_checks)],
        resources={"io_manager": lake.manager()},
    ).get_job_def("checks")
    (evaluation,) = job.execute_in_process(instance=lake.instance).get_asset_check_evaluations()
    assert evaluation.passed
    assert lake.table("rates", "raw").version() == before


def result_of_health(lake) -> list[Any]:
    records = lake.instance.fetch_materializations(dg.AssetKey("delta_health"), limit=1).records
    return [record.asset_materialization.metadata["delta/figures"].data for record in records]


def test_an_asset_of_check_definitions_is_loaded_from_where_its_io_manager_stores_it_now(
    lake, tmp_path
):
    @dg.asset
    def orders() -> pa.Table:
        return pa.table({"n": [1]})

    @dg.asset
    def report(orders: pa.Table) -> pa.Table:
        return orders

    before = {"io_manager": lake.manager()}
    definitions = check_definitions(dg.Definitions([orders, report], resources=before))
    moved = {"io_manager": type(lake.manager())(root_uri=str(tmp_path / "moved"))}
    assert dg.materialize(list(definitions.assets or ()), resources=moved).success
    assert DeltaTable(str(tmp_path / "moved" / "public" / "report")).version() == 0


def test_an_asset_is_not_stored_elsewhere_than_where_its_metadata_says(lake, tmp_path):
    def orders(uri: str) -> dg.AssetsDefinition:
        @dg.asset(metadata={"dagster/uri": uri})
        def orders() -> pa.Table:
            return pa.table({"n": [1]})

        return orders

    resources = {"io_manager": lake.manager()}
    elsewhere = orders(str(tmp_path / "elsewhere"))
    with pytest.raises(InvalidArgument, match=r"says that its table is .*elsewhere"):
        check_definitions(dg.Definitions([elsewhere], resources=resources))
    with pytest.raises(Exception) as caught:
        lake.materialize(elsewhere)
    assert "omit dagster/uri" in str(library_error(caught.value))
    assert not lake.root.joinpath("public").exists()
    same = orders(f"file://{lake.root}/public/orders/")
    check_definitions(dg.Definitions([same], resources=resources))
    lake.materialize(same)
    assert lake.rows("orders") == [{"n": 1}]


def test_metadata_does_not_hide_where_an_observed_table_is(external):
    asset = observable_delta_asset(KEY, external, metadata={"dagster/uri": "s3://other/table"})
    assert asset.metadata_by_key[KEY]["dagster/uri"] == external


def test_a_location_with_a_password_is_refused_as_that_of_an_asset():
    with pytest.raises(InvalidArgument, match="pass it among the storage options"):
        observable_delta_asset(KEY, "ftp://me:secret@host/rates")
