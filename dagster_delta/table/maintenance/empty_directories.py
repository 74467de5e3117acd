"""Removes directories that VACUUM empties on local file systems, unless a writer may be using them.

Object stores have no directories.
"""

from __future__ import annotations

# ruff: noqa: PTH106, PTH116
import os
from collections.abc import Iterable

from dagster_delta.storage.object_store import ObjectStore


class EmptiedDirectories:
    """The directories of files that VACUUM will delete, to be checked again afterwards.

    A directory that was modified at `before_ms`, in milliseconds since the epoch, or later is kept:
    a writer may be about to use it.
    """

    def __init__(self, store: ObjectStore, paths: Iterable[str], *, before_ms: int) -> None:
        root = store.local_path("")
        self._directories: list[str] = []
        if root is None:
            return
        around = {ancestor for path in paths for ancestor in _ancestors(path)}
        # Deepest first, because a parent is empty only after its children are removed.
        for directory in sorted(around, key=lambda each: -each.count("/")):
            location = f"{root}/{directory}"
            try:
                modified_ms = os.stat(location).st_mtime_ns // 1_000_000
            except OSError:
                continue
            if modified_ms < before_ms:
                self._directories.append(location)

    def remove(self) -> int:
        """Remove the directories that are empty now, and return their number.

        A writer that has just checked its directory creates it again: files are created in the
        directory itself, which is not empty from then on.
        """
        removed = 0
        for location in self._directories:
            try:
                os.rmdir(location)
            except OSError:
                # It is not empty, or already removed, or this process may not remove it.
                continue
            removed += 1
        return removed


def _ancestors(path: str) -> Iterable[str]:
    directory = path.rpartition("/")[0]
    while directory:
        yield directory
        directory = directory.rpartition("/")[0]
