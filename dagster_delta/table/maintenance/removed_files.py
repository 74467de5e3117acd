"""The files that commits before a time removed, found in the log for VACUUM LITE.

`_delta_log/_last_vacuum_info` says how far earlier VACUUMs went, in the format of delta-spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.protocol.actions import AddCDCFile, RemoveFile
from dagster_delta.protocol.features.deletion_vectors import deletion_vector_path
from dagster_delta.protocol.log.commit_file import decode_lines, garbage_collection_paused
from dagster_delta.protocol.log.paths import LOG_DIRECTORY
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectMeta, ObjectStore
from dagster_delta.table.log.columns import listed_files
from dagster_delta.table.log.reader import list_log, read_versions
from dagster_delta.table.read.snapshot import Snapshot

_LOG = logging.getLogger(__name__)

_LAST_VACUUM_PATH = f"{LOG_DIRECTORY}/_last_vacuum_info"


class _RemovedLine(msgspec.Struct, gc=False):
    remove: RemoveFile | None = None
    cdc: AddCDCFile | None = None


_DECODER = msgspec.json.Decoder(_RemovedLine)


class _LastVacuum(msgspec.Struct, frozen=True, rename="camel"):
    latest_commit_version_outside_of_retention_window: int | None = None


@dataclass(frozen=True, slots=True)
class RemovedFiles:
    """Data files, deletion vectors and change data of a range of commits."""

    files: pa.Table
    """`pa.Table` of LISTED_FILE_SCHEMA with decoded paths; the time is that of the removal."""
    last_version: int | None
    """Every file that this version or an earlier one removed is among them, or was found by an
    earlier VACUUM; None if no commit is old enough."""


def removed_files(snapshot: Snapshot, before_ms: int) -> RemovedFiles:
    """The files that commits before a time removed, since the last VACUUM.

    Files with absolute paths are left out: a VACUUM that lists the directory finds those in it. The
    range ends before the first commit that is as young as `before_ms`, in milliseconds since the
    epoch, or that removed a file then. A commit of the range that is no longer in the log is an
    InvalidArgument.
    """
    store = snapshot.store
    last = _read_last_vacuum(store)
    start = 0 if last is None else last + 1
    found: dict[str, ObjectMeta] = {}
    with garbage_collection_paused():
        for version, lines in _commits_before(snapshot, start, before_ms):
            removes = [line.remove for line in lines if line.remove is not None]
            if any((remove.deletion_timestamp_ms or 0) >= before_ms for remove in removes):
                break
            changes = [line.cdc for line in lines if line.cdc is not None]
            for file in _files_of(removes, changes):
                found.setdefault(file.path, file)
            last = version
    return RemovedFiles(listed_files(found.values()), last)


def last_version_before(snapshot: Snapshot, before_ms: int) -> int | None:
    """The last version of an unbroken series that was committed before a time; None if there is
    none.
    """
    last = None
    commits = list_log(snapshot.store, end=snapshot.version).commits
    for version, file in sorted(commits.items()):
        if file.modified_ms >= before_ms:
            break
        last = version
    return last


def record_last_vacuum(store: ObjectStore, version: int | None) -> None:
    """Record how far a VACUUM went, unless an earlier one went further."""
    last = _read_last_vacuum(store)
    if version is None or (last is not None and last >= version):
        return
    try:
        store.put(_LAST_VACUUM_PATH, msgspec.json.encode(_LastVacuum(version)) + b"\n")
    except StorageFailure:
        # The next VACUUM LITE reads more commits.
        _LOG.warning("%s could not be written", _LAST_VACUUM_PATH, exc_info=True)


def _read_last_vacuum(store: ObjectStore) -> int | None:
    try:
        info = msgspec.json.decode(store.read(_LAST_VACUUM_PATH), type=_LastVacuum)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return info.latest_commit_version_outside_of_retention_window


def _commits_before(
    snapshot: Snapshot, start: int, before_ms: int
) -> Iterator[tuple[int, list[_RemovedLine]]]:
    store = snapshot.store
    listing = list_log(store, start=start, end=snapshot.version)
    listed = listing.commits
    versions = []
    for version in range(start, snapshot.version + 1):
        if version not in listed:
            raise InvalidArgument(
                f"VACUUM LITE reads the removed files from the log, and commit {version} is not "
                "there any more: run a full VACUUM (lite=False), after which LITE goes on from "
                "its version",
                table=store.location.uri,
                version=version,
            )
        if listed[version].modified_ms >= before_ms:
            break
        versions.append(version)
    for commit in read_versions(store, listing, versions):
        version, data, path = commit.version, commit.data, commit.path
        yield version, list(decode_lines(data, _DECODER, version=version, path=path))


def _files_of(removes: Iterable[RemoveFile], changes: Iterable[AddCDCFile]) -> Iterator[ObjectMeta]:
    for remove in removes:
        removed_ms = remove.deletion_timestamp_ms or 0
        yield ObjectMeta(decode_path(remove.path), remove.size_bytes or 0, removed_ms)
        vector = remove.deletion_vector
        if vector is not None and vector.storage_type != "i":
            path = deletion_vector_path(vector)
            yield ObjectMeta(path, vector.size_in_bytes, removed_ms)
    for change in changes:
        yield ObjectMeta(decode_path(change.path), change.size_bytes, 0)
