"""A store with configured faults: crashes, lost replies, refusals. It counts its calls."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any, Literal, TypeVar

import msgspec
import pyarrow as pa

from dagster_delta.errors import StorageFailure
from dagster_delta.storage.file_objects import PendingFile
from dagster_delta.storage.object_store import ObjectMeta, ObjectStore, StoreLocation

__all__ = ["Fault", "FaultyStore", "Operation", "SimulatedCrash"]

Operation = Literal[
    "read",
    "read_range",
    "head",
    "list_from",
    "list_recursive",
    "put_if_absent",
    "put",
    "delete",
    "open_input",
    "open_output",
    "read_opened",
    "write_opened",
]
"""Methods of the port, and reads and writes of opened files."""
_T = TypeVar("_T")


class SimulatedCrash(BaseException):
    """The process died here. It is not an `Exception`, because a dying process handles nothing."""


class Fault(msgspec.Struct, frozen=True):
    """One failure, at one call."""

    kind: Literal["crash_before", "crash_after", "lose_reply", "refuse"]
    """`crash_*`: the process dies before or after the call takes effect. `lose_reply`: the call
    takes effect and `StorageFailure` is raised. `refuse`: the call has no effect and
    `StorageFailure` is raised."""
    operation: Operation
    """The method that fails. A read of an opened file raises OSError instead of StorageFailure,
    like Arrow's file systems."""
    path_contains: str = ""
    """Only calls whose (first) path contains this count."""
    occurrence: int = 1
    """Which of the matching calls fails, counted from 1."""


class FaultyStore:
    """An `ObjectStore` around another one, with configured faults. Wrap once per simulated process.

    Args:
        inner: the store that does the work.
        faults: the faults; each occurs once.
        before_call: called with the operation and its path before each call, while no lock is held:
            use it to run another writer, so that two interleave without threads.
        inside_files: whether reads and writes of opened files count and may fail. The bytes of such
            files pass through Python, which is slower.
    """

    def __init__(
        self,
        inner: ObjectStore,
        faults: Iterable[Fault] = (),
        *,
        before_call: Callable[[Operation, str], None] | None = None,
        inside_files: bool = False,
    ) -> None:
        self.inner = inner
        self._inside_files = inside_files
        self.calls: Counter[str] = Counter()
        """How often each method was called."""
        self.crashed = False
        """Whether the simulated process is dead; each further call raises `SimulatedCrash`."""
        self._before_call = before_call
        self._pending = {fault: fault.occurrence for fault in faults}
        # Commits are read by several threads at once.
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"FaultyStore({self.inner!r})"

    @property
    def unstruck(self) -> frozenset[Fault]:
        """The faults that have not occurred yet."""
        return frozenset(self._pending)

    @property
    def location(self) -> StoreLocation:
        """The location of the inner store, which opens without faults."""
        return self.inner.location

    @property
    def supports_put_if_absent(self) -> bool:
        """As the inner store."""
        return self.inner.supports_put_if_absent

    def read(self, path: str) -> bytes:
        """As the port, unless a fault occurs."""
        return self.run("read", path, lambda: self.inner.read(path))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """As the port, unless a fault occurs."""
        return self.run("read_range", path, lambda: self.inner.read_range(path, offset, length))

    def head(self, path: str) -> ObjectMeta | None:
        """As the port, unless a fault occurs."""
        return self.run("head", path, lambda: self.inner.head(path))

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        """As the port, unless a fault occurs; everything is listed when it is called."""
        found = self.run(
            "list_from", directory, lambda: list(self.inner.list_from(directory, start))
        )
        return iter(found)

    def list_recursive(self, directory: str = "") -> Iterator[ObjectMeta]:
        """As the port, unless a fault occurs; everything is listed when it is called."""
        found = self.run(
            "list_recursive", directory, lambda: list(self.inner.list_recursive(directory))
        )
        return iter(found)

    def put_if_absent(self, path: str, data: bytes) -> None:
        """As the port, unless a fault occurs."""
        self.run("put_if_absent", path, lambda: self.inner.put_if_absent(path, data))

    def put(self, path: str, data: bytes) -> None:
        """As the port, unless a fault occurs."""
        self.run("put", path, lambda: self.inner.put(path, data))

    def delete(self, paths: Iterable[str]) -> None:
        """As the port, unless a fault occurs."""
        paths = list(paths)
        self.run("delete", paths[0] if paths else "", lambda: self.inner.delete(paths))

    def open_input(self, path: str) -> pa.NativeFile:
        """As the port, unless a fault occurs on opening or, with `inside_files`, later."""
        opened = self.run("open_input", path, lambda: self.inner.open_input(path))
        if not self._inside_files:
            return opened
        return pa.PythonFile(_WatchedInput(self, opened, path), mode="r")

    def open_output(self, path: str) -> PendingFile:
        """As the port, unless a fault occurs on opening or, with `inside_files`, later."""
        opened = self.run("open_output", path, lambda: self.inner.open_output(path))
        if not self._inside_files:
            return opened
        return _WatchedOutput(self, opened, path)

    def local_path(self, path: str) -> None:
        """None, so that no reader bypasses this store."""

    def resolve_uri(self, path: str) -> str:
        """As the inner store."""
        return self.inner.resolve_uri(path)

    def run(self, operation: Operation, path: str, call: Callable[[], _T]) -> _T:
        """The result of a call that is counted and may fail."""
        if self.crashed:
            raise SimulatedCrash
        if self._before_call is not None:
            self._before_call(operation, path)
        kind = self._strike(operation, path)
        if kind == "crash_before":
            self.crashed = True
            raise SimulatedCrash
        if kind == "refuse":
            raise _refusal(operation, path)
        result = call()
        if kind == "crash_after":
            self.crashed = True
            raise SimulatedCrash
        if kind == "lose_reply":
            raise StorageFailure("Simulated: the reply was lost", file=path)
        return result

    def _strike(self, operation: Operation, path: str) -> str | None:
        struck = None
        with self._lock:
            self.calls[operation] += 1
            for fault, remaining in list(self._pending.items()):
                if fault.operation != operation or fault.path_contains not in path:
                    continue
                self._pending[fault] = remaining - 1
                if remaining == 1:
                    del self._pending[fault]
                    struck = struck or fault.kind
        return struck


class _WatchedInput:
    """An opened file whose reads are calls of the store."""

    def __init__(self, store: FaultyStore, file: pa.NativeFile, path: str) -> None:
        self._store = store
        self._file = file
        self._path = path

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)

    def read(self, size: int = -1) -> Any:  # noqa: ANN401
        return self._store.run(
            "read_opened", self._path, lambda: self._file.read(size if size >= 0 else None)
        )

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()


class _WatchedOutput(PendingFile):
    """An opened file whose writes, and its close, are calls of the store."""

    def __init__(self, store: FaultyStore, file: PendingFile, path: str) -> None:
        super().__init__(nullcontext)
        self._store = store
        self._file = file
        self._path = path

    def _write(self, data: memoryview) -> None:
        self._store.run("write_opened", self._path, lambda: self._file.write(data))

    def _publish(self) -> None:
        self._store.run("write_opened", self._path, self._file.close)

    def _discard(self) -> None:
        if not self._store.crashed:
            self._file.discard()


def _refusal(operation: Operation, path: str) -> Exception:
    if operation == "read_opened":
        return OSError(errno.EIO, "Simulated: the store refused")
    return StorageFailure("Simulated: the store refused", file=path)
