"""External tables as observable assets: what they observe, and what that sets off."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import deltalake
import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.checks.asset_checks import delta_asset_checks
from dagster_delta.orchestration.definition_checks import check_definitions
from dagster_delta.orchestration.maintenance.jobs import delta_maintenance_job, delta_restore_job
from dagster_delta.orchestration.schema_changes import delta_schema_change_job
from dagster_delta.orchestration.sensors import observations
from dagster_delta.orchestration.sensors.observations import observable_delta_asset
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage import open_store
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.testing.faulty_store import FaultyStore
from tests.orchestration.conftest import QUIET, plain

KEY = dg.AssetKey(["raw", "events"])


def append(uri: str, *ids: int) -> None:
    deltalake.write_deltalake(uri, pa.table({"id": list(ids)}), mode="append")


def compact(uri: str) -> None:
    deltalake.DeltaTable(uri).optimize.compact()


@pytest.fixture
def uri(tmp_path: Path) -> str:
    location = str(tmp_path / "events")
    append(location, 1)
    append(location, 2)
    return location


def observe(uri: str, instance: dg.DagsterInstance) -> dg.AssetObservation:
    asset = observable_delta_asset(KEY, uri)
    job = dg.Definitions(
        assets=[asset], jobs=[dg.define_asset_job("observe_it", selection=[KEY])]
    ).resolve_job_def("observe_it")
    result = job.execute_in_process(instance=instance, run_config=QUIET)
    (one,) = result.asset_observations_for_node("raw__events")
    return one


def version_of(observation: dg.AssetObservation) -> int:
    table_id, version = str(observation.data_version).split(":")
    assert table_id
    return int(version)


def test_the_data_version_is_the_last_commit_that_changed_rows(uri, instance) -> None:
    first = observe(uri, instance)
    assert first.data_version == f"{DeltaTable(uri).snapshot().metadata.id}:1"
    assert plain(first.metadata)["delta/operation"] == "WRITE"
    compact(uri)
    deltalake.DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "false"})
    after_maintenance = observe(uri, instance)
    assert after_maintenance.data_version == first.data_version
    assert plain(after_maintenance.metadata)["delta/version"] == 3
    append(uri, 3)
    assert version_of(observe(uri, instance)) == 4


def test_tables_whose_keys_look_alike_are_observed_side_by_side(uri, instance) -> None:
    keys = [["a-b"], ["a_b"], ["a.b"], ["a", "b"], ["a__b"]]
    defs = dg.Definitions(assets=[observable_delta_asset(key, uri) for key in keys])
    job = defs.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=instance, run_config=QUIET)
    observed = {each.asset_key for each in result.get_asset_observation_events()}
    assert observed == set(map(dg.AssetKey, keys))


def test_a_first_look_sees_through_maintenance(uri, instance) -> None:
    compact(uri)
    compact(uri)
    assert version_of(observe(uri, instance)) == 1


def test_an_observation_reads_only_what_came_since_the_one_before(
    uri, instance, monkeypatch
) -> None:
    store = FaultyStore(open_store(uri))
    monkeypatch.setattr(observations, "open_store", lambda *_: store)
    observe(uri, instance)
    store.calls.clear()
    observe(uri, instance)
    assert dict(store.calls) == {"list_from": 1}
    append(uri, 3)
    store.calls.clear()
    assert version_of(observe(uri, instance)) == 2
    # The log is listed to see that it has grown, and to open the table for its columns and totals.
    assert store.calls["list_from"] == 2


def test_the_columns_of_the_asset_are_read_at_load_time_if_wanted(uri, tmp_path) -> None:
    def columns(location: str, **options: Any) -> Any:
        (spec,) = observable_delta_asset(KEY, location, **options).specs
        return spec.metadata.get("dagster/column_schema")

    assert columns(uri) is None
    assert columns(str(tmp_path / "later"), columns=True) is None
    assert [each.name for each in columns(uri, columns=True).schema.columns] == ["id"]


def test_an_observation_shows_the_table_and_not_a_cursor(uri, instance) -> None:
    def shown() -> dict[str, Any]:
        return plain(observe(uri, instance).metadata)

    compact(uri)
    first = shown()
    assert [each.name for each in first["dagster/column_schema"].columns] == ["id"]
    assert (first["dagster/row_count"], first["delta/live_files"]) == (2, 1)
    assert first["dagster/size_bytes"] == DeltaTable(uri).snapshot().size_bytes
    assert (first["delta/version"], first["delta/operation"]) == (2, "WRITE")
    assert first["delta/details"]["last_change"] == 1
    assert "| 2 |" in first["delta/history"]
    assert not [key for key in first if "cursor" in key]
    assert next(iter(first)) == "delta/version"
    # The UI shows only the latest observation.
    assert shown() == first
    deltalake.DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "false"})
    after_maintenance = shown()
    assert after_maintenance["delta/version"] == 3
    assert after_maintenance["delta/operation"] == "WRITE"
    assert after_maintenance["delta/details"]["last_change"] == 1
    append(uri, 3, 4)
    assert shown()["dagster/row_count"] == 4


def test_another_table_in_the_place_is_another_data_version(uri, instance) -> None:
    first = observe(uri, instance)
    shutil.rmtree(uri)
    append(uri, 1)
    append(uri, 2)
    second = observe(uri, instance)
    assert version_of(second) == version_of(first) == 1
    assert second.data_version != first.data_version


def test_a_log_that_was_set_back_and_has_grown_is_observed_from_its_last_change(
    uri, instance, tmp_path
) -> None:
    copy = shutil.copytree(uri, tmp_path / "copy")
    append(uri, 3)
    observe(uri, instance)
    shutil.rmtree(uri)
    shutil.copytree(copy, uri)
    for value in ("false", "true"):
        deltalake.DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": value})
    after = observe(uri, instance)
    assert (version_of(after), plain(after.metadata)["delta/version"]) == (1, 3)
    assert plain(after.metadata)["delta/details"]["last_change"] == 1


def test_a_log_that_was_cleaned_up_unread_is_observed_from_its_end(uri, instance) -> None:
    observe(uri, instance)
    for number in range(4):
        append(uri, number)
    deltalake.DeltaTable(uri).create_checkpoint()
    for file in sorted((Path(uri) / "_delta_log").glob("*.json"))[:4]:
        file.unlink()
    assert version_of(observe(uri, instance)) == 5


@pytest.mark.parametrize(
    "condition",
    [
        dg.AutomationCondition.eager(),
        dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed()),
    ],
    ids=["eager", "data_version_changed"],
)
def test_automation_fires_on_commits_and_not_on_maintenance(uri, instance, condition) -> None:
    source = observable_delta_asset(KEY, uri)

    @dg.asset(deps=[source], automation_condition=condition)
    def downstream() -> None: ...

    defs = dg.Definitions(assets=[source, downstream])
    observe(uri, instance)
    cursor = dg.evaluate_automation_conditions(defs, instance).cursor

    def requested() -> int:
        nonlocal cursor
        evaluated = dg.evaluate_automation_conditions(defs, instance, cursor=cursor)
        cursor = evaluated.cursor
        return evaluated.get_num_requested(downstream.key)

    requested()
    dg.materialize([source, downstream], selection=[downstream], instance=instance)
    assert requested() == 0
    compact(uri)
    observe(uri, instance)
    assert requested() == 0
    append(uri, 3)
    observe(uri, instance)
    assert requested() == 1
    assert requested() == 0


@pytest.mark.parametrize("job", ["maintenance", "schema change", "restore"])
def test_jobs_of_an_observed_table_set_off_downstream_only_if_rows_change(
    uri, instance, job
) -> None:
    source = observable_delta_asset(KEY, uri)

    @dg.asset(deps=[source], automation_condition=dg.AutomationCondition.eager())
    def downstream() -> None: ...

    jobs: dict[str, tuple[dg.JobDefinition, dict[str, Any]]] = {
        "maintenance": (delta_maintenance_job(assets=[source]), {}),
        "schema change": (
            delta_schema_change_job(assets=[source]),
            {"statement": "ADD COLUMN name STRING", "dry_run": False},
        ),
        "restore": (delta_restore_job(assets=[source]), {"version": 0, "dry_run": False}),
    }
    definition, config = jobs[job]
    defs = dg.Definitions(assets=[source, downstream])
    observe(uri, instance)
    cursor = dg.evaluate_automation_conditions(defs, instance).cursor

    def requested() -> int:
        nonlocal cursor
        evaluated = dg.evaluate_automation_conditions(defs, instance, cursor=cursor)
        cursor = evaluated.cursor
        return evaluated.get_num_requested(downstream.key)

    requested()
    dg.materialize([source, downstream], selection=[downstream], instance=instance)
    assert requested() == 0
    assert definition.execute_in_process(instance=instance, run_config=config).success
    assert DeltaTable(uri).version() > 1
    assert requested() == (1 if job == "restore" else 0)
    observe(uri, instance)
    assert requested() == 0


def test_maintenance_of_a_table_whose_last_change_was_cleaned_up_is_no_change(
    uri, instance
) -> None:
    first = observe(uri, instance)
    source = observable_delta_asset(KEY, uri)
    job = delta_maintenance_job(assets=[source])
    config = {"checkpoint": {"enabled": True}}
    assert job.execute_in_process(instance=instance, run_config=config).success
    for version in range(DeltaTable(uri).version()):
        (Path(uri) / commit_path(version)).unlink()
    assert observe(uri, instance).data_version == first.data_version


def test_its_own_condition_says_when_to_observe(uri, instance) -> None:
    every_hour = dg.AutomationCondition.on_cron("0 * * * *")
    source = observable_delta_asset(KEY, uri, automation_condition=every_hour)
    defs = dg.Definitions(assets=[source])
    (spec,) = defs.resolve_all_asset_specs()
    assert spec.kinds == {"deltalake"}
    requested = []
    cursor = None
    for minute in (50, 55, 65, 70):
        now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=minute)
        evaluated = dg.evaluate_automation_conditions(
            defs, instance, evaluation_time=now, cursor=cursor
        )
        cursor = evaluated.cursor
        requested.append(evaluated.get_num_requested(KEY))
    assert requested == [0, 0, 1, 0]


POLICY = dg.FreshnessPolicy.time_window(fail_window=dt.timedelta(hours=24))


def test_a_freshness_policy_that_dagster_never_evaluates_is_refused(uri) -> None:
    with pytest.raises(InvalidArgument, match="raw/events has a freshness_policy, which Dagster"):
        observable_delta_asset(KEY, uri, freshness_policy=POLICY)
    given_later = observable_delta_asset(KEY, uri).map_asset_specs(
        lambda spec: spec.replace_attributes(freshness_policy=POLICY)
    )
    with pytest.raises(InvalidArgument, match="raw/events has a freshness_policy, which Dagster"):
        check_definitions(dg.Definitions([given_later]))


def test_a_schedule_runs_the_freshness_check_of_an_observed_table(uri, instance) -> None:
    orders = observable_delta_asset(KEY, uri)
    checks = delta_asset_checks(orders, constraints=False, freshness=dt.timedelta(0))
    schedule = dg.ScheduleDefinition(
        "fresh", cron_schedule="0 * * * *", target=dg.AssetSelection.checks(*checks)
    )
    defs = check_definitions(dg.Definitions([orders], asset_checks=checks, schedules=[schedule]))
    job = defs.resolve_job_def(schedule.job_name)
    result = job.execute_in_process(instance=instance, run_config=QUIET)
    (evaluation,) = result.get_asset_check_evaluations()
    assert (evaluation.check_name, evaluation.passed) == ("delta_freshness", False)
    assert not result.get_asset_observation_events()
