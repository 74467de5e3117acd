"""What follows a commit and may fail without harm: the version checksum, the observers of commits,
the checkpoint, and then the clean-up of the log.

Spec: Checkpoints; Last Checkpoint File; Version Checksum File; Metadata Cleanup.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from dagster_delta.clock import Clock
from dagster_delta.errors import (
    DeltaError,
    InvalidTable,
    StorageFailure,
)
from dagster_delta.protocol.log.paths import checksum_path
from dagster_delta.protocol.log.version_checksum import (
    VersionChecksum,
    encode_version_checksum,
    parse_version_checksum,
    version_checksum_after,
)
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.reader import read_checksum_after
from dagster_delta.table.read.snapshot import Snapshot, advanced, with_checksum

_LOG = logging.getLogger(__name__)

# Looking for expired versions lists the log, in time proportional to its length.
_CLEANED_EVERY = ((10_000, 1000), (1000, 100))
"""Versions from which a log is cleaned up less often, and after how many commits, about."""


def follow_commit(
    store: ObjectStore,
    base: Snapshot | None,
    commits: Sequence[tuple[int, bytes]],
    *,
    clock: Clock,
) -> Snapshot:
    """The table after a new commit, with its checksum and, if due, its checkpoint stored.

    The commit already exists, so a failure to store either is logged and not raised. `base` is the
    version that the commit was planned on, None if it created the table; `commits` are all since
    then, (version, bytes), the new one last.
    """
    try:
        checksum = _compute_checksum(store, None if base is None else base.checksum, commits)
        _store_checksum(store, commits[-1][0], checksum)
        snapshot = advanced(store, base, commits, checksum=checksum, is_own=True)
    except (InvalidTable, StorageFailure):
        raise
    except DeltaError as error:
        # Callers take other errors for a commit that is not in the log, and write again.
        version = commits[-1][0]
        raise InvalidTable(
            f"version {version} was committed, and cannot be read: {error}",
            table=store.location.uri,
        ) from error
    _call_observers(snapshot, commits)
    with logged_failure(snapshot.version, store, "checkpoint was not stored"):
        num_files = 0 if snapshot.checksum is None else snapshot.checksum.num_files
        interval = snapshot.configuration.properties.commits_between_checkpoints(num_files)
        if snapshot.version > 0 and snapshot.version % interval == 0:
            snapshot = _write_due_checkpoint(snapshot, clock())
            return _clean_log_if_due(snapshot, interval, clock=clock)
    return snapshot


def _compute_checksum(
    store: ObjectStore, known: VersionChecksum | None, commits: Sequence[tuple[int, bytes]]
) -> VersionChecksum | None:
    """The checksum of the last commit; None if neither the base nor the commit before has one."""
    checksum = version_checksum_after(known, commits)
    *others, own = commits
    if checksum is not None or not others:
        return checksum
    try:
        return version_checksum_after(read_checksum_after(store, known, others), [own])
    except DeltaError:
        return None


@contextmanager
def logged_failure(version: int, store: ObjectStore, what: str) -> Iterator[None]:
    """What fails in the block after a commit is logged and not raised: `what` was not done."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        _LOG.warning(
            "version %d of %s is committed, but its %s: %s",
            version,
            store.location.uri,
            what,
            error,
        )


CommitObserver = Callable[[Snapshot, Sequence[tuple[int, bytes]]], object]
"""Called after a commit with the new version and the commits since the version that it was planned
on, as for `follow_commit`. What it raises is logged."""


def _find_observers(snapshot: Snapshot) -> Iterator[tuple[str, CommitObserver]]:
    """The observers that the properties of a table turn on, each one module that nothing else knows
    but its line here, and what it stores.
    """
    if snapshot.configuration.properties.symlink_manifests:
        from dagster_delta.table.log_upkeep.symlink_manifests import follow_commits

        yield "set of symlink manifests", follow_commits


def _call_observers(snapshot: Snapshot, commits: Sequence[tuple[int, bytes]]) -> None:
    version, store = snapshot.version, snapshot.store
    with logged_failure(version, store, "observers were not called"):
        for what, observe in _find_observers(snapshot):
            with logged_failure(version, store, f"{what} was not stored"):
                observe(snapshot, commits)


def _store_checksum(store: ObjectStore, version: int, checksum: VersionChecksum | None) -> None:
    if checksum is None:
        return
    path, data = checksum_path(version), encode_version_checksum(checksum)
    with logged_failure(version, store, "checksum was not stored"):
        try:
            store.put_if_absent(path, data)
        except FileExistsError:
            # Another writer stored the same contents first, unless it is of another commit of this
            # version that was lost in a power failure.
            found = parse_version_checksum(store.read(path))
            if found is None or found.transaction_id not in (None, checksum.transaction_id):
                store.put(path, data)


def _write_due_checkpoint(snapshot: Snapshot, now_ms: int) -> Snapshot:
    _write_checkpoint(snapshot, now_ms)
    if snapshot.checksum is not None:
        # The checkpoint was written only after it matched the whole version.
        checksum = replace(snapshot.checksum, is_own=True)
    else:
        # Writers that store no checksum break the chain. It restarts from the state in memory.
        checksum = _count_version(snapshot)
        _store_checksum(snapshot.store, snapshot.version, checksum)
    return with_checksum(snapshot, checksum)


def _clean_log_if_due(snapshot: Snapshot, interval: int, *, clock: Clock) -> Snapshot:
    """The version, after the expired log was deleted if the table's properties enable that."""
    commits = next((number for version, number in _CLEANED_EVERY if snapshot.version > version), 0)
    if snapshot.version // interval % max(1, commits // interval):
        return snapshot
    from dagster_delta.table.log_upkeep.cleanup import clean_expired_log

    with logged_failure(snapshot.version, snapshot.store, "log was not cleaned up"):
        if clean_expired_log(snapshot, clock=clock) is not None:
            # It may still have to read the checkpoint that it was opened with.
            return Snapshot.load(snapshot.store, version=snapshot.version)
    return snapshot


def _count_version(snapshot: Snapshot) -> VersionChecksum:
    totals = snapshot.totals
    keeps_timestamps = snapshot.configuration.in_commit_timestamps_enabled
    return VersionChecksum(
        protocol=snapshot.protocol,
        metadata=snapshot.metadata,
        num_files=totals.num_files,
        size_bytes=totals.size_bytes,
        transactions=snapshot.transactions(),
        domain_metadata=tuple(snapshot.domain_metadata().values()),
        in_commit_timestamp_ms=snapshot.timestamp_ms if keeps_timestamps else None,
        num_deleted_records=totals.num_deleted_records,
        num_deletion_vectors=totals.num_deletion_vectors,
        is_own=True,
    )


def _write_checkpoint(snapshot: Snapshot, now_ms: int) -> None:
    # Imported late: most commits write none.
    from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint

    write_checkpoint(snapshot, now_ms=now_ms)
