"""Checkpoints of large tables, written in batches to several files, say what one file would."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta.errors import StorageFailure
from dagster_delta.protocol.checkpoint import batches as checkpoint_batches
from dagster_delta.protocol.checkpoint import writer as checkpoint_writer
from dagster_delta.protocol.log.paths import checkpoint_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.log.state import LogState
from dagster_delta.table.log_upkeep import checkpoint_files
from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint
from dagster_delta.table.read.snapshot import Snapshot
from tests.table.logs import known_statistics

LAYOUTS = {
    "parts": {},
    "sidecars": {"checkpointPolicy": "v2"},
    "sidecars where the classic policy is": {"feature__v2Checkpoint": "supported"},
    "statistics as columns": {
        "checkpoint__writeStatsAsStruct": "true",
        "checkpoint__writeStatsAsJson": "false",
    },
    "statistics as JSON": {"checkpoint__writeStatsAsStruct": "false"},
    "mapped columns": {"columnMapping__mode": "name", "enableDeletionVectors": "true"},
    "sidecars and row ids": {"checkpointPolicy": "v2", "enableRowTracking": "true"},
}


def _rows(first: int) -> pa.Table:
    ids = list(range(first, first + 6))
    return pa.table(
        {
            "id": ids,
            "p": ["a", "b", None, "a", "b", None],
            "s": [None if each % 4 == 0 else {"x": each / 2} for each in ids],
        }
    )


def _refuse(*_: object, **__: object) -> Any:
    raise AssertionError("all files of a large table are held")


def _new_table(properties: dict[str, str]) -> DeltaTable:
    keys = {f"delta.{key.replace('__', '.')}": value for key, value in properties.items()}
    keys["delta.checkpointInterval"] = "1000"
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(_rows(0), partition_by=["p"], properties=keys, idempotency=("app", 1))
    for first in range(6, 60, 6):
        table.append(_rows(first))
    table.delete("id = 7")
    table.overwrite(_rows(100).slice(2, 1), where="p IS NULL")
    return table


def _log(store: ObjectStore) -> list[str]:
    return sorted(meta.path for meta in store.list_recursive("_delta_log"))


def _from_checkpoint_alone(store: ObjectStore, version: int) -> Snapshot:
    copy = MemoryStore()
    for path in _log(store):
        name = path.rpartition("/")[2]
        if "checkpoint" in name or "_sidecars" in path or int(name[:20]) > version:
            copy.put(path, store.read(path))
    return Snapshot.load(copy)


def _described(snapshot: Snapshot) -> dict[str, Any]:
    files = sorted(snapshot.live_files().to_pylist(), key=lambda row: row["path"])
    for row in files:
        row["stats"] = known_statistics(json.loads(row["stats"]))
    return {
        "files": files,
        "removed": sorted(
            (row["path"], row["deletion_timestamp_ms"], str(row["deletion_vector"]))
            for row in snapshot.tombstones().to_pylist()
        ),
        "transactions": snapshot.transactions(),
        "domains": snapshot.domain_metadata(),
        "metadata": snapshot.metadata,
        "protocol": snapshot.protocol,
        "pruned": snapshot.scan(where="s.x > 20").files().num_rows,
    }


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches and row groups of a few rows."""
    monkeypatch.setattr(checkpoint_batches, "_BATCH_ROWS", 7)
    monkeypatch.setattr(checkpoint_writer, "_MAX_PENDING_BYTES", 3000)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_written_in_batches_says_what_the_commits_said(
    layout: str, is_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _new_table(LAYOUTS[layout])
    expected = _described(table.snapshot())
    now_ms = int(table.snapshot().timestamp_ms)
    max_actions = 9 if is_split else checkpoint_files.MAX_ACTIONS_PER_FILE
    with monkeypatch.context() as patched:
        for name in ("live_files", "statistics", "tombstones"):
            patched.setattr(LogState, name, _refuse)
        snapshot = Snapshot.load(table.store)
        write_checkpoint(
            snapshot, now_ms=now_ms, max_actions_per_file=max_actions, max_held_actions=9
        )
    if is_split:
        assert len([path for path in _log(table.store) if path.endswith(".parquet")]) > 3
    else:
        (checkpoint,) = [path for path in _log(table.store) if ".checkpoint." in path]
        is_v2 = LAYOUTS[layout].get("checkpointPolicy") == "v2"
        assert (len(checkpoint) > len(checkpoint_path(0))) == is_v2
    assert _described(_from_checkpoint_alone(table.store, table.version())) == expected


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_split_checkpoint_follows_another_one(layout: str) -> None:
    table = _new_table(LAYOUTS[layout])
    now_ms = int(table.snapshot().timestamp_ms)
    write_checkpoint(table.snapshot(), now_ms=now_ms, max_actions_per_file=9)
    table = DeltaTable("", store=table.store)
    table.append(_rows(200))
    table.delete("id IN (14, 200, 205)")
    table.optimize(where="p = 'a'")
    expected = _described(table.snapshot())
    # A snapshot whose files nobody has looked at, and one that knows them and went on from there.
    for snapshot in (Snapshot.load(table.store), table.snapshot()):
        write_checkpoint(snapshot, now_ms=now_ms, max_actions_per_file=5)
        assert _described(_from_checkpoint_alone(table.store, table.version())) == expected


@pytest.mark.usefixtures("small_batches")
def test_every_path_is_in_one_part_and_the_hint_counts_all() -> None:
    table = _new_table({"enableDeletionVectors": "true"})
    snapshot = table.snapshot()
    write_checkpoint(snapshot, now_ms=0, max_actions_per_file=10)
    parts = [path for path in _log(table.store) if ".checkpoint." in path]
    total = len(parts)
    assert [path[31:] for path in parts] == [
        f".checkpoint.{number:010d}.{total:010d}.parquet" for number in range(1, total + 1)
    ]
    about: list[set[str]] = []
    num_actions = 0
    for path in parts:
        rows = pq.read_table(pa.BufferReader(table.store.read(path))).to_pylist()
        num_actions += len(rows)
        files = [row["add"] or row["remove"] for row in rows]
        about.append({each["path"] for each in files if each is not None})
    assert sum(map(len, about)) == len(set().union(*about))
    hint = json.loads(table.store.read("_delta_log/_last_checkpoint"))
    assert (hint["parts"], hint["size"]) == (total, num_actions)
    assert hint["numOfAddFiles"] == snapshot.num_files
    assert hint["sizeInBytes"] == sum(len(table.store.read(path)) for path in parts)


def test_parts_are_the_same_in_every_attempt() -> None:
    table = _new_table({})
    contents = []
    for snapshot in [Snapshot.load(table.store), Snapshot.load(table.store)]:
        write_checkpoint(snapshot, now_ms=0, max_actions_per_file=10)
        parts = [path for path in _log(table.store) if ".checkpoint." in path]
        contents.append([table.store.read(path) for path in parts])
    assert contents[0] == contents[1]


class _BrokenStore(MemoryStore):
    """Fails to take checkpoint files after some of them."""

    def __init__(self, source: ObjectStore, remaining: int) -> None:
        super().__init__()
        for meta in source.list_recursive():
            super().put(meta.path, source.read(meta.path))
        self._remaining = remaining

    def put(self, path: str, data: bytes) -> None:
        self._count()
        super().put(path, data)

    def open_output(self, path: str) -> Any:
        self._count()
        return super().open_output(path)

    def _count(self) -> None:
        self._remaining -= 1
        if self._remaining < 0:
            raise StorageFailure("the store is full")


@pytest.mark.parametrize("layout", ["parts", "sidecars"])
@pytest.mark.parametrize("remaining", [0, 1, 2])
def test_a_split_checkpoint_that_fails_half_way_is_not_seen(layout: str, remaining: int) -> None:
    table = _new_table(LAYOUTS[layout])
    expected = _described(table.snapshot())
    store = _BrokenStore(table.store, remaining)
    with pytest.raises(StorageFailure):
        write_checkpoint(Snapshot.load(store), now_ms=0, max_actions_per_file=10)
    found = Snapshot.load(store)
    assert found.log_segment.checkpoint is None
    assert _described(found) == expected
    assert not any("_sidecars" in path for path in _log(store))


def test_a_sidecar_checkpoint_is_whole_only_by_its_manifest() -> None:
    table = _new_table(LAYOUTS["sidecars"])
    write_checkpoint(table.snapshot(), now_ms=0, max_actions_per_file=10)
    manifests = [path for path in _log(table.store) if ".checkpoint." in path]
    sidecars = [path for path in _log(table.store) if "_sidecars" in path]
    assert len(manifests) == 1
    assert len(sidecars) > 2
    checkpoint = Snapshot.load(table.store).log_segment.checkpoint
    assert checkpoint is not None
    assert [file.path for file in checkpoint.files] == manifests
    rows = pq.read_table(pa.BufferReader(table.store.read(manifests[0]))).to_pylist()
    named = {row["sidecar"]["path"]: row["sidecar"] for row in rows if row["sidecar"]}
    assert {f"_delta_log/_sidecars/{name}" for name in named} == set(sidecars)
    for name, sidecar in named.items():
        assert sidecar["sizeInBytes"] == len(table.store.read(f"_delta_log/_sidecars/{name}"))


def test_no_sidecar_is_empty() -> None:
    table = _new_table(LAYOUTS["sidecars"])
    write_checkpoint(table.snapshot(), now_ms=0, max_actions_per_file=1)
    sidecars = [path for path in _log(table.store) if "_sidecars" in path]
    found = [pq.read_table(pa.BufferReader(table.store.read(path))) for path in sidecars]
    assert min(rows.num_rows for rows in found) > 0
    bound = table.snapshot().max_file_actions
    assert len(found) < bound
    live = Snapshot.load(table.store).live_files()
    assert sum(rows["add"].is_valid().to_pylist().count(True) for rows in found) == live.num_rows
