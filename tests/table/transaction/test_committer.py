"""How a commit lands: races, lost replies, refusals, timestamps."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta.errors import (
    CommitRetriesExhausted,
    CommitStateUnknown,
    ConditionalPutUnsupported,
    StorageFailure,
)
from dagster_delta.protocol.log.commit_file import CommitContents
from dagster_delta.protocol.log.commit_writer import PendingActions
from dagster_delta.protocol.log.conflict_checker import TransactionFacts
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.transaction.committer import (
    CommitRequest,
    Committed,
    Conflicted,
    commit_with_retry,
)
from dagster_delta.testing.faulty_store import Fault, FaultyStore
from tests.table.handles import data_files

ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def store(store: MemoryStore) -> MemoryStore:
    """A store with an empty table in it."""
    DeltaTable.create("", ROWS.schema, store=store)
    return store


def open_table(store: Any) -> DeltaTable:
    return DeltaTable("", store=store)


def commits(store: Any) -> list[dict[str, Any]]:
    return [
        json.loads(store.read(meta.path).splitlines()[0])["commitInfo"]
        for meta in store.list_from("_delta_log")
        if meta.path.endswith(".json")
    ]


def request(store: Any, name: str = "mine") -> CommitRequest:
    base = open_table(store).snapshot(0)
    # As of a version that was read long ago, and whose own commit is gone.
    base.seen_ms, base.known_commit = 0, None
    configuration = base.configuration
    return CommitRequest(
        base=base,
        actions=PendingActions(CommitContents()),
        facts=TransactionFacts(protocol=configuration.protocol, metadata=configuration.metadata),
        transaction_id=name,
        operation="TEST",
        parameters={},
        metrics={},
        user_info={},
        is_blind_append=True,
        in_commit_timestamps=False,
    )


def test_a_commit_lands_as_the_next_version(store: MemoryStore) -> None:
    landed = commit_with_retry(store, request(store))
    assert isinstance(landed, Committed)
    assert landed.version == 1
    assert store.read(commit_path(1)) == landed.commits[-1][1]


def test_a_taken_version_is_rebased_on(store: MemoryStore) -> None:
    mine = request(store)
    open_table(store).append(ROWS)
    open_table(store).append(ROWS)
    landed = commit_with_retry(store, mine)
    assert isinstance(landed, Committed)
    assert landed.version == 3
    assert [version for version, _ in landed.commits] == [1, 2, 3]
    assert commits(store)[3]["readVersion"] == 2


def test_a_commit_that_cannot_be_looked_up_after_it_was_put_may_be_in_the_log(
    store: MemoryStore,
) -> None:
    faulty = FaultyStore(store, [Fault("refuse", "list_from")])
    with pytest.raises(CommitStateUnknown, match="mine"):
        commit_with_retry(faulty, request(store))
    assert len(commits(store)) == 2


def test_a_lost_reply_is_recognised_as_our_own_commit(store: MemoryStore) -> None:
    faulty = FaultyStore(store, [Fault("lose_reply", "put_if_absent", commit_path(1))])
    landed = commit_with_retry(faulty, request(store))
    assert isinstance(landed, Committed)
    assert landed.version == 1
    assert len(commits(store)) == 2


def test_a_lost_reply_followed_by_other_commits_is_still_ours(store: MemoryStore) -> None:
    mine = request(store)

    def follow(operation: str, path: str) -> None:
        if operation == "head":
            open_table(store).append(ROWS)

    lost = Fault("lose_reply", "put_if_absent", commit_path(1))
    faulty = FaultyStore(store, [lost], before_call=follow)
    landed = commit_with_retry(faulty, mine)
    assert isinstance(landed, Committed)
    assert landed.version == 1
    assert len(commits(store)) == 3


def test_a_refused_put_is_tried_again(store: MemoryStore) -> None:
    faulty = FaultyStore(store, [Fault("refuse", "put_if_absent", commit_path(1))])
    landed = commit_with_retry(faulty, request(store))
    assert isinstance(landed, Committed)
    assert landed.version == 1


def test_a_store_that_goes_on_refusing_fails_without_a_commit(store: MemoryStore) -> None:
    faults = [Fault("refuse", "put_if_absent", commit_path(1), n) for n in (1, 2, 3)]
    with pytest.raises(StorageFailure):
        commit_with_retry(FaultyStore(store, faults), request(store))
    assert len(commits(store)) == 1


def test_a_store_that_cannot_be_asked_leaves_the_state_unknown(store: MemoryStore) -> None:
    faults = [
        Fault("lose_reply", "put_if_absent", commit_path(1)),
        Fault("refuse", "head", commit_path(1)),
    ]
    with pytest.raises(CommitStateUnknown, match="mine") as caught:
        commit_with_retry(FaultyStore(store, faults), request(store))
    assert caught.value.version == 1


def test_commits_made_during_a_pause_are_followed_before_the_next_attempt(
    store: MemoryStore,
) -> None:
    others = 6
    put_versions: list[str] = []

    def interfere(operation: str, path: str) -> None:
        if operation != "put_if_absent":
            return
        put_versions.append(path)
        if len(put_versions) <= others:
            open_table(store).append(ROWS)

    def commits_of_others(seconds: float) -> None:
        # One in every millisecond, as a busy table has them.
        for _ in range(1 + int(seconds * 1000)):
            open_table(store).append(ROWS)

    landed = commit_with_retry(
        FaultyStore(store, before_call=interfere), request(store), sleep=commits_of_others
    )
    assert isinstance(landed, Committed)
    assert len(put_versions) == others + 1


def test_retries_end(store: MemoryStore) -> None:
    naps: list[float] = []

    def interfere(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            open_table(store).append(ROWS)

    with pytest.raises(CommitRetriesExhausted):
        commit_with_retry(
            FaultyStore(store, before_call=interfere),
            request(store),
            sleep=naps.append,
            max_attempts=8,
        )
    assert 0 < len(naps) < 8
    assert all(0 <= nap <= 0.1 for nap in naps)


def test_a_conflict_is_a_value(store: MemoryStore) -> None:
    mine = request(store)
    DeltaTable.create("", pa.schema({"other": pa.int64()}), store=store, mode="replace")
    open_table(store).append(pa.table({"other": [1]}))
    refused = commit_with_retry(store, mine)
    assert isinstance(refused, Conflicted)
    assert refused.conflict.version == 1
    assert [version for version, _ in refused.commits] == [1, 2]


def test_in_commit_timestamps_grow_against_a_clock_that_stands_still() -> None:
    store = MemoryStore()
    schema, properties = ROWS.schema, {"delta.enableInCommitTimestamps": "true"}
    DeltaTable.create("", schema, properties=properties, store=store)
    table = open_table(store)
    start = table.snapshot().timestamp_ms
    for _ in range(3):
        transaction = table.transaction()
        transaction.clock = lambda: start - 1000
        transaction.commit("TEST")
    stamps = [info["inCommitTimestamp"] for info in commits(store)]
    assert stamps == [start, start + 1, start + 2, start + 3]


def test_in_commit_timestamps_grow_over_a_rebase() -> None:
    store = MemoryStore()
    schema, properties = ROWS.schema, {"delta.enableInCommitTimestamps": "true"}
    DeltaTable.create("", schema, properties=properties, store=store)
    transaction = open_table(store).transaction()
    transaction.clock = lambda: 5
    open_table(store).append(ROWS)
    transaction.commit("TEST")
    stamps = [info["inCommitTimestamp"] for info in commits(store)]
    assert stamps[2] == stamps[1] + 1


def test_data_files_of_a_refused_commit_are_deleted(store: MemoryStore) -> None:
    first = open_table(store)
    transaction = first.transaction()
    from dagster_delta.engines.arrow.engine import ArrowEngine
    from dagster_delta.table.operations.write_planning import write_spec

    spec = write_spec(transaction.configuration, store.location)
    written = ArrowEngine().write(ROWS, spec, store=store)
    transaction.stage_written(written.files)
    DeltaTable.create("", pa.schema({"other": pa.int64()}), store=store, mode="replace")
    with pytest.raises(Exception, match="schema or properties"):
        transaction.commit("TEST")
    assert not data_files(store)


def test_data_files_are_kept_when_the_state_is_unknown(store: MemoryStore) -> None:
    faults = [
        Fault("lose_reply", "put_if_absent", commit_path(1)),
        Fault("refuse", "head", commit_path(1)),
    ]
    table = open_table(FaultyStore(store, faults))
    with pytest.raises(CommitStateUnknown):
        table.append(ROWS)
    assert len(data_files(store)) == 1
    assert open_table(store).snapshot().num_records == 2


class _ReadOnly:
    supports_put_if_absent = False

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_store_without_put_if_absent_is_refused_before_data_is_written(
    store: MemoryStore,
) -> None:
    table = DeltaTable("", store=_ReadOnly(store))
    with pytest.raises(ConditionalPutUnsupported):
        table.append(ROWS)
    assert not data_files(store)
    assert table.snapshot().num_records == 0


def test_failures_after_the_commit_do_not_fail_it(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    faults = [
        Fault("refuse", "put_if_absent", ".crc"),
        Fault("refuse", "put", "checkpoint"),
    ]
    table = open_table(FaultyStore(store, faults))
    for _ in range(10):
        table.append(ROWS)
    assert table.version() == 10
    assert "its checksum was not stored" in caplog.text
    assert "its checkpoint was not stored" in caplog.text
    assert open_table(store).snapshot().num_records == 20
