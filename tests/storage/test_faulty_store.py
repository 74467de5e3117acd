"""A fault strikes once, where it was told to, with the effect it was told to have."""

from __future__ import annotations

import pytest

from dagster_delta.errors import StorageFailure
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.testing.faulty_store import Fault, FaultyStore, SimulatedCrash


def test_a_lost_reply_creates_the_object_and_raises() -> None:
    store = FaultyStore(MemoryStore(), [Fault("lose_reply", "put_if_absent")])
    with pytest.raises(StorageFailure):
        store.put_if_absent("a", b"x")
    assert store.read("a") == b"x"
    store.put_if_absent("b", b"y")
    assert store.unstruck == frozenset()


def test_a_refusal_has_no_effect() -> None:
    store = FaultyStore(MemoryStore(), [Fault("refuse", "put", path_contains="b")])
    store.put("a", b"x")
    with pytest.raises(StorageFailure):
        store.put("b", b"x")
    assert [meta.path for meta in store.list_from("")] == ["a"]


@pytest.mark.parametrize(("kind", "left"), [("crash_before", ["a"]), ("crash_after", ["a", "b"])])
def test_a_crash_ends_the_process(kind: str, left: list[str]) -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, [Fault(kind, "put_if_absent", occurrence=2)])  # type: ignore[arg-type]
    store.put_if_absent("a", b"x")
    with pytest.raises(SimulatedCrash):
        store.put_if_absent("b", b"x")
    with pytest.raises(SimulatedCrash):
        store.read("a")
    assert store.crashed
    assert [meta.path for meta in inner.list_from("")] == left


def test_nothing_that_handles_exceptions_survives_a_crash() -> None:
    assert not issubclass(SimulatedCrash, Exception)


def test_calls_are_counted_by_kind() -> None:
    store = FaultyStore(MemoryStore())
    store.put("a", b"x")
    list(store.list_from(""))
    store.head("a")
    store.head("b")
    assert dict(store.calls) == {"put": 1, "list_from": 1, "head": 2}


def test_another_writer_runs_between_two_calls() -> None:
    inner = MemoryStore()

    def win_the_race(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            inner.put_if_absent(path, b"theirs")

    store = FaultyStore(inner, before_call=win_the_race)
    with pytest.raises(FileExistsError):
        store.put_if_absent("a", b"ours")
    assert store.read("a") == b"theirs"
