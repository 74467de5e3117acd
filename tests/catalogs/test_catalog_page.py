"""The page about catalogs: its programs, from an empty server to assets, run here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import DeltaIOManager, DeltaTable, UnityCatalogComponent, UnityCatalogResource
from dagster_delta.errors import StorageFailure
from tests.catalogs.unity_server import UnityServer

PAGE = Path(__file__).parents[2] / "docs" / "catalogs.md"
NAME = "main.shop.orders"


def run_programs(names: dict[str, Any], *held: str) -> dict[str, Any]:
    """The names that the programs of the page define which hold these words."""
    programs = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.read_text())
    for word in held:
        (program,) = [text for text in programs if word in text]
        exec(program, names)
    return names


@pytest.fixture
def page(server: UnityServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("UNITY_URI", server.uri)
    monkeypatch.setenv("UNITY_TOKEN", "secret-token")
    return run_programs({"__name__": "page"}, "UnityCatalogResource(uri", "delta_maintenance_job(")


def test_page_leads_from_an_empty_server_to_assets(
    server: UnityServer, page: dict[str, Any]
) -> None:
    defs: dg.Definitions = page["defs"]
    with dg.DagsterInstance.ephemeral() as instance:
        job = defs.resolve_implicit_global_asset_job_def()
        result = job.execute_in_process(instance=instance)
        events = result.get_asset_materialization_events()
        shown = [event.materialization.metadata["dagster/table_name"].value for event in events]
        assert sorted(str(name) for name in shown) == [NAME, "main.shop.total"]
        assert server.find(NAME).comment == "Orders of the shop."
        assert server.find(NAME).table_type == "MANAGED"

        sensor = defs.resolve_sensor_def("orders_changed")
        cursor = "{}"
        for expected in (0, 1):
            context = dg.build_sensor_context(instance, cursor=cursor, definitions=defs)
            tick = sensor.evaluate_tick(context)
            assert len(tick.run_requests or ()) == expected
            assert tick.cursor is not None
            cursor = tick.cursor
            more = pa.table({"id": [4], "amount": [7]})
            run_programs(page, "UnityCatalog(os")["table"].append(more)

        observed = dg.Definitions(
            assets=[page["observed"]],
            jobs=[page["nightly"], dg.define_asset_job("observe", [page["observed"]])],
        )
        for name in ("observe", "nightly"):
            done = observed.resolve_job_def(name).execute_in_process(instance=instance)
            assert done.success
        logged = [entry.user_message for entry in instance.all_logs(done.run_id)]
        for left in ("OPTIMIZE", "VACUUM (dry run)"):
            assert f"{left}: left to the catalog, which manages the table" in logged
        (record,) = instance.fetch_observations(page["observed"].key, limit=1).records
        assert record.asset_observation is not None
        assert record.asset_observation.metadata["dagster/row_count"].value == 5


def test_own_catalog_of_the_page_stores_and_reads_assets(tmp_path: Path) -> None:
    made = run_programs({"__name__": "page"}, "FolderCatalog(")["FolderCatalog"]
    catalog = made(root=str(tmp_path))
    rows = pa.table({"id": [1]})
    DeltaTable(str(tmp_path / "shop" / "orders"), must_exist=False).append(rows)

    @dg.asset(key=["shop", "orders"], metadata={"shared_table": True, "mode": "append"})
    def orders() -> pa.Table:
        return rows

    assert dg.materialize(
        [orders], resources={"io_manager": DeltaIOManager(catalog=catalog)}
    ).success
    assert catalog.table("shop.orders").snapshot().num_records == 2


def test_component_makes_observed_assets_of_the_tables_of_a_schema(
    server: UnityServer, page: dict[str, Any], tmp_path: Path
) -> None:
    job = page["defs"].resolve_implicit_global_asset_job_def()
    assert job.execute_in_process().success
    server.find(NAME).owner = "ada@example.com"
    component = UnityCatalogComponent(
        uri=server.uri,
        token="secret-token",
        catalog="main",
        schema="shop",
        exclude=["*.total"],
        maintenance={"name": "nightly"},  # type: ignore[arg-type]
    )
    state = tmp_path / "state.json"
    component.write_state_to_path(state)
    assert "secret-token" not in state.read_text() + repr(component)
    requests = len(server.log)
    context: Any = None
    defs = component.build_defs_from_state(context, state)
    assert len(server.log) == requests
    (spec,) = defs.resolve_all_asset_specs()
    assert spec.key == dg.AssetKey(["main", "shop", "orders"])
    assert (spec.description, spec.owners) == ("Orders of the shop.", ["ada@example.com"])
    columns = spec.metadata["dagster/column_schema"].schema.columns
    assert [column.name for column in columns] == ["id", "amount"]
    with dg.DagsterInstance.ephemeral() as instance:
        everything = defs.resolve_implicit_global_asset_job_def()
        assert everything.execute_in_process(instance=instance).success
        assert defs.resolve_job_def("nightly").execute_in_process(instance=instance).success
        (record,) = instance.fetch_observations(spec.key, limit=1).records
    assert record.asset_observation is not None
    assert record.asset_observation.metadata["dagster/row_count"].value == 3


def test_external_table_is_registered_where_root_uri_says(
    server: UnityServer, page: dict[str, Any], tmp_path: Path
) -> None:
    root = str(tmp_path / "lake")
    catalog = UnityCatalogResource(uri=server.uri, token="secret-token")
    manager = DeltaIOManager(catalog=catalog, root_uri=root)
    for _ in range(2):
        assert dg.materialize([page["orders"]], resources={"io_manager": manager}).success
    held = server.find(NAME)
    assert (held.table_type, held.path) == ("EXTERNAL", tmp_path / "lake" / "shop" / "orders")
    assert DeltaTable(f"{root}/shop/orders").version() == 1


def test_quiet_tick_of_a_sensor_asks_the_catalog_and_lists_nothing(
    server: UnityServer, page: dict[str, Any]
) -> None:
    page["defs"].resolve_implicit_global_asset_job_def().execute_in_process()
    sensor = page["defs"].resolve_sensor_def("orders_changed")
    with dg.DagsterInstance.ephemeral() as instance:
        first = sensor.evaluate_tick(dg.build_sensor_context(instance, definitions=page["defs"]))
        server.log.clear()
        sensor.evaluate_tick(
            dg.build_sensor_context(instance, cursor=first.cursor, definitions=page["defs"])
        )
    assert len(server.log) <= 4


def test_wrong_token_is_a_failure_that_does_not_show_it(tmp_path: Path) -> None:
    with UnityServer(tmp_path / "storage", tokens={"right"}) as server:
        catalog = UnityCatalogResource(uri=server.uri, token="wrong-token")
        with pytest.raises(StorageFailure) as raised:
            catalog.table(NAME)
    assert "wrong-token" not in f"{raised.value} {catalog!r}"
