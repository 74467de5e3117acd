"""Outputs and inputs of ops: the partitions that they touch, and the tables that belong to a run."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument, PartitionMismatch
from dagster_delta.orchestration import op_outputs
from dagster_delta.orchestration.checks.health_asset import delta_health_asset
from dagster_delta.orchestration.components.external_tables import discover_tables
from dagster_delta.orchestration.op_outputs import (
    OpOutputsConfig,
    delta_op_outputs_job,
    find_lasting_tables,
)
from dagster_delta.orchestration.sensors.sensors import delta_table_sensor
from dagster_delta.orchestration.sensors.table_watcher import TABLE_URI_TAG
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.table_discovery import find_tables
from tests.orchestration.conftest import QUIET, library_error, table_of

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
SHOPS = dg.StaticPartitionsDefinition(["x", "y"])
ONE, TWO, THREE = (f"2024-01-0{day}" for day in (1, 2, 3))
VISITS = {"table_name": "events", "partition_expr": "day"}


def visits_of(keys: Any) -> pa.Table:
    return table_of([{"day": key, "n": 1} for key in keys])


@dg.op(out=dg.Out(pa.Table, metadata=VISITS))
def visits(context) -> pa.Table:
    return visits_of(context.partition_keys)


def execute(lake, job, *, range_of=None, **options) -> dg.ExecuteInProcessResult:
    tags = dict(
        zip(
            ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end"),
            range_of or (),
            strict=False,
        )
    )
    return job.execute_in_process(
        instance=lake.instance,
        resources={"io_manager": lake.manager()},
        run_config=QUIET,
        tags=tags,
        **options,
    )


def job_of(*ops: Any, **options: Any) -> dg.JobDefinition:
    """A job in which each op takes the output of the one before."""

    def chain() -> None:
        value: tuple[Any, ...] = ()
        for op in ops:
            value = (op(*value),)

    chain.__name__ = "job_of_ops"
    return dg.job(**options)(chain)


def fail(lake, job, **options) -> BaseException:
    with pytest.raises(Exception) as caught:
        execute(lake, job, **options)
    return library_error(caught.value)


@dg.daily_partitioned_config("2024-01-01")
def config_of_day(start, end):
    return {}


@pytest.mark.parametrize("options", [{"partitions_def": DAYS}, {"config": config_of_day}])
def test_output_of_an_op_replaces_the_partition_of_its_run_alone(lake, options):
    job = job_of(visits, **options)
    for day in (ONE, TWO, ONE):
        job.execute_in_process(
            partition_key=day, resources={"io_manager": lake.manager()}, instance=lake.instance
        )
    assert lake.column("day") == [ONE, TWO]


def test_output_of_an_op_replaces_each_partition_of_a_range(lake):
    job = job_of(visits, partitions_def=DAYS)
    execute(lake, job, partition_key=THREE)
    execute(lake, job, range_of=(ONE, TWO))
    execute(lake, job, range_of=(TWO, THREE))
    assert lake.column("day") == [ONE, TWO, THREE]


def test_output_of_an_op_replaces_one_cell_of_multi_partitions(lake):
    columns = {"day": "day", "shop": "shop"}

    @dg.op(out=dg.Out(pa.Table, metadata={**VISITS, "partition_expr": columns}))
    def cells(context) -> pa.Table:
        return table_of([dict(context.partition_key.keys_by_dimension)])

    job = job_of(cells, partitions_def=dg.MultiPartitionsDefinition({"day": DAYS, "shop": SHOPS}))
    for day, shop in ((ONE, "x"), (ONE, "y"), (TWO, "x"), (ONE, "x")):
        execute(lake, job, partition_key=dg.MultiPartitionKey({"day": day, "shop": shop}))
    assert [(row["day"], row["shop"]) for row in lake.rows()] == [
        (ONE, "x"),
        (ONE, "y"),
        (TWO, "x"),
    ]


def test_op_inside_a_graph_asset_replaces_the_partition_of_its_run_alone(lake):
    @dg.op
    def count(rows: pa.Table) -> pa.Table:
        return table_of([{"day": rows["day"][0].as_py(), "rows": rows.num_rows}])

    @dg.graph_asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def counts():
        return count(visits())

    for day in (ONE, TWO, ONE):
        lake.materialize(counts, partition=day)
    assert lake.column("day") == lake.column("day", "counts") == [ONE, TWO]
    assert lake.column("rows", "counts") == [1, 1]


def test_input_from_an_op_has_the_partitions_of_its_run_alone(lake):
    seen = []

    @dg.op
    def read(rows: pa.Table) -> None:
        seen.append(sorted(rows["day"].to_pylist()))

    @dg.op(ins={"rows": dg.In(dict[str, pa.Table])})
    def read_each(rows) -> None:
        seen.append(sorted(rows))

    job = job_of(visits, read, partitions_def=DAYS)
    for day in (ONE, TWO):
        execute(lake, job, partition_key=day)
    execute(lake, job, range_of=(TWO, THREE))
    execute(lake, job_of(visits, read_each, partitions_def=DAYS), range_of=(ONE, TWO))
    assert seen == [[ONE], [TWO], [TWO, THREE], [ONE, TWO]]


def test_output_of_an_op_with_rows_of_another_partition_is_refused(lake):
    @dg.op(out=dg.Out(pa.Table, metadata=VISITS))
    def wrong() -> pa.Table:
        return visits_of([THREE])

    error = fail(lake, job_of(wrong, partitions_def=DAYS), partition_key=ONE)
    assert isinstance(error, PartitionMismatch)
    assert f"outside of the partition {ONE} of the run" in str(error)


@pytest.mark.parametrize("options", [{}, {"partitions_def": DAYS}])
def test_partitioned_output_of_an_op_is_not_replaced_by_a_run_without_a_partition(lake, options):
    @dg.op(out=dg.Out(pa.Table, metadata=VISITS))
    def whole() -> pa.Table:
        return visits_of([THREE])

    execute(lake, job_of(visits, partitions_def=DAYS), partition_key=ONE)
    error = fail(lake, job_of(whole, **options))
    assert isinstance(error, InvalidArgument)
    assert "result is partitioned and the run has no partition" in str(error)
    assert lake.column("day") == [ONE]


def test_output_of_an_op_without_partition_expr_is_replaced_as_a_whole(lake):
    """It is a table that is not partitioned, as that of an asset without a partitions definition."""

    @dg.op(out=dg.Out(pa.Table, metadata={"table_name": "events"}))
    def latest(context) -> pa.Table:
        return visits_of([context.partition_key])

    job = job_of(latest, partitions_def=DAYS)
    for day in (ONE, TWO):
        execute(lake, job, partition_key=day)
    assert lake.column("day") == [TWO]


@pytest.mark.parametrize("is_mapped", [True, False])
def test_values_of_mapping_keys_do_not_replace_each_other_in_one_table(lake, is_mapped):
    out = {"table_name": "events"}

    @dg.op(out=dg.DynamicOut(pa.Table, metadata={} if is_mapped else out))
    def split():
        for number in range(2):
            yield dg.DynamicOutput(table_of([{"id": number}]), mapping_key=f"k{number}")

    def job(mode: str) -> dg.JobDefinition:
        @dg.op(out=dg.Out(pa.Table, metadata={**out, "mode": mode} if is_mapped else {}))
        def same(rows: pa.Table) -> pa.Table:
            return rows

        return dg.job(name="mapped")(lambda: split().map(same) and None)

    assert "each would replace the rows of the others" in str(fail(lake, job("overwrite")))
    if is_mapped:
        execute(lake, job("append"))
        assert lake.column("id") == [0, 1]


# ---- tables that belong to a run


@dg.op
def load() -> pa.Table:
    return table_of([{"n": 1}])


@dg.op
def clean(rows: pa.Table) -> pa.Table:
    return rows


@dg.graph_asset
def orders():
    return clean(load())


@pytest.fixture
def run_id(lake) -> str:
    """A run of a graph asset and of a job, whose ops have stored their outputs."""
    named = dg.op(name="named", out=dg.Out(pa.Table, metadata={"table_name": "a-named-one"}))
    execute(lake, job_of(named(lambda: table_of([{"n": 2}]))))
    return lake.materialize(orders).run_id


def tables(lake) -> set[str]:
    return {uri.rpartition("/")[2] for uri in find_tables(str(lake.root))}


LASTING = {"orders", "a-named-one"}


def drop(lake, run_config: Any = None, **config: Any) -> dict[str, Any]:
    job = delta_op_outputs_job(
        root=str(lake.root), config=OpOutputsConfig(**{"older_than_hours": 0, **config})
    )
    result = job.execute_in_process(instance=lake.instance, run_config=run_config)
    (event,) = [e for e in result.all_events if e.event_type_value == "STEP_OUTPUT"]
    return {key: value.value for key, value in event.step_output_data.metadata.items()}


def test_sensor_of_a_root_runs_nothing_for_tables_of_op_outputs(lake, run_id):
    @dg.asset
    def report() -> None: ...

    sensor = delta_table_sensor(
        "lake",
        root=str(lake.root),
        target=[report],
        start_from="earliest",
        discover_every_seconds=0,
    )
    definitions = dg.Definitions([report], sensors=[sensor])
    found = []
    cursor = None
    for _ in range(2):
        context = dg.build_sensor_context(
            definitions=definitions, cursor=cursor, instance=lake.instance
        )
        tick = sensor.evaluate_tick(context)
        cursor = tick.cursor
        found += [request.tags[TABLE_URI_TAG] for request in tick.run_requests]
        lake.materialize(orders)
    assert {uri.rpartition("/")[2] for uri in found} == LASTING


def test_pages_and_assets_of_a_root_omit_tables_of_op_outputs(lake, run_id):
    health = delta_health_asset(root=str(lake.root))
    dg.materialize([health], instance=lake.instance)
    record = lake.instance.fetch_materializations(health.key, limit=1).records[0]
    figures = record.asset_materialization.metadata["delta/figures"].data
    assert set(figures) == {f"public/{name}" for name in LASTING}
    discovered = discover_tables(str(lake.root), {}).tables
    assert {uri.rpartition("/")[2] for uri in discovered} == LASTING


def test_table_of_an_op_output_is_opened_once_for_a_sensor(lake, run_id, monkeypatch):
    opened = []

    def load(store: Any) -> Snapshot:
        opened.append(store.location.uri)
        return Snapshot.load(store)

    known: set[str] = set()
    (output,) = tables(lake) - LASTING
    monkeypatch.setattr(op_outputs, "Snapshot", type("Loader", (), {"load": staticmethod(load)}))
    for _ in range(2):
        found = find_lasting_tables(str(lake.root), {}, op_outputs=known)
        assert {uri.rpartition("/")[2] for uri in found} == LASTING
    assert sum(uri.rstrip("/").endswith(output) for uri in opened) == 1


def test_clone_of_an_op_output_is_a_table_like_others(lake, run_id):
    (output,) = tables(lake) - LASTING
    DeltaTable(str(lake.root / "public" / output)).clone(str(lake.root / "public" / "my-own-copy"))
    drop(lake, dry_run=False)
    assert tables(lake) == {*LASTING, "my-own-copy"}
    assert "my-own-copy" in str(find_lasting_tables(str(lake.root), {}))


def test_job_deletes_whole_tables_of_op_outputs_and_no_others(lake, run_id):
    (output,) = tables(lake) - LASTING
    directory = lake.root / "public" / output
    num_files = sum(path.is_file() for path in directory.rglob("*"))
    planned = drop(lake)
    assert planned["delta/drop_dry_run"] is True
    assert planned["delta/first_dropped_tables"] == str(directory)
    assert tables(lake) == {*LASTING, output}
    done = drop(lake, dry_run=False)
    assert (done["delta/dropped_tables"], done["delta/dropped_files"]) == (1, num_files)
    assert not directory.exists()
    assert tables(lake) == LASTING
    assert lake.rows("orders") == [{"n": 1}]
    assert lake.rows("a-named-one") == [{"n": 2}]
    assert drop(lake, dry_run=False)["delta/dropped_tables"] == 0


def test_job_keeps_a_copy_of_an_op_output_in_another_folder(lake, run_id):
    (output,) = tables(lake) - LASTING
    source = Path(lake.table(output).uri.removeprefix("file://"))
    shutil.copytree(source, source.parents[1] / "archive" / output)
    drop(lake, dry_run=False)
    assert not source.exists()
    copy = DeltaTable(str(source.parents[1] / "archive" / output))
    assert copy.snapshot().scan().to_arrow().num_rows > 0


def test_job_keeps_tables_of_op_outputs_that_are_younger_than_asked(lake, run_id):
    before = tables(lake)
    drop(lake, older_than_hours=1, dry_run=False)
    assert tables(lake) == before
    # The form of a run replaces the default.
    config = {"ops": {"drop": {"config": {"older_than_hours": 0, "dry_run": False}}}}
    drop(lake, config, older_than_hours=1)
    assert tables(lake) == LASTING


@pytest.mark.parametrize("is_re_execution", [False, True])
def test_job_keeps_tables_of_a_run_and_of_its_re_execution_until_they_are_finished(
    lake, run_id, is_re_execution
):
    before = tables(lake)
    if is_re_execution:
        tags = {"dagster/root_run_id": run_id, "dagster/parent_run_id": run_id}
        options = {"tags": tags, "root_run_id": run_id, "parent_run_id": run_id}
        running = dg.DagsterRun(
            "job", str(uuid.uuid4()), status=dg.DagsterRunStatus.STARTED, **options
        )
    else:
        lake.instance.delete_run(run_id)
        running = dg.DagsterRun("job", run_id, status=dg.DagsterRunStatus.STARTED)
    lake.instance.add_run(running)
    assert drop(lake, dry_run=False)["delta/dropped_tables"] == 0
    assert tables(lake) == before
    lake.instance.report_run_canceled(running)
    drop(lake, dry_run=False)
    assert tables(lake) == LASTING


def test_table_of_an_op_output_is_marked_with_its_run_and_a_named_one_is_not(lake, run_id):
    (output,) = tables(lake) - LASTING
    assert output.startswith(run_id)
    properties = lake.table(output).metadata().configuration
    assert properties == {
        "dagsterDelta.opOutputOfRun": run_id,
        "dagsterDelta.opOutputAt": f"public/{output}",
    }
    for name in LASTING:
        assert "dagsterDelta.opOutputOfRun" not in lake.table(name).metadata().configuration
