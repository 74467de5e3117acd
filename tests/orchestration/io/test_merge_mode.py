"""The mode `merge`: types, clauses, partitions, and what may be said only in a run."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import (
    ConstraintViolation,
    DeltaError,
    InvalidArgument,
    InvalidCast,
    PartitionMismatch,
    SchemaChangeRefused,
    SchemaMismatch,
)
from dagster_delta.orchestration.io.merge_config import (
    MergeConfig,
    MergeOperationsConfig,
    MergeType,
    OperationAllConfig,
    OperationConfig,
    OperationWithUpdatesConfig,
)
from tests.orchestration.conftest import QUIET, table_of

OLD = table_of([{"id": 1, "v": "old"}, {"id": 2, "v": "old"}])
NEW = table_of([{"id": 2, "v": "new"}, {"id": 3, "v": "new"}])
ON = "t.id = s.id"


def values(lake, name: str = "events") -> dict[Any, Any]:
    return {row["id"]: row["v"] for row in lake.rows(name)}


@pytest.mark.parametrize(
    ("merge_type", "expected"),
    [
        ("upsert", {1: "old", 2: "new", 3: "new"}),
        ("update_only", {1: "old", 2: "new"}),
        ("deduplicate_insert", {1: "old", 2: "old", 3: "new"}),
        ("replace_delete_unmatched", {2: "new"}),
        ("replace_and_delete_unmatched", {2: "new"}),
    ],
)
def test_each_type_of_merge(lake, events, merge_type, expected):
    lake.materialize(events(OLD))
    config = {"merge_type": merge_type, "predicate": ON}
    lake.materialize(events(NEW, metadata={"mode": "merge", "merge_config": config}))
    assert values(lake) == expected


def test_a_merge_that_creates_its_table_asks_for_filters_of_its_keys(lake, events):
    merging = {"mode": "merge", "merge_predicate": f"{ON} AND t.v <=> s.v AND t.w = s.w"}
    rows = table_of([{"id": 1, "v": "old", "w": 0.5, "x": 1}])
    lake.materialize(events(rows, metadata=merging))
    asked = lake.table("events").snapshot().metadata.configuration
    assert {key for key in asked if key.startswith("parquet.")} == {
        "parquet.bloom.filter.adaptive.enabled",
        "parquet.bloom.filter.enabled#id",
        "parquet.bloom.filter.enabled#v",
    }


def test_filters_that_an_asset_names_are_its_only_ones(lake, events):
    none = {"parquet.bloom.filter.enabled": "false"}
    merging = {"mode": "merge", "merge_predicate": ON, "table_properties": none}
    lake.materialize(events(OLD, metadata=merging))
    asked = lake.table("events").snapshot().metadata.configuration
    assert {key: value for key, value in asked.items() if key.startswith("parquet.")} == none


def test_the_io_manager_gives_what_the_metadata_leaves_open(lake, events):
    lake.options = {"mode": "merge", "merge_config": MergeConfig(merge_type=MergeType.upsert)}
    merged = {"merge_predicate": ON}
    lake.materialize(events(OLD, metadata=merged))
    lake.materialize(events(NEW, metadata=merged))
    assert values(lake) == {1: "old", 2: "new", 3: "new"}


def test_the_ui_shows_what_a_merge_did(lake, events):
    merging = {"mode": "merge", "merge_predicate": ON}
    lake.materialize(events(OLD))
    metadata = lake.metadata(lake.materialize(events(NEW, metadata=merging)))
    assert metadata["delta/mode"] == "merge"
    assert metadata["delta/details"]["merge_type"] == "upsert"
    assert metadata["delta/rows_updated"] == 1
    assert metadata["delta/rows_inserted"] == 1
    assert "delta/rows_deleted" not in metadata
    assert metadata["dagster/row_count"] == 3


def test_rows_that_change_nothing_leave_the_rows_alone(lake, events):
    lake.materialize(events(OLD))
    config = {"merge_type": "deduplicate_insert", "predicate": ON}
    result = lake.materialize(events(OLD, metadata={"mode": "merge", "merge_config": config}))
    assert "delta/rows_written" not in lake.metadata(result)
    assert values(lake) == {1: "old", 2: "old"}


def test_a_column_that_the_table_lacks_is_never_dropped_in_silence(lake, events):
    lake.materialize(events(OLD))
    wider = NEW.append_column("extra", pa.array([1, 2]))
    error = lake.fail(events(wider, metadata={"mode": "merge", "merge_predicate": ON}))
    assert isinstance(error, SchemaMismatch)
    assert "schema_mode" in str(error)


CUSTOM = MergeConfig(
    merge_type=MergeType.custom,
    predicate="old.id = new.id",
    source_alias="new",
    target_alias="old",
    merge_operations_config=MergeOperationsConfig(
        when_matched_update=[
            OperationWithUpdatesConfig(predicate="new.v = 'add'", updates={"v": "old.v || '+'"})
        ],
        when_matched_update_all=[OperationAllConfig()],
        when_matched_delete=[OperationConfig(predicate="new.v = 'drop'")],
        when_not_matched_insert=[OperationWithUpdatesConfig(updates={"id": "new.id", "v": "'n'"})],
        when_not_matched_by_source_update=[
            OperationWithUpdatesConfig(predicate="old.id > 100", updates={"v": "'big'"})
        ],
    ),
)


def test_clauses_one_by_one_those_without_predicate_last(lake, events):
    lake.materialize(events(table_of([{"id": each, "v": "a"} for each in (1, 2, 3, 4, 200)])))
    source = table_of(
        [
            {"id": 1, "v": "add"},
            {"id": 2, "v": "drop"},
            {"id": 3, "v": "set"},
            {"id": 9, "v": "set"},
        ]
    )
    lake.materialize(
        events(source, metadata={"mode": "merge", "merge_config": CUSTOM.model_dump()})
    )
    assert values(lake) == {1: "a+", 3: "set", 4: "a", 9: "n", 200: "big"}


def test_columns_may_be_left_alone(lake, events):
    operations = {
        "when_matched_update_all": [{"except_cols": ["V"]}],
        "when_not_matched_insert_all": [{"except_cols": ["v"]}],
    }
    config = {"merge_type": "custom", "predicate": ON, "merge_operations_config": operations}
    lake.materialize(events(OLD))
    lake.materialize(events(NEW, metadata={"mode": "merge", "merge_config": config}))
    assert values(lake) == {1: "old", 2: "old", 3: None}


def test_the_first_merge_creates_the_table_and_follows_its_clauses(lake, events):
    for merge_type, expected in (("update_only", {}), ("upsert", {1: "old", 2: "old"})):
        config = {"merge_type": merge_type, "predicate": ON}
        metadata = {"mode": "merge", "merge_config": config, "table_name": merge_type}
        lake.materialize(events(OLD, metadata=metadata))
        assert values(lake, merge_type) == expected
        assert [each.operation for each in lake.table(merge_type).history()] == ["MERGE"]


def test_the_first_merge_of_partitions_creates_a_partitioned_and_described_table(lake, events):
    metadata = {**MERGING, "table_properties": {"delta.enableChangeDataFeed": "true"}}
    asset = events(
        day_rows(mon=[1, 2]), partitions_def=DAYS, metadata=metadata, description="Some events."
    )
    lake.materialize(asset, partition="mon")
    created = lake.table().snapshot()
    assert created.version == 0
    assert created.metadata.partition_columns == ("day",)
    assert created.metadata.description == "Some events."
    assert created.configuration.change_data_feed_enabled


@pytest.mark.parametrize("predicate", ["s.missing = t.id", "t.id = s.id AND"])
def test_a_failed_first_merge_leaves_no_table(lake, events, predicate):
    config = {"merge_type": "upsert", "predicate": predicate}
    lake.fail(events(OLD, metadata={"mode": "merge", "merge_config": config}))
    assert not DeltaTable.is_delta_table(str(lake.root / "public" / "events"))


def test_new_columns_come_with_schema_mode_merge_alone(lake, events):
    lake.materialize(events(OLD))
    wider = pa.table({"id": [2, 3], "extra": [7, 8]})
    metadata = {"mode": "merge", "merge_predicate": ON}
    assert isinstance(lake.fail(events(wider, metadata=metadata)), SchemaMismatch)
    lake.materialize(events(wider, metadata={**metadata, "schema_mode": "merge"}))
    assert lake.rows() == [
        {"id": 1, "v": "old", "extra": None},
        {"id": 2, "v": "old", "extra": 7},
        {"id": 3, "v": None, "extra": 8},
    ]
    assert lake.table().version() == 1


def test_several_rows_for_one_row_are_refused_with_the_key(lake, events):
    lake.materialize(events(OLD))
    twice = pa.concat_tables([NEW, NEW])
    error = lake.fail(events(twice, metadata={"mode": "merge", "merge_predicate": ON}))
    assert isinstance(error, ConstraintViolation)


@pytest.mark.parametrize("merge_type", ["upsert", "custom"])
def test_two_rows_of_one_key_are_refused_at_the_first_run(lake, events, merge_type):
    config: dict[str, Any] = {"merge_type": merge_type, "predicate": ON}
    if merge_type == "custom":
        every = [{}]
        config["merge_operations_config"] = {
            "when_matched_update_all": every,
            "when_not_matched_insert_all": every,
        }
    twice = pa.concat_tables([NEW, NEW])
    error = lake.fail(events(twice, metadata={"mode": "merge", "merge_config": config}))
    assert isinstance(error, ConstraintViolation)
    assert not DeltaTable.is_delta_table(str(lake.root / "public" / "events"))


def test_a_strict_merge_refuses_texts_and_parts_as_an_append_does(lake, events):
    lake.materialize(events(pa.table({"id": [1], "v": [1]})))
    metadata = {"mode": "merge", "merge_config": {"predicate": ON}}
    for rows, kind in (
        ({"id": [2.7], "v": [1]}, InvalidCast),
        ({"id": [2], "v": ["1"]}, SchemaMismatch),
    ):
        for given in (metadata, {"mode": "append"}):
            assert isinstance(lake.fail(events(pa.table(rows), metadata=given)), kind)
    assert lake.rows() == [{"id": 1, "v": 1}]


# ---- partitions

DAYS = dg.StaticPartitionsDefinition(["mon", "tue"])
MERGING = {"partition_expr": "day", "mode": "merge", "merge_predicate": ON}


def day_rows(**ids: list[int]) -> pa.Table:
    return table_of([{"id": i, "day": day, "v": 0} for day, each in ids.items() for i in each])


def test_a_merge_keeps_to_the_partitions_of_the_run(lake, events):
    full = {"merge_type": "replace_delete_unmatched"}
    metadata = {**MERGING, "merge_config": full}
    lake.materialize(
        events(
            day_rows(mon=[1, 2], tue=[1]), partitions_def=DAYS, metadata={"partition_expr": "day"}
        ),
        range_of=("mon", "tue"),
    )
    changed = table_of([{"id": 1, "day": "mon", "v": 5}])
    lake.materialize(events(changed, partitions_def=DAYS, metadata=metadata), partition="mon")
    assert lake.rows() == [{"id": 1, "day": "mon", "v": 5}, {"id": 1, "day": "tue", "v": 0}]


def test_a_row_of_another_partition_is_refused(lake, events):
    asset = events(day_rows(tue=[1]), partitions_def=DAYS, metadata=MERGING)
    error = lake.fail(asset, partition="mon")
    assert isinstance(error, PartitionMismatch)


def test_a_range_of_partitions_merges_in_one_commit(lake, events):
    metadata = {**MERGING, "merge_predicate": f"{ON} AND t.day = s.day"}
    asset = events(day_rows(mon=[1], tue=[1]), partitions_def=DAYS, metadata=metadata)
    lake.materialize(asset, range_of=("mon", "tue"))
    lake.materialize(asset, range_of=("mon", "tue"))
    assert len(lake.rows()) == 2
    assert lake.table().snapshot().configuration.partition_columns == ("day",)


# ---- in a run


@pytest.mark.parametrize("key", ["schema", "table_name", "mode", "merge_config", "delta/mode"])
def test_metadata_that_a_run_puts_on_its_output_are_notes(lake, events, key):
    asset = events(dg.Output(OLD, metadata={key: "fast", "rows": 2}), metadata={"mode": "append"})
    result = lake.materialize(asset)
    lake.materialize(asset)
    assert len(lake.rows()) == 4
    assert lake.metadata(result)[key] == ("append" if key == "delta/mode" else "fast")


def test_an_option_that_a_run_puts_on_its_output_is_logged_as_without_effect(lake, events, capfd):
    asset = events(dg.Output(OLD, metadata={"mode": "append"}))
    dg.materialize([asset], resources={"io_manager": lake.manager()})
    assert "events put the metadata mode on its output, which" in capfd.readouterr().err


NARROW = "t.id = s.id AND t.v = 'new'"


@pytest.mark.parametrize(
    "noted",
    [
        {"merge_predicate": NARROW},
        {"delta/merge_predicate": NARROW},
        {"merge_config": {"merge_type": "update_only", "predicate": NARROW}},
    ],
    ids=["predicate", "namespace", "config"],
)
def test_merge_takes_the_predicate_that_a_run_puts_on_its_output(lake, events, noted, capfd):
    config = {"merge_type": "update_only", "predicate": ON}
    lake.materialize(events(table_of([{"id": 1, "v": "old"}, {"id": 1, "v": "new"}])))
    rows = dg.Output(table_of([{"id": 1, "v": "newer"}]), metadata=noted)
    asset = events(rows, metadata={"mode": "merge", "merge_config": config})
    lake.materialize(asset)
    assert lake.column("v") == ["newer", "old"]
    assert "changes nothing about its table" not in capfd.readouterr().err


def test_merge_refuses_a_wrong_predicate_that_a_run_puts_on_its_output(lake, events):
    config = {"merge_type": "upsert", "predicate": ON}
    lake.materialize(events(OLD))
    rows = dg.Output(NEW, metadata={"merge_predicate": "t.missing = s.id"})
    error = lake.fail(events(rows, metadata={"mode": "merge", "merge_config": config}))
    assert isinstance(error, DeltaError)
    assert "missing" in str(error)
    assert values(lake) == {1: "old", 2: "old"}


def test_run_config_of_the_io_manager_says_how_to_write(lake, events):
    from dagster_delta.orchestration.io.io_manager import DeltaIOManager

    lake.materialize(events(OLD))
    config = {
        "root_uri": str(lake.root),
        "mode": "merge",
        "merge_config": {"merge_type": "update_only", "predicate": ON},
    }
    dg.materialize(
        [events(NEW)],
        instance=lake.instance,
        resources={"io_manager": DeltaIOManager(root_uri=str(lake.root))},
        run_config={**QUIET, "resources": {"io_manager": {"config": config}}},
    )
    assert values(lake) == {1: "old", 2: "new"}


# ---- what earlier integrations call things, and what makes no sense


def test_enumerations_of_earlier_integrations_are_understood(lake, events):
    class WriteMode(StrEnum):
        merge = "merge"

    metadata = {
        "mode": WriteMode.merge,
        "merge_predicate": ON,
        "table_name": "elsewhere",
        "custom_metadata": {"team": "blue"},
    }
    lake.materialize(events(OLD, metadata=metadata))
    table = lake.table("elsewhere")
    assert table.history(1)[0].commit_info["team"] == "blue"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"merge_config": {"merge_type": "upsert"}}, "there is no predicate"),
        ({"merge_config": {"merge_type": "custom", "predicate": ON}}, "no merge_operations_config"),
        (
            {"merge_predicate": ON, "merge_operations_config": {"when_matched_delete": [{}]}},
            "a merge_operations_config",
        ),
        ({"merge_config": {"merge_type": "outer", "predicate": ON}}, "merge_type"),
        ({"merge_config": "upsert"}, "'merge_config'"),
        ({"merge_predicate": ON, "schema_mode": "overwrite"}, "columns of existing rows"),
        ({"merge_config": {"predicate": ON, "error_on_type_mismatch": True}}, "has no option"),
        ({"merge_predicate": ON, "writer_properties": {"page_size": "1"}}, "migration.md"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(lake, events, metadata, message):
    error = lake.fail(events(OLD, metadata={"mode": "merge", **metadata}))
    assert isinstance(error, InvalidArgument)
    assert message in str(error)


def test_a_retried_step_merges_once(lake):
    operations = {
        "when_matched_update": [{"updates": {"v": "t.v || s.v"}}],
        "when_not_matched_insert_all": [{}],
    }
    config = {"merge_type": "custom", "predicate": ON, "merge_operations_config": operations}
    crashes = [False, True, False]

    @dg.multi_asset(
        outs={
            "events": dg.AssetOut(
                is_required=False, metadata={"mode": "merge", "merge_config": config}
            ),
            "late": dg.AssetOut(is_required=False),
        },
        retry_policy=dg.RetryPolicy(max_retries=1),
        can_subset=True,
    )
    def both():
        yield dg.Output(OLD, output_name="events")
        if crashes.pop(0):
            raise RuntimeError("the step died after its commit")
        yield dg.Output(OLD, output_name="late")

    lake.materialize(both)
    lake.materialize(both)
    assert crashes == []
    assert values(lake) == {1: "oldold", 2: "oldold"}


@pytest.mark.parametrize("key", ["merge_config", "merge_predicate", "delta/merge_predicate"])
def test_metadata_for_merges_do_not_replace_a_table_of_another_mode(lake, events, key):
    lake.materialize(events(OLD))
    value = {"merge_type": "upsert", "predicate": ON} if key == "merge_config" else ON
    error = lake.fail(events(NEW, metadata={key: value}))
    assert isinstance(error, InvalidArgument)
    assert "its mode is 'overwrite', which does not merge: set 'mode': 'merge'" in str(error)
    assert values(lake) == {1: "old", 2: "old"}


def narrow(kind: pa.DataType, value: float) -> pa.Table:
    return pa.table({"id": [1], "v": pa.array([value], kind)})


def test_a_merge_widens_types_where_the_table_allows_it(lake, events):
    widening = {"table_properties": {"delta.enableTypeWidening": "true"}}
    lake.materialize(events(narrow(pa.float32(), 0.5), metadata=widening))
    config = {"mode": "merge", "merge_config": {"merge_type": "upsert", "predicate": ON}}
    metadata = {**config, "schema_mode": "widen"}
    lake.materialize(events(narrow(pa.float64(), 0.1), metadata=metadata))
    assert values(lake) == {1: 0.1}
    more = narrow(pa.float64(), 0.2).append_column("w", pa.array([1]))
    error = lake.fail(events(more, metadata=metadata))
    assert isinstance(error, SchemaMismatch)
    assert lake.table().schema().names == ("id", "v")


def test_a_merge_that_shall_widen_a_table_without_type_widening_is_refused(lake, events):
    lake.materialize(events(narrow(pa.float32(), 0.5)))
    config = {"mode": "merge", "merge_config": {"merge_type": "upsert", "predicate": ON}}
    error = lake.fail(
        events(narrow(pa.float64(), 0.1), metadata={**config, "schema_mode": "widen"})
    )
    assert isinstance(error, SchemaChangeRefused)
    assert "delta.enableTypeWidening = true" in str(error)
    assert values(lake) == {1: 0.5}
