"""A branch of the tables below a root, as users have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dagster_delta.storage.locations import resolve_variable
from dagster_delta.table.branches.branch_handle import BranchHandle
from dagster_delta.table.branches.publish import Publication, plan_publication, publish_tables
from dagster_delta.table.read.branch_tables import list_branches
from dagster_delta.table.read.change_data_feed import MAX_COMPARED_BYTES
from dagster_delta.table.transaction.commit_result import CommitResult


class Branch(BranchHandle):
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
        InvalidArgument: the name is empty.
    """

    def diff(self, table: str) -> Publication:
        """What publishing a table would change: rows, files, schema and properties. It writes
        nothing.

        Args:
            table: location in production.

        Raises:
            InvalidArgument: the branch has no such table, or a column change is in progress.
            CommitConflict: production has changed since the branch's table began with it.
        """
        return plan_publication(self, table)

    def publish(
        self,
        tables: Sequence[str] | None = None,
        *,
        commit_info: Mapping[str, object] | None = None,
        on_progress: Callable[[str, int, int], None] | None = None,
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
            on_progress: called with a location and the number of files copied so far, and of all.
            on_published: called with a location and the result after each commit, or if an earlier
                call has made it.
            max_bytes: the most bytes of files of a table that are compared to find the rows which
                the branch has changed, for the change data feed of production; None for no limit.

        Raises:
            InvalidArgument: the branch has no such table; a table has read a branch's table that
                is not published, or has not read all of it.
            CommitConflict: production has changed since a table began with it: it, and the tables
                after it, are as before.
            ChangeDataNotRecorded: more bytes would have to be compared.
            DataFileMissing: a file of the branch is gone.
        """
        return publish_tables(
            self,
            tables,
            commit_info=commit_info,
            on_progress=on_progress,
            on_published=on_published,
            max_bytes=max_bytes,
        )


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
    own = storage_options if branch_storage_options is None else branch_storage_options
    root = str(resolve_variable(root_uri))
    place = root if branch_root_uri is None else str(resolve_variable(branch_root_uri))
    return [
        Branch(
            root_uri,
            declared.name,
            storage_options=storage_options,
            branch_root_uri=branch_root_uri,
            branch_storage_options=branch_storage_options,
            pinned=declared.pinned,
        )
        for declared in list_branches(root, place, own or {})
    ]
