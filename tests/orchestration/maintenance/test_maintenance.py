"""Maintenance jobs and schedules: what a run does, shows, and does not make others do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument, TableAlreadyExists
from dagster_delta.orchestration.io.io_manager import DeltaIOManager
from dagster_delta.orchestration.maintenance.jobs import (
    delta_clone_job,
    delta_maintenance_job,
    delta_maintenance_schedule,
    delta_restore_job,
    last_passed_version,
)
from dagster_delta.orchestration.maintenance.maintained_tables import delta_table_pool
from dagster_delta.orchestration.maintenance.operations import (
    MAINTENANCE_POOL,
    DeltaMaintenanceConfig,
    OptimizeConfig,
    VacuumConfig,
    checkpoint_op,
    clean_log_op,
    clone_op,
    history_op,
    optimize_op,
    restore_op,
    vacuum_op,
)
from dagster_delta.orchestration.schema_changes import delta_schema_change_job
from dagster_delta.orchestration.sensors.observations import observable_delta_asset
from dagster_delta.table.delta_table import DeltaTable
from tests.orchestration.conftest import Lake, library_error, plain
from tests.table.operations.test_optimize import content


@dg.asset(key_prefix=["raw"], metadata={"mode": "append"})
def flights() -> pa.Table:
    return pa.table({"id": [1, 2, 3]})


@dg.asset(key_prefix=["raw"], metadata={"mode": "append", "table_name": "renamed"})
def weather() -> pa.Table:
    return pa.table({"id": [4, 5]})


@dg.asset(deps=[flights], automation_condition=dg.AutomationCondition.eager())
def report() -> None:
    """Runs when the flights change."""


ASSETS = [flights, weather]


def definitions(lake: Lake, jobs: Sequence[Any], **resources: Any) -> dg.Definitions:
    manager = DeltaIOManager(root_uri=str(lake.root))
    return dg.Definitions(
        assets=[*ASSETS, report], jobs=jobs, resources={"io_manager": manager, **resources}
    )


def fill(lake: Lake, times: int = 3) -> None:
    for _ in range(times):
        lake.materialize(*ASSETS)


def run(
    lake: Lake, job: dg.JobDefinition, config: dict[str, Any] | None = None, **options: Any
) -> dg.ExecuteInProcessResult:
    resolved = definitions(lake, [job]).resolve_job_def(job.name)
    return resolved.execute_in_process(run_config=config, instance=lake.instance, **options)


def observations(lake: Lake, *key: str) -> list[dict[str, Any]]:
    found = lake.instance.fetch_observations(dg.AssetKey(key), limit=10).records
    return [plain(each.asset_observation.metadata) for each in found if each.asset_observation]


def test_every_table_is_optimized_and_only_looked_through_for_garbage(lake: Lake) -> None:
    fill(lake)
    before = content(lake.table("flights", "raw"))
    result = run(lake, delta_maintenance_job(assets=ASSETS))
    assert result.success
    for name in ("flights", "renamed"):
        assert lake.table(name, "raw").snapshot().num_files == 1
        assert lake.table(name, "raw").version() == 3
    assert content(lake.table("flights", "raw")) == before


def test_a_job_repairs_and_purges_only_where_that_is_enabled(lake: Lake) -> None:
    fill(lake)
    table = lake.table("flights", "raw")
    table.set_properties({"delta.enableDeletionVectors": "true"})
    table.delete("id = 1")
    lost = table.snapshot().files()["path"][0].as_py()
    os.unlink(os.path.join(table.uri, lost))
    job, off = delta_maintenance_job(assets=[flights]), {"enabled": False}
    repair = {"optimize": off, "vacuum": off, "fsck": {"enabled": True, "dry_run": False}}
    assert run(lake, job, {"optimize": off, "vacuum": off}).success
    assert table.refresh().num_files == 3
    assert run(lake, job, {**repair, "reorg": {"enabled": True}}).success
    snapshot = table.refresh()
    assert (snapshot.num_files, snapshot.num_records) == (1, 4)
    assert not any(snapshot.files()["has_deletion_vector"].to_pylist())
    observed = observations(lake, "raw", "flights")[0]
    assert (observed["delta/fsck_removed_files"], observed["delta/reorg_files_removed"]) == (1, 2)


def test_a_dry_run_of_a_job_writes_nothing_and_says_what_each_step_would_do(lake: Lake) -> None:
    fill(lake)
    table = lake.table("flights", "raw")
    table.set_properties({"delta.enableDeletionVectors": "true"})
    table.delete("id = 1")
    files = sorted(path for path in Path(table.uri).rglob("*"))
    on: dict[str, Any] = {"enabled": True}
    steps = {name: {**on, "dry_run": False} for name in ("fsck", "vacuum", "clean_log")}
    result = run(
        lake,
        delta_maintenance_job(assets=[flights]),
        {"dry_run": True, "optimize": on, "reorg": on, "checkpoint": on, **steps},
    )
    assert result.success
    assert sorted(path for path in Path(table.uri).rglob("*")) == files
    observed = observations(lake, "raw", "flights")[0]
    assert observed["delta/optimize_files_removed"] == table.snapshot().num_files == 3
    assert observed["delta/optimize_bytes_removed"] == table.snapshot().size_bytes
    report = observed["delta/report"]
    for title in ("FSCK", "REORG", "OPTIMIZE", "VACUUM", "CHECKPOINT", "CLEAN LOG"):
        assert f"**{title} (dry run)**" in report
    assert "would rewrite 3 files" in report


def test_one_step_of_a_job_can_be_a_dry_run(lake: Lake) -> None:
    fill(lake)
    job = delta_maintenance_job(assets=[flights], config=DeltaMaintenanceConfig())
    assert run(lake, job, {"optimize": {"dry_run": True}}).success
    assert lake.table("flights", "raw").version() == 2
    assert run(lake, job).success
    assert lake.table("flights", "raw").version() == 3


class OwnRows(dg.ConfigurableResource[Any]):
    """It has no session."""


class OwnSession(dg.ConfigurableResource[Any]):
    """Tells that it was asked for its session, instead of starting one."""

    @property
    def spark_session(self) -> None:
        raise InvalidArgument("the session of the IO manager was asked for")


def test_a_resource_without_a_session_is_refused(lake: Lake) -> None:
    fill(lake, times=1)
    job = delta_maintenance_job(assets=[flights], spark="session")
    resolved = definitions(lake, [job], session=OwnRows()).resolve_job_def(job.name)
    config = {"optimize": {"engine": "spark"}}
    with pytest.raises(Exception) as caught:
        resolved.execute_in_process(run_config=config, instance=lake.instance)
    assert "the resource OwnRows has no spark_session" in str(library_error(caught.value))


@pytest.mark.parametrize("kind", ["maintenance", "schema change"])
def test_the_engine_spark_works_in_the_session_of_the_io_manager(lake: Lake, kind: str) -> None:
    fill(lake, times=1)
    job = delta_maintenance_job(assets=ASSETS)
    config: dict[str, Any] = {"optimize": {"engine": "spark"}}
    if kind == "schema change":
        job = delta_schema_change_job(assets=[flights])
        config = {"engine": "spark", "statement": "ADD COLUMN n INT"}
    manager = DeltaIOManager(root_uri=str(lake.root), spark=OwnSession())
    resolved = dg.Definitions(
        assets=ASSETS, jobs=[job], resources={"io_manager": manager}
    ).resolve_job_def(job.name)
    with pytest.raises(Exception) as raised:  # of Dagster, and wrapped
        resolved.execute_in_process(run_config=config, instance=lake.instance)
    assert str(library_error(raised.value)) == "the session of the IO manager was asked for"


def test_jobs_and_schedules_over_the_same_assets_stand_in_one_code_location() -> None:
    @dg.asset
    def unprefixed() -> pa.Table:
        return pa.table({"id": [1]})

    assets = [unprefixed, flights]
    definitions = dg.Definitions(
        assets=assets,
        jobs=[
            delta_maintenance_job(assets=assets),
            delta_schema_change_job(assets=assets),
            delta_schema_change_job("change_flights", assets=[flights]),
            delta_restore_job(assets=assets),
            delta_restore_job("restore_flights", assets=[flights]),
        ],
        schedules=[delta_maintenance_schedule("nightly", "0 3 * * *", assets=assets)],
        resources={"io_manager": DeltaIOManager(root_uri="memory://lake")},
    )
    dg.Definitions.validate_loadable(definitions)
    names = {each.name for each in definitions.resolve_all_job_defs()}
    assert {"delta_maintenance", "nightly_job", "restore_flights", "change_flights"} <= names


def test_the_run_shows_before_and_after(lake: Lake) -> None:
    fill(lake)
    result = run(lake, delta_maintenance_job(assets=ASSETS))
    (event,) = [each for each in result.get_step_success_events() if each.step_key == "raw_flights"]
    assert event is not None
    (shown,) = observations(lake, "raw", "flights")
    assert shown["delta/optimize_files_removed"] == 3
    assert shown["delta/optimize_files_added"] == 1
    assert shown["delta/live_files"] == 1
    assert shown["delta/vacuum_dry_run"] is True
    assert "| files | 3 | 1 |" in shown["delta/report"]
    assert "| rows | 9 | 9 |" in shown["delta/report"]
    assert "**VACUUM (dry run)**: would delete 0 files" in shown["delta/report"]


def test_the_commit_names_the_run(lake: Lake) -> None:
    fill(lake)
    result = run(lake, delta_maintenance_job(assets=ASSETS))
    info = lake.table("flights", "raw").history(1)[0].commit_info
    assert info["operation"] == "OPTIMIZE"
    assert info["dagsterRunId"] == result.run_id
    assert info["dagsterAsset"] == "raw/flights"


def test_nothing_downstream_runs_because_of_it(lake: Lake) -> None:
    fill(lake)
    lake.materialize(report, *ASSETS)
    defs = definitions(lake, [])

    def requested(cursor: Any) -> Any:
        return dg.evaluate_automation_conditions(defs, lake.instance, cursor=cursor)

    settled = requested(None)
    settled = requested(settled.cursor)
    assert settled.total_requested == 0
    run(lake, delta_maintenance_job(assets=ASSETS))
    after = requested(settled.cursor)
    assert after.total_requested == 0
    lake.materialize(*ASSETS)
    assert requested(after.cursor).total_requested == 1


def test_a_run_may_do_less_or_other_things(lake: Lake) -> None:
    fill(lake)
    config = {
        "tables": ["raw/flights"],
        "optimize": {"enabled": False},
        "vacuum": {"enabled": False},
        "checkpoint": {"enabled": True},
    }
    run(lake, delta_maintenance_job(assets=ASSETS), config)
    assert lake.table("flights", "raw").health().checkpoint_version == 2
    assert lake.table("renamed", "raw").health().checkpoint_version is None
    assert lake.table("flights", "raw").snapshot().num_files == 3


def test_only_selected_tables_start_a_step(lake: Lake) -> None:
    fill(lake)
    job = delta_maintenance_job(assets=ASSETS)
    result = run(lake, job, {"tables": ["raw/flights"]})
    started = {each.step_key for each in result.all_node_events if each.is_step_start}
    skipped = {each.step_key for each in result.all_node_events if each.is_step_skipped}
    assert started == {"select_tables", "raw_flights"}
    assert skipped == {"raw_weather"}
    everything = run(lake, job)
    assert {each.step_key for each in everything.all_node_events if each.is_step_start} == {
        "select_tables",
        "raw_flights",
        "raw_weather",
    }


def test_a_vacuum_deletes_only_when_told_to(lake: Lake) -> None:
    fill(lake)
    job = delta_maintenance_job(assets=[flights])
    now = {"retention_hours": 0, "enforce_retention": False}
    run(lake, job, {"vacuum": now})
    directory = lake.root / "raw" / "flights"
    assert len(list(directory.glob("*.parquet"))) == 4
    run(lake, job, {"vacuum": {**now, "dry_run": False}})
    assert len(list(directory.glob("*.parquet"))) == 1
    assert lake.table("flights", "raw").snapshot().scan().count() == 9


def test_a_retention_that_is_too_short_fails_the_run(lake: Lake) -> None:
    fill(lake)
    with pytest.raises(Exception) as caught:
        run(lake, delta_maintenance_job(assets=ASSETS), {"vacuum": {"retention_hours": 1}})
    assert isinstance(library_error(caught.value), InvalidArgument)


def test_the_launchpad_shows_the_defaults_of_the_job(lake: Lake) -> None:
    fill(lake)
    config = DeltaMaintenanceConfig(
        optimize=OptimizeConfig(enabled=False),
        vacuum=VacuumConfig(dry_run=False, retention_hours=0, enforce_retention=False),
    )
    job = delta_maintenance_job(assets=ASSETS, config=config)
    lake.table("flights", "raw").optimize()
    run(lake, job)
    assert lake.table("renamed", "raw").snapshot().num_files == 2 + 1
    assert len(list((lake.root / "raw" / "flights").glob("*.parquet"))) == 1


def test_the_launchpad_names_the_tables_that_a_job_has() -> None:
    for job, field in (
        (delta_maintenance_job(assets=ASSETS), "tables"),
        (delta_schema_change_job(assets=ASSETS), "table"),
        (delta_restore_job(assets=ASSETS), "table"),
    ):
        asked: Any = job.run_config_schema.config_type
        told = asked.fields[field].description
        assert told.endswith(" There are: raw/flights, raw/weather.")
        choice = asked.fields[field].config_type
        while not hasattr(choice, "config_values"):
            choice = choice.inner_type
        assert choice.config_values == ["raw/flights", "raw/weather"]
        assert asked.fields[field].is_required == (field == "table")


def test_a_schema_change_of_no_table_is_refused(lake: Lake) -> None:
    fill(lake)
    job = delta_schema_change_job(assets=ASSETS)
    with pytest.raises(dg.DagsterInvalidConfigError, match='Missing required config entry "table"'):
        run(lake, job, {"statement": "ADD COLUMN n INT"})
    fields: Any = job.run_config_schema.config_type
    assert list(fields.fields)[:3] == ["table", "statement", "dry_run"]


def test_the_launchpad_fills_in_the_only_table(lake: Lake) -> None:
    fill(lake)
    for job, config in (
        (delta_schema_change_job(assets=[flights]), {"statement": "ADD COLUMN n INT"}),
        (delta_restore_job(assets=[flights]), {"version": 0}),
        (delta_maintenance_job(assets=[flights]), {"tables": ["raw/flights"]}),
    ):
        assert run(lake, job, config).success


def test_an_asset_without_a_table_is_passed_over(lake: Lake) -> None:
    lake.materialize(flights)
    assert run(lake, delta_maintenance_job(assets=ASSETS)).success
    assert observations(lake, "raw", "weather") == []


def test_a_selection_narrows_the_assets(lake: Lake) -> None:
    fill(lake)
    job = delta_maintenance_job(assets=ASSETS, selection=dg.AssetSelection.assets(flights))
    assert [each.name for each in job.graph.nodes] == ["raw_flights"]
    run(lake, job)
    assert lake.table("renamed", "raw").snapshot().num_files == 3


def test_tables_of_others_are_named_by_their_location(lake: Lake) -> None:
    fill(lake)
    uri = str(lake.root / "raw" / "flights")
    external = observable_delta_asset(["ext", "w"], str(lake.root / "raw" / "renamed"))
    job = delta_maintenance_job(tables={"theirs": uri}, assets=[external])
    assert run(lake, job).success
    assert lake.table("flights", "raw").snapshot().num_files == 1
    assert lake.table("renamed", "raw").snapshot().num_files == 1
    (observed,) = observations(lake, "ext", "w")
    # The page of the asset shows its latest observation.
    assert observed["dagster/row_count"] == 6
    assert [column.name for column in observed["dagster/column_schema"].columns] == ["id"]
    assert observed["dagster/uri"] == str(lake.root / "raw" / "renamed")


def test_what_is_no_table_is_refused_by_name(lake: Lake) -> None:
    with pytest.raises(InvalidArgument, match="no tables"):
        delta_maintenance_job()
    with pytest.raises(InvalidArgument, match="same op name: a_b"):
        delta_maintenance_job(tables={"a/b": "x", "a_b": "y"})
    job = delta_maintenance_job(assets=ASSETS)
    with pytest.raises(Exception) as caught:
        run(lake, job, {"tables": ["raw/fights"]})
    assert "raw/fights" in str(library_error(caught.value))


@pytest.mark.parametrize("kind", ["spec", "source asset", "observed source asset"])
def test_an_external_asset_names_its_io_manager(lake: Lake, kind: str) -> None:
    key = ["raw", "flights"]
    fill(lake, 2)

    @dg.observable_source_asset(key=key, io_manager_key="lake")
    def observed() -> dg.DataVersion:
        return dg.DataVersion("1")

    assets: dict[str, Any] = {
        "spec": dg.AssetSpec(key).with_io_manager_key("lake"),
        "source asset": dg.SourceAsset(key, io_manager_key="lake"),
        "observed source asset": observed,
    }
    job = delta_maintenance_job(assets=[assets[kind]])
    manager = DeltaIOManager(root_uri=str(lake.root))
    defs = dg.Definitions(jobs=[job], resources={"lake": manager})
    defs.resolve_job_def(job.name).execute_in_process(instance=lake.instance)
    assert lake.table("flights", "raw").history(1)[0].operation == "OPTIMIZE"


def test_another_io_manager_is_refused_by_name(lake: Lake) -> None:
    defs = dg.Definitions(
        assets=ASSETS,
        jobs=[delta_maintenance_job(assets=ASSETS)],
        resources={"io_manager": dg.mem_io_manager},
    )
    with pytest.raises(Exception) as caught:
        defs.resolve_job_def("delta_maintenance").execute_in_process(instance=lake.instance)
    assert "not a DeltaIOManager" in str(library_error(caught.value))


def test_a_schedule_brings_its_job_and_its_config(lake: Lake) -> None:
    fill(lake)
    config = DeltaMaintenanceConfig(vacuum=VacuumConfig(enabled=False))
    schedule = delta_maintenance_schedule("nightly", "0 3 * * *", assets=ASSETS, config=config)
    manager = DeltaIOManager(root_uri=str(lake.root))
    defs = dg.Definitions(schedules=[schedule], resources={"io_manager": manager})
    context = dg.build_schedule_context(instance=lake.instance)
    evaluated = schedule.evaluate_tick(context)
    assert evaluated.run_requests is not None
    (request,) = evaluated.run_requests
    job = defs.resolve_job_def("nightly_job")
    result = job.execute_in_process(run_config=request.run_config, instance=lake.instance)
    assert result.success
    assert "delta/vacuum_files" not in observations(lake, "raw", "flights")[0]
    assert lake.table("flights", "raw").snapshot().num_files == 1


def test_a_restore_is_a_dry_run_first_and_a_materialization_then(stored_lake: Lake) -> None:
    lake = stored_lake
    fill(lake)
    job = delta_restore_job(assets=ASSETS)
    planned = run(lake, job, {"table": "raw/flights", "version": 0})
    assert lake.table("flights", "raw").version() == 2
    (output,) = [each for each in planned.all_node_events if each.is_successful_output]
    difference = plain(output.step_output_data.metadata)["delta/difference"]
    assert "| rows | 9 | 3 | -6 |" in difference
    assert "| files | 3 | 1 | -2 |" in difference
    result = run(lake, job, {"table": "raw/flights", "version": 0, "dry_run": False})
    assert lake.table("flights", "raw").snapshot().num_records == 3
    (event,) = result.get_asset_materialization_events()
    assert event.asset_key == dg.AssetKey(["raw", "flights"])
    materialization = event.step_materialization_data.materialization
    table_id = lake.table("flights", "raw").metadata().id
    assert materialization.tags == {"dagster/data_version": f"{table_id}:3"}
    told = plain(materialization.metadata)
    assert "9 rows to 3" in told["delta/report"]
    assert (told["dagster/row_count"], told["dagster/table_name"]) == (3, "raw.flights")
    assert told["dagster/column_schema"].columns
    with pytest.raises(Exception) as caught:
        run(lake, job, {"table": "flights", "version": 0})
    assert "raw/flights" in str(library_error(caught.value))


def test_ops_work_on_the_table_that_their_config_names(lake: Lake) -> None:
    fill(lake)
    uri = str(lake.root / "raw" / "flights")

    @dg.job
    def by_hand() -> None:
        shaped = vacuum_op(start=checkpoint_op(start=optimize_op()))
        copied = clone_op(start=clean_log_op(start=shaped))
        history_op(start=restore_op(start=copied))

    config: dict[str, dict[str, Any]] = {
        "optimize_op": {"uri": uri, "storage_options": {"local": {}}},
        "vacuum_op": {"uri": uri},
        "checkpoint_op": {"uri": uri},
        "clean_log_op": {"uri": uri},
        "clone_op": {"uri": uri, "target": f"{uri}_copy", "deep": False, "dry_run": False},
        "restore_op": {"uri": uri, "version": 1},
        "history_op": {"uri": uri},
    }
    ops = {name: {"config": each} for name, each in config.items()}
    assert by_hand.execute_in_process({"ops": ops}, instance=lake.instance).success
    table = DeltaTable(uri)
    assert table.snapshot().num_files == 1
    assert table.health().checkpoint_version == 3
    assert content(DeltaTable(f"{uri}_copy")) == content(table)


def test_everything_that_changes_a_table_has_one_pool() -> None:
    for build in (delta_maintenance_job, delta_restore_job, delta_clone_job):
        (op,) = build(assets=[flights]).graph.node_defs
        assert isinstance(op, dg.OpDefinition)
        assert op.pool == delta_table_pool(flights.key) == "delta/raw/flights"
    for build in (delta_restore_job, delta_schema_change_job):
        (op,) = build(assets=ASSETS).graph.node_defs
        assert isinstance(op, dg.OpDefinition)
        assert op.pool == MAINTENANCE_POOL
    assert delta_table_pool("my table") == "delta/my_table"


def test_a_clone_is_a_dry_run_first_and_made_then(lake: Lake) -> None:
    fill(lake)
    job = delta_clone_job(assets=ASSETS)
    target = str(lake.root / "copies" / "flights")
    config: dict[str, Any] = {"table": "raw/flights", "target": target}
    assert run(lake, job, config).success
    assert not DeltaTable.is_delta_table(target)
    assert run(lake, job, {**config, "dry_run": False, "version": 1}).success
    made = DeltaTable(target)
    assert made.snapshot().num_records == 6
    assert made.history(1)[0].commit_info["dagsterAsset"] == "raw/flights"
    with pytest.raises(TableAlreadyExists, match="a table is there already"):
        run(lake, job, config)
    with pytest.raises(InvalidArgument, match="a clone lies beside its table"):
        run(lake, job, {**config, "target": lake.table("flights", "raw").uri})
    assert run(lake, job, {**config, "dry_run": False, "replace": True}).success
    assert content(DeltaTable(target)) == content(lake.table("flights", "raw"))
    assert observations(lake, "raw", "flights") == []


def test_the_log_is_cleaned_where_that_is_asked_for(lake: Lake) -> None:
    fill(lake)
    table = lake.table("flights", "raw")
    table.set_properties({"delta.checkpointInterval": "1"})
    long_ago = time.time() - 60 * 24 * 60 * 60
    for each in (lake.root / "raw" / "flights" / "_delta_log").iterdir():
        os.utime(each, (long_ago, long_ago))
    steps: dict[str, Any] = {
        "tables": ["raw/flights"],
        "optimize": {"enabled": False},
        "vacuum": {"enabled": False},
    }
    job = delta_maintenance_job(assets=ASSETS)
    run(lake, job, {**steps, "clean_log": {"enabled": True}})
    run(lake, job, {**steps, "clean_log": {"enabled": True, "dry_run": False}})
    done, told = observations(lake, "raw", "flights")
    assert told["delta/clean_log_dry_run"] is True
    assert told["delta/clean_log_files"] == done["delta/clean_log_files"] > 0
    assert "**CLEAN LOG**: deleted" in done["delta/report"]
    assert done["delta/earliest_version"] == 3
    assert [each.version for each in lake.table("flights", "raw").history()] == [3]


def test_a_damaged_checkpoint_is_told_of_and_written_anew(lake: Lake) -> None:
    fill(lake)
    table = lake.table("flights", "raw")
    table.checkpoint()
    (checkpoint,) = (lake.root / "raw" / "flights").rglob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    job = delta_maintenance_job(assets=[flights])
    run(lake, job, {"optimize": {"enabled": False}})
    config = {"optimize": {"enabled": False}, "checkpoint": {"enabled": True}}
    run(lake, job, config)
    mended, found = observations(lake, "raw", "flights")
    assert found["delta/damaged_log_files"] == 1
    assert "| damaged files of the log | 1 | 1 |" in found["delta/report"]
    assert "| damaged files of the log | 1 | 0 |" in mended["delta/report"]
    assert lake.table("flights", "raw").health().damaged_log_files == ()


def test_full_clusters_anew_what_is_clustered_and_compacts_the_rest(lake: Lake) -> None:
    clustered = lake.root / "clustered"
    table = DeltaTable.create(str(clustered), pa.schema({"a": "int64", "b": "int64"}))
    table.alter("CLUSTER BY (a)")
    table.append(pa.table({"a": [1, 2], "b": [2, 1]}))
    table.optimize()
    table.alter("CLUSTER BY (b)")
    plain_table = DeltaTable(str(lake.root / "plain"), must_exist=False)
    for each in range(2):
        plain_table.append(pa.table({"a": [each]}))
    tables = {"clustered": table.uri, "plain": plain_table.uri}
    job = delta_maintenance_job(tables=tables)
    before = table.version()
    run(lake, job)
    assert table.refresh().version == before
    run(lake, job, {"optimize": {"full": True}})
    assert table.refresh().version == before + 1
    assert plain_table.refresh().num_files == 1


@pytest.mark.parametrize("config", [VacuumConfig, OptimizeConfig, DeltaMaintenanceConfig])
def test_a_config_refuses_a_field_that_it_does_not_have(config: type[dg.Config]) -> None:
    with pytest.raises(InvalidArgument, match=f"{config.__name__} has no option 'dryrun'"):
        config(dryrun=False)


def test_a_config_in_a_config_refuses_what_it_does_not_have() -> None:
    with pytest.raises(ValueError, match="VacuumConfig has no option 'dryrun'"):
        DeltaMaintenanceConfig(vacuum={"dryrun": False})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("optimize", "message"),
    [
        ({"memory_limit": "lots"}, "a size such as '2GB', not 'lots'"),
        ({"memory_limit": "1KB"}, "at least 64 MiB"),
        ({"memory_limit": "2GB", "engine": "spark"}, "for the embedded engine"),
    ],
)
def test_a_wrong_memory_limit_is_refused_before_any_step(
    lake: Lake, optimize: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        OptimizeConfig(**optimize)
    job = delta_maintenance_job(assets=ASSETS)
    with pytest.raises(dg.DagsterConfigMappingFunctionError) as caught:
        dg.validate_run_config(job, {"optimize": optimize})
    assert message in str(caught.value.__cause__)


def test_tables_may_have_names_that_steps_may_not(lake: Lake) -> None:
    fill(lake)
    uri = str(lake.root / "raw" / "flights")
    for name in ("größe", "select_tables", "config", "import", "None"):
        job = delta_maintenance_job(tables={name: uri, "other": uri})
        result = run(lake, job, {"tables": [name]})
        assert len([each for each in result.all_events if each.is_step_success]) == 2
        assert run(lake, delta_restore_job(tables={name: uri}), {"table": name, "version": 0})


def test_a_restore_to_no_version_is_refused(lake: Lake) -> None:
    fill(lake)
    with pytest.raises(Exception) as caught:
        run(lake, delta_restore_job(assets=ASSETS), {"table": "raw/flights", "dry_run": False})
    assert "by a version or by a timestamp" in str(library_error(caught.value))


def test_a_restore_finds_the_version_whose_checks_passed_and_runs_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    config = tmp_path / "config.yaml"
    config.write_text("checks_passed: true\ndry_run: false\n")
    monkeypatch.setenv("LAKE_ROOT", str(tmp_path / "lake"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    from tests.orchestration.maintenance.restored_location import defs

    with dg.DagsterInstance.get() as instance:
        for _ in range(2):
            made = defs.resolve_job_def("make").execute_in_process(instance=instance)
            assert made.success
        command = ["-m", "dagster", "job", "execute", "-j", "delta_restore", "-c", str(config)]
        module = str(Path(__file__).with_name("restored_location.py"))
        done = subprocess.run(
            [sys.executable, *command, "-f", module], check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
        table = DeltaTable(tmp_path / "lake" / "public" / "orders")
        assert (table.version(), table.snapshot().num_records) == (2, 1)
        assert "orders last passed at version 0" in done.stderr
        (checks, *_) = instance.get_runs()
        assert checks.job_name != "delta_restore"
        keys = [
            dg.AssetCheckKey(dg.AssetKey("orders"), name) for name in ("few_rows", "delta_unique")
        ]
        for key in keys:
            (last,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
            assert last.run_id == checks.run_id
            assert last.status.value == "SUCCEEDED"
        assert last_passed_version(instance, keys, table.snapshot().metadata.id) == 2
        assert last_passed_version(instance, keys, "another table") is None


def test_a_restore_says_that_no_version_with_passed_checks_is_known(lake: Lake) -> None:
    fill(lake)
    config = {"table": "raw/flights", "checks_passed": True}
    with pytest.raises(Exception) as caught:
        run(lake, delta_restore_job(assets=ASSETS), config)
    assert "no version of raw/flights is known" in str(library_error(caught.value))
    with pytest.raises(Exception) as caught:
        run(lake, delta_restore_job(assets=ASSETS), {**config, "version": 1})
    assert "leave version and timestamp out" in str(library_error(caught.value))


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (delta_maintenance_job, "descripton"),
        (delta_restore_job, "table"),
        (delta_clone_job, "run_tag"),
        (delta_schema_change_job, "enable_column_changes"),
        (partial(delta_maintenance_schedule, "nightly", "0 3 * * *"), "execution_time_zone"),
    ],
)
def test_an_option_that_a_job_does_not_have_is_refused(make: Any, option: str) -> None:
    with pytest.raises(InvalidArgument, match=f"has no option '{option}': did you mean"):
        make(assets=[flights], **{option: True})
