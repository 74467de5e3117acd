"""Reads the log through a store: listings, commits, checkpoints, checksums.

Spec: Delta Log Entries; Checkpoints; Last Checkpoint File.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from dagster_delta.errors import (
    CorruptLog,
    DeltaError,
    LogGap,
    MissingMetadata,
    MissingProtocol,
    VersionNotFound,
)
from dagster_delta.memory_limits import check_log_file_size, max_checkpoint_bytes
from dagster_delta.protocol.actions import Metadata, Protocol
from dagster_delta.protocol.checkpoint.last_checkpoint import LastCheckpoint, parse_last_checkpoint
from dagster_delta.protocol.checkpoint.reader import CheckpointPart
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_file import (
    CheckpointLine,
    TableActions,
    decode_commit_info,
    decode_lines,
    garbage_collection_paused,
)
from dagster_delta.protocol.log.paths import (
    LAST_CHECKPOINT_PATH,
    LOG_DIRECTORY,
    LogFileKind,
    checksum_path,
    commit_path,
    parse_log_file_name,
    sidecar_path,
    version_prefix,
)
from dagster_delta.protocol.log.segment import (
    CheckpointFiles,
    CommitFile,
    ListedFile,
    LogListing,
    LogSegment,
)
from dagster_delta.protocol.log.tail import RawCommit
from dagster_delta.protocol.log.version_checksum import (
    VersionChecksum,
    parse_version_checksum,
    version_checksum_after,
)
from dagster_delta.storage.object_store import (
    DatedDirectoryStore,
    ObjectMeta,
    ObjectStore,
    RangeStore,
    is_in_catalog,
)

# Enough to hide the latency of an object store; a local disk is read by the caller's thread.
_CONCURRENT_READS = 32
# Checkpoint files up to this size are fetched whole: one request instead of several.
_DOWNLOAD_BYTES = 4 * 1024 * 1024

# Commits of a log that takes longer to list, 1 ms, than to look up.
_LONG_LOG = 1_000
# Distances after the newest commit found at which another one shows a gap.
_FURTHER = range(2, 9)

# The last version that fits into a file name of the log.
_MAX_VERSION = 10**20 - 1

_WITHOUT_CHECKPOINT = (
    "restore it from a copy, or remove the checkpoint if every commit before it is still there"
)

_MANIFEST_DECODER = msgspec.json.Decoder(CheckpointLine)

_Read = TypeVar("_Read")


@contextmanager
def located(store: ObjectStore, version: int | None = None) -> Iterator[None]:
    """Errors raised in the block get the table, and the version if they have none."""
    try:
        yield
    except DeltaError as error:
        error.table = error.table or store.location.uri
        if error.version is None:
            error.version = version
        raise


def check_readable(store: ObjectStore, configuration: TableConfiguration, version: int) -> None:
    """Refuse a version of a table that this library might read wrongly, or that is to be opened by
    its catalog. Raises as `TableConfiguration.check_readable`.
    """
    uri = store.location.uri
    configuration.check_readable(table=uri, version=version, in_catalog=is_in_catalog(store))


def check_writable(store: ObjectStore, configuration: TableConfiguration, version: int) -> None:
    """Refuse a version of a table that this library might write wrongly, likewise. Raises as
    `TableConfiguration.check_writable`.
    """
    uri = store.location.uri
    configuration.check_writable(table=uri, version=version, in_catalog=is_in_catalog(store))


def read_last_checkpoint(store: ObjectStore) -> LastCheckpoint | None:
    """The hint to the newest checkpoint, or None if it is missing or damaged."""
    try:
        return parse_last_checkpoint(store.read(LAST_CHECKPOINT_PATH))
    except FileNotFoundError:
        return None


def has_log(store: ObjectStore) -> bool:
    """Whether there is any file of a log."""
    names = (meta.path.rpartition("/")[2] for meta in store.list_from(LOG_DIRECTORY, "0"))
    return any(parse_log_file_name(name) is not None for name in names)


def list_log(
    store: ObjectStore,
    *,
    start: int = 0,
    end: int | None = None,
    without: Collection[str] = (),
) -> LogListing:
    """The files of the log from version `start` to `end`, both included, without some paths."""
    with garbage_collection_paused():
        files = _list_versions(store, start, end)
        if without:
            files = (file for file in files if file.path not in without)
        return LogListing.sort(files)


def list_settled_log(store: ObjectStore, *, start: int = 0, end: int | None = None) -> LogListing:
    """Like `list_log`, without the gaps that appear when a listing runs during commits.

    A directory that is listed while files are added may show a later file without an earlier one.
    Every commit before the latest one listed existed when that listing ended, so a second listing
    up to that version has all of them.
    """
    listing = list_log(store, start=start, end=end)
    if listing.is_contiguous:
        return listing
    return list_log(store, start=start, end=listing.latest_version)


def _list_versions(store: ObjectStore, start: int, end: int | None) -> Iterator[ListedFile]:
    first = version_prefix(start)
    limit = None if end is None or end >= _MAX_VERSION else version_prefix(end + 1)
    # In a log, names that begin with a digit sort first, in version order.
    for meta in store.list_from(LOG_DIRECTORY, first):
        name = meta.path[len(LOG_DIRECTORY) + 1 :]
        if not name[:1].isdigit() or (limit is not None and name >= limit):
            return
        yield meta


def find_segment(store: ObjectStore, version: int | None = None) -> LogSegment:
    """The files that make up a version, the latest one by default."""
    table = store.location.uri
    hint = read_last_checkpoint(store)
    if hint is not None and hint.version and (version is None or hint.version <= version):
        listing = _look_up_log(store, hint, version)
        if listing is None:
            listing = list_settled_log(store, start=hint.version, end=version)
        # The hint may be wrong, or its checkpoint deleted: it only says where to start the search.
        if listing.checkpoints:
            try:
                return listing.segment(version, table=table)
            except VersionNotFound:
                return list_settled_log(store).segment(version, table=table)
    if version is not None:
        listing = list_log(store, end=version)
        if version == listing.latest_version and listing.earliest_version is not None:
            return listing.segment(version, table=table)
    return list_settled_log(store).segment(version, table=table)


def _look_up_log(store: ObjectStore, hint: LastCheckpoint, end: int | None) -> LogListing | None:
    """The log from the last checkpoint to the version `end`, or to its newest one, by the names of
    its files. None if the directory has to be listed.

    A listing goes through the whole directory, and names are looked up in microseconds. Writers
    make commits in order, so that the log ends before the first name that is missing, unless files
    were deleted:

    - A clean-up deletes only what is older than a checkpoint. Its hint was written before: then it
      is another one afterwards, or the checkpoint that was found first is gone.
    - A gap, by a clean-up that left an old hint or by a damage, was made after the newest commit
      that was found. Then the directory changed after that file had got its name.
    - A copy has times of its own. In a log that has grown, an older commit was there long before.

    Compacted files are not found, and not needed.
    """
    if store.local_path(LOG_DIRECTORY) is None:
        return None
    newest = hint.version
    files = [store.head(commit_path(newest))]
    while newest != end and (following := store.head(commit_path(newest + 1))) is not None:
        files.append(following)
        newest += 1
    if end is not None and newest < end:
        return None
    files.append(store.head(checksum_path(newest)))
    # After the commits: a clean-up deletes the checkpoint before the commits that follow it.
    files += map(store.head, hint.paths())
    listing = LogListing.sort(file for file in files if file is not None)
    if hint.version not in listing.checkpoints:
        return None
    return listing if end is not None or _is_end(store, hint, newest) else None


def _is_end(store: ObjectStore, hint: LastCheckpoint, newest: int) -> bool:
    """Whether a long log ends with a version whose successor was not found."""
    if newest < _LONG_LOG or not isinstance(store, DatedDirectoryStore):
        return False
    arrivals = [checksum_path(newest), commit_path(newest)]
    if newest == hint.version:
        arrivals = [LAST_CHECKPOINT_PATH, *hint.paths(), *arrivals]
    return (
        store.is_last_change(LOG_DIRECTORY, arrivals, long_after=commit_path(newest - _LONG_LOG))
        # Commits that are as young as the gap before them.
        and not any(store.head(commit_path(newest + further)) for further in _FURTHER)
        and read_last_checkpoint(store) == hint
    )


def read_commit(store: ObjectStore, version: int) -> bytes:
    """The bytes of a commit."""
    try:
        return store.read(commit_path(version))
    except FileNotFoundError as error:
        raise VersionNotFound(
            f"The log has no commit {version}: it was not made yet, or a clean-up has removed it",
            table=store.location.uri,
            version=version,
        ) from error


def read_commit_info(store: ObjectStore, version: int) -> dict[str, Any]:
    """The commitInfo of a commit."""
    with located(store, version):
        data = read_commit(store, version)
        return decode_commit_info(data, version=version, path=commit_path(version))


def read_commits(store: ObjectStore, files: Sequence[CommitFile]) -> tuple[RawCommit, ...]:
    """The bytes of commits, in the order given."""
    if len(files) < 2 or store.local_path(LOG_DIRECTORY) is not None:
        with garbage_collection_paused():
            return tuple(_read_listed(store, file) for file in files)
    with ThreadPoolExecutor(min(_CONCURRENT_READS, len(files))) as pool:
        return tuple(pool.map(partial(_read_listed, store), files))


def read_versions(
    store: ObjectStore, listing: LogListing, versions: Sequence[int], *, at_once: int = 256
) -> Iterator[RawCommit]:
    """The bytes of the commits of some versions, several commits at a time. Raises as
    `read_commits` does.
    """
    for first in range(0, len(versions), at_once):
        some = versions[first : first + at_once]
        yield from read_commits(store, [CommitFile(n, n, listing.commits[n]) for n in some])


def _read_listed(store: ObjectStore, commit: CommitFile) -> RawCommit:
    path = commit.file.path
    check_log_file_size(path, commit.file.size_bytes)
    try:
        return RawCommit(
            commit.end, path, store.read(path), is_compacted=commit.start != commit.end
        )
    except FileNotFoundError as error:
        raise LogGap(
            f"Commit {commit.end} vanished between listing and reading the log: a clean-up is "
            "under way; open the table again",
            table=store.location.uri,
            version=commit.end,
            file=path,
        ) from error


def read_checksum(store: ObjectStore, segment: LogSegment) -> VersionChecksum | None:
    """The version checksum of a segment, or None if it is missing or damaged."""
    if segment.checksum is None:
        return None
    try:
        return parse_version_checksum(store.read(segment.checksum.path))
    except FileNotFoundError:
        return None


class KnownCommit(msgspec.Struct, frozen=True):
    """The identity of a commit that was read: a log with another commit of the same version is
    another log, as after the table was created again, or set back to a copy.
    """

    version: int
    size_bytes: int | None
    """None if only the digest identifies it."""
    modified_ms: int = 0
    """0 for a commit of this process on a remote store, which gives no time when it is written."""
    digest: str | None = None
    """Of the contents; None if only the listing was read."""

    @classmethod
    def newest_of(
        cls, store: ObjectStore, segment: LogSegment, data: bytes | None
    ) -> KnownCommit | None:
        """The commit of the version of a segment, and its contents if they are known; None if a
        clean-up has removed it. It takes no request to a remote store.
        """
        commit: ListedFile | None = segment.commit
        if commit is not None and store.local_path(LOG_DIRECTORY) is not None:
            commit, data = store.head(commit.path), None
        if commit is None:
            return None
        digest = None if data is None else commit_digest(data)
        return cls(segment.version, commit.size_bytes, commit.modified_ms, digest)

    @classmethod
    def read(cls, store: ObjectStore, version: int) -> KnownCommit | None:
        """The commit of a version, with its digest; None if a clean-up has deleted it."""
        try:
            data = store.read(commit_path(version))
        except FileNotFoundError:
            return None
        listed = store.head(commit_path(version))
        modified_ms = 0 if listed is None else listed.modified_ms
        return cls(version, len(data), modified_ms, commit_digest(data))

    def is_in(self, store: ObjectStore, listed: ObjectMeta | None = None) -> bool:
        """Whether a log holds the commit. It takes at most one request, and none if the file was
        listed and its time shows it.
        """
        found = listed
        if found is None and (self.modified_ms or self.digest is None):
            found = store.head(commit_path(self.version))
            if found is None:
                return False
        if found is not None:
            if self.size_bytes not in {None, found.size_bytes}:
                return False
            if self.modified_ms and self.modified_ms == found.modified_ms:
                return True
            if self.digest is None:
                # Stores that give no time show no more than the size.
                return not self.modified_ms or is_same_time(self.modified_ms, found.modified_ms)
        try:
            return self.digest == commit_digest(store.read(commit_path(self.version)))
        except FileNotFoundError:
            return False

    @property
    def absence(self) -> str:
        """What a log says that does not hold the commit."""
        return (
            f"the log does not hold the version {self.version} that was read any more: the table "
            "was created again or set back, or its log was cleaned up"
        )


def commit_digest(data: bytes) -> str:
    """Digest of the contents of a commit."""
    return hashlib.sha256(data).hexdigest()[:32]


def is_same_time(known_ms: int | None, found_ms: int) -> bool:
    """Whether a time of a file is the known one. Some clouds list milliseconds, and give only
    seconds for a single object.
    """
    known_ms = known_ms or -1
    return known_ms in {found_ms, found_ms // 1000 * 1000} or found_ms == known_ms // 1000 * 1000


def read_commits_after(
    store: ObjectStore, version: int, *, at_most: int, commit: KnownCommit | None = None
) -> list[tuple[int, bytes]] | None:
    """The commits that follow a version: (version, contents of the file). None if a clean-up may
    have deleted some of them, or the version's own commit is not `commit`, as after another table
    was written to the same place: then the log has to be opened again.

    A listing shows in one request that there are no others. A local directory takes 30 ms to list
    after 30,000 versions, so that names are looked up there, in microseconds.
    """
    if store.local_path(LOG_DIRECTORY) is None:
        listed = list_commits_after(store, version, at_most=at_most, commit=commit)
        return None if listed is None else [(raw.version, raw.data) for _, raw in listed]
    commits = probe_commits_after(store, version, at_most=at_most)
    if not (commit is None or commit.is_in(store)):
        return None
    return commits if is_intact(store, version, version + len(commits)) else None


def list_commits_after(
    store: ObjectStore, version: int, *, at_most: int, commit: KnownCommit | None = None
) -> list[tuple[ObjectMeta, RawCommit]] | None:
    """The commits that follow a version and their files, from one listing; None if the listing does
    not show all of them, or the version's own commit is not `commit`.
    """
    listed: list[ObjectMeta] = []
    for meta in store.list_from(LOG_DIRECTORY, version_prefix(version)):
        name = meta.path.rpartition("/")[2]
        if len(listed) > at_most or not name[:1].isdigit():
            break
        parsed = parse_log_file_name(name)
        if parsed is not None and parsed.kind is LogFileKind.COMMIT:
            listed.append(meta)
    versions = range(version, version + len(listed))
    if not listed or [commit_path(n) for n in versions] != [meta.path for meta in listed]:
        return None
    if commit is not None and not commit.is_in(store, listed[0]):
        return None
    files = [CommitFile(n, n, meta) for n, meta in zip(versions, listed, strict=True)][1:]
    try:
        return list(zip(listed[1:], read_commits(store, files), strict=True))
    except LogGap:
        return None


def probe_commits_after(
    store: ObjectStore, version: int, *, at_most: int
) -> list[tuple[int, bytes]]:
    """The commits that follow a version up to the first name that is missing."""
    commits: list[tuple[int, bytes]] = []
    while len(commits) < at_most:
        following = version + 1 + len(commits)
        try:
            commits.append((following, store.read(commit_path(following))))
        except FileNotFoundError:
            break
    return commits


def is_intact(store: ObjectStore, version: int, newest: int) -> bool:
    """Whether a local log shows without a listing that no clean-up has deleted a commit after
    `version`, given that it seems to end with `newest`.

    Clean-ups delete the oldest commits first. Those of other programs delete several at once: then
    the last checkpoint shows that the log goes on.
    """
    if store.local_path(LOG_DIRECTORY) is None or store.head(commit_path(version)) is None:
        return False
    hint = read_last_checkpoint(store)
    return hint is None or hint.version <= newest


def is_newest(store: ObjectStore, version: int) -> bool:
    """Whether the log ends with a version whose successor was not found; False if a clean-up has
    deleted the successor, or it was committed meanwhile.
    """
    if is_intact(store, version, version):
        return True
    return list_log(store, start=version).latest_version == version


def read_checksum_after(
    store: ObjectStore, known: VersionChecksum | None, commits: Sequence[tuple[int, bytes]]
) -> VersionChecksum | None:
    """The version checksum of the last of some commits, or None if there is none."""
    checksum = version_checksum_after(known, commits)
    if checksum is not None:
        # It describes these commits, and needed no request.
        return checksum
    try:
        stored = parse_version_checksum(store.read(checksum_path(commits[-1][0])))
    except FileNotFoundError:
        return None
    return stored if stored is not None and _is_of_commit(stored, *commits[-1]) else None


def _is_of_commit(checksum: VersionChecksum, version: int, data: bytes) -> bool:
    """False if the checksum is of another commit of that version, which was lost."""
    if checksum.transaction_id is None:
        return True
    info = decode_commit_info(data, version=version, path=commit_path(version))
    return info.get("txnId") == checksum.transaction_id


class OpenCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint whose files are known, and whose file actions are read on use."""

    actions: TableActions
    """The actions of its Parquet files about the table itself."""
    manifests: tuple[RawCommit, ...]
    """JSON manifests: they read like a commit before all others."""
    parts: tuple[CheckpointPart, ...]
    """Parquet files that hold file actions, sidecars included."""


EMPTY_CHECKPOINT = OpenCheckpoint(TableActions(), (), ())


def open_checkpoint(store: ObjectStore, checkpoint: CheckpointFiles) -> OpenCheckpoint:
    """Open every file of a checkpoint."""
    found = TableActions()
    manifests: list[RawCommit] = []
    parts: list[CheckpointPart] = []
    for file in checkpoint.files:
        if file.path.endswith(".json"):
            data = _read_existing(store.read, file.path)
            manifests.append(RawCommit(checkpoint.version, file.path, data))
            lines = decode_lines(
                data, _MANIFEST_DECODER, version=checkpoint.version, path=file.path
            )
            found.sidecars += [line.sidecar for line in lines if line.sidecar is not None]
        else:
            parts.append(_make_part(store, file.path, file.size_bytes))
            found.take(parts[-1].read_table_actions())
    parts.extend(
        _make_part(store, sidecar_path(sidecar.path), sidecar.size_in_bytes)
        for sidecar in found.sidecars
    )
    return OpenCheckpoint(found, tuple(manifests), tuple(parts))


def _make_part(store: ObjectStore, path: str, size_bytes: int) -> CheckpointPart:
    is_remote = store.local_path(path) is None
    if is_remote and size_bytes <= _DOWNLOAD_BYTES:
        # Fetched once and kept, so that columns do not fetch it again.
        download = cache(partial(_read_existing, store.read, path))
        return CheckpointPart(
            lambda: pa.BufferReader(download()), path, max_bytes=max_checkpoint_bytes
        )
    return CheckpointPart(
        partial(_read_existing, store.open_input, path),
        path,
        is_remote=is_remote,
        open_ranges=partial(store.open_ranges, path) if isinstance(store, RangeStore) else None,
        max_bytes=max_checkpoint_bytes,
    )


def _read_existing(read: Callable[[str], _Read], path: str) -> _Read:
    try:
        return read(path)
    except FileNotFoundError as error:
        raise CorruptLog(
            f"A file of the checkpoint is missing; {_WITHOUT_CHECKPOINT}", file=path
        ) from error


def configuration_of(protocol: Protocol | None, metadata: Metadata | None) -> TableConfiguration:
    """The configuration of a table from the actions of its log."""
    if metadata is None:
        raise MissingMetadata(
            "The log holds no metaData action, so the table has no schema; restore the log from a "
            "copy, or create the table again"
        )
    if protocol is None:
        raise MissingProtocol(
            "The log holds no protocol action, so the features that a reader of the table "
            "needs are unknown; restore the log from a copy, or create the table again"
        )
    return TableConfiguration(protocol, metadata)


def extended_segment(segment: LogSegment, commits: Sequence[tuple[int, bytes]]) -> LogSegment:
    """The segment after the next commits, given as (version, contents)."""
    # Their times are not known here: they are read on first use.
    files = [
        CommitFile(version, version, ObjectMeta(commit_path(version), len(data), 0))
        for version, data in commits
    ]
    return LogSegment(
        version=commits[-1][0],
        checkpoint=segment.checkpoint,
        replay=(*segment.replay, *files),
        commit=files[-1].file,
        checksum=None,
    )
