"""The change data feed of tables that we wrote: which rows, of which versions, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_delta.errors import (
    ChangeDataNotRecorded,
    DataFileMissing,
    InvalidArgument,
    InvalidTable,
    LogGap,
    SchemaMismatch,
    UnsupportedExpression,
    VersionNotFound,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.read.change_data_feed import ChangeDataFeed
from tests.sample_tables import FEED, MAPPED, VECTORS, numbered

MAPPED_BY_ID = {"delta.columnMapping.mode": "id"}

KINDS = {
    "rewrite": ({}, ()),
    "vectors": (VECTORS, ()),
    "partitioned": ({}, ("p",)),
    "partitioned vectors": (VECTORS, ("p",)),
    "mapped": (MAPPED, ("p",)),
    "mapped by id": ({**MAPPED_BY_ID, **VECTORS}, ()),
}
every_kind = pytest.mark.parametrize("kind", KINDS)

Change = tuple[int, str, Any, str]


def make(kind: str = "rewrite", *, first: int = 10, store: MemoryStore | None = None) -> DeltaTable:
    """A table that records changes, with ids 0 to `first` - 1 at version 0."""
    properties, partition_by = KINDS[kind]
    table = DeltaTable("", store=store or MemoryStore(), must_exist=False)
    table.append(
        numbered(*range(first)), partition_by=partition_by, properties={**FEED, **properties}
    )
    return table


def changed(table: DeltaTable, start: int = 0, end: int | None = None) -> list[Change]:
    """Version, change type, id and value of every changed row."""
    found = table.changes(start, end).to_arrow().to_pylist()
    return sorted(
        (each["_commit_version"], each["_change_type"], each["id"], each["v"]) for each in found
    )


def configure(
    table: DeltaTable,
    properties: dict[str, str] | None = None,
    *,
    schema: StructType | None = None,
    drop: tuple[str, ...] = (),
) -> None:
    """Commit other properties, or another schema, by a handle of its own."""
    transaction = table.transaction()
    before = transaction.configuration
    settings = {k: v for k, v in before.metadata.configuration.items() if k not in drop}
    transaction.stage_configuration(
        TableConfiguration(
            before.protocol,
            msgspec.structs.replace(
                before.metadata,
                configuration={**settings, **(properties or {})},
                schema_string=(schema or before.schema).to_json(),
            ),
        )
    )
    transaction.commit("ALTER")
    table.refresh()


@every_kind
def test_appends_are_inserts(kind: str) -> None:
    table = make(kind, first=2)
    table.append(numbered(2, 3))
    assert changed(table) == [
        (0, "insert", 0, "v0"),
        (0, "insert", 1, "v1"),
        (1, "insert", 2, "v2"),
        (1, "insert", 3, "v3"),
    ]
    assert changed(table, 1) == changed(table, 1, 1) == changed(table)[2:]


@every_kind
def test_deleted_rows_are_deletes_and_no_others(kind: str) -> None:
    table = make(kind)
    table.delete("id in (3, 4)")
    table.delete("id = 5")
    table.delete("id >= 6")
    assert changed(table, 1) == [
        (1, "delete", 3, "v3"),
        (1, "delete", 4, "v4"),
        (2, "delete", 5, "v5"),
        *((3, "delete", each, f"v{each}") for each in range(6, 10)),
    ]


@every_kind
def test_updated_rows_come_before_and_after(kind: str) -> None:
    table = make(kind)
    table.update({"v": "'new'"}, "id in (1, 2)")
    assert changed(table, 1) == [
        (1, "update_postimage", 1, "new"),
        (1, "update_postimage", 2, "new"),
        (1, "update_preimage", 1, "v1"),
        (1, "update_preimage", 2, "v2"),
    ]


def test_rows_that_a_vector_had_hidden_already_are_not_deleted_again() -> None:
    table = make("vectors")
    table.delete("id = 3")
    table.delete()
    assert [each[2] for each in changed(table, 2)] == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_restored_rows_are_inserts_and_rows_hidden_with_them_deletes() -> None:
    table = make("vectors")
    table.delete("id in (1, 2)")
    first = last_adds(table)[0]
    table.delete("id in (5, 6)")
    second = last_adds(table)[0]
    assert changed(table, 2) == [(2, "delete", 5, "v5"), (2, "delete", 6, "v6")]
    put_commit(table, {"remove": removed(second)}, {"add": first})
    assert changed(table, 3) == [(3, "insert", 5, "v5"), (3, "insert", 6, "v6")]
    # One row comes back and another goes, in one commit.
    table.delete("id = 9")
    third = last_adds(table)[0]
    put_commit(table, {"remove": removed(third)}, {"add": second})
    assert changed(table, 5) == [
        (5, "delete", 5, "v5"),
        (5, "delete", 6, "v6"),
        (5, "insert", 9, "v9"),
    ]
    # And the file without any vector.
    whole = {key: value for key, value in second.items() if key != "deletionVector"}
    put_commit(table, {"remove": removed(second)}, {"add": whole})
    assert [each[1:3] for each in changed(table, 6)] == [
        ("insert", 1),
        ("insert", 2),
        ("insert", 5),
        ("insert", 6),
    ]


def last_adds(table: DeltaTable) -> list[dict[str, Any]]:
    lines = table.store.read(commit_path(table.version())).splitlines()
    return [action["add"] for action in map(json.loads, lines) if "add" in action]


def removed(add: dict[str, Any], **fields: Any) -> dict[str, Any]:
    kept = ("path", "partitionValues", "size", "deletionVector")
    found = {key: add[key] for key in kept if key in add}
    return {**found, "dataChange": True, "deletionTimestamp": 1, **fields}


def put_commit(table: DeltaTable, *actions: dict[str, Any]) -> None:
    data = b"\n".join(json.dumps(each).encode() for each in actions)
    table.store.put_if_absent(commit_path(table.refresh().version + 1), data)
    table.refresh()


def test_commits_that_only_arrange_rows_anew_do_not_show() -> None:
    table = make()
    add = last_adds(table)[0]
    put_commit(
        table,
        {"remove": removed(add, dataChange=False)},
        {"add": {**add, "path": "moved.parquet", "dataChange": False}},
    )
    assert changed(table, 1) == []
    assert [each[0] for each in changed(table)] == [0] * 10


def test_a_file_written_again_as_it_was_is_no_change() -> None:
    table = make()
    add = last_adds(table)[0]
    put_commit(table, {"remove": removed(add)}, {"add": add})
    assert changed(table, 1) == []


def test_a_merge_that_changed_no_row_is_no_change() -> None:
    table = make()
    add = last_adds(table)[0]
    counts = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    metrics = dict.fromkeys(counts, "0")
    file_actions = ({"remove": removed(add)}, {"add": {**add, "path": "again.parquet"}})
    put_commit(
        table, {"commitInfo": {"operation": "MERGE", "operationMetrics": metrics}}, *file_actions
    )
    assert changed(table, 1) == []


def test_the_columns_of_the_feed_stand_behind_those_of_the_table() -> None:
    feed = make().changes(0)
    wanted = [
        ("_change_type", pa.string()),
        ("_commit_version", pa.int64()),
        ("_commit_timestamp", pa.timestamp("us", "UTC")),
    ]
    found = feed.to_arrow().schema
    assert found.names == ["id", "v", "p", *(name for name, _ in wanted)]
    assert [found.field(name).type for name, _ in wanted] == [each for _, each in wanted]
    assert feed.schema.names == tuple(found.names)


def test_an_overwrite_takes_the_old_rows_and_brings_the_new() -> None:
    table = make("partitioned", first=2)
    table.overwrite(numbered(7))
    assert changed(table, 1) == [
        (1, "delete", 0, "v0"),
        (1, "delete", 1, "v1"),
        (1, "insert", 7, "v7"),
    ]


def test_commit_times_are_those_of_the_files(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t", must_exist=False)
    table.append(numbered(1), properties=FEED)
    table.append(numbered(2))
    log = tmp_path / "t" / "_delta_log"
    # The second file is the older one: times are straightened.
    for version, seconds in ((0, 1_700_000_000), (1, 1_600_000_000)):
        os.utime(log / f"{version:020}.json", (seconds, seconds))
    found = DeltaTable(tmp_path / "t").changes(0).to_arrow()["_commit_timestamp"].to_pylist()
    start = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)
    assert found == [start, start + dt.timedelta(milliseconds=1)]
    assert DeltaTable(tmp_path / "t").changes(1).to_arrow()["_commit_timestamp"].to_pylist() == [
        start + dt.timedelta(milliseconds=1)
    ]


def test_in_commit_timestamps_count_where_a_commit_has_one() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(numbered(1), properties={**FEED, "delta.enableInCommitTimestamps": "true"})
    stamp = table.snapshot().timestamp_ms
    found = table.changes(0).to_arrow()["_commit_timestamp"].cast(pa.int64()).to_pylist()
    assert found == [stamp * 1000]


@every_kind
def test_columns_and_filters_over_table_and_feed(kind: str) -> None:
    table = make(kind)
    table.update({"v": "'new'"}, "id < 3")
    table.delete("id = 9")
    feed = table.changes(
        0, columns=["_change_type", "id"], where="_commit_version >= 1 AND id <> 1 AND p = 0"
    )
    assert sorted(feed.to_arrow().to_pylist(), key=str) == [
        {"_change_type": "update_postimage", "id": 0},
        {"_change_type": "update_postimage", "id": 2},
        {"_change_type": "update_preimage", "id": 0},
        {"_change_type": "update_preimage", "id": 2},
    ]
    deletes = table.changes(0, columns=["id"], where="_change_type = 'delete'").to_arrow()
    assert deletes["id"].to_pylist() == [9]
    assert table.changes(0, columns=[], where="_change_type = 'insert'").to_arrow().num_rows == 10


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("_commit_version = 1", [2, 3]),
        ("_commit_version > 0 AND p = 0", [2]),
        ("_change_type = 'insert' AND id > 1", [2, 3]),
        ("id > 1", [2, 3]),
        ("_commit_version < 0", []),
        ("_commit_timestamp < TIMESTAMP '2000-01-01'", []),
    ],
)
def test_files_that_cannot_match_are_not_read(where: str, left: list[int]) -> None:
    table = make("partitioned", first=2)
    for add in last_adds(table):
        table.store.delete([add["path"]])
    table.append(numbered(2, 3))
    assert sorted(table.changes(0, where=where).to_arrow()["id"].to_pylist()) == left
    with pytest.raises(DataFileMissing):
        table.changes(0).to_arrow()


def test_a_filter_for_spark_alone_is_refused_before_a_file_is_read() -> None:
    with pytest.raises(UnsupportedExpression):
        make().changes(0, where="soundex(v) = 'V000'").to_batches()


def test_pandas_and_polars_get_the_same_rows() -> None:
    table = make(first=3)
    feed = table.changes(0)
    assert feed.to_pandas()["id"].tolist() == feed.to_polars()["id"].to_list() == [0, 1, 2]


def test_a_column_named_like_one_of_the_feed_is_refused() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    rows = pa.table({"_Commit_Version": [1]})
    with pytest.raises(InvalidArgument, match="_Commit_Version"):
        table.append(rows, properties=FEED)
    table.append(rows, properties={"delta.enableChangeDataFeed": "false"})
    # A table of another program, which checks nothing.
    log = table.store.read(commit_path(0)).replace(b'Feed":"false"', b'Feed":"true"')
    table.store.put(commit_path(0), log)
    with pytest.raises(InvalidTable, match="_commit_version"):
        DeltaTable("", store=table.store).changes(0)


# Ranges


def test_ranges_by_time_take_the_commits_within(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t", must_exist=False)
    for each in range(4):
        table.append(numbered(each), properties=FEED if each == 0 else None)
    for version in range(4):
        seconds = 1_700_000_000 + 100 * version
        os.utime(tmp_path / "t" / commit_path(version), (seconds, seconds))

    def ids(**bounds: Any) -> list[int]:
        feed = DeltaTable(tmp_path / "t").changes(**bounds)
        return feed.to_arrow()["id"].to_pylist()

    def at(seconds: int) -> dt.datetime:
        return dt.datetime.fromtimestamp(1_700_000_000 + seconds, dt.UTC)

    assert ids(starting_timestamp=at(-50)) == [0, 1, 2, 3]
    assert ids(starting_timestamp=at(100)) == [1, 2, 3]
    assert ids(starting_timestamp=at(101).isoformat(), ending_timestamp=at(299)) == [2]
    assert ids(starting_version=1, ending_timestamp=at(200)) == [1, 2]
    assert ids(starting_timestamp=at(150), ending_version=2) == [2]
    # Nothing was committed between the two.
    assert ids(starting_timestamp=at(110), ending_timestamp=at(120)) == []
    with pytest.raises(VersionNotFound, match="Nothing was committed since"):
        ids(starting_timestamp=at(301))
    with pytest.raises(VersionNotFound):
        ids(starting_version=0, ending_timestamp=at(301))
    with pytest.raises(InvalidArgument, match="before they start"):
        ids(starting_timestamp=at(120), ending_timestamp=at(110))


def test_in_commit_timestamps_decide_where_a_range_starts() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    stamps = []
    for each in range(4):
        ict = {"delta.enableInCommitTimestamps": "true"}
        table.append(numbered(each), properties={**FEED, **ict} if each == 0 else None)
        stamps.append(table.snapshot().timestamp_ms)
    for version, stamp in enumerate(stamps):
        feed = table.changes(starting_timestamp=stamp)
        assert feed.starting_version == version
        assert feed.to_arrow().num_rows == 4 - version


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ({}, "pass starting_version or"),
        ({"starting_version": 0, "starting_timestamp": 0}, "not both"),
        ({"starting_version": 0, "ending_version": 1, "ending_timestamp": 0}, "not both"),
        ({"starting_version": -1}, "must be ≥ 0"),
        ({"starting_version": 1, "ending_version": 0}, "before they start"),
        ({"starting_timestamp": "yesterday"}, "ISO 8601"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(bounds: dict[str, Any], reason: str) -> None:
    table = make()
    table.append(numbered(20))
    with pytest.raises(InvalidArgument, match=reason):
        table.changes(**bounds)


def test_a_start_beyond_the_latest_version_is_refused() -> None:
    table = make()
    with pytest.raises(VersionNotFound, match="the latest version is 0") as caught:
        table.changes(1)
    assert caught.value.version == 1


def test_an_end_beyond_the_latest_version_reads_up_to_it() -> None:
    table = make()
    feed = table.changes(0, 99)
    assert feed.ending_version == 0
    assert feed.to_arrow().num_rows == 10


def test_a_handle_finds_the_commits_of_others_when_they_are_asked_for() -> None:
    store = MemoryStore()
    table = make(store=store)
    DeltaTable("", store=store).append(numbered(20))
    assert table.changes(0).ending_version == 0
    assert table.changes(1).to_arrow()["id"].to_pylist() == [20]
    assert table.changes(0, 1).ending_version == 1


def test_a_handle_at_a_version_reads_the_changes_up_to_it() -> None:
    store = MemoryStore()
    make(store=store).append(numbered(20))
    assert DeltaTable("", store=store, version=0).changes(0).ending_version == 0


# What is lost


def test_a_cleaned_log_is_refused_with_the_version_to_go_on_from() -> None:
    table = make()
    for each in range(20, 24):
        table.append(numbered(each))
    table.checkpoint()
    table.store.delete([commit_path(0), commit_path(1)])
    with pytest.raises(VersionNotFound, match=r"versions 0 to 1.*from version 2 on") as caught:
        table.changes(0).to_arrow()
    assert caught.value.version == 0
    assert [each[2] for each in changed(table, 2)] == [21, 22, 23]


def test_a_log_cleaned_beyond_the_end_of_the_range_is_refused() -> None:
    table = make()
    table.append(numbered(20))
    table.checkpoint()
    table.store.delete([commit_path(0), commit_path(1)])
    with pytest.raises(VersionNotFound, match="wait for changes"):
        DeltaTable("", store=table.store).changes(0).to_arrow()


def test_a_missing_commit_inside_the_range_is_a_gap() -> None:
    table = make()
    for each in range(20, 25):
        table.append(numbered(each))
    table.checkpoint()
    table.store.delete([commit_path(2), commit_path(4)])
    with pytest.raises(LogGap, match="versions 2, 4") as caught:
        DeltaTable("", store=table.store).changes(1).to_arrow()
    assert caught.value.version == 2


def test_a_vacuumed_file_is_named_with_the_version_of_its_changes() -> None:
    table = make()
    table.append(numbered(20))
    (gone,) = last_adds(table)
    table.store.delete([gone["path"]])
    with pytest.raises(DataFileMissing, match="of version 1 ") as caught:
        table.changes(0).to_arrow()
    assert (caught.value.version, caught.value.file) == (1, gone["path"])
    assert changed(table, 0, 0)


def test_appends_are_read_where_the_feed_was_off() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(numbered(1), properties={"delta.feature.changeDataFeed": "supported"})
    configure(table, FEED)
    table.append(numbered(2))
    configure(table, drop=tuple(FEED))
    table.append(numbered(3))
    configure(table, FEED)
    table.append(numbered(4))
    assert [each[2] for each in changed(table, 0, 6)] == [1, 2, 3, 4]
    assert [each[2] for each in changed(table, 2, 4)] == [2, 3]
    assert [each[2] for each in changed(table, 1, 2)] == [2]
    assert [each[2] for each in changed(table, 5)] == [4]


def test_a_removed_file_without_partition_values_is_refused() -> None:
    table = make("partitioned")
    add = last_adds(table)[0]
    put_commit(table, {"remove": {"path": add["path"], "dataChange": True}})
    with pytest.raises(InvalidTable, match="in which partition") as caught:
        table.changes(0).to_arrow()
    assert caught.value.version == 1


def test_a_removed_file_without_metadata_is_read_where_nothing_is_partitioned() -> None:
    table = make(first=2)
    add = last_adds(table)[0]
    put_commit(table, {"remove": {"path": add["path"], "dataChange": True}})
    assert changed(table, 1) == [(1, "delete", 0, "v0"), (1, "delete", 1, "v1")]


# Schema changes


def test_columns_that_came_later_are_null_in_older_rows() -> None:
    table = make(first=1)
    table.append(numbered(1).append_column("w", pa.array([7])), schema_mode="merge")
    found = table.changes(0).to_arrow().select(["id", "w", "_commit_version"]).to_pylist()
    assert found == [
        {"id": 0, "w": None, "_commit_version": 0},
        {"id": 1, "w": 7, "_commit_version": 1},
    ]
    assert "w" not in table.changes(0, 0).schema.names


def test_a_range_across_an_incompatible_change_is_refused_and_each_side_is_read() -> None:
    table = make(first=1)
    other = StructType(
        (
            StructField("id", PrimitiveType("string")),
            StructField("v", PrimitiveType("string")),
            StructField("p", PrimitiveType("integer")),
        )
    )
    add = last_adds(table)[0]
    put_commit(table, {"remove": removed(add)})
    configure(table, schema=other)
    table.append(pa.table({"id": ["a"], "v": ["b"], "p": pa.array([1], pa.int32())}))
    with pytest.raises(SchemaMismatch, match="id was of type long") as caught:
        table.changes(0).to_arrow()
    assert caught.value.version == 0
    assert changed(table, 0, 1) == [(0, "insert", 0, "v0"), (1, "delete", 0, "v0")]
    assert [each[2] for each in changed(table, 2)] == ["a"]


# The feed against the table


@st.composite
def operations(draw: st.DrawFn) -> list[tuple[str, Any]]:
    name = st.sampled_from(["append", "delete", "update", "overwrite"])
    found: list[tuple[str, Any]] = []
    for each in draw(st.lists(name, min_size=1, max_size=6)):
        if each in ("append", "overwrite"):
            found.append((each, draw(st.lists(st.integers(0, 9), max_size=4))))
        else:
            low = draw(st.integers(0, 9))
            found.append((each, (low, low + draw(st.integers(0, 4)))))
    return found


@settings(max_examples=35)
@given(operations(), st.sampled_from(sorted(KINDS)))
def test_the_feed_applied_to_the_rows_at_the_start_gives_the_rows_at_the_end(
    steps: list[tuple[str, Any]], kind: str
) -> None:
    table = make(kind, first=6)
    for number, (name, argument) in enumerate(steps):
        match name:
            case "append":
                table.append(numbered(*argument, text=f"s{number}-"))
            case "overwrite":
                table.overwrite(numbered(*argument, text=f"s{number}-"))
            case "delete":
                table.delete(f"id BETWEEN {argument[0]} AND {argument[1]}")
            case _:
                table.update(
                    {"v": f"concat('u{number}-', v)", "p": "p + 1"},
                    f"id BETWEEN {argument[0]} AND {argument[1]}",
                )
    states = [multiset(table, version) for version in range(table.version() + 1)]
    for start in range(table.version()):
        state = states[start].copy()
        for row in table.changes(start + 1).to_arrow().to_pylist():
            came = row["_change_type"] in ("insert", "update_postimage")
            state[row["id"], row["v"], row["p"]] += 1 if came else -1
        assert +state == states[-1]
        assert min(state.values(), default=0) >= 0


def multiset(table: DeltaTable, version: int) -> Counter[tuple[Any, ...]]:
    found = table.snapshot(version).scan().to_arrow().to_pylist()
    return Counter((row["id"], row["v"], row["p"]) for row in found)


def test_versions_without_feed_are_read_where_they_only_add_rows() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(numbered(1))
    table.append(numbered(2))
    feed = ChangeDataFeed(table.snapshot(), 1, ["id", "_change_type"], max_bytes=0)
    assert not feed.is_empty
    assert feed.to_arrow().to_pylist() == [{"id": 2, "_change_type": "insert"}]
    table.append(numbered(3, 4))
    table.delete("id = 3")
    with pytest.raises(ChangeDataNotRecorded, match="at version 3, which removed and added"):
        ChangeDataFeed(table.snapshot(), 1, max_bytes=0).to_arrow()
    assert ChangeDataFeed(table.snapshot(), 4, max_bytes=0).is_empty


def test_a_column_that_became_not_null_is_null_in_older_rows(tmp_path: Path) -> None:
    table = make()
    needed = pa.field("new", pa.struct([pa.field("n", pa.int64(), nullable=False)]), nullable=False)
    data = numbered(1).append_column(needed, pa.array([{"n": 2}], needed.type))
    table.overwrite(data, schema_mode="overwrite")
    column = table.schema().get("new")
    assert column is not None
    assert not column.nullable
    found = table.changes(starting_version=0).to_arrow()
    # Parquet stores no null in a column that is declared to have none.
    pq.write_table(found, tmp_path / "changes.parquet")
    stored = pq.read_table(tmp_path / "changes.parquet")
    assert stored["new"].null_count == 20
    assert stored["new"].drop_null().to_pylist() == [{"n": 2}]
    assert table.changes(starting_version=0, where="new IS NULL").to_arrow().num_rows == 20


def test_a_restore_over_a_change_of_the_schema_shows_the_rows_that_it_removed(
    tmp_path: Path,
) -> None:
    properties = {**FEED, "delta.columnMapping.mode": "name"}
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"k": [1], "d": [1]}), properties=properties)
    table.rename_column("d", "d_2")
    table.append(pa.table({"k": [2], "d_2": [2], "e": ["x"]}), schema_mode="merge")
    table.restore(0)
    found = table.changes(3, columns=["k", "d", "_change_type"]).to_arrow().to_pylist()
    assert found == [{"k": 2, "d": 2, "_change_type": "delete"}]
    with pytest.raises(SchemaMismatch, match="column d_2 was renamed to d"):
        table.changes(2).to_arrow()


def test_rows_that_were_replaced_with_their_schema_cannot_be_shown_with_the_new_one(
    tmp_path: Path,
) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"v": [1]}), properties=FEED)
    table.overwrite(pa.table({"v": ["x"]}), schema_mode="overwrite")
    table.append(pa.table({"v": ["y"]}))
    with pytest.raises(SchemaMismatch, match="column v was of type long and is of type string"):
        table.changes(1).to_arrow()
    assert table.changes(2).to_arrow()["v"].to_pylist() == ["y"]
