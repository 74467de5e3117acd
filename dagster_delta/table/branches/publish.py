"""Publishes a table of a branch: production gets its rows, schema and properties in one commit.

Files that the branch wrote are copied under new names; those that it took over from production stay
where they are. Production records the branch's table and version as a `txn` action, so a repeated
publication changes nothing.

Spec: Add File and Remove File; Deletion Vectors; Transaction Identifiers; Row Tracking.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.errors import CommitConflict, InvalidArgument, VersionNotFound
from dagster_delta.evolution.programs import READERS_PROPERTY
from dagster_delta.evolution.properties import set_properties, unset_properties
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.features.column_change import COLUMN_CHANGE_KEY
from dagster_delta.protocol.features.deletion_vectors import deletion_vector_path, encode_z85
from dagster_delta.protocol.features.row_tracking import ROW_TRACKING_DOMAIN
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_file import decode_commit
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.table_properties import BRANCH_PROPERTIES
from dagster_delta.protocol.values.arrow_columns import column_of
from dagster_delta.protocol.values.partition_values import (
    decode_path,
    encode_path,
    partition_directory,
)
from dagster_delta.storage.locations import scheme_of
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.branches.published_changes import (
    BranchCommits,
    RecordedChanges,
    first_version,
)
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.log.reader import read_commit
from dagster_delta.table.operations.change_memory import ChangeMemory
from dagster_delta.table.operations.clone import (
    OF_THE_LOG,
    FileCopy,
    copy_files,
    refer_to_files,
    relative_path_in,
    rename_files,
)
from dagster_delta.table.operations.restore import restored_configuration
from dagster_delta.table.operations.version_difference import FileDifference, VersionDifference
from dagster_delta.table.read.branch_tables import BranchBase, branch_of
from dagster_delta.table.read.change_data_feed import MAX_COMPARED_BYTES, ChangeDataFeed
from dagster_delta.table.read.snapshot import Snapshot, find_snapshot
from dagster_delta.table.transaction.commit_result import (
    CHANGE_MEMORY,
    FOLLOWED_TABLE_PREFIX,
    LOADED_FILE_PREFIX,
    NOT_FOLLOWED,
)
from dagster_delta.table.transaction.followed_tables import application_id, position_at, version_of
from dagster_delta.table.transaction.transaction import (
    CommitResult,
    Transaction,
    positions_to_change,
)

_PUBLISHED_SWITCHES = ("delta.enableInCommitTimestamps", READERS_PROPERTY)
"""Properties that a RESTORE leaves as they are, and a publication sets."""
_OF_ROWS = (FOLLOWED_TABLE_PREFIX, LOADED_FILE_PREFIX, CHANGE_MEMORY)

_REBASE = (
    "let the branch begin again from production (rebase), and materialize the asset in it again"
)


class Publication(VersionDifference, frozen=True, kw_only=True):
    """What publishing a table of a branch changes in production. It was not committed.

    `before` is the version of production that the branch's table began with, and `target` the
    branch's table. The positions are those of the branch.
    """

    branch: str
    copies: tuple[FileCopy, ...] = ()
    """The files to copy from the branch."""
    is_published: bool = False
    """Whether production has all of it already."""

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
        start = first_version(self.target) if self.changes_anything else self.target.version + 1
        return ChangeDataFeed(self.target, start, max_bytes=max_bytes)

    def to_markdown(self) -> str:
        """The difference for people: rows, files, bytes, schema, properties."""
        return "\n".join(self._render_lines()) + "\n"

    def _render_lines(self) -> Iterator[str]:
        if self.is_published:
            yield "Production has all of the branch's table."
            return
        if not self.changes_anything:
            yield "The branch has not changed the table."
            return
        notes = []
        if (recorded := RecordedChanges.plan(self)) is not None:
            notes.append(
                f"- files of {recorded.compared_bytes:,} bytes are compared at most, to record the "
                "changed rows for the change data feed"
            )
        if CHANGE_MEMORY in self.positions:
            notes.append("- what AUTO CDC remembers of change events comes in")
        before = "no table" if self.before is None else f"version {self.before.version}"
        head = f"branch {self.branch}, version {self.target.version}"
        yield from self.render(f"production, {before}", head, *notes)


def plan_publication(head: Snapshot, production: ObjectStore) -> Publication:
    """What publishing a table of a branch would change. It writes nothing.

    Raises:
        InvalidArgument: a column change of the table is in progress, or it has dropped a feature.
        CommitConflict: production has changed since the branch's table began with it.
    """
    branch, newest, begun = branch_of(head) or "", find_snapshot(production), BranchBase.of(head)
    is_untouched = begun is not None and begun.clone_version == head.version
    if newest is not None and (is_untouched or is_published(head, newest)):
        files = newest.live_files()
        return Publication(
            branch=branch,
            before=newest,
            target=newest,
            configuration=newest.configuration,
            files=FileDifference.between(files, files),
            positions={},
            is_published=is_published(head, newest),
        )
    base = _load_base(head, newest, production)
    _check_publishable(head, base)
    beginning = None
    with suppress(VersionNotFound):
        if begun is not None:
            beginning = Snapshot.load(head.store, version=begun.clone_version)
    positions = positions_to_change(base, head)
    # The memories of the branch and of production count versions of their own.
    positions.pop(CHANGE_MEMORY, None)
    memory = head.transaction_version(CHANGE_MEMORY)
    if beginning is None or beginning.transaction_version(CHANGE_MEMORY) != memory:
        positions |= {} if memory is None else {CHANGE_MEMORY: memory}
    names = _ProductionNames(head, base)
    files = names.of(head.live_files())
    return Publication(
        branch=branch,
        before=base,
        target=head,
        configuration=_published_configuration(head, base, beginning),
        files=FileDifference.between(
            files.slice(0, 0) if base is None else base.live_files(), files
        ),
        positions=positions,
        copies=tuple(names.copies.values()),
    )


def publish_table(
    planned: Publication,
    production: ObjectStore,
    siblings: Mapping[str, Sibling],
    *,
    commit_info: Mapping[str, object] | None,
    max_bytes: int | None,
) -> CommitResult:
    """Publish one table; see `Branch.publish`. `siblings` are the branch's tables by id."""
    base, head = planned.before, planned.target
    if base is not None and not planned.changes_anything:
        return CommitResult(base.version, {}, base, skipped=True)
    positions = _translate_positions(planned, siblings)
    transaction, commits = Transaction(production, base), BranchCommits.of(head)
    recorded = RecordedChanges.plan(planned)
    if recorded is not None and not recorded.is_needed(commits, max_bytes):
        recorded = None
    changes_rows = commits.changes_rows
    try:
        with transaction.created_files:
            # The names are new, so they are those of this attempt alone, and may go with it.
            transaction.created_files.add(copy.target for copy in planned.copies)
            copy_files(head, production, planned.copies)
            if recorded is not None:
                transaction.stage_change_files(found := recorded.write(production))
                # Readers of the feed would otherwise take the rows of all files as changed.
                changes_rows = bool(found)
            if positions.get(CHANGE_MEMORY, NOT_FOLLOWED) != NOT_FOLLOWED:
                # It is written first, and the commit of the table decides whether it counts.
                memory = ChangeMemory.beside(production, planned.configuration.metadata.id, base)
                own = ChangeMemory.of(head)
                positions[CHANGE_MEMORY] = memory.take_over(own, commit_info=commit_info)
            positions[publication_id(head.metadata.id)] = head.version
            transaction.stage_configuration(planned.configuration, force=True)
            transaction.is_audited = True
            # A file with other row ids must not come back after a compaction has removed it.
            renumbered = planned.files.renumbered["path"].to_pylist()
            transaction.depend_on(ReadScope(paths=frozenset(renumbered)))
            if commits.keeps_row_ids:
                transaction.declare_row_ids_kept()
            replace(planned, positions=positions).stage(transaction, data_change=changes_rows)
        return transaction.commit(
            "PUBLISH BRANCH",
            parameters={
                "branch": planned.branch,
                "branchTable": head.store.location.uri,
                "branchVersion": head.version,
            },
            metrics={
                "numFiles": planned.files.entering.num_rows,
                "numRemovedFiles": planned.files.leaving.num_rows,
                "numCopiedFiles": len(planned.copies),
                "numOutputBytes": total_bytes(planned.files.entering),
            },
            user_info=commit_info,
        )
    except CommitConflict as conflict:
        newest = find_snapshot(production)
        if newest is not None and is_published(head, newest):
            # Another call published the same version of the branch's table meanwhile.
            return CommitResult(newest.version, {}, newest, skipped=True)
        conflict.message += f". To publish on top of it, {_REBASE}"
        raise


# What must be true


def publication_id(branch_table_id: str) -> str:
    """The application id by which a table of production records what was published to it."""
    return f"dagster-delta/branch/{branch_table_id}"


def is_published(head: Snapshot, production: Snapshot | None) -> bool:
    """Whether production has everything that the branch's table has."""
    if production is None:
        return False
    return production.transaction_version(publication_id(head.metadata.id)) == head.version


def load_published(production: Snapshot, branch_table_id: str) -> Snapshot:
    """The version of production's table at which a table of a branch was published last.

    Raises:
        VersionNotFound: the log does not reach back.
    """
    app_id = publication_id(branch_table_id)
    for version in range(production.version, -1, -1):
        actions = decode_commit(read_commit(production.store, version), version=version)
        if any(txn.app_id == app_id for txn in actions.txns):
            return Snapshot.load(production.store, version=version)
    raise VersionNotFound(
        "the log has no commit that published the branch", table=production.store.location.uri
    )


def _check_publishable(head: Snapshot, base: Snapshot | None) -> None:
    problem = None
    if COLUMN_CHANGE_KEY in head.metadata.configuration:
        problem = "a column change of the branch's table is in progress: finish or cancel it first"
    elif base is not None and (gone := base.configuration.features - head.configuration.features):
        problem = (
            f"the branch has dropped the table feature {', '.join(sorted(gone))}, which the older "
            "versions of production need: set delta.feature.<name> = supported in the branch's "
            "table, publish it, and drop the feature in production"
        )
    if problem is not None:
        raise InvalidArgument(problem, table=head.store.location.uri, version=head.version)


def _load_base(head: Snapshot, newest: Snapshot | None, production: ObjectStore) -> Snapshot | None:
    """The version of production that the branch's table began with, if no commit has changed rows,
    metadata or positions since; None if neither exists.
    """
    base, since = BranchBase.of(head), f"since the branch {branch_of(head)!r} began"
    if newest is None and base is None:
        return None
    problem, at = None, None if newest is None else newest.version
    if newest is None:
        problem = f"production's table is gone {since}: restore it, or drop the branch"
    elif base is None or newest.metadata.id != base.table_id:
        problem = f"another table was created in production {since}: {_REBASE}"
    else:
        for version in range(base.version + 1, newest.version + 1):
            if (operation := _find_change(production, version)) is not None:
                problem = f"production has moved on {since}: {operation} changed it; {_REBASE}"
                at = version
                break
        else:
            return Snapshot.load(production, version=base.version)
    raise CommitConflict(problem, table=production.location.uri, version=at)


def _find_change(production: ObjectStore, version: int) -> str | None:
    """The operation of a commit of production; None if it only moved rows between files."""
    try:
        actions = decode_commit(read_commit(production, version), version=version)
    except VersionNotFound as error:
        error.message += f"; so it is not known what production did since: {_REBASE}"
        raise
    if (
        any(add.data_change for add in actions.adds)
        or any(remove.data_change for remove in actions.removes)
        or actions.cdc
        or actions.metadata is not None
        or actions.protocol is not None
        # Of several domains, such as that of the clustering, a publication would keep the branch's.
        or any(domain.domain != ROW_TRACKING_DOMAIN for domain in actions.domain_metadata)
        # Without new rows, production has still read what the branch's table may not have.
        or any(txn.app_id.startswith(_OF_ROWS) for txn in actions.txns)
    ):
        return str((actions.commit_info or {}).get("operation", "a commit"))
    return None


# What comes over


def _published_configuration(
    head: Snapshot, base: Snapshot | None, beginning: Snapshot | None
) -> TableConfiguration:
    """`beginning`: the branch's table as it began, which need not be all that production's was: one
    that begins again keeps some properties. None after a clean-up of its log.
    """
    metadata = head.metadata.without(*BRANCH_PROPERTIES)
    if base is None:
        metadata = replace(metadata.without(*OF_THE_LOG), id=str(uuid.uuid4()))
        return TableConfiguration(head.protocol, metadata)
    own = TableConfiguration(head.protocol, metadata)
    published = restored_configuration(base.configuration, own)
    # A restored version has those of today; what was set in the branch is as new as the branch.
    begun, now = (beginning or base).metadata.configuration, head.metadata.configuration
    changed = [key for key in _PUBLISHED_SWITCHES if begun.get(key) != now.get(key)]
    published = set_properties(published, {key: now[key] for key in changed if key in now})
    unset = [key for key in changed if key not in now]
    return unset_properties(published, unset, if_exists=True) if unset else published


class _ProductionNames:
    """Names the files of a branch's table as production has, or is to have, them."""

    def __init__(self, head: Snapshot, base: Snapshot | None) -> None:
        self.copies: dict[str, FileCopy] = {}
        """The files to copy, by path in the branch."""
        self._partition_columns = head.configuration.physical_partition_columns
        self._paths: dict[str, str] = {}
        self._vectors: dict[tuple[str, int | None], dict[str, Any]] = {}
        self._locations: dict[str, str] = {}
        if base is None:
            return
        # Both spell the same files; the branch has them by absolute URIs.
        own, absolute = base.live_files(), refer_to_files(base.live_files(), base.store)
        paths = (files["path"].to_pylist() for files in (absolute, own))
        self._paths = dict(zip(*paths, strict=True))
        vectors = (files["deletion_vector"].to_pylist() for files in (absolute, own))
        for spelled, known in zip(*vectors, strict=True):
            if spelled is not None:
                self._vectors[spelled["path_or_inline_dv"], spelled["offset"]] = known

    def of(self, files: pa.Table) -> pa.Table:
        """The files under the names of production."""
        rows = files.select(["path", "partition_values", "size_bytes"]).to_pylist()
        paths = [self._paths.get(row["path"]) or self._name_file(**row) for row in rows]
        named, column = rename_files(files, paths, self._name_vector), "default_row_commit_version"
        # Spec: the version of the commit that adds the file; the branch counts its own.
        versions = [
            None if decode_path(row["path"]) in self.copies else version
            for row, version in zip(rows, named[column].to_pylist(), strict=True)
        ]
        place = named.column_names.index(column)
        return named.set_column(place, named.field(column), column_of(versions, pa.int64()))

    def _name_file(
        self, path: str, partition_values: list[tuple[str, str | None]] | None, size_bytes: int
    ) -> str:
        source = decode_path(path)
        if source.startswith("/") or scheme_of(source) is not None:
            return path
        values = dict(partition_values or ())
        ordered = {name: values.get(name) for name in self._partition_columns}
        directory, name = posixpath.split(relative_path_in(source, partition_directory(ordered)))
        target = posixpath.join(directory, f"{uuid.uuid4()}-{name}")
        copy = self.copies.setdefault(source, FileCopy(source, target, size_bytes))
        return encode_path(copy.target)

    def _name_vector(
        self, vector: DeletionVectorDescriptor, fields: dict[str, Any]
    ) -> dict[str, Any]:
        known = self._vectors.get((vector.path_or_inline_dv, vector.offset))
        if known is not None or vector.storage_type == "p":
            return known or fields
        source = deletion_vector_path(vector)
        location = self._locations.setdefault(source, encode_z85(uuid.uuid4().bytes))
        named = {**fields, "storage_type": "u", "path_or_inline_dv": location}
        target = deletion_vector_path(DeletionVectorDescriptor(**named))
        self.copies[source] = FileCopy(source, target)
        return named


class Sibling(NamedTuple):
    """A table of the branch that another one may follow."""

    production_uri: str
    production: ObjectStore
    head: Snapshot


def order_by_reading(siblings: Mapping[str, Sibling], chosen: Collection[str]) -> list[str]:
    """The ids of the tables at the chosen locations in production, each after those it follows."""
    ids = [id_ for id_, sibling in siblings.items() if sibling.production_uri in chosen]
    graph = TopologicalSorter[str]()
    for table_id in ids:
        applications = siblings[table_id].head.transactions()
        followed = {_followed_table(txn.app_id)[0] for txn in applications}
        graph.add(table_id, *(followed & {*ids} - {table_id}))
    try:
        return list(graph.static_order())
    except CycleError:
        return ids


def _followed_table(app_id: str) -> tuple[str, str | None]:
    """The id of the table that an application follows, and the partition; no id of other ones."""
    table_id, slash, key = app_id.removeprefix(FOLLOWED_TABLE_PREFIX).partition("/")
    return table_id, key if slash else None


def _translate_positions(planned: Publication, siblings: Mapping[str, Sibling]) -> dict[str, int]:
    """How far the rows follow other tables, in terms of production's tables."""
    kept, translated = dict(planned.positions), dict[str, int]()
    for app_id, position in planned.positions.items():
        table_id, key = _followed_table(app_id)
        if table_id in siblings and position != NOT_FOLLOWED:
            upstream = _load_upstream(planned, siblings[table_id], version_of(position))
            followed = application_id(upstream.metadata.id, key)
            translated[followed] = position_at(upstream, upstream.version)
            del kept[app_id]
    return {**kept, **translated}


def _load_upstream(planned: Publication, sibling: Sibling, version: int) -> Snapshot:
    """The version of production's table that has all which was read of the branch's one."""
    newest, begun = find_snapshot(sibling.production), BranchBase.of(sibling.head)
    if newest is not None and begun is not None and version == begun.clone_version:
        return Snapshot.load(sibling.production, version=begun.version)
    table_id, published = sibling.head.metadata.id, None
    if newest is not None:
        published = newest.transaction_version(publication_id(table_id))
        if published == version:
            return load_published(newest, table_id)
    what = "is not published" if published is None else f"is published at {published}"
    raise InvalidArgument(
        f"the table has read the branch's table for {sibling.production_uri} up to version "
        f"{version}, which {what}: publish that table too, after materializing this asset in the "
        "branch once more if it has not read everything",
        table=planned.target.store.location.uri,
    )
