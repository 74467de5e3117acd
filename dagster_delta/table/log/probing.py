"""Finds the newest commits of a long local log by their names, without listing its directory.

A listing takes time in proportion to the whole history: 30 ms for 30,000 versions. Looking up a
name on a local disk takes a microsecond, so that opening a table takes the same time whatever its
history. A log of which a commit is missing must not be taken for a shorter one, as the next write
would fill the gap: names further on are looked up too, and in doubt the directory is listed.

Spec: Delta Log Entries; Last Checkpoint File.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain

from dagster_delta.protocol.checkpoint.last_checkpoint import LastCheckpoint
from dagster_delta.protocol.log.paths import (
    LOG_DIRECTORY,
    checkpoint_path,
    checksum_path,
    commit_path,
    multi_part_checkpoint_paths,
)
from dagster_delta.protocol.log.segment import LogListing
from dagster_delta.storage.object_store import ObjectMeta, ObjectStore

# Below this version a listing is as fast.
_MIN_VERSION = 200
# Commits since the checkpoint after which a listing is used: its writers keep no checkpoints.
_MAX_COMMITS = 1_000
_MAX_PARTS = 1_000
# Distances from the last commit found at which another one would prove a gap.
_FURTHER = (*range(2, 64), *range(64, 501, 10))


class LocalFile:
    """A file of a local log whose size and time are read on first use.

    Most commits never need them, and reading them for 10,000 commits takes a third of the time of
    listing and reading these.
    """

    __slots__ = ("_meta", "_store", "path")

    def __init__(self, store: ObjectStore, path: str) -> None:
        self.path = path
        self._store = store
        self._meta: ObjectMeta | None = None

    @property
    def size_bytes(self) -> int:
        """Length of the file; 0 if it was deleted."""
        return self._head().size_bytes

    @property
    def modified_ms(self) -> int:
        """Last modification in milliseconds since the epoch; 0 if it was deleted."""
        return self._head().modified_ms

    def _head(self) -> ObjectMeta:
        if self._meta is None:
            self._meta = self._store.head(self.path) or ObjectMeta(self.path, 0, 0)
        return self._meta


def probed_log(store: ObjectStore, hint: LastCheckpoint, end: int | None) -> LogListing | None:
    """The log from the last checkpoint on, without compacted files.

    `end` is the version that the log is needed up to; None for the latest. The result is None if
    the directory has to be listed: it is not local, its listing is short, or the checkpoint or a
    commit is missing.
    """
    directory = store.local_path(LOG_DIRECTORY)
    if directory is None or hint.version < _MIN_VERSION or (hint.parts or 1) > _MAX_PARTS:
        return None
    root = directory[: -len(LOG_DIRECTORY)]
    last = hint.version
    for version in range(last + 1, last + 2 + _MAX_COMMITS):
        if version - 1 == end or not os.access(root + commit_path(version), os.F_OK):
            break
        last = version
    if last - hint.version > _MAX_COMMITS or (end is not None and last < end):
        return None
    if end is None and any(
        os.access(root + commit_path(last + distance), os.F_OK) for distance in _FURTHER
    ):
        return None
    files = chain(
        _checkpoint_files(hint),
        map(commit_path, range(hint.version, last + 1)),
        [checksum_path(last)] if os.access(root + checksum_path(last), os.F_OK) else (),
    )
    # Sorting looks at the checkpoint, after the commits: a clean-up deletes the checkpoint first,
    # so that no commit was deleted meanwhile if the checkpoint is still there.
    listing = LogListing.sort(LocalFile(store, path) for path in files)
    return listing if listing.checkpoints else None


def _checkpoint_files(hint: LastCheckpoint) -> Iterator[str]:
    if hint.file_name is not None:
        yield f"{LOG_DIRECTORY}/{hint.file_name}"
    elif hint.parts is None:
        yield checkpoint_path(hint.version)
    else:
        yield from multi_part_checkpoint_paths(hint.version, hint.parts)
