"""Publishes a table of a branch: production gets its rows, schema and properties in one commit.

Files that the branch wrote are copied under new names; those that it took over from production stay
where they are. Production records the branch's table and version as a `txn` action, so a repeated
publication changes nothing.

Spec: Add File and Remove File; Deletion Vectors; Transaction Identifiers; Row Tracking.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.clock import Clock, now_ms
from dagster_delta.errors import CommitConflict, InvalidArgument, VersionNotFound
from dagster_delta.evolution.plan_report import configuration_lines, schema_lines
from dagster_delta.evolution.programs import READERS_PROPERTY
from dagster_delta.evolution.properties import set_properties, unset_properties
from dagster_delta.protocol.actions import AddFile, DeletionVectorDescriptor
from dagster_delta.protocol.features.column_change import COLUMN_CHANGE_KEY
from dagster_delta.protocol.features.deletion_vectors import deletion_vector_path, encode_z85
from dagster_delta.protocol.features.row_tracking import ROW_TRACKING_DOMAIN
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_file import decode_commit
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.log.replay import DELETION_VECTOR_TYPE
from dagster_delta.protocol.table_properties import BRANCH_PROPERTIES
from dagster_delta.protocol.values.arrow_columns import column_of, string_column
from dagster_delta.protocol.values.partition_values import (
    decode_path,
    encode_path,
    partition_directory,
)
from dagster_delta.storage import open_store
from dagster_delta.storage.locations import absolute_uri, scheme_of
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.branches.branch_handle import (
    BranchHandle,
    is_published,
    load_published,
    publication_id,
)
from dagster_delta.table.branches.published_changes import (
    BranchCommits,
    RecordedChanges,
    first_version,
)
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.log.reader import read_commit
from dagster_delta.table.operations.change_memory import ChangeMemory, follows_events
from dagster_delta.table.operations.clone import (
    OF_THE_LOG,
    FileCopy,
    copy_files,
    refer_to_files,
    relative_path_in,
)
from dagster_delta.table.operations.clustering import followed_clustering
from dagster_delta.table.operations.restore import (
    file_difference,
    restored_configuration,
    with_row_ids,
)
from dagster_delta.table.read.branch_tables import BranchBase
from dagster_delta.table.read.change_data_feed import MAX_COMPARED_BYTES, ChangeDataFeed
from dagster_delta.table.read.snapshot import Snapshot, find_snapshot
from dagster_delta.table.transaction.commit_result import (
    CHANGE_MEMORY,
    FOLLOWED_TABLE_PREFIX,
    LOADED_FILE_PREFIX,
    NOT_FOLLOWED,
)
from dagster_delta.table.transaction.file_actions import added_again, tombstones
from dagster_delta.table.transaction.followed_tables import application_id, position_at, version_of
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

_PUBLISHED_SWITCHES = ("delta.enableInCommitTimestamps", READERS_PROPERTY)
"""Properties that a RESTORE leaves as they are, and a publication sets."""
_FOLLOWED_PREFIXES = (FOLLOWED_TABLE_PREFIX, LOADED_FILE_PREFIX)
_OF_ROWS = (*_FOLLOWED_PREFIXES, CHANGE_MEMORY)

_REBASE = (
    "let the branch begin again from production (rebase), and materialize the asset in it again"
)


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """What publishing a table of a branch changes in production. It was not committed."""

    branch: str
    production_uri: str
    head: Snapshot
    """The branch's table."""
    base: Snapshot | None
    """The version of production that it began with; None if production has no table."""
    configuration: TableConfiguration
    """Protocol and metadata of production afterwards."""
    entering: pa.Table
    """The files that production gets, as `Snapshot.live_files`."""
    renumbered: pa.Table
    """Files that it has, and that get other row ids."""
    leaving: pa.Table
    """The files that leave it."""
    copies: tuple[FileCopy, ...] = ()
    """The files to copy from the branch."""
    dropped_features: tuple[str, ...] = ()
    """The table features that the branch has dropped, for which the publication is refused."""
    changes_memory: bool = False
    """Whether the branch has changed what AUTO CDC remembers of change events."""
    is_published: bool = False
    """Whether production has all of it already."""
    is_untouched: bool = False
    """Whether the branch has made no commit: whatever production did since stands."""

    @property
    def changes_anything(self) -> bool:
        """Whether the branch's table differs from what it began with, and is not published."""
        base = self.base
        if self.is_published or self.is_untouched:
            return False
        if base is None or self.entering.num_rows or self.leaving.num_rows:
            return True
        if self.dropped_features or self.changes_memory:
            return True
        return bool(self.renumbered.num_rows) or (
            self.configuration.metadata != base.metadata
            or self.configuration.protocol != base.protocol
            or bool(followed_clustering(base, self.head))
            or _followed(base) != _followed(self.head)
        )

    def changes(self, *, max_bytes: int | None = MAX_COMPARED_BYTES) -> ChangeDataFeed:
        """What the branch has changed in the rows since it began: one row per changed row and
        commit of the branch.

        Args:
            max_bytes: as for `DeltaTable.changes`.

        Raises:
            VersionNotFound: a clean-up has deleted a commit of the branch.
            SchemaMismatch: the rows of older commits cannot be shown with the branch's schema.
            ChangeDataNotRecorded: more bytes would have to be compared.
        """
        start = self.head.version + 1 if self.is_published else first_version(self.head)
        return ChangeDataFeed(self.head, start, max_bytes=max_bytes)

    def recorded_changes(self) -> RecordedChanges | None:
        """What production's change data feed may have to record; None if nothing."""
        return RecordedChanges.plan(
            self.head, self.base, self.configuration, self.entering, self.leaving
        )

    def describe_dropped_features(self) -> str:
        """Why the features that the branch has dropped prevent its publication, and what to do."""
        names = ", ".join(self.dropped_features)
        return (
            f"the branch has dropped the table feature {names}, which the older versions of "
            "production need: set delta.feature.<name> = supported in the branch's table, publish "
            "it, and drop the feature in production"
        )

    def to_markdown(self) -> str:
        """The difference for people: rows, files, bytes, schema, properties."""
        return "\n".join(self._render_lines()) + "\n"

    def _render_lines(self) -> Iterator[str]:
        base, head = self.base, self.head
        if self.is_published:
            yield f"Production has version {head.version} of the branch's table."
            return
        if not self.changes_anything:
            yield "The branch has not changed the table."
            return
        before = "no table" if base is None else f"version {base.version}"
        yield f"| | production, {before} | branch {self.branch}, version {head.version} | |"
        yield "|---|---:|---:|---:|"
        figures = (
            ("rows", None if base is None else base.num_records, head.num_records),
            ("files", None if base is None else base.num_files, head.num_files),
            ("bytes", None if base is None else base.size_bytes, head.size_bytes),
        )
        for name, now, then in figures:
            change = "" if now is None or then is None else f"{then - now:+,}"
            yield f"| {name} | {_spell(now)} | {_spell(then)} | {change} |"
        yield ""
        yield (
            f"- {self.entering.num_rows:,} files with {_spell(_count_rows(self.entering))} rows "
            f"({total_bytes(self.entering):,} bytes) come in"
        )
        yield (
            f"- {self.leaving.num_rows:,} files with {_spell(_count_rows(self.leaving))} rows "
            f"({total_bytes(self.leaving):,} bytes) leave"
        )
        if (recorded := self.recorded_changes()) is not None:
            yield (
                f"- files of {recorded.compared_bytes:,} bytes are compared at most, to record the "
                "changed rows for the change data feed"
            )
        if self.changes_memory:
            yield "- what AUTO CDC remembers of change events comes in"
        if self.dropped_features:
            yield f"- **cannot be published**: {self.describe_dropped_features()}"
        if base is not None:
            yield from configuration_lines(base.configuration, self.configuration)
            yield from schema_lines(base.schema, self.configuration.schema)


def plan_publication(branch: BranchHandle, production: str) -> Publication:
    """What publishing a table would change. It writes nothing.

    Raises:
        InvalidArgument: the branch has no such table, or a column change of it is in progress.
        CommitConflict: production has changed since the branch's table began with it.
    """
    head = _load_head(branch, production)
    newest = find_snapshot(open_store(production, branch.production_options))
    begun_with = BranchBase.of(head)
    is_untouched = begun_with is not None and head.version == begun_with.clone_version
    if newest is not None and (is_published(head, newest) or is_untouched):
        none = newest.live_files().slice(0, 0)
        return Publication(
            branch=branch.name,
            production_uri=production,
            head=head,
            base=newest,
            configuration=newest.configuration,
            entering=none,
            renumbered=none,
            leaving=none,
            is_published=is_published(head, newest),
            is_untouched=is_untouched,
        )
    base = _load_base(branch, head, newest, production)
    begun = _load_beginning(head, base)
    dropped = set() if begun is None else begun.features - head.configuration.features
    named = _NamedFiles(head, base)
    files = named.of(head.live_files())
    now = files.slice(0, 0) if base is None else base.live_files()
    entering, renumbered, leaving = file_difference(now, files)
    return Publication(
        branch=branch.name,
        production_uri=production,
        head=head,
        base=base,
        configuration=_published_configuration(head, base, begun),
        entering=entering,
        renumbered=renumbered,
        leaving=leaving,
        copies=tuple(named.copies.values()),
        dropped_features=tuple(sorted(dropped)),
        changes_memory=_changes_memory(head, base),
    )


def publish_tables(
    branch: BranchHandle,
    tables: Sequence[str] | None = None,
    *,
    commit_info: Mapping[str, object] | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
    on_published: Callable[[str, CommitResult], None] | None = None,
    max_bytes: int | None = MAX_COMPARED_BYTES,
    clock: Clock = now_ms,
) -> dict[str, CommitResult]:
    """Publish tables of a branch to production; see `Branch.publish`. `clock` gives timestamps."""
    heads = {uri: _load_head(branch, uri) for uri in branch.tables()}
    chosen = list(heads if tables is None else dict.fromkeys(map(absolute_uri, tables)))
    for uri in chosen:
        if uri not in heads:
            heads[uri] = _load_head(branch, uri)
    own = {head.metadata.id: uri for uri, head in heads.items()}
    positions, results = _Positions(branch, own, heads), dict[str, CommitResult]()
    for uri in _order_by_reading({uri: heads[uri] for uri in chosen}, own):

        def progress(done: int, total: int, uri: str = uri) -> None:
            if on_progress is not None:
                on_progress(uri, done, total)

        result = _publish_table(branch, uri, positions, commit_info, progress, max_bytes, clock)
        results[uri] = result
        published = result.snapshot.transaction_version(publication_id(heads[uri].metadata.id))
        if on_published is not None and published is not None:
            on_published(uri, result)
    return results


def _publish_table(
    branch: BranchHandle,
    uri: str,
    positions: _Positions,
    commit_info: Mapping[str, object] | None,
    on_progress: Callable[[int, int], None],
    max_bytes: int | None,
    clock: Clock,
) -> CommitResult:
    planned, store = plan_publication(branch, uri), open_store(uri, branch.production_options)
    if planned.base is not None and not planned.changes_anything:
        return CommitResult(planned.base.version, {}, planned.base, skipped=True)
    if planned.dropped_features:
        reason, at = planned.describe_dropped_features(), planned.head
        raise InvalidArgument(reason, table=at.store.location.uri, version=at.version)
    transaction = Transaction(store, planned.base, clock=clock)
    moved, commits = positions.translate(planned), BranchCommits.of(planned.head)
    recorded = planned.recorded_changes()
    if recorded is not None and not recorded.is_needed(commits, max_bytes):
        recorded = None
    try:
        with transaction.created_files:
            commits = _write_files(transaction, planned, commits, recorded, on_progress)
            moved |= _publish_memory(planned, store, commit_info)
            _stage_publication(transaction, planned, moved, commits)
        return transaction.commit(
            "PUBLISH BRANCH",
            parameters={
                "branch": branch.name,
                "branchTable": planned.head.store.location.uri,
                "branchVersion": planned.head.version,
            },
            metrics={
                "numFiles": planned.entering.num_rows,
                "numRemovedFiles": planned.leaving.num_rows,
                "numCopiedFiles": len(planned.copies),
                "numOutputBytes": total_bytes(planned.entering),
            },
            user_info=commit_info,
        )
    except CommitConflict as conflict:
        newest = find_snapshot(store)
        if newest is not None and is_published(planned.head, newest):
            # Another call published the same version of the branch's table meanwhile.
            return CommitResult(newest.version, {}, newest, skipped=True)
        conflict.message += f". To publish on top of it, {_REBASE}"
        raise


def _write_files(
    transaction: Transaction,
    planned: Publication,
    commits: BranchCommits,
    recorded: RecordedChanges | None,
    on_progress: Callable[[int, int], None],
) -> BranchCommits:
    """Copy the branch's files and record its changes; what its commits did, as known by then."""
    # The names are new, so they are those of this attempt alone, and may be deleted with it.
    transaction.created_files.add(copy.target for copy in planned.copies)
    copy_files(planned.head, transaction.store, planned.copies, on_progress)
    if recorded is None:
        return commits
    files = recorded.write(transaction.store)
    transaction.stage_change_files(files)
    # Readers of the feed would otherwise take the rows of all files as changed.
    return replace(commits, changes_rows=bool(files))


def _stage_publication(
    transaction: Transaction,
    planned: Publication,
    positions: Mapping[str, int],
    commits: BranchCommits,
) -> None:
    transaction.stage_configuration(planned.configuration, force=True)
    transaction.is_audited = True
    # A file that has got other row ids must not come back after a compaction has removed it.
    transaction.depend_on(ReadScope(paths=frozenset(planned.renumbered["path"].to_pylist())))
    adds: Sequence[AddFile] = [
        *added_again(planned.entering, data_change=commits.changes_rows),
        *added_again(planned.renumbered, data_change=False),
    ]
    domains = followed_clustering(planned.base, planned.head)
    if planned.configuration.supports("rowTracking"):
        adds, row_ids = with_row_ids(adds, planned.head, planned.base)
        domains += row_ids
        if commits.keeps_row_ids:
            transaction.declare_row_ids_kept()
    transaction.stage_domain(*domains)
    transaction.stage_removed(
        tombstones(planned.leaving, transaction.clock(), data_change=commits.changes_rows)
    )
    for followed, version in positions.items():
        transaction.record_application(followed, version)
    transaction.record_application(publication_id(planned.head.metadata.id), planned.head.version)
    transaction.stage_readded(adds)


def _load_head(branch: BranchHandle, production: str) -> Snapshot:
    head = branch.find(production)
    if head is None:
        raise InvalidArgument(
            f"the branch {branch.name!r} has no table of its own for this one: nothing is there to "
            "publish or compare; its tables are those it has written",
            table=production,
        )
    if COLUMN_CHANGE_KEY in head.metadata.configuration:
        raise InvalidArgument(
            "a column change of the branch's table is in progress: finish or cancel it first",
            table=head.store.location.uri,
            version=head.version,
        )
    return head


def _load_base(
    branch: BranchHandle, head: Snapshot, newest: Snapshot | None, production: str
) -> Snapshot | None:
    """The version of production that the branch's table began with, if it still stands."""
    base = BranchBase.of(head)
    if newest is None:
        if base is None:
            return None
        raise CommitConflict(
            f"production's table is gone since the branch {branch.name!r} began with version "
            f"{base.version} of it: restore it, or drop the branch",
            table=production,
        )
    if base is None or newest.metadata.id != base.table_id:
        raise CommitConflict(
            f"another table was created in production since the branch {branch.name!r} began: "
            f"{_REBASE}",
            table=production,
            version=newest.version,
        )
    for version in range(base.version + 1, newest.version + 1):
        _check_harmless(branch, newest.store, version)
    return (
        newest
        if newest.version == base.version
        else Snapshot.load(newest.store, version=base.version)
    )


def _changes_memory(head: Snapshot, base: Snapshot | None) -> bool:
    """Whether the branch has changed what AUTO CDC remembers of change events."""
    own, begun = head.transaction_version(CHANGE_MEMORY), BranchBase.of(head)
    if own is None or base is None or begun is None:
        return follows_events(head)
    try:
        beginning = Snapshot.load(head.store, version=begun.clone_version)
    except VersionNotFound:
        return True
    return beginning.transaction_version(CHANGE_MEMORY) != own


def _publish_memory(
    planned: Publication, store: ObjectStore, commit_info: Mapping[str, object] | None
) -> dict[str, int]:
    """The `txn` that names what production remembers of change events, which is written here: the
    commit of the table decides whether it counts.
    """
    if not planned.changes_memory:
        return {}
    if not follows_events(planned.head):
        return {CHANGE_MEMORY: NOT_FOLLOWED}
    memory = ChangeMemory.beside(store, planned.configuration.metadata.id, planned.base)
    own = ChangeMemory.of(planned.head)
    return {CHANGE_MEMORY: memory.take_over(own, commit_info=commit_info)}


def _check_harmless(branch: BranchHandle, store: ObjectStore, version: int) -> None:
    """Make sure that a commit of production changed no row, no metadata and no position in another
    table.
    """
    try:
        actions = decode_commit(read_commit(store, version), version=version)
    except VersionNotFound as error:
        error.message += f"; so it is not known what production did since: {_REBASE}"
        raise
    changes_rows = any(add.data_change for add in actions.adds) or bool(actions.cdc)
    changes_rows |= any(remove.data_change for remove in actions.removes)
    changes_table = actions.metadata is not None or actions.protocol is not None
    # Of several domains, such as that of the clustering, a publication would keep the branch's.
    changes_table |= any(domain.domain != ROW_TRACKING_DOMAIN for domain in actions.domain_metadata)
    # Without new rows, production has still read what the branch's table may not have.
    follows = any(txn.app_id.startswith(_OF_ROWS) for txn in actions.txns)
    if not (changes_rows or changes_table or follows):
        return
    operation = (actions.commit_info or {}).get("operation", "a commit")
    raise CommitConflict(
        f"production has moved on since the branch {branch.name!r} began: {operation} of version "
        f"{version} changed it; {_REBASE}",
        table=store.location.uri,
        version=version,
    )


def _load_beginning(head: Snapshot, base: Snapshot | None) -> TableConfiguration | None:
    """What the branch's table began with, which need not be all that production's has: a table that
    begins again keeps its protocol and some properties. None for a new table.
    """
    begun = BranchBase.of(head)
    if base is None or begun is None:
        return None
    now, then = (snapshot.metadata.configuration for snapshot in (head, base))
    differs = any(now.get(key) != then.get(key) for key in _PUBLISHED_SWITCHES)
    if not differs and head.configuration.features >= base.configuration.features:
        return base.configuration
    try:
        return Snapshot.load(head.store, version=begun.clone_version).configuration
    except VersionNotFound:
        return base.configuration


def _published_configuration(
    head: Snapshot, base: Snapshot | None, begun: TableConfiguration | None
) -> TableConfiguration:
    metadata = head.metadata.without(*BRANCH_PROPERTIES)
    if base is None or begun is None:
        metadata = replace(metadata.without(*OF_THE_LOG), id=str(uuid.uuid4()))
        return TableConfiguration(head.protocol, metadata)
    own = TableConfiguration(head.protocol, metadata)
    published = restored_configuration(base.configuration, own)
    # A restored version has those of today; what was set in the branch is as new as the branch.
    for key in _PUBLISHED_SWITCHES:
        value = head.metadata.configuration.get(key)
        if value != begun.metadata.configuration.get(key):
            published = (
                unset_properties(published, [key], if_exists=True)
                if value is None
                else set_properties(published, {key: value})
            )
    return published


_Fields = dict[str, Any]


class _NamedFiles:
    """Names the files of a branch's table as production has, or is to have, them."""

    def __init__(self, head: Snapshot, base: Snapshot | None) -> None:
        self.copies: dict[str, FileCopy] = {}
        """The files to copy, by path in the branch."""
        self._partition_columns = head.configuration.physical_partition_columns
        self._paths: dict[str, str] = {}
        self._vectors: dict[tuple[str, int | None], _Fields] = {}
        self._locations: dict[str, str] = {}
        if base is None:
            return
        # Both spell the same files; the branch has them by absolute URIs.
        own, absolute = (
            files.select(["path", "deletion_vector"]).to_pylist()
            for files in (base.live_files(), refer_to_files(base.live_files(), base.store))
        )
        for known, spelled in zip(own, absolute, strict=True):
            self._paths[spelled["path"]] = known["path"]
            if (vector := spelled["deletion_vector"]) is not None:
                key = vector["path_or_inline_dv"], vector["offset"]
                self._vectors[key] = known["deletion_vector"]

    def of(self, files: pa.Table) -> pa.Table:
        """The files under the names of production."""
        names = ["path", "partition_values", "size_bytes", "deletion_vector"]
        versions = files["default_row_commit_version"].to_pylist()
        paths, vectors = [], []
        for position, row in enumerate(files.select(names).to_pylist()):
            path, is_new = self._name_file(row)
            if is_new:
                # Spec: the version of the commit that adds it; the branch counts its own.
                versions[position] = None
            paths.append(path)
            vectors.append(self._name_vector(row["deletion_vector"]))
        columns = dict(zip(files.column_names, files.columns, strict=True))
        columns["path"] = pa.chunked_array([string_column(paths)])
        columns["deletion_vector"] = pa.chunked_array([column_of(vectors, DELETION_VECTOR_TYPE)])
        columns["default_row_commit_version"] = pa.chunked_array([column_of(versions, pa.int64())])
        return pa.Table.from_arrays(list(columns.values()), schema=files.schema)

    def _name_file(self, row: _Fields) -> tuple[str, bool]:
        spelled = row["path"]
        if (known := self._paths.get(spelled)) is not None:
            return known, False
        source = decode_path(spelled)
        if source.startswith("/") or scheme_of(source) is not None:
            return spelled, False
        values = dict(row["partition_values"] or ())
        ordered = {name: values.get(name) for name in self._partition_columns}
        directory, name = posixpath.split(relative_path_in(source, partition_directory(ordered)))
        target = posixpath.join(directory, f"{uuid.uuid4()}-{name}")
        copy = self.copies.setdefault(source, FileCopy(source, target, row["size_bytes"]))
        return encode_path(copy.target), True

    def _name_vector(self, fields: _Fields | None) -> _Fields | None:
        if fields is None or fields["storage_type"] == "i":
            return fields
        known = self._vectors.get((fields["path_or_inline_dv"], fields["offset"]))
        if known is not None or fields["storage_type"] == "p":
            return known or fields
        source = deletion_vector_path(DeletionVectorDescriptor(**fields))
        location = encode_z85(uuid.uuid4().bytes)
        named = {**fields, "storage_type": "u", "path_or_inline_dv": location}
        if source not in self.copies:
            target = deletion_vector_path(DeletionVectorDescriptor(**named))
            self.copies[source] = FileCopy(source, target)
            self._locations[source] = location
        else:
            named["path_or_inline_dv"] = self._locations[source]
        return named


class _Positions:
    """How far the tables of a branch follow other tables, in terms of production's tables."""

    def __init__(
        self, branch: BranchHandle, own: Mapping[str, str], heads: Mapping[str, Snapshot]
    ) -> None:
        self._branch = branch
        self._own = own
        self._heads = heads

    def translate(self, planned: Publication) -> dict[str, int]:
        """The `txn` actions that production's table gets, by application id."""
        now = {} if planned.base is None else _followed(planned.base)
        then: dict[str, int] = {}
        for app_id, version in _followed(planned.head).items():
            table_id, slash, key = app_id.removeprefix(FOLLOWED_TABLE_PREFIX).partition("/")
            uri = self._own.get(table_id) if app_id.startswith(FOLLOWED_TABLE_PREFIX) else None
            if uri is None or version == NOT_FOLLOWED:
                then.setdefault(app_id, version)
                continue
            upstream = self._check_published(planned, uri, table_id, version)
            position = position_at(upstream, upstream.version)
            then[application_id(upstream.metadata.id, key if slash else None)] = position
        gone = {app_id: NOT_FOLLOWED for app_id in now if app_id not in then}
        return {
            app_id: version
            for app_id, version in {**gone, **then}.items()
            if now.get(app_id) != version
        }

    def _check_published(
        self, planned: Publication, uri: str, table_id: str, position: int
    ) -> Snapshot:
        """The version of production's table that is all that the table has read of the branch's
        one.
        """
        upstream = find_snapshot(open_store(uri, self._branch.production_options))
        version = version_of(position)
        published = None
        if upstream is not None:
            published = upstream.transaction_version(publication_id(table_id))
        base = BranchBase.of(self._heads[uri])
        has_read_nothing = base is not None and version == base.clone_version
        if upstream is not None and base is not None and has_read_nothing:
            return Snapshot.load(upstream.store, version=base.version)
        if upstream is None or published != version:
            what = "is not published" if published is None else f"is published at {published}"
            raise InvalidArgument(
                f"the table has read the branch's table for {uri} up to version {version}, which "
                f"{what}: publish that table too, after materializing this asset in the branch "
                "once more if it has not read everything",
                table=planned.production_uri,
            )
        return load_published(upstream, table_id)


def _followed(snapshot: Snapshot) -> dict[str, int]:
    """How far the rows of a table follow other tables and files, by application id."""
    return {
        txn.app_id: txn.version
        for txn in snapshot.transactions()
        if txn.app_id.startswith(_FOLLOWED_PREFIXES)
    }


def _order_by_reading(heads: Mapping[str, Snapshot], own: Mapping[str, str]) -> list[str]:
    """The tables, each after those that it follows."""
    graph: TopologicalSorter[str] = TopologicalSorter()
    for uri, head in heads.items():
        read = (
            id_.removeprefix(FOLLOWED_TABLE_PREFIX).partition("/")[0] for id_ in _followed(head)
        )
        upstream = {own[table_id] for table_id in read if table_id in own} & heads.keys()
        graph.add(uri, *(upstream - {uri}))
    try:
        return list(graph.static_order())
    except CycleError:
        return list(heads)


def _count_rows(files: pa.Table) -> int | None:
    """Live rows of some files; None if the statistics of one do not say it."""
    total = 0
    for file in added_again(files):
        if file.num_records is None:
            return None
        hidden = 0 if file.deletion_vector is None else file.deletion_vector.cardinality
        total += file.num_records - hidden
    return total


def _spell(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"
