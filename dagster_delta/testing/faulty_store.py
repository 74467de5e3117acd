"""A store that fails when told to: crashes, lost replies, refusals. It counts its calls."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from dagster_delta.errors import StorageFailure
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
]
_T = TypeVar("_T")


class SimulatedCrash(BaseException):
    """The process died here. Not an `Exception`: nothing in a dying process handles it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure, at one call."""

    kind: Literal["crash_before", "crash_after", "lose_reply", "refuse"]
    """`crash_*`: the process dies before or after the call takes effect. `lose_reply`: the call
    takes effect and `StorageFailure` is raised. `refuse`: it has no effect and that is raised."""
    operation: Operation
    """The method it strikes."""
    path_contains: str = ""
    """Only calls whose (first) path contains this count."""
    occurrence: int = 1
    """Which of the calls that match is struck, counted from 1."""


class FaultyStore:
    """An `ObjectStore` around another one that fails as told. Wrap once per simulated process.

    Args:
        inner: the store that does the work.
        faults: what goes wrong; each strikes once.
        before_call: called with the operation and its path before each call, while nothing is
            locked: the place to let another writer run, so that two interleave without threads.
    """

    def __init__(
        self,
        inner: ObjectStore,
        faults: Iterable[Fault] = (),
        *,
        before_call: Callable[[Operation, str], None] | None = None,
    ) -> None:
        self.inner = inner
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
        """The faults that no call has met yet."""
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
        """As the port says, unless a fault strikes."""
        return self._run("read", path, lambda: self.inner.read(path))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """As the port says, unless a fault strikes."""
        return self._run("read_range", path, lambda: self.inner.read_range(path, offset, length))

    def head(self, path: str) -> ObjectMeta | None:
        """As the port says, unless a fault strikes."""
        return self._run("head", path, lambda: self.inner.head(path))

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        """As the port says, unless a fault strikes; the whole listing is of the moment of call."""
        found = self._run(
            "list_from", directory, lambda: list(self.inner.list_from(directory, start))
        )
        return iter(found)

    def list_recursive(self, directory: str = "") -> Iterator[ObjectMeta]:
        """As the port says, unless a fault strikes; the whole listing is of the moment of call."""
        found = self._run(
            "list_recursive", directory, lambda: list(self.inner.list_recursive(directory))
        )
        return iter(found)

    def put_if_absent(self, path: str, data: bytes) -> None:
        """As the port says, unless a fault strikes."""
        self._run("put_if_absent", path, lambda: self.inner.put_if_absent(path, data))

    def put(self, path: str, data: bytes) -> None:
        """As the port says, unless a fault strikes."""
        self._run("put", path, lambda: self.inner.put(path, data))

    def delete(self, paths: Iterable[str]) -> None:
        """As the port says, unless a fault strikes."""
        paths = list(paths)
        self._run("delete", paths[0] if paths else "", lambda: self.inner.delete(paths))

    def open_input(self, path: str) -> Any:
        """As the port says, unless a fault strikes at the opening."""
        return self._run("open_input", path, lambda: self.inner.open_input(path))

    def open_output(self, path: str) -> Any:
        """As the port says, unless a fault strikes at the opening."""
        return self._run("open_output", path, lambda: self.inner.open_output(path))

    def local_path(self, path: str) -> None:
        """None, so that no reader goes around this store."""

    def resolve_uri(self, path: str) -> str:
        """As the inner store."""
        return self.inner.resolve_uri(path)

    def _run(self, operation: Operation, path: str, call: Callable[[], _T]) -> _T:
        if self.crashed:
            raise SimulatedCrash
        if self._before_call is not None:
            self._before_call(operation, path)
        kind = self._strike(operation, path)
        if kind == "crash_before":
            self.crashed = True
            raise SimulatedCrash
        if kind == "refuse":
            raise StorageFailure("Simulated: the store refused", file=path)
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
