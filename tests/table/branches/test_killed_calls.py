"""Publications and drops that are killed at each call of the store, reads and lists included."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from dagster_delta.storage.local_store import LocalStore
from dagster_delta.table.branches.branch import Branch
from dagster_delta.table.delta_table import DeltaTable
from tests.table.branches.conftest import begin, check_feed, digest, ids, rows

_CALLS = (
    *("read", "read_range", "head", "list_from", "list_recursive", "open_input"),
    *("put_if_absent", "put", "open_output", "copy_object"),
)


class _Killed(BaseException):
    """The process died."""


class _Calls:
    """Kills the process at one of the calls of its stores, before or after it has its effect. A
    dead process calls nothing any more.
    """

    def __init__(self, kill_at: int, *, after: bool) -> None:
        self.left, self.after, self.lock = kill_at, after, threading.Lock()

    def install(self, patched: pytest.MonkeyPatch) -> None:
        for name in _CALLS:
            if (method := getattr(LocalStore, name, None)) is not None:
                patched.setattr(LocalStore, name, self._counting(method))
        delete_one = self._counting(LocalStore.delete)

        def delete(store: LocalStore, paths: Iterable[str]) -> None:
            for path in paths:
                delete_one(store, [path])

        patched.setattr(LocalStore, "delete", delete)

    def _counting(self, method: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            with self.lock:
                self.left -= 1
                left = self.left
            if left < (0 if not self.after else -1):
                raise _Killed
            found = method(*arguments, **options)
            if left == -1:
                raise _Killed
            return found

        return call


def kill_each_call(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], check: Callable[[], object]
) -> int:
    """Number of calls at which it was killed until it was done; `check` is called after each."""
    step = 0
    while True:
        with monkeypatch.context() as patched:
            _Calls(step // 2, after=bool(step % 2)).install(patched)
            try:
                act()
            except _Killed:
                step += 1
            else:
                return step
        check()


def test_killed_publication_is_repeated(
    root: str, production: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = Branch(root, "dev")
    table = begin(branch, production)
    table.append(rows(7))
    table.delete("id = 1")
    table.update(set={"v": "'b'"}, where="id = 2")
    before, after = ids(production), [2, 3, 4, 6, 7]

    def check() -> None:
        assert ids(DeltaTable(production.uri)) in (before, after)

    kills = kill_each_call(monkeypatch, lambda: Branch(root, "dev").publish(), check)
    assert kills > 40
    assert Branch(root, "dev").publish()[production.uri].skipped
    assert ids(production) == after
    published = [e.version for e in production.history() if e.operation == "PUBLISH BRANCH"]
    assert len(published) == 1
    check_feed(production, published[0])


def test_killed_drop_is_completed(
    root: str, production: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = digest(f"{root}/raw")

    def begin_again() -> None:
        begin(Branch(root, "dev"), production).append(rows(7))

    def drop() -> None:
        Branch(root, "dev").drop(dry_run=False)

    def complete() -> None:
        drop()
        assert not Path(Branch(root, "dev").uri).exists()
        assert digest(f"{root}/raw") == kept
        begin_again()

    begin_again()
    assert kill_each_call(monkeypatch, drop, complete) > 15
    assert not Path(Branch(root, "dev").uri).exists()
    assert digest(f"{root}/raw") == kept
