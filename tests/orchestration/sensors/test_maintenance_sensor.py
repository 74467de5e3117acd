"""The sensor that maintains tables: which are due, in which order, within which budget, and why."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import (
    DeltaMaintenanceConfig,
    DeltaTable,
    VacuumConfig,
    delta_maintenance_sensor,
)
from dagster_delta.errors import InvalidArgument
from tests.orchestration.conftest import Lake

ONE_DAY = 24 * 3600


def write_table(root: Path, name: str, num_files: int, **properties: str) -> DeltaTable:
    table = DeltaTable(str(root / name), must_exist=False)
    for number in range(num_files):
        table.append(pa.table({"id": [number, -1]}), properties=properties)
    return table


class Ticks:
    """Evaluations of one sensor, each with the cursor of the one before, and runs of its requests."""

    def __init__(self, sensor: dg.SensorDefinition, instance: dg.DagsterInstance) -> None:
        self.sensor, self.instance = sensor, instance
        self.cursor: str | None = None

    def tick(self) -> dg.SensorResult:
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor)
        result = self.sensor(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        return result

    def names(self) -> list[str]:
        return [each.tags["delta/maintained_table"] for each in self.tick().run_requests or ()]

    def run(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        job = self.sensor.job
        assert isinstance(job, dg.JobDefinition)
        config = {**request.run_config, "loggers": {"console": {"config": {"log_level": "ERROR"}}}}
        return job.execute_in_process(
            run_config=config, instance=self.instance, tags=dict(request.tags)
        )


def sensor_of(lake: Lake, **options: Any) -> Ticks:
    options = {"root": str(lake.root), "small_files": 3, **options}
    return Ticks(delta_maintenance_sensor("upkeep", **options), lake.instance)


def test_tables_beyond_a_limit_are_maintained_worst_first_in_runs_of_one_step(lake: Lake) -> None:
    for name, num_files in (("a", 5), ("b", 2), ("c", 9)):
        write_table(lake.root, name, num_files)
    ticks = sensor_of(lake)
    requests = list(ticks.tick().run_requests or ())
    assert [each.tags["delta/maintained_table"] for each in requests] == ["c", "a"]
    because = requests[0].tags["delta/maintained_because"]
    assert because == "c: num_small_files is 9; the limit is 3"
    result = ticks.run(requests[0])
    steps = {event.step_key for event in result.all_events if event.step_key}
    assert steps == {"maintain"}
    assert DeltaTable(str(lake.root / "c")).health().num_files == 1


def test_nothing_runs_where_nothing_is_due(lake: Lake) -> None:
    write_table(lake.root, "a", 2)
    result = sensor_of(lake).tick()
    assert not result.run_requests
    assert "nothing is due: 1 table within the limits (num_small_files 3" in str(result.skip_reason)


def test_a_table_is_maintained_again_only_after_it_has_changed(lake: Lake) -> None:
    table = write_table(lake.root, "a", 5)
    ticks = sensor_of(lake)
    assert ticks.names() == ["a"]
    result = ticks.tick()
    assert "a has not changed since its last maintenance" in str(result.skip_reason)
    table.append(pa.table({"id": [7, 8]}))
    assert ticks.names() == ["a"]


def test_a_failed_maintenance_is_named_in_the_tick(lake: Lake) -> None:
    write_table(lake.root, "a", 5)
    ticks = sensor_of(lake)
    (request,) = ticks.tick().run_requests or ()
    job = ticks.sensor.job
    assert isinstance(job, dg.JobDefinition)
    run = lake.instance.create_run_for_job(
        job,
        run_config=request.run_config,
        tags=dict(request.tags),
        status=dg.DagsterRunStatus.FAILURE,
    )
    assert f"its last maintenance (run {run.run_id}) did not succeed" in str(
        ticks.tick().skip_reason
    )


def test_a_table_that_is_being_maintained_waits(lake: Lake) -> None:
    table = write_table(lake.root, "a", 5)
    ticks = sensor_of(lake)
    (request,) = ticks.tick().run_requests or ()
    job = ticks.sensor.job
    assert isinstance(job, dg.JobDefinition)
    lake.instance.create_run_for_job(
        job,
        run_config=request.run_config,
        tags=dict(request.tags),
        status=dg.DagsterRunStatus.STARTED,
    )
    table.append(pa.table({"id": [7, 8]}))
    assert "a is being maintained" in str(ticks.tick().skip_reason)


def test_runs_of_a_day_keep_within_the_budget(lake: Lake, monkeypatch: Any) -> None:
    sizes = {}
    for name, num_files in (("big", 9), ("small", 5)):
        table = write_table(lake.root, name, num_files)
        sizes[name] = table.health().small_files_bytes
    budget = sizes["big"] + sizes["small"] // 2
    ticks = sensor_of(lake, at_most_bytes_per_day=budget)
    assert ticks.names() == ["big"]
    reason = str(ticks.tick().skip_reason)
    assert "small is due and waits" in reason
    assert "at_most_bytes_per_day" in reason
    tomorrow = time.time() + ONE_DAY + 1
    module = "dagster_delta.orchestration.sensors.maintenance_sensor"
    monkeypatch.setattr(f"{module}.time.time", lambda: tomorrow)
    assert ticks.names() == ["small"]


def test_deleted_rows_and_a_long_log_make_a_table_due(lake: Lake) -> None:
    deleted = write_table(lake.root, "deleted", 1, **{"delta.enableDeletionVectors": "true"})
    deleted.append(pa.table({"id": list(range(1, 100))}))
    deleted.delete("id BETWEEN 1 AND 50")
    write_table(lake.root, "long", 3)
    ticks = sensor_of(lake, small_files=None, deleted_rows=0.3, log_bytes=None)
    assert ticks.names() == ["deleted"]
    ticks = sensor_of(lake, small_files=None, deleted_rows=None, log_bytes=2000)
    requests = ticks.tick().run_requests or ()
    assert {each.tags["delta/maintained_table"] for each in requests} == {"deleted", "long"}
    for request in requests:
        ticks.run(request)
    assert DeltaTable(str(lake.root / "long")).health().log_bytes == 0


def test_assets_are_maintained_where_their_io_manager_stores_them(lake: Lake) -> None:
    @dg.asset(metadata={"mode": "append"})
    def events() -> pa.Table:
        return pa.table({"id": [1, 2]})

    for _ in range(5):
        lake.materialize(events)
    sensor = delta_maintenance_sensor(
        "upkeep",
        assets=[events],
        small_files=2,
        config=DeltaMaintenanceConfig(vacuum=VacuumConfig(enabled=False)),
    )
    resources = {"io_manager": lake.manager()}
    with dg.build_sensor_context(instance=lake.instance, resources=resources) as context:
        result = sensor.evaluate_tick(context)
    (request,) = result.run_requests or ()
    assert request.run_config["ops"]["maintain"]["config"]["vacuum"]["enabled"] is False
    defs = dg.Definitions(assets=[events], sensors=[sensor], resources=resources)
    job = defs.resolve_job_def("upkeep_job")
    assert job.execute_in_process(run_config=request.run_config, instance=lake.instance).success
    assert lake.table().health().num_files == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"small_files": None, "deleted_rows": None, "log_bytes": None}, "no limit"),
        ({"deleted_rows": 20}, "from 0 to 1"),
        ({"at_most_bytes_per_day": 0}, "positive"),
        ({"root": None}, "no tables"),
    ],
)
def test_a_sensor_that_can_do_nothing_is_refused(
    lake: Lake, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        sensor_of(lake, **options)


def test_a_table_that_cannot_be_read_is_named_in_the_tick(lake: Lake) -> None:
    write_table(lake.root, "a", 2)
    log = lake.root / "a" / "_delta_log" / f"{1:020}.json"
    log.write_text("{broken")
    reason = str(sensor_of(lake).tick().skip_reason)
    assert "a cannot be read" in reason


def test_too_many_small_partitions_show_in_the_health() -> None:
    table = DeltaTable("memory://small-partitions/t", must_exist=False)
    rows = pa.table({"id": list(range(20)), "day": list(range(20))})
    table.append(rows, partition_by=["day"])
    assert table.health().num_small_partitions == 20
    plain = DeltaTable("memory://small-partitions/u", must_exist=False)
    plain.append(rows)
    assert plain.health().num_small_partitions == 0
