"""Statements of several writers on one table: which of them succeed, and with which rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import (
    CommitConflict,
    CommitStateUnknown,
    ConcurrentAppend,
    ConcurrentDeleteRead,
    ConcurrentTransaction,
    InvalidArgument,
    SchemaMismatch,
    StorageFailure,
)
from dagster_delta.protocol.actions import AddFile, RemoveFile
from dagster_delta.protocol.features.deletion_vectors import deletion_vector_path
from dagster_delta.protocol.log.commit_file import decode_commit
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.transaction.retries import ConflictRetries
from dagster_delta.testing.faulty_store import Fault, FaultyStore
from tests.sample_tables import VECTORS, rows
from tests.table.handles import data_files, interrupted

ROWS_PER_FILE = 10

Statement = Callable[..., Any]


def make(
    properties: dict[str, str], *, num_files: int = 2, long_vectors: bool = False
) -> MemoryStore:
    """A table with a commit for each file of ten ids.

    With `long_vectors` each file also has ids from 1000 on of which one more commit deletes every
    other, so that its deletion vectors are too long for the log.
    """
    store = MemoryStore()
    table = DeltaTable("", store=store, must_exist=False)
    for number in range(num_files):
        start = number * ROWS_PER_FILE
        more = range(1000 * number + 1000, 1000 * number + 1300) if long_vectors else ()
        table.append(rows(*range(start, start + ROWS_PER_FILE), *more), properties=properties)
    if long_vectors:
        table.delete("id >= 1000 AND id % 2 = 1")
        assert any(each.endswith(".bin") for each in data_files(store))
    return store


def values(store: MemoryStore) -> dict[int, str]:
    found = DeltaTable("", store=store).snapshot().scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["v"] for row in found}


def referenced(store: MemoryStore) -> set[str]:
    """Files that some version of the log refers to."""
    found = set()
    for each in store.list_from("_delta_log/"):
        if not each.path.endswith(".json"):
            continue
        actions = decode_commit(store.read(each.path), version=0)
        logical: list[AddFile | RemoveFile] = [*actions.adds, *actions.removes]
        found |= {each.path for each in logical} | {each.path for each in actions.cdc}
        vectors = [each.deletion_vector for each in logical if each.deletion_vector is not None]
        found |= {deletion_vector_path(each) for each in vectors if each.storage_type != "i"}
    return found


def delete(table: DeltaTable, row: int, **options: Any) -> Any:
    return table.delete(f"id = {row}", **options)


def update(table: DeltaTable, row: int, **options: Any) -> Any:
    return table.update({"v": "concat(v, '+')"}, f"id = {row}", **options)


def merge(table: DeltaTable, row: int, **options: Any) -> Any:
    return (
        table.merge(rows(row, value=f"m{row}"), "t.id = s.id", **options)
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )


def overwrite(table: DeltaTable, row: int, **options: Any) -> Any:
    return table.overwrite(rows(row, value=f"o{row}"), where=f"id = {row}", **options)


def after(statement: Statement, row: int, found: dict[int, str]) -> dict[int, str]:
    """What a statement makes of the rows, by a model of one line each."""
    changed: dict[Statement, dict[int, str]] = {
        delete: {},
        update: {row: found[row] + "+"} if row in found else {},
        merge: {row: f"m{row}"},
        overwrite: {row: f"o{row}"},
    }
    return {**{key: text for key, text in found.items() if key != row}, **changed[statement]}


STATEMENTS = (delete, update, merge, overwrite)


@pytest.mark.parametrize(("mine", "theirs"), list(itertools.product(STATEMENTS, STATEMENTS)))
def test_changes_of_different_rows_of_one_file_need_no_second_attempt(
    mine: Statement, theirs: Statement
) -> None:
    store = make(VECTORS, long_vectors=True)
    start = values(store)
    table = interrupted(store, lambda other: theirs(other, 6), lambda other: theirs(other, 7))
    # A merge is not matched with new files again, so that it takes those of the winner for its own
    # where their statistics do not keep them apart: here they do.
    result = mine(table, 4, on_conflict="fail")
    assert result.attempts == 1
    assert result.version == 5
    assert values(store) == after(mine, 4, after(theirs, 7, after(theirs, 6, start)))
    assert referenced(store) == data_files(store)
    assert DeltaTable("", store=store).snapshot().num_records == len(values(store))


@pytest.mark.parametrize("mine", STATEMENTS)
def test_changes_of_one_row_conflict_where_that_is_asked_for(mine: Statement) -> None:
    store = make(VECTORS)
    before = data_files(store)
    table = interrupted(store, lambda other: update(other, 4))
    with pytest.raises((ConcurrentAppend, ConcurrentDeleteRead)):
        mine(table, 4, on_conflict="fail")
    assert values(store)[4] == "v4+"
    assert len(data_files(store) - before) == 2  # the winner's, with its vector


def test_a_file_that_both_empty_leaves_the_table() -> None:
    store = make(VECTORS, num_files=1)
    table = interrupted(store, lambda other: other.delete("id < 5"))
    assert table.delete("id >= 5", on_conflict="fail").attempts == 1
    snapshot = DeltaTable("", store=store).snapshot()
    assert (snapshot.num_files, snapshot.num_records) == (0, 0)


def test_a_row_that_the_winner_moves_into_the_selection_is_found() -> None:
    store = make(VECTORS)
    table = interrupted(store, lambda other: other.update({"v": "'x'"}, "id = 6"))
    result = table.update({"v": "'y'"}, "id = 4 OR v = 'x'")
    assert result.attempts == 2
    assert (values(store)[4], values(store)[6]) == ("y", "y")


def test_a_new_row_that_the_winner_adds_out_of_the_selection_needs_no_second_attempt() -> None:
    store = make(VECTORS)
    # The statistics of the new file hold 4 as well, so only its rows say that none is selected.
    table = interrupted(store, lambda other: other.update({"v": "'x'"}, "id IN (3, 5)"))
    assert table.delete("id = 4", on_conflict="fail").attempts == 1
    assert 4 not in values(store)


def test_a_file_that_was_compacted_meanwhile_is_planned_again() -> None:
    store = make(VECTORS, num_files=3)
    table = interrupted(store, lambda other: other.optimize())
    assert table.delete("id = 4").attempts == 2
    assert 4 not in values(store)


@pytest.mark.parametrize("stats", [None, '{"numRecords":10,"tightBounds":true}'])
def test_a_file_whose_statistics_the_winner_replaced_has_those_that_its_vector_asks_for(
    stats: str | None,
) -> None:
    """Spec: with a deletion vector numRecords is required; its bounds may be of hidden rows."""
    store = make(VECTORS, num_files=1)

    def replace_statistics(_: DeltaTable) -> None:
        (add,) = decode_commit(store.read(commit_path(0)), version=0).adds
        remove = {"path": add.path, "dataChange": False, "deletionTimestamp": 1}
        again = {
            "path": add.path,
            "partitionValues": {},
            "size": add.size_bytes,
            "modificationTime": add.modification_time_ms,
            "dataChange": False,
            **({} if stats is None else {"stats": stats}),
        }
        actions = [{"commitInfo": {}}, {"remove": remove}, {"add": again}]
        store.put_if_absent(commit_path(1), "\n".join(map(json.dumps, actions)).encode())

    assert delete(interrupted(store, replace_statistics), 9, on_conflict="fail").version == 2
    (found,) = DeltaTable("", store=store).snapshot().live_files(["stats"])["stats"].to_pylist()
    assert json.loads(found) == {"numRecords": 10, "tightBounds": False}


def test_a_new_file_of_a_winner_that_is_gone_by_now_is_planned_around() -> None:
    store = make(VECTORS)

    def rival(other: DeltaTable) -> None:
        before = data_files(store)
        other.update({"v": "'x'"}, "id IN (3, 5)")
        added = {path for path in data_files(store) - before if path.endswith(".parquet")}
        other.delete("id IN (3, 5)")
        store.delete(added)  # as VACUUM does, whatever the clock says

    assert delete(interrupted(store, rival), 4).attempts == 2
    assert set(values(store)) == set(range(20)) - {3, 4, 5}


def test_a_merge_that_inserts_by_an_unchanged_match_is_planned_again() -> None:
    """The winner deletes a row that kept this merge from inserting one."""
    store = make(VECTORS)
    table = interrupted(store, lambda other: delete(other, 5))
    result = (
        table.merge(rows(4, 5, value="m"), "t.id = s.id")
        .when_matched_update_all("t.id = 4")
        .when_not_matched_insert_all()
        .execute()
    )
    assert result.attempts == 2
    assert (values(store)[4], values(store)[5]) == ("m", "m")


def test_a_merge_that_inserts_where_nothing_matches_is_planned_again() -> None:
    """The winner deletes a matched row, which no clause of this merge changes."""
    store = make(VECTORS)
    table = interrupted(store, lambda other: delete(other, 4))
    result = (
        table.merge(rows(4, value="m"), "t.id = s.id")
        .when_not_matched_insert_all()
        .when_not_matched_by_source_delete("t.id = 6")
        .execute()
    )
    assert result.attempts == 2
    assert values(store)[4] == "m"
    assert 6 not in values(store)


def test_a_serializable_table_conflicts_by_files() -> None:
    store = make({**VECTORS, "delta.isolationLevel": "Serializable"})
    table = interrupted(store, lambda other: delete(other, 6))
    with pytest.raises((ConcurrentAppend, ConcurrentDeleteRead)):
        delete(table, 4, on_conflict="fail")
    assert delete(interrupted(store, lambda other: delete(other, 7)), 4).attempts == 2


def test_a_stream_is_read_once_and_its_files_are_kept() -> None:
    store = make({})
    data = pa.RecordBatchReader.from_batches(rows().schema, rows(4, 40, value="new").to_batches())
    table = interrupted(store, lambda other: update(other, 6))
    with pytest.raises(CommitConflict):
        table.overwrite(rows(4), where="id = 4", on_conflict="fail")
    table = interrupted(store, lambda other: update(other, 6), lambda other: update(other, 7))
    result = table.overwrite(data, where="id IN (4, 40)")
    assert result.attempts == 3
    assert values(store) == {
        **{number: f"v{number}" for number in range(20)},
        4: "new",
        40: "new",
        6: "v6++",
        7: "v7+",
    }
    assert referenced(store) == data_files(store)


def test_a_merge_reads_its_stream_once() -> None:
    store = make({})
    table = interrupted(store, lambda other: update(other, 6))
    source = pa.RecordBatchReader.from_batches(rows().schema, rows(6, 60, value="m").to_batches())
    merged = table.merge(source, "t.id = s.id").when_matched_update_all()
    assert merged.when_not_matched_insert_all().execute().attempts == 2
    assert (values(store)[6], values(store)[60]) == ("m", "m")


def test_a_new_schema_is_taken_into_the_next_attempt() -> None:
    store = make({})
    table = interrupted(store, lambda other: other.alter("ADD COLUMN n INT NOT NULL DEFAULT 7"))
    assert table.update({"v": "'x'"}, "id = 4").attempts == 2
    assert list(table.schema().names) == ["id", "v", "n"]
    assert values(store)[4] == "x"
    assert set(table.snapshot().scan(["n"]).to_arrow()["n"].to_pylist()) == {7}


def test_a_new_column_that_may_be_null_needs_no_second_attempt() -> None:
    store = make({"delta.columnMapping.mode": "name", "delta.enableChangeDataFeed": "true"})
    start = DeltaTable("", store=store).version() + 1
    table = interrupted(store, lambda other: other.alter("ADD COLUMN n INT FIRST COMMENT 'new'"))
    result = update(table, 4, on_conflict="fail")
    assert (result.attempts, result.snapshot.schema.names) == (1, ("n", "id", "v"))
    assert values(store)[4] == "v4+"
    found = table.changes(start).to_arrow().select(["_change_type", "n", "id", "v"]).to_pylist()
    assert sorted(map(tuple, (row.values() for row in found))) == [
        ("update_postimage", None, 4, "v4+"),
        ("update_preimage", None, 4, "v4"),
    ]


def test_an_overwrite_that_conflicts_beside_a_new_column_keeps_its_files() -> None:
    store = make({})
    add_column, rival = "ADD COLUMN n INT", rows(5, value="new")

    def act(other: DeltaTable) -> None:
        other.alter(add_column)
        update(other, 6)

    table = interrupted(store, act)
    result = table.overwrite(rival, where="id = 5")
    assert (result.attempts, result.snapshot.schema.names) == (2, ("id", "v", "n"))
    assert (values(store)[5], values(store)[6]) == ("new", "v6+")
    assert data_files(store) == referenced(store)


@pytest.mark.parametrize("column", ["n INT", "n INT DEFAULT 7"])
def test_a_merge_of_all_columns_that_conflicts_beside_a_new_column_keeps_its_columns(
    column: str,
) -> None:
    store = make({"delta.columnMapping.mode": "name"})

    def act(other: DeltaTable) -> None:
        other.alter(f"ADD COLUMN {column}")
        other.update({"v": "'theirs'", "n": "5"}, "id = 4")

    source = pa.concat_tables([rows(4, value="m"), rows(60, value="m")])
    merged = interrupted(store, act).merge(source, "t.id = s.id").when_matched_update_all()
    assert merged.when_not_matched_insert_all().execute().attempts == 2
    found = DeltaTable("", store=store).snapshot().scan(where="id IN (4, 60)").to_arrow()
    assert sorted(map(tuple, (row.values() for row in found.to_pylist()))) == [
        (4, "m", 5),
        (60, "m", 7 if "DEFAULT" in column else None),
    ]


def test_a_merge_of_all_columns_does_not_pass_over_a_renamed_column() -> None:
    store = make({"delta.columnMapping.mode": "name"})

    def act(other: DeltaTable) -> None:
        other.alter("RENAME COLUMN v TO w")
        other.update({"w": "'theirs'"}, "id = 4")

    merged = interrupted(store, act).merge(rows(4, value="m"), "t.id = s.id")
    with pytest.raises(SchemaMismatch, match="no column w"):
        merged.when_matched_update_all().execute()


def test_files_of_an_overwrite_do_not_fit_another_schema() -> None:
    store = make({})
    before = data_files(store)
    add_column = "ADD COLUMN n INT DEFAULT 7"
    table = interrupted(store, lambda other: other.alter(add_column))
    with pytest.raises(CommitConflict):
        table.overwrite(rows(4).to_reader(), where="id = 4")
    assert referenced(store) == data_files(store)
    assert before <= data_files(store)


def test_rows_in_memory_of_an_overwrite_are_written_again_for_another_schema() -> None:
    store = make({})
    table = interrupted(store, lambda other: other.alter("ADD COLUMN n INT DEFAULT 7"))
    assert table.overwrite(rows(4, value="new"), where="id = 4").attempts == 2
    found = DeltaTable("", store=store).snapshot().scan(["v", "n"], "id = 4").to_arrow()
    assert found.to_pylist() == [{"v": "new", "n": 7}]
    assert referenced(store) == data_files(store)


def test_attempts_end_at_their_limit() -> None:
    store = make({})
    rivals = [lambda other: update(other, 6)] * 5
    with pytest.raises(CommitConflict, match="attempt 3 of 3"):
        delete(interrupted(store, *rivals), 5, on_conflict=ConflictRetries(attempts=3))
    with pytest.raises(CommitConflict):
        delete(interrupted(store, *rivals), 5, on_conflict=ConflictRetries(seconds=0))
    assert values(store)[6] == "v6" + "+" * 4


def test_the_same_application_is_no_reason_for_another_attempt() -> None:
    store = make({})
    table = interrupted(store, lambda other: other.append(rows(30), idempotency=("app", 1)))
    with pytest.raises(ConcurrentTransaction):
        table.delete("id = 4", idempotency=("app", 7))


@pytest.mark.parametrize("properties", [{}, VECTORS], ids=["rewritten", "vectors"])
@pytest.mark.parametrize("on_conflict", ["retry", "fail"])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_that_another_process_has_done_meanwhile_is_skipped(
    statement: Statement, on_conflict: str, properties: dict[str, str]
) -> None:
    store = make(properties)
    table = interrupted(store, lambda other: statement(other, 4, idempotency=("app", 1)))
    result = statement(table, 4, idempotency=("app", 1), on_conflict=on_conflict)
    assert (result.version, result.skipped) == (2, True)
    assert referenced(store) == data_files(store)


def test_an_unknown_outcome_is_never_tried_again() -> None:
    store = make({})
    lost = Fault("lose_reply", "put_if_absent")
    # The first look is whether the log still holds the version that was read.
    silent = Fault("refuse", "head", path_contains="_delta_log/0", occurrence=2)
    table = DeltaTable("", store=FaultyStore(store, [lost, silent]))
    with pytest.raises(CommitStateUnknown):
        update(table, 4)
    assert values(store)[4] == "v4+"


def test_nothing_is_left_of_a_change_that_could_not_read_where_the_winners_stand() -> None:
    store = make(VECTORS, num_files=1, long_vectors=True)
    # Without a checksum of its own, the change reads the one of the winner.
    store.delete(each.path for each in store.list_from("_delta_log") if ".crc" in each.path)
    waiting = [6]

    def rival(operation: str, path: str) -> None:
        if operation == "put_if_absent" and path.endswith(".json") and waiting:
            delete(DeltaTable("", store=store), waiting.pop())

    refused = Fault("refuse", "read", path_contains="2.crc")
    table = DeltaTable("", store=FaultyStore(store, [refused], before_call=rival))
    with pytest.raises(StorageFailure):
        delete(table, 4)
    assert 4 in values(store)
    assert data_files(store) == referenced(store)


def test_anything_else_is_refused_as_a_reaction_to_conflicts() -> None:
    table = DeltaTable("", store=make({}))
    with pytest.raises(InvalidArgument, match="on_conflict"):
        table.delete("id = 4", on_conflict="again")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="attempt"):
        ConflictRetries(attempts=0)
