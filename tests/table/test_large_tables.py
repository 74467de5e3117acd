"""A large table is never held as a whole, and every operation does to it what it does to others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakSet

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dagster_delta import DeltaTable
from dagster_delta.protocol.checkpoint import batches as batches_module
from dagster_delta.protocol.checkpoint.batches import FileBatch
from dagster_delta.protocol.statistics.statistics import StatisticsColumn
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.skipping import skip_files
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.log import version as version_module
from dagster_delta.table.log.state import LogState
from dagster_delta.table.read.file_planner import FilePlanner
from dagster_delta.table.read.snapshot import Snapshot

pytestmark = pytest.mark.slow

Operation = Callable[[DeltaTable], object]


def _rows(first: int, count: int = 4) -> pa.Table:
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "p": ["abc"[each % 3] for each in ids],
            "n": pa.array([None if each % 5 == 0 else each for each in ids], pa.int64()),
        }
    )


def _new_table(**properties: str) -> DeltaTable:
    """A checkpoint with files of three partitions, and commits after it that add and remove."""
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    keys = {f"delta.{name}": value for name, value in properties.items()}
    table.append(_rows(0), partition_by=["p"], properties=keys)
    for first in range(4, 40, 4):
        table.append(_rows(first))
    table.delete("id = 6")
    table.checkpoint()
    table.append(_rows(40))
    table.delete("id = 9 OR id >= 30 AND id < 33")
    return DeltaTable("", store=table.store)


def _twin(table: DeltaTable) -> DeltaTable:
    store = MemoryStore()
    for meta in table.store.list_recursive():
        store.put(meta.path, table.store.read(meta.path))
    return DeltaTable("", store=store)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Callable[[Operation, DeltaTable], object]:
    """Runs an operation on a table that counts as large, and of which all files may not be held."""

    def refuse(*_: object) -> Any:
        raise AssertionError("all files of a large table are held")

    def run(operation: Operation, table: DeltaTable) -> object:
        with monkeypatch.context() as patched:
            patched.setattr(version_module, "LARGE_TABLE_FILES", 0)
            patched.setattr(LogState, "live_files", refuse)
            patched.setattr(LogState, "statistics", refuse)
            patched.setattr(LogState, "num_files", property(refuse))
            return operation(table)

    return run


def _rows_of(table: DeltaTable) -> list[dict[str, Any]]:
    rows = DeltaTable("", store=table.store).snapshot().scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def _counts(result: Any) -> dict[str, int]:
    """Metrics without times, and without sizes of files that hold random names."""
    return {
        name: value
        for name, value in result.metrics.items()
        if not name.endswith(("Ms", "Bytes", "Size"))
    }


SOURCE = pa.table({"id": [7, 35, 100], "p": ["b", "c", "a"], "n": [70, 350, 1000]})

CHANGES: dict[str, Operation] = {
    "append": lambda table: table.append(_rows(60)),
    "delete by statistics": lambda table: table.delete("id BETWEEN 10 AND 12"),
    "delete by partition": lambda table: table.delete("p = 'b'"),
    "delete nothing": lambda table: table.delete("id = 1000"),
    "update": lambda table: table.update({"n": "n + 1"}, "id > 20 AND p <> 'a'"),
    "merge": lambda table: (
        table.merge(SOURCE, "t.id = s.id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    ),
    "merge by the table's side": lambda table: (
        table.merge(SOURCE, "t.id = s.id AND t.p = 'b'")
        .when_matched_delete()
        .when_not_matched_by_source_update({"n": "0"}, "t.id < 3")
        .execute()
    ),
    "overwrite partitions": lambda table: table.overwrite(
        _rows(100).filter(pa.array([True, False, False, True])), where="dynamic"
    ),
    "overwrite where by partition": lambda table: table.overwrite(
        pa.table({"id": [50], "p": ["c"]}), where="p = 'c'"
    ),
    "overwrite where by rows": lambda table: table.overwrite(
        pa.table({"id": [21], "p": ["c"]}), where="id >= 20 AND id < 24"
    ),
    "optimize": lambda table: table.optimize(),
    "optimize in several commits": lambda table: table.optimize(max_commit_bytes=1),
    "optimize a partition": lambda table: table.optimize(where="p = 'a'"),
}


@pytest.mark.parametrize("vectors", ["true", "false"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_large_table_is_that_of_a_small_one(
    name: str, vectors: str, large: Callable[[Operation, DeltaTable], object]
) -> None:
    small = _new_table(enableDeletionVectors=vectors)
    table = _twin(small)
    expected = CHANGES[name](small)
    found = large(CHANGES[name], table)
    assert _counts(found) == _counts(expected)
    assert _rows_of(table) == _rows_of(small)


FACTS: dict[str, Operation] = {
    "files": lambda table: table.snapshot().num_files,
    "bytes": lambda table: table.snapshot().size_bytes,
    "records": lambda table: table.snapshot().num_records,
    "health": lambda table: table.health(),
    "rows by statistics": lambda table: sorted(
        table.snapshot().scan(where="n IS NULL AND id < 33").to_arrow()["id"].to_pylist()
    ),
    "rows by partition": lambda table: sorted(
        table.snapshot().scan(["id"], "p = 'b'").to_arrow()["id"].to_pylist()
    ),
    "no rows": lambda table: table.snapshot().scan(where="id > 1000").to_arrow().num_rows,
    "files of a scan": lambda table: sorted(
        table.snapshot().scan(where="id > 20 AND p = 'a'").files()["path"].to_pylist()
    ),
    "count": lambda table: table.snapshot().scan().count(),
    "count of a partition": lambda table: table.snapshot().scan(where="p IN ('a', 'b')").count(),
    "count of some rows": lambda table: table.snapshot().scan(where="id % 2 = 0").count(),
    "garbage": lambda table: sorted(
        table.vacuum(0, enforce_retention=False).files["path"].to_pylist()
    ),
}


@pytest.mark.parametrize("vectors", ["true", "false"])
@pytest.mark.parametrize("name", FACTS)
def test_a_large_table_tells_what_a_small_one_does(
    name: str, vectors: str, large: Callable[[Operation, DeltaTable], object]
) -> None:
    small = _new_table(enableDeletionVectors=vectors)
    table = _twin(small)
    expected = FACTS[name](small)
    assert large(FACTS[name], table) == expected
    assert expected not in (None, [])


def test_files_without_statistics_are_counted_by_reading_them(
    large: Callable[[Operation, DeltaTable], object],
) -> None:
    table = _new_table(dataSkippingNumIndexedCols="0")
    assert large(lambda each: each.snapshot().scan(where="id >= 36").count(), table) == 8


@pytest.mark.parametrize(
    "where", ["id = 13", "p = 'c'", "p = 'c' AND n > 20", "n IS NULL OR p = 'a'", "id < 0"]
)
def test_candidates_in_batches_are_those_of_all_files_together(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _new_table(enableDeletionVectors="true")
    small = table.snapshot()
    files = small.live_files()
    (predicate,) = FilePlanner(small).predicates_of(parse_expression(where, small.schema))
    values = files["partition_values"]
    skipped = skip_files(predicate, small.configuration, values, small.statistics)
    monkeypatch.setattr(version_module, "LARGE_TABLE_FILES", 0)
    large = Snapshot.load(table.store)
    found = FilePlanner(large).candidates(predicate)
    assert found.files.to_pylist() == files.filter(skipped.may_match).to_pylist()
    certain = skipped.only_matches.filter(skipped.may_match)
    assert found.skipped[0].only_matches.to_pylist() == certain.to_pylist()
    # Of files that are left out it does not matter what else there would be to know.
    assert found.is_decided == (skipped.is_decided or not found.files.num_rows)


class _Loaded:
    """Statistics of a batch, which keep what the batch was decoded from."""

    def __init__(self, batch: FileBatch) -> None:
        self._load = batch.statistics

    def __call__(self, columns: Sequence[StatisticsColumn]) -> pa.Table:
        return self._load(columns)


def test_of_a_batch_no_more_is_kept_than_its_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    table = _new_table()
    monkeypatch.setattr(version_module, "LARGE_TABLE_FILES", 0)
    monkeypatch.setattr(batches_module, "_BATCH_ROWS", 1)
    snapshot = Snapshot.load(table.store)
    alive: WeakSet[_Loaded] = WeakSet()
    original, most = Snapshot.file_batches, 0

    def counted(self: Snapshot, *args: Any) -> Iterator[FileBatch]:
        nonlocal most
        for batch in original(self, *args):
            loaded = _Loaded(batch)
            alive.add(loaded)
            most = max(most, len(alive))
            yield FileBatch(batch.files, loaded)

    monkeypatch.setattr(Snapshot, "file_batches", counted)
    planner = FilePlanner(snapshot)
    predicates = planner.predicates_of(parse_expression("id >= 0", snapshot.schema))
    found = planner.candidates(*predicates)
    assert found.files.num_rows > 10
    assert most <= 2
    assert not planner.choose(
        ["size_bytes"], lambda files: pc.less(files["size_bytes"], 0)
    ).num_rows
    assert most <= 2
