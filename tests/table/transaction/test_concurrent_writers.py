"""Writers that interleave at every call of the store, crash and lose replies.

One process runs at a time. While it makes its n-th call of the store, others run whole writes of
their own in between, so that every interleaving of store calls is reached without threads. The log
is then replayed by a few lines of JSON of the test's own, and all that the library says is held
against that.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dagster_delta.errors import CommitConflict, CommitStateUnknown, StorageFailure
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.delta_table import CommitResult, DeltaTable
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.testing.faulty_store import Fault, FaultyStore, Operation, SimulatedCrash

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("part", pa.int64()), ("id", pa.int64())])
WRITERS = 2
"""Processes at each depth of interleaving; one that was interrupted does not interrupt itself."""


@dataclass(frozen=True)
class Write:
    """A write that is to be made, and what happens meanwhile."""

    kind: Literal["append", "overwrite", "dynamic"]
    writer: int
    parts: tuple[int, ...]
    """The partition of each row."""
    application: tuple[str, int] | None
    """(id, how far its version is after the one it tried last: 0 repeats that)."""
    faults: tuple[Fault, ...]
    meanwhile: tuple[tuple[int, Write], ...]
    """(number of the store call that is interrupted, what runs then)."""


@dataclass
class Attempt:
    """A write that was made, as its process saw it."""

    write: Write
    application: tuple[str, int] | None
    rows: list[dict[str, int]]
    began_at: int
    """Latest version when it began."""
    outcome: Literal["committed", "skipped", "refused", "unknown"] = "unknown"
    version: int | None = None


@dataclass
class Commit:
    """What the log says about one version."""

    attempt: str | None
    adds: dict[str, int] = field(default_factory=dict)
    """Path → partition."""
    removes: list[str] = field(default_factory=list)
    transactions: dict[str, int] = field(default_factory=dict)


FAULTS = st.builds(
    Fault,
    kind=st.sampled_from(["lose_reply", "crash_before", "crash_after", "refuse"]),
    operation=st.sampled_from(
        ["put_if_absent", "put_if_absent", "put", "read", "head", "list_from", "open_output"]
    ),
    occurrence=st.integers(1, 2),
)


OUTAGE = (
    Fault("lose_reply", "put_if_absent"),
    Fault("refuse", "head", path_contains="_delta_log/0"),
)
"""The commit lands, and nothing answers any more."""


def writes(depth: int = 0) -> st.SearchStrategy[Write]:
    interruptions = (
        st.lists(st.tuples(st.integers(1, 12), writes(depth + 1)), max_size=2)
        if depth < 2
        else st.just([])
    )
    return st.builds(
        Write,
        kind=st.sampled_from(["append", "append", "overwrite", "dynamic"]),
        writer=st.integers(0, WRITERS - 1).map(lambda writer: writer + depth * WRITERS),
        parts=st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple),
        application=st.none() | st.tuples(st.sampled_from("ab"), st.integers(0, 1)),
        faults=st.just(()) | st.just(()) | st.tuples(FAULTS) | st.just(OUTAGE),
        meanwhile=interruptions.map(tuple),
    )


class Process:
    """A writer that keeps its table open between writes, until it crashes."""

    def __init__(self, storage: ObjectStore) -> None:
        self._storage = storage
        self._store = FaultyStore(storage)
        self._table: DeltaTable | None = None

    def open(self, store: ObjectStore) -> DeltaTable:
        """The table, whose calls of the store go to `store` from now on."""
        if self._table is None:
            self._store.inner = self._storage
            self._table = DeltaTable("memory://table", store=self._store)
        self._store.inner = store
        return self._table

    def rest(self) -> None:
        """Faults and interruptions are of a write, not of the process."""
        self._store.inner = self._storage

    def die(self) -> None:
        """What it kept in memory is gone."""
        self._table = None


class ConcurrentWriters(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.storage = MemoryStore()
        self.processes: dict[int, Process] = {}
        self.attempts: dict[str, Attempt] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.compared: set[int] = set()
        self.versions: Counter[str] = Counter()
        self.ids = itertools.count()

    @initialize(
        isolation=st.sampled_from(["Serializable", "WriteSerializable"]),
        interval=st.sampled_from([2, 3, 10]),
    )
    def create(self, isolation: str, interval: int) -> None:
        self.isolation = isolation
        properties = {
            "delta.isolationLevel": isolation,
            "delta.checkpointInterval": str(interval),
        }
        DeltaTable.create(
            "memory://table",
            SCHEMA,
            partition_by=["part"],
            properties=properties,
            store=self.storage,
        )

    # One rule, because the choice of rules would switch writes off in many of the runs.
    @rule(write=writes(), before=st.sampled_from(["nothing", "nothing", "refresh", "checkpoint"]))
    def write(self, write: Write, before: str) -> None:
        if before != "nothing":
            table = self.process(write.writer).open(self.storage)
            assert table.refresh().version == self.latest_version()
            if before == "checkpoint":
                table.checkpoint()
        self.run(write)

    def process(self, writer: int) -> Process:
        return self.processes.setdefault(writer, Process(self.storage))

    def latest_version(self) -> int:
        return len(read_log(self.storage)) - 1

    def run(self, write: Write) -> None:
        name = f"attempt-{len(self.attempts)}"
        rows = [{"part": part, "id": next(self.ids)} for part in write.parts]
        application = self.application(write)
        attempt = Attempt(write, application, rows, self.latest_version())
        self.attempts[name] = attempt
        process = self.process(write.writer)
        store = FaultyStore(self.storage, write.faults, before_call=self.interruptions(write))
        try:
            result = self.call(process.open(store), attempt, name)
        except SimulatedCrash:
            process.die()
        except CommitConflict:
            attempt.outcome = "refused"
        except (CommitStateUnknown, StorageFailure):
            assert write.faults
        else:
            attempt.outcome = "skipped" if result.skipped else "committed"
            attempt.version = result.version
            if not result.skipped:
                self.snapshots[result.version] = result.snapshot
        finally:
            process.rest()

    def application(self, write: Write) -> tuple[str, int] | None:
        if write.application is None:
            return None
        app_id, step = write.application
        self.versions[app_id] += step
        return app_id, self.versions[app_id]

    def call(self, table: DeltaTable, attempt: Attempt, name: str) -> CommitResult:
        data = pa.Table.from_pylist(attempt.rows, schema=SCHEMA)
        more: Any = {"idempotency": attempt.application, "commit_info": {"attempt": name}}
        match attempt.write.kind:
            case "append":
                return table.append(data, **more)
            case "overwrite":
                return table.overwrite(data, **more)
            case "dynamic":
                return table.overwrite(data, where="dynamic", **more)

    def interruptions(self, write: Write) -> Any:
        pending = sorted(write.meanwhile, key=lambda each: each[0])
        calls = itertools.count(1)

        def interrupt(operation: Operation, path: str) -> None:
            # Commits are read by a pool, in no order that a failure could be repeated in.
            if threading.current_thread() is not threading.main_thread():
                return
            number = next(calls)
            while pending and pending[0][0] <= number:
                self.run(pending.pop(0)[1])

        return interrupt

    @precondition(lambda self: self.attempts)
    @invariant()
    def every_write_stands_once_or_not_at_all(self) -> None:
        log = read_log(self.storage)
        standing = {commit.attempt: version for version, commit in enumerate(log) if version}
        assert None not in standing
        assert len(standing) == len(log) - 1, "one write was committed twice"
        for name, attempt in self.attempts.items():
            if attempt.outcome == "committed":
                assert standing.get(name) == attempt.version
            elif attempt.outcome in {"refused", "skipped"}:
                assert name not in standing

    @precondition(lambda self: self.attempts)
    @invariant()
    def no_transaction_of_an_application_is_committed_twice(self) -> None:
        log = read_log(self.storage)
        committed = [item for commit in log for item in commit.transactions.items()]
        assert len(set(committed)) == len(committed)
        for attempt in self.attempts.values():
            if attempt.outcome == "skipped":
                assert attempt.application is not None
                app_id, version = attempt.application
                assert any(app == app_id and done >= version for app, done in committed)

    @precondition(lambda self: self.attempts)
    @invariant()
    def no_row_is_lost_or_doubled(self) -> None:
        live = self.replay(read_log(self.storage))
        expected = sorted(
            row["id"]
            for attempt, part in live.values()
            for row in attempt.rows
            if row["part"] == part
        )
        snapshot = Snapshot.load(self.storage)
        assert snapshot.num_records == len(expected)
        assert sorted(snapshot.scan().to_arrow()["id"].to_pylist()) == expected

    @precondition(lambda self: self.attempts)
    @invariant()
    def every_way_to_a_version_leads_to_the_same_files(self) -> None:
        log = read_log(self.storage)
        latest = len(log) - 1
        expected = described(Snapshot.load(self.storage))
        assert described(Snapshot.load(commits_alone(self.storage))) == expected
        assert described(Snapshot.load(checkpoint_alone(self.storage, latest))) == expected
        assert expected["paths"] == sorted(self.replay(log))
        self.check_snapshots(log, self.snapshots.keys() - self.compared)
        self.compared.update(self.snapshots)

    def teardown(self) -> None:
        """What came later has changed no snapshot that was taken before."""
        self.check_snapshots(read_log(self.storage), self.snapshots)

    def check_snapshots(self, log: list[Commit], versions: Iterable[int]) -> None:
        for version in versions:
            snapshot = self.snapshots[version]
            assert snapshot.version == version
            assert described(snapshot)["paths"] == sorted(self.replay(log[: version + 1]))

    def replay(self, log: Iterable[Commit]) -> dict[str, tuple[Attempt, int]]:
        """The live files, each with the write that made it and its partition."""
        live: dict[str, tuple[Attempt, int]] = {}
        added_at: dict[str, int] = {}
        for version, commit in enumerate(log):
            if commit.attempt is None:
                continue
            attempt = self.attempts[commit.attempt]
            before = {path: part for path, (_, part) in live.items()}
            for path in commit.removes:
                assert path in live, "a file was removed twice"
                del live[path]
            self.check_removes(attempt, commit, before, added_at)
            for path, part in commit.adds.items():
                assert path not in live, "a file was added twice"
                live[path] = (attempt, part)
                added_at[path] = version
            assert sorted(commit.adds.values()) == sorted(set(attempt.write.parts))
        for path in live:
            assert self.storage.head(path) is not None, "a live file was deleted"
        return live

    def check_removes(
        self,
        attempt: Attempt,
        commit: Commit,
        before: Mapping[str, int],
        added_at: Mapping[str, int],
    ) -> None:
        kind, parts = attempt.write.kind, set(attempt.write.parts)
        in_scope = {
            path
            for path, part in before.items()
            if kind == "overwrite" or (kind == "dynamic" and part in parts)
        }
        removed = set(commit.removes)
        assert removed <= in_scope
        # Under WriteSerializable an append that came meanwhile may be ordered after.
        must_go = {
            path
            for path in in_scope
            if self.isolation == "Serializable" or added_at[path] <= attempt.began_at
        }
        assert must_go <= removed


def read_log(storage: ObjectStore) -> list[Commit]:
    """Every commit, from version 0 on; a gap between versions fails."""
    commits: dict[int, Commit] = {}
    for meta in storage.list_from("_delta_log", "0"):
        name = meta.path.rpartition("/")[2]
        if name.endswith(".json") and name[:20].isdigit() and len(name) == 25:
            commits[int(name[:20])] = _parse(storage.read(meta.path))
    assert sorted(commits) == list(range(len(commits))), "versions have a gap"
    return [commits[version] for version in range(len(commits))]


def _parse(data: bytes) -> Commit:
    commit = Commit(None)
    for line in data.splitlines():
        ((kind, action),) = json.loads(line).items()
        if kind == "commitInfo":
            commit.attempt = action.get("attempt")
        elif kind == "add":
            commit.adds[action["path"]] = int(action["partitionValues"]["part"])
        elif kind == "remove":
            commit.removes.append(action["path"])
        elif kind == "txn":
            commit.transactions[action["appId"]] = action["version"]
    return commit


def described(snapshot: Snapshot) -> dict[str, Any]:
    """What must not depend on the way to a version."""
    files = snapshot.live_files(["path", "size_bytes", "stats"])
    counted = Counter(files["path"].to_pylist())
    return {
        "version": snapshot.version,
        "paths": sorted(counted.elements()),
        "size_bytes": snapshot.size_bytes,
        "num_records": snapshot.num_records,
        "num_files": snapshot.num_files,
        "transactions": sorted((each.app_id, each.version) for each in snapshot.transactions()),
        "metadata": snapshot.metadata,
        "protocol": snapshot.protocol,
    }


def copied_log(storage: ObjectStore) -> MemoryStore:
    copy = MemoryStore()
    for meta in storage.list_recursive("_delta_log"):
        copy.put(meta.path, storage.read(meta.path))
    return copy


def commits_alone(storage: ObjectStore) -> MemoryStore:
    """The log without checkpoints and checksums."""
    copy = copied_log(storage)
    paths = [meta.path for meta in copy.list_recursive()]
    copy.delete(path for path in paths if not path.endswith(".json"))
    copy.delete(["_delta_log/_last_checkpoint"])
    return copy


def checkpoint_alone(storage: ObjectStore, version: int) -> MemoryStore:
    """The log from a checkpoint of the latest version on, as a clean-up may leave it."""
    copy = commits_alone(storage)
    DeltaTable("memory://table", store=copy).checkpoint()
    copy.delete(f"_delta_log/{before:020d}.json" for before in range(version))
    return copy


TestConcurrentWriters = ConcurrentWriters.TestCase
TestConcurrentWriters.settings = settings(
    max_examples=12,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
