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
from contextlib import AbstractContextManager, suppress

# ruff: noqa: PTH103, PTH104, PTH108, PTH112, PTH120
# os rather than pathlib: these calls are most of a small commit, and Path objects slow them down.
from dagster_delta.storage.file_objects import PendingFile

# Errors of link() on file systems without hard links: FAT, some FUSE and network mounts.
_NO_HARD_LINKS = frozenset(
    {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV}
)
_NO_EXCLUSIVE_RENAME = _NO_HARD_LINKS | {errno.EINVAL}
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_DIRECTORY_ATTEMPTS = 10
_TEMPORARY_NAME = re.compile(r"\.[0-9a-f]{16}\.tmp")
_NONE = -1
"""No descriptor: the number of a closed one may be that of another file."""


class TargetExists(Exception):
    """The name is taken."""


class NoExclusiveMove(Exception):
    """The file system supports neither hard links nor an exclusive rename."""


class LocalFile(PendingFile):
    """A file on disk while it is written. Parent directories are created.

    `target` is an absolute path, and `move` is `os.replace` or `move_if_absent`, whose errors, and
    those of the system, are raised within `naming`. With `fsync`, it waits for the disk before and
    after the file gets its name. After an error, the target is unchanged, unless the last wait for
    the disk failed.
    """

    def __init__(
        self,
        target: str,
        move: Callable[[str, str], None],
        naming: Callable[[], AbstractContextManager[None]],
        *,
        fsync: bool,
    ) -> None:
        super().__init__(naming)
        self._target, self._move, self._fsync = target, move, fsync
        # In the same directory, because neither links nor renames cross file systems.
        self._temporary = f"{os.path.dirname(target)}/.{os.urandom(8).hex()}.tmp"
        with naming():
            self._descriptor = self._create_temporary()

    def _create_temporary(self) -> int:
        for _ in range(_DIRECTORY_ATTEMPTS):
            try:
                return os.open(self._temporary, _NEW_FILE, 0o666)
            except FileNotFoundError:
                # VACUUM removes empty directories, maybe a new one before the next call.
                with suppress(FileNotFoundError):
                    _make_directory(os.path.dirname(self._temporary), fsync=self._fsync)
        return os.open(self._temporary, _NEW_FILE, 0o666)

    def _write(self, data: memoryview) -> None:
        while len(data):
            data = data[os.write(self._descriptor, data) :]

    def _publish(self) -> None:
        if self._fsync:
            os.fsync(self._descriptor)
        self._close_descriptor()
        self._move(self._temporary, self._target)
        if self._fsync:
            _sync_directory(self._target)

    def _discard(self) -> None:
        with suppress(OSError):
            self._close_descriptor()
        _unlink_quietly(self._temporary)

    def _close_descriptor(self) -> None:
        descriptor, self._descriptor = self._descriptor, _NONE
        os.close(descriptor)


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


def is_temporary_file(name: str) -> bool:
    """Whether a name in a directory is that of a file in progress, or of one that a crash left."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


def _unlink_quietly(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        # The object is in its place, or an error is already being raised; VACUUM removes the rest.
        return


def _sync_directory(target: str) -> None:
    if sys.platform == "win32":  # directories cannot be opened on Windows
        return
    descriptor = os.open(os.path.dirname(target), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
