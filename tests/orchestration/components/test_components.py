"""Components: what a `defs.yaml` makes of tables, and what it is told where it makes no sense."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import dagster as dg
import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from dagster.components.testing import create_defs_folder_sandbox
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

import dagster_delta
from dagster_delta import (
    DeltaChangeFeedComponent,
    DeltaIngestionComponent,
    DeltaIOManager,
    DeltaLakeComponent,
    DeltaMaintenanceComponent,
    DeltaMaintenanceSensorComponent,
    DeltaSensorComponent,
    DeltaSqlComponent,
    DeltaTable,
    DeltaTableComponent,
    S3StorageOptions,
    UnityCatalogComponent,
)
from dagster_delta.errors import InvalidArgument
from tests.orchestration.conftest import QUIET, library_error
from tests.table_rows import stored_rows

COMPONENTS = [
    DeltaChangeFeedComponent,
    DeltaSqlComponent,
    DeltaIngestionComponent,
    DeltaLakeComponent,
    DeltaMaintenanceComponent,
    DeltaSensorComponent,
    DeltaTableComponent,
    UnityCatalogComponent,
]
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"comment": "the key"}),
        pa.field("day", pa.string()),
    ]
)


def append(uri: str, *ids: int) -> None:
    deltalake.write_deltalake(
        uri, pa.table({"id": list(ids), "day": ["d"] * len(ids)}, SCHEMA), mode="append"
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two tables, one of them not to be bothered with."""
    for name in ("raw/flights", "scratch/odd-name"):
        uri = str(tmp_path / name)
        DeltaTable.create(uri, SCHEMA, description=f"About {name}", partition_by=["day"])
        append(uri, 1)
    return tmp_path


@pytest.fixture
def sandbox():
    with create_defs_folder_sandbox() as made:
        yield made


def declare(sandbox, component: type, attributes: dict[str, Any], scaffold: dict[str, Any]):
    """A folder with such a `defs.yaml`."""
    kind = f"dagster_delta.{component.__name__}"
    return sandbox.scaffold_component(
        component,
        scaffold_params=scaffold,
        defs_yaml_contents={"type": kind, "attributes": attributes},
    )


def load(sandbox, component: type, **attributes: Any) -> dg.Definitions:
    path = declare(sandbox, component, attributes, {"root": "r", "uri": "u", "source": "s"})
    with sandbox.load_component_and_build_defs(path) as (_, defs):
        return defs


def tick(defs: dg.Definitions, name: str, instance: dg.DagsterInstance, cursor=None) -> Any:
    """What one evaluation of a sensor gives."""
    context = dg.build_sensor_context(instance=instance, definitions=defs, cursor=cursor)
    return defs.get_sensor_def(name)(context)


def refusal(sandbox, component: type, **attributes: Any) -> str:
    with pytest.raises(Exception) as caught:
        load(sandbox, component, **attributes)
    return f"{caught.value}\n{library_error(caught.value)}"


def test_dg_finds_the_components_where_we_registered_them() -> None:
    (entry,) = (
        each
        for each in entry_points(group="dagster_dg_cli.registry_modules")
        if each.dist is not None and each.dist.name == "dagster-delta-protocol"
    )
    assert entry.load() is dagster_delta
    assert {each.__name__ for each in COMPONENTS} <= set(dir(entry.load()))


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_attribute_is_documented_and_no_other_is_taken(component) -> None:
    schema = component.get_model_cls().model_json_schema()
    models = {"": schema, **schema["$defs"]}
    theirs = ("DefsState", "AssetSpec", "Hourly", "Daily", "Weekly", "TimeWindow", "Static")
    ours = {name: each for name, each in models.items() if not name.startswith(theirs)}
    assert all(
        each["additionalProperties"] is False for each in ours.values() if "properties" in each
    )
    undocumented = [
        f"{model}.{name}"
        for model, each in ours.items()
        for name, field in each.get("properties", {}).items()
        if "description" not in field and "const" not in field
    ]
    assert undocumented == []


@pytest.mark.parametrize(
    ("component", "params", "expected"),
    [
        (DeltaTableComponent, {"uri": "s3://l/x", "key": "raw/x"}, {"key": "raw/x"}),
        (
            DeltaMaintenanceComponent,
            {"uri": "s3://l/x"},
            {"tables": {"x": "s3://l/x"}, "name": "here"},
        ),
        (DeltaSensorComponent, {"uri": "s3://l/x"}, {"tables": "s3://l/x", "name": "here"}),
        (DeltaLakeComponent, {"root": "s3://l"}, {"root": "s3://l"}),
        (
            UnityCatalogComponent,
            {"uri": "https://host", "catalog": "main", "token": "secret"},
            {"uri": "https://host", "catalog": "main", "schema_": None},
        ),
        (DeltaSqlComponent, {"upstream": "raw/x"}, {"upstream": {"source": "raw/x"}}),
        (DeltaChangeFeedComponent, {"upstream": "raw/x"}, {"mode": "append"}),
        (DeltaIngestionComponent, {"source": "s3://in/*.csv"}, {"source": "s3://in/*.csv"}),
    ],
)
def test_what_is_scaffolded_loads(sandbox, component, params, expected) -> None:
    path = sandbox.scaffold_component(component, "here", scaffold_params=params)
    with sandbox.load_component_and_build_defs(path) as (loaded, _):
        assert isinstance(loaded, component)
        given = {name: getattr(loaded, name) for name in expected}
    if "key" in given:
        given["key"] = given["key"].to_user_string()
    assert given == expected


def test_a_table_is_observed_checked_and_watched_by_ten_lines(sandbox, root, instance) -> None:
    uri = str(root / "raw" / "flights")
    defs = load(
        sandbox,
        DeltaTableComponent,
        key="raw/flights",
        uri=uri,
        description="All of them",
        owners=["team:data"],
        tags={"tier": "1"},
        group_name="raw",
        automation_condition="{{ dg.AutomationCondition.on_cron('0 * * * *') }}",
        checks={"unique": ["id"], "columns": {"id": "BIGINT", "day": "STRING"}},
        sensor={"name": "changed", "target": "group:raw", "partitions": {"day": ["d", "1"]}},
    )
    key = dg.AssetKey(["raw", "flights"])
    (spec,) = defs.resolve_all_asset_specs()
    assert (spec.key, spec.description, spec.group_name) == (key, "All of them", "raw")
    assert (list(spec.owners), spec.kinds) == (["team:data"], {"deltalake"})
    assert spec.tags["tier"] == "1"
    assert spec.automation_condition is not None

    job = defs.resolve_implicit_global_asset_job_def()
    append(uri, 1)
    result = job.execute_in_process(instance=instance, run_config=QUIET)
    (seen,) = result.asset_observations_for_node("raw__flights")
    assert str(seen.data_version).endswith(":2")
    passed = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert passed["delta_unique"] is False
    assert passed["delta_schema"] is True

    first = tick(defs, "changed", instance)
    append(uri, 3)
    second = tick(defs, "changed", instance, first.cursor)
    assert len(second.run_requests or []) == 1
    assert not second.asset_events


def test_commits_to_a_table_that_is_not_observed_are_reported_as_materializations(
    sandbox, root, instance
) -> None:
    uri = str(root / "raw" / "flights")
    sensor_options = {"name": "changed", "start_from": "earliest", "default_status": "RUNNING"}
    defs = load(
        sandbox, DeltaTableComponent, key="f", uri=uri, observe=False, sensor=sensor_options
    )
    assert defs.get_sensor_def("changed").default_status is dg.DefaultSensorStatus.RUNNING
    result = tick(defs, "changed", instance)
    assert [each.asset_key for each in result.asset_events] == [dg.AssetKey("f")]
    assert not result.run_requests


def test_maintenance_runs_as_it_was_declared(sandbox, root, instance) -> None:
    uri = str(root / "raw" / "flights")
    append(uri, 2)
    defs = load(
        sandbox,
        DeltaMaintenanceComponent,
        name="nightly",
        cron_schedule="0 3 * * *",
        tables={"raw/flights": uri},
        config={"optimize": {"enabled": "{{ 1 == 1 }}"}, "checkpoint": {"enabled": True}},
    )
    assert defs.get_schedule_def("nightly").cron_schedule == "0 3 * * *"
    job = defs.resolve_job_def("nightly_job")
    assert job.execute_in_process(instance=instance, run_config={}).success
    table = DeltaTable(uri)
    assert table.history(1)[0].operation == "OPTIMIZE"
    assert table.health().commits_since_checkpoint == 0
    assert table.snapshot().num_files == 1


def test_a_sensor_on_a_root_reports_every_table_under_its_path(sandbox, root, instance) -> None:
    defs = load(
        sandbox,
        DeltaSensorComponent,
        name="lake",
        root=f"{root}/",
        asset_key_prefix=["2024"],
        start_from="earliest",
    )
    result = tick(defs, "lake", instance)
    assert {each.asset_key.to_user_string() for each in result.asset_events} == {
        "2024/raw/flights",
        "2024/scratch/odd-name",
    }


def test_a_sensor_runs_a_job_by_its_name(sandbox, root, instance) -> None:
    @dg.job
    def report() -> None: ...

    uri = str(root / "raw" / "flights")
    sensors = load(
        sandbox,
        DeltaSensorComponent,
        name="changed",
        tables=uri,
        job_name="report",
        start_from="earliest",
        partitions_def="{{ dg.StaticPartitionsDefinition(['d', 'e']) }}",
        partition_expr="day",
    )
    defs = dg.Definitions.merge(sensors, dg.Definitions(jobs=[report]))
    assert defs.get_sensor_def("changed").job_name == "report"
    result = tick(defs, "changed", instance)
    assert [each.partition_key for each in result.run_requests] == ["d"]


def refreshed(sandbox, **attributes: Any) -> dg.Definitions:
    """The definitions of a lake once its state was refreshed."""
    path = declare(sandbox, DeltaLakeComponent, attributes, {"root": "r"})
    with sandbox.build_component_tree() as tree:
        component = tree.load_component(path)
        asyncio.run(component.refresh_state(sandbox.project_root))
    with sandbox.load_component_and_build_defs(path) as (_, defs):
        return defs


def test_the_tables_of_a_lake_are_found_once_and_loaded_without_storage(
    sandbox, root, instance
) -> None:
    (root / "raw" / "broken" / "_delta_log").mkdir(parents=True)
    unknown = load(sandbox, DeltaLakeComponent, root=str(root))
    assert not list(unknown.resolve_all_asset_specs())
    defs = refreshed(
        sandbox,
        root=str(root),
        key_prefix=["lake"],
        exclude=["*/broken"],
        owners=["team:data"],
        checks={"row_count": [1, None]},
        sensor={"name": "any", "target": "*"},
        maintenance={"name": "upkeep"},
    )
    # What is gone since is still there: nothing was looked at.
    (root / "raw").rename(root / "elsewhere")
    specs = {each.key.to_user_string(): each for each in defs.resolve_all_asset_specs()}
    assert set(specs) == {"lake/raw/flights", "lake/scratch/odd-name"}
    flights = specs["lake/raw/flights"]
    assert flights.description == "About raw/flights"
    columns = flights.metadata["dagster/column_schema"].value.columns
    assert [(each.name, each.type, each.description) for each in columns] == [
        ("id", "bigint", "the key"),
        ("day", "string", None),
    ]
    assert columns[0].constraints.nullable is False
    assert columns[1].tags == {"delta/partition_column": ""}
    (root / "elsewhere").rename(root / "raw")

    upkeep = defs.resolve_job_def("upkeep").execute_in_process(instance=instance, run_config={})
    observed = {each.asset_key for each in upkeep.get_asset_observation_events()}
    assert observed == set(map(dg.AssetKey.from_user_string, specs))
    job = defs.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=instance, run_config=QUIET)
    assert all(each.passed for each in result.get_asset_check_evaluations())
    assert defs.get_sensor_def("any")


def test_the_tables_that_another_release_looked_for_are_looked_for_again(sandbox, tmp_path) -> None:
    path = declare(sandbox, DeltaLakeComponent, {"root": "r"}, {"root": "r"})
    state = tmp_path / "state.json"
    state.write_text('{"root": "r", "tables": [{"uri": "r/a"}]}')
    with sandbox.build_component_tree() as tree:
        component = tree.load_component(path)
        with pytest.raises(InvalidArgument, match="refresh-defs-state"):
            component.build_defs_from_state(None, state)


def test_a_lake_reports_its_health(sandbox, root, instance) -> None:
    defs = refreshed(
        sandbox,
        root=str(root),
        observe=False,
        health={"name": "page", "key_prefix": ["ops"], "thresholds": {"num_files": 0}},
    )
    job = defs.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=instance, run_config=QUIET)
    (event,) = result.asset_materializations_for_node("ops__page")
    assert event.metadata["delta/num_tables"].value == 2
    (check,) = result.get_asset_check_evaluations()
    assert check.description == (
        "Files and logs of 2 of 2 tables are beyond a threshold: raw/flights, scratch/odd-name"
    )


def test_tables_of_a_lake_that_come_to_one_key_are_told_apart_by_excluding(sandbox, root) -> None:
    for name in ("raw/day=1", "raw/day_1"):
        DeltaTable.create(str(root / name), SCHEMA)
    with pytest.raises(Exception) as caught:
        refreshed(sandbox, root=str(root))
    assert "map to the same asset key raw/day_1" in str(library_error(caught.value))
    defs = refreshed(sandbox, root=str(root), exclude=["raw/day_1", "raw/f*", "scratch/*"])
    (spec,) = defs.resolve_all_asset_specs()
    assert spec.key == dg.AssetKey(["raw", "day_1"])
    assert spec.metadata["dagster/uri"].endswith("/raw/day=1")


def test_the_state_of_a_lake_names_a_table_it_cannot_open(root, tmp_path, caplog) -> None:
    (root / "broken" / "_delta_log").mkdir(parents=True)
    odd, state = root / "odd", tmp_path / "state"
    DeltaTable.create(str(odd), SCHEMA, properties={"delta.feature.invariants": "supported"})
    commit = odd / "_delta_log" / f"{0:020}.json"
    text = commit.read_text()
    column = text.index('\\"metadata\\":{') + len('\\"metadata\\":{')
    commit.with_suffix(".crc").unlink(missing_ok=True)
    commit.write_text(text[:column] + '\\"delta.invariants\\":\\"{bad\\"' + text[column:])
    DeltaLakeComponent(root=str(root)).write_state_to_path(state)
    found = json.loads(state.read_text())["tables"]
    assert found[str(root / "broken")] is None
    assert found[str(odd)] is None
    _, metadata = found[str(root / "raw" / "flights")]
    assert metadata["partitionColumns"] == ["day"]
    assert "broken stay unknown" in caplog.text


@pytest.mark.parametrize(
    ("component", "attributes", "said"),
    [
        (DeltaTableComponent, {"key": "a", "uri": "u", "colour": "red"}, "colour"),
        (DeltaTableComponent, {"key": "a", "uri": "u", "checks": {"unque": "a"}}, "unque"),
        (
            DeltaTableComponent,
            {"key": "a", "uri": "u", "storage_options": {"provider": "s3", "regin": "x"}},
            "regin",
        ),
        (DeltaMaintenanceComponent, {"tables": {}}, "the job has no tables"),
        (
            DeltaMaintenanceComponent,
            {"tables": {"a": "u"}, "config": {"vacuum": {"dryrun": True}}},
            "dryrun",
        ),
        (DeltaSensorComponent, {"name": "s", "target": "*"}, "either tables or a root"),
        (DeltaSensorComponent, {"name": "s", "tables": "u"}, "nothing to do"),
        (
            DeltaSensorComponent,
            {"name": "s", "tables": "u", "target": "*", "job_name": "j"},
            "more than one of 'job'",
        ),
        (
            DeltaTableComponent,
            {
                "key": "a",
                "uri": "u",
                "observe": False,
                "automation_condition": "{{ dg.AutomationCondition.eager() }}",
            },
            "observe is off",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(sandbox, component, attributes, said) -> None:
    assert said in refusal(sandbox, component, **attributes)


@pytest.mark.parametrize(
    ("component", "attributes", "said"),
    [
        (DeltaTableComponent, {"colour": 1}, "colour"),
        (DeltaTableComponent, {"checks": {"unque": ["a"]}}, "unque"),
        (DeltaTableComponent, {"storage_options": {"provider": "s3", "regin": "x"}}, "regin"),
        (DeltaTableComponent, {"storage_options": {"provider": "s4"}}, "provider"),
        (DeltaTableComponent, {"checks": {"severity": "BAD"}}, "severity"),
        (
            DeltaLakeComponent,
            {"maintenance": {"config": {"vacuum": {"dryrun": True}}}},
            "dryrun",
        ),
        (DeltaIngestionComponent, {"sensor": {"enabld": True}}, "enabld"),
        (DeltaIngestionComponent, {"mode": "upsert"}, "mode"),
        (DeltaTableComponent, {"translation": {"grup": 1}}, "grup"),
    ],
)
def test_a_wrong_key_or_value_is_named(sandbox, component, attributes, said) -> None:
    required: dict[type, dict[str, Any]] = {
        DeltaLakeComponent: {"root": "r"},
        DeltaIngestionComponent: {"asset": {"key": "a"}, "source": "s"},
    }
    given = required.get(component, {"key": "a", "uri": "u"})
    assert said in refusal(sandbox, component, **given, **attributes)


def test_templates_and_number_like_texts_are_taken(sandbox, monkeypatch) -> None:
    monkeypatch.setenv("OBSERVE", "true")
    attributes: dict[str, Any] = {
        "key": "a",
        "uri": "u",
        "observe": "{{ env.OBSERVE }}",
        "storage_options": {"provider": "s3", "region": "1", "skip_signature": "{{ True }}"},
        "sensor": {"name": "s", "target": "*", "start_from": 3, "partitions": {"p": ["1", None]}},
        "tags": {"a": "1", "b": "c"},
        "translation": {"group_name": "lake", "key": "lake/{{ spec.key.path[-1] }}"},
    }
    model = DeltaTableComponent.get_model_cls()
    assert model is not None
    validator = Draft202012Validator(model.model_json_schema())
    assert list(validator.iter_errors(attributes)) == []
    path = declare(sandbox, DeltaTableComponent, attributes, {"uri": "u"})
    with sandbox.load_component_and_build_defs(path) as (loaded, _):
        assert loaded.tags == {"a": "1", "b": "c"}
        assert loaded.sensor.partitions == {"p": ["1", None]}
        assert loaded.storage_options.region == "1"
        assert loaded.storage_options.skip_signature is True


@pytest.mark.parametrize(
    ("component", "attributes", "said"),
    [
        (DeltaTableComponent, {"url": "u"}, "'url' is not one of ['translation', 'storage_opt"),
        (DeltaTableComponent, {"checks": {"freshness": {"hour": 1}}}, "['days', 'hours', 'minut"),
        (DeltaTableComponent, {"checks": {"severity": "BAD"}}, "one of ['WARN', 'ERROR']"),
        (DeltaTableComponent, {"checks": 5}, "5 is not of type 'object', 'string', 'null'"),
        (DeltaLakeComponent, {"storage_options": {"provider": "s4"}}, "'gcs', 'local', 's3']"),
        (DeltaTableComponent, {"storage_options": {"provider": "s4"}}, "'s3', 'unity_catalog']"),
        (DeltaTableComponent, {"storage_options": {"provider": "s3", "regin": "x"}}, "'region'"),
        (DeltaMaintenanceComponent, {"config": {"vacuum": {"dryrun": True}}}, "'dry_run'"),
        (DeltaMaintenanceComponent, {"tables": ["u"]}, "is not of type 'object', 'string'"),
        (
            DeltaIngestionComponent,
            {"mode": "upsert"},
            "one of ['append', 'merge', 'auto_cdc', 'overwrite']",
        ),
        (DeltaChangeFeedComponent, {"on_gap": "skip"}, "one of ['refresh', 'fail']"),
        (DeltaSqlComponent, {"asset": {"kind": "sql"}}, "'code_version', 'owners'"),
        (DeltaSensorComponent, {"start_from": "beginning"}, "'beginning' is not one of ["),
        (DeltaTableComponent, {"sensor": {"start_from": 1.5}}, "not of type 'integer'"),
    ],
)
def test_dg_names_what_is_allowed_where_something_else_is_declared(
    component, attributes, said
) -> None:
    validator = Draft202012Validator(component.get_model_cls().model_json_schema())
    messages = [error.message for error in validator.iter_errors(attributes)]
    assert any(said in message for message in messages), messages
    assert not any("given schemas" in message for message in messages)


def test_ages_and_counts_are_declared_as_in_python(sandbox, root, instance) -> None:
    checks = {"row_count": [2, None], "freshness": {"days": 1, "hours": 2}, "constraints": False}
    uri = str(root / "raw" / "flights")
    defs = load(sandbox, DeltaTableComponent, key="a", uri=uri, checks=checks)
    job = defs.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=instance, run_config=QUIET)
    passed = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert passed == {"delta_row_count": False, "delta_freshness": True}


def test_scaffolding_without_an_option_names_it(sandbox) -> None:
    with pytest.raises(click.UsageError, match=r"--uri is missing\. Location of the table"):
        sandbox.scaffold_component(DeltaTableComponent, "here", scaffold_params={})


class OwnLakeComponent(DeltaLakeComponent):
    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        return super().get_asset_spec(spec).merge_attributes(tags={"layer": spec.key.path[0]})


@pytest.mark.parametrize("observe", [True, False])
def test_assets_are_translated_before_they_are_defined(
    sandbox, root, observe, tmp_path, monkeypatch
) -> None:
    state = tmp_path / "state"
    translation = {"key": "lake/{{ spec.key.path[-1] }}", "description": "At {{ uri }}"}
    attributes = {"root": str(root), "observe": observe, "translation": translation}
    attributes |= {"checks": {"row_count": [1, None]}, "sensor": {"name": "s", "target": "*"}}
    monkeypatch.setattr(dagster_delta, "OwnLakeComponent", OwnLakeComponent, raising=False)
    path = declare(sandbox, OwnLakeComponent, attributes, {"root": "r"})
    with sandbox.load_component_and_build_defs(path) as (component, _):
        component.write_state_to_path(state)
        defs = component.build_defs_from_state(None, state)
    specs = {each.key.to_user_string(): each for each in defs.resolve_all_asset_specs()}
    assert set(specs) == {"lake/flights", "lake/odd-name"}
    assert specs["lake/flights"].description == f"At {root}/raw/flights"
    assert specs["lake/flights"].tags["layer"] == "raw"
    checks = defs.resolve_asset_graph().asset_check_keys
    assert {each.asset_key for each in checks} == set(map(dg.AssetKey.from_user_string, specs))
    if observe:
        with dg.DagsterInstance.ephemeral() as instance:
            job = defs.resolve_implicit_global_asset_job_def()
            result = job.execute_in_process(instance=instance, run_config=QUIET)
            observed = {each.asset_key.path[-1] for each in result.get_asset_observation_events()}
        assert observed == {"flights", "odd-name"}


@dg.asset(
    key_prefix=["raw"],
    metadata={"table_properties": {"delta.enableChangeDataFeed": "true"}, "mode": "append"},
)
def numbers(context) -> pa.Table:
    start = int(context.run.tags.get("start", "0"))
    return pa.table({"id": [start, start + 1], "day": ["d", "e"]})


def only_days_e(changes: pa.Table) -> pa.Table:
    """Imported by its path."""
    return changes.filter(pc.equal(changes["day"], "e"))


UPSTREAM = {"upstream": "raw/x"}
POSITIVE = {"name": "positive", "condition": "id > 1", "on_violation": "quarantine"}


@pytest.mark.parametrize("checks", [None, {"unique": ["id"], "constraints": False}])
def test_what_is_expected_of_a_declared_asset_is_among_its_checks(
    sandbox, tmp_path, instance, checks
) -> None:
    (tmp_path / "in.csv").write_text("id\n1\n2\n3\n")
    asset = {"key": "raw/ids", "metadata": {"expectations": [POSITIVE]}}
    source = {"source": str(tmp_path / "*.csv"), "columns": {"id": "BIGINT"}}
    further = {} if checks is None else {"checks": checks}
    loaded = load(sandbox, DeltaIngestionComponent, asset=asset, **source, **further)
    manager = DeltaIOManager(root_uri=str(tmp_path / "lake"))
    defs = dg.Definitions.merge(loaded, dg.Definitions(resources={"io_manager": manager}))
    job = defs.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=instance, run_config=QUIET)
    found = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert found == {"positive": False} | ({} if checks is None else {"delta_unique": True})
    known = {key.name for each in defs.asset_checks or () for key in each.check_keys}
    assert known == set(found)
    assert stored_rows(str(tmp_path / "lake/raw/ids"), columns=["id"]) == [{"id": 2}, {"id": 3}]


def test_change_events_of_files_become_a_declared_history(sandbox, tmp_path, instance) -> None:
    events = {
        "merge_type": "auto_cdc",
        "keys": ["id"],
        "sequence_by": "seq",
        "stored_as_scd_type": 2,
        "apply_as_deletes": "op = 'D'",
        "except_column_list": ["op", "seq"],
    }
    loaded = load(
        sandbox,
        DeltaIngestionComponent,
        asset={"key": "raw/people", "metadata": {"merge_config": events}},
        source=str(tmp_path / "*.csv"),
        columns={"id": "BIGINT", "name": "STRING", "op": "STRING", "seq": "BIGINT"},
        mode="auto_cdc",
    )
    manager = DeltaIOManager(root_uri=str(tmp_path / "lake"))
    defs = dg.Definitions.merge(loaded, dg.Definitions(resources={"io_manager": manager}))
    job = defs.resolve_implicit_global_asset_job_def()
    for number, lines in enumerate(("1,a,U,1\n1,c,U,3\n2,b,U,1\n2,b,D,4", "1,late,U,2")):
        (tmp_path / f"{number}.csv").write_text(f"id,name,op,seq\n{lines}\n")
        assert job.execute_in_process(instance=instance, run_config=QUIET).success
    rows = stored_rows(str(tmp_path / "lake/raw/people"))
    assert sorted((row["name"], row["__START_AT"], row["__END_AT"]) for row in rows) == [
        ("a", 1, 2),
        ("b", 1, 4),
        ("c", 3, None),
        ("late", 2, 3),
    ]


def test_queries_and_incremental_assets_are_declared(sandbox, root, instance) -> None:
    query = {
        "asset": {"key": "reports/total", "group_name": "reports", "kinds": ["own"]},
        "upstream": {"numbers": "raw/numbers"},
        "in_table_pool": True,
    }
    path = declare(sandbox, DeltaSqlComponent, {**query, "sql_file": "total.sql"}, UPSTREAM)
    (path / "total.sql").write_text("SELECT count(*) AS n, sum(id) AS total FROM {numbers}")
    with sandbox.load_component_and_build_defs(path) as (_, total):
        pass
    feed = {"upstream": "raw/numbers", "keys": ["id"]}
    parts = []
    for key, further in (
        ("copy", {"lineage": False, "upstream_partition_expr": "day"}),
        ("days_e", {"function": f"{__name__}.only_days_e"}),
    ):
        attributes = {**feed, **further, "asset": {"key": key}}
        parts.append(declare(sandbox, DeltaChangeFeedComponent, attributes, UPSTREAM))
    loaded = []
    for each in parts:
        with sandbox.load_component_and_build_defs(each) as (_, defs):
            loaded.append(defs)
    manager = DeltaIOManager(root_uri=str(root / "own"))
    base = dg.Definitions(assets=[numbers], resources={"io_manager": manager})
    defs = dg.Definitions.merge(base, total, *loaded)
    reported = defs.resolve_assets_def(dg.AssetKey(["reports", "total"]))
    (spec,) = reported.specs
    assert (spec.group_name, spec.kinds) == ("reports", {"deltalake", "sql", "duckdb", "own"})
    assert reported.op.pool == "delta/reports/total"
    job = defs.resolve_implicit_global_asset_job_def()
    for start in (0, 10):
        result = job.execute_in_process(
            instance=instance, run_config=QUIET, tags={"start": str(start)}
        )
        assert result.success
    rows = {
        name: DeltaTable(str(root / "own" / schema / name)).snapshot().scan().to_arrow()
        for schema, name in (("reports", "total"), ("public", "copy"), ("public", "days_e"))
    }
    assert rows["total"].to_pylist() == [{"n": 4, "total": 22}]
    assert sorted(rows["copy"]["id"].to_pylist()) == [0, 1, 10, 11]
    assert sorted(rows["days_e"]["id"].to_pylist()) == [1, 11]
    with_lineage = {
        event.materialization.asset_key.to_user_string()
        for event in result.get_asset_materialization_events()
        if "dagster/column_lineage" in event.materialization.metadata
    }
    assert with_lineage == {"reports/total", "days_e"}


@pytest.mark.parametrize(
    ("component", "attributes", "said"),
    [
        (DeltaSqlComponent, {"upstream": {"a": "b"}}, "needs either sql or sql_file"),
        (DeltaSqlComponent, {"upstream": {"a": "b"}, "sql_file": "no.sql"}, "no.sql"),
        (
            DeltaChangeFeedComponent,
            {"upstream": "b", "keys": ["id"], "function": "no.such"},
            "no.such",
        ),
        (DeltaChangeFeedComponent, {"upstream": "b"}, "takes keys"),
    ],
)
def test_computed_assets_without_sense_are_refused(sandbox, component, attributes, said) -> None:
    path = declare(sandbox, component, {"asset": {"key": "a"}, **attributes}, UPSTREAM)
    with pytest.raises(Exception) as caught, sandbox.load_component_and_build_defs(path):
        pass
    assert said in f"{caught.value}\n{library_error(caught.value)}"


def test_files_are_ingested_as_declared(sandbox, tmp_path, instance) -> None:
    attributes = {
        "asset": {"key": "raw/flights", "group_name": "raw"},
        "source": f"{tmp_path}/in/*.csv",
        "mode": "merge",
        "keys": ["id"],
        "columns": {"id": "BIGINT", "code": "STRING"},
        "sensor": {"default_status": "RUNNING"},
    }
    path = declare(sandbox, DeltaIngestionComponent, attributes, {"source": "s"})
    with sandbox.load_component_and_build_defs(path) as (_, loaded):
        pass
    manager = DeltaIOManager(root_uri=str(tmp_path / "lake"))
    defs = dg.Definitions.merge(loaded, dg.Definitions(resources={"io_manager": manager}))
    sensor = defs.get_sensor_def("raw__flights_files")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    (tmp_path / "in").mkdir()
    job = defs.resolve_implicit_global_asset_job_def()
    for name, text in (("a.csv", "id,code\n1,01\n"), ("b.csv", "id,code\n1,02\n2,03\n")):
        (tmp_path / "in" / name).write_text(text)
        assert isinstance(tick(defs, "raw__flights_files", instance), dg.RunRequest)
        assert job.execute_in_process(instance=instance, run_config=QUIET).success
    found = deltalake.DeltaTable(str(tmp_path / "lake/raw/flights")).to_pyarrow_table()
    assert sorted(found.to_pylist(), key=str) == [
        {"id": 1, "code": "02"},
        {"id": 2, "code": "03"},
    ]


def test_freshness_follows_the_commits_that_a_sensor_reports(sandbox, root, instance) -> None:
    uri = str(root / "raw" / "flights")
    windows = "fail_window=datetime.timedelta(hours=24), warn_window=datetime.timedelta(hours=12)"
    policy = f"{{{{ dg.FreshnessPolicy.time_window({windows}) }}}}"
    attributes = {"key": "a", "uri": uri, "freshness_policy": policy}
    assert "observe: false" in refusal(sandbox, DeltaTableComponent, **attributes)
    sensor = {"name": "s", "start_from": "earliest"}
    defs = load(sandbox, DeltaTableComponent, **attributes, observe=False, sensor=sensor)
    (spec,) = defs.resolve_all_asset_specs()
    assert spec.freshness_policy == dg.FreshnessPolicy.time_window(
        fail_window=dt.timedelta(hours=24), warn_window=dt.timedelta(hours=12)
    )
    reported = tick(defs, "s", instance).asset_events
    assert {type(each) for each in reported} == {dg.AssetMaterialization}


def test_secrets_come_from_the_environment_and_show_nowhere(sandbox, monkeypatch) -> None:
    monkeypatch.setenv("LAKE_SECRET", "1e77")
    attributes = {
        "key": "a",
        "uri": "s3://lake/a",
        "storage_options": {
            "provider": "s3",
            "secret_access_key": "{{ env.LAKE_SECRET }}",
            "region": "1e5",
            "skip_signature": "{{ 1 == 2 }}",
            "extra": {"max_attempts": 5},
        },
    }
    path = declare(sandbox, DeltaTableComponent, attributes, {"uri": "u"})
    with sandbox.load_component_and_build_defs(path) as (component, defs):
        options = component.storage_options
        assert isinstance(options, S3StorageOptions)
        assert options.secret_access_key == "1e77"
        assert (options.region, options.extra) == ("1e5", {"max_attempts": 5})
        assert options.skip_signature is False
        assert "1e77" not in repr(component)
        (spec,) = defs.resolve_all_asset_specs()
        assert "1e77" not in repr(spec)


PROJECT = """
[project]
name = "lakehouse"
version = "0.1"
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "lakehouse"
"""
DEFINITIONS = """
from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    """An empty project of `dg`."""
    package = tmp_path / "src" / "lakehouse"
    (package / "defs").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").touch()
    (package / "definitions.py").write_text(DEFINITIONS)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv("DG_CLI_CONFIG", str(tmp_path / "dg.toml"))
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}")
    return tmp_path


def run_dg(project: Path, *arguments: str) -> tuple[int, str]:
    """Exit code of the command and what it says."""
    command = [str(Path(sys.executable).with_name("dg")), *arguments]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.exhaustive
def test_dg_scaffolds_checks_and_lists_a_project(project, root) -> None:
    kind = "dagster_delta.DeltaLakeComponent"
    code, said = run_dg(project, "scaffold", "defs", kind, "lake", "--root", str(root))
    assert code == 0, said
    code, said = run_dg(project, "list", "defs", "--json")
    assert code == 0, said
    keys = [each["asset_key"] for each in json.loads(said)["assets"]]
    assert keys == ["raw/flights", "scratch/odd-name"]

    file = project / "src" / "lakehouse" / "defs" / "lake" / "defs.yaml"
    kind = "dagster_delta.DeltaIngestionComponent"
    code, said = run_dg(project, "scaffold", "defs", kind, "landing", "--source", "x")
    assert code == 0, said
    ingestion = project / "src" / "lakehouse" / "defs" / "landing" / "defs.yaml"
    ingestion.write_text(ingestion.read_text() + "  delimitr: ;\n")
    code, said = run_dg(project, "check", "yaml")
    assert code == 1
    assert "'delimitr' was unexpected" in said
    ingestion.unlink()
    file.write_text(file.read_text() + "  exclud: [scratch/*]\n")
    code, said = run_dg(project, "check", "defs")
    assert code == 1
    assert "defs.yaml:5" in said
    assert "'exclud' was unexpected" in said


def test_failing_rows_of_declared_checks_are_shown_with_masks(sandbox, root, instance) -> None:
    uri = str(root / "raw" / "people")
    DeltaTable(uri, must_exist=False).append(pa.table({"email": ["a@x", "a@x"]}))
    checks = {"constraints": False, "unique": ["email"], "masked_columns": ["email"]}
    defs = load(sandbox, DeltaTableComponent, key="people", uri=uri, checks=checks)
    selection = dg.AssetSelection.all_asset_checks()
    defs = dg.Definitions.merge(
        defs, dg.Definitions(jobs=[dg.define_asset_job("check", selection=selection)])
    )
    job = defs.resolve_job_def("check")
    result = job.execute_in_process(instance=instance, run_config=QUIET)
    (found,) = result.get_asset_check_evaluations()
    failing = found.metadata["delta/failing_rows"]
    assert isinstance(failing, dg.TableMetadataValue)
    (row,) = failing.records
    assert dict(row.data) == {"email": "•••", "rows": 2}


def test_a_maintenance_sensor_and_its_job_are_declared_in_yaml(sandbox, tmp_path) -> None:
    table = DeltaTable(str(tmp_path / "lake" / "a"), must_exist=False)
    for _ in range(5):
        table.append(pa.table({"id": [1]}))
    attributes = {"name": "upkeep", "root": str(tmp_path / "lake"), "small_files": 3}
    defs = load(sandbox, DeltaMaintenanceSensorComponent, **attributes, deleted_rows=None)
    with dg.instance_for_test() as instance:
        context = dg.build_sensor_context(instance=instance)
        result = defs.resolve_sensor_def("upkeep").evaluate_tick(context)
    (request,) = result.run_requests or ()
    assert request.tags["delta/maintained_table"] == "a"
    assert defs.resolve_job_def("upkeep_job")
