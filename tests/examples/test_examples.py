"""The projects of `examples/` run, and do what their READMEs say."""

from __future__ import annotations

import asyncio
import os
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
import yaml
from pyspark.sql import SparkSession

from dagster_delta import DeltaLakeComponent, DeltaTable

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    """The definitions of an example; its other scripts may import them as `defs`."""
    monkeypatch.syspath_prepend(str(EXAMPLES / name))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "defs", raising=False)
    found: dg.Definitions = runpy.run_path(str(EXAMPLES / name / "defs.py"))["defs"]
    return found


def materialize(
    defs: dg.Definitions, instance: dg.DagsterInstance, *names: str, day: str | None = None
) -> dg.ExecuteInProcessResult:
    return defs.resolve_implicit_global_asset_job_def().execute_in_process(
        run_config=QUIET,
        instance=instance,
        asset_selection=[dg.AssetKey(name) for name in names],
        partition_key=day,
    )


def rows(uri: str, *columns: str) -> list[dict[str, object]]:
    table = DeltaTable(uri).snapshot().scan(list(columns)).to_arrow()
    return table.sort_by([(name, "ascending") for name in columns]).to_pylist()


def test_weather_is_reported_and_follows_the_stations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    monkeypatch.setenv("WEATHER_LAKE", str(tmp_path))
    defs = load("weather", monkeypatch)
    runpy.run_path(str(EXAMPLES / "weather" / "make_stations.py"))
    for day in ("2026-03-01", "2026-03-02", "2026-03-03"):
        run = materialize(defs, instance, "readings", day=day)
        assert all(each.passed for each in run.get_asset_check_evaluations())
        assert run.get_asset_check_evaluations()
    assert materialize(defs, instance, "daily_means", "warmest").success
    names = [row["name"] for row in rows(f"{tmp_path}/public/warmest", "day", "name")]
    assert names == ["Hill", "Hill", "Harbour"]

    sensor = defs.resolve_sensor_def("stations_changed")
    first = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, definitions=defs))
    DeltaTable(f"{tmp_path}/external/stations").append(pa.table({"station": [3], "name": ["Quay"]}))
    context = dg.build_sensor_context(instance=instance, definitions=defs, cursor=first.cursor)
    assert len(sensor.evaluate_tick(context).run_requests or ()) == 1
    sys.modules.pop("defs", None)


def test_orders_take_a_new_column_and_a_wider_type(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    instance: dg.DagsterInstance,
    spark: SparkSession,
) -> None:
    monkeypatch.setenv("ORDERS_LAKE", str(tmp_path))
    defs = load("orders_spark", monkeypatch)
    for day in ("2026-03-01", "2026-03-02"):
        assert materialize(defs, instance, "orders", day=day).success
    config = yaml.safe_load((EXAMPLES / "orders_spark" / "widen.yaml").read_text())
    job = defs.resolve_job_def("delta_schema_change")
    assert job.execute_in_process(run_config=config, instance=instance).success
    assert materialize(defs, instance, "quantities").success
    orders = DeltaTable(f"{tmp_path}/public/orders")
    types = {field.name: str(field.data_type) for field in orders.schema()}
    assert (types["quantity"], types["voucher"]) == ("long", "string")
    assert rows(f"{tmp_path}/public/quantities", "article", "quantity") == [
        {"article": "cup", "quantity": 6},
        {"article": "pot", "quantity": 1},
    ]


def test_a_lake_is_found_checked_and_maintained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    monkeypatch.setenv("LAKE", str(tmp_path / "tables"))
    project = tmp_path / "project"
    shutil.copytree(EXAMPLES / "lake", project, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(str(project))
    runpy.run_path(str(project / "make_tables.py"))
    folder = project / "lake_project" / "defs" / "lake"
    with monkeypatch.context() as patch:
        patch.chdir(project)
        tree = dg.ComponentTree.for_project(project)
        component = tree.load_component(folder)
        assert isinstance(component, DeltaLakeComponent)
        asyncio.run(component.refresh_state(project))
        defs = dg.ComponentTree.for_project(project).build_defs()
    keys = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}
    assert keys == {"web/clicks", "web/pages"}
    clicks = f"{os.environ['LAKE']}/web/clicks"
    assert DeltaTable(clicks).snapshot().num_files == 5
    job = defs.resolve_job_def("nightly_job")
    assert job.execute_in_process(instance=instance).success
    assert DeltaTable(clicks).snapshot().num_files == 1
    for name in [name for name in sys.modules if name.partition(".")[0] == "lake_project"]:
        del sys.modules[name]


def test_a_shop_keeps_the_history_of_its_customers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    monkeypatch.setenv("SHOP_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("SHOP_LANDING", str(tmp_path / "landing"))
    defs = load("shop", monkeypatch)
    make_day = runpy.run_path(str(EXAMPLES / "shop" / "make_day.py"))["make_day"]
    shop = defs.resolve_job_def("shop")

    def run(day: int) -> set[str]:
        make_day(day)
        result = shop.execute_in_process(instance=instance, run_config=QUIET)
        assert result.success
        checks = result.get_asset_check_evaluations()
        return {check.check_name for check in checks if not check.passed}

    assert run(1) == run(2) == set()
    assert run(3) == {"positive"}
    orders = rows(f"{tmp_path}/lake/silver/orders", "id")
    assert [row["id"] for row in orders] == [10, 11, 12, 13, 14]
    (wrong,) = rows(f"{tmp_path}/lake/silver/orders_quarantine", "row")
    assert '"id":15' in str(wrong["row"])
    customers = rows(f"{tmp_path}/lake/silver/customers", "id", "city")
    assert [(row["id"], row["city"]) for row in customers] == [
        (1, "Gouda"),
        (2, "Paris"),
        (4, "York"),
    ]
    history = DeltaTable(f"{tmp_path}/lake/gold/customer_history")
    states = history.snapshot().scan().to_arrow()
    found = states.sort_by([("id", "ascending"), ("valid_from", "ascending")]).to_pylist()
    assert [
        (row["id"], row["city"], row["valid_to"] and f"{row['valid_to']:%d %H:%M}") for row in found
    ] == [
        (1, "Delft", "02 12:00"),
        (1, "Gouda", None),
        (2, "Lyon", "02 09:00"),
        (2, "Nice", "02 15:00"),
        (2, "Paris", None),
        (3, "Bonn", "03 09:00"),
        (4, "York", None),
    ]
    again = defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=[dg.AssetKey(["gold", "customer_history"])],
        tags={"delta/full_refresh": "true"},
        run_config=QUIET,
    )
    assert again.success
    history.refresh()
    assert history.snapshot().scan().to_arrow().num_rows == len(found)
