"""Cleaning the log: what goes, what stays readable whatever happens, and who is told."""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_delta.errors import (
    InvalidArgument,
    UnsupportedFeature,
    VersionNotFound,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_writer import CHECKPOINT_PROTECTION_KEY
from dagster_delta.protocol.log.paths import (
    checkpoint_path,
    commit_path,
    parse_log_file_name,
    v2_checkpoint_path,
)
from dagster_delta.storage import open_store
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.log_upkeep import post_commit
from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint
from dagster_delta.table.log_upkeep.cleanup import LogCleanupResult, clean_log
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.read.watch import read_new_commits, start_cursor
from dagster_delta.testing.faulty_store import Fault, FaultyStore, SimulatedCrash
from tests.table.logs import compacted_path

DAY = 24 * 60 * 60 * 1000
MIDNIGHT = 20_000 * DAY
"""The midnight up to which versions have expired in these tests."""
NOW = MIDNIGHT + 30 * DAY + 5 * 60 * 60 * 1000
ROWS = pa.table({"id": [1, 2]})


def make(
    num_commits: int, *, store: MemoryStore | None = None, **properties: str
) -> tuple[DeltaTable, MemoryStore]:
    """A table of `num_commits` versions, without checkpoints unless the properties say otherwise."""
    store = store or MemoryStore()
    table = DeltaTable("", store=store, must_exist=False)
    keys = {f"delta.{key.replace('__', '.')}": value for key, value in properties.items()}
    keys.setdefault("delta.checkpointInterval", "1000")
    for _ in range(num_commits):
        table.append(ROWS, properties=keys)
    return table, store


def age(store: MemoryStore, days: Sequence[float], *, since: int = MIDNIGHT) -> None:
    """Make the files of version n as if they were written that many days after the midnight."""
    found = store._objects.by_path
    for path, (data, _) in list(found.items()):
        name = parse_log_file_name(path.rpartition("/")[2])
        if name is not None and name.version < len(days):
            found[path] = data, since + round(days[name.version] * DAY)


def clean(store: Any, **options: Any) -> LogCleanupResult:
    options = {"dry_run": False, **options}
    return clean_log(store, Snapshot.load(store), clock=lambda: NOW, **options)


def log(store: MemoryStore) -> list[str]:
    return sorted(meta.path.rpartition("/")[2] for meta in store.list_recursive("_delta_log"))


def versions(store: MemoryStore, ending: str) -> list[int]:
    return [int(name[:20]) for name in log(store) if name.endswith(ending) and name[0].isdigit()]


def check_readable(store: MemoryStore, first: int, last: int) -> None:
    """Every version from the first one is there, and those before it are said to be gone."""
    for version in range(first, last + 1):
        assert Snapshot.load(store, version=version).num_records == 2 * (version + 1)
    for version in range(first):
        with pytest.raises(VersionNotFound, match=f"reaches from version {first} to {last}"):
            Snapshot.load(store, version=version)


def test_the_log_is_cut_at_the_last_checkpoint_that_has_expired() -> None:
    _, store = make(12, checkpointInterval="3")
    age(store, [each - 7.5 for each in range(12)])
    before = log(store)
    told = clean(store, dry_run=True)
    assert log(store) == before
    # Version 7 was the latest at midnight; version 6 has the checkpoint to rebuild it from.
    result = clean(store)
    assert result.files.equals(told.files)
    assert told.dry_run
    assert result.earliest_version == told.earliest_version == 6
    assert result.cutoff_ms == MIDNIGHT
    assert result.num_files == len(before) - len(log(store)) > 0
    assert result.size_bytes > 0
    assert versions(store, "json") == versions(store, "crc") == list(range(6, 12))
    assert versions(store, "checkpoint.parquet") == [6, 9]
    check_readable(store, 6, 11)
    with pytest.raises(VersionNotFound, match="begins with version 6"):
        Snapshot.load(store, timestamp=MIDNIGHT - 3 * DAY)
    assert clean(store).num_files == 0


def test_the_commit_of_midnight_itself_may_be_the_first() -> None:
    _, store = make(6, checkpointInterval="2")
    age(store, [-3, -2, -1, -0.5, 0, 1])
    assert clean(store).earliest_version == 4
    _, store = make(6, checkpointInterval="2")
    age(store, [-3, -2, -1, -0.5, 1e-6, 1])
    assert clean(store).earliest_version == 2


def test_a_checkpoint_is_written_where_none_is_near() -> None:
    table, store = make(8)
    table.set_properties({"delta.checkpointInterval": "5"})
    age(store, [each - 6 for each in range(9)])
    assert clean(store, dry_run=True).earliest_version == 6
    assert not versions(store, "checkpoint.parquet")
    assert clean(store, may_write_checkpoint=False).num_files == 0
    result = clean(store)
    assert result.earliest_version == 6
    assert versions(store, "checkpoint.parquet") == [6]
    for version in (6, 7):
        assert Snapshot.load(store, version=version).num_records == 2 * (version + 1)
    with pytest.raises(VersionNotFound):
        Snapshot.load(store, version=5)


def test_what_has_not_expired_stays() -> None:
    table, store = make(6, checkpointInterval="2")
    before = log(store)
    age(store, [each + 0.1 for each in range(6)])
    assert clean(store).num_files == 0
    # A clock that was set back makes no version older than the one before it.
    age(store, [1, -5, -5, -5, -5, -5])
    assert clean(store).num_files == 0
    assert log(store) == before
    result = table.clean_log()
    assert result.dry_run
    assert result.retention_ms == 30 * DAY


def test_a_retention_that_the_table_does_not_allow_is_refused() -> None:
    table, store = make(4, logRetentionDuration="interval 10 days", checkpointInterval="2")
    with pytest.raises(InvalidArgument, match="shorter than the 240 hours"):
        table.clean_log(24)
    with pytest.raises(InvalidArgument, match="from 0 on"):
        table.clean_log(-1)
    age(store, [0, 1, 2, 30])
    # It is ten days, so that midnight is twenty days later than elsewhere.
    assert clean(store).earliest_version == 2
    table.set_properties({"delta.enableExpiredLogCleanup": "false"})
    with pytest.raises(InvalidArgument, match="keeps its log"):
        table.clean_log()
    assert table.clean_log(10_000, enforce_retention=False).num_files == 0
    table.clean_log(0, dry_run=False, enforce_retention=False)
    assert table.snapshot().scan().to_arrow().num_rows == 8


def test_compacted_commits_that_begin_before_the_cut_go() -> None:
    _, store = make(8, checkpointInterval="4")
    for start, end in ((1, 3), (3, 6), (4, 7), (5, 7)):
        data = b"".join(store.read(commit_path(each)) for each in range(start, end + 1))
        store.put(compacted_path(start, end), data)
    age(store, [-4, -3, -2, -1, 0, 1, 2, 3])
    assert clean(store).earliest_version == 4
    assert [name for name in log(store) if "compacted" in name] == [
        compacted_path(5, 7).rpartition("/")[2]
    ]
    check_readable(store, 4, 7)


@pytest.mark.parametrize(("protected", "expected"), [(7, 0), (6, 6), (3, 6)])
def test_history_is_cut_past_a_protected_version_or_not_at_all(
    protected: int, expected: int
) -> None:
    table, store = make(8, feature__checkpointProtection="supported", checkpointInterval="2")
    metadata = table.metadata()
    properties = {**metadata.configuration, CHECKPOINT_PROTECTION_KEY: str(protected)}
    transaction = table.transaction()
    transaction.stage_configuration(
        TableConfiguration(
            table.protocol(), msgspec.structs.replace(metadata, configuration=properties)
        )
    )
    transaction.commit("TEST")
    DeltaTable("", store=store, version=protected).checkpoint()
    with pytest.raises(UnsupportedFeature, match=f"before {protected} are protected"):
        DeltaTable("", store=store, version=protected - 1).checkpoint()
    age(store, [each - 6.5 for each in range(9)])
    result = clean(store)
    assert result.earliest_version == expected
    assert (result.kept_because is None) == (expected > 0)


def test_sidecars_that_no_kept_checkpoint_names_go() -> None:
    _, store = make(7, checkpointPolicy="v2", checkpointInterval="2")
    made = [each for each in log(store) if "checkpoint" in each]
    sidecar = "_delta_log/_sidecars/{}.parquet"
    found = store._objects.by_path
    for each in ("old", "orphan", "young"):
        store.put(sidecar.format(each), b"x")
    for each in ("old", "orphan"):
        found[sidecar.format(each)] = b"x", NOW - 3 * DAY
    found[sidecar.format("young")] = b"x", NOW - DAY
    age(store, [each - 6 for each in range(7)])
    result = clean(store)
    assert result.earliest_version == 6
    assert len(made) > len([each for each in log(store) if "checkpoint" in each]) == 2
    assert [each for each in log(store) if each.endswith("young.parquet")]
    assert not [each for each in log(store) if each.startswith(("old", "orphan"))]


def test_a_sidecar_that_the_kept_checkpoint_names_stays_however_old() -> None:
    _, store = make(7, checkpointPolicy="v2", checkpointInterval="2")
    made = next(
        each.path
        for each in store.list_recursive("_delta_log")
        if each.path.startswith(f"_delta_log/{6:020d}.checkpoint.")
    )
    rows = pq.read_table(pa.BufferReader(store.read(made)))
    buffer = pa.BufferOutputStream()
    files = rows.select(["add"]).filter(pc.is_valid(rows["add"]))
    pq.write_table(files, buffer)
    sidecar = buffer.getvalue().to_pybytes()
    named = "_delta_log/_sidecars/named.parquet"
    store.put(named, sidecar)
    store.put("_delta_log/_sidecars/orphan.parquet", sidecar)
    first = json.loads(store.read(commit_path(0)).splitlines()[1])
    second = json.loads(store.read(commit_path(0)).splitlines()[2])
    facts = {"path": "named.parquet", "sizeInBytes": len(sidecar), "modificationTime": 1}
    manifest = [{"checkpointMetadata": {"version": 6}}, first, second, {"sidecar": facts}]
    store.put(
        v2_checkpoint_path(6, str(uuid.uuid4()), "json"),
        "\n".join(map(json.dumps, manifest)).encode(),
    )
    store.delete([made])
    found = store._objects.by_path
    for each in [path for path in found if "_sidecars" in path]:
        found[each] = found[each][0], NOW - 10 * DAY
    age(store, [each - 6 for each in range(7)])
    assert clean(store).earliest_version == 6
    assert [each.path for each in store.list_recursive("_delta_log/_sidecars")] == [named]
    assert Snapshot.load(store).num_records == 14
    assert Snapshot.load(store).scan().to_arrow().num_rows == 14


def test_in_commit_timestamps_decide_where_the_table_keeps_them() -> None:
    table, store = make(6, enableInCommitTimestamps="true", checkpointInterval="2")
    # The files look old, and the commits say that they are not.
    age(store, [each - 100 for each in range(6)])
    assert clean(store).num_files == 0
    age(store, [each + 100 for each in range(6)])
    times = [Snapshot.load(store, version=each).timestamp_ms for each in range(6)]
    after = (times[5] // DAY + 1) * DAY + 30 * DAY
    result = clean_log(store, table.snapshot(), clock=lambda: after, dry_run=False)
    assert result.earliest_version == 4
    check_readable(store, 4, 5)


def test_a_crash_on_the_way_leaves_every_newer_version_readable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dagster_delta.storage.unreferenced_files.FILES_PER_DELETE", 1)
    for number in range(1, 14):
        _, store = make(8, checkpointInterval="3")
        age(store, [each - 6 for each in range(8)])
        broken = FaultyStore(store, [Fault("crash_before", "delete", occurrence=number)])
        with pytest.raises(SimulatedCrash):
            clean(broken)
        for version in (6, 7):
            assert Snapshot.load(store, version=version).num_records == 2 * (version + 1)
        for version in range(6):
            try:
                assert Snapshot.load(store, version=version).num_records == 2 * (version + 1)
            except VersionNotFound as error:
                assert "its log reaches from" in str(error)  # noqa: PT017
        assert clean(store).earliest_version == 6


@settings(max_examples=25, deadline=None)
@given(
    days=st.lists(st.integers(-4, 4), min_size=6, max_size=6),
    checkpoints=st.sets(st.integers(1, 5), max_size=3),
    may_write=st.booleans(),
)
def test_whatever_the_times_no_version_is_left_that_cannot_be_read(
    days: list[int], checkpoints: set[int], may_write: bool
) -> None:
    _, store = make(6)
    for each in checkpoints:
        write_checkpoint(Snapshot.load(store, version=each), now_ms=NOW)
    age(store, days)
    result = clean(store, may_write_checkpoint=may_write)
    assert result.earliest_version is not None
    check_readable(store, result.earliest_version, 5)
    assert versions(store, "0.json")[:1] in ([result.earliest_version], [])


def test_a_write_cleans_up_after_its_checkpoint_unless_the_table_keeps_its_log() -> None:
    for keeps, expected in (("true", 4), ("false", 0)):
        store = MemoryStore()
        counted = FaultyStore(store)
        make(6, store=store, checkpointInterval="2", enableExpiredLogCleanup=keeps)
        days_ago = (time.time_ns() // 1_000_000 - 40 * DAY) // DAY * DAY
        age(store, [0, 1, 2, 3, 4], since=days_ago)
        table = DeltaTable("", store=counted)
        counted.calls.clear()
        result = table.append(ROWS)
        assert result.version == 6
        assert versions(store, ".json")[0] == expected
        assert result.snapshot.num_records == 14
        check_readable(store, expected, 6)
        # Nothing has expired since, so that the next one lists no further than that.
        counted.calls.clear()
        table.append(ROWS)
        table.append(ROWS)
        assert counted.calls["delete"] == 0
        assert counted.calls["list_from"] == (1 if keeps == "true" else 0)


def test_the_longer_a_log_is_the_less_often_it_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(post_commit, "_CLEANED_EVERY", ((8, 12), (5, 8)))
    store = MemoryStore()
    make(7, store=store, checkpointInterval="2")
    long_ago = (time.time_ns() // 1_000_000 - 40 * DAY) // DAY * DAY
    age(store, [0, 1, 2, 3, 4, 5], since=long_ago)
    table = DeltaTable("", store=store)
    assert table.append(ROWS).version == 7
    assert versions(store, ".json")[0] == 0
    assert table.append(ROWS).version == 8
    assert versions(store, ".json")[0] == 4
    for _ in range(8):
        age(store, list(range(9)), since=long_ago)
        result = table.append(ROWS)
        assert versions(store, ".json")[0] == (4 if result.version < 12 else 8)


def test_a_handle_goes_on_when_its_checkpoint_was_cleaned_up() -> None:
    _, store = make(5, checkpointInterval="2")
    table = DeltaTable("", store=store)
    long_ago = (time.time_ns() // 1_000_000 - 90 * DAY) // DAY * DAY
    age(store, [0, 1, 2, 3, 4], since=long_ago)
    for _ in range(4):
        table.append(ROWS)
        age(store, [0, 1, 2, 3, 4, 5, 6, 7, 8], since=long_ago)
    assert versions(store, ".json")[0] == 6
    assert table.snapshot().scan().to_arrow().num_rows == 18
    assert table.delete("id = 1").snapshot.num_records == 9


def test_a_clean_up_that_fails_harms_no_commit(caplog: pytest.LogCaptureFixture) -> None:
    _, store = make(4, checkpointInterval="2")
    age(store, [0, 1, 2, 3])
    broken = FaultyStore(store, [Fault("refuse", "delete")])
    assert DeltaTable("", store=broken).append(ROWS).version == 4
    assert "was not cleaned up" in caplog.text


@pytest.mark.parametrize("number", range(1, 6))
def test_two_clean_ups_at_once_leave_a_log_that_begins_at_the_later_cut(number: int) -> None:
    _, store = make(12, checkpointInterval="4")
    age(store, [each - 7.5 for each in range(12)])
    calls: list[str] = []

    def rival(_operation: str, path: str) -> None:
        calls.append(path)
        if len(calls) == number:
            age(store, [each - 30 for each in range(12)])
            assert clean(store).earliest_version == 8

    snapshot = Snapshot.load(store)
    faulty = FaultyStore(store, before_call=rival)
    result = clean_log(faulty, snapshot, clock=lambda: NOW, dry_run=False)
    assert (result.num_files, result.earliest_version) == (0, 8)
    check_readable(store, 8, 11)


def test_a_clean_up_leaves_the_log_to_the_next_one_if_others_delete_files_meanwhile() -> None:
    _, store = make(12, checkpointInterval="4")
    age(store, [each - 12 for each in range(12)])
    store.put(checkpoint_path(8), b"damaged")
    age(store, [each - 12 for each in range(12)])
    snapshot = Snapshot.load(store)
    strays = [f"_delta_log/{0:020}.{number}.0.compacted.json" for number in range(100, 200)]
    for path in strays:
        store.put(path, b"{}")
    before = {*log(store)} - {path.rpartition("/")[2] for path in strays}

    def rival(operation: str, _path: str) -> None:
        if operation == "list_from":
            store.delete([strays.pop()])

    faulty = FaultyStore(store, before_call=rival)
    result = clean_log(faulty, snapshot, clock=lambda: NOW, dry_run=False)
    assert (result.num_files, result.earliest_version) == (0, 0)
    assert "other clean-ups" in str(result.kept_because)
    assert before <= {*log(store)}


def test_a_checkpoint_that_a_clean_up_deleted_is_not_called_damaged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table, store = make(12, checkpointInterval="4")
    newest, older = Snapshot.load(store), Snapshot.load(store, version=7)
    table.checkpoint()
    age(store, [each - 30 for each in range(12)])
    with caplog.at_level(logging.INFO):
        assert clean(store).earliest_version == 11
        assert newest.num_files == 12
        assert len(newest.live_files(["path"])) == 12
    assert "was deleted after the log was listed" in caplog.text
    assert "damaged" not in caplog.text
    assert newest.damaged_log_files == ()
    with pytest.raises(VersionNotFound, match="reaches from version 11 to 11"):
        older.live_files()


def test_who_is_behind_is_told() -> None:
    table, store = make(9, checkpointInterval="2", enableChangeDataFeed="true")
    cursor = start_cursor(store, 3)
    age(store, [each - 6 for each in range(9)])
    assert clean(store).earliest_version == 6
    with pytest.raises(VersionNotFound, match="cleaned up before they were read"):
        read_new_commits(store, cursor)
    table.refresh()
    with pytest.raises(VersionNotFound, match="version 3"):
        table.changes(3).to_arrow()
    assert table.changes(7).to_arrow().num_rows == 4
    assert [each.version for each in table.history()] == [8, 7, 6]


def test_a_table_that_is_not_understood_is_left_alone() -> None:
    _, store = make(6, checkpointInterval="2")
    age(store, [each - 6 for each in range(6)])
    store.put(
        commit_path(6),
        b'{"protocol":{"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":["unheardOf"]}}',
    )
    before = log(store)
    with pytest.raises(UnsupportedFeature, match="unheardOf"):
        clean(store)
    assert log(store) == before


def _expire_and_clean(table: DeltaTable) -> None:
    """Other writers commit, all of it expires, and the log is cleaned up."""
    for _ in range(3):
        table.append(ROWS)
    table.checkpoint()
    store = table.store
    if isinstance(store, MemoryStore):
        age(store, [0] * 9, since=0)
    else:
        for path in Path(str(store.local_path("_delta_log"))).iterdir():
            os.utime(path, (86400, 86400))
    cleaned = clean_log(
        store,
        table.snapshot(),
        clock=lambda: NOW,
        retention_hours=0,
        dry_run=False,
        enforce_retention=False,
    )
    assert cleaned.earliest_version == table.version()


@pytest.fixture(params=[False, True])
def any_store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ObjectStore:
    """A store in memory, where a log counts as seen long ago, and a local one."""
    monkeypatch.setattr(Snapshot, "keeps_log", lambda *_: False)
    return open_store(str(tmp_path)) if request.param else MemoryStore()


def slow_rows(clean_up: Callable[[], None]) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        clean_up()
        yield from pa.table({"id": [3]}).to_batches()

    return pa.RecordBatchReader.from_batches(ROWS.schema, batches())


def test_an_append_during_which_the_log_is_cleaned_up_goes_on_the_newest_version(
    any_store: ObjectStore,
) -> None:
    table, other = (DeltaTable("", store=any_store, must_exist=False) for _ in range(2))
    other.append(ROWS)
    assert table.append(slow_rows(lambda: _expire_and_clean(other))).version == 4
    stored = {meta.path for meta in any_store.list_recursive()}
    assert commit_path(1) not in stored
    live = set(DeltaTable("", store=any_store).snapshot().files()["path"].to_pylist())
    assert {path for path in stored if path.endswith(".parquet") and "/" not in path} == live
    assert DeltaTable("", store=any_store).snapshot().scan(where="id = 3").count() == 1


def test_an_append_that_creates_the_table_goes_on_a_log_that_was_cleaned_up_meanwhile(
    any_store: ObjectStore,
) -> None:
    table, other = (DeltaTable("", store=any_store, must_exist=False) for _ in range(2))

    def create_and_clean_up() -> None:
        other.append(ROWS)
        _expire_and_clean(other)

    assert table.append(slow_rows(create_and_clean_up)).version == 4
    assert DeltaTable("", store=any_store).snapshot().scan(where="id = 3").count() == 1


@pytest.mark.parametrize("has_expired", [False, True])
def test_temporary_files_of_killed_writers_go_after_a_day(*, has_expired: bool) -> None:
    _, store = make(6, checkpointInterval="2")
    age(store, [each - 6 if has_expired else 40 for each in range(6)])
    old, young, other = (f"_delta_log/.{name}.tmp" for name in ("0" * 16, "1" * 16, "report"))
    for path, modified_ms in ((old, NOW - DAY - 1), (young, NOW - DAY + 1), (other, 0)):
        store._objects.by_path[path] = b"{", modified_ms
    result = clean(store)
    assert result.earliest_version == (4 if has_expired else 0)
    assert old in result.files["path"].to_pylist()
    left = {meta.path for meta in store.list_recursive()}
    assert left.isdisjoint({old})
    assert left.issuperset({young, other})


def test_checksums_of_hadoop_go_with_their_files(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path, must_exist=False)
    for _ in range(5):
        table.append(ROWS, properties={"delta.checkpointInterval": "2"})
    log_directory = tmp_path / "_delta_log"
    (log_directory / ".00000000000000000000.json.crc").write_bytes(b"x")
    for each in log_directory.iterdir():
        name = parse_log_file_name(each.name)
        if name is not None:
            at = MIDNIGHT / 1000 + (name.version - 4) * 86400
            os.utime(each, (at, at))
    result = clean_log(table.store, table.snapshot(), clock=lambda: NOW, dry_run=False)
    assert result.earliest_version == 4
    names = {each.name for each in log_directory.iterdir()}
    assert not [each for each in names if each.startswith(".")]
    assert DeltaTable(tmp_path).snapshot().num_records == 10


@pytest.mark.parametrize("statement", ["delete", "append"])
def test_statement_lists_again_after_a_clean_up_between_listing_and_reading(statement: str) -> None:
    now_ms = [NOW]
    store = MemoryStore(clock_ms=lambda: now_ms[0])
    properties = {
        "delta.checkpointInterval": "1000",
        "delta.logRetentionDuration": "interval 1 hours",
    }
    writer = DeltaTable.create("", ROWS.schema, properties=properties, store=store)
    for _ in range(4):
        writer.append(ROWS)
    cleaned: list[LogCleanupResult] = []
    is_armed = [False]

    def clean_up(operation: str, path: str) -> None:
        if is_armed[0] and not cleaned and operation == "read" and path.endswith(".json"):
            is_armed[0] = False
            now_ms[0] += 72 * 60 * 60 * 1000
            DeltaTable("", store=store).append(ROWS)
            DeltaTable("", store=store).checkpoint()
            later = now_ms[0] + 72 * 60 * 60 * 1000
            cleaned.append(
                clean_log(store, Snapshot.load(store), clock=lambda: later, dry_run=False)
            )

    table = DeltaTable("", store=FaultyStore(store, before_call=clean_up), must_exist=False)
    if statement == "append":
        table.version()
        DeltaTable("", store=store).append(ROWS)
    is_armed[0] = True
    if statement == "delete":
        table.delete("id = 2")
    elif statement == "append":
        table.append(ROWS)
    count = {"delete": 5, "append": 14}[statement]
    assert table.snapshot().scan().to_arrow().num_rows == count
    assert cleaned[0].num_files
