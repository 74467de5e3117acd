"""Tables on a local (or locally mounted) file system.

What a crash may leave behind: every object is written under a temporary name in its own directory
and then renamed, so a process that dies at any point leaves no visible partial object. At worst it
leaves a hidden `.<token>.tmp`, which Delta readers ignore and VACUUM, or log clean-up, removes.

When the *machine* dies, the result depends on the order in which the file system wrote names and
contents. The storage option `fsync=true` waits for the disk before a name appears and again after
it (data files and new directories included); without it the last writes before a power failure may
be lost or truncated, as with deltalake and with the local log store of Delta Lake. A truncated
commit does not match the checksum that it carries, so it is refused. The wait is off by default
because it takes most of the time of a small commit: creating a file took 44 µs without it and 300
to 1,600 µs with it on an idle ext4, and an append of one row 2 ms and 24 to 34 ms on a busy one.

Spec: Delta Log Entries (writers must never overwrite an entry).
"""

from __future__ import annotations

# ruff: noqa: PTH108, PTH116, PTH208
# os rather than pathlib: these calls are most of a small commit, and Path objects slow them down.
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

import pyarrow as pa

from dagster_delta.errors import ConditionalPutUnsupported, InvalidArgument, StorageFailure
from dagster_delta.memory_limits import check_log_file_size
from dagster_delta.storage.file_publication import (
    LocalFile,
    NoExclusiveMove,
    TargetExists,
    move_if_absent,
)
from dagster_delta.storage.locations import (
    check_relative_path,
    join_path,
    local_root,
    strip_file_scheme,
)
from dagster_delta.storage.object_store import FileStore, ObjectMeta

# Opening a FIFO would wait for a process that writes to it.
_READ_ONLY = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)

# Kernels stamp files with the time of their last tick, 1 to 10 milliseconds ago.
_TICK_NS = 10_000_000
# A thousand small files are copied in less.
_LONG_NS = 1_000_000_000


class LocalStore(FileStore):
    """An `ObjectStore` over a directory.

    Args:
        location: a path (`~` is expanded) or a `file:` URI (percent-decoded) of the table's root,
            which may not exist yet.
        options: `fsync`: "true" to survive a power failure, see the module; others are ignored.

    Raises:
        InvalidArgument: the URI names another host, or `fsync` is neither true nor false.
    """

    def __init__(
        self, location: str | os.PathLike[str], options: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(local_root(os.fspath(location)), options, {"file"})
        self._fsync = _parse_fsync((options or {}).get("fsync", False))

    def read(self, path: str) -> bytes:
        """The whole file. Raises FileNotFoundError or StorageFailure."""
        with self._open_file(path) as (descriptor, size_bytes):
            check_log_file_size(path, size_bytes)
            return _read_up_to(descriptor, size_bytes)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer at the end. Raises as `read` does."""
        with self._open_file(path) as (descriptor, _):
            os.lseek(descriptor, offset, os.SEEK_SET)
            return _read_up_to(descriptor, length)

    def head(self, path: str) -> ObjectMeta | None:
        """Size and time of the file, or None if it does not exist."""
        return self._stat_object(path, self._resolve_path(path))

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        """The files directly in `directory` named `>= start`, in name order.

        All names are read first, then the size and time of each file as it is yielded; a file that
        was deleted in between is skipped.
        """
        # listdir is used because it takes half the time of scandir on a long log, and few names are
        # yielded.
        inside = self._path_inside(directory)
        try:
            names = sorted(name for name in os.listdir(inside) if name >= start)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._describe_failure(error, directory) from error
        for name in names:
            meta = self._stat_object(join_path(directory, name), f"{inside}/{name}")
            if meta is not None:
                yield meta

    def is_last_change(self, directory: str, paths: Iterable[str], *, long_after: str) -> bool:
        """Whether the names in a directory changed last when one of some files in it got its own,
        at least a second after the file `long_after` did.

        A file system notes both times in the same call, up to a tick of its clock. False where it
        does not, as on Windows, and for a copied directory, whose files all came at once.
        """
        if sys.platform == "win32":
            return False
        try:
            changed_ns = os.stat(self._path_inside(directory)).st_mtime_ns
            older_ns = os.stat(self._path_inside(long_after)).st_ctime_ns
        except OSError:
            return False
        return changed_ns - older_ns >= _LONG_NS and any(
            abs(changed_ns - named_ns) <= _TICK_NS
            for path in paths
            for named_ns in self._naming_times(path)
        )

    def _naming_times(self, path: str) -> Iterator[int]:
        directory, _, name = self._path_inside(path).rpartition("/")
        # Hadoop writes a checksum beside each file, after it.
        for target in (f"{directory}/{name}", f"{directory}/.{name}.crc"):
            with suppress(OSError):
                yield os.stat(target).st_ctime_ns

    def list_recursive(self, directory: str = "") -> Iterator[ObjectMeta]:
        """Every file under `directory`. Links to directories are not followed."""

        def refuse(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise self._describe_failure(error, directory) from error

        top = self._path_inside(directory)
        for current, _, names in os.walk(top, onerror=refuse):
            inside = join_path(directory, current[len(top) :].lstrip("/"))
            for name in names:
                meta = self._stat_object(join_path(inside, name), f"{current}/{name}")
                if meta is not None:
                    yield meta

    def delete(self, paths: Iterable[str]) -> None:
        """Remove the files; a missing file is not an error.

        A directory in the path that is a link to outside the table is a StorageFailure.
        """
        inside: dict[str, bool] = {}
        for path in paths:
            directory = path.rpartition("/")[0]
            if directory not in inside:
                inside[directory] = self._is_inside(directory)
            if not inside[directory]:
                raise self._describe_failure(OSError("a link leads out of the table"), path)
            with suppress(FileNotFoundError), self._name_read_failures(path):
                os.unlink(self._path_inside(path))

    def open_input(self, path: str) -> pa.OSFile:
        """The file as a `pyarrow.OSFile`.

        It is not memory-mapped: mapping reads Parquet no faster, and if a mapped file is truncated
        (a network mount, a full disk), the process is killed instead of raising an error.
        """
        target = self._resolve_path(path)
        with self._name_read_failures(path):
            self._check_regular(os.stat(target), path)
            return pa.OSFile(target, "rb")

    def local_path(self, path: str) -> str:
        """The path on this file system."""
        return self._resolve_path(path)

    def _uri_of(self, path: str) -> str:
        return f"file://{self._resolve_path(path)}"

    def _path_inside(self, path: str) -> str:
        check_relative_path(path)
        return f"{self._root}/{path}" if path else self._root

    def _is_inside(self, directory: str) -> bool:
        """Whether a directory, with all links followed, is below the root."""
        if not directory:
            return True
        root = os.path.realpath(self._root)
        return os.path.commonpath([root, os.path.realpath(self._path_inside(directory))]) == root

    def _resolve_path(self, path: str) -> str:
        if "\0" in path:
            raise InvalidArgument(
                "A path must not hold a NUL character", table=self._root, file=repr(path)
            )
        if self._is_uri(path):
            return strip_file_scheme(path)
        # Some writers name a file outside the table by a path with a leading slash.
        return path if path.startswith("/") else self._path_inside(path)

    def _stat_object(self, path: str, target: str) -> ObjectMeta | None:
        with self._name_read_failures(path):
            try:
                status = os.stat(target)
            except (FileNotFoundError, NotADirectoryError):
                return None
        if stat.S_ISDIR(status.st_mode):
            return None
        return ObjectMeta(path, status.st_size, status.st_mtime_ns // 1_000_000)

    @contextmanager
    def _name_read_failures(self, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise self._make_missing_error(path) from error
        except OSError as error:
            raise self._describe_failure(error, path) from error

    @contextmanager
    def _open_file(self, path: str) -> Iterator[tuple[int, int]]:
        """Descriptor and size of a file."""
        with self._name_read_failures(path):
            descriptor = os.open(self._resolve_path(path), _READ_ONLY)
            try:
                status = os.fstat(descriptor)
                self._check_regular(status, path)
                yield descriptor, status.st_size
            finally:
                os.close(descriptor)

    def _begin(self, path: str, *, overwrite: bool) -> LocalFile:
        move = os.replace if overwrite else move_if_absent
        naming = partial(self._name_write_failures, path)
        return LocalFile(self._path_inside(path), move, naming, fsync=self._fsync)

    @contextmanager
    def _name_write_failures(self, path: str) -> Iterator[None]:
        try:
            yield
        except TargetExists:
            raise self._make_taken_error(path) from None
        except NoExclusiveMove:
            raise ConditionalPutUnsupported(
                "This file system can neither link nor rename a file exclusively, so two writers "
                "could overwrite each other's commits; put the table on another one to write it",
                table=self._root,
                file=path,
            ) from None
        except OSError as error:
            raise self._describe_failure(error, path) from error

    def _check_regular(self, status: os.stat_result, path: str) -> None:
        """Refuse everything except regular files: reading a device or a pipe may never start or
        never end.
        """
        if stat.S_ISREG(status.st_mode):
            return
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError
        raise StorageFailure(
            "This is not a regular file but a device, a named pipe or a socket, and is not read; "
            "put the file back from a copy, or restore the table to an older version",
            table=self._root,
            file=path,
        )

    def _describe_failure(self, error: OSError, path: str) -> StorageFailure:
        return StorageFailure.of_system(
            error, "The file system failed", table=self._root, file=path
        )


def _parse_fsync(value: object) -> bool:
    match str(value).strip().lower():
        case "true" | "1":
            return True
        case "false" | "0" | "":
            return False
    raise InvalidArgument(f"The storage option 'fsync' is true or false, not {value!r}")


def _read_up_to(descriptor: int, length: int) -> bytes:
    # One read() may return fewer bytes than requested: it stops at 2 GiB, and at signals on some
    # mounts.
    parts = []
    while length and (data := os.read(descriptor, length)):
        parts.append(data)
        length -= len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)
