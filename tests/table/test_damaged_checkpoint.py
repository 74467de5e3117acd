"""A checkpoint with a broken byte: the same rows, or an error that names the file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_delta.errors import CorruptLog
from dagster_delta.protocol.log.paths import checkpoint_path, commit_path
from dagster_delta.table.delta_table import DeltaTable


def test_a_broken_page_header_is_named(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"id": [1, 2]}))
    table.append(pa.table({"id": [3]}))
    table.checkpoint()
    for version in range(2):
        (tmp_path / commit_path(version)).unlink()
    file = tmp_path / checkpoint_path(1)
    data = file.read_bytes()
    footer = pq.read_metadata(file)
    chunks = [footer.row_group(0).column(index) for index in range(footer.num_columns)]
    outcomes = set()
    for chunk in chunks:
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        broken = bytearray(data)
        broken[start] ^= 0xFF
        file.write_bytes(broken)
        try:
            rows = DeltaTable(str(tmp_path)).snapshot().scan().to_arrow()
        except CorruptLog as error:
            outcomes.add(str(error.file).rpartition("/")[2])
        else:
            # A column that nobody needs is not looked at.
            assert sorted(rows["id"].to_pylist()) == [1, 2, 3]
            outcomes.add("same")
    assert outcomes == {file.name, "same"}
