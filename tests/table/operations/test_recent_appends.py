"""Appends to storage where a request is a round trip start from the version of their handle, and
from the latest one where they have to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import polars as pl
import pyarrow as pa
import pytest

import dagster_delta.clock
from dagster_delta.errors import (
    CommitConflict,
    ConcurrentTransaction,
    ConstraintViolation,
    InvalidTable,
    SchemaMismatch,
    UnsupportedFeature,
    VersionNotFound,
)
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.storage.object_store import ObjectMeta
from dagster_delta.table import table_handle
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.log_upkeep.cleanup import clean_log
from dagster_delta.table.operations import append
from dagster_delta.table.transaction.commit_result import AppTransaction

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
HOUR_MS = 60 * 60 * 1000
NOON_MS = 20_000 * 24 * HOUR_MS + 12 * HOUR_MS


class _Counting(MemoryStore):
    """Records what is requested."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        super().__init__(clock_ms=clock_ms)
        self.requests: list[str] = []

    def read(self, path: str) -> bytes:
        self.requests.append(f"read {path.rpartition('/')[2]}")
        return super().read(path)

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        self.requests.append(f"list {start}")
        return super().list_from(directory, start)

    def put(self, path: str, data: bytes) -> None:
        self.requests.append(f"put {path.rpartition('.')[2]}")
        super().put(path, data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        self.requests.append(f"put {path.rpartition('.')[2]}")
        super().put_if_absent(path, data)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [NOON_MS]
    for module in (append, table_handle, dagster_delta.clock):
        monkeypatch.setattr(module, "now_ms", lambda: now[0])
    return now


@pytest.fixture
def store(clock: list[int]) -> _Counting:
    store = _Counting(lambda: clock[0])
    DeltaTable("memory", store=store, must_exist=False).append(ROWS)
    return store


def _ids(store: MemoryStore) -> list[int]:
    rows = DeltaTable("memory", store=store).snapshot().scan(["id"]).to_arrow()
    return sorted(rows["id"].to_pylist())


def _other(store: MemoryStore) -> DeltaTable:
    return DeltaTable("memory", store=store)


@pytest.mark.parametrize("convert", [pa.Table.to_pandas, pl.from_arrow, lambda rows: rows])
def test_an_append_to_an_open_table_makes_four_requests(
    store: _Counting, convert: Callable[[pa.Table], object]
) -> None:
    table = DeltaTable("memory", store=store)
    table.append(convert(ROWS))
    store.requests.clear()
    assert table.append(convert(ROWS)).version == 2
    looked_up = "read 00000000000000000001.json"
    assert store.requests == ["put parquet", looked_up, "put json", "put crc"]


def test_an_append_follows_appends_of_others(store: _Counting) -> None:
    table, other = DeltaTable("memory", store=store), _other(store)
    for _ in range(3):
        other.append(ROWS)
    assert table.append(ROWS).version == 4
    assert _ids(store) == [1] * 5 + [2] * 5


def test_an_append_that_cannot_be_read_afterwards_is_not_written_again(
    store: _Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UnsupportedFeature("a feature of the future")

    table = DeltaTable("memory", store=store)
    with monkeypatch.context() as patch:
        patch.setattr("dagster_delta.table.log_upkeep.post_commit.advanced", refuse)
        with pytest.raises(InvalidTable, match="version 1 was committed, and cannot be read"):
            table.append(ROWS)
    assert _ids(store) == [1, 1, 2, 2]


def test_an_append_has_columns_that_others_have_added(store: _Counting) -> None:
    table = DeltaTable("memory", store=store)
    _other(store).alter("ALTER TABLE t ADD COLUMN name STRING")
    rows = ROWS.append_column("name", pa.array(["a", "b"]))
    assert table.append(rows).version == 2
    assert _ids(store) == [1, 1, 2, 2]


def test_rows_that_fit_only_the_older_schema_are_written_for_the_latest(store: _Counting) -> None:
    table = DeltaTable("memory", store=store)
    _other(store).alter("ALTER TABLE t ADD COLUMN name STRING")
    appended = table.append(ROWS)
    assert appended.version == 2
    assert appended.snapshot.schema.names == ("id", "name")
    assert _ids(store) == [1, 1, 2, 2]
    live = set(table.snapshot().files()["path"].to_pylist())
    stored = {meta.path for meta in store.list_recursive() if meta.path.endswith(".parquet")}
    assert stored == live


def test_rows_that_only_the_latest_version_refuses_are_refused(store: _Counting) -> None:
    table = DeltaTable("memory", store=store)
    _other(store).alter("ALTER TABLE t ADD CONSTRAINT small CHECK (id < 10)")
    with pytest.raises(ConstraintViolation, match="small"):
        table.append(pa.table({"id": [20]}))
    assert _ids(store) == [1, 2]


def test_rows_that_no_version_takes_are_refused(store: _Counting) -> None:
    table = DeltaTable("memory", store=store)
    with pytest.raises(SchemaMismatch):
        table.append(pa.table({"other": [1]}))
    assert table.append(ROWS).version == 1


def test_rows_that_can_be_read_once_are_written_once(store: _Counting) -> None:
    table = DeltaTable("memory", store=store)
    _other(store).alter("ALTER TABLE t ADD COLUMN name STRING")
    rows = ROWS.append_column("name", pa.array(["a", "b"]))
    assert table.append(rows.to_reader()).version == 2
    assert _ids(store) == [1, 1, 2, 2]


def test_a_transaction_of_another_handle_is_not_repeated(store: _Counting) -> None:
    table = DeltaTable("memory", store=store)
    _other(store).append(ROWS, idempotency=("job", 1))
    assert table.append(ROWS, idempotency=("job", 1)).skipped
    assert _ids(store) == [1, 1, 2, 2]


def test_progress_counts_from_what_others_have_recorded(store: _Counting) -> None:
    table = DeltaTable("memory", store=store)
    _other(store).append(ROWS, progress=[AppTransaction("job", 1, after=None)])
    with pytest.raises(ConcurrentTransaction):
        table.append(ROWS, progress=[AppTransaction("job", 1, after=None)])
    stale = DeltaTable("memory", store=store)
    _other(store).append(ROWS, progress=[AppTransaction("job", 2, after=1)])
    assert stale.append(ROWS, progress=[AppTransaction("job", 3, after=2)]).version == 3
    assert _ids(store) == [1] * 4 + [2] * 4


@pytest.mark.parametrize("later_ms", [11 * 60 * 1000, -1])
def test_a_handle_that_has_not_seen_the_log_for_long_reads_it(
    store: _Counting, clock: list[int], later_ms: int
) -> None:
    table = DeltaTable("memory", store=store)
    clock[0] += later_ms
    store.requests.clear()
    table.append(ROWS)
    newest = f"read {0:020}.json"
    assert store.requests == [f"list {0:020}", newest, "put parquet", "put json", "put crc"]


def test_an_append_after_midnight_is_not_lost_below_a_log_that_was_cleaned_up(
    store: _Counting, clock: list[int]
) -> None:
    clock[0] += 12 * HOUR_MS - 2000
    table = DeltaTable("memory", store=store)
    other = _other(store)
    clock[0] += 1000
    for _ in range(3):
        other.append(ROWS)
    other.checkpoint()
    clock[0] += 1000
    clean_log(
        store,
        other.snapshot(),
        clock=lambda: clock[0],
        retention_hours=0,
        dry_run=False,
        enforce_retention=False,
    )
    assert store.head(commit_path(1)) is None
    assert table.append(ROWS).version == 4
    assert _ids(store) == [1] * 5 + [2] * 5


def test_a_handle_that_was_opened_at_a_version_moves_past_a_log_that_was_cleaned_up(
    store: _Counting, clock: list[int]
) -> None:
    other = _other(store)
    for _ in range(3):
        clock[0] += 1000
        other.append(ROWS)
    other.checkpoint()
    table = DeltaTable("memory", store=store, version=0)
    day_ms = 24 * HOUR_MS
    clean_log(
        store,
        other.snapshot(),
        clock=lambda: clock[0] + day_ms,
        retention_hours=0,
        dry_run=False,
        enforce_retention=False,
    )
    assert store.head(commit_path(1)) is None
    assert table.refresh().version == 3


def test_a_table_that_keeps_its_log_for_a_moment_is_read_before_each_append(
    store: _Counting,
) -> None:
    table = DeltaTable("memory", store=store)
    table.set_properties({"delta.logRetentionDuration": "interval 1 minute"})
    store.requests.clear()
    table.append(ROWS)
    looked_up = "read 00000000000000000001.json"
    assert store.requests == [
        f"list {1:020}",
        looked_up,
        "put parquet",
        looked_up,
        "put json",
        f"list {1:020}",
        "put crc",
    ]


def test_a_skipped_append_does_not_make_an_old_version_recent(
    store: _Counting, clock: list[int]
) -> None:
    table = DeltaTable("memory", store=store)
    table.append(ROWS, idempotency=("job", 1))
    clock[0] += 9 * 60 * 1000
    assert table.append(ROWS, idempotency=("job", 1)).skipped
    clock[0] += 9 * 60 * 1000
    store.requests.clear()
    table.append(ROWS)
    assert store.requests[0] == f"list {1:020}"


def _recreate(store: MemoryStore, versions: int) -> None:
    store.delete([meta.path for meta in store.list_recursive()])
    table = DeltaTable("memory", store=store, must_exist=False)
    for id_ in range(100, 101 + versions):
        table.append(pa.table({"id": [id_], "name": ["new"]}))


@pytest.mark.parametrize("versions", [1, 2, 4])
def test_an_append_to_a_table_that_was_created_again_begins_with_that_table(
    store: _Counting, versions: int
) -> None:
    table = DeltaTable("memory", store=store)
    for _ in range(2):
        table.append(ROWS)
    _recreate(store, versions)
    appended = table.append(ROWS)
    latest = _other(store)
    assert appended.version == latest.version() == versions + 1
    assert appended.snapshot.metadata == latest.metadata()
    assert _ids(store) == [1, 2, *range(100, 101 + versions)]


@pytest.mark.parametrize("versions", [1, 2, 4])
def test_a_table_that_is_created_again_while_rows_are_written_for_it_is_noticed(
    store: _Counting, versions: int
) -> None:
    table = DeltaTable("memory", store=store)
    for _ in range(2):
        table.append(ROWS)
    transaction = table.transaction()
    _recreate(store, versions)
    with pytest.raises(CommitConflict, match="created again or set back"):
        transaction.commit("WRITE")
    assert _other(store).version() == versions


def test_a_handle_notices_that_its_own_commit_was_replaced(store: _Counting) -> None:
    table = DeltaTable("memory", store=store)
    table.append(ROWS)
    _recreate(store, 1)
    assert table.refresh().metadata == _other(store).metadata()
    assert sorted(table.snapshot().scan(["id"]).to_arrow()["id"].to_pylist()) == [100, 101]


def test_a_handle_leaves_no_checkpoint_in_the_log_of_another_table(store: _Counting) -> None:
    table = DeltaTable("memory", store=store)
    for _ in range(5):
        table.append(ROWS)
    _recreate(store, 2)
    with pytest.raises(VersionNotFound, match="created again or set back"):
        table.checkpoint()
    assert _other(store).version() == 2


def test_an_append_to_a_table_without_some_rows_reads_the_latest_version(store: _Counting) -> None:
    table = DeltaTable("memory", store=store)
    DeltaTable("memory", store=store).delete("id = 1")
    assert table.append(ROWS.slice(0, 1), absent="id = 1").version == 2
