"""Snapshots: loading, lazy columns, carrying forward. Spec: Action Reconciliation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta.errors import (
    CorruptLog,
    InvalidArgument,
    LogGap,
    MissingMetadata,
    MissingProtocol,
    TableNotFound,
    UnsupportedReaderVersion,
    VersionNotFound,
)
from dagster_delta.protocol.log.paths import (
    LAST_CHECKPOINT_PATH,
    checkpoint_path,
    checksum_path,
    commit_path,
    multi_part_checkpoint_paths,
    v2_checkpoint_path,
)
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA, TOMBSTONE_SCHEMA
from dagster_delta.protocol.log.version_checksum import VersionChecksum, encode_version_checksum
from dagster_delta.protocol.schema import PrimitiveType
from dagster_delta.protocol.statistics.statistics import StatisticsColumn
from dagster_delta.storage import open_store
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.storage.object_store import ObjectMeta
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.log.commit_range import version_at
from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint
from dagster_delta.table.read.snapshot import Snapshot, advanced
from dagster_delta.testing.faulty_store import FaultyStore
from tests.golden.answers import table_path
from tests.table.logs import (
    CHECKPOINT_TYPES,
    PROTOCOL,
    Action,
    add_file,
    checkpoint,
    checkpoint_bytes,
    commit,
    compacted_path,
    encode,
    features,
    metadata,
    new_table,
    remove_file,
    vector,
)

UUID = "00000000-0000-0000-0000-000000000001"


def _stats(rows: int, low: int = 0, high: int = 9) -> str:
    return json.dumps({"numRecords": rows, "minValues": {"id": low}, "maxValues": {"id": high}})


def _paths(snapshot: Snapshot) -> list[str]:
    found: list[str] = snapshot.live_files(["path"])["path"].to_pylist()
    return found


class CountingStore(MemoryStore):
    """Remembers what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def read(self, path: str) -> bytes:
        self.reads.append(path.rpartition("/")[2])
        return super().read(path)

    def open_input(self, path: str) -> Any:
        self.reads.append(path.rpartition("/")[2])
        return super().open_input(path)


def _counting(source: MemoryStore) -> CountingStore:
    store = CountingStore()
    for meta in source.list_recursive():
        store.put(meta.path, source.read(meta.path))
    return store


# Loading


def test_the_latest_version_is_loaded() -> None:
    store = new_table(add_file("a"))
    commit(store, 1, add_file("b"), remove_file("a"))
    snapshot = Snapshot.load(store)
    assert snapshot.version == 1
    assert _paths(snapshot) == ["b"]
    assert snapshot.metadata.id == "table-id"
    assert snapshot.schema.names == ("id", "day")
    assert snapshot.arrow_schema == pa.schema([("id", pa.int64()), ("day", pa.date32())])


def test_an_older_version_is_loaded() -> None:
    store = new_table(add_file("a"))
    commit(store, 1, add_file("b"), remove_file("a"))
    assert _paths(Snapshot.load(store, version=0)) == ["a"]


def test_version_and_timestamp_exclude_each_other() -> None:
    with pytest.raises(InvalidArgument):
        Snapshot.load(new_table(), version=0, timestamp=0)


def test_an_unknown_version_is_refused_with_the_range_of_the_whole_log() -> None:
    store = new_table(add_file("a"))
    for version in range(1, 4):
        commit(store, version, add_file(f"f{version}"))
    checkpoint(store, 2, [PROTOCOL, metadata(), add_file("a"), add_file("f1"), add_file("f2")])
    with pytest.raises(VersionNotFound, match="from version 0 to 3") as raised:
        Snapshot.load(store, version=7)
    assert raised.value.table == store.location.uri
    assert raised.value.version == 7


def test_where_there_is_no_table_none_is_found() -> None:
    with pytest.raises(TableNotFound):
        Snapshot.load(MemoryStore())
    store = MemoryStore()
    store.put("part-0.parquet", b"x")
    store.put(checksum_path(0), b"{")
    with pytest.raises(TableNotFound):
        Snapshot.load(store)


def test_a_log_without_metadata_or_protocol_is_refused() -> None:
    store = MemoryStore()
    commit(store, 0, PROTOCOL, add_file("a"))
    with pytest.raises(MissingMetadata) as raised:
        Snapshot.load(store)
    assert (raised.value.table, raised.value.version) == (store.location.uri, 0)
    store = MemoryStore()
    commit(store, 0, metadata(), add_file("a"))
    with pytest.raises(MissingProtocol):
        Snapshot.load(store)


def test_a_checkpoint_without_metadata_is_refused_even_if_older_commits_have_it() -> None:
    store = new_table(add_file("a"))
    checkpoint(store, 0, [PROTOCOL, add_file("a")])
    with pytest.raises(MissingMetadata):
        Snapshot.load(store)


def test_a_missing_commit_is_refused_by_name() -> None:
    store = new_table()
    commit(store, 2, add_file("b"))
    with pytest.raises(LogGap, match="version 1") as raised:
        Snapshot.load(store)
    assert raised.value.table == store.location.uri


class TornStore(FaultyStore):
    """The first listing lacks a file that was added while it was made, and has a later one."""

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        listed = list(super().list_from(directory, start))
        is_first = self.calls["list_from"] == 1
        return (meta for meta in listed if not (is_first and meta.path == commit_path(3)))


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_commit_that_a_listing_missed_while_it_was_made_is_no_gap(
    *, has_checkpoint: bool
) -> None:
    store = new_table()
    for version in range(1, 5):
        commit(store, version, add_file(f"file {version}"))
    if has_checkpoint:
        checkpoint(store, 1, [PROTOCOL, metadata(), add_file("file 1")])
        store.put("_delta_log/_last_checkpoint", b'{"version": 1, "size": 3}')
    torn = TornStore(store)
    assert Snapshot.load(torn).version == 4
    assert torn.calls["list_from"] == 2


def test_a_version_that_a_listing_missed_is_found_by_its_time() -> None:
    store = new_table()
    for version in range(1, 5):
        commit(store, version, add_file(f"file {version}"))
    newest = store.head(commit_path(4))
    assert newest is not None
    wanted = newest.modified_ms
    assert version_at(TornStore(store), wanted) == version_at(store, wanted)


def test_a_damaged_commit_is_refused_by_file_and_line() -> None:
    store = new_table()
    store.put(commit_path(1), encode(add_file("a")) + b'{"add":')
    with pytest.raises(CorruptLog, match="Line 2") as raised:
        Snapshot.load(store)
    assert raised.value.file == commit_path(1)
    assert raised.value.table == store.location.uri


def test_a_table_of_an_unknown_reader_version_is_refused() -> None:
    store = MemoryStore()
    commit(store, 0, {"protocol": {"minReaderVersion": 99, "minWriterVersion": 2}}, metadata())
    with pytest.raises(UnsupportedReaderVersion):
        Snapshot.load(store)


# Checkpoints


def test_a_checkpoint_hides_what_it_no_longer_holds() -> None:
    store = new_table(add_file("a"), add_file("b"))
    commit(store, 1, remove_file("a"))
    checkpoint(store, 1, [PROTOCOL, metadata(), add_file("b"), remove_file("a")])
    commit(store, 2, add_file("c"))
    assert _paths(Snapshot.load(store)) == ["b", "c"]


def test_a_remove_after_the_checkpoint_hides_the_file() -> None:
    store = new_table()
    checkpoint(store, 0, [add_file("a"), PROTOCOL, add_file("b"), metadata(), add_file("c")])
    commit(store, 1, remove_file("b"))
    snapshot = Snapshot.load(store)
    assert _paths(snapshot) == ["a", "c"]
    assert snapshot.live_files()["path"].to_pylist() == ["a", "c"]


def test_a_few_removes_from_a_large_checkpoint_leave_every_other_file_in_its_row() -> None:
    count, dropped = 10_000, {0, 4_711, 9_999}
    files = [
        add_file(f"f{number}", size=number, partitionValues={"day": f"d{number}"})
        for number in range(count)
    ]
    store = new_table()
    checkpoint(store, 1, [PROTOCOL, metadata(), *files])
    commit(store, 2, *(remove_file(f"f{number}") for number in sorted(dropped)[:2]))
    snapshot = Snapshot.load(store)
    assert snapshot.num_files == count - 2
    later = advanced(
        snapshot.store, snapshot, [(3, encode(remove_file("f9999"), add_file("new", size=-1)))]
    )

    found = later.live_files(["path", "size_bytes", "partition_values"])

    kept = [number for number in range(count) if number not in dropped]
    assert found["path"].to_pylist() == [f"f{number}" for number in kept] + ["new"]
    assert found["size_bytes"].to_pylist() == [*kept, -1]
    values = [dict(each).get("day") for each in found["partition_values"].to_pylist()]
    assert values == [f"d{number}" for number in kept] + [None]


def test_a_new_deletion_vector_after_the_checkpoint_replaces_the_file() -> None:
    store = new_table(features("deletionVectors"))
    old = vector("v", offset=1)
    checkpoint(
        store,
        0,
        [features("deletionVectors"), metadata(), add_file("a", deletionVector=old), add_file("b")],
    )
    new = vector("v", offset=50, cardinality=7)
    commit(store, 1, remove_file("a", deletionVector=old), add_file("a", deletionVector=new))
    files = Snapshot.load(store).live_files(["path", "deletion_vector"]).to_pylist()
    assert [(row["path"], (row["deletion_vector"] or {}).get("offset")) for row in files] == [
        ("b", None),
        ("a", 50),
    ]


def test_an_older_logical_file_of_the_same_path_stays_if_only_another_was_removed() -> None:
    store = new_table(features("deletionVectors"))
    checkpoint(
        store,
        0,
        [features("deletionVectors"), metadata(), add_file("a", deletionVector=vector("v"))],
    )
    commit(store, 1, remove_file("a"))
    assert _paths(Snapshot.load(store)) == ["a"]


def test_a_checkpoint_in_parts_is_read_whole() -> None:
    store = new_table()
    first, second = multi_part_checkpoint_paths(0, 2)
    store.put(first, checkpoint_bytes([add_file("a"), PROTOCOL]))
    store.put(second, checkpoint_bytes([metadata(), add_file("b"), add_file("c")]))
    commit(store, 1, remove_file("c"))
    assert _paths(Snapshot.load(store)) == ["a", "b"]


@pytest.mark.parametrize("extension", ["json", "parquet"])
def test_a_v2_checkpoint_is_read_with_its_sidecars_whatever_their_tags(extension: str) -> None:
    store = new_table()
    sidecar = checkpoint_bytes(
        [add_file("a"), remove_file("z", deletionTimestamp=10**15), add_file("b")]
    )
    store.put("_delta_log/_sidecars/s.parquet", sidecar)
    tags = {"numOfAddFiles": "2", "unknown": None}
    manifest: list[Action] = [
        {"checkpointMetadata": {"version": 0, "tags": tags}},
        PROTOCOL,
        metadata(),
        {"txn": {"appId": "app", "version": 3}},
        {"sidecar": {"path": "s.parquet", "sizeInBytes": 1, "modificationTime": 1, "tags": tags}},
        add_file("inline"),
    ]
    texts = pa.map_(pa.string(), pa.string())
    types = {
        **CHECKPOINT_TYPES,
        "checkpointMetadata": pa.struct([("version", pa.int64()), ("tags", texts)]),
        "sidecar": pa.struct([*CHECKPOINT_TYPES["sidecar"], ("tags", texts)]),
    }
    data = encode(*manifest) if extension == "json" else checkpoint_bytes(manifest, types)
    store.put(v2_checkpoint_path(0, UUID, extension), data)
    commit(store, 1, remove_file("a", deletionTimestamp=10**15), add_file("c"))
    snapshot = Snapshot.load(store)
    assert sorted(_paths(snapshot)) == ["b", "c", "inline"]
    assert snapshot.transaction_version("app") == 3
    assert sorted(snapshot.tombstones()["path"].to_pylist()) == ["a", "z"]


def test_a_missing_sidecar_is_refused_by_name() -> None:
    store = new_table()
    sidecar: Action = {"sidecar": {"path": "s.parquet", "sizeInBytes": 1, "modificationTime": 1}}
    store.put(v2_checkpoint_path(0, UUID, "json"), encode(PROTOCOL, metadata(), sidecar))
    store.delete([commit_path(0)])
    with pytest.raises(CorruptLog, match="missing") as raised:
        Snapshot.load(store).live_files()
    assert raised.value.file == "_delta_log/_sidecars/s.parquet"
    assert raised.value.table == store.location.uri


def test_a_damaged_checkpoint_is_refused_by_name() -> None:
    store = new_table()
    store.put(checkpoint_path(0), b"PAR1 and nothing more")
    store.delete([commit_path(0)])
    with pytest.raises(CorruptLog) as raised:
        Snapshot.load(store)
    assert raised.value.file == checkpoint_path(0)


@pytest.mark.parametrize(
    "hint",
    [b"", b"{", b'{"version":7}', b'{"version":1}', b'{"version":2,"checksum":"0"}', b"\xff"],
)
def test_a_wrong_hint_is_survived(hint: bytes) -> None:
    store = new_table(add_file("a"))
    commit(store, 1, add_file("b"))
    commit(store, 2, add_file("c"))
    checkpoint(
        store, 2, [PROTOCOL, metadata(), add_file("a"), add_file("b"), add_file("c")], hint=False
    )
    store.put(LAST_CHECKPOINT_PATH, hint)
    snapshot = Snapshot.load(store)
    assert snapshot.version == 2
    assert _paths(snapshot) == ["a", "b", "c"]


def test_compacted_commits_are_read_instead_of_the_commits() -> None:
    source = new_table(add_file("a"))
    commit(source, 1, add_file("b"))
    commit(source, 2, remove_file("a"))
    source.put(compacted_path(1, 2), encode(add_file("b"), remove_file("a")))
    store = _counting(source)
    assert _paths(Snapshot.load(store)) == ["b"]
    assert commit_path(1).rpartition("/")[2] not in store.reads


# Columns on demand


def test_columns_come_in_the_order_asked_for_and_rows_in_one_order() -> None:
    store = new_table()
    checkpoint(store, 0, [PROTOCOL, metadata(), add_file("a", size=1), add_file("b", size=2)])
    commit(store, 1, add_file("c", size=3), remove_file("a"))
    snapshot = Snapshot.load(store)
    some = snapshot.live_files(["size_bytes", "path"])
    assert some.to_pylist() == [{"size_bytes": 2, "path": "b"}, {"size_bytes": 3, "path": "c"}]
    every = snapshot.live_files()
    assert every.schema == LIVE_FILE_SCHEMA
    every.validate(full=True)
    assert every.select(["size_bytes", "path"]).equals(some)


def test_an_unknown_column_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        Snapshot.load(new_table()).live_files(["nonsense"])


def test_a_column_is_read_once() -> None:
    source = new_table()
    checkpoint(source, 0, [PROTOCOL, metadata(), add_file("a")])
    store = _counting(source)
    snapshot = Snapshot.load(store)
    snapshot.live_files()
    seen = len(store.reads)
    snapshot.live_files()
    assert snapshot.num_files == 1
    assert len(store.reads) == seen


def test_threads_see_the_same_columns() -> None:
    store = new_table()
    checkpoint(store, 0, [PROTOCOL, metadata(), *(add_file(f"f{n}", size=n) for n in range(500))])
    commit(store, 1, remove_file("f7"))
    snapshot = Snapshot.load(store)
    names = [["path"], ["size_bytes"], ["stats", "tags"], list(LIVE_FILE_SCHEMA.names)] * 4
    with ThreadPoolExecutor(8) as pool:
        tables = list(pool.map(snapshot.live_files, names))
    for wanted, table in zip(names, tables, strict=True):
        assert table.equals(snapshot.live_files(wanted))
        assert table.num_rows == 499


# Counts


def test_counts_come_from_the_log_alone() -> None:
    store = new_table(features("deletionVectors"))
    actions = [
        features("deletionVectors"),
        metadata(),
        add_file("a", size=5, stats=_stats(10), deletionVector=vector("v", cardinality=3)),
        add_file("b", size=6, stats=_stats(20)),
    ]
    checkpoint(store, 0, actions)
    commit(store, 1, add_file("c", size=7, stats=_stats(30)))
    snapshot = Snapshot.load(store)
    assert (snapshot.num_files, snapshot.size_bytes, snapshot.num_records) == (3, 18, 57)


def test_a_file_without_statistics_makes_the_number_of_rows_unknown() -> None:
    store = new_table(add_file("a", stats=_stats(10)), add_file("b"))
    snapshot = Snapshot.load(store)
    assert snapshot.num_records is None
    assert snapshot.files()["num_records"].to_pylist() == [10, None]


def test_an_empty_table_has_no_rows() -> None:
    snapshot = Snapshot.load(new_table())
    assert (snapshot.num_files, snapshot.size_bytes, snapshot.num_records) == (0, 0, 0)
    assert snapshot.live_files().schema == LIVE_FILE_SCHEMA
    assert snapshot.files().num_rows == 0


def test_statistics_stand_row_for_row_beside_the_files() -> None:
    column = StatisticsColumn(("id",), PrimitiveType("long"))
    store = new_table()
    actions = [add_file(f"f{n}", stats=_stats(1, n, n)) for n in range(5)]
    checkpoint(store, 0, [PROTOCOL, metadata(), *actions])
    commit(store, 1, remove_file("f1"), add_file("new", stats=_stats(1, 70, 80)), remove_file("f3"))
    snapshot = Snapshot.load(store)
    assert _paths(snapshot) == ["f0", "f2", "f4", "new"]
    assert snapshot.statistics([column])["min.0"].to_pylist() == [0, 2, 4, 70]
    after = advanced(snapshot.store, snapshot, [(2, encode(remove_file("f2")))])
    assert after.statistics([column])["max.0"].to_pylist() == [0, 4, 80]


def test_files_are_listed_by_logical_partition_column() -> None:
    snapshot = DeltaTable(table_path("golden__dv-with-columnmapping")).snapshot()
    logical = set(snapshot.configuration.partition_columns)
    keys = {key for row in snapshot.files()["partition_values"].to_pylist() for key, _ in row}
    assert keys == logical
    physical = {
        key
        for row in snapshot.live_files(["partition_values"])["partition_values"].to_pylist()
        for key, _ in row
    }
    assert physical == set(snapshot.configuration.physical_partition_columns) != logical


# Table state


def _domain(name: str, configuration: str = "", *, removed: bool = False) -> Action:
    return {"domainMetadata": {"domain": name, "configuration": configuration, "removed": removed}}


def test_applications_and_domains_are_reconciled() -> None:
    store = new_table()
    first: list[Action] = [
        {"txn": {"appId": "a", "version": 1}},
        {"txn": {"appId": "b", "version": 5}},
        _domain("x", "1"),
        _domain("y", "1"),
    ]
    checkpoint(store, 0, [PROTOCOL, metadata(), *first])
    commit(store, 1, {"txn": {"appId": "a", "version": 2}}, _domain("x", removed=True))
    snapshot = Snapshot.load(store)
    assert snapshot.transaction_version("a") == 2
    assert snapshot.transaction_version("b") == 5
    assert snapshot.transaction_version("c") is None
    assert {each.app_id for each in snapshot.transactions()} == {"a", "b"}
    assert set(snapshot.domain_metadata()) == {"y"}


def test_tombstones_stay_until_their_retention_is_over() -> None:
    store = new_table(metadata({"delta.deletedFileRetentionDuration": "interval 1 hours"}))
    checkpoint(
        store,
        0,
        [
            PROTOCOL,
            metadata({"delta.deletedFileRetentionDuration": "interval 1 hours"}),
            remove_file("old", deletionTimestamp=1_000_000),
            remove_file("back", deletionTimestamp=9_000_000),
            remove_file("never"),
            remove_file("new", deletionTimestamp=9_000_000),
            add_file("a"),
        ],
    )
    commit(store, 1, remove_file("a", deletionTimestamp=9_500_000), add_file("back"))
    tombstones = Snapshot.load(store).tombstones(now_ms=10_000_000)
    assert tombstones.schema == TOMBSTONE_SCHEMA
    assert tombstones["path"].to_pylist() == ["new", "a"]


# Version checksum


def _checksum(snapshot: Snapshot, **fields: Any) -> bytes:
    known = {"num_files": snapshot.num_files, "size_bytes": snapshot.size_bytes, **fields}
    return encode_version_checksum(
        VersionChecksum(protocol=snapshot.protocol, metadata=snapshot.metadata, **known)
    )


def test_with_a_checksum_opening_reads_no_commit() -> None:
    source = new_table(add_file("a"))
    commit(source, 1, add_file("b"))
    data = _checksum(Snapshot.load(source), transactions=(), domain_metadata=())
    source.put(checksum_path(1), data)
    store = _counting(source)
    snapshot = Snapshot.load(store)
    assert snapshot.schema.names == ("id", "day")
    assert snapshot.transaction_version("app") is None
    assert snapshot.domain_metadata() == {}
    assert store.reads == ["_last_checkpoint", "00000000000000000001.crc"]
    assert _paths(snapshot) == ["a", "b"]


@pytest.mark.parametrize("data", [b"", b"{", b'{"numFiles":1}', b"[]"])
def test_a_damaged_checksum_is_survived(data: bytes) -> None:
    store = new_table(add_file("a"))
    store.put(checksum_path(0), data)
    snapshot = Snapshot.load(store)
    assert snapshot.checksum is None
    assert snapshot.num_files == 1


def test_a_checksum_of_an_older_version_is_not_taken_for_this_one() -> None:
    store = new_table(add_file("a"))
    store.put(checksum_path(0), _checksum(Snapshot.load(store)))
    commit(store, 1, metadata({"k": "v"}))
    snapshot = Snapshot.load(store)
    assert snapshot.checksum is None
    assert snapshot.metadata.configuration == {"k": "v"}


def test_the_number_of_files_is_counted_not_believed() -> None:
    store = new_table(add_file("a"))
    store.put(checksum_path(0), _checksum(Snapshot.load(store), num_files=10, size_bytes=999))
    snapshot = Snapshot.load(store)
    assert (snapshot.num_files, snapshot.size_bytes) == (1, 10)
    # Beside a sound log others have been seen to count wrong: a reader goes by the log.
    assert snapshot.damaged_log_files == (checksum_path(0),)
    with pytest.raises(CorruptLog, match="delete it"):
        write_checkpoint(snapshot, now_ms=0)


# Carrying forward


def _state(snapshot: Snapshot) -> dict[str, Any]:
    files = snapshot.live_files().to_pylist()
    return {
        "version": snapshot.version,
        "files": sorted(files, key=lambda row: str(row["path"])),
        "tombstones": sorted(snapshot.tombstones(now_ms=0)["path"].to_pylist()),
        "transactions": {each.app_id: each.version for each in snapshot.transactions()},
        "domains": snapshot.domain_metadata(),
        "metadata": snapshot.metadata,
        "protocol": snapshot.protocol,
        "counts": (snapshot.num_files, snapshot.size_bytes, snapshot.num_records),
    }


COMMITS: list[list[Action]] = [
    [add_file("b", stats=_stats(2)), {"txn": {"appId": "a", "version": 1}}],
    [remove_file("a", deletionTimestamp=5)],
    [metadata({"k": "v"}), _domain("d", "x"), remove_file("base2", deletionTimestamp=5)],
    [add_file("a", stats=_stats(3)), remove_file("b", deletionTimestamp=6)],
    [add_file("c"), _domain("d", removed=True), {"txn": {"appId": "a", "version": 2}}],
    [remove_file("base1", deletionTimestamp=7), add_file("b", stats=_stats(9))],
]


@pytest.mark.parametrize("look", ["never", "files", "everything"])
@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_advancing_is_the_same_as_loading(look: str, with_checkpoint: bool) -> None:
    base = [
        add_file("a", stats=_stats(1)),
        *(add_file(f"base{n}", stats=_stats(1)) for n in range(3)),
    ]
    store = new_table(*base)
    if with_checkpoint:
        checkpoint(store, 0, [PROTOCOL, metadata(), *base, remove_file("z", deletionTimestamp=3)])
    snapshot = Snapshot.load(store)
    for version, actions in enumerate(COMMITS, start=1):
        if look == "files":
            snapshot.live_files(["path", "stats"])
        elif look == "everything":
            _state(snapshot)
        commit(store, version, *actions)
        snapshot = advanced(snapshot.store, snapshot, [(version, encode(*actions))])
        if look == "everything":
            assert _state(snapshot) == _state(Snapshot.load(store))
    assert _state(snapshot) == _state(Snapshot.load(store))


def test_an_older_snapshot_stays_as_it_was() -> None:
    store = new_table(add_file("a"), add_file("b"))
    old = Snapshot.load(store)
    before = _state(old)
    new = advanced(old.store, old, [(1, encode(remove_file("a"), metadata({"k": "v"})))])
    assert _paths(new) == ["b"]
    assert _state(old) == before


def test_many_commits_are_carried_forward_one_by_one() -> None:
    snapshot = Snapshot.load(new_table())
    for version in range(1, 301):
        snapshot = advanced(
            snapshot.store, snapshot, [(version, encode(add_file(f"f{version}", stats=_stats(1))))]
        )
        if version % 3 == 0:
            snapshot.live_files()
            snapshot.tombstones()
    assert _paths(snapshot) == [f"f{version}" for version in range(1, 301)]
    assert snapshot.num_records == 300
    assert snapshot.live_files()["path"].num_chunks < 100


def test_commits_that_do_not_follow_are_refused() -> None:
    snapshot = Snapshot.load(new_table())
    for versions in ([0], [2], [1, 3], [2, 1]):
        with pytest.raises(InvalidArgument):
            advanced(
                snapshot.store, snapshot, [(version, encode(add_file("x"))) for version in versions]
            )
    assert advanced(snapshot.store, snapshot, []) is snapshot


def test_advancing_into_an_unreadable_protocol_is_refused() -> None:
    snapshot = Snapshot.load(new_table())
    with pytest.raises(UnsupportedReaderVersion) as raised:
        advanced(
            snapshot.store,
            snapshot,
            [(1, encode({"protocol": {"minReaderVersion": 9, "minWriterVersion": 9}}))],
        )
    assert raised.value.version == 1


def test_updating_finds_what_others_committed() -> None:
    store = new_table(add_file("a"))
    snapshot = Snapshot.load(store)
    assert snapshot.update() is snapshot
    commit(store, 1, add_file("b"))
    commit(store, 2, remove_file("a"))
    updated = snapshot.update()
    assert updated.version == 2
    assert _paths(updated) == ["b"]


def test_updating_survives_a_clean_up_of_the_log() -> None:
    store = new_table(add_file("a"))
    snapshot = Snapshot.load(store)
    commit(store, 1, add_file("b"))
    commit(store, 2, add_file("c"))
    checkpoint(store, 2, [PROTOCOL, metadata(), add_file("a"), add_file("b"), add_file("c")])
    store.delete([commit_path(0), commit_path(1)])
    updated = snapshot.update()
    assert updated.version == 2
    assert _paths(updated) == ["a", "b", "c"]


def test_updating_over_a_long_distance_gives_the_latest_version() -> None:
    store = new_table()
    snapshot = Snapshot.load(store)
    for version in range(1, 131):
        commit(store, version, add_file(f"f{version}"))
    assert snapshot.update().version == 130
    assert snapshot.update().num_files == 130


def test_looking_for_news_where_a_request_is_a_round_trip_costs_one_listing() -> None:
    store = _counting(new_table(add_file("a")))
    snapshot = Snapshot.load(store)
    store.reads.clear()
    assert snapshot.update() is snapshot
    assert store.reads == []
    commit(store, 1, add_file("b"))
    commit(store, 2, add_file("c"))
    assert snapshot.update().version == 2
    assert store.reads == [f"{1:020}.json", f"{2:020}.json", f"{2:020}.crc"]


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("hint", ["missing", "older"])
def test_a_version_whose_successors_were_cleaned_up_is_not_taken_for_the_latest(
    tmp_path: Path, hint: str, *, is_local: bool
) -> None:
    store = open_store(str(tmp_path)) if is_local else MemoryStore()
    writer = DeltaTable.create("", pa.schema({"a": pa.int64()}), store=store)
    writer.checkpoint()
    old_hint = store.read("_delta_log/_last_checkpoint")
    writer.append(pa.table({"a": [1]}))
    held = writer.snapshot()
    for _ in range(4):
        writer.append(pa.table({"a": [1]}))
    writer.checkpoint()
    store.delete([commit_path(version) for version in range(5)])
    store.delete(["_delta_log/_last_checkpoint"])
    if hint == "older":
        store.put("_delta_log/_last_checkpoint", old_hint)
    assert held.update().version == 5


def test_a_gap_behind_an_older_hint_is_not_the_end_of_the_log(tmp_path: Path) -> None:
    table = DeltaTable.create(
        tmp_path, pa.schema({"a": pa.int64()}), properties={"delta.checkpointInterval": "100"}
    )
    for _ in range(805):
        table.append(pa.table({"a": [1]}))
    hint = json.loads((tmp_path / "_delta_log" / "_last_checkpoint").read_bytes())
    assert hint["version"] == 800
    for version in range(205, 750):
        (tmp_path / commit_path(version)).unlink()
    (tmp_path / "_delta_log" / "_last_checkpoint").write_text('{"version":200,"size":201}')
    assert DeltaTable(tmp_path).version() == 805


# Time of the version


def test_the_time_of_a_version_is_that_of_its_file() -> None:
    now = [1000]
    store = MemoryStore(clock_ms=lambda: now[0])
    commit(store, 0, PROTOCOL, metadata())
    snapshot = Snapshot.load(store)
    assert snapshot.timestamp_ms == 1000
    now[0] = 2000
    commit(store, 1, add_file("a"))
    assert snapshot.update().timestamp_ms == 2000
    assert Snapshot.load(store, version=1).timestamp_ms == 2000


def test_an_in_commit_timestamp_is_the_time_of_a_version() -> None:
    enabled = metadata({"delta.enableInCommitTimestamps": "true"})
    store = MemoryStore(clock_ms=lambda: 1000)
    commit(
        store, 0, {"commitInfo": {"inCommitTimestamp": 77}}, features("inCommitTimestamp"), enabled
    )
    assert Snapshot.load(store).timestamp_ms == 77


def test_a_negative_version_is_refused() -> None:
    store = MemoryStore()
    DeltaTable("", store=store, must_exist=False).append(pa.table({"a": [1]}))
    with pytest.raises(InvalidArgument, match="a version must be ≥ 0"):
        DeltaTable("", store=store, version=-1)
    with pytest.raises(InvalidArgument, match="a version must be ≥ 0"):
        DeltaTable("", store=store).snapshot(version=-1)
