"""Deletes the part of the log that is older than the table's retention.

Spec: Metadata Cleanup; Checkpoint Protection; In-Commit Timestamps.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from dagster_delta.clock import DAY_MS, midnight_before
from dagster_delta.errors import (
    DeltaError,
    InvalidArgument,
    InvalidTable,
    TableNotFound,
    VersionNotFound,
)
from dagster_delta.protocol.log.paths import (
    LOG_DIRECTORY,
    SIDECAR_DIRECTORY,
    STAGED_COMMIT_DIRECTORY,
    LogFileKind,
    parse_log_file_name,
    sidecar_path,
    version_prefix,
)
from dagster_delta.protocol.log.segment import CheckpointFiles, LogListing
from dagster_delta.protocol.log.tail import decode_tail
from dagster_delta.storage.file_publication import is_temporary_file
from dagster_delta.storage.object_store import ObjectMeta, ObjectStore, is_in_catalog
from dagster_delta.storage.unreferenced_files import delete_with_checksums
from dagster_delta.table.catalog_rules import allows_maintenance, check_maintenance
from dagster_delta.table.log.columns import listed_files, total_bytes
from dagster_delta.table.log.commit_range import newest_version_until
from dagster_delta.table.log.reader import check_writable, list_log, located, open_checkpoint
from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint
from dagster_delta.table.read.snapshot import Snapshot, snapshot_of_segment

if TYPE_CHECKING:
    from dagster_delta.clock import Clock

_LOG = logging.getLogger(__name__)

_HOUR_MS = 60 * 60 * 1000
_FIRST_LETTERS = frozenset(".0123456789")
_OTHERS_CLEAN = (
    "other clean-ups deleted files of the log meanwhile, and what they left goes with the next one"
)
_CHECKPOINT_KINDS = frozenset(
    {LogFileKind.CHECKPOINT, LogFileKind.CHECKPOINT_PART, LogFileKind.CHECKPOINT_V2}
)


class DeletedFiles(msgspec.Struct, frozen=True):
    """What a clean-up deleted, or would delete."""

    dry_run: bool
    files: pa.Table
    """`pa.Table` of the files: `path` (decoded, relative to the root), `size_bytes`,
    `modified_ms`."""
    retention_ms: int
    """How long what they are part of stays readable, in milliseconds."""

    @property
    def num_files(self) -> int:
        """Number of files."""
        return int(self.files.num_rows)

    @property
    def size_bytes(self) -> int:
        """Total size of the files."""
        return total_bytes(self.files)


class LogCleanupResult(DeletedFiles, frozen=True):
    """What a clean-up of the log deleted, or would delete."""

    cutoff_ms: int
    """The midnight (UTC) from which on every version is kept, in milliseconds since the epoch."""
    earliest_version: int | None
    """The oldest version that is readable afterwards."""
    kept_because: str | None = None
    """Why older versions are kept although they have expired."""


def clean_log(
    store: ObjectStore,
    snapshot: Snapshot,
    *,
    clock: Clock,
    retention_hours: float | None = None,
    dry_run: bool = True,
    enforce_retention: bool = True,
    may_write_checkpoint: bool = True,
) -> LogCleanupResult:
    """Delete the log of the expired versions, up to a checkpoint.

    `enforce_retention` refuses what the properties of the table do not allow. A checkpoint is
    written at the version that the log will begin with only if `may_write_checkpoint`. After an
    error of the store, the remaining log is valid.
    """
    configuration = snapshot.configuration
    check_writable(store, configuration, snapshot.version)
    check_maintenance(store, "METADATA_CLEANUP", "the clean-up of the log")
    properties, table = configuration.properties, store.location.uri
    if enforce_retention and not properties.enable_expired_log_cleanup:
        raise InvalidArgument(
            "the table keeps its log (delta.enableExpiredLogCleanup = false); set the property to "
            "true, or pass enforce_retention=False",
            table=table,
        )
    retention_ms = retention_in_ms(
        retention_hours,
        properties.log_retention_ms,
        "delta.logRetentionDuration): older versions could not be read, and consumers that are "
        "further behind would lose commits; leave it out, or pass enforce_retention=False",
        enforce=enforce_retention,
        table=table,
    )
    now_ms = clock()
    cutoff_ms = midnight_before(now_ms - retention_ms)
    files = list(_log_files(store))
    listing = LogListing.sort(files)
    cut, kept_because = _plan_cut(
        snapshot, listing, cutoff_ms, may_write_checkpoint=may_write_checkpoint
    )
    if cut is not None and not dry_run:
        snapshot.check_newest_commit()
        try:
            _make_readable(store, cut, listing, now_ms)
        except (InvalidTable, TableNotFound, VersionNotFound):
            # Files needed for it may have been deleted after they were listed.
            left = list(_log_files(store))
            if {file.path for file in files}.issubset(file.path for file in left):
                raise
            listing, cut, kept_because = LogListing.sort(left), None, _OTHERS_CLEAN
    earliest = listing.earliest_version if cut is None else cut
    expired = _find_expired(
        store, files, cut, now_ms, has_sidecars=configuration.supports("v2Checkpoint")
    )
    in_catalog = is_in_catalog(store)
    if cut is not None and in_catalog:
        expired += _staged_until(store, cut)
    if not dry_run:
        # Oldest first.
        delete_with_checksums(store, [file.path for file in expired])
    found = listed_files(expired)
    return LogCleanupResult(dry_run, found, retention_ms, cutoff_ms, earliest, kept_because)


def _find_expired(
    store: ObjectStore,
    files: Sequence[ObjectMeta],
    cut: int | None,
    now_ms: int,
    *,
    has_sidecars: bool,
) -> list[ObjectMeta]:
    # Writers that were killed leave temporary files; one that is at work has a younger one.
    expired = [
        file
        for file in files
        if is_temporary_file(file.path.rpartition("/")[2]) and file.modified_ms < now_ms - DAY_MS
    ]
    if cut is not None:
        expired += _files_before(files, cut)
        if has_sidecars:
            expired += _unreferenced_sidecars(store, files, cut, now_ms)
    return expired


def _files_before(files: Sequence[ObjectMeta], cut: int) -> list[ObjectMeta]:
    """The files of versions before the cut, oldest first, so that a crash leaves no gap.

    The commit of the cut is kept too, because only the commit has the provenance.
    """
    expired = []
    for file in files:
        name = parse_log_file_name(file.path.rpartition("/")[2])
        if name is None:
            continue
        # Spec: compacted files that begin at or before the checkpoint are deleted too.
        is_covered = name.kind is LogFileKind.COMPACTED and name.version == cut
        if name.version < cut or is_covered:
            expired.append(file)
    # A listing is in the order of names, which begin with the version.
    return expired


def _staged_until(store: ObjectStore, cut: int) -> list[ObjectMeta]:
    """The staged commits of versions up to the cut, which are published or were refused."""
    # Spec: Metadata Cleanup. A reader that was told their names reads the published ones.
    end = f"{STAGED_COMMIT_DIRECTORY}/{version_prefix(cut + 1)}"
    return list(takewhile(lambda meta: meta.path < end, store.list_from(STAGED_COMMIT_DIRECTORY)))


def clean_expired_log(snapshot: Snapshot, *, clock: Clock) -> int | None:
    """The version that the log begins with after the clean-up, or None if none was due.

    If no clean-up is due, it costs a listing of the expired files, one page of names on most
    tables.
    """
    properties = snapshot.configuration.properties
    if not properties.enable_expired_log_cleanup:
        return None
    if not allows_maintenance(snapshot.store, "METADATA_CLEANUP"):
        return None
    cutoff_ms = midnight_before(clock() - properties.log_retention_ms)
    if not _has_expired(snapshot.store, cutoff_ms):
        return None
    result = clean_log(
        snapshot.store, snapshot, clock=clock, dry_run=False, may_write_checkpoint=False
    )
    return result.earliest_version if result.num_files else None


def _has_expired(store: ObjectStore, cutoff_ms: int) -> bool:
    """Whether a checkpoint with older files before it was written before the cutoff, by file
    times.
    """
    first: int | None = None
    checkpoint: int | None = None
    for file in _log_files(store):
        name = parse_log_file_name(file.path.rpartition("/")[2])
        if name is None:
            continue
        first = name.version if first is None else first
        if name.kind in _CHECKPOINT_KINDS:
            checkpoint = name.version
        elif name.kind is LogFileKind.COMMIT:
            # Times grow with versions, so all following files are newer.
            if file.modified_ms > cutoff_ms:
                return False
            if name.version == checkpoint and checkpoint > first:
                return True
    return False


def _log_files(store: ObjectStore) -> Iterator[ObjectMeta]:
    """The files of versions, and hidden ones."""
    for meta in store.list_from(LOG_DIRECTORY, "."):
        if meta.path[len(LOG_DIRECTORY) + 1 :][:1] not in _FIRST_LETTERS:
            return
        yield meta


def retention_in_ms(
    hours: float | None, own_ms: int, loss: str, *, enforce: bool, table: str
) -> int:
    """The retention that a caller asks for, in milliseconds; the table's own for None.

    `loss` names the table's property, and says what a shorter retention means.
    """
    if hours is None:
        return own_ms
    if not isinstance(hours, int | float) or not 0 <= hours < math.inf:
        raise InvalidArgument(
            f"the retention is a number of hours from 0 on, not {hours!r}", table=table
        )
    retention_ms = int(hours * _HOUR_MS)
    if retention_ms < own_ms and enforce:
        raise InvalidArgument(
            f"a retention of {hours:g} hours is shorter than the {own_ms / _HOUR_MS:g} hours of "
            f"the table ({loss}",
            table=table,
        )
    return retention_ms


def _plan_cut(
    snapshot: Snapshot, listing: LogListing, cutoff_ms: int, *, may_write_checkpoint: bool
) -> tuple[int | None, str | None]:
    """The version that the log will begin with, None if nothing is deleted; and why versions stay
    that have expired.
    """
    configuration = snapshot.configuration
    newest = newest_version_until(snapshot.store, listing, configuration, cutoff_ms)
    if newest is None:
        return None, None
    num_files = 0 if snapshot.checksum is None else snapshot.checksum.num_files
    interval = configuration.properties.commits_between_checkpoints(num_files)
    cut = _cut_version(listing, newest, interval if may_write_checkpoint else None)
    if cut is None or not configuration.supports("checkpointProtection"):
        return cut, None
    protected = configuration.properties.checkpoint_protection_before_version
    if cut < protected:
        # Spec: all of the log before that version is cleaned up in one step, or nothing is.
        return (
            None,
            f"versions before {protected} go all at once, as a table feature was dropped then, "
            f"and those from {cut} on have to stay",
        )
    return cut, None


def _cut_version(
    listing: LogListing, newest_expired: int, new_checkpoint_after: int | None
) -> int | None:
    """The version of a checkpoint that the log may begin with; None if nothing can be deleted.

    The newest expired version is kept, because it is the state of the table at that time. A
    checkpoint may be written at it if the checkpoint before it is `new_checkpoint_after` versions
    older, or missing; None if it may not.
    """
    earliest = listing.earliest_version
    if earliest is None:
        return None
    # Spec: the newest checkpoint at or before the cut-off commit.
    cut = max(
        (checkpoint for checkpoint in listing.checkpoints if checkpoint <= newest_expired),
        default=None,
    )
    if new_checkpoint_after is not None and (
        cut is None or newest_expired - cut >= new_checkpoint_after
    ):
        cut = newest_expired
    return cut if cut is not None and cut > earliest else None


def _make_readable(store: ObjectStore, cut: int, listing: LogListing, now_ms: int) -> None:
    """Ensure that the log can begin with a version: it has a checkpoint and is readable."""
    table = store.location.uri
    if cut not in listing.checkpoints:
        old = snapshot_of_segment(store, listing.segment(cut, table=table))
        # A checkpoint under a protocol that this library does not know could lack something.
        check_writable(store, old.configuration, cut)
        write_checkpoint(old, now_ms=now_ms)
    segment = list_log(store, start=cut, end=cut).segment(cut, table=table)
    if segment.checkpoint is not None:
        _check_checkpoint(store, segment.checkpoint)
    # With the counts of the version checksum, so that the checkpoint is compared with them.
    columns = ["size_bytes", "deletion_vector"]
    snapshot = snapshot_of_segment(store, segment)
    num_files = sum(batch.files.num_rows for batch in snapshot.file_batches(columns))
    snapshot.check_totals()
    if segment.checkpoint is None or segment.checkpoint.version != cut:
        raise InvalidTable(
            "the checkpoint that the log was to begin with is not there any more; nothing was "
            "deleted",
            table=table,
            version=cut,
        )
    _LOG.debug("the log of %s can begin with version %d (%d files)", table, cut, num_files)


def _check_checkpoint(store: ObjectStore, checkpoint: CheckpointFiles) -> None:
    """Read a checkpoint completely: after the clean-up the version cannot be read without it."""
    with located(store, checkpoint.version):
        opened = open_checkpoint(store, checkpoint)
        decode_tail(opened.manifests)
        for part in opened.parts:
            part.check_pages()


def _unreferenced_sidecars(
    store: ObjectStore, files: Sequence[ObjectMeta], cut: int, now_ms: int
) -> list[ObjectMeta]:
    """Sidecars that no kept checkpoint names, and that no checkpoint in progress may need."""
    # Spec: files less than a day old, as of midnight, are kept.
    before_ms = midnight_before(now_ms) - DAY_MS
    old = [
        sidecar for sidecar in store.list_from(SIDECAR_DIRECTORY) if sidecar.modified_ms < before_ms
    ]
    if not old:
        return []
    try:
        named = set(_named_sidecars(store, files, cut))
    except DeltaError as error:
        _LOG.warning("no sidecar of %s was deleted: %s", store.location.uri, error)
        return []
    return [sidecar for sidecar in old if sidecar.path not in named]


def _named_sidecars(store: ObjectStore, files: Sequence[ObjectMeta], cut: int) -> Iterator[str]:
    # Listed again, because checkpoints may have been written since the first listing.
    for file in {found.path: found for found in (*files, *_log_files(store))}.values():
        name = parse_log_file_name(file.path.rpartition("/")[2])
        if name is None or name.version < cut:
            continue
        # A checkpoint with a classic name may have sidecars too.
        if name.kind in (LogFileKind.CHECKPOINT, LogFileKind.CHECKPOINT_V2) and file.size_bytes:
            opened = open_checkpoint(store, CheckpointFiles(name.version, (file,)))
            # Compared by name, because a manifest may hold an absolute URI.
            names = (sidecar.path.rpartition("/")[2] for sidecar in opened.actions.sidecars)
            yield from (sidecar_path(name) for name in names)
