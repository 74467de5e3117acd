"""Which files under a table's root are unreferenced: decided from listing and log.

When in doubt a file is kept: an unreferenced file costs money, a missing file breaks the table.

Spec: Action Reconciliation (tombstones); Add File and Remove File (path); Deletion Vectors.
"""

from __future__ import annotations

import posixpath
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.features.deletion_vectors import deletion_vector_path
from dagster_delta.protocol.values.arrow_values import every
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.file_publication import is_temporary_file
from dagster_delta.storage.locations import scheme_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHANGE_DATA = "_change_data"
_UNUSUAL_PATH = "[%:]|^/|[./]/"
"""Matches every path in the log that may reach a file under another spelling."""


def is_entered(
    partition_columns: Sequence[str], *, others: Sequence[str] = ()
) -> Callable[[str], bool]:
    """A test of whether a directory, relative to the root, may hold files to delete."""
    is_ours = is_vacuumed(partition_columns, others=others)
    # Only the directories of a file matter here, not its own name.
    return lambda directory: is_ours(f"{directory}/x")


def is_vacuumed(
    partition_columns: Sequence[str], *, others: Sequence[str] = ()
) -> Callable[[str], bool]:
    """A test of whether VACUUM may delete a path, relative to the root.

    Names that begin with `_` or `.`, at any depth, belong to others: the log, indexes, temporary
    files of engines. Exceptions are change data, directories of partition columns with such a name,
    and temporary files that a crash of this library left behind. `others` are directories of the
    root that belong to another format over the same data files; partition columns have their
    physical names.
    """
    foreign = tuple(f"{other}/" for other in others)
    prefixes = tuple(f"{name}=" for name in partition_columns if name[:1] in ("_", "."))

    def is_ours(path: str) -> bool:
        if path.startswith(foreign):
            return False
        # Nearly every path has no such name in it, and is then not split.
        if path[0] not in "_." and "/_" not in path and "/." not in path:
            return True
        *directories, name = path.split("/")
        for depth, directory in enumerate(directories):
            known = directory.startswith(prefixes) or (depth == 0 and directory == _CHANGE_DATA)
            if directory[:1] in ("_", ".") and not known:
                return False
        return name[:1] not in ("_", ".") or is_temporary_file(name)

    return is_ours


class ReferencedFiles:
    """The files that a table still needs, under every spelling that may reach them.

    A relative path protects the file of that path. An absolute one (`/p`, `file:/p`, `s3://b/k`)
    may lead into the table through a link, a mount or another name of the bucket, and one with `..`
    (`../t/p`) through the parent directory, so they protect every file of their name.

    It takes eight bytes per file: only the 64-bit hash of a path is kept, and a file with the hash
    of another one is kept, too.
    """

    def __init__(self) -> None:
        self._paths = _HashedTexts()
        self._names = _HashedTexts()

    def add(self, files: pa.Table) -> None:
        """Add the data files and deletion vectors of live files or tombstones."""
        paths = files["path"]
        unusual = pc.match_substring_regex(paths, _UNUSUAL_PATH)
        self._paths.add_all(paths.filter(pc.invert(unusual)).to_pylist())
        self.add_paths(paths.filter(unusual).to_pylist())
        self.add_decoded(deletion_vector_paths(files["deletion_vector"]))

    def add_decoded(self, paths: Iterable[str]) -> None:
        """Add files by their decoded paths."""
        for path in paths:
            self._take_decoded(path)

    def mask(self, paths: pa.Array) -> pa.BooleanArray:
        """For each listed path, whether the table needs it.

        Paths are decoded and relative to the root.
        """
        found = self._paths.mask(paths)
        if self._names.is_empty:
            return found
        return pc.or_(found, self._names.mask(pc.replace_substring_regex(paths, "^.*/", "")))

    def add_paths(self, spelled: Iterable[str]) -> None:
        """Add files by their paths as in the log."""
        for path in spelled:
            if "%" in path:
                # Decoded as the protocol says, and undecoded, for writers that do not encode.
                self._take_decoded(path)
                self._take_decoded(decode_path(path))
            else:
                self._take_decoded(path)

    def _take_decoded(self, path: str) -> None:
        if path.startswith("/") or scheme_of(path) is not None:
            self._names.add(path.rpartition("/")[2])
            return
        self._paths.add(path)
        if "./" in path or "//" in path:
            normal = posixpath.normpath(path)
            self._paths.add(normal)
            if normal.startswith("../"):
                self._names.add(normal.rpartition("/")[2])


class _HashedTexts:
    """A set of texts with false positives: it may report a text that is not in it."""

    def __init__(self) -> None:
        self._hashes = array("q")
        self._sorted: NDArray[np.int64] | None = None

    @property
    def is_empty(self) -> bool:
        return not self._hashes

    def add(self, text: str) -> None:
        self.add_all([text])

    def add_all(self, texts: Iterable[str]) -> None:
        self._hashes.extend(map(hash, texts))
        self._sorted = None

    def mask(self, texts: pa.Array) -> pa.BooleanArray:
        """For each text of a `pa.StringArray` whether it is in the set: a `pa.BooleanArray`."""
        if self.is_empty:
            return every(False, len(texts))
        if self._sorted is None:
            self._sorted = np.sort(np.frombuffer(self._hashes, np.int64))
        hashes = np.fromiter(map(hash, texts.to_pylist()), np.int64, len(texts))
        places = np.searchsorted(self._sorted, hashes)
        places[places == len(self._sorted)] = 0
        bits = np.packbits(self._sorted[places] == hashes, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(texts), [None, pa.py_buffer(bits)])


def deletion_vector_paths(vectors: pa.ChunkedArray) -> Iterator[str]:
    """Paths of the files that hold some deletion vectors, each once."""
    if vectors.null_count == len(vectors):
        return
    seen: set[tuple[str, str]] = set()
    for fields in vectors.drop_null().to_pylist():
        key = fields["storage_type"], fields["path_or_inline_dv"]
        if key[0] != "i" and key not in seen:
            seen.add(key)
            yield deletion_vector_path(DeletionVectorDescriptor(**fields))
