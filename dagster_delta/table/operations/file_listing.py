"""The files below a table's root that VACUUM may delete, and the facts it needs about them.

On a local file system names are cheap and sizes and times are expensive, so there they are read
only for files that nothing refers to. There, VACUUM also removes the directories that it empties,
unless a writer may be using them; object stores have none.
"""

from __future__ import annotations

# ruff: noqa: PTH106, PTH112, PTH116
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.errors import StorageFailure
from dagster_delta.protocol.log.paths import LOG_DIRECTORY
from dagster_delta.protocol.values.arrow_columns import whole_array
from dagster_delta.protocol.values.arrow_values import integer_scalar
from dagster_delta.storage.object_store import ObjectMeta, ObjectStore
from dagster_delta.table.log.columns import LISTED_FILE_SCHEMA, listed_files

_FILES_AT_ONCE = 65_536
_LOG_BELOW = f"/{LOG_DIRECTORY}/"


class ListedFiles:
    """The unneeded files of a store; the others are only counted.

    `is_ours` says whether a path may be listed; it is not called for paths in a directory that it
    and `may_enter` refuse. `is_needed` gives, for a `pa.StringArray` of paths, which of them are
    needed. Paths are relative to the root. The files of a table below the root belong to that one,
    and are left out.
    """

    def __init__(
        self,
        store: ObjectStore,
        is_ours: Callable[[str], bool],
        may_enter: Callable[[str], bool],
        is_needed: Callable[[pa.Array], pa.BooleanArray],
    ) -> None:
        self._root = store.local_path("")
        self.num_listed = 0
        """Number of the files that may be listed."""
        self._tables_below: set[str] = set()
        self._found = [pa.Table.from_batches([], LISTED_FILE_SCHEMA)]
        if self._root is not None:
            # Sizes and times are read later, only for the files that remain.
            paths = _local_paths(self._root, may_enter)
            listed: Iterator[ObjectMeta] = (ObjectMeta(path, 0, 0) for path in paths)
        else:
            listed = self._noting_tables_below(store.list_recursive())
        ours = (file for file in listed if is_ours(file.path))
        while some := list(islice(ours, _FILES_AT_ONCE)):
            self.num_listed += len(some)
            files = listed_files(some)
            self._found.append(files.filter(pc.invert(is_needed(whole_array(files["path"])))))

    def _noting_tables_below(self, listed: Iterable[ObjectMeta]) -> Iterator[ObjectMeta]:
        for file in listed:
            if _LOG_BELOW in file.path:
                self._tables_below.add(f"{file.path.partition(_LOG_BELOW)[0]}/")
            yield file

    def describe(
        self, is_needed: Callable[[pa.Array], pa.BooleanArray] | None, *, before_ms: int
    ) -> pa.Table:
        """The unneeded files that are old enough: a `pyarrow.Table` of LISTED_FILE_SCHEMA.

        `is_needed` is a second check. Files modified at `before_ms`, in milliseconds since the
        epoch, or later are left out: a writer may be about to commit them.
        """
        found = pa.concat_tables(self._found)
        if is_needed is not None:
            found = found.filter(pc.invert(is_needed(found["path"])))
        if self._root is not None:
            found = listed_files(self._looked_up(self._root, found["path"].to_pylist()))
        for directory in self._tables_below:
            found = found.filter(pc.invert(pc.starts_with(found["path"], pattern=directory)))
        return found.filter(pc.less(found["modified_ms"], integer_scalar(before_ms)))

    def _looked_up(self, root: str, paths: Iterable[str]) -> Iterator[ObjectMeta]:
        for path in paths:
            try:
                status = os.stat(f"{root}/{path}")
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _failure(error, root, path) from error
            # A link to a directory is not a file.
            if not stat.S_ISDIR(status.st_mode):
                yield ObjectMeta(path, status.st_size, status.st_mtime_ns // 1_000_000)


def _local_paths(root: str, may_enter: Callable[[str], bool]) -> Iterator[str]:
    """Paths of files and links. Links to directories are not followed, and other tables not
    entered.
    """
    pending = [""]
    while pending:
        current = pending.pop()
        try:
            with os.scandir(f"{root}/{current}") as found:
                for entry in found:
                    path = f"{current}{entry.name}"
                    if not entry.is_dir(follow_symlinks=False):
                        yield path
                    elif may_enter(path) and not os.path.isdir(f"{root}/{path}/{LOG_DIRECTORY}"):
                        pending.append(f"{path}/")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise _failure(error, root, current) from error


def _failure(error: OSError, root: str | None, path: str) -> StorageFailure:
    return StorageFailure.of_system(error, "The file system failed", table=root, file=path)


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
        for directory in sorted(around, key=lambda directory: -directory.count("/")):
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
