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
