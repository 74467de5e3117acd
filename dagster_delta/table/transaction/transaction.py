"""One optimistic change of a table: planned on a snapshot, committed once or not at all.

Spec: Delta Log Entries; Transaction Identifiers; Domain Metadata.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dagster_delta.clock import Clock, now_ms
from dagster_delta.errors import (
    CommitRetriesExhausted,
    ConcurrentTransaction,
    ConditionalPutUnsupported,
    InvalidArgument,
    InvalidTable,
    UnsupportedFeature,
)
from dagster_delta.protocol.actions import (
    AddCDCFile,
    AddFile,
    DomainMetadata,
    Metadata,
    RemoveFile,
    SetTransaction,
)
from dagster_delta.protocol.features.column_values import advance_high_water_marks
from dagster_delta.protocol.features.iceberg_compat import check_iceberg_compat
from dagster_delta.protocol.features.row_tracking import ROW_IDS_KEPT_TAG, materialized_columns
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_file import CommitContents
from dagster_delta.protocol.log.commit_writer import PendingActions
from dagster_delta.protocol.log.conflict_checker import ReadScope, TransactionFacts, isolation_level
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectStore, is_in_catalog
from dagster_delta.storage.unreferenced_files import CreatedFiles
from dagster_delta.table.log.reader import check_writable, read_checksum_after, read_commits_after
from dagster_delta.table.log_upkeep.post_commit import follow_commit
from dagster_delta.table.read.snapshot import Snapshot, advanced
from dagster_delta.table.transaction.commit_result import (
    CHANGE_MEMORY,
    FOLLOWED_TABLE_PREFIX,
    LOADED_FILE_PREFIX,
    MEMORY_GENERATION,
    NOT_FOLLOWED,
    AppTransaction,
    CommitResult,
)
from dagster_delta.table.transaction.committer import (
    MAX_ATTEMPTS,
    CommitRequest,
    Committed,
    Conflicted,
    commit_with_retry,
    first_commit,
)

if TYPE_CHECKING:
    from dagster_delta.table.transaction.conflicts import MovedGroups, RowChange, SelectsRows
    from dagster_delta.table.transaction.retries import StatementOptions
    from dagster_delta.table.transaction.staged_write import StagedWrite

__all__ = ["AppTransaction", "CommitResult", "Transaction"]

_OF_ROWS = (FOLLOWED_TABLE_PREFIX, LOADED_FILE_PREFIX, CHANGE_MEMORY, MEMORY_GENERATION)
"""Begin the ids of applications whose versions say something about the rows of the table."""


@dataclass(slots=True)
class Transaction:
    """A change of one table, staged and then committed.

    Args:
        store: store of the table.
        snapshot: what the change is planned on; None where there is no table yet.
        clock: gives timestamps.

    Raises:
        ConditionalPutUnsupported: the store cannot commit safely.
        UnsupportedFeature, UnsupportedWriterVersion: the table cannot be written by this library.
        CorruptLog: the newest commit is damaged.
    """

    store: ObjectStore
    snapshot: Snapshot | None
    clock: Clock = now_ms
    _staged: TableConfiguration | None = field(default=None, init=False)
    _reads: ReadScope = field(default_factory=ReadScope, init=False)
    _selects: SelectsRows | None = field(default=None, init=False)
    _moved: MovedGroups | None = field(default=None, init=False)
    _adds: list[AddFile] = field(default_factory=list, init=False)
    _removes: list[RemoveFile] = field(default_factory=list, init=False)
    _change_files: list[AddCDCFile] = field(default_factory=list, init=False)
    prepare: Callable[[Callable[[], StagedWrite]], Mapping[str, object]] | None = field(
        default=None, init=False
    )
    """Called before each attempt to commit, with what makes the state that it would commit; its
    result is added to the commitInfo. An error leaves the table as it is."""
    is_audited: bool = field(default=False, init=False)
    """Whether changes of rows by others are conflicts, wherever they are."""
    created_files: CreatedFiles = field(init=False)
    """The files written for the change, until it is committed."""
    _applications: dict[str, int] = field(default_factory=dict, init=False)
    _domains: dict[str, DomainMetadata] = field(default_factory=dict, init=False)
    _keeps_row_ids: bool = field(default=False, init=False)
    _protects_checkpoints: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.created_files = CreatedFiles(self.store)
        if not self.store.supports_put_if_absent:
            raise ConditionalPutUnsupported(
                "this storage cannot create a file only if it is absent, so two writers could "
                "overwrite each other's commits; the table is read-only here",
                table=self.store.location.uri,
            )
        if self.snapshot is not None:
            check_writable(self.store, self.snapshot.configuration, self.snapshot.version)
            self.snapshot.check_newest_commit()

    @property
    def read_version(self) -> int | None:
        """Version the change is planned on; None where there is no table yet."""
        return None if self.snapshot is None else self.snapshot.version

    @property
    def configuration(self) -> TableConfiguration:
        """Protocol and metadata as they will be after the commit.

        Raises:
            InvalidArgument: there is no table and none has been staged.
        """
        if self._staged is not None:
            return self._staged
        if self.snapshot is None:
            raise InvalidArgument(
                "the table does not exist, and the transaction does not say what it is to be",
                table=self.store.location.uri,
            )
        return self.snapshot.configuration

    def check_may_remove(self, what: str) -> None:
        """Refuse that rows leave an append-only table; `what` would remove them."""
        before = self.configuration if self.snapshot is None else self.snapshot.configuration
        if before.append_only:
            # Spec: new log entries MUST NOT change or remove data from the table.
            raise UnsupportedFeature(
                f"the table is append-only (delta.appendOnly), and {what} would remove rows; "
                "append instead, or unset the property first",
                table=self.store.location.uri,
                version=self.read_version,
            )

    def stage_configuration(
        self, configuration: TableConfiguration, *, force: bool = False
    ) -> None:
        """Add protocol and metadata to the commit, if they change. `force` allows that readers
        which the table names give wrong rows of it.

        Raises:
            SchemaChangeRefused: such a reader would give wrong rows without an error.
            InvalidArgument: the table is to stay readable as Iceberg, and would not.
            UnsupportedFeature, UnsupportedWriterVersion: this library cannot write such a table.
        """
        table = self.store.location.uri
        version = 0 if self.read_version is None else self.read_version + 1
        check_writable(self.store, configuration, version)
        if is_in_catalog(self.store):
            # Imported late, as below.
            from dagster_delta.table.catalog_rules import check_contract

            check_contract(self.store, configuration, table=table)
        check_iceberg_compat(configuration)
        if not force:
            # Imported late: most commits change no configuration.
            from dagster_delta.evolution.programs import check_readers

            before = None if self.snapshot is None else self.snapshot.configuration
            check_readers(before, configuration, table=table)
        self._staged = configuration

    def stage_high_water_marks(self, marks: Mapping[str, int]) -> None:
        """Record the last values of identity columns that were given out for this change, so that
        no later one repeats them; a concurrent change of the metadata is a conflict then.

        Args:
            marks: last value by logical name of the column; none changes nothing.
        """
        if marks:
            # Spec: delta.identity.highWaterMark is updated when the write commits.
            self.stage_configuration(advance_high_water_marks(self.configuration, marks))

    def depend_on(self, reads: ReadScope, *, selects: SelectsRows | None = None) -> None:
        """Declare which part of the table the change depends on, replacing what was declared.

        Args:
            reads: that part.
            selects: for a change of single rows, whether new files that it may depend on hold a row
                that it would have selected; it then conflicts only with changes of the same rows.
        """
        self._reads, self._selects = reads, selects

    def stage_written(self, files: Iterable[AddFile]) -> None:
        """Add data files that were written for this change and are deleted if it fails."""
        for file in files:
            self._adds.append(file)
            self.created_files.add([decode_path(file.path)])

    def stage_readded(self, files: Iterable[AddFile], *, written: Iterable[str] = ()) -> None:
        """Add logical files whose data files are already in the table.

        Args:
            files: with other deletion vectors, say.
            written: paths of files that were made for it and are deleted if the change fails.
        """
        self._adds.extend(files)
        self.created_files.add(written)

    def stage_change_files(self, files: Iterable[AddCDCFile]) -> None:
        """Add change data files that were written for this change and are deleted if it fails."""
        for file in files:
            self._change_files.append(file)
            self.created_files.add([decode_path(file.path)])

    def stage_removed(self, removes: Iterable[RemoveFile]) -> None:
        """Remove logical files from the table."""
        self._removes.extend(removes)

    def _stage_moved(self, moved: MovedGroups) -> None:
        """Replace groups of files, of which those that others change meanwhile may be left out."""
        self._moved = moved
        self.stage_written(moved.adds)
        self.stage_removed(moved.removes)

    def declare_row_ids_kept(self) -> None:
        """Declare that every row moved to another file keeps its row id, and its row commit version
        unless it changes; otherwise such a commit says that ids were lost.
        """
        self._keeps_row_ids = True

    def protect_earlier_checkpoints(self) -> None:
        """Protect the checkpoints before the commit until all of them can be deleted at once. The
        staged configuration must support `checkpointProtection`.
        """
        self._protects_checkpoints = True

    def record_application(self, app_id: str, version: int) -> None:
        """Record that an application has reached `version`, as part of the commit."""
        self._applications[app_id] = version

    def advance_application(self, progress: AppTransaction) -> None:
        """Record the progress of an application as part of the commit, if it is still where the
        change expects it.

        Raises:
            ConcurrentTransaction: it is somewhere else than where it should start from.
        """
        found = None
        if self.snapshot is not None:
            found = self.snapshot.transaction_version(progress.app_id)
        if found != progress.after:
            raise ConcurrentTransaction(
                f"the application {progress.app_id!r} was to continue from version "
                f"{progress.after}, and the table has it at {found}: another run of it has "
                "committed meanwhile; plan the work again from there",
                table=self.store.location.uri,
                version=self.read_version,
            )
        self.record_application(progress.app_id, progress.version)

    def stage_applications(self, options: StatementOptions) -> None:
        """Record applications as part of the commit, each if it is still where it is expected.

        Raises:
            ConcurrentTransaction: the table has another version of an application than expected.
        """
        if options.idempotency is not None:
            self.record_application(*options.idempotency)
        for progress in options.progress:
            self.advance_application(progress)

    def follow_rows_of(self, target: Snapshot | None) -> None:
        """Record how far all rows follow other tables, and which files they are of, for a commit
        that replaces them by those of another version; None for no rows.
        """
        for app_id, version in positions_to_change(self.snapshot, target).items():
            self.record_application(app_id, version)

    def stage_domain(self, *domains: DomainMetadata) -> None:
        """Set or remove metadata domains of the protocol, for callers that follow its rules."""
        self._domains |= {domain.domain: domain for domain in domains}

    def set_domain_metadata(self, domain: str, configuration: str) -> None:
        """Set a user-defined metadata domain.

        Raises:
            InvalidArgument: the domain is one of the protocol's own.
            UnsupportedFeature: the table does not support metadata domains.
        """
        if domain.startswith("delta."):
            # Spec: clients MUST NOT allow users to modify system-controlled domains.
            raise InvalidArgument(
                f"the metadata domain {domain} belongs to the protocol; choose a name that does "
                "not start with 'delta.'"
            )
        if not self.configuration.supports("domainMetadata"):
            raise UnsupportedFeature(
                "the table does not support metadata domains; create it with the property "
                "delta.feature.domainMetadata = supported",
                table=self.store.location.uri,
            )
        self.stage_domain(DomainMetadata(domain=domain, configuration=configuration, removed=False))

    def commit(
        self,
        operation: str,
        *,
        parameters: Mapping[str, object] | None = None,
        metrics: Mapping[str, int | str] | Callable[[], Mapping[str, int]] | None = None,
        user_info: Mapping[str, object] | None = None,
        keeps_files: bool = False,
    ) -> CommitResult:
        """Commit the change as the next version, rebased on concurrent commits where that is safe.

        Args:
            operation: what was done, by the name other engines know.
            parameters: of the operation.
            metrics: of the operation, or what counts them when the files to commit are known.
            user_info: kept in the commitInfo beside ours.
            keeps_files: whether a conflict leaves the files written for it, for another attempt.

        Raises:
            CommitConflict: another writer won and the change cannot be rebased.
            CommitStateUnknown: the store would not say whether the commit landed; nothing is
                deleted.
            CorruptLog: another writer won and its commit is damaged; the files written for the
                change are deleted.
            InvalidArgument: `user_info` cannot be recorded.
            UnsupportedFeature: the table is append-only and rows would be removed.
            StorageFailure: the store refused; nothing is deleted.
        """
        started_ms = self.clock()

        def build_request() -> CommitRequest:
            counted = (metrics() if callable(metrics) else metrics) or {}
            return self._build_request(operation, parameters or {}, dict(counted), user_info or {})

        request, outcome = self._commit_or_rebase(build_request)
        if isinstance(outcome, Conflicted):
            if not keeps_files:
                self.created_files.delete()
            outcome.conflict.table = self.store.location.uri
            raise outcome.conflict
        newest = follow_commit(self.store, self.snapshot, outcome.commits, clock=self.clock)
        newest.seen_ms = started_ms
        return CommitResult(outcome.version, request.metrics, newest)

    def _commit_or_rebase(
        self, build_request: Callable[[], CommitRequest]
    ) -> tuple[CommitRequest, Committed | Conflicted]:
        """The last request, and its outcome."""
        request: CommitRequest
        created = self.created_files.paths

        def rebase(lost: Conflicted) -> CommitRequest | None:
            nonlocal created, request
            self.created_files.add(created)
            created = ()
            with self.created_files:
                if not self._merge_concurrent_row_changes(lost):
                    return None
                request = build_request()
            created = self.created_files.paths
            self.created_files.release()
            return request

        try:
            request = self._prepare_request(build_request())
            # From here on the log may refer to them, whatever is raised.
            self.created_files.release()
            outcome = commit_with_retry(self.store, request, rebase=rebase, clock=self.clock)
        except (
            CommitRetriesExhausted,
            ConditionalPutUnsupported,
            InvalidArgument,
            InvalidTable,
            UnsupportedFeature,
        ):
            # These say that the commit is surely not in the log.
            self.created_files.add(created)
            self.created_files.delete()
            raise
        if isinstance(outcome, Conflicted):
            self.created_files.add(created)
        return request, outcome

    def _prepare_request(self, request: CommitRequest) -> CommitRequest:
        """The request after `prepare`; if that fails, the files of the change are deleted."""
        if self.prepare is None:
            return request
        with self.created_files:
            noted = self.prepare(lambda: self._staged_write(request))
        return replace(request, user_info={**request.user_info, **noted})

    def _staged_write(self, request: CommitRequest) -> StagedWrite:
        now_ms, written = self.clock(), set(self.created_files.paths)
        commit = first_commit(request, timestamp_ms=now_ms)
        configuration = self.configuration
        contents = CommitContents(
            protocol=configuration.protocol,
            metadata=configuration.metadata,
            txns=(),
            domain_metadata=(),
            removes=(),
            adds=tuple(add for add in self._adds if decode_path(add.path) in written),
            cdc=(),
        )
        tracks_rows = configuration.assigns_row_ids
        actions = PendingActions(contents, tracks_rows=tracks_rows)
        rows = first_commit(replace(request, base=None, actions=actions), timestamp_ms=now_ms)
        # Imported late: few writes are audited.
        from dagster_delta.table.transaction.staged_write import StagedWrite

        return StagedWrite(
            table=advanced(self.store, self.snapshot, [commit]),
            rows=advanced(self.store, None, [rows]),
            before=self.snapshot,
        )

    def _merge_concurrent_row_changes(self, lost: Conflicted) -> bool:
        """Whether the change was moved on top of commits about other rows."""
        changes_rows = self._selects is not None or self._moved is not None
        if self.snapshot is None or not changes_rows or self._staged is not None:
            return False
        if self.is_audited:
            return False
        if not lost.commits:
            return False
        from dagster_delta.table.transaction import conflicts

        # Each of the commits that have followed by now would be another conflict.
        newer = read_commits_after(self.store, lost.commits[-1][0], at_most=MAX_ATTEMPTS)
        if newer is None:
            return False
        commits = [*lost.commits, *newer]
        facts = self._collect_facts(self._collect_contents())
        others = conflicts.concurrent_row_changes(lost.conflict, commits, facts)
        if others is None:
            return False
        change: RowChange | MovedGroups | None = self._moved
        if change is None:
            assert self._selects is not None  # noqa: S101
            change = conflicts.RowChange(self._adds, self._removes, self._reads, self._selects)
        rebased = conflicts.rebase_rows(self.store, self.configuration, change, others)
        if rebased is None:
            return False
        self.created_files.add(rebased.new_files)
        checksum = read_checksum_after(self.store, self.snapshot.checksum, commits)
        self.snapshot = advanced(self.store, self.snapshot, commits, checksum=checksum)
        superseded = conflicts.referenced_files(self._adds) - conflicts.referenced_files(
            rebased.adds
        )
        self.created_files.delete(keep=set(self.created_files.paths) - superseded)
        self._adds, self._removes = list(rebased.adds), list(rebased.removes)
        return True

    def _build_request(
        self,
        operation: str,
        parameters: Mapping[str, object],
        metrics: Mapping[str, int | str],
        user_info: Mapping[str, object],
    ) -> CommitRequest:
        contents, base, configuration = self._collect_contents(), self.snapshot, self.configuration
        current = configuration if base is None else base.configuration
        if contents.removes_data:
            self.check_may_remove("this write")
        has_timestamps = configuration.in_commit_timestamps_enabled
        tags = {}
        if configuration.row_tracking_enabled:
            tags[ROW_IDS_KEPT_TAG] = "true" if self._row_ids_stay() else "false"
        return CommitRequest(
            base=base,
            actions=PendingActions(
                contents,
                tracks_rows=configuration.assigns_row_ids,
                # Spec: a table that has them from its first version on does not say when they
                # began.
                starts_in_commit_timestamps=has_timestamps
                and not current.in_commit_timestamps_enabled,
                protects_checkpoints=self._protects_checkpoints,
            ),
            facts=self._collect_facts(contents),
            transaction_id=str(uuid.uuid4()),
            operation=operation,
            parameters=parameters,
            metrics=metrics,
            user_info=user_info,
            is_blind_append=self._reads.is_empty and not contents.removes,
            in_commit_timestamps=has_timestamps,
            tags=tags,
        )

    def _row_ids_stay(self) -> bool:
        # Spec: true where no row was updated or copied, or all of them kept their ids.
        written = set(self.created_files.paths)
        moves_rows = bool(self._removes) and any(
            decode_path(add.path) in written for add in self._adds
        )
        return not moves_rows or (
            self._keeps_row_ids and materialized_columns(self.configuration) is not None
        )

    def _collect_contents(self) -> CommitContents:
        old = None if self.snapshot is None else self.snapshot.configuration
        new = self._staged
        # The property that protects checkpoints comes in when the version is known.
        metadata = new.metadata if new else None
        if old and metadata == old.metadata and not self._protects_checkpoints:
            metadata = None
        return CommitContents(
            protocol=new.protocol if new and (not old or new.protocol != old.protocol) else None,
            metadata=metadata,
            txns=tuple(
                SetTransaction(app_id=app_id, version=version, last_updated_ms=self.clock())
                for app_id, version in self._applications.items()
            ),
            domain_metadata=tuple(self._domains.values()),
            removes=tuple(self._removes),
            adds=tuple(self._adds),
            cdc=tuple(self._change_files),
        )

    def _collect_facts(self, contents: CommitContents) -> TransactionFacts:
        old = None if self.snapshot is None else self.snapshot.configuration
        return TransactionFacts(
            protocol=old.protocol if old else None,
            metadata=old.metadata if old else None,
            isolation_level=isolation_level(self.configuration, contents),
            reads=self._reads,
            removed_paths=frozenset(remove.path for remove in contents.removes),
            changes_metadata=contents.metadata is not None,
            app_ids=frozenset(self._applications),
            domains=frozenset(self._domains),
            is_audited=self.is_audited,
            survives=self._metadata_check(contents),
        )

    def _metadata_check(self, contents: CommitContents) -> Callable[[Metadata], bool] | None:
        """Which metadata of others the change can live with: a step of a column change."""
        if self.snapshot is None or contents.metadata is not None or contents.protocol is not None:
            return None
        mine, change_files = self.snapshot.metadata, contents.cdc

        def survives(concurrent: Metadata) -> bool:
            from dagster_delta.evolution.column_change import survives_column_change

            # What is recorded for the feed has the columns of the old schema.
            return not change_files and survives_column_change(mine, concurrent, contents.adds)

        return survives


def positions_to_change(now: Snapshot | None, then: Snapshot | None) -> dict[str, int]:
    """The positions of applications, by their id, that a table has to record for its rows to become
    those of another version.
    """
    known, wanted = (
        {
            position.app_id: position.version
            for position in (() if snapshot is None else snapshot.transactions())
            if position.app_id.startswith(_OF_ROWS)
        }
        for snapshot in (now, then)
    )
    versions = {app_id: wanted.get(app_id, NOT_FOLLOWED) for app_id in {**known, **wanted}}
    return {name: version for name, version in versions.items() if known.get(name) != version}
