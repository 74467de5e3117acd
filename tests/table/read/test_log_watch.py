"""Reading the commits of a log after a cursor, and noticing when they are not its successors."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import deltalake
import msgspec
import pytest

from dagster_delta.errors import InvalidArgument, StorageFailure, TableNotFound, VersionNotFound
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage import open_store
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.storage.object_store import ObjectMeta, ObjectStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.read.watch import (
    LogCursor,
    last_data_change,
    read_new_commits,
    start_cursor,
)
from dagster_delta.table.table_discovery import find_tables
from dagster_delta.testing.faulty_store import Fault, FaultyStore
from tests.sample_tables import of_day
from tests.table.logs import add_file, checkpoint, commit, metadata, new_table, remove_file


def test_an_idle_table_takes_one_request_however_long_its_log_is() -> None:
    store = new_table()
    for version in range(1, 300):
        commit(store, version, add_file(f"f{version}"))
    cursor = start_cursor(store)
    counted = FaultyStore(store)
    after, commits = read_new_commits(counted, cursor)
    assert (after, commits) == (cursor, ())
    assert dict(counted.calls) == {"list_from": 1}


def test_a_table_that_moves_costs_a_request_per_new_commit() -> None:
    store = new_table()
    cursor = start_cursor(store)
    for version in range(1, 11):
        commit(store, version, add_file(f"f{version}"))
    counted = FaultyStore(store)
    cursor, commits = read_new_commits(counted, cursor)
    assert [each.version for each in commits] == list(range(1, 11))
    assert dict(counted.calls) == {"list_from": 1, "read": 10}
    counted.calls.clear()
    read_new_commits(counted, cursor)
    assert counted.calls.total() == 1


def test_a_listing_that_lacks_a_commit_hides_none() -> None:
    store = new_table()
    cursor = start_cursor(store)
    for version in range(1, 4):
        commit(store, version, add_file(f"f{version}"))
    lacking = _Lacking(store, commit_path(2))
    _, commits = read_new_commits(lacking, cursor)
    assert [each.version for each in commits] == [1, 2, 3]


class _Lacking(FaultyStore):
    """Its listings lack an object, as those of a directory that changes meanwhile."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        super().__init__(store)
        self._path = path

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        return (each for each in super().list_from(directory, start) if each.path != self._path)


def test_a_limit_leaves_the_rest_for_the_next_call() -> None:
    store = new_table()
    for version in range(1, 6):
        commit(store, version, add_file(f"f{version}"))
    cursor = start_cursor(store, "earliest")
    cursor, first = read_new_commits(store, cursor, limit=4)
    cursor, second = read_new_commits(store, cursor, limit=4)
    assert [each.version for each in (*first, *second)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("start_from", "versions"), [("latest", []), ("earliest", [0, 1, 2]), (1, [1, 2]), (3, [])]
)
def test_a_watch_begins_where_it_is_told(start_from: object, versions: list[int]) -> None:
    store = new_table()
    commit(store, 1, add_file("a"))
    commit(store, 2, add_file("b"))
    cursor = start_cursor(store, start_from)  # type: ignore[arg-type]
    _, commits = read_new_commits(store, cursor)
    assert [each.version for each in commits] == versions


def test_a_property_that_is_not_valid_keeps_no_watch_from_later_versions() -> None:
    store = new_table(metadata({"delta.enableChangeDataFeed": "yes"}))
    commit(store, 1, add_file("a"))
    commit(store, 2, metadata({"delta.enableChangeDataFeed": "true"}))
    cursor = start_cursor(store, 0)
    _, commits = read_new_commits(store, cursor)
    assert [each.change_feed_enabled for each in commits] == [False, False, True]


def test_a_start_in_the_past_knows_the_table_as_it_was() -> None:
    store = new_table(metadata(partition_columns=["day"]))
    commit(store, 1, add_file("a", partitionValues={"day": "2026-01-01"}))
    commit(store, 2, metadata({"delta.enableChangeDataFeed": "true"}, ["day"]))
    _, commits = read_new_commits(store, start_cursor(store, 1))
    assert [each.change_feed_enabled for each in commits] == [False, True]


def test_a_start_beyond_the_table_is_refused() -> None:
    with pytest.raises(VersionNotFound, match="not reached version 7"):
        start_cursor(new_table(), 7)
    with pytest.raises(InvalidArgument, match="latest"):
        start_cursor(new_table(), "newest")  # type: ignore[arg-type]


def test_earliest_begins_with_the_oldest_commit_that_a_clean_up_left() -> None:
    store = new_table()
    for version in (1, 2, 3):
        commit(store, version, add_file(f"f{version}"))
    checkpoint(store, 2, [metadata(), {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}])
    store.delete([commit_path(0), commit_path(1)])
    _, commits = read_new_commits(store, start_cursor(store, "earliest"))
    assert [each.version for each in commits] == [2, 3]


def test_the_cursor_survives_as_json() -> None:
    cursor = start_cursor(new_table(metadata(partition_columns=["day"])))
    assert msgspec.json.decode(msgspec.json.encode(cursor), type=LogCursor) == cursor
    for text in (b'{"table_id": "x"}', b'{"version": -2}'):
        with pytest.raises(msgspec.ValidationError, match="version"):
            msgspec.json.decode(text, type=LogCursor)


def test_a_cursor_written_by_hand_needs_a_version_only() -> None:
    store = new_table()
    commit(store, 1, add_file("a"))
    cursor, commits = read_new_commits(store, LogCursor(version=0))
    assert [each.version for each in commits] == [1]
    assert cursor.table_id == "table-id"


def test_a_table_that_appears_is_read_from_its_first_commit() -> None:
    store = MemoryStore()
    with pytest.raises(TableNotFound):
        start_cursor(store)
    cursor, commits = read_new_commits(store, LogCursor(version=-1))
    assert (cursor.version, commits) == (-1, ())
    commit(store, 0, metadata(), add_file("a"))
    cursor, (first,) = read_new_commits(store, cursor)
    assert (cursor.version, first.version, first.table_id) == (0, 0, "table-id")


def test_commits_of_deltalake_are_told_apart(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    feed = {"delta.enableChangeDataFeed": "true"}
    deltalake.write_deltalake(uri, of_day(1, 2, day="a"), partition_by=["day"], configuration=feed)
    store = open_store(uri)
    cursor = start_cursor(store)
    deltalake.write_deltalake(uri, of_day(3, day="b"), mode="append")
    deltalake.DeltaTable(uri).update(updates={"id": "id + 10"}, predicate="day = 'a' and id = 2")
    deltalake.DeltaTable(uri).delete("day = 'b'")
    deltalake.write_deltalake(uri, of_day(4, day="a"), mode="append")
    deltalake.DeltaTable(uri).optimize.compact()
    _, commits = read_new_commits(store, cursor)
    assert [(each.operation, each.changes_data, each.rows) for each in commits] == [
        ("WRITE", True, 1),
        ("UPDATE", True, 1),
        ("DELETE", True, 1),
        ("WRITE", True, 1),
        ("OPTIMIZE", False, 0),
    ]
    assert [each.partitions for each in commits] == [
        ({"day": "b"},),
        ({"day": "a"},),
        ({"day": "b"},),
        ({"day": "a"},),
        (),
    ]
    assert [bool(each.change_files) for each in commits][:2] == [False, True]
    assert all(each.change_feed_enabled for each in commits)
    assert all("delta-rs" in (each.committer or "") for each in commits)


def test_partitions_go_by_their_logical_names_also_after_a_rename() -> None:
    def mapped(name: str) -> dict[str, object]:
        field = {
            "name": name,
            "type": "string",
            "nullable": True,
            "metadata": {
                "delta.columnMapping.id": 1,
                "delta.columnMapping.physicalName": "col-1",
            },
        }
        action = metadata({"delta.columnMapping.mode": "name"}, [name])
        schema = {"type": "struct", "fields": [field]}
        action["metaData"] = {**action["metaData"], "schemaString": json.dumps(schema)}
        return action

    store = MemoryStore()
    protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    commit(store, 0, protocol, mapped("day"))
    cursor = start_cursor(store)
    commit(store, 1, add_file("a", partitionValues={"col-1": "x"}))
    commit(store, 2, mapped("date"))
    commit(store, 3, remove_file("a", partitionValues={"col-1": "x"}))
    commit(store, 4, add_file("b", partitionValues={"col-1": ""}))
    _, commits = read_new_commits(store, cursor)
    assert [each.partitions for each in commits] == [
        ({"day": "x"},),
        (),
        ({"date": "x"},),
        ({"date": None},),
    ]
    assert [each.changes_data for each in commits] == [True, False, True, True]


def test_removes_without_partition_values_leave_the_partitions_open() -> None:
    store = new_table(metadata(partition_columns=["day"]))
    cursor = start_cursor(store)
    commit(store, 1, remove_file("a"))
    _, (one,) = read_new_commits(store, cursor)
    assert (one.partitions, one.all_partitions_known, one.rows) == ((), False, None)


def test_rows_come_from_statistics_where_there_are_no_metrics() -> None:
    store = new_table()
    cursor = start_cursor(store)
    commit(
        store, 1, add_file("a", stats='{"numRecords":3}'), add_file("b", stats='{"numRecords":4}')
    )
    commit(store, 2, add_file("c"))
    commit(store, 3, add_file("d", stats="{"))
    commit(store, 4, remove_file("a"), add_file("e", stats='{"numRecords":2}'))
    merge = {"numTargetRowsInserted": "1", "numTargetRowsUpdated": "2", "numOutputRows": "90"}
    info = {"commitInfo": {"operation": "MERGE", "operationMetrics": merge}}
    commit(store, 5, info, add_file("f"))
    _, commits = read_new_commits(store, cursor)
    assert [each.rows for each in commits] == [7, None, None, None, 3]


def test_a_copied_log_is_known_again(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    DeltaTable(str(uri), must_exist=False).append(of_day(1))
    cursor = start_cursor(open_store(str(uri)))
    shutil.copytree(uri, tmp_path / "copy")
    for file in (tmp_path / "copy" / "_delta_log").iterdir():
        file.touch()
    DeltaTable(str(tmp_path / "copy")).append(of_day(2))
    _, commits = read_new_commits(open_store(str(tmp_path / "copy")), cursor)
    assert [each.version for each in commits] == [1]


@pytest.mark.parametrize("commits", [1, 3, 6])
def test_another_table_in_the_place_is_an_error(tmp_path: Path, commits: int) -> None:
    uri = tmp_path / "t"
    for number in range(3):
        DeltaTable(str(uri), must_exist=False).append(of_day(number))
    cursor = start_cursor(open_store(str(uri)))
    shutil.rmtree(uri)
    for number in range(commits):
        DeltaTable(str(uri), must_exist=False).append(of_day(number))
    with pytest.raises(VersionNotFound, match=r"Another table is here now.*reset the cursor"):
        read_new_commits(open_store(str(uri)), cursor)


def test_another_table_of_the_same_second_is_an_error(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    DeltaTable(str(uri), must_exist=False).append(of_day(1))
    commit_file = uri / commit_path(0)
    os.utime(commit_file, (1_700_000_000, 1_700_000_000))
    cursor = start_cursor(open_store(str(uri)))
    shutil.rmtree(uri)
    DeltaTable(str(uri), must_exist=False).append(of_day(1))
    os.utime(commit_file, (1_700_000_000.25, 1_700_000_000.25))
    with pytest.raises(VersionNotFound, match=r"Another table is here now.*reset the cursor"):
        read_new_commits(open_store(str(uri)), cursor)


@pytest.mark.parametrize("commits_after", [0, 1, 2])
def test_a_log_that_was_set_back_is_an_error(tmp_path: Path, commits_after: int) -> None:
    uri = tmp_path / "t"
    table = DeltaTable(str(uri), must_exist=False)
    table.append(of_day(0))
    shutil.copytree(uri, tmp_path / "backup")
    table.append(of_day(1))
    cursor = start_cursor(open_store(str(uri)))
    shutil.rmtree(uri)
    shutil.copytree(tmp_path / "backup", uri)
    for number in range(commits_after):
        DeltaTable(str(uri)).append(of_day(number + 100))
    with pytest.raises(VersionNotFound, match=r"set back.*reset the cursor"):
        read_new_commits(open_store(str(uri)), cursor)


def test_a_restore_is_a_commit_like_any_other(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    deltalake.write_deltalake(uri, of_day(1))
    deltalake.write_deltalake(uri, of_day(2), mode="append")
    cursor = start_cursor(open_store(uri))
    deltalake.DeltaTable(uri).restore(0)
    _, (one,) = read_new_commits(open_store(uri), cursor)
    assert (one.version, one.operation, one.changes_data) == (2, "RESTORE", True)


def cleaned_log() -> tuple[MemoryStore, dict[int, LogCursor]]:
    """A log of six versions whose first four commits were cleaned up, and cursors from before."""
    store = new_table()
    cursors = {0: start_cursor(store)}
    for version in range(1, 6):
        commit(store, version, add_file(f"f{version}"))
        cursors[version] = start_cursor(store)
    checkpoint(
        store,
        4,
        [
            metadata(),
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            *(add_file(f"f{version}") for version in range(1, 5)),
        ],
    )
    store.delete([commit_path(version) for version in range(4)])
    return store, cursors


@pytest.mark.parametrize("version", [0, 1, 2])
def test_commits_that_were_cleaned_up_unread_are_an_error(version: int) -> None:
    store, cursors = cleaned_log()
    with pytest.raises(VersionNotFound, match=r"cleaned up before they were read.*reset") as caught:
        read_new_commits(store, cursors[version])
    assert caught.value.version == version + 1


@pytest.mark.parametrize(("version", "following"), [(3, [4, 5]), (4, [5]), (5, [])])
def test_a_clean_up_of_commits_that_were_read_loses_nothing(
    version: int, following: list[int]
) -> None:
    store, cursors = cleaned_log()
    _, commits = read_new_commits(store, cursors[version])
    assert [each.version for each in commits] == following


@pytest.mark.parametrize("is_local", [False, True])
def test_a_log_that_goes_on_without_the_next_commit_is_an_error(
    tmp_path: Path, *, is_local: bool
) -> None:
    """An interrupted clean-up may leave the commit of the cursor, and would be waited for."""
    store = open_store(str(tmp_path)) if is_local else MemoryStore()
    table = DeltaTable.create("", of_day(1).schema, store=store)
    cursor = start_cursor(store)
    table.append(of_day(1))
    table.append(of_day(2))
    table.checkpoint()
    store.delete([commit_path(1)])
    with pytest.raises(VersionNotFound, match="after version 0 were cleaned up before they were"):
        read_new_commits(store, cursor)


def test_a_log_that_was_set_back_but_still_has_the_hint_is_waited_for(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = DeltaTable.create("", of_day(1).schema, store=store)
    table.append(of_day(1))
    table.append(of_day(2))
    table.checkpoint()
    newest = [each.path for each in store.list_recursive("_delta_log") if f"{2:020}." in each.path]
    assert len(newest) > 1
    store.delete(newest)
    cursor = start_cursor(store)
    assert read_new_commits(store, cursor) == (cursor, ())
    DeltaTable("", store=store).append(of_day(3))
    assert [each.version for each in read_new_commits(store, cursor)[1]] == [2]


def test_a_table_that_is_gone_is_an_error() -> None:
    store = new_table()
    cursor = start_cursor(store)
    store.delete([commit_path(0)])
    with pytest.raises(TableNotFound, match="gone"):
        read_new_commits(store, cursor)


@pytest.mark.parametrize("operation", ["list_from", "read", "head"])
def test_storage_out_of_reach_is_an_error(operation: str) -> None:
    store = new_table()
    cursor = start_cursor(store)
    if operation == "head":
        # The table has to be opened for a cursor that a user wrote.
        cursor = msgspec.structs.replace(cursor, commit_digest=None)
    commit(store, 1, add_file("a"))
    faulty = FaultyStore(store, [Fault("refuse", operation)])  # type: ignore[arg-type]
    with pytest.raises(StorageFailure):
        read_new_commits(faulty, cursor)


def test_the_last_data_change_lies_behind_maintenance() -> None:
    store = new_table()
    cursor = start_cursor(store)
    assert last_data_change(store, cursor) == (0, None)
    commit(store, 1, add_file("a"))
    commit(store, 2, add_file("b", dataChange=False), remove_file("a", dataChange=False))
    version, found = last_data_change(store, start_cursor(store))
    assert found is not None
    assert found.version == version == 1
    assert last_data_change(store, start_cursor(store), after=1) == (1, None)
    latest = start_cursor(store)
    store.delete([commit_path(1)])
    assert last_data_change(store, latest) == (1, None)


def test_tables_are_found_at_any_depth_and_not_inside_tables(tmp_path: Path) -> None:
    for name in ("raw/a", "raw/b", "c"):
        DeltaTable(str(tmp_path / name), must_exist=False).append(of_day(1))
    (tmp_path / "raw" / "a" / "nested" / "_delta_log").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    found = find_tables(str(tmp_path))
    assert found == [str(tmp_path / name) for name in ("c", "raw/a", "raw/b")]
    with pytest.raises(StorageFailure, match="no such directory"):
        find_tables(str(tmp_path / "nowhere"))


def test_tables_are_found_where_there_are_no_directories() -> None:
    for name in ("raw/a", "c"):
        DeltaTable(f"memory://discovery/{name}", must_exist=False).append(of_day(1))
    assert find_tables("memory://discovery") == [
        "memory://discovery/c",
        "memory://discovery/raw/a",
    ]
