"""Tables on any other storage that fsspec opens, read-only.

Writing is refused. A commit must never overwrite another, and fsspec has no operation that
guarantees this for every file system. The clouds and HDFS have stores of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from dagster_delta.errors import ConditionalPutUnsupported, InvalidArgument, StorageFailure
from dagster_delta.storage.file_objects import RangeInput
from dagster_delta.storage.locations import check_relative_path, join_path, scheme_of
from dagster_delta.storage.object_store import FileStore, ObjectMeta

if TYPE_CHECKING:
    from fsspec.spec import AbstractFileSystem

# The keys under which file systems report the time of the last modification.
_TIMES = ("mtime", "modified", "LastModified", "last_modified", "updated", "created")


class FsspecStore(FileStore):
    """A read-only `ObjectStore` over a file system of fsspec.

    Args:
        location: a URI of any protocol that fsspec knows, as fsspec spells it.
        options: passed unchanged to the file system.

    Raises:
        InvalidArgument: fsspec knows no such protocol, or the file system refuses the options.
        StorageFailure: the package that serves the protocol is not installed.
    """

    def __init__(self, location: str, options: Mapping[str, object] | None = None) -> None:
        self._scheme = scheme_of(location) or ""
        self._file_system = _open_file_system(self._scheme, location, options or {})
        protocols = self._file_system.protocol
        known = {protocols} if isinstance(protocols, str) else set(protocols)
        super().__init__(location.rstrip("/"), options, {self._scheme, *known})
        self._base = str(self._file_system._strip_protocol(location)).rstrip("/")  # noqa: SLF001

    @property
    def supports_put_if_absent(self) -> bool:
        """False: see the module."""
        return False

    def read(self, path: str) -> bytes:
        """The whole object. Raises FileNotFoundError or StorageFailure."""
        with self._name_failures(path):
            return bytes(self._file_system.cat_file(self._resolve_path(path)))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer at the end. Raises as `read` does."""
        with self._name_failures(path):
            return bytes(
                self._file_system.cat_file(
                    self._resolve_path(path), start=offset, end=offset + length
                )
            )

    def head(self, path: str) -> ObjectMeta | None:
        """Size and time of the object, or None if it is absent."""
        try:
            with self._name_failures(path):
                found = self._file_system.info(self._resolve_path(path))
        except FileNotFoundError:
            return None
        return None if found["type"] == "directory" else _object_meta(path, found)

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        """The objects directly in `directory` named `>= start`, in name order.

        The whole directory is listed: fsspec cannot start in the middle.
        """
        try:
            with self._name_failures(directory):
                found = self._file_system.ls(
                    self._path_inside(directory), detail=True, refresh=True
                )
        except (FileNotFoundError, NotADirectoryError):
            return
        files = {info["name"].rpartition("/")[2]: info for info in found if info["type"] == "file"}
        for name in sorted(name for name in files if name >= start):
            yield _object_meta(join_path(directory, name), files[name])

    def list_recursive(self, directory: str = "") -> Iterator[ObjectMeta]:
        """Every object under `directory`."""
        base = self._path_inside(directory)
        try:
            with self._name_failures(directory):
                found = self._file_system.find(base, detail=True)
        except FileNotFoundError:
            return
        for name, info in found.items():
            yield _object_meta(name[len(self._base) :].lstrip("/"), info)

    def delete(self, paths: Iterable[str]) -> None:
        """Refused. Raises ConditionalPutUnsupported."""
        for path in paths:
            self._refuse_write(path)

    def open_input(self, path: str) -> pa.NativeFile:
        """The object as a random-access `pyarrow.NativeFile`. Raises as `read` does."""
        with self._name_failures(path):
            found = self._resolve_path(path)
            info = self._file_system.info(found)
            if info["type"] == "directory":
                raise IsADirectoryError
            size_bytes = int(info["size"])
            opened = self._file_system.open(found, "rb")

        def fetch(start: int, length: int) -> bytes:
            with self._name_failures(path):
                opened.seek(start)
                return bytes(opened.read(length))

        return pa.PythonFile(RangeInput(size_bytes, (), fetch), mode="r")

    def _begin(self, path: str, *, overwrite: bool) -> NoReturn:  # noqa: ARG002
        self._refuse_write(path)

    def _path_inside(self, path: str) -> str:
        return join_path(self._base, check_relative_path(path)).rstrip("/")

    def _resolve_path(self, path: str) -> str:
        if not self._is_uri(path):
            return self._path_inside(path)
        return str(self._file_system._strip_protocol(path))  # noqa: SLF001

    @contextmanager
    def _name_failures(self, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise self._make_missing_error(path) from None
        except (StorageFailure, InvalidArgument):
            raise
        except Exception as error:  # noqa: BLE001
            # Each file system raises its own error classes. Only the name of the class is reported:
            # the text may hold a signed URL or a connection string.
            raise StorageFailure(
                f"The storage failed or refused: {type(error).__name__}; check the location and "
                "the credentials",
                table=self._root,
                file=path,
            ) from None

    def _refuse_write(self, path: str) -> NoReturn:
        raise ConditionalPutUnsupported(
            f"Tables on {self._scheme}:// are read-only: no operation there is known to create an "
            "object only if it is absent, so writers could overwrite each other's commits. Write "
            "on a local disk, on S3, on Google Cloud Storage, on Azure or on HDFS (hdfs://)",
            table=self._root,
            file=path,
        )


def _open_file_system(
    scheme: str, location: str, options: Mapping[str, object]
) -> AbstractFileSystem:
    import fsspec

    try:
        # A cached listing would hide the commits of other writers.
        return fsspec.filesystem(scheme, use_listings_cache=False, **options)
    except ImportError as error:
        raise StorageFailure(
            f"Tables on {scheme}:// need a package that is not installed: {error}", table=location
        ) from error
    except Exception as error:  # noqa: BLE001
        # Some ask for credentials at once, and each raises its own error classes. Only the name of
        # the class is reported: the text may hold a key.
        kind = InvalidArgument if isinstance(error, ValueError | TypeError) else StorageFailure
        known = {*fsspec.available_protocols(), *fsspec.registry}
        if kind is InvalidArgument and scheme not in known:
            raise InvalidArgument(
                f"there is no storage {scheme}://; tables are on local paths, s3://, gs://, az://, "
                "abfss://, hdfs://, or a protocol of fsspec",
                table=location,
            ) from None
        raise kind(
            f"fsspec cannot open the storage ({type(error).__name__}); check the scheme "
            f"{scheme}://, the names of the storage options and the credentials",
            table=location,
        ) from None


def _object_meta(path: str, info: Mapping[str, Any]) -> ObjectMeta:
    moment = next((info[name] for name in _TIMES if info.get(name) is not None), None)
    return ObjectMeta(path, int(info.get("size") or 0), _to_milliseconds(moment))


def _to_milliseconds(moment: object) -> int:
    """Milliseconds since the epoch; 0 if the storage reports no time."""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    if isinstance(moment, datetime):
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1000)
    return round(moment * 1000) if isinstance(moment, int | float) else 0
