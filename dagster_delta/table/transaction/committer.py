"""One commit: put if absent; if the version is taken, rebase or report the conflict.

Spec: Delta Log Entries (writers must never overwrite an entry).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from dagster_delta._version import __version__
from dagster_delta.clock import Clock, now_ms
from dagster_delta.errors import (
    CommitConflict,
    CommitRetriesExhausted,
    CommitStateUnknown,
    ConditionalPutUnsupported,
    CorruptLog,
    StorageFailure,
    VersionNotFound,
)
from dagster_delta.memory_limits import check_log_file_size
from dagster_delta.protocol.features.row_tracking import NO_ROW_IDS, parse_high_water_mark
from dagster_delta.protocol.log.commit_file import (
    CommitActions,
    decode_commit,
    in_commit_timestamp,
)
from dagster_delta.protocol.log.commit_writer import (
    CommitInfo,
    CommitSlot,
    PendingActions,
    encode_commit,
    spell_metrics,
    spell_parameters,
)
from dagster_delta.protocol.log.conflict_checker import TransactionFacts, check_conflicts
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.object_store import ObjectStore, is_in_catalog
from dagster_delta.storage.unreferenced_files import delete_unreferenced
from dagster_delta.table.log.reader import is_intact, list_log

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot

ENGINE_INFO = f"dagster-delta-protocol/{__version__}"

MAX_ATTEMPTS = 200
"""Number of taken versions after which a commit gives up."""
_MAX_PUTS_PER_VERSION = 3
_FREE_ATTEMPTS = 4
_MAX_PAUSE_SECONDS = 0.01
_CLOCK_SKEW_MS = 60_000


class CommitRequest(msgspec.Struct, frozen=True):
    """One commit, at a version that is not known yet."""

    base: Snapshot | None
    """The version that it was planned on; None if the table did not exist."""
    actions: PendingActions
    """Actions of the commit, without commitInfo."""
    facts: TransactionFacts
    """What it read and changes, for the conflict checker."""
    transaction_id: str
    """Unique id that identifies the commit after a lost reply."""
    operation: str
    parameters: Mapping[str, object]
    metrics: Mapping[str, int | str]
    user_info: Mapping[str, object]
    is_blind_append: bool
    in_commit_timestamps: bool
    """Whether the table keeps in-commit timestamps from this commit on."""
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Tags that the protocol requires in the commitInfo."""

    @property
    def read_version(self) -> int | None:
        """The number of that version."""
        return None if self.base is None else self.base.version

    def encode(self, progress: _Progress, *, timestamp_ms: int) -> bytes:
        """The commit's bytes as the successor of the commits so far."""
        # Spec: in-commit timestamps MUST be strictly greater than that of the previous commit.
        later_ms = max(timestamp_ms, progress.previous_ms + 1)
        in_commit_ms = later_ms if self.in_commit_timestamps else None
        info = CommitInfo(
            timestamp_ms=timestamp_ms,
            in_commit_timestamp_ms=in_commit_ms,
            operation=self.operation,
            operation_parameters=spell_parameters(self.parameters),
            operation_metrics=spell_metrics(self.metrics),
            engine_info=ENGINE_INFO,
            transaction_id=self.transaction_id,
            is_blind_append=self.is_blind_append,
            isolation_level=self.facts.isolation_level,
            read_version=progress.base_version,
            tags=self.tags,
        )
        slot = CommitSlot(progress.next_version, in_commit_ms, progress.highest_row_id)
        return encode_commit(info.with_user_info(self.user_info), self.actions.encode(slot))


def first_commit(request: CommitRequest, *, timestamp_ms: int) -> tuple[int, bytes]:
    """Version and bytes of the commit, if no other one comes first."""
    progress = _Progress.start(request)
    return progress.next_version, request.encode(progress, timestamp_ms=timestamp_ms)


class Committed(msgspec.Struct, frozen=True):
    """The commit is in the log."""

    version: int
    commits: tuple[tuple[int, bytes], ...]
    """Every commit after `read_version` up to and including this one: version and bytes."""


class Conflicted(msgspec.Struct, frozen=True):
    """The commit is certainly not in the log: it conflicts with a concurrent commit."""

    conflict: CommitConflict
    commits: tuple[tuple[int, bytes], ...]
    """Every commit after `read_version` that was read, the conflicting one among them: version and
    bytes. Empty if the log does not hold what was read before."""


class _Progress(msgspec.Struct):
    base_version: int | None
    previous_ms: int
    """What an in-commit timestamp has to exceed."""
    highest_row_id: int
    commits: list[tuple[int, bytes]]

    @classmethod
    def start(cls, request: CommitRequest) -> _Progress:
        """Before any commit that the version of a request does not hold."""
        base = request.base
        return cls(
            request.read_version,
            base.timestamp_ms if base and request.in_commit_timestamps else 0,
            base.highest_row_id if base else NO_ROW_IDS,
            [],
        )

    @property
    def next_version(self) -> int:
        return 0 if self.base_version is None else self.base_version + 1


def commit_with_retry(
    store: ObjectStore,
    request: CommitRequest,
    *,
    rebase: Callable[[Conflicted], CommitRequest | None] = lambda _: None,
    clock: Clock = now_ms,
    sleep: Callable[[float], None] = time.sleep,
    max_attempts: int = MAX_ATTEMPTS,
) -> Committed | Conflicted:
    """The commit in the log, or the conflict that prevented it.

    Args:
        store: store of the table.
        request: what to commit.
        rebase: what to commit instead after a conflict, planned on the commits that it lost to;
            None if it cannot follow them.
        clock: returns the commit's timestamp.
        sleep: waits between attempts, in seconds.
        max_attempts: number of taken versions after which it gives up.

    Raises:
        CommitRetriesExhausted: the version of every attempt was taken; the commit is not in the
            log.
        ConditionalPutUnsupported: the store cannot commit safely; the commit is not in the log.
        CommitStateUnknown: the store gave no answer: the commit may be in the log.
        InvalidTable: row ids cannot be assigned, or the commit of another writer is damaged, which
            is a CorruptLog; this commit is not in the log.
        UnsupportedFeature: a commit is too large to be read; this commit is not in the log.
        StorageFailure: the store refused the commit, and it has not appeared in the log so far.
    """
    if (replaced := _replaced_log(store, request)) is not None:
        return replaced
    progress, attempt = _Progress.start(request), 0
    while attempt < max_attempts:
        base, version = request.base, progress.next_version
        data = request.encode(progress, timestamp_ms=clock())
        # If this commit were unreadable, all later versions would be too.
        check_log_file_size(commit_path(version), len(data))
        outcome: Committed | Conflicted | None
        if _put_commit(store, version, data, request.transaction_id):
            outcome = Committed(version, (*progress.commits, (version, data)))
        else:
            # The pause comes before reading concurrent commits: otherwise commits made during the
            # pause would take the next version again and again.
            _pause_before_retry(attempt, sleep)
            outcome = _follow_commits(store, request, progress)
        if isinstance(outcome, Committed) and (attempt or not (base and base.keeps_log(clock()))):
            return _check_outcome(store, request, outcome)
        if isinstance(outcome, Conflicted) and (rebased := rebase(outcome)) is not None:
            # Attempts count for one request.
            request, progress, attempt = rebased, _Progress.start(rebased), 0
        elif outcome is not None:
            return outcome
        else:
            attempt += 1
    raise CommitRetriesExhausted(
        f"{max_attempts} attempts found their version taken by other writers; repeat the write "
        "when fewer of them are at work",
        table=store.location.uri,
        version=progress.next_version,
    )


def _replaced_log(store: ObjectStore, request: CommitRequest) -> Conflicted | None:
    """A conflict if the log does not hold the commit that the change was planned on any more."""
    known = request.base.known_commit if request.base else None
    if known is None or known.is_in(store):
        return None
    message = f"{known.absence}; read it again and repeat the write"
    return Conflicted(CommitConflict(message, version=known.version), ())


def _pause_before_retry(attempt: int, sleep: Callable[[float], None]) -> None:
    # If an attempt fails, another writer has committed, so the first retries need no pause; later
    # pauses spread writers that retry in lockstep. A pause longer than a few commits would only
    # favour writers that do not pause yet.
    if attempt >= _FREE_ATTEMPTS:
        longest = min(_MAX_PAUSE_SECONDS, 0.001 * 2 ** (attempt - _FREE_ATTEMPTS))
        sleep(random.uniform(0, longest))  # noqa: S311 - no secret depends on it


def _put_commit(store: ObjectStore, version: int, data: bytes, transaction_id: str) -> bool:
    """Whether the commit is in the log as `version`; False if another file may have that name."""
    path = commit_path(version)
    attempts_left = _MAX_PUTS_PER_VERSION
    while True:
        attempts_left -= 1
        try:
            store.put_if_absent(path, data)
        except FileExistsError:
            return False
        except ConditionalPutUnsupported:
            raise
        except StorageFailure as failure:
            # A request may fail after it took effect: only the log shows it. If the log has no file
            # there, the same bytes may be put again; whichever request arrives late, it is the same
            # commit.
            try:
                if store.head(path) is not None:
                    return False
            except StorageFailure as error:
                raise _explain_unknown_state(store, version, transaction_id, error) from failure
            if not attempts_left:
                raise
        else:
            return True


def _explain_unknown_state(
    store: ObjectStore, version: int, transaction_id: str, error: Exception
) -> CommitStateUnknown:
    return CommitStateUnknown(
        f"the store did not say whether the commit landed ({error}); look for txnId "
        f"{transaction_id} in the log from this version on before the write is repeated; its data "
        "files were kept",
        table=store.location.uri,
        version=version,
    )


def _check_outcome(
    store: ObjectStore, request: CommitRequest, outcome: Committed
) -> Committed | Conflicted:
    """The outcome of a commit, which is a conflict if a clean-up had deleted another commit of its
    version before it was put: then it lies below the first checkpoint, and is never read.
    """
    if is_in_catalog(store):
        # The catalog has the newest version, whatever was deleted below it.
        return outcome
    base, version = request.read_version, outcome.version
    try:
        if base is not None and is_intact(store, base, version):
            return outcome
        listed = list_log(store, start=version if base is None else base).commits
    except StorageFailure as failure:
        # The commit was put, whatever a look at the log says afterwards.
        raise _explain_unknown_state(store, version, request.transaction_id, failure) from failure
    if version not in listed:
        error = VersionNotFound(f"a clean-up has deleted version {version} of the log already")
        raise _explain_unknown_state(store, version, request.transaction_id, error)
    # The commits that follow this one are younger, up to the differences of a storage's clocks.
    before_ms = listed[version].modified_ms - (_CLOCK_SKEW_MS if base in listed else 0)
    if not any(file.modified_ms < before_ms for n, file in listed.items() if n > version):
        return outcome
    delete_unreferenced(store, [commit_path(version)])
    after = "" if base is None else f" after version {base}"
    message = (
        f"a clean-up of the log deleted the commits{after} before this commit was made, so that it "
        "could not follow them; read the table again and repeat the write"
    )
    return Conflicted(CommitConflict(message, version=version), ())


def _follow_commits(
    store: ObjectStore, request: CommitRequest, progress: _Progress
) -> Committed | Conflicted | None:
    """Read the concurrent commits; None if the commit may be retried on top of them."""
    contested, followed = progress.next_version, list[CommitActions]()
    while True:
        version = progress.next_version
        try:
            data = store.read(commit_path(version))
        except FileNotFoundError:
            # All at once: to look whether files hold rows that matter takes as long for one as for
            # many.
            conflict = check_conflicts(request.facts, followed)
            return None if conflict is None else Conflicted(conflict, tuple(progress.commits))
        except StorageFailure as error:
            if version > contested:
                raise
            # The store's own retries may have written our bytes without reporting it.
            raise _explain_unknown_state(store, version, request.transaction_id, error) from error
        try:
            concurrent = decode_commit(data, version=version)
        except CorruptLog as error:
            # It may be this commit, damaged afterwards.
            if request.transaction_id.encode() in data:
                raise _explain_unknown_state(
                    store, version, request.transaction_id, error
                ) from error
            raise
        followed.append(concurrent)
        progress.commits.append((version, data))
        info = concurrent.commit_info or {}
        if info.get("txnId") == request.transaction_id:
            return Committed(version, tuple(progress.commits))
        progress.base_version = version
        progress.previous_ms = max(progress.previous_ms, in_commit_timestamp(info) or 0)
        assigned = parse_high_water_mark(concurrent.domain_metadata)
        progress.highest_row_id = max(progress.highest_row_id, assigned)
