"""Opening and creating tables."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta.errors import (
    InvalidArgument,
    TableAlreadyExists,
    TableNotFound,
    UnsupportedFeature,
    VersionNotFound,
)
from dagster_delta.protocol.schema import DecimalType, PrimitiveType, StructField, StructType
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.statement import Factory, Statement
from dagster_delta.testing.faulty_store import FaultyStore

SCHEMA = pa.schema({"id": pa.int64(), "p": pa.string()})
ROWS = pa.table({"id": [1, 2], "p": ["a", "b"]})


def create(store: MemoryStore, schema: Any = SCHEMA, **arguments: Any) -> DeltaTable:
    return DeltaTable.create("", schema, store=store, **arguments)


def protocol_of(store: MemoryStore, schema: Any = SCHEMA, **properties: str) -> tuple[Any, ...]:
    keys = {f"delta.{key.replace('__', '.')}": value for key, value in properties.items()}
    protocol = create(store, schema, properties=keys).protocol()
    return (
        protocol.min_reader_version,
        protocol.min_writer_version,
        protocol.reader_features,
        protocol.writer_features,
    )


def test_opening_nothing_is_table_not_found(tmp_path: Path) -> None:
    with pytest.raises(TableNotFound):
        DeltaTable(str(tmp_path))
    with pytest.raises(TableNotFound):
        DeltaTable(str(tmp_path / "absent"))


def test_a_location_without_a_table_can_be_opened_to_create_one(store: MemoryStore) -> None:
    table = DeltaTable("", store=store, must_exist=False)
    with pytest.raises(TableNotFound):
        table.version()
    assert table.append(ROWS, partition_by=["p"]).version == 0
    assert table.metadata().partition_columns == ("p",)


def test_is_delta_table(store: MemoryStore) -> None:
    assert not DeltaTable.is_delta_table("", store=store)
    create(store)
    assert DeltaTable.is_delta_table("", store=store)


def test_an_empty_log_directory_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    assert not DeltaTable.is_delta_table(tmp_path)


def test_a_new_table_is_empty_and_says_what_it_is(store: MemoryStore) -> None:
    table = create(
        store, partition_by=["P"], name="n", description="d", properties={"my.own": "value"}
    )
    assert table.version() == 0
    assert table.schema().names == ("id", "p")
    metadata = table.metadata()
    assert (metadata.name, metadata.description) == ("n", "d")
    assert metadata.partition_columns == ("p",)
    assert metadata.configuration == {"my.own": "value"}
    assert table.snapshot().num_files == 0
    (entry,) = table.history()
    assert entry.operation == "CREATE TABLE"


def test_none_stands_for_no_columns_as_in_writes(store: MemoryStore) -> None:
    schema = pa.schema([pa.field("id", pa.int64())])
    table = DeltaTable.create("", schema, partition_by=None, cluster_by=None, store=store)
    assert table.snapshot().configuration.partition_columns == ()
    assert table.history()[0].operation == "CREATE TABLE"


def test_a_schema_of_ours_is_taken_as_it_is(store: MemoryStore) -> None:
    schema = StructType(
        (
            StructField("a", DecimalType(10, 2), nullable=False, metadata={"comment": "money"}),
            StructField("b", PrimitiveType("string")),
        )
    )
    assert create(store, schema).schema() == schema


def test_creating_twice_is_an_error_unless_told_otherwise(store: MemoryStore) -> None:
    create(store)
    with pytest.raises(TableAlreadyExists):
        create(store)
    assert create(store, pa.schema({"x": pa.int64()}), mode="ignore").schema().names == ("id", "p")


def test_replacing_keeps_id_and_history_and_drops_rows(store: MemoryStore) -> None:
    table = create(store)
    table.append(ROWS)
    replaced = create(store, pa.schema({"x": pa.date32()}), mode="replace")
    assert replaced.version() == 2
    assert replaced.schema().names == ("x",)
    assert replaced.snapshot().num_files == 0
    assert replaced.metadata().id == table.metadata().id
    assert replaced.snapshot(version=1).scan().to_arrow().num_rows == 2


def test_an_append_only_table_with_rows_is_not_replaced(store: MemoryStore) -> None:
    table = create(store, properties={"delta.appendOnly": "true"})
    create(store, mode="replace", properties={"delta.appendOnly": "true"})
    table.append(ROWS)
    with pytest.raises(UnsupportedFeature, match="append-only"):
        create(store, mode="replace")
    assert table.snapshot().num_records == 2


def test_replacing_never_lowers_the_protocol(store: MemoryStore) -> None:
    create(store, properties={"delta.enableDeletionVectors": "true"})
    protocol = create(store, mode="replace").protocol()
    assert "deletionVectors" in (protocol.writer_features or ())


def test_the_loser_of_two_creators_sees_that_the_table_is_there(store: MemoryStore) -> None:
    with pytest.raises(TableAlreadyExists):
        DeltaTable.create("", SCHEMA, store=overtaken(store))
    assert DeltaTable("", store=store).version() == 0


def test_the_loser_of_two_creators_opens_the_table_where_that_will_do(store: MemoryStore) -> None:
    table = DeltaTable.create("", SCHEMA, store=overtaken(store), mode="ignore")
    assert table.version() == 0
    assert table.metadata().name == "first"


def overtaken(store: MemoryStore) -> FaultyStore:
    """The store, into which a rival puts a table just before the first commit."""

    def rival(operation: str, path: str) -> None:
        if operation == "put_if_absent" and not DeltaTable.is_delta_table("", store=store):
            create(store, name="first")

    return FaultyStore(store, before_call=rival)


@pytest.mark.parametrize(
    ("properties", "protocol"),
    [
        ({}, (1, 2, None, None)),
        ({"appendOnly": "true"}, (1, 2, None, None)),
        ({"constraints__positive": "id > 0"}, (1, 3, None, None)),
        ({"enableChangeDataFeed": "true"}, (1, 4, None, None)),
        ({"columnMapping__mode": "name"}, (2, 5, None, None)),
        (
            {"enableDeletionVectors": "true"},
            (3, 7, ("deletionVectors",), ("deletionVectors",)),
        ),
        ({"enableInCommitTimestamps": "true"}, (1, 7, None, ("inCommitTimestamp",))),
        (
            {"enableDeletionVectors": "true", "columnMapping__mode": "id"},
            (3, 7, ("columnMapping", "deletionVectors"), ("columnMapping", "deletionVectors")),
        ),
        ({"minReaderVersion": "2", "minWriterVersion": "5"}, (2, 5, None, None)),
        (
            {"minReaderVersion": "3", "minWriterVersion": "7"},
            (3, 7, (), ()),
        ),
        ({"feature__v2Checkpoint": "supported"}, (3, 7, ("v2Checkpoint",), ("v2Checkpoint",))),
    ],
)
def test_the_protocol_is_the_lowest_that_will_do(
    store: MemoryStore, properties: dict[str, str], protocol: tuple[Any, ...]
) -> None:
    assert protocol_of(store, **properties) == protocol


def test_timestamps_without_zone_bring_their_feature(store: MemoryStore) -> None:
    schema = pa.schema({"at": pa.list_(pa.timestamp("us")), "id": pa.int64()})
    assert protocol_of(store, schema) == (3, 7, ("timestampNtz",), ("timestampNtz",))


def test_protocol_properties_are_not_kept(store: MemoryStore) -> None:
    properties = {"delta.feature.v2Checkpoint": "supported", "delta.minReaderVersion": "3"}
    assert create(store, properties=properties).metadata().configuration == {}


def test_column_mapping_assigns_ids_and_names(store: MemoryStore) -> None:
    schema = pa.schema({"a b": pa.int64(), "s": pa.struct({"x": pa.int32()})})
    table = create(store, schema, properties={"delta.columnMapping.mode": "name"})
    assert table.metadata().configuration["delta.columnMapping.maxColumnId"] == "3"
    physical = table.schema().field("a b").metadata["delta.columnMapping.physicalName"]
    assert str(physical).startswith("col-")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"properties": {"delta.apendOnly": "true"}}, "delta.appendOnly"),
        ({"properties": {"delta.nonsense": "1"}}, "no table property"),
        ({"properties": {"delta.checkpointInterval": "0"}}, "checkpointInterval"),
        ({"properties": {"delta.appendOnly": "yes"}}, "appendOnly"),
        ({"properties": {"delta.columnMapping.maxColumnId": "4"}}, "cannot be set"),
        ({"properties": {"delta.feature.telepathy": "supported"}}, "telepathy"),
        ({"properties": {"delta.logRetentionDuration": ["x"]}}, "text"),
        ({"partition_by": ["nope"]}, "nope"),
        ({"partition_by": "id"}, "list"),
        ({"partition_by": ["id", "p"]}, "every column"),
        ({"partition_by": ["id", "ID"]}, "twice"),
        ({"mode": "append"}, "mode"),
        ({"schema": pa.schema({"a b": pa.int64()})}, "delta.columnMapping.mode"),
        (
            {"schema": pa.schema({"a": pa.int64(), "A": pa.int64()})},
            "two columns A, as a differs from it in case alone: rename or drop one of them",
        ),
        ({"schema": pa.schema({"a": pa.null(), "b": pa.int64()})}, "no type"),
        ({"schema": pa.schema([])}, "at least one column"),
        (
            {
                "schema": pa.schema({"a": pa.list_(pa.int64()), "b": pa.int64()}),
                "partition_by": ["a"],
            },
            "primitive type",
        ),
    ],
)
def test_nonsense_is_refused_before_anything_is_written(
    store: MemoryStore, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        create(store, **{"schema": SCHEMA, **arguments})
    assert list(store.list_recursive()) == []


@pytest.mark.parametrize("name", ["delta.feature.collations", "delta.feature.geospatial"])
def test_a_table_that_could_not_be_written_is_not_created(store: MemoryStore, name: str) -> None:
    with pytest.raises(UnsupportedFeature):
        create(store, properties={name: "supported"})
    assert list(store.list_recursive()) == []


def test_property_names_are_spelled_properly_and_values_are_text(store: MemoryStore) -> None:
    table = create(store, properties={"DELTA.appendonly": True, "delta.checkpointInterval": 7})
    assert table.metadata().configuration == {
        "delta.appendOnly": "true",
        "delta.checkpointInterval": "7",
    }


def test_time_travel_by_version(store: MemoryStore) -> None:
    table = create(store)
    table.append(ROWS)
    table.append(ROWS)
    assert [table.snapshot(version=n).num_records for n in range(3)] == [0, 2, 4]
    with pytest.raises(VersionNotFound):
        table.snapshot(version=3)
    with pytest.raises(InvalidArgument):
        table.snapshot(version=1, timestamp="2020-01-01")


def test_a_handle_at_a_version_reads_it_and_does_not_write(store: MemoryStore) -> None:
    create(store).append(ROWS)
    old = DeltaTable("", store=store, version=0)
    assert old.version() == 0
    with pytest.raises(InvalidArgument, match="latest"):
        old.append(ROWS)
    assert old.refresh().version == 1
    assert old.append(ROWS).version == 2


def test_a_handle_sees_others_commits_after_an_update(store: MemoryStore) -> None:
    mine, theirs = create(store), DeltaTable("", store=store)
    theirs.append(ROWS)
    assert mine.version() == 0
    assert mine.refresh().version == 1
    assert mine.version() == 1


def test_metadata_domains_of_users_are_kept_and_those_of_the_protocol_are_theirs(
    store: MemoryStore,
) -> None:
    table = create(store, properties={"delta.feature.domainMetadata": "supported"})
    transaction = table.transaction()
    with pytest.raises(InvalidArgument):
        transaction.set_domain_metadata("delta.rowTracking", "{}")
    transaction.set_domain_metadata("mine", '{"a":1}')
    result = transaction.commit("SET DOMAIN")
    assert result.snapshot.domain_metadata()["mine"].configuration == '{"a":1}'


def test_metadata_domains_need_their_feature(store: MemoryStore) -> None:
    with pytest.raises(UnsupportedFeature, match="domainMetadata"):
        create(store).transaction().set_domain_metadata("mine", "{}")


def test_statements_take_their_table_by_position_alone() -> None:
    """A configuration may have a field `table`, which is no argument of a statement."""
    statements = [
        name for name, bound in vars(DeltaTable).items() if isinstance(bound, (Statement, Factory))
    ] or ["alter"]
    for name in ("alter", "restore", "vacuum", "optimize", *statements):
        function = inspect.unwrap(
            getattr(getattr(DeltaTable, name), "__func__", getattr(DeltaTable, name))
        )
        first = next(iter(inspect.signature(function).parameters.values()))
        assert first.kind is inspect.Parameter.POSITIONAL_ONLY, name
