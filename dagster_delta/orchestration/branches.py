"""Branches in Dagster: the tables that a code location with a branch reads and writes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dagster import DagsterError, MetadataValue, OpExecutionContext, build_resources
from dagster_shared.check import CheckError
from pydantic import Field

from dagster_delta.errors import DeltaError
from dagster_delta.orchestration.known_fields import KnownFieldsOnly
from dagster_delta.orchestration.storage_options import AnyStorageOptions, LocalStorageOptions
from dagster_delta.storage import absolute_uri, resolve_variable
from dagster_delta.table.read.branch_tables import BranchBase, branch_of, source_of

if TYPE_CHECKING:
    from dagster_delta.orchestration.metadata_keys import RawMetadata
    from dagster_delta.table.branches.branch import Branch
    from dagster_delta.table.delta_table import DeltaTable
    from dagster_delta.table.read.snapshot import Snapshot


_LOG = logging.getLogger(__name__)

_MAX_COMPARED_FILES = 10_000
"""Maximum number of files of a table whose difference is shown after each write."""


class BranchedTables(KnownFieldsOnly):
    """The fields of a resource whose tables are below a root, and may be those of a branch."""

    branch: str | None = Field(
        default=None,
        description="The branch that tables are written to; empty or not set: production. The "
        "branch reads production's tables until it has its own.",
    )
    branch_root_uri: str | None = Field(
        default=None,
        description="Location under which branches are stored, if it is another one than root_uri.",
    )
    branch_storage_options: AnyStorageOptions = Field(
        default=LocalStorageOptions(),
        description="Storage options of the branch's tables, which also read production's files. "
        "Default: storage_options.",
    )
    branch_pinned: bool = Field(
        default=False,
        description="Whether tables that the branch has not written are read as of the branch's "
        "beginning, instead of at their newest versions. It counts when the branch begins.",
    )

    def find_branch(self, name: str | None = None) -> Branch | None:
        """The branch that tables are written to, or another one; None for production.

        Args:
            name: of the other one.
        """
        fields: Any = self
        chosen = resolve_variable(name or self.branch or "")
        if not chosen:
            return None
        # Imported late: production needs no branch, and a branch the code of clones.
        from dagster_delta.table.branches.branch import Branch

        return Branch(
            fields.root_uri,
            chosen,
            storage_options=fields.storage_options.to_options(),
            branch_root_uri=resolve_variable(self.branch_root_uri or "") or None,
            branch_storage_options=self._branch_options(),
            pinned=self.branch_pinned,
        )

    def list_branches(self) -> list[Branch]:
        """The branches of the tables of this resource, by name."""
        from dagster_delta.table.branches.branch import find_branches

        fields: Any = self
        return find_branches(
            fields.root_uri,
            fields.storage_options.to_options(),
            branch_root_uri=resolve_variable(self.branch_root_uri or "") or None,
            branch_storage_options=self._branch_options(),
        )

    def _branch_options(self) -> dict[str, object] | None:
        return self.branch_storage_options.to_options() or None


def find_refusal(context: OpExecutionContext, uri: str) -> str | None:
    """Why a step must not write a table that it was given by location: a resource of its code
    location has a branch, and the table is not in it. None if it may.
    """
    branches, place = list(_branches_of_location(context)), f"{absolute_uri(uri)}/"
    if not branches or any(place.startswith(f"{branch.uri}/") for branch in branches):
        return None
    named = ", ".join(f"{branch.name!r} at {branch.uri}" for branch in branches)
    return (
        f"the code location has the branch {named}, and the job would write outside of it: give "
        "the job the asset instead of a location, or a location in the branch; or run it where no "
        "resource has a branch"
    )


def protect_production(context: OpExecutionContext, table: DeltaTable) -> DeltaTable:
    """A table that a step was given by location, which refuses writes for `find_refusal`."""
    if (reason := find_refusal(context, table.uri)) is not None:
        table.refuse_writes(reason)
    return table


def _branches_of_location(context: OpExecutionContext) -> Iterator[Branch]:
    """The branches that the resources of a step's code location write to."""
    try:
        known = dict(context.job_def.resource_defs)
    except DagsterError:
        # A step that a unit test calls directly.
        return
    # A job has only those that it requires. Only a run in this process has no code location.
    with contextlib.suppress(CheckError):
        known = {**context.repository_def.get_top_level_resources(), **known}
    branched = {
        key
        for key, found in known.items()
        if isinstance(kind := getattr(found, "configurable_resource_cls", None), type)
        and issubclass(kind, BranchedTables)
    }
    needed, waiting = set[str](), branched
    while waiting:
        needed |= waiting
        further = (known[key].get_required_resource_keys(known) for key in waiting)
        waiting = set[str]().union(*further) - needed
    if not needed:
        return
    given: Any = context.run_config.get("resources", {})
    with build_resources(
        {key: known[key] for key in needed},
        context.instance,
        {key: config for key, config in given.items() if key in needed},
    ) as resources:
        for key in sorted(branched):
            found: BranchedTables = getattr(resources, key)
            if (branch := found.find_branch()) is not None:
                yield branch


def branch_facts(branch: Branch | None, snapshot: Snapshot) -> RawMetadata:
    """What the UI says of a table that was read or written with a branch; nothing without one."""
    if branch is None:
        return {}
    is_own, base = branch_of(snapshot) == branch.name, BranchBase.of(snapshot)
    facts: RawMetadata = {"branch": branch.name if is_own else "production"}
    if is_own and base is not None:
        facts["branch_base"] = base.version
    return facts


def branch_metadata(branch: Branch | None, snapshot: Snapshot) -> RawMetadata:
    """Metadata of a write in a branch: its name, the version of production that the table began
    with, and the difference to it; nothing without a branch.
    """
    production = source_of(snapshot)
    if branch is None or branch_of(snapshot) != branch.name or production is None:
        return {}
    base = BranchBase.of(snapshot)
    facts: RawMetadata = {"delta/branch": branch.name}
    if base is not None:
        facts["delta/branch_base"] = base.version
    if snapshot.is_large_and_unread or snapshot.num_files > _MAX_COMPARED_FILES:
        return facts
    try:
        planned = branch.diff(production)
    except (DeltaError, OSError) as error:
        # The rows are written: production may have moved on.
        _LOG.info("the difference of the branch to production is not shown: %s", error)
        return facts
    facts["delta/branch_difference"] = MetadataValue.md(planned.to_markdown())
    return facts
