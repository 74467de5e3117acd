"""The port through which every byte of a table is read, listed and created.

A store is rooted at a table. Paths are relative to that root, decoded (never percent-encoded) and
separated by `/`; an absolute URI (`s3://…`, `file:/…`) is accepted wherever a file is read, because
shallow clones name the files of other tables.

Spec: File Types; Delta Log Entries (mutual exclusion of writers).
"""

from __future__ import annotations

import errno
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeGuard, runtime_checkable

import msgspec

from dagster_delta.errors import StorageFailure
from dagster_delta.storage.file_objects import PendingFile
from dagster_delta.storage.locations import check_relative_path, scheme_of

if TYPE_CHECKING:
    import pyarrow as pa


class ObjectMeta(msgspec.Struct, frozen=True):
    """One stored object."""

    path: str
    """Relative to the root of the store."""
    size_bytes: int
    """Length of the object."""
    modified_ms: int
    """Last modification in milliseconds since the epoch."""


class StoreLocation(msgspec.Struct, frozen=True):
    """What is needed to open the same store elsewhere, for example on a Spark executor.
    Picklable.
    """

    uri: str
    """URI of the table's root."""
    options: Mapping[str, object]
    """Storage options as the user gave them; they may hold secrets and are never shown."""

    def __repr__(self) -> str:
        return f"StoreLocation(uri={self.uri!r}, options=<{len(self.options)} hidden>)"


@runtime_checkable
class TableResolver(Protocol):
    """A catalog in which tables have names."""

    def resolve(self, name: str) -> StoreLocation:
        """Where the table is, and the options to open it with.

        Args:
            name: of the table, as the catalog spells it, for example `main.shop.orders`.

        Raises:
            TableNotFound: the catalog has no such table.
            StorageFailure: the catalog refused or failed.
        """


@runtime_checkable
class CreatingResolver(TableResolver, Protocol):
    """Optional part of a resolver: prepares the location of a new table."""

    def new_table(self, name: str, location: str | None = None) -> StoreLocation:
        """Where a new table of the name is to be created. The first commit there, for example by
        `DeltaTable.create` or an append, registers it.

        Args:
            name: of the new table.
            location: URI of an external table; None for a table that the catalog manages.

        Raises:
            TableAlreadyExists: the catalog has a table of the name.
            StorageFailure: the catalog refused or failed.
        """


class ObjectStore(Protocol):
    """Reads, lists and creates the objects of one table."""

    @property
    def location(self) -> StoreLocation:
        """How to open this store again."""

    @property
    def supports_put_if_absent(self) -> bool:
        """Whether `put_if_absent` is atomic in this store. Without it a table is read-only."""

    def read(self, path: str) -> bytes:
        """The whole object.

        Raises:
            FileNotFoundError: the object does not exist.
            StorageFailure: the store refused or failed.
        """

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`. Raises as `read` does."""

    def head(self, path: str) -> ObjectMeta | None:
        """Size and time of the object, or None if it is absent."""

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        """The objects directly in `directory` whose name is `>= start`, in name order.

        Sub-directories are left out; a missing directory lists as empty. Object stores take one
        request per thousand names, starting at `start`, so the cost depends only on the names from
        there on.
        """

    def list_recursive(self, directory: str = "") -> Iterator[ObjectMeta]:
        """Every object under `directory`, at any depth, in any order."""

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create the whole object, or leave an existing one unchanged.

        Raises:
            FileExistsError: the object exists.
            ConditionalPutUnsupported: the store cannot guarantee this.
            StorageFailure: the store gave another answer; the object may exist.
        """

    def put(self, path: str, data: bytes) -> None:
        """Create or replace the object whole; no reader sees a part of it."""

    def delete(self, paths: Iterable[str]) -> None:
        """Remove the objects; a missing object is not an error."""

    def open_input(self, path: str) -> pa.NativeFile:
        """The object as a random-access `pyarrow.NativeFile`. Raises as `read` does.

        Reading from it may raise OSError as well: see `parquet_format.reader.storage_failure`.
        """

    def open_output(self, path: str) -> PendingFile:
        """A file to write a new object, which appears when the file is closed.

        Its `write` and `close` raise StorageFailure if the store refused or failed. Parent
        directories are created.
        """

    def local_path(self, path: str) -> str | None:
        """The path on the local file system, or None if the object is not on one."""

    def resolve_uri(self, path: str) -> str:
        """The full, unencoded URI of a path of this store; an absolute URI is returned as is."""


class RootedStore:
    """What the stores of this package have in common."""

    def __init__(
        self, root: str, options: Mapping[str, object] | None, schemes: Collection[str]
    ) -> None:
        self._root = root
        self._schemes = schemes
        self._location = StoreLocation(uri=root, options=dict(options or {}))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._root!r})"

    @property
    def location(self) -> StoreLocation:
        """The URI or path of the root, and the options."""
        return self._location

    @property
    def supports_put_if_absent(self) -> bool:
        """True; a file system without it raises at the first commit."""
        return True

    def local_path(self, path: str) -> str | None:  # noqa: ARG002
        """None: the objects are not on a local file system."""
        return None

    def resolve_uri(self, path: str) -> str:
        """The URI in the scheme of the root, not percent-encoded; an absolute URI is returned
        unchanged.
        """
        return path if scheme_of(path) is not None else self._uri_of(path)

    def _uri_of(self, path: str) -> str:
        return f"{self._root}/{check_relative_path(path)}".rstrip("/")

    def _is_uri(self, path: str) -> bool:
        """Whether a path is an absolute URI; one of another kind of storage is a StorageFailure."""
        scheme = scheme_of(path)
        if scheme is not None and scheme not in self._schemes:
            raise StorageFailure(
                f"The file lies in another kind of storage ({scheme}:) than its table, and a store "
                "opens only its own; open the table where all of its files share one scheme",
                table=self._root,
                file=path,
            )
        return scheme is not None

    def _make_missing_error(self, path: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, f"No such object in {self._root}", path)

    def _make_taken_error(self, path: str) -> FileExistsError:
        return FileExistsError(errno.EEXIST, "An object is already there", path)


class FileStore(RootedStore, ABC):
    """A store that writes an object of any size as a file, which gets its name at the end."""

    @abstractmethod
    def _begin(self, path: str, *, overwrite: bool) -> PendingFile:
        """A file to write. If it may not overwrite, closing it raises FileExistsError where the
        object exists.
        """

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create the whole object, or leave an existing one unchanged.

        Raises:
            FileExistsError: the object exists. On HDFS it may be the one that this call created: a
                rename whose reply was lost is repeated.
            ConditionalPutUnsupported: the storage has no operation that guarantees this.
            StorageFailure: the storage refused or failed; on HDFS the object may exist.
        """
        with self._begin(path, overwrite=False) as file:
            file.write(data)

    def put(self, path: str, data: bytes) -> None:
        """Create or replace the object in one step."""
        with self._begin(path, overwrite=True) as file:
            file.write(data)

    def open_output(self, path: str) -> PendingFile:
        """A file to write. The object appears when it is closed. Its `write` and `close` raise
        StorageFailure.
        """
        return self._begin(path, overwrite=True)


@runtime_checkable
class DatedDirectoryStore(Protocol):
    """Optional part of a store: knows what changed a directory last."""

    def is_last_change(self, directory: str, paths: Iterable[str], *, long_after: str) -> bool:
        """Whether the names in a directory changed last when one of some files in it got its own,
        at least a second after the file `long_after` did. False if their times do not show it.
        """


@runtime_checkable
class CopyingStore(Protocol):
    """Optional part of a store: copies objects without passing their bytes through here."""

    def copy_object(self, source: ObjectStore, path: str, target: str) -> bool:
        """Create an object as a copy of one in another store, if the storage can do it.

        Args:
            source: store of the object.
            path: of the object in `source`.
            target: path of the new object in this store.

        Returns:
            False if the storage cannot or refuses to copy; nothing was created.

        Raises:
            FileNotFoundError: there is no such object.
        """


MaintenanceWork = Literal["DATA_REORGANIZATION", "DATA_CLEANUP", "METADATA_CLEANUP"]
"""Maintenance that a catalog may leave to itself: OPTIMIZE and REORG, VACUUM, and the clean-up of
the log."""


@runtime_checkable
class CatalogLogStore(Protocol):
    """Optional part of a store: the log is one whose commits a catalog takes."""

    def new_table_properties(self) -> Mapping[str, str]:
        """What a commit that creates or replaces the table has to set: properties, and features as
        `delta.feature.<name>`.
        """

    def demanded_properties(self) -> Mapping[str, str]:
        """What every commit has to keep, with the values that the table has."""

    @property
    def demanded_features(self) -> Collection[str]:
        """Features that may not be dropped."""

    def allows(self, work: MaintenanceWork) -> bool:
        """Whether the catalog permits clients to do the work."""


def is_in_catalog(store: ObjectStore) -> TypeGuard[CatalogLogStore]:
    """Whether commits of the table go through a catalog."""
    return isinstance(store, CatalogLogStore)


class FetchBudget:
    """How many bytes are in memory that were fetched ahead of reading them. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> bool:
        """Whether so many bytes may be fetched now; one fetch may exceed the limit. It never waits:
        those who hold bytes may wait for whoever asks.
        """
        with self._lock:
            if self._taken and self._taken + size_bytes > self.max_bytes:
                return False
            self._taken += size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        """Bytes that were taken are in use no more."""
        with self._lock:
            self._taken -= size_bytes


@runtime_checkable
class RangeStore(Protocol):
    """Optional part of a store: fetches ranges of an object together."""

    def open_input(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        """As of `ObjectStore`, with the size of the object as far as it is known. It may be wrong,
        which costs a request.
        """

    def open_ranges(
        self,
        path: str,
        ranges: Sequence[tuple[int, int]],
        size_bytes: int,
        budget: FetchBudget | None = None,
    ) -> pa.NativeFile:
        """The object as a `pyarrow.NativeFile` whose given ranges are fetched ahead of the reads,
        over several connections. Other reads are requests.

        Args:
            path: as for `read`.
            ranges: offset and length in bytes, at least one. Each is read once, from its start
                on, and all at the same pace.
            size_bytes: of the object.
            budget: how much is fetched ahead; all if None.

        Raises:
            As `read` does.
        """
