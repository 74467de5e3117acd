"""Appending rows: schema modes, creation, idempotency, constraints."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta.errors import (
    ConstraintViolation,
    InvalidArgument,
    InvalidCast,
    MetadataChanged,
    PartitionMismatch,
    SchemaChangeRefused,
    SchemaMismatch,
    TableAlreadyExists,
    UnsupportedFeature,
)
from dagster_delta.protocol.actions import Protocol
from dagster_delta.protocol.features.type_widening import type_changes
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.testing.faulty_store import FaultyStore
from tests.table.handles import data_files, interrupted
from tests.table_rows import stored_rows

ROWS = pa.table({"id": [1, 2], "p": ["a", "b"]})


def new(store: Any) -> DeltaTable:
    return DeltaTable("", store=store, must_exist=False)


def actions(store: Any, version: int) -> list[str]:
    lines = store.read(f"_delta_log/{version:020d}.json").splitlines()
    return [next(iter(json.loads(line))) for line in lines]


def test_appending_to_nothing_creates_the_table_in_the_same_commit(store: MemoryStore) -> None:
    result = new(store).append(ROWS, partition_by=["p"], properties={"delta.appendOnly": True})
    assert result.version == 0
    assert actions(store, 0) == ["commitInfo", "protocol", "metaData", "add", "add"]
    assert result.snapshot.metadata.configuration == {"delta.appendOnly": "true"}
    assert stored_rows(store) == ROWS.to_pylist()


def test_a_result_says_what_the_commit_did(store: MemoryStore) -> None:
    result = new(store).append(ROWS)
    assert not result.skipped
    assert result.metrics["numFiles"] == 1
    assert result.metrics["numOutputRows"] == 2
    assert result.metrics["numOutputBytes"] == result.snapshot.size_bytes
    assert result.snapshot.num_records == 2


def test_commit_info_names_the_operation_and_what_the_caller_adds(store: MemoryStore) -> None:
    table = new(store)
    table.append(ROWS, partition_by=["p"])
    table.append(ROWS, commit_info={"dagster_run_id": "r-1"})
    info = table.history(1)[0].commit_info
    assert info["operation"] == "WRITE"
    assert info["operationParameters"] == {"mode": "Append", "partitionBy": '["p"]'}
    assert info["operationMetrics"]["numOutputRows"] == "2"
    assert info["isBlindAppend"] is True
    assert info["isolationLevel"] == "WriteSerializable"
    assert info["readVersion"] == 0
    assert info["engineInfo"].startswith("dagster-delta-protocol/")
    assert info["dagster_run_id"] == "r-1"


def test_rows_come_as_readers_and_frames_too(store: MemoryStore) -> None:
    import pandas as pd
    import polars as pl

    table = new(store)
    table.append(ROWS.to_reader())
    table.append(pd.DataFrame({"id": [3], "p": ["c"]}))
    table.append(pl.DataFrame({"id": [4], "p": ["d"]}).lazy())
    assert [row["id"] for row in stored_rows(store)] == [1, 2, 3, 4]


def test_strict_refuses_new_columns_and_names_the_way_out(store: MemoryStore) -> None:
    table = new(store)
    table.append(ROWS)
    before = data_files(store)
    with pytest.raises(SchemaMismatch, match='schema_mode="merge"'):
        table.append(ROWS.append_column("extra", pa.array([1.0, 2.0])))
    assert data_files(store) == before
    assert table.version() == 0


def test_merge_adds_columns_at_every_depth(store: MemoryStore) -> None:
    table = new(store)
    table.append(pa.table({"s": [{"x": 1}]}))
    table.append(pa.table({"s": [{"x": 2, "y": "n"}], "t": [3]}), schema_mode="merge")
    assert str(table.schema()) == "struct<s:struct<x:long,y:string>,t:long>"
    assert stored_rows(store) == [
        {"s": {"x": 1, "y": None}, "t": None},
        {"s": {"x": 2, "y": "n"}, "t": 3},
    ]


def test_merge_without_anything_new_writes_no_metadata(store: MemoryStore) -> None:
    table = new(store)
    table.append(ROWS)
    table.append(ROWS, schema_mode="merge")
    assert actions(store, 1) == ["commitInfo", "add"]


def test_merge_under_column_mapping_gives_new_columns_ids(store: MemoryStore) -> None:
    table = DeltaTable.create(
        "", ROWS.schema, properties={"delta.columnMapping.mode": "name"}, store=store
    )
    table.append(ROWS)
    table.append(ROWS.append_column("x y", pa.array([1, 2])), schema_mode="merge")
    assert table.metadata().configuration["delta.columnMapping.maxColumnId"] == "3"
    assert table.schema().field("x y").metadata["delta.columnMapping.id"] == 3
    assert {"id": 1, "p": "a", "x y": 1} in stored_rows(store)
    assert {"id": 1, "p": "a", "x y": None} in stored_rows(store)


def test_merge_brings_the_feature_that_a_new_type_needs(store: MemoryStore) -> None:
    table = new(store)
    table.append(ROWS)
    assert table.protocol() == Protocol(min_reader_version=1, min_writer_version=2)
    stamped = ROWS.append_column("at", pa.array([0, 1], pa.timestamp("us")))
    table.append(stamped, schema_mode="merge")
    protocol = table.protocol()
    assert protocol.reader_features == ("timestampNtz",)
    assert set(protocol.writer_features or ()) == {"appendOnly", "invariants", "timestampNtz"}
    assert len(stored_rows(store)) == 4


def test_merge_refuses_a_new_column_without_a_type(store: MemoryStore) -> None:
    table = new(store)
    table.append(ROWS)
    with pytest.raises(InvalidArgument, match="no type"):
        table.append(ROWS.append_column("n", pa.nulls(2)), schema_mode="merge")


def test_types_never_change_unless_the_table_allows_widening(store: MemoryStore) -> None:
    table = new(store)
    table.append(pa.table({"id": pa.array([1], pa.int32())}))
    with pytest.raises(InvalidCast):
        table.append(pa.table({"id": [2**40]}), schema_mode="merge")
    assert table.schema().field("id").data_type == PrimitiveType("integer")


def test_widening_on_write_changes_the_type_and_old_files_read_as_the_new_one(
    store: MemoryStore,
) -> None:
    schema = pa.schema(
        {
            "i": pa.int32(),
            "f": pa.float32(),
            "d": pa.decimal128(6, 2),
            "s": pa.struct({"x": pa.list_(pa.int8())}),
        }
    )
    table = DeltaTable.create(
        "", schema, properties={"delta.enableTypeWidening": "true"}, store=store
    )
    table.append(pa.Table.from_pylist([{"i": 1, "f": 1.5, "d": 2, "s": {"x": [3]}}], schema=schema))
    wider = pa.schema(
        {
            "i": pa.int64(),
            "f": pa.float64(),
            "d": pa.decimal128(12, 4),
            "s": pa.struct({"x": pa.list_(pa.int32())}),
        }
    )
    row = {"i": 2**40, "f": 0.1, "d": 7, "s": {"x": [70_000]}}
    table.append(pa.Table.from_pylist([row], schema=wider), schema_mode="merge")
    assert str(table.schema()) == (
        "struct<i:long,f:double,d:decimal(12,4),s:struct<x:array<integer>>>"
    )
    (change,) = type_changes(table.schema().field("i"))
    assert str(change.from_type) == "integer"
    assert [(r["i"], r["f"], float(r["d"]), r["s"]["x"]) for r in stored_rows(store)] == [
        (1, 1.5, 2.0, [3]),
        (2**40, 0.1, 7.0, [70_000]),
    ]
    assert DeltaTable("", store=store).snapshot().scan(where="i = 1").count() == 1


def test_an_append_cannot_replace_the_schema(store: MemoryStore) -> None:
    with pytest.raises(InvalidArgument, match="overwrite"):
        new(store).append(ROWS, schema_mode="overwrite")


@pytest.mark.parametrize(
    "arguments",
    [
        {"schema_mode": "lenient"},
        {"partition_by": "p"},
        {"idempotency": "app"},
        {"idempotency": ("app", "1")},
        {"engine": "abacus"},
        {"commit_info": {"txnId": "x"}},
    ],
)
def test_nonsense_is_refused_and_nothing_is_written(
    store: MemoryStore, arguments: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument):
        new(store).append(ROWS, **arguments)
    assert list(store.list_recursive()) == []


def test_partitioning_of_an_existing_table_cannot_be_changed(store: MemoryStore) -> None:
    table = new(store)
    table.append(ROWS, partition_by=["p"])
    table.append(ROWS, partition_by=["P"])
    with pytest.raises(InvalidArgument, match="partitioned by"):
        table.append(ROWS, partition_by=["id"])


def test_a_repeated_call_writes_nothing_and_says_so(store: MemoryStore) -> None:
    table = new(store)
    assert not table.append(ROWS, idempotency=("app", 3)).skipped
    files = data_files(store)
    for version in (3, 2):
        again = new(store).append(ROWS, idempotency=("app", version))
        assert again.skipped
        assert again.version == 0
        assert again.metrics == {}
    assert data_files(store) == files
    assert not table.append(ROWS, idempotency=("app", 4)).skipped
    assert not table.append(ROWS, idempotency=("other", 1)).skipped


@pytest.mark.parametrize("exists", [True, False])
def test_the_same_call_in_a_race_lands_once(store: MemoryStore, exists: bool) -> None:
    if exists:
        new(store).append(ROWS)
    late = interrupted(store, lambda other: other.append(ROWS, idempotency=("app", 1)))
    result = late.append(ROWS, idempotency=("app", 1))
    assert result.skipped
    snapshot = DeltaTable("", store=store).snapshot()
    assert snapshot.num_files == len(data_files(store))
    assert snapshot.num_records == (4 if exists else 2)


def test_two_creators_with_one_schema_both_land(store: MemoryStore) -> None:
    late = interrupted(store, lambda other: other.append(ROWS, partition_by=["p"]))
    assert late.append(ROWS, partition_by=["p"]).version == 1
    assert len(stored_rows(store)) == 4
    assert actions(store, 1) == ["commitInfo", "add", "add"]


def test_a_creator_that_lost_finds_its_own_call_in_a_later_commit(store: MemoryStore) -> None:
    late = interrupted(
        store, lambda other: (other.append(ROWS), other.append(ROWS, idempotency=("app", 1)))
    )
    result = late.append(ROWS, idempotency=("app", 1))
    assert result.skipped
    assert len(stored_rows(store)) == 4
    assert len(data_files(store)) == 2


@pytest.mark.parametrize(
    ("theirs", "error"),
    [
        ({"data": ROWS}, "partitioned by"),
        ({"data": ROWS.rename_columns(["id", "q"]), "partition_by": ["q"]}, "partitioned by"),
        (
            {"data": ROWS, "partition_by": ["p"], "properties": {"delta.appendOnly": "true"}},
            "created the table first",
        ),
    ],
)
def test_a_creator_that_lost_to_another_table_leaves_nothing(
    store: MemoryStore, theirs: dict[str, Any], error: str
) -> None:
    late = interrupted(store, lambda other: other.append(**theirs))
    with pytest.raises((MetadataChanged, InvalidArgument), match=error):
        late.append(ROWS.to_reader(), partition_by=["p"])
    assert len(data_files(store)) == DeltaTable("", store=store).snapshot().num_files


_MAPPED = {"delta.columnMapping.mode": "id", "delta.enableRowTracking": "true"}


@pytest.mark.parametrize("as_stream", [True, False])
def test_two_creators_with_one_schema_give_its_columns_the_same_ids(
    store: MemoryStore, as_stream: bool
) -> None:
    rows = pa.table({"id": [1], "s": [{"x": 7}]})
    late = interrupted(store, lambda other: other.append(rows, properties=_MAPPED))
    late.append(rows.to_reader() if as_stream else rows, properties=_MAPPED)
    assert stored_rows(store) == [{"id": 1, "s": {"x": 7}}] * 2
    assert len(data_files(store)) == 2


@pytest.mark.parametrize("properties", [{}, _MAPPED])
@pytest.mark.parametrize("as_stream", [True, False])
def test_two_writers_that_add_the_same_column_both_commit(
    store: MemoryStore, properties: dict[str, str], as_stream: bool
) -> None:
    new(store).append(pa.table({"id": [1]}), properties=properties)
    rows = pa.table({"id": [2], "extra": ["x"]})
    late = interrupted(store, lambda other: other.append(rows, schema_mode="merge"))
    result = late.append(rows.to_reader() if as_stream else rows, schema_mode="merge")
    assert result.attempts == 2
    assert "metaData" not in actions(store, 2)
    added = {"id": 2, "extra": "x"}
    assert stored_rows(store) == [{"id": 1, "extra": None}, added, added]


def test_a_writer_keeps_the_column_that_another_one_adds_beside_its_own(store: MemoryStore) -> None:
    new(store).append(pa.table({"id": [1]}))
    theirs, mine = pa.table({"id": [2], "a": ["x"]}), pa.table({"id": [3], "b": ["y"]})
    late = interrupted(store, lambda other: other.append(theirs, schema_mode="merge"))
    late.append(mine.to_reader(), schema_mode="merge")
    assert stored_rows(store)[1:] == [
        {"id": 2, "a": "x", "b": None},
        {"id": 3, "a": None, "b": "y"},
    ]


def test_a_column_that_two_writers_add_with_different_types_is_a_conflict(
    store: MemoryStore,
) -> None:
    new(store).append(pa.table({"id": [1]}))
    theirs, mine = pa.table({"id": [2], "a": ["x"]}), pa.table({"id": [3], "a": [1.5]})
    late = interrupted(store, lambda other: other.append(theirs, schema_mode="merge"))
    with pytest.raises(MetadataChanged):
        late.append(mine.to_reader(), schema_mode="merge")
    assert len(data_files(store)) == DeltaTable("", store=store).snapshot().num_files


def test_appends_to_one_version_all_land(store: MemoryStore) -> None:
    new(store).append(ROWS)
    handles = [DeltaTable("", store=store) for _ in range(3)]
    transactions = [handle.transaction() for handle in handles]
    for transaction in transactions:
        transaction.commit("TEST")
    assert DeltaTable("", store=store).version() == 3


def test_not_null_is_enforced_at_every_depth(store: MemoryStore) -> None:
    schema = StructType(
        (
            StructField("id", PrimitiveType("long"), nullable=False),
            StructField(
                "s", StructType((StructField("x", PrimitiveType("long"), nullable=False),))
            ),
        )
    )
    table = DeltaTable.create("", schema, store=store)
    table.append(pa.table({"id": [1, 2], "s": [{"x": 1}, None]}))
    with pytest.raises(ConstraintViolation, match=r"NOT NULL .*id"):
        table.append(pa.table({"id": [1, None], "s": [{"x": 1}, None]}))
    with pytest.raises(ConstraintViolation, match=r"NOT NULL .*s\.x"):
        table.append(pa.table({"id": [1, 2], "s": [{"x": 1}, {"x": None}]}))
    with pytest.raises(SchemaMismatch, match="id"):
        table.append(pa.table({"s": [{"x": 1}]}))
    assert table.version() == 1
    assert len(data_files(store)) == 1


def test_invariants_and_checks_are_enforced(store: MemoryStore) -> None:
    invariant = json.dumps({"expression": {"expression": "id > 3"}})
    schema = StructType(
        (
            StructField("id", PrimitiveType("long"), metadata={"delta.invariants": invariant}),
            StructField("v", PrimitiveType("long")),
        )
    )
    properties = {"delta.constraints.small": "v < 10"}
    table = DeltaTable.create("", schema, properties=properties, store=store)
    table.append(pa.table({"id": [4], "v": [1]}))
    with pytest.raises(ConstraintViolation, match="invariant id"):
        table.append(pa.table({"id": [3], "v": [1]}))
    with pytest.raises(ConstraintViolation, match="CHECK small"):
        table.append(pa.table({"id": [4], "v": [10]}))
    with pytest.raises(ConstraintViolation, match="CHECK small"):
        table.append(pa.table({"id": [4], "v": pa.array([None], pa.int64())}))
    assert len(stored_rows(store)) == 1


def test_a_check_of_the_caller_refuses_rows_outside_it(store: MemoryStore) -> None:
    table = new(store)
    table.append(ROWS, check="p IN ('a', 'b')")
    with pytest.raises(PartitionMismatch):
        table.append(ROWS, check="p = 'a'")
    assert len(stored_rows(store)) == 2


def test_a_table_with_a_feature_we_do_not_write_is_refused_before_a_byte(
    store: MemoryStore,
) -> None:
    new(store).append(ROWS)
    protocol = '{"protocol":{"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":["novel"]}}'
    store.put("_delta_log/00000000000000000001.json", protocol.encode())
    files = sorted(meta.path for meta in store.list_recursive())
    table = DeltaTable("", store=store)
    with pytest.raises(UnsupportedFeature, match="novel"):
        table.append(ROWS)
    assert sorted(meta.path for meta in store.list_recursive()) == files


def test_an_open_handle_does_not_list_the_log_again(store: MemoryStore) -> None:
    counting = FaultyStore(store)
    table = new(counting)
    table.append(ROWS)
    counting.calls.clear()
    for _ in range(5):
        table.append(ROWS)
    assert counting.calls["list_from"] == 0
    assert counting.calls["put_if_absent"] == 10  # a commit and a checksum each


def test_opening_by_path_costs_a_listing_and_small_reads(store: MemoryStore) -> None:
    table = new(store)
    for _ in range(12):
        table.append(ROWS)
    counting = FaultyStore(store)
    DeltaTable("", store=counting)
    assert counting.calls["list_from"] == 1
    assert counting.calls["read"] <= 2
    assert counting.calls["open_input"] == counting.calls["read_range"] == 0


NARROW = pa.table({"id": pa.array([1], pa.int32()), "x": pa.array([0.5], pa.float32())})
WIDE = pa.table({"id": pa.array([2**40], pa.int64()), "x": pa.array([1e300])})


def test_widen_takes_the_wider_types_and_no_new_columns(store: MemoryStore) -> None:
    table = new(store)
    table.append(NARROW, properties={"delta.enableTypeWidening": "true"})
    table.append(WIDE, schema_mode="widen")
    assert str(table.schema()) == "struct<id:long,x:double>"
    assert stored_rows(store) == [{"id": 1, "x": 0.5}, {"id": 2**40, "x": 1e300}]
    with pytest.raises(SchemaMismatch, match='schema_mode="merge"'):
        table.append(WIDE.append_column("new", pa.array([1])), schema_mode="widen")


def test_widen_needs_the_property_where_types_differ(store: MemoryStore) -> None:
    table = new(store)
    table.append(NARROW)
    with pytest.raises(SchemaChangeRefused, match=r"delta\.enableTypeWidening") as caught:
        table.append(WIDE, schema_mode="widen")
    assert "~ id: integer in the table, long in the data" in str(caught.value)
    table.append(NARROW, schema_mode="widen")
    assert table.version() == 1


@pytest.mark.parametrize("mode", ["strict", "merge"])
@pytest.mark.parametrize("enabled", [True, False])
def test_values_that_are_too_wide_name_the_option_that_lets_them_in(
    mode: Any, enabled: bool, store: MemoryStore
) -> None:
    table = new(store)
    table.append(NARROW, properties={"delta.enableTypeWidening": str(enabled).lower()})
    if mode == "merge" and enabled:
        table.append(WIDE, schema_mode=mode)
        return
    with pytest.raises(InvalidCast) as caught:
        table.append(WIDE, schema_mode=mode)
    message = str(caught.value)
    assert 'schema_mode="widen"' in message
    assert ("once the table has the property" in message) is not enabled
    assert "~ id: integer in the table, long in the data" in message


def test_a_bad_row_with_a_date_beyond_python_is_an_example_too() -> None:
    dates = pa.array([5_000_000], pa.int32()).cast(pa.date32())
    rows = pa.table({"id": pa.array([-1], pa.int64()), "day": dates})
    table = DeltaTable.create("memory://append/far", rows.schema, mode="replace")
    table.add_constraint("positive", "id > 0")
    with pytest.raises(ConstraintViolation) as caught:
        table.append(rows)
    shown = "5000000 in date32[day] (outside the years 1 to 9999)"
    assert caught.value.examples == (f"{{'id': -1, 'day': '{shown}'}}",)
    table.drop_constraint("positive")
    table.append(rows)
    with pytest.raises(ConstraintViolation, match="positive") as caught:
        table.add_constraint("positive", "id > 0")
    assert "(outside the years 1 to 9999)" in caught.value.examples[0]


def test_columns_that_something_counts_on_are_widened_by_hand_alone(store: MemoryStore) -> None:
    table = new(store)
    table.append(NARROW, properties={"delta.enableTypeWidening": "true"}, partition_by=["id"])
    table.add_constraint("positive", "x > 0")
    for mode in ("widen", "merge"):
        with pytest.raises(InvalidCast, match="ALTER TABLE"):
            table.append(WIDE, schema_mode=mode)
    table.alter("DROP CONSTRAINT positive, ALTER id TYPE BIGINT")
    table.append(WIDE, schema_mode="widen")
    assert str(table.schema()) == "struct<id:long,x:double>"


@pytest.mark.parametrize("partition_by", [["p"], []])
def test_an_append_for_absent_rows_refuses_a_table_that_has_them(
    store: MemoryStore, partition_by: list[str]
) -> None:
    table = new(store)
    table.append(ROWS, partition_by=partition_by)
    for absent in ("p = 'b'", "true"):
        with pytest.raises(TableAlreadyExists):
            table.append(ROWS, absent=absent)
    assert table.append(ROWS, absent="p = 'c'").version == 1


def test_an_append_for_absent_rows_refuses_those_of_a_concurrent_writer(store: MemoryStore) -> None:
    table = new(store)
    table.append(ROWS, partition_by=["p"])

    def rows_after(other: str) -> pa.RecordBatchReader:
        def batches() -> Any:
            rows = pa.table({"id": [3], "p": [other]})
            DeltaTable("", store=store).append(rows, absent=f"p = '{other}'")
            yield from pa.table({"id": [4], "p": ["c"]}).to_batches()

        return pa.RecordBatchReader.from_batches(ROWS.schema, batches())

    with pytest.raises(TableAlreadyExists):
        table.append(rows_after("c"), absent="p = 'c'")
    assert [row["id"] for row in stored_rows(store) if row["p"] == "c"] == [3]
    DeltaTable("", store=store).delete("p = 'c'")
    DeltaTable("", store=store).append(rows_after("d"), absent="p = 'c'")
    assert [row["id"] for row in stored_rows(store) if row["p"] == "c"] == [4]


def test_an_append_for_absent_rows_reads_files_whose_statistics_do_not_say_what_they_have(
    store: MemoryStore,
) -> None:
    table = new(store)
    schema = pa.schema([("flag", pa.bool_())])
    table.append(schema.empty_table())

    def rows_after(other: bool) -> pa.RecordBatchReader:
        def batches() -> Any:
            rows = pa.table({"flag": [other]})
            DeltaTable("", store=store).append(rows, absent=f"flag = {other}")
            yield from pa.table({"flag": [False]}).to_batches()

        return pa.RecordBatchReader.from_batches(schema, batches())

    table.append(rows_after(True), absent="flag = false")
    assert sorted(row["flag"] for row in stored_rows(store)) == [False, True]
    table.delete("flag = false")
    with pytest.raises(TableAlreadyExists):
        table.append(rows_after(False), absent="flag = false")
    assert sorted(row["flag"] for row in stored_rows(store)) == [False, True]
