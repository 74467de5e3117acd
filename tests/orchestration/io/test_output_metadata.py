"""What the UI shows comes from the commit, and is true of it."""

from __future__ import annotations

import shutil
from datetime import date

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta.errors import StorageFailure
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.table.operations.optimize import MIN_FILES
from tests.orchestration.conftest import plain, table_of

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
        ("id", "bigint"),
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
    assert metadata["delta/rows_written"] == 2
    assert metadata["delta/files_added"] == 1
    assert metadata["delta/live_files"] == 2


def test_a_write_that_had_small_files_compacted_says_in_which_version(lake, events):
    compacting = {"delta.autoOptimize.autoCompact": "true"}
    asset = events(table_of([{"id": 1}]), metadata={"table_properties": compacting})
    first = lake.metadata(lake.materialize(asset, mode="append"))
    assert "delta/compacted_version" not in first
    for _ in range(MIN_FILES - 2):
        lake.table().append(table_of([{"id": 1}]))
    last = lake.metadata(lake.materialize(asset, mode="append"))
    assert last["delta/version"] == MIN_FILES - 1
    assert last["delta/compacted_version"] == MIN_FILES
    assert lake.table().snapshot().num_files == 1


def test_an_append_to_a_large_table_reports_what_its_checksum_says(lake, events, monkeypatch):
    def refuse(part, *_):
        raise AssertionError(f"files of {part.path} are read for a few totals")

    asset = events(table_of([{"id": 1, "p": "red"}]), metadata={"partition_by": "p"})
    lake.materialize(asset, mode="append")
    lake.table().checkpoint()
    monkeypatch.setattr("dagster_delta.table.log.version.LARGE_TABLE_FILES", 0)
    monkeypatch.setattr("dagster_delta.protocol.checkpoint.reader.CheckpointPart.add_rows", refuse)
    metadata = lake.metadata(lake.materialize(asset, mode="append"))
    monkeypatch.undo()
    assert metadata["delta/live_files"] == 2
    assert metadata["dagster/size_bytes"] == lake.table().snapshot().size_bytes
    assert "dagster/row_count" not in metadata


def data_version(result: dg.ExecuteInProcessResult) -> str:
    (one,) = result.asset_materializations_for_node("events")
    assert one.tags is not None
    assert one.tags["dagster/data_version_is_user_provided"] == "true"
    return one.tags["dagster/data_version"]


def test_the_data_version_is_the_table_and_its_last_commit_that_changed_rows(lake, events):
    for version in range(3):
        result = lake.materialize(events(table_of([{"id": version}])))
        assert data_version(result) == f"{lake.table().metadata().id}:{version}"


def test_the_data_version_stays_while_no_rows_change(lake, events):
    first = data_version(lake.materialize(events(table_of([{"id": 1}]))))
    lake.table().set_properties({"x.y": "z"})
    assert data_version(lake.materialize(events(table_of([{"id": 2}])), mode="ignore")) == first
    # Known from the event of the last run.
    log = lake.root / "public" / "events" / "_delta_log"
    lake.table().checkpoint()
    (log / commit_path(0).rpartition("/")[2]).unlink()
    assert data_version(lake.materialize(events(table_of([{"id": 2}])), mode="ignore")) == first
    lake.table().delete("id = 1")
    changed = data_version(lake.materialize(events(table_of([{"id": 2}])), mode="ignore"))
    assert changed == f"{lake.table().metadata().id}:2"


def test_another_table_in_the_place_is_another_data_version(lake, events):
    first = data_version(lake.materialize(events(table_of([{"id": 1}]))))
    shutil.rmtree(lake.root / "public" / "events")
    assert data_version(lake.materialize(events(table_of([{"id": 2}])))) != first


def test_a_data_version_that_the_asset_sets_stays(lake):
    @dg.asset
    def events(context):
        context.set_data_version(context.asset_key, dg.DataVersion("mine"))
        return table_of([{"id": 1}])

    assert data_version(lake.materialize(events)) == "mine"


def test_a_write_succeeds_if_its_data_version_cannot_be_read(lake, events, monkeypatch):
    def fail(*_, **__):
        raise StorageFailure("no connection")

    module = "dagster_delta.orchestration.table_metadata"
    monkeypatch.setattr(f"{module}.last_data_change", fail)
    assert lake.materialize(events(table_of([{"id": 1}]))).success


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
    assert versions == dict.fromkeys(COLORS.get_partition_keys(), f"{lake.table().metadata().id}:1")


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
    assert (
        metadata["delta/details"]["predicate"]
        == "`d` >= DATE '2013-01-01' AND `d` < DATE '2013-02-01'"
    )


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


def test_the_keys_of_this_library_lead_and_zero_counters_are_left_out(stored_lake, events):
    config = {"predicate": "s.id = t.id", "skip_unchanged": False}
    merging = {"mode": "merge", "merge_config": config}
    asset = events(table_of([{"id": 1}, {"id": 2}]), metadata=merging)
    for _ in range(2):
        stored_lake.materialize(asset)
    event = stored_lake.instance.get_latest_materialization_event(dg.AssetKey("events"))
    shown = event.asset_materialization.metadata
    assert list(shown) == [
        "delta/version",
        "delta/mode",
        "delta/rows_updated",
        "delta/files_added",
        "delta/files_removed",
        "delta/bytes_added",
        "delta/live_files",
        "delta/history",
        "delta/details",
        "dagster/row_count",
        "dagster/size_bytes",
        "dagster/last_updated_timestamp",
        "dagster/table_name",
        "dagster/uri",
        "dagster/column_schema",
    ]
    details = shown["delta/details"].value
    assert details["merge_type"] == "upsert"
    assert details["metrics"]["numSourceRows"] == 2
    assert 0 not in details["metrics"].values()


def test_each_month_of_one_run_has_its_own_figures_without_the_totals_of_the_run(lake, events):
    days = {"2013-01-01": 31, "2013-02-01": 28, "2013-03-01": 0}

    def produce(context):
        rows = [
            {"d": date.fromisoformat(key).replace(day=day + 1), "m": key[:7]}
            for key in context.partition_keys
            for day in range(days[key])
        ]
        return table_of(rows, pa.schema({"d": pa.date32(), "m": pa.string()}))

    asset = events(
        produce,
        partitions_def=dg.MonthlyPartitionsDefinition("2013-01-01", end_date="2013-04-01"),
        # The bounds of the files say which month they belong to.
        metadata={"partition_expr": "d", "partition_by": "m"},
    )
    result = lake.materialize(asset, range_of=("2013-01-01", "2013-03-01"))
    sizes = {
        values[0][1] + "-01": size
        for values, size in zip(
            *(
                lake.table().snapshot().files()[each].to_pylist()
                for each in ("partition_values", "size_bytes")
            ),
            strict=True,
        )
    }
    for event in result.asset_materializations_for_node("events"):
        key, metadata = event.partition, plain(event.metadata)
        assert metadata["dagster/partition_row_count"] == days[key]
        assert metadata["delta/partition_size_bytes"] == sizes.get(key, 0)
        assert metadata["delta/partition_files"] == (1 if days[key] else 0)
        assert metadata.get("delta/rows_written", 0) == days[key]
        assert metadata.get("delta/bytes_added", 0) == sizes.get(key, 0)
        assert list(event.metadata)[:3] == ["delta/version", "delta/mode", "delta/rows_written"]
        run = metadata["delta/details"]["run"]
        assert (run["partitions"], run["rows_written"], run["files_added"]) == (3, 59, 2)


def test_partitions_that_share_a_file_have_no_figures_of_their_own(lake, events):
    asset = events(
        table_of([{"d": date(2013, month, 1)} for month in (1, 2)]),
        partitions_def=dg.MonthlyPartitionsDefinition("2013-01-01", end_date="2013-03-01"),
        metadata={"partition_expr": "d"},
    )
    result = lake.materialize(asset, range_of=("2013-01-01", "2013-02-01"))
    for event in result.asset_materializations_for_node("events"):
        metadata = plain(event.metadata)
        assert not {"delta/rows_written", "dagster/partition_row_count"} & set(metadata)
        assert metadata["delta/details"]["run"]["rows_written"] == 2


def test_hours_of_a_date_column_written_together_have_no_figures(lake, events):
    asset = events(
        table_of([{"d": date(2013, 1, 1)}]),
        partitions_def=dg.HourlyPartitionsDefinition(
            "2013-01-01-00:00", end_date="2013-01-02-00:00"
        ),
        metadata={"partition_expr": "d"},
    )
    result = lake.materialize(asset, range_of=("2013-01-01-00:00", "2013-01-01-23:00"))
    assert len(result.asset_materializations_for_node("events")) == 24
