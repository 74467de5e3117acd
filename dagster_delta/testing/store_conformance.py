"""Conformance tests for stores: subclass, define how to open a store, and run pytest.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self) -> ObjectStore:
            return MyStore(...)          # empty, and only this test's

For readable failures, `pytest.register_assert_rewrite("dagster_delta.testing.store_conformance")`
in a conftest, before the first import. For a read-only store, subclass `ReadConformance` and define
how to fill it.
"""

from __future__ import annotations

# ruff: noqa: D102, S101
# The names of the tests are their documentation.
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.storage import open_store
from dagster_delta.storage.object_store import ObjectMeta, ObjectStore, RangeStore, StoreLocation

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

__all__ = ["SPECIAL_PATHS", "ReadConformance", "StoreConformance"]

SPECIAL_PATHS = (
    "with space/a b.parquet",
    "p=100%/x.parquet",
    "p=a%20b/x%2Fy.parquet",
    "p=2013-01-01 00%3A00%3A00/x.parquet",
    "hash#mark/a?b=c&d.parquet",
    "plus+and=/~tilde,comma;.parquet",
    "p=ünïcödé/雪.parquet",
    "p='quoted'/(a)[b]{c}!$@.parquet",
    "p=12:30/a:b.parquet",
    "_delta_log/_sidecars/x.parquet",
    ".hidden/.x",
    "dots../...and..more",
)
"""Names that occur in real tables, decoded: nothing in them is an escape."""

_DATA = bytes(range(256)) * 16


class ReadConformance:
    """Reading and listing. Needs a fixture `store`."""

    forbidden_characters: ClassVar[str] = ""
    """Characters that no name in this storage may have."""
    long_listing: ClassVar[int] = 1203
    """More objects than one answer of this storage lists, or one request deletes."""

    def fill(self, store: ObjectStore, path: str, data: bytes) -> None:
        """Create an object that `store` can read."""
        store.put(path, data)

    def skip_forbidden(self, path: str) -> None:
        """Skip the test if this storage has no such name."""
        if set(path) & set(self.forbidden_characters):
            pytest.skip(f"no name here has any of {self.forbidden_characters!r}")

    def reopen(self, store: ObjectStore) -> ObjectStore:
        """A second store at the same location."""
        return open_store(store.location.uri, store.location.options)

    def test_read_gives_the_whole_object(self, store: ObjectStore) -> None:
        self.fill(store, "a/b.bin", _DATA)
        assert store.read("a/b.bin") == _DATA

    def test_an_empty_object_is_there_and_empty(self, store: ObjectStore) -> None:
        self.fill(store, "empty", b"")
        found = store.head("empty")
        assert store.read("empty") == b""
        assert found is not None
        assert found.size_bytes == 0

    def test_reading_what_is_absent_is_file_not_found(self, store: ObjectStore) -> None:
        self.fill(store, "a/b.bin", _DATA)
        for path in ("missing", "a/missing", "missing/x", "a", "a/b.bin/x"):
            with pytest.raises(FileNotFoundError):
                store.read(path)
            with pytest.raises(FileNotFoundError):
                store.read_range(path, 0, 1)
            with pytest.raises(FileNotFoundError):
                store.open_input(path).read()

    def test_a_range_is_cut_at_the_end(self, store: ObjectStore) -> None:
        self.fill(store, "a.bin", _DATA)
        size = len(_DATA)
        assert store.read_range("a.bin", 0, 4) == _DATA[:4]
        assert store.read_range("a.bin", 1000, 300) == _DATA[1000:1300]
        assert store.read_range("a.bin", size - 3, 3) == _DATA[-3:]
        assert store.read_range("a.bin", size - 3, 100) == _DATA[-3:]
        assert store.read_range("a.bin", size + 10, 5) == b""

    def test_head_tells_size_and_a_time_in_milliseconds(self, store: ObjectStore) -> None:
        before_ms = time.time_ns() // 1_000_000
        self.fill(store, "a/b.bin", _DATA)
        found = store.head("a/b.bin")
        assert found is not None
        assert (found.path, found.size_bytes) == ("a/b.bin", len(_DATA))
        # Some storage keeps whole seconds, and has its own clock.
        assert abs(found.modified_ms - before_ms) < 60_000

    def test_head_of_what_is_absent_is_none(self, store: ObjectStore) -> None:
        self.fill(store, "a/b.bin", _DATA)
        for path in ("missing", "a", "a/b.bin/x"):
            assert store.head(path) is None

    def test_a_listing_is_in_name_order_and_begins_at_start(self, store: ObjectStore) -> None:
        names = ["10.json", "2.json", "Z.json", "a.json", "ä.json", "_last", "2.checkpoint.parquet"]
        for name in names:
            self.fill(store, f"log/{name}", name.encode())
        ordered = sorted(names)
        assert _names(store.list_from("log")) == [f"log/{name}" for name in ordered]
        for position, start in enumerate(ordered):
            found = _names(store.list_from("log", start))
            assert found == [f"log/{name}" for name in ordered[position:]]
        assert _names(store.list_from("log", "2.json0")) == [
            f"log/{name}" for name in ordered if name >= "2.json0"
        ]
        assert _names(store.list_from("log", "ö")) == []

    def test_a_listing_leaves_out_what_lies_deeper(self, store: ObjectStore) -> None:
        for path in ("log/1", "log/deeper/2", "logs/3", "4"):
            self.fill(store, path, b"x")
        assert _names(store.list_from("log")) == ["log/1"]
        assert _names(store.list_from("")) == ["4"]

    def test_a_listing_tells_size_and_time_as_head_does(self, store: ObjectStore) -> None:
        self.fill(store, "log/1.json", b"12345")
        listed = list(store.list_from("log"))
        assert listed == list(store.list_recursive())
        found = store.head("log/1.json")
        assert found is not None
        # HTTP tells the time of one object in seconds.
        facts = [
            (meta.path, meta.size_bytes, meta.modified_ms // 1000) for meta in [*listed, found]
        ]
        assert facts == [("log/1.json", 5, found.modified_ms // 1000)] * 2

    def test_a_long_listing_is_complete(self, store: ObjectStore) -> None:
        count = self.long_listing
        names = [f"log/{version:020d}.json" for version in range(count)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: self.fill(store, path, b"{}"), names))
        assert _names(store.list_from("log")) == names
        assert _names(store.list_from("log", f"{count - 8:020d}.json")) == names[-8:]
        assert sorted(_names(store.list_recursive("log"))) == names

    def test_a_missing_directory_lists_as_empty(self, store: ObjectStore) -> None:
        assert list(store.list_from("missing")) == []
        assert list(store.list_from("")) == []
        assert list(store.list_recursive("missing")) == []
        assert list(store.list_recursive()) == []

    def test_a_recursive_listing_finds_every_depth(self, store: ObjectStore) -> None:
        paths = ["a", "b/c", "b/d/e", "bb/f", ".hidden/g"]
        for path in paths:
            self.fill(store, path, b"x")
        assert sorted(_names(store.list_recursive())) == sorted(paths)
        assert sorted(_names(store.list_recursive("b"))) == ["b/c", "b/d/e"]

    def test_open_input_reads_at_random(self, store: ObjectStore) -> None:
        self.fill(store, "a.bin", _DATA)
        with store.open_input("a.bin") as stream:
            assert stream.size() == len(_DATA)
            stream.seek(1000)
            assert stream.read(10) == _DATA[1000:1010]
            assert stream.read_at(5, 3) == _DATA[3:8]
            stream.seek(0)
            assert stream.read() == _DATA

    def test_ranges_that_were_fetched_together_are_those_of_the_object(
        self, store: ObjectStore
    ) -> None:
        if not isinstance(store, RangeStore):
            pytest.skip("the store fetches one range at a time")
        self.fill(store, "a.bin", _DATA)
        size = len(_DATA)
        ranges = [(size - 8, 8), (0, 4), (1000, 300)]
        with store.open_ranges("a.bin", ranges, size_bytes=size) as stream:
            assert stream.size() == size
            for offset, length in (*ranges, (1010, 20), (2000, 5), (2, 2000)):
                assert stream.read_at(length, offset) == _DATA[offset : offset + length]
        # A log may give too large a size.
        with store.open_ranges(
            "a.bin", [(size - 8, 20), (size + 9, 5)], size_bytes=size + 20
        ) as stream:
            assert stream.read_at(20, size - 8) == _DATA[-8:]
            assert stream.read_at(5, size + 9) == b""
        with pytest.raises(FileNotFoundError):
            store.open_ranges("missing.bin", [(0, 4)], size_bytes=4)

    def test_open_input_serves_parquet(self, store: ObjectStore) -> None:
        table = pa.table({"a": list(range(1000)), "b": ["x", "y"] * 500})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        self.fill(store, "a.parquet", sink.getvalue().to_pybytes())
        assert pq.read_table(store.open_input("a.parquet"), columns=["b"]) == table.select(["b"])

    @pytest.mark.parametrize("path", SPECIAL_PATHS)
    def test_no_character_of_a_path_is_special(self, store: ObjectStore, path: str) -> None:
        self.skip_forbidden(path)
        self.fill(store, path, _DATA)
        directory, _, name = path.rpartition("/")
        assert store.read(path) == _DATA
        assert store.read_range(path, 1, 2) == _DATA[1:3]
        assert store.open_input(path).read() == _DATA
        assert _names(store.list_from(directory)) == [path]
        assert _names(store.list_from(directory, name)) == [path]
        assert _names(store.list_recursive()) == [path]
        assert store.read(store.resolve_uri(path)) == _DATA

    def test_an_absolute_uri_names_the_same_object(self, store: ObjectStore) -> None:
        self.fill(store, "a/b c%20d.bin", _DATA)
        uri = store.resolve_uri("a/b c%20d.bin")
        found = store.head(uri)
        assert store.resolve_uri(uri) == uri
        assert uri.endswith("/a/b c%20d.bin")
        assert store.read(uri) == _DATA
        assert store.read_range(uri, 1, 2) == _DATA[1:3]
        assert store.open_input(uri).read() == _DATA
        assert found is not None
        assert found.size_bytes == len(_DATA)

    def test_a_uri_of_other_storage_is_refused_by_name(self, store: ObjectStore) -> None:
        for read in (store.read, store.open_input, store.head):
            with pytest.raises(StorageFailure, match="elsewhere"):
                read("elsewhere://bucket/x")

    def test_no_path_climbs_out_of_the_table(self, store: ObjectStore) -> None:
        for path in ("../x", "a/../../x", "a/..", ".."):
            with pytest.raises(InvalidArgument):
                store.read(path)
            with pytest.raises(InvalidArgument):
                list(store.list_from(path))

    def test_the_location_opens_the_same_store_elsewhere(self, store: ObjectStore) -> None:
        self.fill(store, "a b", _DATA)
        location = pickle.loads(pickle.dumps(store.location))  # noqa: S301
        again = self.reopen(store)
        assert location == store.location
        assert again.read("a b") == _DATA
        assert again.location.uri == store.location.uri

    def test_an_option_is_never_shown(self, store: ObjectStore) -> None:
        location = StoreLocation(store.location.uri, {**store.location.options, "x": "s3cr3t"})
        assert "s3cr3t" not in repr(location)
        shown = repr(store) + repr(store.location)
        for name, value in store.location.options.items():
            if "secret" in name.lower() or "token" in name.lower():
                assert str(value) not in shown


class StoreConformance(ReadConformance):
    """The whole port. Needs a fixture `store`."""

    shared_between_processes: ClassVar[bool] = True
    """Whether another process that opens `store.location` sees the same objects."""
    processes: ClassVar[int] = 3
    """How many processes race for the same objects."""
    output_is_hidden_until_closed: ClassVar[bool] = True
    """Whether a file of `open_output` is invisible before it is closed."""
    large_bytes: ClassVar[int] = 12_000_000
    """Size of an object that is uploaded in parts, where there are any."""

    def test_it_says_that_it_can_be_written(self, store: ObjectStore) -> None:
        assert store.supports_put_if_absent

    def test_put_if_absent_creates_the_object_whole(self, store: ObjectStore) -> None:
        store.put_if_absent("_delta_log/0.json", _DATA)
        assert store.read("_delta_log/0.json") == _DATA
        assert _names(store.list_recursive()) == ["_delta_log/0.json"]

    def test_put_if_absent_leaves_what_is_there(self, store: ObjectStore) -> None:
        store.put_if_absent("_delta_log/0.json", b"first")
        with pytest.raises(FileExistsError):
            store.put_if_absent("_delta_log/0.json", b"second")
        assert store.read("_delta_log/0.json") == b"first"
        assert _names(store.list_recursive()) == ["_delta_log/0.json"]

    def test_an_empty_object_is_in_the_way_too(self, store: ObjectStore) -> None:
        store.put("0.json", b"")
        with pytest.raises(FileExistsError):
            store.put_if_absent("0.json", b"second")
        assert store.read("0.json") == b""

    def test_a_deleted_name_is_free_again(self, store: ObjectStore) -> None:
        store.put_if_absent("0.json", b"first")
        store.delete(["0.json"])
        store.put_if_absent("0.json", b"second")
        assert store.read("0.json") == b"second"

    def test_put_if_absent_has_one_winner_among_threads(self, store: ObjectStore) -> None:
        writers, versions = 16, 10
        with ThreadPoolExecutor(writers) as pool:
            for version in range(versions):
                path = f"_delta_log/{version:020d}.json"
                won = list(pool.map(partial(_creates, store, path), range(writers)))
                assert sum(won) == 1
                assert store.read(path) == _content(won.index(True))

    def test_put_if_absent_has_one_winner_among_processes(self, store: ObjectStore) -> None:
        if not self.shared_between_processes:
            pytest.skip("another process sees other objects")
        writers, versions = self.processes, 30
        context = _context_of_new_processes()
        # Unlike a `Pool`, it notices a process that was killed, and ends its processes by itself.
        prepared = (dict(os.environ), context.Barrier(writers))
        with ProcessPoolExecutor(writers, context, _prepare_process, prepared) as pool:
            started = [
                pool.submit(_contend, store.location, writer, versions) for writer in range(writers)
            ]
            won = [future.result() for future in started]
        assert sorted(version for winner in won for version in winner) == list(range(versions))
        for writer, winner in enumerate(won):
            for version in winner:
                assert store.read(f"_delta_log/{version:020d}.json") == _content(writer)

    def test_put_replaces_the_object_whole(self, store: ObjectStore) -> None:
        store.put("a/b", b"a longer first content")
        store.put("a/b", b"second")
        assert store.read("a/b") == b"second"
        assert _names(store.list_recursive()) == ["a/b"]

    def test_a_reader_sees_one_put_or_the_other(self, store: ObjectStore) -> None:
        contents = {bytes([writer]) * 20_000 for writer in range(4)}
        store.put("a", next(iter(contents)))
        with ThreadPoolExecutor(5) as pool:
            puts = [pool.submit(store.put, "a", content) for content in contents for _ in range(10)]
            while not all(put.done() for put in puts):
                assert store.read("a") in contents
        assert all(put.exception() is None for put in puts)

    def test_delete_takes_what_is_there_and_no_more(self, store: ObjectStore) -> None:
        for path in ("a", "b/c", "b/d", "%20 #?"):
            store.put(path, b"x")
        store.delete(["a", "b/c", "missing", "missing/x", "%20 #?"])
        store.delete(["a"])
        store.delete([])
        assert _names(store.list_recursive()) == ["b/d"]

    def test_a_long_listing_is_complete(self, store: ObjectStore) -> None:
        """Deleting all of it takes more than one request, too."""
        super().test_a_long_listing_is_complete(store)
        store.put("kept", b"x")
        store.delete(meta.path for meta in list(store.list_recursive("log")))
        assert _names(store.list_recursive()) == ["kept"]

    def test_open_output_creates_the_object_on_close(self, store: ObjectStore) -> None:
        with store.open_output("deep/er/a.bin") as stream:
            stream.write(_DATA)
            if self.output_is_hidden_until_closed:
                assert store.head("deep/er/a.bin") is None
        stream.close()
        assert store.read("deep/er/a.bin") == _DATA
        assert _names(store.list_recursive()) == ["deep/er/a.bin"]

    @pytest.mark.parametrize("is_large", [False, True])
    def test_an_error_while_writing_leaves_no_object(
        self, store: ObjectStore, *, is_large: bool
    ) -> None:
        with suppress(ZeroDivisionError), store.open_output("a.bin") as stream:
            stream.write(bytes(self.large_bytes if is_large else 10))
            raise ZeroDivisionError
        assert stream.closed
        with pytest.raises(ValueError, match="closed"):
            stream.write(b"more")
        assert store.head("a.bin") is None
        assert list(store.list_recursive()) == []

    def test_open_output_takes_parquet_and_an_empty_file(self, store: ObjectStore) -> None:
        table = pa.table({"a": list(range(1000))})
        with store.open_output("p=1/a.parquet") as stream:
            pq.write_table(table, stream)
        with store.open_output("p=1/empty"):
            pass
        assert pq.read_table(store.open_input("p=1/a.parquet")) == table
        assert store.read("p=1/empty") == b""

    @pytest.mark.parametrize("path", SPECIAL_PATHS)
    def test_open_output_takes_any_character(self, store: ObjectStore, path: str) -> None:
        self.skip_forbidden(path)
        with store.open_output(path) as stream:
            stream.write(_DATA)
        assert store.read(path) == _DATA
        store.delete([path])
        assert list(store.list_recursive()) == []

    def test_many_files_are_written_at_once(self, store: ObjectStore) -> None:
        def write(number: int) -> None:
            with store.open_output(f"new/{number}") as stream:
                stream.write(b"%d" % number)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(40)))
        assert {store.read(path) for path in _names(store.list_from("new"))} == {
            b"%d" % number for number in range(40)
        }

    def test_nothing_outside_the_table_is_written(self, store: ObjectStore) -> None:
        writes: list[Callable[[str], object]] = [
            lambda path: store.put(path, b""),
            lambda path: store.put_if_absent(path, b""),
            lambda path: store.delete([path]),
            store.open_output,
        ]
        for path in ("../x", "/x", "a/../../x", store.resolve_uri("x"), "elsewhere://b/x"):
            for write in writes:
                with pytest.raises(InvalidArgument):
                    write(path)


def _context_of_new_processes() -> BaseContext:
    """Processes that share nothing with this one, forked from one that has imported this module."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _prepare_process(environment: dict[str, str], start: Barrier) -> None:
    """Take the variables that tests have set since the first of these processes was started."""
    global _start
    os.environ.update(environment)
    _start = start


_start: Barrier | None = None
"""Where the writers of a race wait for each other."""


def _creates(store: ObjectStore, path: str, writer: int) -> bool:
    """Whether one of several writers of a path is the first."""
    try:
        store.put_if_absent(path, _content(writer))
    except FileExistsError:
        return False
    return True


def _content(writer: int) -> bytes:
    return b"writer %d " % writer * 100


def _contend(location: StoreLocation, writer: int, versions: int) -> list[int]:
    """The versions that this writer created. Runs in its own process."""
    store = open_store(location.uri, location.options)
    if _start is not None:
        _start.wait(60)
    return [
        version
        for version in range(versions)
        if _creates(store, f"_delta_log/{version:020d}.json", writer)
    ]


def _names(found: Iterable[ObjectMeta]) -> list[str]:
    return [meta.path for meta in found]
