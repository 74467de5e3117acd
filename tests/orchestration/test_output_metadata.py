"""What the UI shows comes from the commit, and is true of it."""

from __future__ import annotations

from datetime import date

import dagster as dg
import pyarrow as pa
import pytest

from tests.orchestration.conftest import table_of

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"comment": "the key"}),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)
COLORS = dg.StaticPartitionsDefinition(["red", "blue", "green"])


def test_columns_have_their_delta_types_nullability_and_comments(lake, events):
    result = lake.materialize(events(SCHEMA.empty_table()))
    schema = lake.metadata(result)["dagster/column_schema"]
    assert [(each.name, each.type) for each in schema.columns] == [
        ("id", "long"),
        ("price", "decimal(10,2)"),
        ("tags", "array<string>"),
        ("at", "timestamp"),
    ]
    assert [each.constraints.nullable for each in schema.columns] == [False, True, True, True]
    assert schema.columns[0].description == "the key"


def test_a_write_reports_table_rows_bytes_and_version(lake, events):
    lake.materialize(events(table_of([{"id": 1}])), mode="append")
    result = lake.materialize(events(table_of([{"id": 2}, {"id": 3}])), mode="append")
    metadata = lake.metadata(result)
    snapshot = lake.table().snapshot()
    assert metadata["dagster/row_count"] == 3
    assert metadata["dagster/uri"] == str(lake.root / "public" / "events")
    assert metadata["dagster/table_name"] == "public.events"
    assert metadata["dagster/size_bytes"] == snapshot.size_bytes
    assert metadata["dagster/last_updated_timestamp"] == snapshot.timestamp_ms / 1000
    assert metadata["delta/version"] == 1
    assert metadata["delta/mode"] == "append"
    assert metadata["delta/num_output_rows"] == 2
    assert metadata["delta/num_files"] == 1
    assert metadata["delta/live_files"] == 2


def test_a_write_that_had_small_files_compacted_says_in_which_version(lake, events, monkeypatch):
    monkeypatch.setattr("dagster_delta.table.maintenance.auto_compaction.MIN_FILES", 2)
    compacting = {"delta.autoOptimize.autoCompact": "true"}
    asset = events(table_of([{"id": 1}]), metadata={"table_configuration": compacting})
    first, second = (lake.metadata(lake.materialize(asset, mode="append")) for _ in range(2))
    assert "delta/compacted_version" not in first
    assert (second["delta/version"], second["delta/compacted_version"]) == (1, 2)
    assert lake.table().snapshot().num_files == 1


def test_an_append_to_a_large_table_reports_what_its_checksum_says(lake, events, monkeypatch):
    def refuse(part, *_):
        raise AssertionError(f"files of {part.path} are read for a few totals")

    asset = events(table_of([{"id": 1, "p": "red"}]), metadata={"partition_by": "p"})
    lake.materialize(asset, mode="append")
    lake.table().checkpoint()
    monkeypatch.setattr("dagster_delta.table.read.snapshot.LARGE_TABLE_FILES", 0)
    monkeypatch.setattr("dagster_delta.protocol.checkpoint.reader.CheckpointPart.add_rows", refuse)
    metadata = lake.metadata(lake.materialize(asset, mode="append"))
    monkeypatch.undo()
    assert metadata["delta/live_files"] == 2
    assert metadata["dagster/size_bytes"] == lake.table().snapshot().size_bytes
    assert "dagster/row_count" not in metadata


def test_the_data_version_is_the_version_of_the_table(lake, events):
    for version in range(3):
        result = lake.materialize(events(table_of([{"id": version}])))
        (one,) = result.asset_materializations_for_node("events")
        assert one.tags["dagster/data_version"] == str(version)
        assert one.tags["dagster/data_version_is_user_provided"] == "true"


def test_the_data_version_is_set_on_every_partition_of_a_range(lake, events):
    def produce(context):
        return table_of([{"p": key} for key in context.partition_keys])

    asset = events(produce, partitions_def=COLORS, metadata={"partition_expr": "p"})
    lake.materialize(asset, partition="red")
    result = lake.materialize(asset, range_of=("red", "green"))
    versions = {
        each.partition: each.tags["dagster/data_version"]
        for each in result.asset_materializations_for_node("events")
    }
    assert versions == {"red": "1", "blue": "1", "green": "1"}


def test_every_partition_of_a_range_reports_its_own_rows(lake, events):
    counts = {"red": 3, "blue": 1, "green": 0}

    def produce(context):
        rows = [{"p": key} for key in context.partition_keys for _ in range(counts[key])]
        return table_of(rows, pa.schema({"p": pa.string(), "x": pa.int64()}))

    asset = events(produce, partitions_def=COLORS, metadata={"partition_expr": "p"})
    result = lake.materialize(asset, range_of=("red", "green"))
    reported = {
        each.partition: each.metadata["dagster/partition_row_count"].value
        for each in result.asset_materializations_for_node("events")
    }
    assert reported == counts


def test_an_append_to_a_partition_reports_all_of_its_rows(lake, events):
    asset = events(
        lambda context: table_of([{"p": key, "x": 1} for key in context.partition_keys]),
        partitions_def=COLORS,
        metadata={"partition_expr": "p"},
    )
    for rows in (1, 2):
        result = lake.materialize(asset, partition="red", mode="append")
        assert lake.metadata(result)["dagster/partition_row_count"] == rows


def test_a_replaced_month_reports_the_rows_written(lake, events):
    asset = events(
        table_of([{"d": date(2013, 1, day)} for day in (1, 31)]),
        partitions_def=dg.MonthlyPartitionsDefinition("2013-01-01"),
        metadata={"partition_expr": "d"},
    )
    metadata = lake.metadata(lake.materialize(asset, partition="2013-01-01"))
    assert metadata["dagster/partition_row_count"] == 2
    assert metadata["delta/predicate"] == "`d` >= DATE '2013-01-01' AND `d` < DATE '2013-02-01'"


def test_each_cell_of_a_multi_partition_reports_its_own_rows(lake, events):
    grid = dg.MultiPartitionsDefinition(
        {"color": COLORS, "day": dg.DailyPartitionsDefinition("2013-01-01")}
    )
    asset = events(
        table_of([{"c": "red", "d": date(2013, 1, 1), "x": x} for x in range(3)]),
        partitions_def=grid,
        metadata={"partition_expr": {"color": "c", "day": "d"}},
    )
    result = lake.materialize(asset, range_of=("red|2013-01-01", "blue|2013-01-02"))
    reported = {
        str(each.partition): each.metadata["dagster/partition_row_count"].value
        for each in result.asset_materializations_for_node("events")
    }
    assert reported == {
        "red|2013-01-01": 3,
        "red|2013-01-02": 0,
        "blue|2013-01-01": 0,
        "blue|2013-01-02": 0,
    }


def test_the_commit_names_run_asset_and_partition(lake, events):
    asset = events(
        table_of([{"p": "red"}]),
        partitions_def=COLORS,
        key_prefix=["raw"],
        metadata={"partition_expr": "p", "custom_metadata": {"ticket": "42"}},
    )
    result = lake.materialize(asset, partition="red", custom_metadata={"team": "x"})
    (entry,) = lake.table(schema="raw").history()
    info = entry.commit_info
    assert info["dagsterRunId"] == result.run_id
    assert info["dagsterAsset"] == "raw/events"
    assert info["dagsterPartitions"] == "red"
    assert (info["team"], info["ticket"]) == ("x", "42")


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_metadata_holds_nothing_that_only_a_scan_could_tell(lake, events, monkeypatch, mode):
    from dagster_delta.engines.arrow import engine as arrow_engine

    def refuse(*_, **__):
        raise AssertionError("the write scanned the table")

    lake.materialize(events(table_of([{"id": 1}])), mode=mode)
    monkeypatch.setattr(arrow_engine.ArrowEngine, "read", refuse)
    assert lake.materialize(events(table_of([{"id": 2}])), mode=mode).success
