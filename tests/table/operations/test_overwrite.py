"""Overwriting everything, what a predicate matches, or the partitions written."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta.errors import (
    ConcurrentAppend,
    ConcurrentDeleteRead,
    ConstraintViolation,
    InvalidArgument,
    PartitionMismatch,
    SchemaChangeRefused,
    SchemaMismatch,
    UnsupportedExpression,
    UnsupportedFeature,
)
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from tests.table.handles import data_files, interrupted
from tests.table.logs import edited

DAYS = [dt.date(2024, 1, day) for day in (1, 1, 2, 2, 3)]
ROWS = pa.table({"id": [1, 2, 3, 4, 5], "day": DAYS})


def day(number: int) -> dt.date:
    return dt.date(2024, 1, number)


def some(*pairs: tuple[int, int]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([i for i, _ in pairs], pa.int64()),
            "day": pa.array([day(n) for _, n in pairs], pa.date32()),
        }
    )


@pytest.fixture
def partitioned(store: MemoryStore) -> DeltaTable:
    table = DeltaTable("", store=store, must_exist=False)
    table.append(ROWS, partition_by=["day"])
    return table


@pytest.fixture
def plain(store: MemoryStore) -> DeltaTable:
    """One file with the ids 1 and 2, one with 3 and 4, one with 5."""
    table = DeltaTable("", store=store, must_exist=False)
    for start, length in ((0, 2), (2, 2), (4, 1)):
        table.append(ROWS.slice(start, length))
    return table


def pairs(store: Any) -> list[tuple[int, int]]:
    table = DeltaTable("", store=store).snapshot().scan().to_arrow()
    return sorted((row["id"], row["day"].day) for row in table.to_pylist())


def paths(table: DeltaTable) -> set[str]:
    return set(table.refresh().files()["path"].to_pylist())


def test_a_whole_overwrite_leaves_the_new_rows_alone(
    store: MemoryStore, partitioned: DeltaTable
) -> None:
    result = partitioned.overwrite(some((9, 9)))
    assert pairs(store) == [(9, 9)]
    assert result.metrics["numRemovedFiles"] == 3
    assert partitioned.snapshot(version=0).num_records == 5
    info = partitioned.history(1)[0]
    assert info.operation_parameters["mode"] == "Overwrite"
    assert info.is_blind_append is False


def test_an_overwrite_of_nothing_creates_the_table(store: MemoryStore) -> None:
    table = DeltaTable("", store=store, must_exist=False)
    assert table.overwrite(ROWS, where="day < DATE '2025-01-01'", partition_by=["day"]).version == 0
    assert len(pairs(store)) == 5


def test_a_predicate_that_matches_nothing_removes_nothing(
    store: MemoryStore, partitioned: DeltaTable
) -> None:
    assert (
        partitioned.overwrite(some((7, 9)), where="day > DATE '2024-01-05'").metrics[
            "numRemovedFiles"
        ]
        == 0
    )
    assert len(pairs(store)) == 6


@pytest.mark.parametrize("partition_by", [[], ["day"]])
@pytest.mark.parametrize("where", ["true", "1 = 1"])
def test_a_constant_that_is_true_replaces_everything(
    store: MemoryStore, where: str, partition_by: list[str]
) -> None:
    table = DeltaTable("", store=store, must_exist=False)
    table.append(ROWS, partition_by=partition_by)
    table.overwrite(some((9, 1)), where=where)
    assert table.snapshot().scan().to_arrow()["id"].to_pylist() == [9]


@pytest.mark.parametrize("partition_by", [[], ["day"]])
@pytest.mark.parametrize("where", ["false", "1 = 2", "null", "CAST(null AS BOOLEAN)"])
def test_a_constant_that_is_not_true_replaces_nothing_and_takes_no_rows(
    store: MemoryStore, where: str, partition_by: list[str]
) -> None:
    table = DeltaTable("", store=store, must_exist=False)
    table.append(ROWS, partition_by=partition_by)
    with pytest.raises(PartitionMismatch):
        table.overwrite(some((9, 1)), where=where)
    assert table.refresh().version == 0
    table.overwrite(some(), where=where)
    assert table.snapshot().num_records == 5


@pytest.mark.parametrize("check", ["null", "null AND id = 1", "CAST(null AS BOOLEAN)"])
def test_an_append_with_a_check_that_is_never_true_is_refused(
    plain: DeltaTable, check: str
) -> None:
    with pytest.raises(PartitionMismatch):
        plain.append(some((9, 1)), check=check)


@pytest.mark.parametrize("rows", [some((7, 3)), some((7, 2), (8, 1))])
def test_rows_outside_the_predicate_are_refused_with_examples(
    store: MemoryStore, partitioned: DeltaTable, rows: pa.Table
) -> None:
    files = data_files(store)
    with pytest.raises(PartitionMismatch) as caught:
        partitioned.overwrite(rows, where="day = DATE '2024-01-02'")
    assert caught.value.examples
    assert data_files(store) == files
    assert len(pairs(store)) == 5


def test_null_partitions_are_replaced_by_is_null_and_kept_by_equality(store: MemoryStore) -> None:
    table = DeltaTable("", store=store, must_exist=False)
    table.append(pa.table({"id": [1, 2], "p": ["a", None]}), partition_by=["p"])
    table.overwrite(pa.table({"id": [3], "p": ["a"]}), where="p = 'a'")
    table.overwrite(pa.table({"id": [4], "p": pa.array([None], pa.string())}), where="p IS NULL")
    rows = table.snapshot().scan().to_arrow().to_pylist()
    assert sorted(rows, key=repr) == [{"id": 3, "p": "a"}, {"id": 4, "p": None}]


@pytest.mark.parametrize("declared", ["where", "check", "not_null"])
def test_an_empty_partition_value_meets_no_constraint_that_its_null_would_break(
    store: MemoryStore, declared: str
) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("p", pa.string(), declared != "not_null")])
    properties = {"delta.constraints.known": "P IS NOT NULL"} if declared == "check" else {}
    uri = store.location.uri
    table = DeltaTable.create(uri, schema, partition_by=["p"], properties=properties)
    table.append(pa.table({"id": [1], "p": ["x"]}))
    where = "p = ''" if declared == "where" else None
    with pytest.raises(ConstraintViolation, match="empty string becomes null"):
        table.overwrite(pa.table({"id": [2], "p": [""]}), where=where)
    if where is None:
        with pytest.raises(ConstraintViolation, match="empty string becomes null"):
            table.update(set={"p": "''"})
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"id": 1, "p": "x"}]


def test_a_predicate_on_data_keeps_the_rows_that_do_not_match(
    store: MemoryStore, plain: DeltaTable
) -> None:
    before = paths(plain)
    result = plain.overwrite(some((3, 30)), where="id = 3 -- the third")
    assert pairs(store) == [(1, 1), (2, 1), (3, 30), (4, 2), (5, 3)]
    assert len(before & paths(plain)) == 2
    assert result.metrics["numRemovedFiles"] == 1
    assert result.metrics["numCopiedRows"] == 1


def test_files_that_match_as_a_whole_are_not_rewritten(
    store: MemoryStore, plain: DeltaTable
) -> None:
    result = plain.overwrite(some((8, 8)), where="id >= 3")
    assert pairs(store) == [(1, 1), (2, 1), (8, 8)]
    assert result.metrics["numRemovedFiles"] == 2
    assert "numCopiedRows" not in result.metrics


def test_files_that_only_seemed_to_match_are_left_alone(store: MemoryStore) -> None:
    table = DeltaTable("", store=store, must_exist=False)
    table.append(some((1, 1), (9, 1)))
    before = paths(table)
    result = table.overwrite(some((5, 2)), where="id = 5")
    assert before < paths(table)
    assert result.metrics["numRemovedFiles"] == 0


def test_a_predicate_on_both_kinds_of_columns(store: MemoryStore, partitioned: DeltaTable) -> None:
    partitioned.overwrite(some((2, 1)), where="day = DATE '2024-01-01' AND id > 1")
    assert pairs(store) == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)]
    (info,) = partitioned.history(1)
    assert info.operation_metrics["numCopiedRows"] == "1"


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_part_of_a_file_that_is_replaced_stands_in_the_change_data_feed(
    vectors: str, store: MemoryStore
) -> None:
    table = DeltaTable.create(
        "",
        ROWS.schema,
        properties={
            "delta.enableChangeDataFeed": "true",
            "delta.enableDeletionVectors": vectors,
        },
        store=store,
    )
    table.append(ROWS)
    table.append(some((3, 3)))
    table.overwrite(some((3, 1), (3, 5)), where="id = 3")
    changed = table.changes(3).to_arrow()
    found = zip(changed["_change_type"].to_pylist(), changed["id"].to_pylist(), strict=True)
    assert sorted(found) == [("delete", 3), ("delete", 3), ("insert", 3), ("insert", 3)]
    assert bool(recorded(store)) == (vectors == "false")
    table.overwrite(some((3, 2)), where="id > 0")
    assert pairs(store) == [(3, 2)]


def recorded(store: MemoryStore) -> list[str]:
    return [each.path for each in store.list_from("_change_data", "") if "cdc" in each.path]


def test_dynamic_knows_a_partition_however_its_value_is_spelled(store: MemoryStore) -> None:
    stamps = pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC"))
    table = DeltaTable("", store=store, must_exist=False)
    table.append(pa.table({"id": [1], "at": stamps}), partition_by=["at"])
    path = "_delta_log/00000000000000000000.json"
    commit = store.read(path)
    (values,) = re.findall(rb'"partitionValues":{"at":"[^"]*"}', commit)
    spelled = b'"partitionValues":{"at":"2024-01-01 00:00:00.000"}'
    store.put(path, edited(commit, values, spelled))
    reopened = DeltaTable("", store=store)
    reopened.overwrite(pa.table({"id": [2], "at": stamps}), where="dynamic")
    assert reopened.snapshot().scan().to_arrow()["id"].to_pylist() == [2]


def test_dynamic_needs_partitions(plain: DeltaTable) -> None:
    with pytest.raises(InvalidArgument, match="dynamic"):
        plain.overwrite(ROWS, where="dynamic")


def test_the_schema_is_replaced_with_all_rows(store: MemoryStore, partitioned: DeltaTable) -> None:
    new = pa.table({"x": ["a"], "y": [1]})
    with pytest.raises(SchemaMismatch, match="schema_mode"):
        partitioned.overwrite(new)
    partitioned.overwrite(new, schema_mode="overwrite", partition_by=["x"])
    assert partitioned.schema().names == ("x", "y")
    assert partitioned.metadata().partition_columns == ("x",)
    assert partitioned.snapshot().scan().to_arrow().to_pylist() == [{"x": "a", "y": 1}]
    assert partitioned.snapshot(version=0).scan().count() == 5


def test_a_replaced_schema_keeps_the_partitioning_it_can_keep(partitioned: DeltaTable) -> None:
    partitioned.overwrite(ROWS.append_column("more", pa.array([1] * 5)), schema_mode="overwrite")
    assert partitioned.metadata().partition_columns == ("day",)
    with pytest.raises(InvalidArgument, match="day"):
        partitioned.overwrite(pa.table({"x": [1]}), schema_mode="overwrite")


def test_the_schema_is_not_replaced_for_a_part_of_the_rows(partitioned: DeltaTable) -> None:
    with pytest.raises(InvalidArgument, match="where"):
        partitioned.overwrite(ROWS, schema_mode="overwrite", where="id = 1")


def test_new_columns_merge_into_an_overwrite(store: MemoryStore, plain: DeltaTable) -> None:
    wider = some((3, 2)).append_column("note", pa.array(["new"]))
    plain.overwrite(wider, where="id = 3", schema_mode="merge")
    rows = plain.snapshot().scan().to_arrow().to_pylist()
    assert {row["id"]: row["note"] for row in rows} == {
        1: None,
        2: None,
        3: "new",
        4: None,
        5: None,
    }


@pytest.mark.parametrize("where", ["id =", "no_such > 1", "id + 1", ""])
def test_a_predicate_that_makes_no_sense_is_refused(
    store: MemoryStore, plain: DeltaTable, where: str
) -> None:
    files = data_files(store)
    with pytest.raises((InvalidArgument, SchemaMismatch)):
        plain.overwrite(some((1, 1)), where=where)
    assert data_files(store) == files


@pytest.mark.parametrize("where", [None, "day = DATE '2024-01-02'", "id = 3", "dynamic"])
def test_an_append_only_table_loses_no_rows(store: MemoryStore, where: str | None) -> None:
    table = DeltaTable("", store=store, must_exist=False)
    table.append(ROWS, partition_by=["day"], properties={"delta.appendOnly": "true"})
    files = data_files(store)
    with pytest.raises(UnsupportedFeature, match="append-only"):
        table.overwrite(some((3, 2)), where=where)
    assert data_files(store) == files
    table.overwrite(some((3, 9)), where="day = DATE '2024-01-09'")
    assert len(pairs(store)) == 6


def test_overwrites_of_different_partitions_both_land(
    store: MemoryStore, partitioned: DeltaTable
) -> None:
    mine = interrupted(store, lambda t: t.overwrite(some((7, 1)), where="day = DATE '2024-01-01'"))
    mine.overwrite(some((8, 2)), where="day = DATE '2024-01-02'")
    assert pairs(store) == [(5, 3), (7, 1), (8, 2)]


def test_dynamic_overwrites_of_different_partitions_both_land(
    store: MemoryStore, partitioned: DeltaTable
) -> None:
    mine = interrupted(store, lambda t: t.overwrite(some((7, 1)), where="dynamic"))
    mine.overwrite(some((8, 2)), where="dynamic")
    assert pairs(store) == [(5, 3), (7, 1), (8, 2)]


def test_overwrites_of_different_key_ranges_both_land(
    store: MemoryStore, plain: DeltaTable
) -> None:
    mine = interrupted(store, lambda t: t.overwrite(some((1, 11), (2, 11)), where="id < 3"))
    mine.overwrite(some((5, 13)), where="id = 5")
    assert pairs(store) == [(1, 11), (2, 11), (3, 2), (4, 2), (5, 13)]


@pytest.mark.parametrize("properties", [{}, {"delta.columnMapping.mode": "name"}])
@pytest.mark.parametrize("where", ["day = DATE '2024-01-02'", "dynamic", None])
def test_an_overwrite_continues_on_the_table_that_another_one_creates(
    store: MemoryStore, where: str | None, properties: dict[str, str]
) -> None:
    options: Any = {"partition_by": ["day"], "properties": properties}
    mine = interrupted(store, lambda t: t.overwrite(some((7, 1), (6, 2)), **options))
    mine.overwrite(some((8, 2)).to_reader(), where=where, **options)
    assert pairs(store) == ([(8, 2)] if where is None else [(7, 1), (8, 2)])


@pytest.mark.parametrize("where", ["day = DATE '2024-01-02'", "dynamic"])
def test_overwrites_that_add_the_same_column_both_commit(
    store: MemoryStore, partitioned: DeltaTable, where: str
) -> None:
    def rows(number: int) -> pa.Table:
        return some((7, number)).append_column("extra", pa.array(["x"]))

    mine = interrupted(store, lambda t: t.overwrite(rows(1), where="dynamic", schema_mode="merge"))
    mine.overwrite(rows(2), where=where, schema_mode="merge")
    assert pairs(store) == [(5, 3), (7, 1), (7, 2)]


@pytest.mark.parametrize("where", ["day = DATE '2024-01-02'", "dynamic", None])
def test_overwrites_of_the_same_rows_conflict_and_leave_nothing(
    store: MemoryStore, partitioned: DeltaTable, where: str | None
) -> None:
    mine = interrupted(store, lambda t: t.overwrite(some((7, 2)), where="dynamic"))
    with pytest.raises((ConcurrentAppend, ConcurrentDeleteRead)):
        mine.overwrite(some((8, 2)), where=where, on_conflict="fail")
    assert pairs(store) == [(1, 1), (2, 1), (5, 3), (7, 2)]
    assert len(data_files(store)) == 4


def test_an_append_meanwhile_survives_an_overwrite(
    store: MemoryStore, partitioned: DeltaTable
) -> None:
    mine = interrupted(store, lambda t: t.append(some((9, 2))))
    mine.overwrite(some((8, 2)))
    assert pairs(store) == [(8, 2), (9, 2)]


def test_an_append_meanwhile_conflicts_where_the_table_is_serializable(store: MemoryStore) -> None:
    table = DeltaTable("", store=store, must_exist=False)
    properties = {"delta.isolationLevel": "Serializable"}
    table.append(ROWS, partition_by=["day"], properties=properties)
    mine = interrupted(store, lambda t: t.append(some((9, 2))))
    with pytest.raises(ConcurrentAppend):
        mine.overwrite(some((8, 2)), where="day = DATE '2024-01-02'", on_conflict="fail")
    elsewhere = interrupted(store, lambda t: t.append(some((9, 3))))
    elsewhere.overwrite(some((8, 2)), where="day = DATE '2024-01-02'")
    assert (9, 3) in pairs(store)


def test_an_overwrite_is_idempotent_too(store: MemoryStore, partitioned: DeltaTable) -> None:
    assert not partitioned.overwrite(some((7, 2)), idempotency=("app", 1)).skipped
    partitioned.append(some((8, 2)))
    assert partitioned.overwrite(some((7, 2)), idempotency=("app", 1)).skipped
    assert pairs(store) == [(7, 2), (8, 2)]


def test_a_new_schema_keeps_what_constraints_and_clustering_need(store: MemoryStore) -> None:
    table = DeltaTable.create("", pa.schema([("a", pa.int64()), ("b", pa.int64())]), store=store)
    table.alter("ADD CONSTRAINT c CHECK (a > 0), CLUSTER BY (b)")
    with pytest.raises(UnsupportedExpression, match="CHECK c"):
        table.overwrite(pa.table({"b": [1]}), schema_mode="overwrite")
    with pytest.raises(SchemaChangeRefused, match="CLUSTER BY NONE"):
        table.overwrite(pa.table({"a": [1]}), schema_mode="overwrite")
    table.alter("CLUSTER BY NONE")
    table.overwrite(pa.table({"a": [1]}), schema_mode="overwrite")
    assert table.schema().names == ("a",)


def test_an_overwrite_widens_too(store: MemoryStore) -> None:
    table = DeltaTable.create(
        "",
        pa.schema([("a", pa.int32()), ("b", pa.int32())]),
        store=store,
        properties={"delta.enableTypeWidening": "true"},
    )
    table.append(pa.table({"a": pa.array([1, 2], pa.int32()), "b": pa.array([1, 2], pa.int32())}))
    table.overwrite(pa.table({"a": [2**40], "b": [1]}), where="b = 1", schema_mode="widen")
    assert sorted(table.snapshot().scan().to_arrow()["a"].to_pylist()) == [2, 2**40]
