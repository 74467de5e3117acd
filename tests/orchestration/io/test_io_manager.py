"""Assets become tables, and inputs become what their annotations say."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from dagster_delta.errors import InvalidArgument, SchemaMismatch, TableAlreadyExists, TableNotFound
from dagster_delta.orchestration.io.io_manager import DeltaIOManager
from dagster_delta.orchestration.resources import DeltaTableResource
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.read.scan import Scan
from dagster_delta.table.read.snapshot import Snapshot
from tests.orchestration.conftest import table_of

ROWS = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
ARROW = table_of(ROWS)


def as_dataset(path) -> ds.Dataset:
    import pyarrow.parquet as pq

    pq.write_table(ARROW, path / "rows.parquet")
    return ds.dataset(path)


VALUES = {
    "pyarrow table": lambda _: ARROW,
    "record batch reader": lambda _: ARROW.to_reader(),
    "dataset": as_dataset,
    "pandas": lambda _: ARROW.to_pandas(),
    "polars": lambda _: pl.from_arrow(ARROW),
    "polars lazy": lambda _: pl.DataFrame(ARROW).lazy(),
}


@pytest.mark.parametrize("kind", VALUES)
def test_every_kind_of_value_is_stored(lake, events, tmp_path, kind):
    lake.materialize(events(lambda _: VALUES[kind](tmp_path)))
    assert lake.rows() == ROWS


@pytest.mark.parametrize(
    "annotation",
    [
        pa.Table,
        pa.RecordBatchReader,
        pd.DataFrame,
        pl.DataFrame,
        pl.LazyFrame,
        Scan,
        Snapshot,
        DeltaTable,
    ],
)
def test_an_input_is_what_its_annotation_says(lake, events, annotation):
    seen: list[Any] = []

    def load(events):
        seen.append(events)

    load.__annotations__["events"] = annotation
    lake.materialize(events(ARROW), dg.asset(name="reader")(load))
    (value,) = seen
    assert isinstance(value, annotation)
    assert rows_of(value) == ROWS


def rows_of(value: Any) -> Any:
    match value:
        case pa.RecordBatchReader():
            return value.read_all().to_pylist()
        case pa.Table():
            return value.to_pylist()
        case pd.DataFrame():
            return value.to_dict("records")
        case pl.LazyFrame():
            return value.collect().to_dicts()
        case pl.DataFrame():
            return value.to_dicts()
        case Snapshot():
            return value.scan().to_arrow().to_pylist()
        case DeltaTable():
            return value.snapshot().scan().to_arrow().to_pylist()
        case _:
            return value.to_arrow().to_pylist()


def test_an_input_without_annotation_is_the_default_load_type(lake, events):
    seen = []

    @dg.asset
    def reader(events):
        seen.append(events)

    lake.materialize(events(ARROW), reader, default_load_type="polars")
    assert isinstance(seen[0], pl.DataFrame)


def test_an_input_without_annotation_and_default_says_what_to_do(lake, events):
    @dg.asset
    def reader(events): ...

    error = lake.fail(events(ARROW), reader)
    assert isinstance(error, InvalidArgument)
    assert "default_load_type" in str(error)


def test_columns_filter_and_version_of_an_input(lake, events):
    seen = []

    @dg.asset(
        ins={"events": dg.AssetIn(metadata={"columns": ["name"], "where": "id > 1", "version": 0})}
    )
    def reader(events: pa.Table):
        seen.append(events)

    lake.materialize(events(ARROW))
    lake.materialize(events(table_of([{"id": 9, "name": "z"}])), reader)
    assert seen[0].to_pylist() == [{"name": "b"}]


def test_an_input_that_was_never_materialized_says_so(lake, events):
    @dg.asset
    def reader(events: pa.Table): ...

    source = dg.AssetSpec("events").with_io_manager_key("io_manager")
    error = lake.fail(source, reader)
    assert isinstance(error, TableNotFound)
    assert "materialize it first" in str(error)


def test_an_asset_that_returns_none_wrote_by_itself(lake):
    @dg.asset
    def events(table: DeltaTableResource) -> None:
        DeltaTable(table.table_uri, must_exist=False).append(ARROW)

    resource = DeltaTableResource(root_uri=str(lake.root), schema="public", name="events")
    result = lake.materialize(events, resources={"table": resource})
    assert result.success
    assert lake.rows() == ROWS


def test_none_without_annotation_writes_nothing(lake, events):
    assert lake.materialize(events(None)).success
    assert not DeltaTable.is_delta_table(str(lake.root / "public" / "events"))


def test_a_value_that_is_no_table_is_an_error(lake, events):
    assert isinstance(lake.fail(events(7)), InvalidArgument)


@pytest.mark.parametrize(
    ("value", "mend"),
    [([{"id": 1}], "from_pylist"), ({"id": [1]}, "pyarrow.table"), (5, "pandas")],
)
def test_a_value_of_plain_python_is_an_error_that_says_how_to_make_a_table(
    lake, events, value, mend
):
    assert mend in str(lake.fail(events(lambda _: value)))


def test_an_empty_root_is_not_the_root_of_the_file_system():
    with pytest.raises(InvalidArgument, match="root_uri of the DeltaIOManager is empty"):
        DeltaIOManager(root_uri=" ").asset_table_uri(dg.AssetKey("events"), {})
    with pytest.raises(InvalidArgument, match="location of a table is empty"):
        DeltaTable("", must_exist=False)


def test_storage_options_as_a_plain_mapping_say_which_classes_there_are():
    with pytest.raises(InvalidArgument, match="S3StorageOptions") as caught:
        DeltaIOManager(root_uri="lake", storage_options={"secret_access_key": "hush"})
    assert "hush" not in str(caught.value)


def test_overwriting_replaces_all_rows(lake, events):
    lake.materialize(events(ARROW))
    lake.materialize(events(table_of([{"id": 3, "name": "c"}])))
    assert lake.column("id") == [3]
    assert lake.table().version() == 1


def test_appending_adds_rows(lake, events):
    for _ in range(2):
        lake.materialize(events(ARROW), mode="append")
    assert lake.column("id") == [1, 1, 2, 2]


def test_mode_error_refuses_a_table_that_is_there(lake, events):
    lake.materialize(events(ARROW), mode="error")
    error = lake.fail(events(ARROW), mode="error")
    assert isinstance(error, TableAlreadyExists)
    assert lake.column("id") == [1, 2]


def test_mode_ignore_leaves_a_table_that_is_there_and_says_so(lake, events):
    lake.materialize(events(ARROW), mode="ignore")
    result = lake.materialize(events(table_of([{"id": 9, "name": "z"}])), mode="ignore")
    assert lake.column("id") == [1, 2]
    assert "exists already" in lake.metadata(result)["delta/skipped"]


def test_metadata_of_the_asset_wins_over_the_configuration(lake, events):
    appended = events(ARROW, metadata={"mode": "append"})
    for _ in range(2):
        lake.materialize(appended, mode="overwrite")
    assert lake.column("id") == [1, 1, 2, 2]


def test_a_new_column_needs_schema_mode_merge(lake, events):
    lake.materialize(events(ARROW))
    wider = events(table_of([{"id": 3, "name": "c", "extra": 1.5}]))
    assert isinstance(lake.fail(wider, mode="append"), SchemaMismatch)
    lake.materialize(wider, mode="append", schema_mode="merge")
    assert {"id": 1, "name": "a", "extra": None} in lake.rows()


def test_schema_mode_overwrite_replaces_the_schema(lake, events):
    lake.materialize(events(ARROW))
    lake.materialize(events(table_of([{"other": 1}])), schema_mode="overwrite")
    assert lake.rows() == [{"other": 1}]


def test_properties_and_partitioning_of_a_new_table(lake, events):
    asset = events(
        ARROW,
        metadata={"partition_by": ["name"], "table_properties": {"delta.appendOnly": "false"}},
    )
    lake.materialize(asset, table_properties={"custom.team": "x"})
    configuration = lake.table().snapshot().configuration
    assert configuration.partition_columns == ("name",)
    assert configuration.metadata.configuration["delta.appendOnly"] == "false"
    assert configuration.metadata.configuration["custom.team"] == "x"


def test_properties_that_an_existing_table_does_not_take_are_a_warning(lake, events):
    def warnings(**options) -> list[str]:
        result = lake.materialize(events(ARROW), **options)
        entries = lake.instance.all_logs(result.run_id)
        return [each.user_message for each in entries if each.level == logging.WARNING]

    properties = {"delta.appendOnly": "false", "delta.feature.appendOnly": "supported"}
    assert warnings(table_properties=properties, enable_column_change=True) == []
    assert warnings(table_properties=properties) == []
    (warning,) = warnings(table_properties={**properties, "custom.team": "x"})
    assert "the table has custom.team = not set instead of x" in warning
    assert "SET TBLPROPERTIES" in warning


@pytest.mark.parametrize(
    "properties", [{"owner": "team"}, {"delta.nonsense": "1"}, {"delta.appendOnly": "maybe"}]
)
def test_a_refused_property_fails_before_anything_is_written(lake, events, properties):
    asset = events(ARROW, metadata={"mode": "append"})
    lake.materialize(asset)
    error = lake.fail(asset, table_properties=properties)
    assert isinstance(error, InvalidArgument)
    assert lake.table().version() == 0


def test_properties_that_are_none_of_the_table_are_no_warning(lake, events):
    properties = {"comment": "hello", "delta.minReaderVersion": "1", "delta.minWriterVersion": "2"}
    for _ in range(2):
        result = lake.materialize(events(ARROW), table_properties=properties)
        entries = lake.instance.all_logs(result.run_id)
        assert not [each for each in entries if each.level == logging.WARNING]
    assert lake.table().metadata().description == "hello"


def test_the_key_prefix_is_the_schema(lake, events):
    lake.materialize(events(ARROW, key_prefix=["eu", "raw"]))
    assert lake.rows(schema="raw") == ROWS


def test_the_configured_schema_holds_every_table(lake, events):
    lake.materialize(events(ARROW, key_prefix=["raw"]), schema="all")
    assert lake.rows(schema="all") == ROWS


def test_outputs_of_ops_are_stored_too(lake):
    @dg.op(out=dg.Out(pa.Table, metadata={"schema": "ops", "table_name": "numbers"}))
    def produce():
        return ARROW

    @dg.op
    def consume(rows: pa.Table):
        assert rows.to_pylist() == ROWS

    @dg.job(resource_defs={"io_manager": DeltaIOManager(root_uri=str(lake.root))})
    def numbers():
        consume(produce())

    assert numbers.execute_in_process(instance=lake.instance).success
    assert lake.rows("numbers", "ops") == ROWS


def op_table(id_: int) -> pa.Table:
    return table_of([{"id": id_}])


def test_ops_that_read_one_output_see_its_rows_whatever_the_others_return(lake):
    seen = []

    @dg.op
    def first() -> pa.Table:
        return op_table(1)

    @dg.op
    def read(rows: pa.Table) -> pa.Table:
        seen.append(rows["id"].to_pylist())
        return op_table(2)

    @dg.job(resource_defs={"io_manager": lake.manager()})
    def fan_out():
        rows = first()
        for name in ("left", "right"):
            read.alias(name)(rows)

    run = fan_out.execute_in_process()
    assert seen == [[1], [1]]
    assert lake.column("id", f"{run.run_id}-left-result") == [2]


@dg.op(out=dg.Out(pa.Table))
def number_of_run(context):
    return op_table(int(context.run.tags["n"]))


@dg.op
def show_number(context, rows: pa.Table) -> None:
    with Path(os.environ["TEST_LAKE"], "seen").open("a") as file:
        file.write(f"{rows['id'].to_pylist()}")
    if not context.run.parent_run_id and "fail" in context.run.tags:
        raise RuntimeError


@dg.job(
    resource_defs={"io_manager": DeltaIOManager(root_uri=dg.EnvVar("TEST_LAKE"))},
    executor_def=dg.in_process_executor,
)
def number_job():
    show_number(number_of_run())


def test_runs_of_one_job_share_no_table_and_a_re_execution_reads_what_its_parent_wrote(
    stored_lake, monkeypatch
):
    monkeypatch.setenv("TEST_LAKE", str(stored_lake.root))
    instance = stored_lake.instance

    def execute(**options: Any) -> dg.JobExecutionResult:
        return dg.execute_job(
            dg.reconstructable(number_job), instance, raise_on_error=False, **options
        )

    failed = execute(tags={"n": "1", "fail": ""})
    execute(tags={"n": "2"})
    again = dg.ReexecutionOptions.from_failure(failed.run_id, instance)
    result = execute(reexecution_options=again)
    assert result.success
    assert [event.step_key for event in result.get_step_success_events()] == ["show_number"]
    assert (stored_lake.root / "seen").read_text() == "[1][2][1]"


def test_mapped_steps_read_the_rows_of_their_own_key_and_a_collected_input_those_of_all(lake):
    seen = []

    @dg.op(out=dg.DynamicOut(pa.Table))
    def split():
        for number in range(3):
            yield dg.DynamicOutput(op_table(number), mapping_key=f"k{number}")

    @dg.op
    def same(rows: pa.Table) -> pa.Table:
        return rows

    @dg.op
    def gather(tables: list[pa.Table]) -> None:
        seen.extend(rows["id"].to_pylist() for rows in tables)

    @dg.job(resource_defs={"io_manager": lake.manager()})
    def mapped():
        gather(split().map(same).collect())

    assert mapped.execute_in_process().success
    assert sorted(seen) == [[0], [1], [2]]


def test_graph_assets_whose_ops_have_one_name_do_not_share_a_table(lake):
    @dg.op
    def load() -> pa.Table:
        return op_table(1)

    @dg.op
    def count(rows: pa.Table) -> pa.Table:
        return table_of([{"rows": rows.num_rows}])

    def graph(name: str) -> dg.AssetsDefinition:
        return dg.graph_asset(name=name)(lambda: count(load()))

    lake.materialize(graph("a"), graph("b"))
    assert lake.rows("a") == lake.rows("b") == [{"rows": 1}]


def test_every_output_of_a_multi_asset_is_its_own_table(lake):
    @dg.multi_asset(outs={"left": dg.AssetOut(), "right": dg.AssetOut()})
    def both():
        return ARROW.slice(0, 1), ARROW.slice(1, 1)

    lake.materialize(both)
    assert lake.column("id", "left") == [1]
    assert lake.column("id", "right") == [2]


def test_rows_of_another_type_are_refused_before_anything_is_committed(lake, events):
    lake.materialize(events(ARROW))
    error = lake.fail(events(table_of([{"id": "not a number", "name": "c"}])))
    assert isinstance(error, SchemaMismatch)
    assert lake.rows() == ROWS


def test_cluster_by_is_of_a_new_table_and_shows(lake, events):
    asset = events(ARROW, metadata={"cluster_by": ["name"]})
    metadata = lake.metadata(lake.materialize(asset))
    assert (metadata["delta/details"]["clustering_columns"], metadata["delta/version"]) == (
        "name",
        0,
    )
    lake.materialize(asset)
    assert lake.rows() == ROWS
    error = lake.fail(events(ARROW, metadata={"cluster_by": "id"}))
    assert "clustered by ['name'], not ['id']" in str(error)
    assert lake.table().optimize().metrics["numAddedFiles"] == 1


@pytest.mark.parametrize("mode", ["append", "overwrite", "merge"])
def test_a_partitioned_asset_is_clustered_instead_of_laid_out_by_partitions(lake, events, mode):
    asset = events(
        lambda context: pa.table({"id": [1], "color": [context.partition_key]}),
        partitions_def=dg.StaticPartitionsDefinition(["red", "blue"]),
        metadata={"partition_expr": "color", "cluster_by": ["color", "id"]},
    )
    config = {"merge_type": "upsert", "predicate": "s.id = t.id", "source_alias": "s"}
    config |= {"target_alias": "t"}
    options = {"merge_config": config} if mode == "merge" else {}
    for each in ("red", "blue"):
        metadata = lake.metadata(lake.materialize(asset, partition=each, mode=mode, **options))
        assert metadata["delta/details"]["clustering_columns"] == "color, id"
    assert lake.column("color") == ["blue", "red"]
    assert lake.table().snapshot().configuration.partition_columns == ()


def returning_none(annotation):
    def events():
        return None

    if annotation is not Ellipsis:
        events.__annotations__["return"] = annotation
    return dg.asset(events)


@pytest.mark.parametrize(
    ("annotation", "level"),
    [(..., "WARNING"), (Any, "WARNING"), (pd.DataFrame | None, "INFO"), (None, None)],
)
def test_an_asset_that_returns_none_and_does_not_say_so_is_warned(lake, annotation, level):
    result = lake.materialize(returning_none(annotation))
    entries = lake.instance.all_logs(result.run_id)
    noted = [each for each in entries if "events returned None" in each.user_message]
    levels = {logging.getLevelName(each.level) for each in noted}
    assert levels == ({"INFO", level} if level else set())
    assert ("delta/skipped" in lake.metadata(result)) == (level is not None)
    assert not (lake.root / "public" / "events").exists()


def test_an_asset_that_returns_none_keeps_its_data_version(lake, events):
    given = [pa.table({"id": [1]}), None, None]

    def rows() -> pa.Table | None:
        return given.pop(0)

    versions = {
        event.materialization.tags["dagster/data_version"]
        for _ in range(3)
        for event in lake.materialize(dg.asset(rows)).get_asset_materialization_events()
    }
    assert versions == {f"{lake.table('rows').metadata().id}:0"}
    partitions = dg.StaticPartitionsDefinition(["a", "b"])
    partitioned = dg.asset(rows, partitions_def=partitions)
    given.append(None)
    assert lake.materialize(partitioned, partition="a").success


def test_an_asset_that_promises_rows_and_returns_none_fails(lake):
    error = lake.fail(returning_none(pd.DataFrame))
    assert "Type check failed" in str(error)


@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_columns_that_rows_lack_are_named_by_a_warning(lake, events, mode):
    lake.materialize(events(table_of([{"id": 1, "name": "a"}])))
    result = lake.materialize(events(table_of([{"id": 2}])), mode=mode)
    told = [entry.user_message for entry in lake.instance.all_logs(result.run_id)]
    (warning,) = [message for message in told if "lack columns" in message]
    assert "which are null in them: name." in warning
    assert lake.rows()[-1] == {"id": 2, "name": None}


def test_an_asset_is_loaded_outside_of_a_run(lake):
    days = dg.StaticPartitionsDefinition(["a", "b"])

    @dg.asset(partitions_def=days, metadata={"partition_expr": "p"})
    def letters(context) -> pa.Table:
        return pa.table({"p": [context.partition_key]})

    for key in ("a", "b"):
        lake.materialize(letters, partition=key)
    definitions = dg.Definitions([letters], resources={"io_manager": lake.manager()})

    def load(**options):
        rows = definitions.load_asset_value(
            "letters", python_type=pa.Table, instance=lake.instance, **options
        )
        return sorted(rows["p"].to_pylist())

    assert load() == ["a", "b"]
    assert load(partition_key="b") == ["b"]


def test_contexts_of_unit_tests_need_no_more_than_the_key_of_the_asset(lake) -> None:
    manager = lake.manager(default_load_type="pyarrow")
    manager.handle_output(dg.build_output_context(asset_key="events"), pa.table({"id": [1]}))
    loaded = manager.load_input(dg.build_input_context(asset_key=dg.AssetKey("events")))
    assert loaded.to_pylist() == [{"id": 1}]
