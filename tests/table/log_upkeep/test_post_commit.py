"""Checkpoints and checksums on their way into the log, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from dagster_delta.errors import CorruptLog, StorageFailure
from dagster_delta.memory_limits import COMMIT_BYTES_VARIABLE, check_log_file_size
from dagster_delta.protocol.checkpoint.last_checkpoint import json_checksum
from dagster_delta.protocol.log.paths import checksum_path, commit_path
from dagster_delta.protocol.log.version_checksum import parse_version_checksum
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint
from dagster_delta.table.read.snapshot import Snapshot, advanced
from dagster_delta.testing.faulty_store import FaultyStore
from tests.table.logs import edited, known_statistics

ROWS = pa.table({"id": [1, 2, 3], "p": ["a", "b", None], "s": [{"x": 1.5}, None, {"x": None}]})


def table_of(store: MemoryStore, **properties: str) -> DeltaTable:
    keys = {f"delta.{key.replace('__', '.')}": value for key, value in properties.items()}
    table = DeltaTable("", store=store, must_exist=False)
    table.append(ROWS, partition_by=["p"], properties=keys, idempotency=("app", 1))
    return table


def log(store: MemoryStore) -> list[str]:
    return sorted(meta.path.rpartition("/")[2] for meta in store.list_recursive("_delta_log"))


def described(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "version": snapshot.version,
        "files": sorted(snapshot.files().to_pylist(), key=lambda row: row["path"]),
        "transactions": snapshot.transactions(),
        "rows": sorted(snapshot.scan().to_arrow().to_pylist(), key=repr),
        "metadata": snapshot.metadata,
        "pruned": snapshot.scan(where="s.x > 1").files().num_rows,
    }


def described_state(snapshot: Snapshot) -> list[Any]:
    files = sorted(snapshot.files().to_pylist(), key=lambda row: row["path"])
    return [snapshot.version, files, snapshot.protocol, snapshot.metadata, snapshot.transactions()]


def from_checkpoint_alone(store: MemoryStore, version: int) -> Snapshot:
    copy = MemoryStore()
    for meta in store.list_recursive():
        name = meta.path.rpartition("/")[2]
        old = meta.path.startswith("_delta_log/0") and name.endswith((".json", ".crc"))
        if not old or "checkpoint" in name or int(name[:20]) > version:
            copy.put(meta.path, store.read(meta.path))
    return Snapshot.load(copy)


def test_a_checkpoint_is_written_at_the_interval(store: MemoryStore) -> None:
    table = table_of(store, checkpointInterval="3")
    for _ in range(6):
        table.append(ROWS)
    checkpoints = [name for name in log(store) if "checkpoint.parquet" in name]
    assert [int(name[:20]) for name in checkpoints] == [3, 6]


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"checkpoint__writeStatsAsStruct": "true", "checkpoint__writeStatsAsJson": "false"},
        {"checkpoint__writeStatsAsStruct": "false"},
        {"columnMapping__mode": "name"},
        {"columnMapping__mode": "id"},
        {"feature__v2Checkpoint": "supported"},
        {"checkpointPolicy": "v2"},
    ],
)
def test_a_checkpoint_says_what_the_commits_said(
    store: MemoryStore, properties: dict[str, str]
) -> None:
    table = table_of(store, **properties)
    table.append(ROWS)
    table.overwrite(ROWS.slice(0, 1), where="p = 'a'")
    table.checkpoint()
    expected = described(table.snapshot())
    found = described(from_checkpoint_alone(store, table.version()))
    for row in (*expected["files"], *found["files"]):
        row["stats"] = known_statistics(json.loads(row["stats"]))
    assert found == expected


def test_tombstones_stay_in_checkpoints_until_they_expire(store: MemoryStore) -> None:
    table = table_of(store)
    table.overwrite(ROWS)
    snapshot = table.snapshot()
    removed_at = snapshot.tombstones()["deletion_timestamp_ms"][0].as_py()
    week = 7 * 24 * 3600 * 1000
    write_checkpoint(snapshot, now_ms=removed_at + week - 1)
    loaded = from_checkpoint_alone(store, 1)
    assert loaded.tombstones(now_ms=removed_at).num_rows == 3
    write_checkpoint(snapshot, now_ms=removed_at + week + 1)
    assert from_checkpoint_alone(store, 1).tombstones(now_ms=removed_at).num_rows == 0


def test_the_hint_points_to_the_checkpoint_and_has_a_checksum(store: MemoryStore) -> None:
    table_of(store).checkpoint()
    text = store.read("_delta_log/_last_checkpoint").decode()
    hint = json.loads(text)
    assert hint["version"] == 0
    assert hint["size"] == 3 + 3
    assert hint["numOfAddFiles"] == 3
    assert hint["checksum"] == json_checksum(text)
    checkpoint = store.head("_delta_log/00000000000000000000.checkpoint.parquet")
    assert checkpoint is not None
    assert hint["sizeInBytes"] == checkpoint.size_bytes


def test_the_hint_never_goes_back(store: MemoryStore) -> None:
    table = table_of(store)
    old = table.snapshot()
    table.append(ROWS)
    table.checkpoint()
    write_checkpoint(old, now_ms=0)
    assert json.loads(store.read("_delta_log/_last_checkpoint"))["version"] == 1


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"checkpoint__writeStatsAsJson": "false", "checkpoint__writeStatsAsStruct": "true"},
        {"checkpointPolicy": "v2"},
        {"columnMapping__mode": "name"},
    ],
)
@pytest.mark.parametrize("max_actions_per_file", [3, 1000])
def test_deltalake_reads_the_checkpoint_alone(
    tmp_path: Path, properties: dict[str, str], max_actions_per_file: int
) -> None:
    keys = {f"delta.{key.replace('__', '.')}": value for key, value in properties.items()}
    table = DeltaTable.create(tmp_path, ROWS.schema, partition_by=["p"], properties=keys)
    table.append(ROWS)
    table.overwrite(ROWS.slice(0, 1), where="dynamic")
    write_checkpoint(table.snapshot(), now_ms=0, max_actions_per_file=max_actions_per_file)
    for commit in (tmp_path / "_delta_log").glob("*[0-9].json"):
        if int(commit.name[:20]) < table.version():
            commit.unlink()
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(tmp_path)))
    theirs = pa.table(query.execute("SELECT id, p, s FROM t ORDER BY id").read_all())
    ours = table.snapshot().scan().to_arrow().sort_by("id")
    assert theirs.cast(ours.schema).to_pylist() == ours.to_pylist()


def test_every_commit_leaves_a_checksum_that_counts(store: MemoryStore) -> None:
    table = table_of(store)
    table.append(ROWS, idempotency=("app", 2))
    table.overwrite(ROWS.slice(1, 1), where="dynamic")
    for version in range(3):
        checksum = parse_version_checksum(store.read(f"_delta_log/{version:020d}.crc"))
        snapshot = table.snapshot(version=version)
        assert checksum is not None
        assert checksum.num_files == snapshot.files().num_rows
        assert checksum.size_bytes == sum(snapshot.files()["size_bytes"].to_pylist())
        assert checksum.metadata == snapshot.metadata
        assert [each.version for each in checksum.transactions or ()] == [min(version + 1, 2)]


def test_the_checksum_comes_back_after_a_writer_that_keeps_none(store: MemoryStore) -> None:
    table = table_of(store, checkpointInterval="3")
    table.append(ROWS)
    store.delete(["_delta_log/00000000000000000001.crc"])
    reopened = DeltaTable("", store=store)
    reopened.append(ROWS)
    assert "00000000000000000002.crc" not in log(store)
    reopened.append(ROWS)
    checksum = parse_version_checksum(store.read("_delta_log/00000000000000000003.crc"))
    assert checksum is not None
    assert checksum.num_files == 12


def test_an_open_handle_goes_on_with_checksums_after_it_counted_once(store: MemoryStore) -> None:
    table = table_of(store, checkpointInterval="2")
    store.delete(["_delta_log/00000000000000000000.crc"])
    reopened = DeltaTable("", store=store)
    for _ in range(3):
        reopened.append(ROWS)
    assert [name[:20].lstrip("0") for name in log(store) if name.endswith(".crc")] == ["2", "3"]
    assert table.version() == 0


@pytest.mark.parametrize("theirs", ["stored", "missing", "damaged", "of another commit"])
@pytest.mark.parametrize("is_ours_known", [True, False])
def test_a_handle_that_was_overtaken_goes_on_with_checksums(
    store: MemoryStore, theirs: str, is_ours_known: bool
) -> None:
    path = "_delta_log/00000000000000000001.crc"
    other, another = table_of(store), DeltaTable("", store=store)
    assert another.version() == 0
    if not is_ours_known:
        store.delete(["_delta_log/00000000000000000000.crc"])
    table = DeltaTable("", store=store)
    assert (table.snapshot().checksum is not None) == is_ours_known
    other.append(ROWS)
    found = store.read(path)
    if theirs == "of another commit":
        store.delete([path, commit_path(1)])
        another.append(ROWS.slice(1))
    if theirs != "stored":
        store.delete([path])
    if theirs in ("damaged", "of another commit"):
        store.put(path, found if theirs != "damaged" else found[:-9])
    table.append(ROWS)
    is_known = is_ours_known or theirs == "stored"
    assert ("00000000000000000002.crc" in log(store)) == is_known
    if is_known:
        checksum = parse_version_checksum(store.read("_delta_log/00000000000000000002.crc"))
        snapshot = DeltaTable("", store=store).snapshot()
        assert checksum is not None
        assert (checksum.num_files, snapshot.version) == (snapshot.files().num_rows, 2)
        assert checksum.size_bytes == sum(snapshot.files()["size_bytes"].to_pylist())


def test_a_file_that_others_add_again_is_no_damage_to_readers(store: MemoryStore) -> None:
    table = table_of(store, checkpointInterval="4")
    adds = [line for line in store.read(commit_path(0)).splitlines() if b'{"add"' in line]
    store.put(commit_path(1), b'{"commitInfo":{"operation":"X"}}\n' + adds[0] + b"\n")
    table.append(ROWS)
    reopened = DeltaTable("", store=store)
    assert reopened.snapshot().scan().count() == 6
    (wrong,) = reopened.health().damaged_log_files
    with pytest.raises(CorruptLog, match="delete it"):
        reopened.checkpoint()
    store.delete([wrong])
    reopened = DeltaTable("", store=store)
    reopened.append(ROWS)
    reopened.append(ROWS)
    checksum = parse_version_checksum(store.read("_delta_log/00000000000000000004.crc"))
    assert checksum is not None
    assert (checksum.is_own, checksum.num_files) == (True, reopened.snapshot().num_files)
    assert reopened.health().damaged_log_files == ()


def test_appends_carry_a_large_table_forward(store: MemoryStore) -> None:
    table = table_of(store, checkpointInterval="1000000")
    for _ in range(300):
        table.append(ROWS.slice(0, 1))
    assert table.snapshot().num_records == 303
    assert DeltaTable("", store=store).snapshot().num_files == 303


def test_a_snapshot_stays_as_it_is_when_a_checkpoint_is_stored_after_it() -> None:
    store = MemoryStore()
    table = table_of(store, checkpointInterval="2")
    store.delete([meta.path for meta in store.list_recursive() if meta.path.endswith(".crc")])
    table = DeltaTable("", store=store)
    seen: list[Snapshot] = []

    def note(*arguments: Any, **options: Any) -> Snapshot:
        seen.append(advanced(*arguments, **options))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dagster_delta.table.log_upkeep.post_commit.advanced", note)
        table.append(ROWS)
        result = table.append(ROWS)
    before = seen[-1]
    assert before.version == result.version == 2
    assert before.checksum is None
    assert result.snapshot.checksum is not None
    assert result.snapshot.checksum.is_own


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("delta.checkpointInterval", "often"),
        ("delta.compatibility.symlinkFormatManifest.enabled", "maybe"),
        ("delta.logRetentionDuration", "interval 1 month"),
    ],
)
def test_a_property_that_cannot_be_used_fails_no_commit(
    store: MemoryStore, key: str, value: str
) -> None:
    table_of(store)
    old, new = b'"configuration":{', f'"configuration":{{"{key}":"{value}"'.encode()
    store.put(commit_path(0), edited(store.read(commit_path(0)), old, new))
    store.delete([checksum_path(0)])
    table = DeltaTable("", store=store)
    assert table.append(ROWS).version == 1
    assert table.append(ROWS).version == 2
    assert table.refresh().num_records == 9
    table.unset_properties([key])
    assert table.append(ROWS).version == 4


def test_a_checksum_of_others_that_is_too_large_fails_no_commit(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_of(store)
    store.delete([checksum_path(0)])
    table, other = DeltaTable("", store=store), DeltaTable("", store=store)
    other.append(ROWS)
    store.put(checksum_path(1), b" " * 5000)
    read = store.read

    def limited(path: str) -> bytes:
        data = read(path)
        check_log_file_size(path, len(data))
        return data

    monkeypatch.setattr(store, "read", limited)
    monkeypatch.setenv(COMMIT_BYTES_VARIABLE, "4999")
    assert table.append(ROWS).version == 2
    monkeypatch.delenv(COMMIT_BYTES_VARIABLE)
    assert DeltaTable("", store=store).snapshot().num_records == 9


@pytest.mark.parametrize("bad", ["_last_checkpoint", ".crc", ".json"])
@pytest.mark.parametrize("operation", ["append", "overwrite", "create"])
def test_the_first_commit_succeeds_where_nothing_can_be_read_after_it(
    store: MemoryStore, operation: str, bad: str
) -> None:
    committed = False

    def refuse(called: str, path: str) -> None:
        nonlocal committed
        if called == "put_if_absent":
            committed = committed or path.endswith(".json")
        elif committed and not called.startswith("put") and path.endswith(bad):
            raise StorageFailure("Input/output error", table="t", file=path)

    faulty = FaultyStore(store, before_call=refuse)
    if operation == "create":
        created = DeltaTable.create("", ROWS.schema, store=faulty)
    else:
        created = DeltaTable("", store=faulty, must_exist=False)
        write = created.append if operation == "append" else created.overwrite
        assert write(ROWS).version == 0
    assert committed
    assert created.version() == 0
    found = created.snapshot()
    assert described_state(found) == described_state(Snapshot.load(store))
