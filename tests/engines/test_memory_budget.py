"""How much memory the embedded engine takes, and that operations keep to it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.engines import engine_for, memory_budget
from dagster_delta.engines.memory_budget import MEMORY_LIMIT_VARIABLE, MemoryBudget
from dagster_delta.errors import InvalidArgument

MIB = 1024 * 1024
ROWS = 3_000_000

_ZORDER = """
import sys
from dagster_delta import DeltaTable
table = DeltaTable(sys.argv[1])
result = table.optimize(zorder_by=["a", "b"], memory_limit=sys.argv[2])
assert result.versions
# Unlike ru_maxrss, this begins at this process and not at the one that started it.
status = open("/proc/self/status").read()
print(int(status.split("VmHWM:")[1].split()[0]) // 1024)
"""


@pytest.mark.parametrize(
    ("limit", "total"),
    [
        ("1GiB", 1024 * MIB),
        ("1.5 gb", 1_500_000_000),
        ("512MB", 512_000_000),
        (128 * MIB, 128 * MIB),
        ("134217728", 128 * MIB),
        ("134217728B", 128 * MIB),
    ],
)
def test_a_limit_is_a_size(limit: str | int, total: int) -> None:
    budget = MemoryBudget.of(limit)
    assert (budget.sort_bytes, budget.join_bytes) == (total // 4, total // 2)
    assert budget.buffer_bytes == min(total // 8, 128 * MIB)


@pytest.mark.parametrize("limit", ["much", "", "1 EB", "-1", "63MiB", 1000, 1.5])
def test_anything_else_is_refused(limit: str | int, tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"a": [1]}))
    with pytest.raises(InvalidArgument, match="memory limit"):
        table.optimize(memory_limit=limit)
    with pytest.raises(InvalidArgument, match="memory limit"):
        table.merge(pa.table({"a": [1]}), "t.a = s.a", memory_limit=limit).execute()


def test_spark_keeps_limits_of_its_own() -> None:
    with pytest.raises(InvalidArgument, match=r"spark\.executor\.memory"):
        engine_for(None, "spark", memory_limit="1GB")


def test_the_environment_sets_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_LIMIT_VARIABLE, "2GiB")
    assert MemoryBudget.of(None) == MemoryBudget.of("2GiB")
    assert MemoryBudget.of("1GiB") != MemoryBudget.of("2GiB")


def test_a_container_limits_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(MEMORY_LIMIT_VARIABLE, raising=False)
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory_budget, "_CGROUP_FILES", (str(limit), str(tmp_path / "none")))
    limit.write_text("268435456\n")
    assert MemoryBudget.of(None) == MemoryBudget.of("128MiB")
    limit.write_text("max\n")
    assert MemoryBudget.of(None).sort_bytes <= 128 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.exhaustive
def test_the_peak_of_a_zorder_follows_its_limit(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    rng = np.random.default_rng(0)
    numbers = {name: rng.integers(0, 1 << 60, ROWS) for name in "abcd"}
    DeltaTable(uri, must_exist=False).append(pa.table(numbers))
    peaks = {limit: _peak_megabytes(uri, limit) for limit in ("64MiB", "2GiB")}
    assert peaks["64MiB"] < 0.75 * peaks["2GiB"], peaks
    found = DeltaTable(uri).snapshot().scan().to_arrow()
    for name, values in numbers.items():
        assert np.array_equal(np.sort(found[name].to_numpy()), np.sort(values))


def test_a_merge_within_a_limit_joins_by_way_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2_500_000
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "scratch").mkdir()
    table = DeltaTable(str(tmp_path / "table"), must_exist=False)
    table.append(pa.table({"id": range(10), "v": range(10)}))
    large: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, count, 50_000):
            ids = np.arange(start, start + 50_000)
            yield pa.record_batch({"id": ids, "v": ids + 1})
            sizes = [each.stat().st_size for each in (tmp_path / "scratch").rglob("*.arrow")]
            large.append(sum(sizes))

    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    source = pa.RecordBatchReader.from_batches(schema, batches())
    merge = table.merge(source, "t.id = s.id", memory_limit="64MiB").when_matched_update_all()
    assert merge.execute().metrics["numTargetRowsUpdated"] == 10
    assert max(large) > 16 * MIB
    found = table.snapshot().scan().to_arrow().sort_by("id")
    assert found["v"].to_pylist() == list(range(1, 11))


def _peak_megabytes(uri: str, limit: str) -> int:
    command = [sys.executable, "-c", _ZORDER, uri, limit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])
