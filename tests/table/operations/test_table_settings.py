"""Properties, features and protocol versions of a table that exists, each change in one commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from dagster_delta import Column
from dagster_delta.errors import InvalidArgument, MetadataChanged
from dagster_delta.protocol.actions import Protocol
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.log.state import LogState
from dagster_delta.testing.faulty_store import FaultyStore
from tests.table.handles import reopened

SCHEMA = pa.schema([("id", pa.int64())])

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": ["a", "b", "c"]})


def table_with(properties: dict[str, Any] | None = None) -> DeltaTable:
    table = DeltaTable.create("", ROWS.schema, properties=properties, store=MemoryStore())
    table.append(ROWS)
    return table


def actions(table: DeltaTable, version: int) -> list[tuple[str, Any]]:
    lines = table.store.read(commit_path(version)).splitlines()
    return [next(iter(json.loads(line).items())) for line in lines]


def test_a_legacy_protocol_gives_way_to_lists_of_all_it_implied() -> None:
    table = table_with({"delta.constraints.c": "id > 0"})
    table.set_properties({"delta.enableDeletionVectors": True})
    assert reopened(table).protocol() == Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=("deletionVectors",),
        writer_features=("appendOnly", "checkConstraints", "deletionVectors", "invariants"),
    )


def test_a_legacy_feature_raises_a_legacy_protocol_only() -> None:
    table = table_with()
    table.set_properties({"delta.enableChangeDataFeed": True})
    assert table.protocol() == Protocol(min_reader_version=1, min_writer_version=4)


def test_setting_what_is_set_makes_no_version() -> None:
    table = table_with({"delta.appendOnly": True})
    result = table.set_properties({"delta.appendOnly": "true"})
    assert (result.skipped, result.version) == (True, 1)


def test_columns_that_are_there_keep_their_names_in_files_when_mapping_begins() -> None:
    table = table_with()
    table.set_properties({"delta.columnMapping.mode": "name"})
    configuration = table.snapshot().configuration
    assert [configuration.physical_name(name) for name in ("id", "v")] == ["id", "v"]
    table.append(ROWS)
    assert reopened(table).snapshot().scan().to_arrow().num_rows == 6


def test_in_commit_timestamps_say_when_they_began() -> None:
    table = table_with()
    version = table.set_properties({"delta.enableInCommitTimestamps": True}).version
    (_, info), *_ = actions(table, version)
    configuration = table.metadata().configuration
    assert configuration["delta.inCommitTimestampEnablementVersion"] == str(version)
    began = configuration["delta.inCommitTimestampEnablementTimestamp"]
    assert began == str(info["inCommitTimestamp"])
    table.unset_properties(["delta.enableInCommitTimestamps"])
    assert table.metadata().configuration == {}


def test_row_ids_are_given_to_rows_that_are_there_and_no_row_changes() -> None:
    table = table_with()
    table.append(ROWS)
    version = table.set_properties({"delta.enableRowTracking": True}).version
    adds = [each for name, each in actions(table, version) if name == "add"]
    assert sorted(each["baseRowId"] for each in adds) == [0, 3]
    assert {(each["defaultRowCommitVersion"], each["dataChange"]) for each in adds} == {
        (version, False)
    }
    found = reopened(table).snapshot().scan(row_ids=True).to_arrow()
    assert sorted(found["_row_id"].to_pylist()) == list(range(6))


def test_rows_appended_while_tracking_is_enabled_are_not_left_without_ids() -> None:
    table = table_with()
    transaction = table.transaction()
    reopened(table).append(ROWS)
    from dagster_delta.evolution.properties import set_properties
    from dagster_delta.table.operations.change_schema import stage_configuration_change

    wanted = set_properties(transaction.configuration, {"delta.enableRowTracking": True})
    stage_configuration_change(transaction, wanted)
    with pytest.raises(Exception, match="added rows"):
        transaction.commit("SET TBLPROPERTIES")


def test_appends_that_race_get_ids_of_their_own() -> None:
    table = table_with({"delta.enableRowTracking": True})
    loser = table.transaction()
    reopened(table).append(ROWS)
    donor = table_with()
    file = actions(donor, 1)[-1][1]
    table.store.put(file["path"], donor.store.read(file["path"]))
    from dagster_delta.protocol.actions import AddFile

    loser.stage_written(
        [
            AddFile(
                path=file["path"],
                partition_values={},
                size_bytes=file["size"],
                modification_time_ms=0,
                data_change=True,
                stats=file["stats"],
            )
        ]
    )
    loser.commit("WRITE")
    files = reopened(table).snapshot().live_files()
    assert sorted(files["base_row_id"].to_pylist()) == [0, 3, 6]
    assert sorted(files["default_row_commit_version"].to_pylist()) == [1, 2, 3]


def test_a_change_of_settings_loses_to_another() -> None:
    table = table_with()
    transaction = table.transaction()
    reopened(table).set_properties({"delta.appendOnly": True})
    transaction.stage_configuration(transaction.configuration)
    with pytest.raises(MetadataChanged):
        transaction.commit("SET TBLPROPERTIES")


COLUMNS = [
    Column("id", "BIGINT"),
    Column("blob", "BINARY"),
    Column("flag", "BOOLEAN"),
    Column("list", "ARRAY<INT>"),
    Column("s", "STRUCT<a: INT, b: BINARY>"),
    Column("p", "INT"),
]


@pytest.mark.parametrize("how", ["create", "replace", "append", "set"])
def test_columns_with_statistics_that_have_none_are_refused_wherever_they_are_named(
    tmp_path: Path, how: str
) -> None:
    uri = str(tmp_path / "table")
    if how in ("replace", "set"):
        DeltaTable.create(uri, COLUMNS, partition_by=["p"])
    before = [*tmp_path.rglob("*")]

    def name(columns: str) -> object:
        properties = {"delta.dataSkippingStatsColumns": columns}
        if how == "append":
            rows = DeltaTable.create(str(tmp_path / "empty"), COLUMNS, mode="ignore")
            data = rows.snapshot().scan().to_arrow()
            table = DeltaTable(uri, must_exist=False)
            return table.append(data, partition_by=["p"], properties=properties)
        if how == "set":
            return DeltaTable(uri).set_properties(properties)
        mode: Literal["error", "replace"] = "replace" if how == "replace" else "error"
        return DeltaTable.create(uri, COLUMNS, partition_by=["p"], properties=properties, mode=mode)

    for columns, message in {
        "idd": "names idd, and the columns are id, blob, flag, list, s, p",
        "id,s.c": "names s.c",
        "blob": "no bounds of type binary",
        "flag": "no bounds of type boolean",
        "list": "no bounds of type",
        "s.b": "no bounds of type binary",
        "p": "a partition column",
    }.items():
        with pytest.raises(InvalidArgument, match=message):
            name(columns)
        assert [path for path in tmp_path.rglob("*") if "empty" not in str(path)] == before
    name("ID,s.a,s")
    assert DeltaTable(uri).metadata().configuration["delta.dataSkippingStatsColumns"] == "ID,s.a,s"


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"delta.enableDeletionVector": True}, "did you mean delta.enableDeletionVectors"),
        ({"delta.nothingLikeIt": 1}, "the properties are delta.appendOnly"),
        ({"delta.appendOnly": "perhaps"}, "neither 'true' nor 'false'"),
        ({"delta.constraints.c": "id > 0"}, "ADD CONSTRAINT c"),
        ({"delta.columnMapping.mode": "id"}, "cannot go from none to id"),
        ({"delta.columnMapping.maxColumnId": 7}, "maintained by writers"),
        ({"delta.dataSkippingStatsColumns": "nope"}, "names nope"),
        ({"delta.minReaderVersion": 2, "delta.minWriterVersion": 3}, "is not a valid protocol"),
        ({"delta.feature.nope": "supported"}, "no table feature nope"),
        ({"delta.enableIcebergCompatV1": True}, "needs column mapping"),
        (
            {"delta.enableIcebergCompatV2": True, "delta.columnMapping.mode": "name"},
            "create a new table",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    properties: dict[str, Any], message: str
) -> None:
    table = table_with()
    with pytest.raises(InvalidArgument, match=message):
        table.set_properties(properties)
    assert reopened(table).version() == 1


def test_unsetting_asks_for_a_property_that_is_there() -> None:
    table = table_with({"my.own": "x"})
    with pytest.raises(InvalidArgument, match=r"it has my\.own"):
        table.unset_properties(["delta.appendOnly"])
    assert table.unset_properties(["delta.appendOnly"], if_exists=True).skipped
    table.unset_properties(["MY.OWN"])
    assert table.metadata().configuration == {}


def test_mapping_is_not_unset_by_its_property() -> None:
    table = table_with({"delta.columnMapping.mode": "name"})
    with pytest.raises(InvalidArgument, match="drop_feature"):
        table.unset_properties(["delta.columnMapping.mode"])


def test_features_and_versions_are_raised_by_name() -> None:
    table = table_with()
    table.enable_feature("vacuumProtocolCheck")
    assert "vacuumProtocolCheck" in (table.protocol().reader_features or ())
    with pytest.raises(InvalidArgument, match="no table feature nope"):
        table.enable_feature("nope")
    legacy = table_with()
    legacy.upgrade_protocol(min_writer_version=7)
    assert legacy.protocol() == Protocol(
        min_reader_version=1, min_writer_version=7, writer_features=("appendOnly", "invariants")
    )
    legacy.upgrade_protocol(min_reader_version=3, min_writer_version=7)
    assert legacy.protocol().reader_features == ()


def test_the_property_comment_is_the_description() -> None:
    table = DeltaTable.create("", SCHEMA, store=MemoryStore(), properties={"comment": "flights"})
    assert table.metadata().description == "flights"
    assert table.metadata().configuration == {}
    table.alter("ALTER TABLE t SET TBLPROPERTIES ('COMMENT' = 'every flight', 'k' = 'v')")
    assert table.metadata().description == "every flight"
    assert table.metadata().configuration == {"k": "v"}
    table.unset_properties(["comment"])
    assert table.metadata().description is None
    assert table.set_properties({"k": "v"}).skipped


@pytest.mark.parametrize("name", ["location", "provider", "owner", "external", "Location"])
def test_names_that_spark_reserves_are_no_properties(name: str) -> None:
    table = DeltaTable.create("", SCHEMA, store=MemoryStore())
    with pytest.raises(InvalidArgument, match=f"{name} cannot be set as a property"):
        table.set_properties({name: "x"})
    assert table.version() == 0


@pytest.mark.parametrize(
    ("reader", "writer"),
    [("99", "7"), ("1", "99"), ("x", "7"), ("1", "07"), ("1", "٧"), ("2", "7")],
)
@pytest.mark.parametrize("exists", [False, True])
def test_no_table_is_made_with_versions_that_are_not(
    reader: str, writer: str, *, exists: bool
) -> None:
    store = MemoryStore()
    if exists:
        DeltaTable.create("", SCHEMA, store=store)
    versions = {"delta.minReaderVersion": reader, "delta.minWriterVersion": writer}
    with pytest.raises(InvalidArgument, match=r"delta\.min(Reader|Writer)Version"):
        DeltaTable.create("", SCHEMA, store=store, mode="replace", properties=versions)


def test_a_table_that_replaces_another_has_at_least_the_versions_asked_for() -> None:
    store = MemoryStore()
    DeltaTable.create("", SCHEMA, store=store)
    versions = {"delta.minReaderVersion": "2", "delta.minWriterVersion": "5"}
    replaced = DeltaTable.create("", SCHEMA, store=store, mode="replace", properties=versions)
    protocol = replaced.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (2, 5)
    assert replaced.metadata().configuration == {}


def test_row_ids_that_begin_a_second_time_are_not_those_of_the_first() -> None:
    table = table_with()
    enable = "SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')"
    table.alter(enable)
    table.append(pa.table({"id": pa.array([4, 5], pa.int64()), "v": ["d", "e"]}))
    # The file that it writes holds the ids of its rows.
    table.update({"v": "'x'"}, where="id <= 3")
    table.drop_feature("rowTracking")
    table.alter(enable)
    ids = reopened(table).snapshot().scan(row_ids=True).to_arrow()["_row_id"].to_pylist()
    assert sorted(ids) == list(range(5))


def test_a_setting_is_planned_again_where_another_writer_was_faster() -> None:
    table = table_with()
    others: list[str] = []

    def interfere(operation: str, path: str) -> None:
        if operation == "put_if_absent" and "_delta_log" in path and not others:
            others.append(path)
            reopened(table).set_properties({"my.own": "x"})

    late = DeltaTable("", store=FaultyStore(table.store, before_call=interfere))
    assert late.set_properties({"delta.appendOnly": True}).attempts == 2
    assert late.metadata().configuration == {"my.own": "x", "delta.appendOnly": "true"}


def test_a_setting_takes_no_list_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_with()

    def refuse(*_: object) -> Any:
        raise AssertionError("the files are listed")

    for name in ("live_files", "file_batches"):
        monkeypatch.setattr(LogState, name, refuse)
    monkeypatch.setattr(LogState, "num_files", property(refuse))
    table = reopened(table)
    table.set_properties({"delta.appendOnly": True})
    table.set_description("rows of letters")
    (newest, before) = table.history(2)
    assert (newest.operation, before.operation) == ("UPDATE TABLE METADATA", "SET TBLPROPERTIES")
    assert before.operation_parameters["properties"] == '{"delta.appendOnly":"true"}'
