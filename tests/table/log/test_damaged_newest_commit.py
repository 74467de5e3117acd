"""No write builds on a newest commit that is damaged: it would be acknowledged and unreadable."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta.errors import CorruptLog
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.testing.faulty_store import FaultyStore

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})
UNIQUE = "3a0d65cd-4056-49b8-937b-95f9e3ee90e5"
NEWEST = f"_delta_log/{2:020d}.json"

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda data: data[: len(data) // 2],
    "cut between lines": lambda data: data[: data.rindex(b"\n")],
    "changed": lambda data: data.replace(b'"partitionValues"', b'"partitionvalues"', 1),
}


def _merge(table: DeltaTable) -> object:
    merge = table.merge(ROWS, on="t.id = s.id", source_alias="s", target_alias="t")
    return merge.when_matched_update_all().when_not_matched_insert_all().execute()


WRITES: dict[str, Callable[[DeltaTable], object]] = {
    "append": lambda table: table.append(ROWS),
    "idempotent append": lambda table: table.append(ROWS, idempotency=("app", 1)),
    "overwrite": lambda table: table.overwrite(ROWS),
    "overwrite where": lambda table: table.overwrite(ROWS.slice(0, 1), where="id = 1"),
    "delete": lambda table: table.delete(),
    "delete where": lambda table: table.delete("id = 1"),
    "update": lambda table: table.update({"id": "id + 10"}),
    "merge": _merge,
    "alter": lambda table: table.alter("ALTER TABLE t ADD COLUMNS (extra STRING)"),
    "set properties": lambda table: table.set_properties({"delta.appendOnly": "false"}),
    "restore": lambda table: table.restore(version=1),
    "checkpoint": lambda table: table.checkpoint(),
    "optimize": lambda table: table.optimize(),
    "vacuum": lambda table: table.vacuum(0, enforce_retention=False, dry_run=False),
    "replace": lambda table: DeltaTable.create(
        table.uri, ROWS.schema, mode="replace", store=table.store
    ),
}


def _table(store: MemoryStore | FaultyStore) -> DeltaTable:
    table = DeltaTable("", store=store, must_exist=False)
    for _ in range(3):
        table.append(ROWS)
    return table


def _damage(store: MemoryStore, damage: str) -> dict[str, bytes]:
    """Damage the newest commit; returns all objects."""
    store.put(NEWEST, DAMAGES[damage](store.read(NEWEST)))
    return _objects(store)


def _objects(store: MemoryStore) -> dict[str, bytes]:
    return {meta.path: store.read(meta.path) for meta in store.list_recursive()}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_append_on_top_of_a_damaged_commit_is_refused(damage: str) -> None:
    store = MemoryStore()
    _table(store)
    before = _damage(store, damage)
    with pytest.raises(CorruptLog) as caught:
        DeltaTable("", store=store).append(ROWS)
    assert caught.value.version == 2
    assert caught.value.file == NEWEST
    assert _objects(store) == before


# Parts of an action that opening a table does not look at, and reading it does.
WRONG_TYPES = {
    "partition values": (rb'"partitionValues":\{\}', b'"partitionValues":7'),
    "statistics": (rb'"stats":"', b'"tags":{"a":{}},"stats":"'),
    "time": (rb'"modificationTime":\d+', b'"modificationTime":1.5'),
    "time of a remove": (
        b"$",
        b'{"remove":{"path":"a","dataChange":true,"deletionTimestamp":"12"}}\n',
    ),
}


def _without_checksum(data: bytes) -> bytes:
    return re.sub(rb',"contentCrc32":\d+', b"", data)


@pytest.mark.parametrize("wrong", WRONG_TYPES)
@pytest.mark.parametrize("with_version_checksum", [True, False])
def test_an_append_on_top_of_values_of_a_wrong_type_is_refused(
    wrong: str, with_version_checksum: bool
) -> None:
    store = MemoryStore()
    _table(store)
    pattern, replacement = WRONG_TYPES[wrong]
    whole = _without_checksum(store.read(NEWEST))
    damaged = re.sub(pattern, replacement, whole, count=1)
    assert damaged != whole
    store.put(NEWEST, damaged)
    if not with_version_checksum:
        store.delete([NEWEST.replace(".json", ".crc")])
    before = _objects(store)
    with pytest.raises(CorruptLog) as caught:
        DeltaTable("", store=store).append(ROWS)
    assert caught.value.file == NEWEST
    assert _objects(store) == before


def test_a_handle_that_read_the_damage_as_an_update_refuses_as_well() -> None:
    store = MemoryStore()
    table = _table(store)
    newest = _without_checksum(store.read(NEWEST))
    later = NEWEST.replace("2.json", "3.json")
    store.put(later, re.sub(rb'"modificationTime":\d+', b'"modificationTime":"12"', newest))
    with pytest.raises(CorruptLog) as caught:
        table.append(ROWS)
    assert caught.value.file == later


@pytest.mark.parametrize("write", WRITES)
def test_no_write_puts_a_byte_on_top_of_a_damaged_commit(write: str) -> None:
    store = MemoryStore()
    _table(store)
    before = _damage(store, "empty")
    table = DeltaTable("", store=store)
    with pytest.raises(CorruptLog):
        WRITES[write](table)
    assert _objects(store) == before


def test_a_handle_that_was_opened_before_the_damage_refuses_as_well() -> None:
    store = MemoryStore()
    _table(store)
    table = DeltaTable("", store=store)
    before = _damage(store, "empty")
    with pytest.raises(CorruptLog):
        table.append(ROWS)
    assert _objects(store) == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_commit_is_not_rebased_on_a_damaged_one(damage: str) -> None:
    store = MemoryStore()
    _table(store)
    whole = store.read(NEWEST)
    store.delete([NEWEST, NEWEST.replace(".json", ".crc")])

    def win(operation: str, path: str) -> None:
        if operation == "put_if_absent" and path == NEWEST:
            store.put(NEWEST, DAMAGES[damage](whole))

    table = DeltaTable("", store=FaultyStore(store, before_call=win))
    with pytest.raises(CorruptLog):
        table.append(ROWS)
    assert f"_delta_log/{3:020d}.json" not in _objects(store)


def test_a_damaged_commit_that_a_checkpoint_replaces_is_written_on() -> None:
    store = MemoryStore()
    _table(store).checkpoint()
    _damage(store, "empty")
    table = DeltaTable("", store=store)
    table.append(ROWS)
    assert DeltaTable("", store=store).snapshot().scan().to_arrow().num_rows == 12


def test_damaged_compacted_commits_are_passed_over() -> None:
    store = MemoryStore()
    _table(store)
    store.put(f"_delta_log/{1:020d}.{2:020d}.compacted.json", b"{")
    DeltaTable("", store=store).append(ROWS)
    assert DeltaTable("", store=store).snapshot().scan().to_arrow().num_rows == 12


def test_an_append_reads_the_newest_commit_once_for_each_handle() -> None:
    store = MemoryStore()
    _table(store)
    read: list[str] = []

    def note(operation: str, path: str) -> None:
        if operation == "read" and path.endswith(".json"):
            read.append(path.rpartition("/")[2].lstrip("0"))

    table = DeltaTable("", store=FaultyStore(store, before_call=note))
    for _ in range(3):
        table.append(ROWS)
    # Each append compares the newest commit with the one that the handle knows.
    assert read == ["2.json", "3.json", "4.json"]
    table.snapshot().scan().to_arrow()
    assert read.count("2.json") == 2


def test_a_stream_sink_refuses_before_its_tasks_write(tmp_path: Path) -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    from dagster_delta.streaming.data_source import TableWriter
    from dagster_delta.streaming.options import parse_source_options

    table = DeltaTable(tmp_path, must_exist=False)
    for _ in range(3):
        table.append(ROWS.select(["id"]))
    (tmp_path / NEWEST).write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    options = parse_source_options({"path": str(tmp_path)})
    schema = StructType([StructField("id", LongType())])
    with pytest.raises(CorruptLog):
        TableWriter(options, schema, overwrite=False)
    assert sorted(tmp_path.rglob("*")) == before
