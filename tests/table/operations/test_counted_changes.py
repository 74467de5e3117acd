"""What reads and changes cost by the number of files and columns, in counts that hold the figures
of `benchmarks/README.md`.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from dagster_delta import DeltaTable
from dagster_delta.protocol.actions import AddFile
from dagster_delta.storage.local_store import LocalStore
from tests.work_counts import ROW, RequestStore, add_files, count_work

FEW, MANY = 100, 3_000


def number_file(file: AddFile, number: int) -> AddFile:
    """A file that holds one row, whose id is the next number after 1."""
    bounds = {"id": number + 2}
    stats = {"numRecords": 1, "minValues": bounds, "maxValues": bounds, "nullCount": {"id": 0}}
    return replace(file, stats=json.dumps(stats))


@pytest.mark.parametrize("num_files", [FEW, MANY])
def test_one_row_is_read_from_one_file(tmp_path: Path, num_files: int) -> None:
    path = tmp_path / "t"
    DeltaTable(path, must_exist=False).append(ROW)
    add_files(LocalStore(path), num_files, number_file)
    # The files with other ids are not there.
    work = count_work(lambda: DeltaTable(path).snapshot().scan(where="id = 1").to_arrow())
    data_files = {name for name in work.paths_opened if "/part-" in name}
    assert len(data_files) == 1


def _add_partitions(path: Path, num_partitions: int) -> None:
    """A partition of two files that are there, and others whose file is not."""
    table = DeltaTable(path, must_exist=False)
    table.append(ROW, partition_by=["id"])
    table.append(ROW)

    def place(file: AddFile, number: int) -> AddFile:
        return replace(file, partition_values={"id": str(number + 2)})

    add_files(LocalStore(path), num_partitions, place)


@pytest.mark.parametrize("num_partitions", [FEW, MANY])
def test_one_partition_is_read_from_its_files(tmp_path: Path, num_partitions: int) -> None:
    _add_partitions(tmp_path / "t", num_partitions)
    path = tmp_path / "t"
    work = count_work(lambda: DeltaTable(path).snapshot().scan(where="id = 1").to_arrow())
    data_files = {name for name in work.paths_opened if "/part-" in name}
    assert len(data_files) == 2


@pytest.mark.parametrize("num_partitions", [FEW, MANY])
def test_optimize_of_one_partition_reads_its_files(tmp_path: Path, num_partitions: int) -> None:
    _add_partitions(tmp_path / "t", num_partitions)
    # The files of other partitions are not there.
    result = DeltaTable(tmp_path / "t").optimize(where="id = 1")
    assert result.metrics["numRemovedFiles"] == 2
    assert result.metrics["numAddedFiles"] == 1


def test_vacuum_lists_each_name_once(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t", must_exist=False)
    table.append(ROW)
    listed = []
    for num_files in (FEW, MANY):
        for number in range(num_files):
            (tmp_path / "t" / f"unreferenced-{number}.parquet").touch()
        work = count_work(lambda: DeltaTable(tmp_path / "t").vacuum(dry_run=True))
        listed.append(work.names_listed)
    assert listed[1] - listed[0] == MANY - FEW


def test_one_column_is_read_in_steps_in_proportion_to_the_columns(tmp_path: Path) -> None:
    calls = []
    for num_columns in (FEW, MANY):
        path = tmp_path / str(num_columns)
        rows = pa.table({f"c{n}": [1, 2] for n in range(num_columns)})
        DeltaTable(path, must_exist=False).append(rows)
        calls.append(count_work(partial(_read_column, path)).calls)
    assert calls[1] <= MANY / FEW * calls[0]


def _read_column(path: Path) -> pa.Table:
    return DeltaTable(path).snapshot().scan(columns=["c7"], where="c7 = 1").to_arrow()


def test_schema_changes_read_no_list_of_files() -> None:
    counts = []
    for num_files in (FEW, MANY):
        store = RequestStore()
        properties = {"delta.enableTypeWidening": "true", "delta.checkpointInterval": "1000"}
        table = DeltaTable("memory://t", store=store, must_exist=False)
        table.append(ROW.set_column(0, "id", pa.array([1], pa.int32())), properties=properties)
        add_files(store, num_files, number_file)
        table = DeltaTable("memory://t", store=store)
        store.reset()
        table.alter("ALTER COLUMN id TYPE BIGINT")
        table.alter("ADD COLUMN added INT")
        assert not any("checkpoint.parquet" in request for request in store.requests)
        counts.append(len(store.requests))
    assert counts[0] == counts[1]


def _append(path: Path, rows: pa.Table) -> None:
    DeltaTable(path).append(rows)


def test_an_append_takes_steps_in_proportion_to_the_columns(tmp_path: Path) -> None:
    calls = []
    for num_columns in (FEW, MANY):
        rows = pa.table({f"c{n}": [1, 2] for n in range(num_columns)})
        path = tmp_path / str(num_columns)
        DeltaTable(path, must_exist=False).append(rows)
        calls.append(count_work(partial(_append, path, rows)).calls)
    assert calls[1] <= MANY / FEW * calls[0]


def test_deletes_with_vectors_write_one_file_and_read_one_column(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = DeltaTable(path, must_exist=False)
    for n in range(5):
        ids = pa.table({"id": list(range(n * 100, n * 100 + 100))})
        table.append(ids, properties={"delta.enableDeletionVectors": "true"})
    table.delete("id % 100 = 7")
    written = sorted(file.suffix for file in path.glob("*") if file.is_file())
    assert written == [".bin", *[".parquet"] * 5]
    assert table.snapshot().num_records == 495


def test_many_small_merges_leave_one_file(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t", must_exist=False)
    table.append(pa.table({"id": list(range(1_000)), "v": [0] * 1_000}))
    for n in range(10):
        rows = pa.table({"id": [n, n + 1], "v": [n, n]})
        merge = table.merge(rows, on="t.id = s.id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert table.snapshot().num_files == 1
