"""A branch of the tables below a root: where its tables are, how they begin, are published and end.

A branch is a directory, `<root>/_branches/<name>`, with the tables that the branch has written, at
their paths below the root, and a file `<root>/_branches/<name>.json` that says what it belongs to.
A table that production has begins as a shallow clone. Its properties name the branch, the table of
production and the version it began with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dagster_delta.cached_property import cached_property
from dagster_delta.clock import Clock, now_ms
from dagster_delta.errors import (
    CommitConflict,
    DataFileMissing,
    InvalidArgument,
    TableAlreadyExists,
    TableNotFound,
    VersionNotFound,
)
from dagster_delta.protocol.log.commit_file import garbage_collection_paused
from dagster_delta.protocol.log.paths import LOG_DIRECTORY
from dagster_delta.protocol.table_properties import (
    BRANCH_BASE_PROPERTY,
    BRANCH_OF_PROPERTY,
    BRANCH_PROPERTY,
)
from dagster_delta.storage import open_store
from dagster_delta.storage.locations import absolute_uri, resolve_variable
from dagster_delta.storage.unreferenced_files import delete_with_checksums
from dagster_delta.table.branches.publish import (
    Publication,
    Sibling,
    is_published,
    load_published,
    order_by_reading,
    plan_publication,
    publication_id,
    publish_table,
)
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.log.commit_range import newest_version_until
from dagster_delta.table.log.reader import list_log
from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint
from dagster_delta.table.operations.clone import CloneOptions, clone_table
from dagster_delta.table.operations.drop_table import remove_empty_directories
from dagster_delta.table.operations.restore import check_files
from dagster_delta.table.operations.version_difference import FileDifference
from dagster_delta.table.read.branch_tables import (
    BranchBase,
    DeclaredBranch,
    branch_directory,
    branch_of,
    declaration_path,
    list_branches,
    read_declaration,
    source_of,
)
from dagster_delta.table.read.change_data_feed import MAX_COMPARED_BYTES
from dagster_delta.table.read.snapshot import Snapshot, find_snapshot
from dagster_delta.table.table_discovery import BRANCHES_DIRECTORY, find_tables
from dagster_delta.table.transaction.commit_result import CommitResult

if TYPE_CHECKING:
    from dagster_delta.storage.object_store import ObjectStore

_CHECKPOINTED_FILES = 1_000
"""Number of files from which on the first version of a branch's table gets a checkpoint."""


class Branch:
    """A branch of the tables below a root.

    Args:
        root_uri: the location of production's tables, as of `DeltaIOManager`.
        name: name of the branch, such as that of a Git branch.
        storage_options: of production's tables.
        branch_root_uri: where the branch's tables are stored; by default below `root_uri`.
        branch_storage_options: of the branch's tables, which also read production's files; those
            of production by default.
        pinned: whether tables that the branch has not written are read as of the branch's
            beginning, instead of at their newest versions. For a branch that has begun, what it
            was declared with counts.
        clock: gives the time of the beginning, in milliseconds since the epoch.

    Raises:
        InvalidArgument: the name is empty, or the root is in a branch.
    """

    def __init__(
        self,
        root_uri: str,
        name: str,
        *,
        storage_options: Mapping[str, object] | None = None,
        branch_root_uri: str | None = None,
        branch_storage_options: Mapping[str, object] | None = None,
        pinned: bool = False,
        clock: Clock = now_ms,
    ) -> None:
        if not name.strip():
            raise InvalidArgument("a branch needs a name; leave it out to use production's tables")
        self.name = name
        self.root_uri = absolute_uri(str(resolve_variable(root_uri)))
        if BRANCHES_DIRECTORY in self.root_uri.split("/"):
            raise InvalidArgument(
                f"{self.root_uri} belongs to a branch, and a branch has no branches of its own: "
                "name the root of production's tables"
            )
        root = self.root_uri if branch_root_uri is None else str(resolve_variable(branch_root_uri))
        self.branch_root_uri = absolute_uri(root)
        own = storage_options if branch_storage_options is None else branch_storage_options
        self.storage_options: Mapping[str, object] = dict(own or {})
        """Storage options of the branch's tables."""
        self._options = dict(storage_options or {})
        self._pinned = pinned
        self._clock = clock
        self._directory = branch_directory(name)
        self._declared: DeclaredBranch | None = None

    def __repr__(self) -> str:
        return f"Branch({self.root_uri!r}, {self.name!r})"

    @property
    def uri(self) -> str:
        """The location of the branch's tables."""
        return f"{self.branch_root_uri}/{BRANCHES_DIRECTORY}/{self._directory}"

    @cached_property
    def _branches(self) -> ObjectStore:
        """The store of the branches below `branch_root_uri`."""
        return open_store(f"{self.branch_root_uri}/{BRANCHES_DIRECTORY}", self.storage_options)

    @property
    def created_ms(self) -> int | None:
        """When the branch began, in milliseconds since the epoch; None if it has not."""
        found = self._read_declaration()
        return None if found is None else found.created_ms

    @property
    def pinned(self) -> bool:
        """Whether it reads production's tables as of its beginning: as it was declared then."""
        found = self._read_declaration()
        return self._pinned if found is None else found.pinned

    def table_uri(self, production: str) -> str:
        """The location in the branch of a table of production.

        Raises:
            InvalidArgument: the table is not below the root.
        """
        if not self.contains(production):
            raise InvalidArgument(
                f"the table is not below {self.root_uri}, so the branch {self.name!r} cannot have "
                "its own: a branch does not write tables of other places",
                table=production,
            )
        return f"{self.uri}{absolute_uri(production).removeprefix(self.root_uri)}"

    def contains(self, production: str) -> bool:
        """Whether a table of production is below the root, so that the branch can have its own."""
        return f"{absolute_uri(production)}/".startswith(f"{self.root_uri}/")

    def find(self, production: str) -> Snapshot | None:
        """The branch's table for one of production; None if the branch has none.

        Raises:
            InvalidArgument: a branch of another root, or with another name, has the table.
        """
        if not self.contains(production):
            return None
        found = find_snapshot(self._open_own(production))
        wanted = self.name, absolute_uri(production)
        if found is not None and not {branch_of(found), source_of(found)} <= {*wanted, None}:
            raise InvalidArgument(
                f"the table is of the branch {branch_of(found)!r} of {source_of(found)}: choose "
                "another name or branch_root_uri",
                table=found.store.location.uri,
            )
        return found

    def open(
        self, production: str, *, version: int | None = None, allow_column_changes: bool = True
    ) -> DeltaTable:
        """The table as the branch reads it: its own, else production's, which refuses writes.

        Args:
            production: location of the table of production.
            version: a version of production's table, or of a table that only the branch has.
            allow_column_changes: if False, the handle refuses to start online column changes.

        Raises:
            TableNotFound: neither has the table.
            VersionNotFound: the branch is pinned, and production's log does not reach back.
        """
        own = self.find(production)
        # A version was chosen before the branch began to count its own.
        if own is not None and (version is None or BranchBase.of(own) is None):
            return DeltaTable(
                self.table_uri(production),
                version,
                storage_options=self.storage_options,
                allow_column_changes=allow_column_changes,
            )
        known = self._pinned_version(production) if version is None else version
        table = DeltaTable(production, known, storage_options=self._options)
        table.refuse_writes(
            f"the branch {self.name!r} has no table of its own here yet, and does not write "
            "production's: materialize the asset in the branch first, or call Branch.begin with "
            "this location"
        )
        return table

    def begin(self, production: str) -> DeltaTable | None:
        """The branch's own table, to write: a shallow clone of production's if it has none yet.

        A table that was published, and has not changed since, begins again with production's newest
        version. None if neither has the table; `new_table_properties` are for a new one then.

        Args:
            production: location of the table of production.

        Raises:
            InvalidArgument: the table is not below the root, or the branch's storage cannot read
                production's files.
        """
        self.declare()
        existing = find_snapshot(self._open_own(production))
        source = self._load_source(production, existing)
        if source is not None and (existing is None or is_published(existing, source)):
            try:
                self._begin_with(production, source, existing)
            except CommitConflict:
                # Another step of the branch may begin it again meanwhile.
                if existing is None:
                    raise
        try:
            return DeltaTable(self.table_uri(production), storage_options=self.storage_options)
        except TableNotFound:
            return None

    def rebase(self, production: str) -> DeltaTable:
        """Let the branch's table begin again with production's newest version.

        What the branch wrote to it remains in its older versions.

        Raises:
            TableNotFound: production has no such table.
        """
        self.declare()
        existing = find_snapshot(self._open_own(production))
        if (source := self._load_source(production, existing)) is None:
            raise TableNotFound("production has no table to begin again with", table=production)
        self._begin_with(production, source, existing)
        return DeltaTable(self.table_uri(production), storage_options=self.storage_options)

    def new_table_properties(self, production: str) -> dict[str, str]:
        """The table properties of a table that only the branch has."""
        return {
            BRANCH_PROPERTY: self.name,
            BRANCH_OF_PROPERTY: absolute_uri(production),
            BRANCH_BASE_PROPERTY: "",
        }

    def tables(self) -> list[str]:
        """The locations in production of the tables that the branch has, sorted."""
        if self.created_ms is None:
            return []
        local = self._branches.local_path(self._directory)
        if local is not None and not Path(local).is_dir():
            # It was declared, and the first write failed.
            return []
        # Others are of op outputs, of rows set aside, and what else lies beside a table.
        return sorted(
            f"{self.root_uri}{absolute_uri(uri).removeprefix(self.uri)}"
            for uri in find_tables(self.uri, self.storage_options)
            if branch_of(Snapshot.load(open_store(uri, self.storage_options))) == self.name
        )

    def diff(self, table: str) -> Publication:
        """What publishing a table would change: rows, files, schema and properties. It writes
        nothing.

        Args:
            table: location in production.

        Raises:
            InvalidArgument: the branch has no such table, it has dropped a table feature, or a
                column change is in progress.
            CommitConflict: production has changed since the branch's table began with it.
        """
        return plan_publication(self._load_own(table), self._open_production(table))

    def publish(
        self,
        tables: Sequence[str] | None = None,
        *,
        commit_info: Mapping[str, object] | None = None,
        on_published: Callable[[str, CommitResult], None] | None = None,
        max_bytes: int | None = MAX_COMPARED_BYTES,
    ) -> dict[str, CommitResult]:
        """Publish tables to production: one commit each; the results by location.

        A table that follows another one of them comes after it. A table that is published already,
        or that the branch has not changed, is skipped, so that an interrupted call is simply
        repeated.

        Args:
            tables: locations in production; by default each table that the branch has.
            commit_info: recorded in the commitInfo of each commit.
            on_published: called with a location and the result after each commit, or if an earlier
                call has made it.
            max_bytes: the most bytes of files of a table that are compared to find the rows which
                the branch has changed, for the change data feed of production; None for no limit.

        Raises:
            InvalidArgument: as for `diff`; or a table has read a branch's table that is not
                published, or has not read all of it.
            CommitConflict: production has changed since a table began with it: it, and the tables
                after it, are as before.
            ChangeDataNotRecorded: more bytes would have to be compared.
            DataFileMissing: a file of the branch is gone.
        """
        known = self.tables()
        chosen = known if tables is None else [*map(absolute_uri, tables)]
        heads = {uri: self._load_own(uri) for uri in dict.fromkeys([*known, *chosen])}
        siblings = {
            head.metadata.id: Sibling(uri, self._open_production(uri), head)
            for uri, head in heads.items()
        }
        results = {}
        for table_id in order_by_reading(siblings, chosen):
            uri, production, head = siblings[table_id]
            results[uri] = result = publish_table(
                plan_publication(head, production),
                production,
                siblings,
                commit_info=commit_info,
                max_bytes=max_bytes,
            )
            was_published = result.snapshot.transaction_version(publication_id(table_id))
            if on_published is not None and was_published is not None:
                on_published(uri, result)
        return results

    def drop(self, *, dry_run: bool = True) -> tuple[str, ...]:
        """Delete the branch with everything in its directory; the paths of its files, none if there
        is no such branch.

        Production's files are not in it. An interrupted call is completed by the next one.

        Args:
            dry_run: only find the files.

        Raises:
            InvalidArgument: the directory belongs to a branch of another root or name.
        """
        if self._read_declaration() is None:
            return ()
        paths = [meta.path for meta in self._branches.list_recursive(self._directory)]
        # A log goes last: a table that is half deleted fails, and is not read from production.
        paths.sort(key=lambda path: f"/{LOG_DIRECTORY}/" in path)
        if not dry_run:
            delete_with_checksums(self._branches, paths)
            remove_empty_directories(self._branches.local_path(self._directory))
            delete_with_checksums(self._branches, [declaration_path(self._directory)])
            self._declared = None
        return tuple(paths)

    def declare(self) -> None:
        """Write the file that declares the branch, unless it is there.

        Raises:
            InvalidArgument: a branch of another root has the name, or files are in its directory.
        """
        if self._read_declaration() is not None:
            return
        if (
            present := next(iter(self._branches.list_recursive(self._directory)), None)
        ) is not None:
            raise InvalidArgument(
                f"the directory of the branch {self.name!r} has files and is not declared as a "
                f"branch: move {present.path} away, or choose another name",
                table=self.uri,
            )
        declared = DeclaredBranch(self.name, self.root_uri, self._clock(), self._pinned)
        try:
            self._branches.put_if_absent(
                declaration_path(self._directory), msgspec.json.encode(declared)
            )
        except FileExistsError:
            self._read_declaration()
        else:
            self._declared = declared

    def _read_declaration(self) -> DeclaredBranch | None:
        if self._declared is None:
            found = read_declaration(self._branches, self._directory)
            if found is not None and (found.name, found.root) != (self.name, self.root_uri):
                raise InvalidArgument(
                    f"{self.uri} is the branch {found.name!r} of the tables below {found.root}, "
                    f"not {self.name!r} of those below {self.root_uri}: choose another name or "
                    "branch_root_uri"
                )
            self._declared = found
        return self._declared

    def _open_own(self, production: str) -> ObjectStore:
        return open_store(self.table_uri(production), self.storage_options)

    def _open_production(self, production: str) -> ObjectStore:
        return open_store(production, self._options)

    def _load_own(self, production: str) -> Snapshot:
        if (own := self.find(production)) is None:
            raise InvalidArgument(
                f"the branch {self.name!r} has no table of its own for this one: nothing is there "
                "to publish or compare; its tables are those it has written",
                table=production,
            )
        return own

    def _load_source(self, production: str, existing: Snapshot | None) -> Snapshot | None:
        """The version of production that the branch's table begins with; None if there is none."""
        try:
            version = self._pinned_version(production) if existing is None else None
            return Snapshot.load(self._open_production(production), version=version)
        except TableNotFound:
            return None

    def _pinned_version(self, production: str) -> int | None:
        """The version at the beginning of a pinned branch; None for the newest."""
        declared = self._read_declaration()
        if declared is None or not declared.pinned:
            return None
        store = self._open_production(production)
        newest = Snapshot.load(store)
        listing = list_log(store, end=newest.version)
        version = newest_version_until(store, listing, newest.configuration, declared.created_ms)
        if version is None:
            is_new = 0 in listing.commits
            raise (TableNotFound if is_new else VersionNotFound)(
                f"the log of production's table does not reach back to the time when the pinned "
                f"branch {self.name!r} began"
                + ("" if is_new else ": use one that is not pinned, or begin another one"),
                table=production,
            )
        return version

    def _begin_with(self, production: str, source: Snapshot, existing: Snapshot | None) -> None:
        """Make the branch's table a clone of production's."""
        if existing is not None and is_published(existing, source):
            try:
                published = load_published(source, existing.metadata.id)
                files = source.live_files(), published.live_files()
                check_files(FileDifference.between(*files).entering, published)
            except (VersionNotFound, DataFileMissing):
                # The log or a file of that version is gone: all rows count as replaced.
                published = None
            if published is not None:
                # The rows are the same: who follows the branch's table reads none of them again.
                existing = self._clone(production, published, existing, data_change=False)
                if published.version == source.version:
                    return
        self._clone(production, source, existing)

    def _clone(
        self,
        production: str,
        source: Snapshot,
        existing: Snapshot | None,
        *,
        data_change: bool = True,
    ) -> Snapshot:
        store = self._open_own(production)
        clone_version = 0 if existing is None else existing.version + 1
        base = BranchBase(source.metadata.id, source.version, clone_version)
        options = CloneOptions(
            deep=False,
            replace=existing is not None,
            properties={**self.new_table_properties(production), BRANCH_BASE_PROPERTY: str(base)},
            replaced=existing,
            data_change=data_change,
        )
        # 100,000 files: 1.7 s of CPU time instead of 2.6 s.
        with garbage_collection_paused():
            try:
                clone = clone_table(source, store, options, clock=self._clock).snapshot
            except TableAlreadyExists:
                # Another step of the branch has begun it meanwhile.
                return Snapshot.load(store)
            if source.num_files >= _CHECKPOINTED_FILES:
                # Else each reader of the branch would decode as many lines of JSON.
                write_checkpoint(clone, now_ms=self._clock())
        return clone


def find_branches(
    root_uri: str,
    storage_options: Mapping[str, object] | None = None,
    *,
    branch_root_uri: str | None = None,
    branch_storage_options: Mapping[str, object] | None = None,
) -> list[Branch]:
    """The branches of the tables below a root, by name.

    Args:
        root_uri: the location of production's tables.
        storage_options: of production's tables.
        branch_root_uri: where the branches are; by default below `root_uri`.
        branch_storage_options: of the branches; those of production by default.
    """
    options: dict[str, Any] = {
        "storage_options": storage_options,
        "branch_root_uri": branch_root_uri,
        "branch_storage_options": branch_storage_options,
    }
    any_branch = Branch(root_uri, "any", **options)
    found = list_branches(
        any_branch.root_uri, any_branch.branch_root_uri, any_branch.storage_options
    )
    return [Branch(root_uri, declared.name, **options) for declared in found]
