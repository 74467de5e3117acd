"""Memory of reads and rewrites of files whose values are short in the file and long in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from dagster_delta.parquet import opened_file
from tests.families import family

pytestmark = pytest.mark.slow

ROWS = 60_000
LONG = "x" * 20_000
MAX_MEGABYTES = 600

_SCRIPT = """
import sys
import pyarrow as pa
from dagster_delta import DeltaTable
table = DeltaTable(sys.argv[1])
{operation}
# Unlike ru_maxrss, this begins at this process and not at the one that started it.
status = open("/proc/self/status").read()
print(int(status.split("VmHWM:")[1].split()[0]) // 1024)
"""
_MERGE = f"""
ids = pa.array(range(0, {ROWS}, 50), pa.int64())
source = pa.table({{"id": ids, "s": pa.repeat("z", len(ids))}})
merge = table.merge(source, "t.id = s.id").when_matched_update({{"id": "s.id + 1"}})
merge.execute()
"""
_FILTERED = 'for batch in table.snapshot().scan(where="length(s) > 2").to_batches(): pass'
OPERATIONS = {
    "scan": "for batch in table.snapshot().scan().to_batches(): pass",
    "filtered scan": _FILTERED,
    "delete": 'table.delete("id % 3 = 0")',
    "update": """table.update({"s": "concat(s, 'y')"}, "id % 2 = 0")""",
    "merge": _MERGE,
    "optimize": "assert table.optimize().versions",
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("operation", family(OPERATIONS, "filtered scan", "merge"))
def test_operation_over_one_long_value_in_many_rows_takes_little_memory(
    tmp_path: Path, operation: str
) -> None:
    uri = _table_of_long_values(tmp_path, np.zeros(ROWS, np.int32), [LONG])
    assert _peak_megabytes(uri, OPERATIONS[operation]) < MAX_MEGABYTES


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_long_values_behind_short_ones_are_read_in_little_memory(tmp_path: Path) -> None:
    # So many entries that the column does not count as repetitive.
    entries = [f"{index:06}" for index in range(20_000)] + [f"{i:04}" * 4_000 for i in range(30)]
    codes = np.concatenate([np.arange(20_000), 20_000 + np.arange(40_000) % 30]).astype(np.int32)
    uri = _table_of_long_values(tmp_path, codes, entries)
    assert _peak_megabytes(uri, OPERATIONS["scan"]) < MAX_MEGABYTES


@pytest.mark.parametrize("where", [None, "id >= 0 AND s <> ''"])
def test_batches_of_long_values_hold_all_rows_in_order(tmp_path: Path, where: str | None) -> None:
    entries = pa.array(["short", "m" * 300, LONG])
    codes = np.random.default_rng(0).integers(0, 3, 12_000).astype(np.int32)
    uri = _table_of_long_values(tmp_path, codes, entries.to_pylist())
    start = num_batches = 0
    for batch in DeltaTable(uri).snapshot().scan(where=where).to_batches():
        rows = batch.slice(0, len(codes) - start)
        assert rows["id"].to_numpy().tolist() == list(range(start, start + len(rows)))
        assert rows["s"] == entries.take(pa.array(codes[start : start + len(rows)]))
        start += len(rows)
        num_batches += 1
    assert start == len(codes)
    assert num_batches > 2


def test_text_is_measured_whatever_the_footer_says() -> None:
    sink = pa.BufferOutputStream()
    rows = pa.table({"s": [f"{index} {'short' * 200}" for index in range(100)] * 200})
    pq.write_table(rows, sink, compression="none")
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    assert opened_file.BatchSizes(metadata, 0, [0], []).rows <= 1024


@pytest.mark.parametrize("is_nested", [False, True])
def test_batch_of_plain_values_stays_below_the_bound(tmp_path: Path, *, is_nested: bool) -> None:
    values = pa.array(["y" * 8_000 for _ in range(20_000)])
    column = pa.StructArray.from_arrays([values], names=["v"]) if is_nested else values
    uri = str(tmp_path / "t")
    DeltaTable.create(uri, pa.schema([("s", column.type)]))
    path = tmp_path / "t" / "long.parquet"
    rows = pa.table({"s": column})
    pq.write_table(rows, path, use_dictionary=is_nested, row_group_size=len(rows))
    _commit(path)
    sizes = [batch.nbytes for batch in DeltaTable(uri).snapshot().scan().to_batches()]
    assert sum(sizes) > 20_000 * 8_000
    assert max(sizes) < 2 * opened_file.BATCH_BYTES


def _table_of_long_values(tmp_path: Path, codes: np.ndarray, entries: list[str]) -> str:
    """A table with a file of a column id and a dictionary column s, and with a row "a" behind."""
    schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
    uri = str(tmp_path / "t")
    DeltaTable.create(uri, schema)
    path = tmp_path / "t" / "long.parquet"
    column = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(entries))
    pq.write_table(
        pa.table({"id": np.arange(len(codes)), "s": column}),
        path,
        write_statistics=False,
        row_group_size=len(codes),
        compression="zstd",
        store_schema=False,
        dictionary_pagesize_limit=1 << 30,
    )
    _commit(path)
    DeltaTable(uri).append(pa.table({"id": [len(codes)], "s": ["a"]}))
    return uri


def _commit(path: Path) -> None:
    add = {
        "path": path.name,
        "partitionValues": {},
        "size": path.stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
    }
    (path.parent / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"add": add}))


def _peak_megabytes(uri: str, operation: str) -> int:
    script = _SCRIPT.format(operation=operation)
    done = subprocess.run(
        [sys.executable, "-c", script, uri], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])
