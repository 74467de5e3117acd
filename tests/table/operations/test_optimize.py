"""OPTIMIZE: the same rows in fewer files, one commit at a time, beside other writers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dagster_delta.errors import (
    ConcurrentDeleteDelete,
    InvalidArgument,
    InvalidTable,
    SchemaMismatch,
    StorageFailure,
    TableNotFound,
)
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.rewrite_files import OptimizeProgress
from dagster_delta.testing.faulty_store import Fault, FaultyStore, SimulatedCrash
from tests.sample_tables import VECTORS, numbered_with_nulls
from tests.table.bounded_writes import sort_bounded
from tests.table.handles import data_files
from tests.table.logs import actions, edited


def make(
    num_files: int = 6,
    properties: dict[str, str] | None = None,
    *,
    partition_by: tuple[str, ...] = (),
    store: ObjectStore | None = None,
) -> DeltaTable:
    """A table of small files with ten rows each, or up to ten where it is partitioned."""
    table = DeltaTable("", store=store or MemoryStore(), must_exist=False)
    for part in range(num_files):
        ids = range(10 * part, 10 * part + 10)
        table.append(numbered_with_nulls(*ids), partition_by=partition_by, properties=properties)
    return table


def content(table: DeltaTable) -> Counter[str]:
    """Every row, how often it is there."""
    return Counter(map(repr, table.snapshot().scan().to_arrow().to_pylist()))


def test_the_commit_says_that_no_data_changed() -> None:
    table = make()
    table.optimize()
    found = actions(table)
    assert all(each["dataChange"] is False for each in found["add"] + found["remove"])
    (info,) = found["commitInfo"]
    assert info["operation"] == "OPTIMIZE"
    assert info["isBlindAppend"] is False
    assert info["operationParameters"] == {"predicate": "[]", "zOrderBy": "[]", "auto": "false"}
    assert info["operationMetrics"]["numRemovedFiles"] == "6"


def test_a_table_settles() -> None:
    table = make()
    table.optimize()
    again = table.optimize()
    assert again.skipped
    assert again.version == table.version() == 6


def test_a_large_file_is_only_written_anew_for_what_is_deleted_in_it() -> None:
    table = make(1, VECTORS)
    table.delete("id = 3")
    size = table.snapshot().size_bytes
    assert table.optimize(target_file_size=size, max_deleted_share=0.1).skipped
    assert not table.optimize(target_file_size=size, max_deleted_share=0).skipped
    assert table.snapshot().num_records == 9


def test_files_are_packed_to_the_target_and_not_beyond() -> None:
    table = make(10)
    one = table.snapshot().size_bytes // 10
    table.optimize(target_file_size=int(one * 3.5), min_file_size=one * 2)
    removed = actions(table)["remove"]
    assert len(removed) == 9
    assert table.snapshot().num_files == 4


def test_a_large_table_is_worked_through_in_several_commits() -> None:
    table = make(6, partition_by=("p",))
    before = content(table)
    seen: list[OptimizeProgress] = []
    result = table.optimize(max_commit_bytes=1, on_progress=seen.append)
    assert result.versions == (6, 7, 8)
    assert [each.version for each in seen] == [6, 7, 8]
    assert seen[-1].num_done_bytes == seen[-1].num_total_bytes
    assert content(table) == before
    assert table.snapshot().num_files == 3


class Rival:
    """Another writer, who strikes while the first data file of an OPTIMIZE is written."""

    def __init__(self, store: MemoryStore, act: Any) -> None:
        self._store, self._act, self._acted = store, act, False

    def __call__(self, operation: str, path: str) -> None:
        if operation == "open_output" and path.endswith(".parquet") and not self._acted:
            self._acted = True
            self._act(DeltaTable("", store=self._store))


def test_a_concurrent_append_stays_and_disturbs_nothing() -> None:
    store = MemoryStore()
    make(store=store)
    rival = Rival(store, lambda table: table.append(numbered_with_nulls(1000)))
    table = DeltaTable("", store=FaultyStore(store, before_call=rival))
    result = table.optimize()
    assert result.versions == (7,)
    assert not result.conflicts
    assert table.snapshot().num_files == 2
    assert table.snapshot().num_records == 61


def test_a_concurrent_delete_costs_only_the_commit_with_its_file() -> None:
    store = MemoryStore()
    make(6, {}, partition_by=("p",), store=store)
    rival = Rival(store, lambda table: table.delete("id = 7"))
    table = DeltaTable("", store=FaultyStore(store, before_call=rival))
    result = table.optimize(max_commit_bytes=1)
    (conflict,) = result.conflicts
    assert isinstance(conflict, ConcurrentDeleteDelete)
    assert len(result.versions) == 2
    assert table.snapshot().scan(where="id = 7").count() == 0
    assert table.snapshot().num_records == 59
    # What was written for the lost commit is gone.
    live = set(table.snapshot().files()["path"].to_pylist())
    added = {each["path"] for n in range(9) for each in actions(table, n).get("add", ())}
    assert data_files(table) == live | added


@pytest.mark.parametrize("properties", [{}, VECTORS], ids=["rewrite", "vectors"])
def test_groups_of_later_commits_are_compacted_as_they_are_by_then(
    properties: dict[str, str],
) -> None:
    store = MemoryStore()
    make(6, properties, partition_by=("p",), store=store)
    # Every partition loses a row while the first of them is written.
    rival = Rival(store, lambda table: table.delete("id IN (2, 3, 7)"))
    table = DeltaTable("", store=FaultyStore(store, before_call=rival))
    result = table.optimize(max_commit_bytes=1)
    assert table.snapshot().num_records == 57
    assert result.skipped == (not properties)
    assert result.num_left_files == (0 if properties else 18)


@pytest.mark.parametrize("kind", ["crash_before", "crash_after"])
@pytest.mark.parametrize("operation", ["open_output", "write_opened", "put_if_absent"])
def test_a_crash_leaves_the_old_rows_or_the_same_in_new_files(operation: Any, kind: Any) -> None:
    store = MemoryStore()
    before = content(make(partition_by=("p",), store=store))
    fault = Fault(kind, operation, occurrence=2)
    faulty = FaultyStore(store, [fault], inside_files=True)
    with pytest.raises(SimulatedCrash):
        DeltaTable("", store=faulty).optimize(max_commit_bytes=1)
    table = DeltaTable("", store=store)
    assert content(table) == before
    table.optimize()
    assert content(table) == before
    assert table.snapshot().num_files == 3


def test_files_of_a_failed_write_are_deleted() -> None:
    store = MemoryStore()
    table = make(store=store)
    before = data_files(table)
    failing = FaultyStore(store, [Fault("refuse", "open_output", ".parquet")])
    with pytest.raises(StorageFailure):
        DeltaTable("", store=failing).optimize()
    assert data_files(table) == before


def test_a_file_without_the_rows_that_the_log_counts_stops_it() -> None:
    table = make(2)
    path = actions(table, 1)["add"][0]["path"]
    commit = table.store.read(commit_path(1))
    table.store.put(commit_path(1), edited(commit, b'numRecords\\":10', b'numRecords\\":11'))
    table.store.delete(["_delta_log/00000000000000000001.crc"])
    before = data_files(table)
    with pytest.raises(InvalidTable, match="the log counts 11"):
        DeltaTable("", store=table.store).optimize()
    assert data_files(table) == before
    assert path in before


def test_what_makes_no_sense_is_refused() -> None:
    table = make(1)
    for options in (
        {"target_file_size": 0},
        {"max_deleted_share": 1.5},
        {"engine": "steam"},
    ):
        with pytest.raises(InvalidArgument):
            table.optimize(**options)
    with pytest.raises(SchemaMismatch):
        table.optimize("nothing = 1")
    with pytest.raises(TableNotFound):
        DeltaTable("", store=MemoryStore(), must_exist=False).optimize()


def test_mapped_and_widened_columns_keep_their_values() -> None:
    store = MemoryStore()
    properties = {"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"}
    table = DeltaTable("", store=store, must_exist=False)
    narrow = pa.table({"a": pa.array([1, 2], pa.int32()), "p": ["x", "y"]})
    wide = pa.table({"a": pa.array([2**40], pa.int64()), "p": ["x"], "b": [1.5]})
    table.append(narrow, partition_by=["p"], properties=properties)
    table.append(wide, schema_mode="merge")
    before = content(table)
    table.optimize()
    assert content(table) == before
    assert table.snapshot().num_files == 2


def spread(num_files: int = 8, rows_per_file: int = 500, **options: Any) -> DeltaTable:
    """A table whose every file covers all values of both columns."""
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    total = num_files * rows_per_file
    for part in range(num_files):
        ids = np.arange(part, total, num_files) * 7919 % total
        s = pa.StructArray.from_arrays([pa.array(ids * 104729 % total)], ["b"])
        table.append(pa.table({"a": ids, "s": s, "p": np.zeros_like(ids)}), **options)
    return table


def read_share(table: DeltaTable, where: str) -> float:
    """The share of all bytes in the files that a filter has to read."""
    files = table.snapshot().scan(where=where).files()
    return sum(files["size_bytes"].to_pylist()) / table.snapshot().size_bytes


def test_a_z_order_is_one_commit_of_the_same_rows() -> None:
    table = spread()
    before = content(table)
    result = table.optimize(zorder_by=["a", "s.b"])
    assert content(table) == before
    twin = spread()
    sort_bounded(twin, [("a",), ("s", "b")], is_hilbert=False)
    assert table.snapshot().scan().to_arrow() == twin.snapshot().scan().to_arrow()
    assert result.metrics["numRemovedFiles"] == 8
    assert actions(table)["commitInfo"][0]["operationParameters"]["zOrderBy"] == '["a","s.b"]'


@pytest.mark.parametrize("is_hilbert", [False, True])
def test_filters_on_either_column_skip_files_along_a_curve(is_hilbert: bool) -> None:
    rows, most = 8 * 65_536, 65_536
    table = spread(4, rows // 4)
    where = [f"{column} < {rows // 10}" for column in ("a", "s.b")]
    assert [read_share(table, each) for each in where] == [1, 1]
    before = table.snapshot().scan().to_arrow().sort_by("a")
    columns = [("a",), ("s", "b")]
    sort_bounded(
        table, columns, is_hilbert=is_hilbert, row_group_rows=most, target_file_size_bytes=1
    )
    assert table.snapshot().num_files >= rows // most
    assert table.snapshot().scan().to_arrow().sort_by("a") == before
    assert all(read_share(table, each) < 0.5 for each in where)


def test_z_order_keeps_partitions_and_purges_deleted_rows() -> None:
    table = make(6, VECTORS, partition_by=("p",))
    table.delete("id % 3 = 1")
    before = content(table)
    table.optimize(zorder_by=["v", "id"])
    assert content(table) == before
    assert table.snapshot().num_files == 3
    assert not any(table.snapshot().files()["has_deletion_vector"].to_pylist())


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        (["p"], "partition column"),
        (["xs"], "no order"),
        (["a", "A"], "twice"),
        (["b"], "no statistics"),
        (["a, b"], "one column"),
        (["xs.element"], "not a struct"),
    ],
)
def test_columns_that_rows_cannot_be_sorted_by_are_refused(columns: list[str], why: str) -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    data = pa.table({"a": [1], "xs": [[1]], "b": [1], "p": [1]})
    properties = {"delta.dataSkippingNumIndexedCols": "2"}
    table.append(data, partition_by=["p"], properties=properties)
    with pytest.raises(InvalidArgument, match=why):
        table.optimize(zorder_by=columns)
    for lacking in ("nothing", "a.b"):
        with pytest.raises(SchemaMismatch):
            table.optimize(zorder_by=[lacking])
    with pytest.raises(InvalidArgument, match=r"zorder_by is a list of columns; write \['a'\]"):
        table.optimize(zorder_by="a")
    with pytest.raises(InvalidArgument, match=r"sort_by is a list of columns; write \['a'\]"):
        table.optimize(sort_by="a")
    assert table.refresh().version == 0
