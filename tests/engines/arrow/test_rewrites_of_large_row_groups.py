"""Changes of tables in the cloud read row groups that do not fit into memory one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from dagster_delta.parquet import data_file_reader, ordered_prefetch
from dagster_delta.parquet.data_file_reader import DataFileReader
from dagster_delta.parquet.opened_file import OpenedFile
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable


def _update(table: DeltaTable) -> None:
    table.update({"value": "value + 1"}, where="id = 1")


def _merge(table: DeltaTable) -> None:
    source = pa.table({"id": [1], "value": [1]})
    table.merge(source, on="t.id = s.id").when_matched_update_all().execute()


@pytest.mark.parametrize("change", [_update, _merge])
def test_large_row_groups_are_read_one_at_a_time(
    change: Callable[[DeltaTable], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = DeltaTable.create(
        "", pa.schema({"id": pa.int64(), "value": pa.int64()}), store=MemoryStore()
    )
    for _ in range(12):
        table.append(pa.table({"id": [1, 2], "value": [0, 0]}))
    monkeypatch.setattr(data_file_reader, "_WHOLE_FILE_BYTES", 0)
    monkeypatch.setattr(ordered_prefetch, "FETCHED_BYTES", 1)
    running: list[int] = []
    most: list[int] = []
    read_group = DataFileReader.read_group

    def counted(reader: DataFileReader, opened: OpenedFile, group: int) -> Iterator[pa.RecordBatch]:
        running.append(group)
        most.append(len(running))
        try:
            yield from read_group(reader, opened, group)
        finally:
            running.pop()

    monkeypatch.setattr(DataFileReader, "read_group", counted)
    change(table)
    assert set(most) == {1}
    assert sum(table.snapshot().scan(["value"]).to_arrow()["value"].to_pylist()) == 12
