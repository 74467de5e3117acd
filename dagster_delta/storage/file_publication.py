"""How a file on disk gets its name: whole, in one step, and if asked only if the name is free.

A file is first written as `.<token>.tmp` in its final directory. Every Delta reader ignores such
names, and VACUUM removes those that a crash left behind, log clean-up those in the log.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress

# ruff: noqa: PTH103, PTH104, PTH105, PTH108, PTH112, PTH120
# os rather than pathlib: these calls are most of a small commit, and Path objects slow them down.
from typing import Self, TypeVar

import pyarrow as pa

from dagster_delta.errors import StorageFailure

# Errors of link() on file systems without hard links: FAT, some FUSE and network mounts.
_NO_HARD_LINKS = frozenset(
    {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV}
)
_NO_EXCLUSIVE_RENAME = _NO_HARD_LINKS | {errno.EINVAL}
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_DIRECTORY_ATTEMPTS = 10
_TEMPORARY_NAME = re.compile(r"\.[0-9a-f]{16}\.tmp")

_Created = TypeVar("_Created")


class TargetExists(Exception):
    """The name is taken."""


class NoExclusiveMove(Exception):
    """The file system supports neither hard links nor an exclusive rename."""


def publish_file(
    target: str, data: bytes, move: Callable[[str, str], None], *, fsync: bool
) -> None:
    """Write `data` to a temporary file and let `move` give it its name.

    Parent directories are created. If an error is raised, the target is unchanged, unless the last
    wait for the disk failed.

    Args:
        target: absolute path.
        data: the content.
        move: `os.replace` or `move_if_absent`.
        fsync: wait until content and name are on the disk.

    Raises:
        TargetExists, NoExclusiveMove: from `move_if_absent`.
        OSError: the file system refused or failed.
    """
    temporary = _temporary_beside(target)
    descriptor = _in_directory(temporary, lambda: os.open(temporary, _NEW_FILE, 0o666), fsync=fsync)
    try:
        _write_and_close(descriptor, data, fsync=fsync)
        move(temporary, target)
    except BaseException:
        _unlink_quietly(temporary)
        raise
    if fsync:
        _sync_directory(target)


def move_if_absent(source: str, target: str) -> None:
    """Rename the file at `source` to `target`, unless a file with that name exists.

    Raises:
        TargetExists: the name is taken; `source` still exists.
        NoExclusiveMove: the file system cannot do this.
        OSError: the file system refused or failed.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise TargetExists from None
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        _rename_exclusively(source, target)
        return
    _unlink_quietly(source)


class FileInProgress(pa.OSFile):  # type: ignore[misc]
    """A `pyarrow.NativeFile` to write. The file appears when it is closed."""

    _target: str | None = None
    _temporary: str
    _fsync: bool
    _failure: Callable[[OSError], StorageFailure]

    @classmethod
    def begin(
        cls, target: str, *, fsync: bool, failure: Callable[[OSError], StorageFailure]
    ) -> Self:
        """Open a stream into a temporary file beside `target`. Parent directories are created.

        With `fsync`, it waits for the disk before and after the file gets its name. `failure` makes
        the error that `write` and `close` raise for an error of the system.
        """
        temporary = _temporary_beside(target)
        stream = _in_directory(temporary, lambda: cls._open(target, temporary), fsync=fsync)
        stream._fsync, stream._failure = fsync, failure  # noqa: SLF001
        return stream

    @classmethod
    def _open(cls, target: str, temporary: str) -> Self:
        stream = cls(temporary, "wb")
        stream._target, stream._temporary = target, temporary
        return stream

    def write(self, data: bytes | pa.Buffer) -> int:
        """Append bytes. Raises StorageFailure."""
        try:
            return int(super().write(data))
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Finish the file and make it appear; closing again does nothing."""
        target, self._target = self._target, None
        try:
            super().close()
            if target is None:
                return
            if self._fsync:
                _sync(self._temporary)
            os.replace(self._temporary, target)
            if self._fsync:
                _sync_directory(target)
        except OSError as error:
            _unlink_quietly(self._temporary)
            raise self._failure(error) from error

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Close; after an error discard what was written, because a partial file is of no use."""
        if kind is None or self._target is None:
            self.close()
            return
        self._target = None
        # The error that is being raised matters more.
        with suppress(StorageFailure):
            self.close()
        _unlink_quietly(self._temporary)


def _in_directory(path: str, create: Callable[[], _Created], *, fsync: bool) -> _Created:
    """Call `create` on the path; if its directory is missing, create the directory first."""
    for _ in range(_DIRECTORY_ATTEMPTS):
        try:
            return create()
        except FileNotFoundError:
            # VACUUM removes empty directories, so it may remove a new one before the next call.
            with suppress(FileNotFoundError):
                _make_directory(os.path.dirname(path), fsync=fsync)
    return create()


def _make_directory(path: str, *, fsync: bool) -> None:
    """Create a directory and its parents; with `fsync`, wait until their names are on the disk.

    A file survives a power failure only if the names of its directories do.
    """
    missing = [path]
    while fsync and not os.path.isdir(above := os.path.dirname(missing[-1])):
        missing.append(above)
    os.makedirs(path, exist_ok=True)
    if fsync:
        for directory in reversed(missing):
            _sync_directory(directory)


def _temporary_beside(target: str) -> str:
    # In the same directory, because neither links nor renames cross file systems.
    return f"{os.path.dirname(target)}/.{os.urandom(8).hex()}.tmp"


def is_temporary_file(name: str) -> bool:
    """Whether a name in a directory is that of a file in progress, or of one that a crash left."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


def _write_and_close(descriptor: int, data: bytes, *, fsync: bool) -> None:
    try:
        written = os.write(descriptor, data)
        while written < len(data):
            written += os.write(descriptor, memoryview(data)[written:])
        if fsync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unlink_quietly(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        # The object is in its place, or an error is already being raised; VACUUM removes the rest.
        return


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(target: str) -> None:
    if sys.platform != "win32":  # directories cannot be opened on Windows
        _sync(os.path.dirname(target))


def _rename_exclusively(source: str, target: str) -> None:
    if sys.platform == "win32":
        _rename_on_windows(source, target)
        return
    rename = _exclusive_rename()
    if rename is None:
        raise NoExclusiveMove
    if rename(os.fsencode(source), os.fsencode(target)) == 0:
        return
    code = ctypes.get_errno()
    if code == errno.EEXIST:
        raise TargetExists
    if code in _NO_EXCLUSIVE_RENAME:
        raise NoExclusiveMove
    raise OSError(code, os.strerror(code), target)


def _rename_on_windows(source: str, target: str) -> None:
    try:
        os.rename(source, target)  # exclusive on Windows
    except FileExistsError:
        raise TargetExists from None


@functools.cache
def _exclusive_rename() -> Callable[[bytes, bytes], int] | None:
    """`rename` that fails if the target exists, or None if the platform has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    working_directory, linux_noreplace, darwin_excl = -100, 1, 4
    if hasattr(libc, "renameat2"):
        return lambda source, target: int(
            libc.renameat2(working_directory, source, working_directory, target, linux_noreplace)
        )
    if hasattr(libc, "renamex_np"):
        return lambda source, target: int(libc.renamex_np(source, target, darwin_excl))
    return None
