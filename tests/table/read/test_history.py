"""The history of a table. Spec: Commit Provenance Information."""

from __future__ import annotations

import pytest

from dagster_delta.errors import CorruptLog, InvalidArgument
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.log.commit_range import version_at
from dagster_delta.table.read.history import HistoryEntry, history
from dagster_delta.table.read.snapshot import Snapshot
from tests.table.logs import PROTOCOL, add_file, checkpoint, commit, metadata


def _table() -> MemoryStore:
    store = MemoryStore(clock_ms=lambda: 5)
    commit(store, 0, PROTOCOL, metadata())
    commit(
        store,
        1,
        {
            "commitInfo": {
                "timestamp": 100,
                "operation": "WRITE",
                "operationParameters": {"mode": "Append"},
                "operationMetrics": {"numFiles": "1"},
                "engineInfo": "engine/1",
                "userMetadata": "why",
                "txnId": "t",
                "isBlindAppend": True,
                "readVersion": 0,
                "unknown": [1],
            }
        },
        add_file("a"),
    )
    commit(store, 2, {"commitInfo": {"timestamp": 100, "inCommitTimestamp": 300}})
    return store


def _history(store: MemoryStore, limit: int | None = None) -> list[HistoryEntry]:
    return history(Snapshot.load(store), limit)


def test_commits_are_listed_newest_first() -> None:
    assert [entry.version for entry in _history(_table())] == [2, 1, 0]
    assert [entry.version for entry in _history(_table(), 2)] == [2, 1]
    assert _history(_table(), 0) == []


def test_history_ends_at_the_version_of_the_snapshot() -> None:
    store = _table()
    found = history(Snapshot.load(store, version=1))
    assert [entry.version for entry in found] == [1, 0]


def test_what_the_writer_recorded_is_shown() -> None:
    entry = _history(_table())[1]
    assert entry.operation == "WRITE"
    assert entry.operation_parameters == {"mode": "Append"}
    assert entry.operation_metrics == {"numFiles": "1"}
    assert entry.engine_info == "engine/1"
    assert entry.user_metadata == "why"
    assert entry.transaction_id == "t"
    assert entry.is_blind_append is True
    assert entry.read_version == 0
    assert entry.commit_info["unknown"] == [1]


def test_what_it_did_not_record_is_absent() -> None:
    entry = _history(_table())[2]
    assert entry.operation is None
    assert entry.engine_info is None
    assert entry.is_blind_append is None
    assert entry.operation_parameters == entry.operation_metrics == {}


@pytest.mark.parametrize("has_own_times", [True, False])
def test_the_table_is_at_a_version_as_of_its_time(has_own_times: bool) -> None:
    clock = iter([5_000, 9_000, 7_000, 12_000])
    store = MemoryStore(clock_ms=lambda: next(clock))
    properties = {"delta.enableInCommitTimestamps": "true"} if has_own_times else {}
    features = {"writerFeatures": ["inCommitTimestamp"], "minWriterVersion": 7}
    protocol = {"protocol": {**PROTOCOL["protocol"], **features}} if has_own_times else PROTOCOL
    for version, own in enumerate((100, 200, 300, 400)):
        info = {"commitInfo": {"timestamp": 50, "inCommitTimestamp": own}}
        begin = [protocol, metadata(configuration=properties)] if version == 0 else []
        commit(store, version, info, *begin)
    found = [entry.timestamp_ms for entry in _history(store)]
    assert found == ([400, 300, 200, 100] if has_own_times else [12_000, 9_001, 9_000, 5_000])
    assert [version_at(store, each) for each in found] == [3, 2, 1, 0]
    for limit in range(4):
        some = [entry.timestamp_ms for entry in _history(store, limit)]
        assert some == found[:limit]
    latest = Snapshot.load(store, version=2)
    assert [each.timestamp_ms for each in history(latest, 1)] == found[1:2]


def test_commits_beyond_a_gap_are_left_out() -> None:
    store = _table()
    checkpoint(store, 2, [PROTOCOL, metadata(), add_file("a")])
    store.delete([commit_path(1)])
    assert [entry.version for entry in _history(store)] == [2]


def test_a_damaged_commit_is_refused_by_name() -> None:
    store = _table()
    snapshot = Snapshot.load(store)
    store.put(commit_path(1), b"{")
    with pytest.raises(CorruptLog) as raised:
        history(snapshot)
    assert (raised.value.file, raised.value.version) == (commit_path(1), 1)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        _history(_table(), -1)
