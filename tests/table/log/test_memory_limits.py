"""A small or sparse file of the log cannot make its reader take gigabytes of memory."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta.errors import CorruptLog, InvalidArgument, UnsupportedFeature
from dagster_delta.protocol.log.commit_file import decode_commit, decode_commit_info
from dagster_delta.protocol.log.paths import checkpoint_path, commit_path
from dagster_delta.protocol.log.tail import RawCommit, decode_tail
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.log import version as version_module
from dagster_delta.table.log.reader import find_segment, read_commits
from tests.table.logs import PROTOCOL, add_file, encode, metadata

COMMIT_BYTES = "DAGSTER_DELTA_MAX_COMMIT_BYTES"
CHECKPOINT_BYTES = "DAGSTER_DELTA_MAX_CHECKPOINT_BYTES"
MEBIBYTE = 1024 * 1024
# Written once and listed this often: 60 MB of text in a file of 135 kB.
LONG_PATH = "x" * 3_000
MANY = 20_000


def table_with(root: Path, commit: bytes) -> str:
    (root / "_delta_log").mkdir(parents=True)
    (root / commit_path(0)).write_bytes(commit)
    return str(root)


def checkpointed_table(root: Path, adds: pa.Array) -> str:
    uri = table_with(root, b"")
    texts = {key: text for key, text in metadata()["metaData"].items() if isinstance(text, str)}
    kinds = ({"protocol": PROTOCOL["protocol"]}, {"metaData": texts})
    tables = [*(pa.Table.from_pylist([kind]) for kind in kinds), pa.table({"add": adds})]
    rows = pa.concat_tables(tables, promote_options="default")
    (root / commit_path(0)).unlink()
    pq.write_table(rows, root / checkpoint_path(0), compression="zstd", row_group_size=10**9)
    return uri


def repeated_adds(path: str, count: int) -> pa.Array:
    zeros = pa.array(np.zeros(count, dtype=np.int64))
    paths = pa.DictionaryArray.from_arrays(zeros.cast(pa.int32()), pa.array([path]))
    return pa.StructArray.from_arrays([paths, zeros, zeros], ["path", "size", "modificationTime"])


def test_a_commit_larger_than_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    uri = table_with(tmp_path, encode(PROTOCOL, metadata()))
    size = 1024 * MEBIBYTE + 1
    os.truncate(tmp_path / commit_path(0), size)
    tracemalloc.start()
    try:
        with pytest.raises(UnsupportedFeature, match=f"{size} bytes.*{COMMIT_BYTES}") as caught:
            DeltaTable(uri).snapshot()
        assert tracemalloc.get_traced_memory()[1] < 16 * MEBIBYTE
    finally:
        tracemalloc.stop()
    assert caught.value.file == commit_path(0)
    assert caught.value.table is not None


def test_the_limit_of_commits_is_set_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = encode(PROTOCOL, metadata(), add_file("a" * 10_000))
    uri = table_with(tmp_path, commit)
    monkeypatch.setenv(COMMIT_BYTES, str(len(commit)))
    assert DeltaTable(uri).snapshot().num_files == 1
    monkeypatch.setenv(COMMIT_BYTES, str(len(commit) - 1))
    with pytest.raises(UnsupportedFeature, match=f"at most {len(commit) - 1} "):
        DeltaTable(uri).snapshot()
    monkeypatch.setenv(COMMIT_BYTES, "1 GB")
    with pytest.raises(InvalidArgument, match=f"{COMMIT_BYTES} is '1 GB'"):
        DeltaTable(uri).snapshot()


def test_a_commit_that_could_not_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    table = DeltaTable("", store=store, must_exist=False)
    table.append(pa.table({"id": [1]}))
    before = [meta.path for meta in store.list_recursive()]
    monkeypatch.setenv(COMMIT_BYTES, "5000")
    with pytest.raises(UnsupportedFeature, match=COMMIT_BYTES):
        table.append(pa.table({"id": [2]}), commit_info={"note": "x" * 5000})
    assert [meta.path for meta in store.list_recursive()] == before
    assert table.append(pa.table({"id": [2]})).version == 1


def test_listed_commits_of_every_store_have_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore("memory://limited")
    store.put(commit_path(0), encode(PROTOCOL, metadata(), add_file("a" * 10_000)))
    monkeypatch.setenv(COMMIT_BYTES, "9000")
    with pytest.raises(UnsupportedFeature, match=COMMIT_BYTES):
        read_commits(store, find_segment(store).replay)


@pytest.mark.parametrize("line", [b"{}\n", b'{"commitInfo":{}}\n', b'{"x":1}\n'])
def test_lines_that_say_nothing_take_no_memory(line: bytes) -> None:
    data = encode(PROTOCOL, metadata()) + line * (MEBIBYTE // len(line))
    tracemalloc.start()
    try:
        decode_tail([RawCommit(0, commit_path(0), data)])
        assert tracemalloc.get_traced_memory()[1] < 16 * MEBIBYTE
        tracemalloc.reset_peak()
        if b"commitInfo" not in line:
            assert decode_commit(data, version=0).protocol is not None
            decode_commit_info(data, version=0, path=commit_path(0))
            assert tracemalloc.get_traced_memory()[1] < 24 * MEBIBYTE
    finally:
        tracemalloc.stop()


def test_the_bad_line_after_millions_of_blank_ones_is_named_without_copies() -> None:
    data = b"\n" * MEBIBYTE + b"x"
    tracemalloc.start()
    try:
        with pytest.raises(CorruptLog, match=f"Line {MEBIBYTE + 1} "):
            decode_tail([RawCommit(0, commit_path(0), data)])
        assert tracemalloc.get_traced_memory()[1] < 4 * MEBIBYTE
    finally:
        tracemalloc.stop()


def test_actions_on_both_sides_of_a_chunk_are_kept_in_order() -> None:
    paths = [f"{number:05d}-{'p' * 90}" for number in range(20_000)]
    data = encode(PROTOCOL, metadata(), *map(add_file, paths))
    assert len(data) > 2 * MEBIBYTE
    assert decode_tail([RawCommit(0, commit_path(0), data)]).add_paths == paths
    for end in (b"", b"\n \n"):
        actions = decode_commit(data.rstrip() + end, version=0)
        assert [add.path for add in actions.adds] == paths


def _scan(table: DeltaTable) -> object:
    return table.snapshot().scan(where="id > 1").files()


def _delete(table: DeltaTable) -> object:
    return table.delete("id > 1")


def test_a_checkpoint_that_repeats_a_long_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = checkpointed_table(tmp_path, repeated_adds(LONG_PATH, MANY))
    assert (tmp_path / checkpoint_path(0)).stat().st_size < 200_000
    monkeypatch.setenv(CHECKPOINT_BYTES, str(16 * MEBIBYTE))
    with pytest.raises(UnsupportedFeature, match=CHECKPOINT_BYTES) as caught:
        DeltaTable(uri).snapshot().live_files(["path"])
    assert caught.value.file == checkpoint_path(0)
    assert f"{MANY + 2} rows" in str(caught.value)


@pytest.mark.parametrize("find", [_scan, _delete])
def test_a_filter_keeps_no_more_of_a_checkpoint_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find: Callable[[DeltaTable], object]
) -> None:
    monkeypatch.setattr(version_module, "LARGE_TABLE_FILES", MANY // 2)
    adds = repeated_adds(LONG_PATH, MANY)
    table = DeltaTable(checkpointed_table(tmp_path, adds))
    monkeypatch.setenv(CHECKPOINT_BYTES, str(16 * MEBIBYTE))
    with pytest.raises(UnsupportedFeature, match=CHECKPOINT_BYTES) as caught:
        find(table)
    assert caught.value.file == checkpoint_path(0)


def test_the_limit_of_checkpoints_is_set_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = checkpointed_table(tmp_path, repeated_adds("a" * 100, 1000))
    monkeypatch.setenv(CHECKPOINT_BYTES, "100000")
    with pytest.raises(UnsupportedFeature, match="more than 100000 bytes"):
        DeltaTable(uri).snapshot().live_files(["path"])
    monkeypatch.setenv(CHECKPOINT_BYTES, "200000")
    assert DeltaTable(uri).snapshot().live_files(["path"]).num_rows == 1000


def test_a_small_checkpoint_of_many_rows_is_decoded_in_small_batches(tmp_path: Path) -> None:
    from dagster_delta.protocol.checkpoint.reader import CheckpointPart

    checkpointed_table(tmp_path, repeated_adds("a", MANY))
    data = (tmp_path / checkpoint_path(0)).read_bytes()
    part = CheckpointPart(lambda: pa.BufferReader(data), "c")
    batches = list(part.batches(["add.path"]))
    assert max(batch.num_rows for batch in batches) <= 1024
    assert sum(batch.num_rows for batch in batches) == MANY + 2


def test_a_checkpoint_of_many_different_files_is_read(tmp_path: Path) -> None:
    zeros = pa.array(np.zeros(100_000, dtype=np.int64))
    paths = pa.array([f"{number:x}" for number in range(100_000)])
    names = ["path", "size", "modificationTime"]
    uri = checkpointed_table(tmp_path, pa.StructArray.from_arrays([paths, zeros, zeros], names))
    assert DeltaTable(uri).snapshot().files().num_rows == 100_000
