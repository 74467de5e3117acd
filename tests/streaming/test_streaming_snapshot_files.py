"""The files that a stream begins with come in one order, however large the table is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_delta.protocol.log.paths import checkpoint_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.streaming import log_stream
from dagster_delta.streaming.log_stream import LogStream, SnapshotFiles
from dagster_delta.streaming.options import Admission, parse_source_options
from dagster_delta.table.log import version as version_module
from dagster_delta.table.log.state import LogState
from dagster_delta.table.read.snapshot import Snapshot
from tests.table.logs import PROTOCOL, add_file, checkpoint_bytes, commit, metadata, remove_file

Files = list[tuple[str, int]]


def _table(files: Files) -> MemoryStore:
    """Files by path and modification time: most in a checkpoint, others in commits after it."""
    store = MemoryStore()
    adds = [
        add_file(path, modificationTime=time, size=number)
        for number, (path, time) in enumerate(files)
    ]
    actions = [PROTOCOL, metadata()]
    commit(store, 0, *actions, *adds[:-3])
    gone = add_file("gone", modificationTime=3)
    store.put(checkpoint_path(0), checkpoint_bytes([*actions, *adds[:-3], gone]))
    commit(store, 1, *adds[-3:], remove_file("gone"))
    return store


def _expected(files: Files) -> list[str]:
    return [path for path, _ in sorted(files, key=lambda each: (each[1], each[0].encode()))]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table with a checkpoint is large, and its files may not be held together."""

    def refuse(*_: object) -> Any:
        raise AssertionError("all files of a large table are held")

    monkeypatch.setattr(version_module, "LARGE_TABLE_FILES", 0)
    monkeypatch.setattr(LogState, "live_files", refuse)
    monkeypatch.setattr(log_stream, "STRETCH_FILES", 5)


@pytest.mark.usefixtures("large")
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    times=st.lists(st.integers(0, 4), min_size=14, max_size=40),
    start=st.integers(0, 45),
    length=st.none() | st.integers(0, 20),
)
def test_stretches_of_a_large_table_are_those_of_the_whole_order(
    times: list[int], start: int, length: int | None
) -> None:
    files = [(f"{number * 7 % 40}-é", time) for number, time in enumerate(times)]
    snapshot = Snapshot.load(_table(files))
    found = SnapshotFiles(snapshot)
    stop = None if length is None else start + length
    expected = _expected(files)[start:stop]
    paths = [path for each in found.between(start, stop) for path in each["path"].to_pylist()]
    assert paths == expected
    sizes = [size for each in found.between(start, None) for size in each["size_bytes"].to_pylist()]
    number_of = {path: number for number, (path, _) in enumerate(files)}
    assert sizes == [number_of[path] for path in _expected(files)[start:]]


def _batches(store: MemoryStore, max_files: int) -> list[list[str]]:
    options = parse_source_options({"path": store.location.uri})
    stream = LogStream(options, Snapshot.load(store))
    offset = stream.initial_offset()
    found: list[list[str]] = []
    while True:
        end = stream.advance(offset, Admission(max_files=max_files))
        if end == offset:
            return found
        sets = stream.files_between(offset, end)
        found.append([path for each in sets for path in each.files["path"].to_pylist()])
        offset = end


@pytest.mark.parametrize("max_files", [1, 4, 100])
def test_a_stream_of_a_large_table_takes_the_same_batches(
    max_files: int, request: pytest.FixtureRequest
) -> None:
    store = _table([(f"f{number * 7 % 23}", number % 4) for number in range(23)])
    expected = _batches(store, max_files)
    request.getfixturevalue("large")
    assert _batches(store, max_files) == expected
    assert sum(map(len, expected)) == 23
