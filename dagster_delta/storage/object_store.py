"""The port through which every byte of a table is read, listed and created.

A store is rooted at a table. Paths are relative to that root, decoded (never percent-encoded) and
separated by `/`; an absolute URI (`s3://…`, `file:/…`) is accepted wherever a file is read, because
shallow clones name the files of other tables.

Spec: File Types; Delta Log Entries (mutual exclusion of writers).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

__all__ = ["CopyingStore", "ObjectMeta", "ObjectStore", "StoreLocation"]


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """One stored object."""

    path: str
    """Relative to the root of the store."""
    size_bytes: int
    """Length of the object."""
    modified_ms: int
    """Last modification in milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """What it takes to open the same store elsewhere, on a Spark executor say. Picklable."""

    uri: str
    """URI of the table's root."""
    options: Mapping[str, Any]
    """Storage options as the user gave them; they may hold secrets and are never shown."""

    def __repr__(self) -> str:
        return f"StoreLocation(uri={self.uri!r}, options=<{len(self.options)} hidden>)"


class ObjectStore(Protocol):
    """Reads, lists and creates the objects of one table."""

    @property
    def location(self) -> StoreLocation:
        """How to open this store again."""

    @property
    def supports_put_if_absent(self) -> bool:
        """Whether `put_if_absent` is atomic here. Without it a table is read-only."""

    def read(self, path: str) -> bytes:
        """The whole object.

        Raises:
            FileNotFoundError: it is not there.
            StorageFailure: the store refused or failed.
        """

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`. Raises as `read` does."""

    def head(self, path: str) -> ObjectMeta | None:
        """Size and time of the object, or None where it is absent."""

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        """The objects directly in `directory` whose name is `>= start`, in name order.

        Sub-directories are left out; a missing directory lists as empty. One request per thousand
        names on object stores, starting at `start`, so a tail costs what it holds.
        """

    def list_recursive(self, directory: str = "") -> Iterator[ObjectMeta]:
        """Every object under `directory`, at any depth, in no promised order."""

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create the object whole, or leave what is there untouched.

        Raises:
            FileExistsError: an object is there.
            ConditionalPutUnsupported: the store cannot promise this.
            StorageFailure: the store gave an answer that is neither; the object may exist.
        """

    def put(self, path: str, data: bytes) -> None:
        """Create or replace the object whole; no reader sees a part of it."""

    def delete(self, paths: Iterable[str]) -> None:
        """Remove the objects; absent ones are fine."""

    def open_input(self, path: str) -> Any:
        """The object as a random-access `pyarrow.NativeFile`. Raises as `read` does.

        Reading from it may raise OSError as well: see `parquet_reader.storage_failure`.
        """

    def open_output(self, path: str) -> Any:
        """A `pyarrow.NativeFile` to write a new object; the object appears when it is closed.

        Its `write` and `close` raise StorageFailure where the store refused or failed.

        Parent directories are created. Closing after an error may leave a part behind on stores
        that know no rename: data files are only referenced after they were closed.
        """

    def local_path(self, path: str) -> str | None:
        """The path on the local file system for readers that want one, or None."""

    def resolve_uri(self, path: str) -> str:
        """The full, unencoded URI of a path of this store; an absolute URI is returned as is."""


@runtime_checkable
class CopyingStore(Protocol):
    """What a store can do besides: copy objects without their bytes passing through here."""

    def copy_object(self, source: ObjectStore, path: str, target: str) -> bool:
        """Create an object like one of a store, and say whether that was done.

        Args:
            source: store of the object.
            path: of the object there.
            target: path of the new object in this store.

        Returns:
            False where the storage cannot or will not, and nothing was created.

        Raises:
            FileNotFoundError: there is no such object.
        """
