"""Tables in the memory of this process: the reference implementation of the port.

Within this process, `memory://name/path` always names the same objects; other processes cannot see
them.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from weakref import WeakValueDictionary

import pyarrow as pa

from dagster_delta.clock import Clock, now_ms
from dagster_delta.errors import InvalidArgument
from dagster_delta.storage.file_objects import PendingFile
from dagster_delta.storage.locations import check_relative_path, join_path
from dagster_delta.storage.object_store import ObjectMeta, RootedStore


class _Objects:
    """The objects of one name in `memory://name`: path → (content, time in ms), under a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_path: dict[str, tuple[bytes, int]] = {}


# Private stores also have a name, so that their URIs resolve, but no registry keeps them alive.
_OPEN: WeakValueDictionary[str, _Objects] = WeakValueDictionary()
_SHARED: dict[str, _Objects] = {}
_REGISTRY_LOCK = threading.Lock()


class MemoryStore(RootedStore):
    """An `ObjectStore` over a dictionary. Thread-safe.

    Args:
        location: `memory://name/path`, shared by every store of that name in this process while it
            runs; None for a private store, freed with its last reference.
        clock_ms: gives the modification times, in milliseconds since the epoch.

    Raises:
        InvalidArgument: the URI has no name.
    """

    def __init__(self, location: str | None = None, *, clock_ms: Clock = now_ms) -> None:
        name, path = _split_location(location or f"memory://{secrets.token_hex(8)}")
        with _REGISTRY_LOCK:
            self._objects = _OPEN.setdefault(name, _Objects())
            if location is not None:
                _SHARED[name] = self._objects
        super().__init__(f"memory://{name}/{path}".rstrip("/"), None, {"memory"})
        self._prefix = f"{path}/" if path else ""
        self._clock_ms = clock_ms

    def read(self, path: str) -> bytes:
        """The whole object. Raises FileNotFoundError."""
        objects, key = self._resolve_path(path)
        found = objects.by_path.get(key)
        if found is None:
            raise self._make_missing_error(path)
        return found[0]

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer at the end. Raises FileNotFoundError."""
        return self.read(path)[offset : offset + length]

    def head(self, path: str) -> ObjectMeta | None:
        """Size and time of the object, or None if it is absent."""
        objects, key = self._resolve_path(path)
        found = objects.by_path.get(key)
        return None if found is None else ObjectMeta(path, len(found[0]), found[1])

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        """The objects directly in `directory` named `>= start`, in name order."""
        prefix = join_path(check_relative_path(directory), "")
        found = [
            meta
            for meta in self._list_objects(prefix)
            if "/" not in (name := meta.path[len(prefix) :]) and name >= start
        ]
        yield from sorted(found, key=lambda meta: meta.path)

    def list_recursive(self, directory: str = "") -> Iterator[ObjectMeta]:
        """Every object under `directory`."""
        yield from self._list_objects(join_path(check_relative_path(directory), ""))

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create the object, or leave an existing one unchanged. Raises FileExistsError."""
        key = self._key_of(path)
        with self._objects.lock:
            if key in self._objects.by_path:
                raise self._make_taken_error(path)
            self._objects.by_path[key] = (bytes(data), self._clock_ms())

    def put(self, path: str, data: bytes) -> None:
        """Create or replace the object."""
        key = self._key_of(path)
        with self._objects.lock:
            self._objects.by_path[key] = (bytes(data), self._clock_ms())

    def delete(self, paths: Iterable[str]) -> None:
        """Remove the objects; a missing object is not an error."""
        for path in paths:
            key = self._key_of(path)
            with self._objects.lock:
                self._objects.by_path.pop(key, None)

    def open_input(self, path: str) -> pa.BufferReader:
        """The object as a `pyarrow.BufferReader`. Raises FileNotFoundError."""
        return pa.BufferReader(self.read(path))

    def open_output(self, path: str) -> PendingFile:
        """A file to write. The object appears when it is closed."""
        return _MemoryFile(partial(self.put, check_relative_path(path)))

    def _key_of(self, path: str) -> str:
        return self._prefix + check_relative_path(path)

    def _resolve_path(self, path: str) -> tuple[_Objects, str]:
        if not self._is_uri(path):
            return self._objects, self._key_of(path)
        name, key = _split_location(path)
        with _REGISTRY_LOCK:
            return _OPEN.get(name) or _Objects(), key

    def _list_objects(self, prefix: str) -> list[ObjectMeta]:
        with self._objects.lock:
            found = list(self._objects.by_path.items())
        start = self._prefix + prefix
        return [
            ObjectMeta(key[len(self._prefix) :], len(data), modified_ms)
            for key, (data, modified_ms) in found
            if key.startswith(start)
        ]


class _MemoryFile(PendingFile):
    def __init__(self, put: Callable[[bytes], None]) -> None:
        super().__init__(nullcontext)
        self._put = put
        self._parts: list[bytes] = []

    def _write(self, data: memoryview) -> None:
        self._parts.append(bytes(data))

    def _publish(self) -> None:
        parts, self._parts = self._parts, []
        self._put(b"".join(parts))

    def _discard(self) -> None:
        self._parts.clear()


def _split_location(location: str) -> tuple[str, str]:
    name, _, path = location.partition("://")[2].partition("/")
    if not name:
        raise InvalidArgument("A memory URI has a name: memory://name/path", file=location)
    return name, path.strip("/")
