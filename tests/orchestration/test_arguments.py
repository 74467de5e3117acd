"""Arguments of the functions that users call: environment variables, misspelled names and assets."""

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import (
    DeltaIOManager,
    DeltaTable,
    DeltaTableResource,
    check_definitions,
    delta_asset_checks,
    delta_files_asset,
    delta_health_asset,
    delta_maintenance_job,
    delta_maintenance_schedule,
    delta_restore_job,
    delta_sql_asset,
    delta_table_sensor,
    observable_delta_asset,
)
from dagster_delta.errors import InvalidArgument
from dagster_delta.storage import open_store

ORDERS = dg.EnvVar("LAKE_ORDERS")


def misspelled(**arguments: Any) -> Any:
    """Arguments that a type checker would refuse."""
    return arguments


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The location of a table, which the variable names; the current directory is another."""
    location = str(tmp_path / "lake" / "orders")
    DeltaTable(location, must_exist=False).append(pa.table({"x": [1]}))
    monkeypatch.setenv("LAKE_ORDERS", location)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return location


@dg.asset
def report() -> None: ...


ASSET: Any = report
"""An asset where a type checker would refuse it."""


def test_a_table_is_opened_at_the_value_of_a_variable(location):
    table = DeltaTable(ORDERS)
    table.append(pa.table({"x": [2]}))
    assert table.uri == location
    assert DeltaTable.is_delta_table(ORDERS)
    assert not list(Path.cwd().iterdir())


def test_a_sensor_an_observable_asset_and_jobs_take_locations_from_variables(location):
    sensor = delta_table_sensor("orders_sensor", [ORDERS], target=[report], start_from="earliest")
    context = dg.build_sensor_context(definitions=dg.Definitions([report], sensors=[sensor]))
    assert len(sensor.evaluate_tick(context).run_requests) == 1
    rooted = delta_table_sensor(
        "rooted", root=ORDERS, target=[report], start_from="earliest", storage_options={}
    )
    context = dg.build_sensor_context(definitions=dg.Definitions([report], sensors=[rooted]))
    assert len(rooted.evaluate_tick(context).run_requests) == 1
    (spec,) = observable_delta_asset("orders", ORDERS).specs
    assert spec.metadata["dagster/uri"] == location
    job = delta_maintenance_job("upkeep", tables={"orders": ORDERS})
    assert job.execute_in_process().success
    assert not list(Path.cwd().iterdir())


def test_an_io_manager_and_metadata_take_the_schema_from_a_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKE_ROOT", str(tmp_path))
    monkeypatch.setenv("LAKE_SCHEMA", "dev_ann")

    @dg.asset
    def planes() -> pa.Table:
        return pa.table({"seats": [1]})

    @dg.asset(metadata={"schema": dg.EnvVar("LAKE_SCHEMA"), "table_name": "others"})
    def more() -> pa.Table:
        return pa.table({"seats": [1]})

    manager = DeltaIOManager(root_uri=dg.EnvVar("LAKE_ROOT"), schema=dg.EnvVar("LAKE_SCHEMA"))
    definitions = check_definitions(
        dg.Definitions([planes, more], resources={"io_manager": manager})
    )
    assert definitions.resolve_implicit_global_asset_job_def().execute_in_process().success
    assert sorted(path.name for path in (tmp_path / "dev_ann").iterdir()) == ["others", "planes"]


def test_resources_outside_of_a_run_resolve_variables(location, monkeypatch):
    monkeypatch.setenv("LAKE_ROOT", str(Path(location).parent))
    assert DeltaTableResource(uri=ORDERS).table_uri == location
    parts = DeltaTableResource(root_uri=dg.EnvVar("LAKE_ROOT"), name="orders")
    assert parts.table_uri == location
    manager = DeltaIOManager(root_uri=dg.EnvVar("LAKE_ROOT"), schema="")
    assert manager.asset_table_uri(dg.AssetKey("orders"), {}) == location


def test_storage_options_take_variables_also_without_dagster(monkeypatch, tmp_path):
    monkeypatch.setenv("REGION", "eu-central-1")
    options = {"region": dg.EnvVar("REGION"), "skip_signature": True}
    assert open_store("s3://bucket/t", options).location.options["region"] == "eu-central-1"


@pytest.mark.parametrize(
    "use",
    [
        lambda: DeltaTable(ORDERS),
        lambda: delta_table_sensor("s", ORDERS, target=[report]),
        lambda: open_store("s3://bucket/t", {"region": ORDERS}),
    ],
)
def test_a_variable_that_is_not_set_is_named(use, monkeypatch):
    monkeypatch.delenv("LAKE_ORDERS", raising=False)
    with pytest.raises(InvalidArgument, match="LAKE_ORDERS is not set"):
        use()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda: delta_files_asset("f", "in/*.csv", **misspelled(colums={"id": "int"})),
            "delta_files_asset has no option 'colums': did you mean 'columns'",
        ),
        (
            lambda: delta_maintenance_schedule("n", "0 3 * * *", assets=[report], vacuum=True),
            "delta_maintenance_schedule has no option 'vacuum': it has asset_layer, assets",
        ),
        (lambda: delta_restore_job(assets=[report], descripton="x"), "did you mean 'description'"),
        (lambda: delta_asset_checks(report, **misspelled(uniqe=["id"])), "did you mean 'unique'"),
        (
            lambda: delta_table_sensor("s", "t", target=[report], **misspelled(operation="WRITE")),
            "did you mean 'operations'",
        ),
    ],
)
def test_a_misspelled_argument_is_refused_with_the_nearest_one(use, message):
    with pytest.raises(InvalidArgument, match=message):
        use()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: delta_maintenance_job(assets=ASSET), "assets of delta_maintenance_job"),
        (lambda: delta_health_asset(root=ASSET), "root of delta_health_asset"),
        (lambda: observable_delta_asset("k", ASSET), "table of observable_delta_asset is str"),
        (lambda: delta_files_asset("f", ASSET), "source of delta_files_asset is str"),
        (lambda: delta_sql_asset("q", "SELECT 1", ASSET), "upstream of delta_sql_asset"),
    ],
)
def test_an_asset_is_refused_where_something_else_is_asked_for(use: Any, message):
    with pytest.raises(InvalidArgument, match=f"{message}.*, and not the asset report"):
        use()


def test_arguments_of_dagster_are_passed_on():
    files = delta_files_asset("f", "in/*.csv", non_argument_deps={"up"}, group_name="landing")
    assert files.specs_by_key[dg.AssetKey("f")].group_name == "landing"
    assert delta_asset_checks(dg.AssetSpec("a", metadata={"dagster/uri": "t"}))


def test_the_version_of_a_table_is_its_second_argument(tmp_path):
    table = DeltaTable(tmp_path / "t", must_exist=False)
    for value in (1, 2):
        table.append(pa.table({"x": [value]}))
    assert DeltaTable(tmp_path / "t", 0).snapshot().num_records == 1
