"""Runs an ALTER TABLE statement: as one commit, or with online column changes in it.

A statement that gives a column a type which is not wider runs in parts, in the order of its
actions. Each online change is one part, together with other actions on the same column; the actions
before, between and after online changes are one commit each. All parts are planned before the first
one begins; if a part fails, the parts before it remain committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_delta.engines import engine_for
from dagster_delta.errors import DeltaError
from dagster_delta.evolution.alter.actions import ChangeType, SchemaAction
from dagster_delta.evolution.column_change.plan import ColumnChangePlan, ColumnChangeRequest
from dagster_delta.evolution.column_change.states import published_clustering
from dagster_delta.evolution.column_paths import dotted, find_place
from dagster_delta.evolution.dependants import CLUSTERING_DOMAIN
from dagster_delta.evolution.schema_change.draft import PlannedStep
from dagster_delta.evolution.schema_change.online_change import is_online, online_request
from dagster_delta.evolution.schema_change.plan import SchemaChangePlan
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.sql.types import sql_type_name
from dagster_delta.table.operations.alter import (
    SchemaChangeOptions,
    SchemaChangeResult,
    change_schema,
    plan_schema_change,
)
from dagster_delta.table.operations.column_change import (
    ColumnChangeJob,
    begin_column_change,
    plan_for,
)
from dagster_delta.table.operations.column_change_progress import ColumnChangeProgress, Progress

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.transaction.transaction import CommitResult


@dataclass(frozen=True, slots=True)
class _Commit:
    actions: tuple[SchemaAction, ...]
    plan: SchemaChangePlan


@dataclass(frozen=True, slots=True)
class _OnlineChange:
    request: ColumnChangeRequest
    plan: ColumnChangePlan


_Part = _Commit | _OnlineChange


def alter_table(
    snapshot: Snapshot,
    actions: Sequence[SchemaAction],
    options: SchemaChangeOptions,
    *,
    clock: Clock,
) -> SchemaChangeResult:
    """Run a statement, or plan it.

    Args:
        snapshot: the latest one.
        actions: actions of the statement, at least one.
        options: options of the caller.
        clock: milliseconds since the epoch.

    Returns:
        Result of the last commit; the metrics are those of all parts.

    Raises:
        ColumnChangeFailed: values cannot be converted, or rows break a constraint under the new
            type; that change was cancelled.
        SchemaChangeRefused: as `change_schema` does, or a switch of online changes is off.
        DeltaError: other errors of `change_schema`. If a part fails after the first one, the
            message says which parts are committed.
    """
    if not any(isinstance(action, ChangeType) for action in actions):
        return change_schema(snapshot, actions, options, clock=clock)
    statement = _Statement(snapshot, options, clock)
    statement.plan(actions)
    if not any(isinstance(part, _OnlineChange) for part in statement.parts):
        return change_schema(snapshot, actions, options, clock=clock)
    return statement.run()


class _Statement:
    """The parts of a statement with an online change, planned one after another."""

    def __init__(self, snapshot: Snapshot, options: SchemaChangeOptions, clock: Clock) -> None:
        self._snapshot = snapshot
        self._options = options
        self._clock = clock
        self._configuration = snapshot.configuration
        self._domains = {
            name: domain.configuration for name, domain in snapshot.domain_metadata().items()
        }
        self.parts: list[_Part] = []

    def plan(self, actions: Sequence[SchemaAction]) -> None:
        """Plan every part on the table as the parts before it leave it."""
        pending: list[SchemaAction] = []
        rest = list(actions)
        while rest:
            if not isinstance(rest[0], ChangeType):
                pending.append(rest.pop(0))
                continue
            commit = self._commit(pending) if pending else None
            schema = (commit.plan.after if commit else self._configuration).schema
            if not is_online(schema, rest[0]):
                pending.append(rest.pop(0))
                continue
            if commit:
                self._take(commit)
                pending = []
            request, count = online_request(rest)
            self._take(self._online_change(request))
            rest = rest[count:]
        if pending:
            self._take(self._commit(pending))

    def _commit(self, actions: Sequence[SchemaAction]) -> _Commit:
        plan = plan_schema_change(
            self._snapshot,
            actions,
            self._options,
            clock=self._clock,
            configuration=self._configuration,
            domains=self._domains,
        )
        return _Commit(tuple(actions), plan)

    def _online_change(self, request: ColumnChangeRequest) -> _OnlineChange:
        options = self._options
        request = replace(
            request,
            enable_features=options.enable_features,
            is_allowed=options.allow_column_changes,
        )
        try:
            plan = plan_for(
                self._snapshot,
                request,
                configuration=self._configuration,
                batch_bytes=options.batch_bytes,
                dry_run=options.dry_run,
            )
        except DeltaError as error:
            place = find_place(self._configuration.schema, tuple(request.column))
            if request.cast is None and not isinstance(request.new_type, str):
                old, new = sql_type_name(place.data_type), sql_type_name(request.new_type)
                error.message = (
                    f"column {dotted(place.path)} has to change from {old} to {new} online, as "
                    f"that type is not wider: {error.message}"
                )
            raise
        return _OnlineChange(request, plan)

    def _take(self, part: _Part) -> None:
        self.parts.append(part)
        if isinstance(part, _Commit):
            self._configuration = part.plan.after
            self._domains |= part.plan.domains
            return
        clustering = published_clustering(part.plan.prepared, part.plan.change, self._domains)
        if clustering is not None:
            self._domains[CLUSTERING_DOMAIN] = clustering
        self._configuration = part.plan.published

    def run(self) -> SchemaChangeResult:
        """Run the parts in order; a dry run only reports them."""
        snapshot = self._snapshot
        plan = _whole_plan(snapshot.configuration, self._configuration, self.parts)
        if self._options.dry_run:
            return SchemaChangeResult(snapshot.version, {}, snapshot, skipped=True, plan=plan)
        metrics: dict[str, int | str] = {}
        for number, part in enumerate(self.parts):
            try:
                result = self._run(part, snapshot)
            except DeltaError as error:
                error.message += _what_is_done(self.parts, number, snapshot.version)
                raise
            snapshot = result.snapshot
            metrics = _summed(metrics, result.metrics)
        return SchemaChangeResult(snapshot.version, metrics, snapshot, plan=plan)

    def _run(self, part: _Part, snapshot: Snapshot) -> CommitResult:
        options = self._options
        if isinstance(part, _Commit):
            return change_schema(snapshot, part.actions, options, clock=self._clock)
        job = ColumnChangeJob(
            snapshot.store,
            engine_for(None, options.engine),
            clock=self._clock,
            batch_bytes=options.batch_bytes,
            commit_info=options.commit_info,
            on_progress=_progress(options),
        )
        begun = begin_column_change(
            snapshot, part.request, clock=self._clock, commit_info=options.commit_info
        )
        return job.run(begun.snapshot)


def _progress(options: SchemaChangeOptions) -> Progress | None:
    report = options.on_progress
    if report is None:
        return None

    def report_state(progress: ColumnChangeProgress) -> None:
        state = progress.state
        if state is not None:
            report(state.num_files - state.num_files_left, state.num_files)

    return report_state


def _whole_plan(
    before: TableConfiguration, after: TableConfiguration, parts: Sequence[_Part]
) -> SchemaChangePlan:
    steps: list[PlannedStep] = []
    files = size = 0
    for part in parts:
        if isinstance(part, _Commit):
            steps += part.plan.steps
            files += part.plan.affected_files
            size += part.plan.affected_bytes
        else:
            steps.append(PlannedStep(part.plan.summary, "converts"))
            cost = part.plan.cost
            files += cost.num_files if cost else 0
            size += cost.size_bytes if cost else 0
    missing = dict.fromkeys(switch for part in parts for switch in part.plan.missing_switches)
    return SchemaChangePlan(
        before,
        after,
        tuple(steps),
        affected_files=files,
        affected_bytes=size,
        missing_switches=tuple(missing),
        stages=tuple(part.plan for part in parts),
    )


def _what_is_done(parts: Sequence[_Part], failed: int, version: int) -> str:
    """Which parts a failed statement has committed, as the end of a message."""
    done = "; ".join(map(_clause, parts[:failed]))
    left = "; ".join(map(_clause, parts[failed + 1 :]))
    text = ""
    if done:
        text += f"; done before it, and kept as of version {version}: {done}"
    if left:
        text += f"; not done: {left}"
    return text


def _clause(part: _Part) -> str:
    if isinstance(part, _OnlineChange):
        return part.plan.summary
    return ", ".join(step.what for step in part.plan.steps)


def _summed(
    metrics: Mapping[str, int | str], more: Mapping[str, int | str]
) -> dict[str, int | str]:
    summed = dict(metrics)
    for name, value in more.items():
        known = summed.get(name, 0)
        if isinstance(known, int) and isinstance(value, int):
            value = max(known, value) if name.startswith("longest") else known + value
        summed[name] = value
    return summed
