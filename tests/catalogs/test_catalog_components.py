"""Tables of a catalog in YAML: components whose storage options are the catalog."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox
from dagster.components.testing.utils import DefsFolderSandbox

import dagster_delta
from dagster_delta import DeltaTable, UnityCatalogResource
from dagster_delta.catalogs import UnityCatalog
from tests.catalogs.unity_server import UnityServer
from tests.orchestration.conftest import library_error

PAGE = Path(__file__).parents[2] / "docs" / "catalogs.md"
NAME = "main.shop.orders"
URI = f"catalog://{NAME}"
ROWS = pa.table({"id": [1, 2, 3]})
OWN_CATALOG = """
import dagster as dg
from dagster_delta import CatalogResource
from dagster_delta.storage import StoreLocation


class FolderCatalog(CatalogResource):
    name_parts = 2
    root: str

    def resolve(self, name: str) -> StoreLocation:
        return StoreLocation(f"{self.root}/{name.replace('.', '/')}", {})


@dg.template_var
def lake() -> FolderCatalog:
    return FolderCatalog(root="ROOT")
"""


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as made:
        yield made


@pytest.fixture
def orders(server: UnityServer, monkeypatch: pytest.MonkeyPatch) -> DeltaTable:
    monkeypatch.setenv("UNITY_URI", server.uri)
    monkeypatch.setenv("UNITY_TOKEN", "secret-token")
    server.tokens = {"secret-token"}
    location = UnityCatalog(server.uri, token="secret-token").new_table(NAME)
    table = DeltaTable(location.uri, storage_options=location.options, must_exist=False)
    table.append(ROWS)
    return table


def load(sandbox: DefsFolderSandbox, declared: dict[str, Any], module: str = "") -> dg.Definitions:
    component = getattr(dagster_delta, declared["type"].partition(".")[2])
    if module:
        declared["template_vars_module"] = ".template_vars"
    path = sandbox.scaffold_component(
        component, scaffold_params={"uri": "u", "root": "r"}, defs_yaml_contents=declared
    )
    if module:
        (path / "template_vars.py").write_text(module)
    with sandbox.load_component_and_build_defs(path) as (_, defs):
        return defs


def page_component(kind: str) -> dict[str, Any]:
    """The component of this kind that the page declares."""
    texts = re.findall(r"(?ms)^```yaml\n(.*?)^```$", PAGE.read_text())
    (found,) = [one for one in map(yaml.safe_load, texts) if one["type"] == f"dagster_delta.{kind}"]
    assert isinstance(found, dict)
    return found


def test_table_of_unity_catalog_is_an_asset_with_a_sensor(
    sandbox: DefsFolderSandbox, server: UnityServer, orders: DeltaTable
) -> None:
    asked = [*server.log]
    defs = load(sandbox, page_component("DeltaTableComponent"))
    (spec,) = defs.resolve_all_asset_specs()
    assert server.log == asked
    with dg.DagsterInstance.ephemeral() as instance:
        job = defs.resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(instance=instance).success
        (record,) = instance.fetch_observations(spec.key, limit=1).records
        assert record.asset_observation is not None
        assert record.asset_observation.metadata["dagster/row_count"].value == 3
        cursor: str | None = None
        sensor = defs.resolve_sensor_def("orders_changed")
        for requested in (0, 1):
            context = dg.build_sensor_context(instance, cursor=cursor, definitions=defs)
            tick = sensor.evaluate_tick(context)
            assert len(tick.run_requests or ()) == requested
            cursor = tick.cursor
            orders.append(ROWS)


def test_maintenance_of_tables_by_name_leaves_to_the_catalog_what_it_keeps(
    sandbox: DefsFolderSandbox, server: UnityServer, orders: DeltaTable
) -> None:
    declared = {
        "type": "dagster_delta.DeltaMaintenanceComponent",
        "attributes": {
            "name": "nightly",
            "tables": {"orders": URI},
            "storage_options": {
                "provider": "unity_catalog",
                "uri": "{{ env.UNITY_URI }}",
                "token": "{{ env.UNITY_TOKEN }}",
                "storage_options": {"provider": "s3", "region": "eu-west-1"},
            },
        },
    }
    defs = load(sandbox, declared)
    with dg.DagsterInstance.ephemeral() as instance:
        done = defs.resolve_job_def("nightly").execute_in_process(instance=instance)
        logged = [entry.user_message for entry in instance.all_logs(done.run_id)]
    assert "OPTIMIZE: left to the catalog, which manages the table" in logged


def test_catalog_of_ones_own_is_a_template(sandbox: DefsFolderSandbox, tmp_path: Path) -> None:
    DeltaTable(str(tmp_path / "shop" / "orders"), must_exist=False).append(ROWS)
    declared = {
        "type": "dagster_delta.DeltaTableComponent",
        "attributes": {
            "key": "shop/orders",
            "uri": "catalog://shop.orders",
            "storage_options": "{{ lake }}",
        },
    }
    defs = load(sandbox, declared, OWN_CATALOG.replace("ROOT", str(tmp_path)))
    with dg.DagsterInstance.ephemeral() as instance:
        job = defs.resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(instance=instance).success


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("DeltaTableComponent", {"provider": "unity_catalog", "urri": "x"}, "urri"),
        ("DeltaTableComponent", {"provider": "glue", "token": "x"}, "token"),
        ("DeltaLakeComponent", {"provider": "unity_catalog", "uri": "https://host"}, "provider"),
        (
            "DeltaTableComponent",
            {"provider": "unity_catalog", "uri": "u", "allow_http": "{{ env.UNITY_TOKEN }}"},
            "allow_http",
        ),
    ],
)
def test_wrong_options_of_a_catalog_are_named(
    sandbox: DefsFolderSandbox,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    options: dict[str, Any],
    named: str,
) -> None:
    monkeypatch.setenv("UNITY_TOKEN", "secret-token")
    place = {"root": "s3://lake"} if kind == "DeltaLakeComponent" else {"key": "a", "uri": URI}
    attributes = {**place, "storage_options": options}
    with pytest.raises(Exception) as caught:
        load(sandbox, {"type": f"dagster_delta.{kind}", "attributes": attributes})
    shown = f"{caught.value}\n{library_error(caught.value)}"
    assert named in shown
    assert "secret-token" not in shown


def test_attributes_that_name_a_server_are_those_of_the_resource() -> None:
    component = dagster_delta.UnityCatalogComponent(
        uri="http://host", catalog="main", allow_http=True, timeout_seconds=5
    )
    given: Any = component.storage
    assert isinstance(given, UnityCatalogResource)
    assert (given.allow_http, given.timeout_seconds) == (True, 5)
