"""Which files under a table's root are unreferenced: decided from listing and log.

When in doubt a file is kept: an unreferenced file costs money, a missing file breaks the table.

On a local file system names are cheap and sizes and times are expensive, so there they are read
only for files that nothing refers to. There, VACUUM also removes the directories that it empties,
unless a writer may be using them; object stores have none.

Unreferenced files are left by writers that were killed, by other engines and by people. VACUUM
deletes those with ordinary names, and VACUUM LITE none of them.

Spec: Action Reconciliation (tombstones); Add File and Remove File (path); Deletion Vectors; Add CDC
File.
"""

from __future__ import annotations

# ruff: noqa: PTH106, PTH112, PTH116
import os
import posixpath
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import StorageFailure
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.features.deletion_vectors import deletion_vector_path, vector_files
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_file import decode_commit
from dagster_delta.protocol.log.paths import LOG_DIRECTORY
from dagster_delta.protocol.values.arrow_columns import (
    boolean_column,
    whole_array,
)
from dagster_delta.protocol.values.arrow_values import every, integer_scalar
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.file_publication import is_temporary_file
from dagster_delta.storage.locations import scheme_of
from dagster_delta.storage.object_store import ObjectMeta, ObjectStore
from dagster_delta.table.log.columns import LISTED_FILE_SCHEMA, listed_files
from dagster_delta.table.log.reader import list_log, read_versions
from dagster_delta.table.read.snapshot import Snapshot

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dagster_delta.table.table_handle import TableHandle

_CHANGE_DATA = "_change_data"
_UNIVERSAL_FORMAT = "delta.universalFormat.enabledFormats"
_UNUSUAL_PATH = "[%:]|^/|[./]/"
"""Matches every path in the log that may reach a file under another spelling."""


def unreferenced_files(table: TableHandle, /) -> UnreferencedFiles:
    """The files under the root that no version in the log refers to.

    Nothing is deleted: `vacuum` deletes those with ordinary names once they are older than the
    retention, and leaves hidden ones, which may belong to other programs.

    Raises:
        TableNotFound, InvalidTable, StorageFailure.
    """
    snapshot = table._existing()
    found = list_unneeded_files(
        snapshot,
        NeededFiles(before_ms=0, retention_ms=2**62),
        lambda path: not path.startswith(f"{LOG_DIRECTORY}/"),
        modified_before_ms=2**62,
        named_like=_without_checksums,
    ).files.sort_by("path")
    is_ours = is_vacuumed(snapshot.configuration)
    vacuumed = boolean_column([is_ours(path) for path in found["path"].to_pylist()])
    return UnreferencedFiles(found.append_column("is_vacuumed", vacuumed))


class UnreferencedFiles(msgspec.Struct, frozen=True):
    """The files that no version in the log of a table refers to."""

    files: pa.Table
    """`pa.Table` with `path` (decoded, relative to the root), `size_bytes`, `modified_ms` and
    `is_vacuumed`: whether VACUUM deletes it once it is older than the retention. Files with hidden
    names are never deleted."""


def is_vacuumed(configuration: TableConfiguration) -> Callable[[str], bool]:
    """A test of whether VACUUM may delete a path, relative to the root.

    Names that begin with `_` or `.`, at any depth, belong to others: the log, indexes, temporary
    files of engines. Exceptions are change data, directories of partition columns with such a name,
    and temporary files that a crash of this library left behind. The Iceberg metadata of a table
    that has them are in a directory without an underscore.
    """
    has_iceberg = _UNIVERSAL_FORMAT in configuration.metadata.configuration
    names = configuration.physical_partition_columns
    prefixes = tuple(f"{name}=" for name in names if name[:1] in ("_", "."))

    def is_ours(path: str) -> bool:
        if has_iceberg and path.startswith("metadata/"):
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
            if path.startswith("/") or scheme_of(path) is not None:
                self._names.add(path.rpartition("/")[2])
                continue
            self._paths.add(path)
            if "./" in path or "//" in path:
                normal = posixpath.normpath(path)
                self._paths.add(normal)
                if normal.startswith("../"):
                    self._names.add(normal.rpartition("/")[2])

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
            # Decoded as the protocol says, and undecoded, for writers that do not encode.
            self.add_decoded({path, decode_path(path)})


class NeededFiles(msgspec.Struct, frozen=True):
    """What a table needs: the files of some versions, and those that were removed of late."""

    before_ms: int
    """Files that were removed from the table before this time may be deleted."""
    retention_ms: int
    versions: tuple[Snapshot, ...] = ()
    """Versions whose files are kept."""

    def of(self, snapshot: Snapshot) -> ReferencedFiles:
        """The files that the table needs at a version. Raises CorruptLog if its log contradicts the
        checksum.
        """
        referenced = ReferencedFiles()
        columns = ["path", "deletion_vector"]
        for version in (snapshot, *self.versions):
            for batch in version.file_batches(columns):
                referenced.add(batch.files)
            # A file whose log entry was lost to damage would count as unreferenced.
            version.check_totals()
        own = snapshot.configuration.properties.deleted_file_retention_ms
        # The state keeps tombstones for the table's own retention and must not lose any, so a
        # shorter retention is applied to its result.
        now_ms = self.before_ms + min(own, self.retention_ms)
        for removed in snapshot.tombstone_batches(now_ms=now_ms):
            times = removed["deletion_timestamp_ms"]
            is_retained = pc.greater_equal(times, integer_scalar(self.before_ms))
            referenced.add(removed.select(columns).filter(is_retained))
        if self.retention_ms > own:
            # By all commits since then: checkpoints have dropped the older tombstones.
            listing = list_log(snapshot.store, end=snapshot.version)
            listed = sorted(listing.commits.items())
            recent = [number for number, file in listed if file.modified_ms >= self.before_ms]
            for commit in read_versions(snapshot.store, listing, recent):
                actions = decode_commit(commit.data, version=commit.version)
                for files in (actions.adds, actions.removes):
                    referenced.add_paths(file.path for file in files)
                    referenced.add_decoded(vector_files(files))
                referenced.add_paths(file.path for file in actions.cdc)
        return referenced


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


_FILES_AT_ONCE = 65_536
_LOG_BELOW = f"/{LOG_DIRECTORY}/"


class FoundFiles(msgspec.Struct, frozen=True):
    """Files that a table does not need."""

    files: pa.Table
    """`pa.Table` of LISTED_FILE_SCHEMA."""
    num_seen: int
    """All files that were looked at."""
    latest: Snapshot
    """The newest version that they were compared with."""


def list_unneeded_files(
    snapshot: Snapshot,
    needed: NeededFiles,
    is_listed: Callable[[str], bool],
    *,
    modified_before_ms: int,
    named_like: Callable[[pa.Array], pa.Array] = lambda paths: paths,
) -> FoundFiles:
    """The files under the root that the table does not need.

    `is_listed` says whether a path may be listed; a directory whose files it refuses is not read.
    Files modified at `modified_before_ms`, in milliseconds since the epoch, or later are left out:
    a writer may be about to commit them. `named_like` gives the files with which others are needed.
    The files of a table below the root belong to that one, and are left out.
    """

    def unneeded(files: pa.Table, referenced: ReferencedFiles) -> pa.Table:
        return files.filter(pc.invert(referenced.mask(named_like(whole_array(files["path"])))))

    root, tables_below = snapshot.store.local_path(""), set[str]()
    if root is not None:
        # Sizes and times are read later, only for the files that remain.
        paths = _local_paths(root, is_listed)
        listed: Iterator[ObjectMeta] = (ObjectMeta(path, 0, 0) for path in paths)
    else:
        listed = _noting_tables_below(snapshot.store.list_recursive(), tables_below)
    ours = (file for file in listed if is_listed(file.path))
    referenced, num_seen = needed.of(snapshot), 0
    parts = [pa.Table.from_batches([], LISTED_FILE_SCHEMA)]
    while some := list(islice(ours, _FILES_AT_ONCE)):
        num_seen += len(some)
        parts.append(unneeded(listed_files(some), referenced))
    found = pa.concat_tables(parts)
    # Commits made during the listing count as well.
    latest = snapshot.update()
    if latest.version != snapshot.version:
        found = unneeded(found, needed.of(latest))
    if root is not None:
        found = listed_files(_looked_up(root, found["path"].to_pylist()))
    for directory in tables_below:
        found = found.filter(pc.invert(pc.starts_with(found["path"], pattern=directory)))
    is_old = pc.less(found["modified_ms"], integer_scalar(modified_before_ms))
    return FoundFiles(found.filter(is_old), num_seen, latest)


def _noting_tables_below(listed: Iterable[ObjectMeta], tables: set[str]) -> Iterator[ObjectMeta]:
    for file in listed:
        if _LOG_BELOW in file.path:
            tables.add(f"{file.path.partition(_LOG_BELOW)[0]}/")
        yield file


def _looked_up(root: str, paths: Iterable[str]) -> Iterator[ObjectMeta]:
    for path in paths:
        try:
            status = os.stat(f"{root}/{path}")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _name_failure(error, root, path) from error
        # A link to a directory is not a file.
        if not stat.S_ISDIR(status.st_mode):
            yield ObjectMeta(path, status.st_size, status.st_mtime_ns // 1_000_000)


def _local_paths(root: str, is_ours: Callable[[str], bool]) -> Iterator[str]:
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
                    # Only the directories of a file matter here, not its own name.
                    elif is_ours(f"{path}/x") and not os.path.isdir(f"{root}/{path}{_LOG_BELOW}"):
                        pending.append(f"{path}/")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise _name_failure(error, root, current) from error


def _name_failure(error: OSError, root: str | None, path: str) -> StorageFailure:
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
        around = {ancestor for path in paths for ancestor in _list_ancestors(path)}
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


def _list_ancestors(path: str) -> Iterable[str]:
    directory = path.rpartition("/")[0]
    while directory:
        yield directory
        directory = directory.rpartition("/")[0]


def _without_checksums(paths: pa.Array) -> pa.Array:
    """The paths, with those of Hadoop's checksum files replaced by the files they belong to."""
    return pc.replace_substring_regex(paths, r"(^|/)\.([^/]+)\.crc$", r"\1\2")
