"""Opening, appending and watching cost the same after 100 versions and after 3,000, and the same
with 100 files and with 3,000: by counts, which hold the figures of `benchmarks/README.md`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_delta import DeltaTable
from dagster_delta.storage.local_store import LocalStore
from dagster_delta.table.read.watch import read_new_commits, start_cursor
from tests.work_counts import ROW, RequestStore, Work, add_files, count_work, extend_log

SHORT, LONG = 100, 3_000


@pytest.fixture(scope="module")
def local_logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Tables of 100 and of 3,000 versions, each with a checkpoint at its end."""
    paths = []
    for length in (SHORT, LONG):
        path = tmp_path_factory.mktemp("log") / str(length)
        DeltaTable(path, must_exist=False).append(ROW)
        extend_log(LocalStore(path), length)
        DeltaTable(path).checkpoint()
        paths.append(path)
    # A long log has grown: its commits are not of one second.
    time.sleep(1.1)
    for path in paths:
        DeltaTable(path).append(ROW)
    return paths[0], paths[1]


@pytest.fixture(scope="module")
def remote_logs() -> tuple[RequestStore, RequestStore]:
    stores = []
    for length in (SHORT, LONG):
        store = RequestStore()
        DeltaTable("memory://t", store=store, must_exist=False).append(ROW)
        extend_log(store, length)
        DeltaTable("memory://t", store=store).checkpoint()
        extend_log(store, length + 5)
        stores.append(store)
    return stores[0], stores[1]


def count_both(paths: tuple[Path, Path], act: Callable[[Path], object]) -> tuple[Work, Work]:
    return count_work(lambda: act(paths[0])), count_work(lambda: act(paths[1]))


def count_requests(
    stores: tuple[RequestStore, RequestStore], act: Callable[[DeltaTable], object]
) -> tuple[list[str], list[str]]:
    found = []
    for store in stores:
        table = DeltaTable("memory://t", store=store)
        store.reset()
        act(table)
        found.append([request.partition(" ")[0] for request in store.requests])
    return found[0], found[1]


def test_a_path_is_opened_in_the_same_steps(local_logs: tuple[Path, Path]) -> None:
    short, long = count_both(local_logs, DeltaTable)
    assert long.names_listed == 0
    assert short.names_listed <= 2 * SHORT + 10
    # Names that are looked up instead.
    assert long.calls <= short.calls + 200
    assert len(long.paths_opened) <= len(short.paths_opened) + 1


def test_an_append_to_a_path_takes_the_same_steps(local_logs: tuple[Path, Path]) -> None:
    short, long = count_both(local_logs, lambda path: DeltaTable(path).append(ROW))
    assert long.names_listed == 0
    assert long.calls <= short.calls + 200
    assert len(long.paths_opened) <= len(short.paths_opened) + 1


def test_an_append_to_an_open_table_lists_nothing(local_logs: tuple[Path, Path]) -> None:
    handles = {path: DeltaTable(path) for path in local_logs}
    short, long = count_both(local_logs, lambda path: handles[path].append(ROW))
    assert short.names_listed == long.names_listed == 0
    assert long.calls <= 1.02 * short.calls
    assert len(long.paths_opened) == len(short.paths_opened)


def test_an_idle_tick_lists_nothing(local_logs: tuple[Path, Path]) -> None:
    cursors = {path: start_cursor(LocalStore(path)) for path in local_logs}
    short, long = count_both(
        local_logs, lambda path: read_new_commits(LocalStore(path), cursors[path])
    )
    assert short.names_listed == long.names_listed == 0
    assert (long.calls, len(long.paths_opened)) == (short.calls, len(short.paths_opened))


def test_requests_do_not_grow_with_the_history(
    remote_logs: tuple[RequestStore, RequestStore],
) -> None:
    opened = count_requests(remote_logs, lambda table: DeltaTable("memory://t", store=table.store))
    assert opened == (["read", "list", "read"],) * 2
    # The log with a checkpoint and five commits: hint, listing and checksum.
    assert max(store.names_listed for store in remote_logs) <= 2 * 5 + 4
    appended = count_requests(remote_logs, lambda table: table.append(ROW))
    assert appended[0] == appended[1]
    assert len(appended[0]) <= 5
    listed = count_requests(remote_logs, lambda table: table.snapshot().live_files())
    assert listed[0] == listed[1]


def test_a_tick_takes_one_request_and_one_for_each_commit(
    remote_logs: tuple[RequestStore, RequestStore],
) -> None:
    for num_commits in (0, 10):
        counts = []
        for store in remote_logs:
            cursor = start_cursor(store)
            extend_log(store, cursor.version + 1 + num_commits)
            store.reset()
            _, commits = read_new_commits(store, cursor)
            assert len(commits) == num_commits
            counts.append(len(store.requests))
        assert counts == [1 + num_commits] * 2


@pytest.mark.parametrize("num_commits", [10, 100])
def test_opening_reads_no_commit_after_the_checkpoint(num_commits: int) -> None:
    store = RequestStore()
    DeltaTable("memory://t", store=store, must_exist=False).append(ROW)
    extend_log(store, 100)
    DeltaTable("memory://t", store=store).checkpoint()
    extend_log(store, 100 + num_commits)
    store.reset()
    snapshot = DeltaTable("memory://t", store=store).snapshot()
    assert len(store.requests) == 3
    store.reset()
    assert snapshot.live_files(["path"]).num_rows == 100 + num_commits
    assert len(store.requests) <= num_commits + 3


def test_opening_and_appending_read_no_list_of_files() -> None:
    counts = []
    for num_files in (SHORT, LONG):
        store = RequestStore()
        DeltaTable("memory://t", store=store, must_exist=False).append(ROW)
        add_files(store, num_files, lambda file, _: file)
        store.reset()
        DeltaTable("memory://t", store=store).append(ROW)
        counts.append((len(store.requests), store.bytes_read // 1_000))
    assert counts[0] == counts[1]
