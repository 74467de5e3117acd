"""Branches in Dagster: the tables that a code location with a branch reads and writes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from dagster import (
    ConfigurableIOManager,
    ConfigurableResource,
    DagsterError,
    DagsterInstance,
    IOManagerDefinition,
    MetadataValue,
    OpExecutionContext,
    ResourceDefinition,
    ScheduleEvaluationContext,
    SensorEvaluationContext,
    build_resources,
)
from dagster_shared.check import CheckError
from pydantic import Field

from dagster_delta.errors import DeltaError, InvalidArgument
from dagster_delta.orchestration.known_fields import KnownFieldsOnly
from dagster_delta.orchestration.storage_options import AnyStorageOptions, LocalStorageOptions
from dagster_delta.storage import absolute_uri, resolve_variable
from dagster_delta.table.read.branch_tables import BranchBase, branch_of, source_of

if TYPE_CHECKING:
    from dagster_delta.orchestration.metadata_keys import RawMetadata
    from dagster_delta.table.branches.branch import Branch
    from dagster_delta.table.delta_table import DeltaTable
    from dagster_delta.table.read.snapshot import Snapshot

LocationContext: TypeAlias = (
    OpExecutionContext | SensorEvaluationContext | ScheduleEvaluationContext
)
"""What knows its code location."""

_GIVING_ITSELF = (ConfigurableResource.create_resource, ConfigurableIOManager.create_resource)

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
            pinned=self.branch_pinned,
            **self._storage(),
        )

    def list_branches(self) -> list[Branch]:
        """The branches of the tables of this resource, by name."""
        from dagster_delta.table.branches.branch import find_branches

        fields: Any = self
        return find_branches(fields.root_uri, **self._storage())

    def _storage(self) -> dict[str, Any]:
        """The arguments of a branch that say where tables are, and how to reach them."""
        fields: Any = self
        return {
            "storage_options": fields.storage_options.to_options(),
            "branch_root_uri": resolve_variable(self.branch_root_uri or "") or None,
            "branch_storage_options": self.branch_storage_options.to_options() or None,
        }


def find_refusal(context: LocationContext, uri: str) -> str | None:
    """Why a step must not write a table that it was given by location: a resource of its code
    location has a branch, and the table is not in it. None if it may.
    """
    return describe_refusal(branches_of_location(context), uri)


def describe_refusal(branches: Iterable[Branch], uri: str) -> str | None:
    """The same, for the branches of a code location."""
    found, place = list(branches), f"{absolute_uri(uri)}/"
    if not found or any(place.startswith(f"{branch.uri}/") for branch in found):
        return None
    named = ", ".join(dict.fromkeys(f"{branch.name!r} at {branch.uri}" for branch in found))
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


def branches_of_location(context: LocationContext) -> list[Branch]:
    """The branches that the resources of a code location write to.

    In a run, IO managers that a function or a factory makes are initialized, since only what they
    are then has the branch. One that needs config of a run has none. Other resources of functions
    are not: each step would open their connections, or start their Spark. Nor does a tick, which
    may come every minute: it requests runs, and these ask.

    Raises:
        InvalidArgument: a resource cannot be initialized.
    """
    given: Any = {}
    if is_run := isinstance(context, OpExecutionContext):
        given = context.run_config.get("resources", {})
    instance = None
    with contextlib.suppress(DagsterError):
        # A tick that a unit test evaluates may have none.
        instance = context.instance
    branches: list[Branch] = []
    seen = set[int]()
    for known in _list_resources(context):
        for key, resource in known.items():
            needs_config = resource.has_config_field and resource.config_schema.is_required
            if id(resource) in seen or not _may_have_branch(resource, in_run=is_run):
                continue
            seen.add(id(resource))
            if key in given or not needs_config:
                branches += _branches_of_resource(instance, key, known, given)
    return branches


def _branches_of_resource(
    instance: DagsterInstance | None,
    key: str,
    known: Mapping[str, ResourceDefinition],
    given: Mapping[str, Any],
) -> list[Branch]:
    try:
        needed, waiting = set[str](), {key}
        while waiting:
            needed |= waiting
            further = (known[name].get_required_resource_keys(known) for name in waiting)
            waiting = set[str]().union(*further) - needed
        definitions = {name: known[name] for name in needed}
        configs = {name: config for name, config in given.items() if name in needed}
        with build_resources(definitions, instance, configs) as resources:
            found = [tables.find_branch() for tables in _tables_in(getattr(resources, key))]
    except Exception as error:
        raise InvalidArgument(
            f"the IO manager {key!r} of the code location cannot be initialized, so it is not "
            "known whether it has a branch, which keeps jobs by location from writing production: "
            "mend it, or give the job a code location without it"
        ) from error
    return [branch for branch in found if branch is not None]


def _list_resources(context: LocationContext) -> Iterator[Mapping[str, ResourceDefinition]]:
    """The resources of a step's job, and all others of the code location."""
    # A step that a unit test calls directly has no job, and only a run in this process no code
    # location. A job has only the resources that it requires.
    with contextlib.suppress(DagsterError, CheckError):
        if isinstance(context, OpExecutionContext):
            yield context.job_def.resource_defs
        if (repository := context.repository_def) is not None:
            yield repository.get_top_level_resources()
            yield from (job.resource_defs for job in repository.get_all_jobs())


def _may_have_branch(resource: object, *, in_run: bool) -> bool:
    """Whether a resource, or what it gives to a run, may have a branch: one of this package, one
    with such a field, or, in a run, an IO manager that the user's code makes.
    """
    kind: Any = getattr(resource, "configurable_resource_cls", None) or type(resource)
    if issubclass(kind, BranchedTables):
        return True
    gives_itself = (
        issubclass(kind, ConfigurableResource | ConfigurableIOManager)
        and kind.create_resource in _GIVING_ITSELF
    )
    if not gives_itself:
        return in_run and isinstance(resource, IOManagerDefinition)
    nested: Mapping[str, object] = getattr(resource, "nested_resources", {})
    return any(_may_have_branch(each, in_run=in_run) for each in nested.values())


def _tables_in(value: object, depth: int = 2) -> Iterator[BranchedTables]:
    """The resources of this package in what a resource gives to a run: itself, or attributes."""
    if isinstance(value, BranchedTables):
        yield value
    elif depth:
        for held in getattr(value, "__dict__", {}).values():
            yield from _tables_in(held, depth - 1)


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
    facts: RawMetadata = {
        f"delta/{key}": value for key, value in branch_facts(branch, snapshot).items()
    }
    if not snapshot.is_large_and_unread and snapshot.num_files <= _MAX_COMPARED_FILES:
        try:
            difference = MetadataValue.md(branch.diff(production).to_markdown())
        except (DeltaError, OSError) as error:
            # The rows are written: production may have moved on.
            _LOG.info("the difference of the branch to production is not shown: %s", error)
        else:
            facts["delta/branch_difference"] = difference
    return facts
