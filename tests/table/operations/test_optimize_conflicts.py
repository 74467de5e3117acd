"""OPTIMIZE beside writers that change rows of the files it compacts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.storage.memory_store import MemoryStore
from tests.sample_tables import VECTORS, rows
from tests.table.handles import data_files, interrupted
from tests.table.transaction.test_row_conflicts import make, referenced, values

pytestmark = pytest.mark.slow

ROW_IDS = {**VECTORS, "delta.enableRowTracking": "true"}


def row_ids(store: MemoryStore) -> dict[int, int]:
    found = DeltaTable("", store=store).snapshot().scan(["id"], row_ids=True)
    return {row["id"]: row["_row_id"] for row in found.to_arrow().to_pylist()}


@pytest.mark.parametrize(
    "long_vectors", [False, True], ids=["vectors in the log", "vectors in files"]
)
@pytest.mark.parametrize(
    "act",
    [
        lambda other: other.delete("id IN (0, 13, 29)"),
        lambda other: other.update({"v": "'new'"}, "id % 7 = 3"),
        lambda other: (
            other.merge(rows(5, 100, value="m"), "t.id = s.id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        ),
        lambda other: other.delete("id BETWEEN 10 AND 18 OR id BETWEEN 2000 AND 2290"),
    ],
    ids=["delete", "update", "merge", "most of a file"],
)
def test_rows_changed_meanwhile_are_changed_in_the_compacted_file(
    act: Callable[[DeltaTable], Any], long_vectors: bool
) -> None:
    store = make(VECTORS, num_files=3, long_vectors=long_vectors)
    DeltaTable("", store=store).delete("id IN (1, 12, 14)")
    expected = make(VECTORS, num_files=3, long_vectors=long_vectors)
    DeltaTable("", store=expected).delete("id IN (1, 12, 14)")
    act(DeltaTable("", store=expected))
    result = interrupted(store, act).optimize(max_deleted_share=0)
    assert (len(result.versions), result.num_left_files, result.conflicts) == (1, 0, ())
    assert values(store) == values(expected)
    assert data_files(store) == referenced(store)
    snapshot = DeltaTable("", store=store).snapshot()
    assert snapshot.num_records == len(values(store))
    for key, text in values(store).items():
        if key < 1000:
            assert snapshot.scan(where=f"id = {key}").to_arrow()["v"].to_pylist() == [text]


def test_two_winners_after_each_other_are_both_followed() -> None:
    store = make(VECTORS, num_files=3)
    table = interrupted(
        store, lambda other: other.delete("id = 4"), lambda other: other.delete("id IN (5, 25)")
    )
    assert table.optimize().version == 5
    assert sorted(values(store)) == sorted(set(range(30)) - {4, 5, 25})
    assert data_files(store) == referenced(store)


def test_a_compacted_file_whose_rows_were_all_deleted_leaves_the_table() -> None:
    store = make(VECTORS, num_files=3)
    table = interrupted(store, lambda other: other.delete("id % 10 < 9"), _delete_the_rest)
    table.optimize()
    assert values(store) == {}
    snapshot = DeltaTable("", store=store).snapshot()
    assert (snapshot.num_files, snapshot.num_records) == (0, 0)
    assert data_files(store) == referenced(store)


def _delete_the_rest(table: DeltaTable) -> None:
    # One file after the other keeps a row until the end, so that none is removed as a whole.
    table.delete("id % 10 = 9")


def test_only_the_group_of_a_removed_file_is_left_as_it_is() -> None:
    store = MemoryStore()
    table = DeltaTable("", store=store, must_exist=False)
    for part in range(4):
        data = rows(*range(10 * part, 10 * part + 10)).append_column(
            "p", pa.array([part % 2] * 10, pa.int64())
        )
        table.append(data, partition_by=["p"], properties=VECTORS)
    # The rows of the first file are all of partition 0.
    result = interrupted(store, lambda other: other.delete("id < 10")).optimize()
    assert result.num_left_files == 2
    assert result.metrics["numRemovedFiles"] == 2
    assert result.metrics["numAddedFiles"] == 1
    assert sorted(values(store)) == list(range(10, 40))
    listed = {each.path for number in (0, 1) for each in store.list_from(f"p={number}/")}
    assert listed == referenced(store)


def test_rows_keep_their_ids() -> None:
    store = make(ROW_IDS, num_files=3)
    before = row_ids(store)
    interrupted(store, lambda other: other.delete("id IN (3, 17)")).optimize()
    assert row_ids(store) == {key: number for key, number in before.items() if key not in {3, 17}}


def test_sorted_rows_are_left_where_a_file_changed() -> None:
    store = make(VECTORS, num_files=3)
    result = interrupted(store, lambda other: other.delete("id = 4")).optimize(zorder_by=["id"])
    assert result.skipped
    assert result.num_left_files == 3
    assert sorted(values(store)) == sorted(set(range(30)) - {4})
    assert data_files(store) == referenced(store)


def test_a_new_schema_leaves_the_files_as_they_are() -> None:
    store = make(VECTORS, num_files=3)
    table = interrupted(
        store,
        lambda other: other.alter("ADD COLUMN extra INT DEFAULT 7"),
        lambda other: other.delete("id = 4"),
    )
    assert table.optimize().num_left_files == 3
    assert len(values(store)) == 30


@pytest.mark.parametrize("seed", range(12))
def test_random_changes_while_files_are_compacted(seed: int) -> None:
    chance = random.Random(seed)
    store = make(VECTORS, num_files=chance.randint(2, 6))
    expected = set(values(store))

    def doomed(share: float) -> list[int]:
        return sorted(each for each in expected if chance.random() < share)

    def delete(rows_: list[int]) -> Callable[[DeltaTable], Any]:
        listed = ", ".join(map(str, rows_)) or "NULL"
        return lambda table: table.delete(f"id IN ({listed})")

    first = doomed(0.2)
    delete(first)(DeltaTable("", store=store))
    expected -= set(first)
    rivals = []
    for _ in range(chance.randint(1, 3)):
        lost = doomed(0.15)
        rivals.append(delete(lost))
        expected -= set(lost)
    # Two files or more of the target, so that rows of one old file go to several new ones.
    target = chance.choice([None, 1])
    interrupted(store, *rivals).optimize(
        target_file_size=target, min_file_size=10**9, max_deleted_share=0
    )
    assert set(values(store)) == expected
    assert DeltaTable("", store=store).snapshot().num_records == len(expected)
