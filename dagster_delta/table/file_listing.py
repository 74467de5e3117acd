"""The files below a table's root that VACUUM may look at, and what is to be known of some of them.

A local file system gives names for little and sizes and times for much more, so there only those of
the files that nothing refers to are looked up.
"""

from __future__ import annotations

# ruff: noqa: PTH116
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.errors import StorageFailure
from dagster_delta.protocol.arrow_columns import integer_column, string_column
from dagster_delta.protocol.arrow_values import integer_scalar
from dagster_delta.storage.object_store import ObjectStore

__all__ = ["LISTED_FILE_SCHEMA", "ListedFiles"]

LISTED_FILE_SCHEMA = pa.schema(
    [("path", pa.string()), ("size_bytes", pa.int64()), ("modified_ms", pa.int64())]
)
"""Columns of a table of listed files; paths are decoded and relative to the root."""


class ListedFiles:
    """What a store holds.

    Args:
        store: store of the table.
        is_ours: tells of a path, relative to the root, whether it may be looked at; of none in a
            directory of which it says no, where `may_enter` does so as well.
        may_enter: tells of a directory whether anything in it may be looked at.

    Raises:
        StorageFailure: the store refused or failed.
    """

    def __init__(
        self,
        store: ObjectStore,
        is_ours: Callable[[str], bool],
        may_enter: Callable[[str], bool],
    ) -> None:
        self._root = store.local_path("")
        sizes: list[int] = []
        times: list[int] = []
        paths: list[str] = []
        if self._root is not None:
            paths.extend(filter(is_ours, _local_paths(self._root, may_enter)))
        else:
            for each in store.list_recursive():
                if is_ours(each.path):
                    paths.append(each.path)
                    sizes.append(each.size_bytes)
                    times.append(each.modified_ms)
        self.paths = string_column(paths)
        """`pyarrow.StringArray`, relative to the root."""
        self._known = None
        if self._root is None:
            columns = [self.paths, integer_column(sizes), integer_column(times)]
            self._known = pa.Table.from_arrays(columns, schema=LISTED_FILE_SCHEMA)

    def describe(self, wanted: Any, *, before_ms: int) -> Any:
        """Those of the files that are old enough, as a `pyarrow.Table` of LISTED_FILE_SCHEMA.

        Args:
            wanted: `pyarrow.BooleanArray` over `paths`.
            before_ms: files that were modified at this time or later, in milliseconds since the
                epoch, are left out: a writer may be about to commit them.

        Raises:
            StorageFailure: the file system refused or failed.
        """
        if self._known is not None:
            found = self._known.filter(wanted)
        else:
            found = self._looked_up(self.paths.filter(wanted).to_pylist())
        return found.filter(pc.less(found["modified_ms"], integer_scalar(before_ms)))

    def _looked_up(self, paths: list[str]) -> Any:
        names: list[str] = []
        sizes: list[int] = []
        times: list[int] = []
        for path in paths:
            try:
                status = os.stat(f"{self._root}/{path}")
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _failure(error, self._root, path) from error
            # A link to a directory is no file.
            if not stat.S_ISDIR(status.st_mode):
                names.append(path)
                sizes.append(status.st_size)
                times.append(status.st_mtime_ns // 1_000_000)
        columns = [string_column(names), integer_column(sizes), integer_column(times)]
        return pa.Table.from_arrays(columns, schema=LISTED_FILE_SCHEMA)


def _local_paths(root: str, may_enter: Callable[[str], bool]) -> Iterator[str]:
    """Paths of files and links. Links to directories are not followed."""
    pending = [""]
    while pending:
        current = pending.pop()
        try:
            with os.scandir(f"{root}/{current}") as found:
                for entry in found:
                    path = f"{current}{entry.name}"
                    if not entry.is_dir(follow_symlinks=False):
                        yield path
                    elif may_enter(path):
                        pending.append(f"{path}/")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise _failure(error, root, current) from error


def _failure(error: OSError, root: str | None, path: str) -> StorageFailure:
    return StorageFailure(
        f"The file system failed: {error.strerror or error}; check permissions and the mount",
        table=root,
        file=path,
    )
