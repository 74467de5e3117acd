"""Outputs and inputs of ops: the partitions that they touch."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument, PartitionMismatch
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
