"""What only the memory store does: names that share, and a clock of its own."""

from __future__ import annotations

import gc
import uuid

from dagster_delta.storage import open_store
from dagster_delta.storage.memory_store import MemoryStore


def test_stores_of_one_name_share_their_objects() -> None:
    root = f"memory://{uuid.uuid4().hex}"
    open_store(root).put("table/a", b"x")
    gc.collect()
    assert open_store(f"{root}/table").read("a") == b"x"
    assert [meta.path for meta in open_store(f"{root}/table/").list_from("")] == ["a"]
    assert open_store(f"{root}/tab").head("le/a") is None


def test_stores_of_other_names_and_private_ones_do_not() -> None:
    one, other = MemoryStore(), MemoryStore()
    one.put("a", b"x")
    assert other.head("a") is None
    assert open_store(f"memory://{uuid.uuid4().hex}").head("a") is None


def test_a_private_store_opens_again_by_its_location_while_it_lives() -> None:
    store = MemoryStore()
    store.put("a", b"x")
    assert open_store(store.location.uri).read("a") == b"x"
    assert MemoryStore().read(store.resolve_uri("a")) == b"x"


def test_times_come_from_the_clock_that_was_given() -> None:
    store = MemoryStore(clock_ms=iter([5, 7]).__next__)
    store.put_if_absent("a", b"x")
    with store.open_output("b") as stream:
        stream.write(b"y")
    assert [meta.modified_ms for meta in store.list_from("")] == [5, 7]
