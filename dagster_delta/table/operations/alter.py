"""Runs a schema change: plans it on the latest version, and commits it.

Spec: Change Metadata; Protocol Evolution.
"""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from dagster_delta.engines import engine_for
from dagster_delta.errors import CommitStateUnknown, DeltaError, InvalidArgument, StorageFailure
from dagster_delta.evolution.alter.actions import (
    AddColumn,
    AddConstraint,
    ChangeType,
    ClusterBy,
    DropColumn,
    DropConstraint,
    DropFeature,
    MaterializeDefaults,
    RenameColumn,
    SchemaAction,
    SetProperties,
    UnsetProperties,
)
from dagster_delta.evolution.column_change.plan import ColumnChangePlan, ColumnChangeRequest
from dagster_delta.evolution.column_change.states import published_clustering
from dagster_delta.evolution.column_paths import dotted, find_place
from dagster_delta.evolution.dependants import CLUSTERING_DOMAIN
from dagster_delta.evolution.schema_change.draft import PlannedStep
from dagster_delta.evolution.schema_change.online_change import is_online, online_request
from dagster_delta.evolution.schema_change.plan import ExistingRows, SchemaChangePlan
from dagster_delta.evolution.schema_change.planning import (
    PlanningOptions,
    plan_dropped_feature,
    plan_schema_changes,
)
from dagster_delta.protocol.actions import DomainMetadata
from dagster_delta.protocol.features.existing_defaults import EXISTING_DEFAULTS_FEATURE
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.sql.types import sql_type_name
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.operations.column_change import (
    ColumnChangeJob,
    begin_column_change,
    plan_for,
)
from dagster_delta.table.operations.column_change_progress import ColumnChangeProgress, Progress
from dagster_delta.table.operations.configuration_change import stage_configuration_change
from dagster_delta.table.operations.drop_feature import drop_feature
from dagster_delta.table.operations.existing_rows import ExistingFiles, RowValidation
from dagster_delta.table.operations.outdated_files import OlderFiles, check_unknown_to_files
from dagster_delta.table.operations.write_planning import physical_names
from dagster_delta.table.transaction.app_transactions import ApplicationRecord
from dagster_delta.table.transaction.retries import ConflictRetries, run_with_retries
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_delta.clock import Clock
    from dagster_delta.protocol.features.table_configuration import TableConfiguration
    from dagster_delta.table.read.snapshot import Snapshot


_RETRIES = ConflictRetries(attempts=10, seconds=math.inf)
"""How often a change that conflicts with another commit is planned again: it may rewrite files for
hours, and the next attempt reuses them.
"""

_OPERATIONS: Mapping[type[object], str] = {
    AddColumn: "ADD COLUMNS",
    DropColumn: "DROP COLUMNS",
    RenameColumn: "RENAME COLUMN",
    ChangeType: "CHANGE COLUMN",
    MaterializeDefaults: "MATERIALIZE DEFAULTS",
    AddConstraint: "ADD CONSTRAINT",
    DropConstraint: "DROP CONSTRAINT",
    SetProperties: "SET TBLPROPERTIES",
    UnsetProperties: "UNSET TBLPROPERTIES",
    ClusterBy: "CLUSTER BY",
}
"""Names of the operation in other engines; everything else is a CHANGE COLUMN."""


@dataclass(frozen=True, slots=True)
class SchemaChangeOptions:
    """Options of a schema change."""

    existing_rows: ExistingRows = "rewrite"
    enable_features: bool = False
    engine: Literal["arrow", "spark"] | None = None
    dry_run: bool = False
    commit_info: Mapping[str, object] | None = None
    on_progress: Callable[[int, int], None] | None = None
    allow_column_changes: bool = True
    """Whether the caller's handle allows online column changes."""
    batch_bytes: int | None = None
    """Size of the data files that an online change rewrites in one commit; None: 1 GiB."""


class SchemaChangeResult(CommitResult, frozen=True, kw_only=True):
    """Result of a schema change; `skipped` if it was a dry run, or nothing changed."""

    plan: SchemaChangePlan
    """The plan that was carried out, or would be."""

    def __str__(self) -> str:
        return self.to_markdown()

    def to_markdown(self) -> str:
        """The plan as text for people: steps, their cost, the protocol and the schema diff."""
        return self.plan.to_markdown()


def change_schema(
    snapshot: Snapshot,
    actions: Sequence[SchemaAction],
    options: SchemaChangeOptions,
    *,
    clock: Clock,
) -> SchemaChangeResult:
    """Change the schema as one commit, planned again after a conflict.

    If the store failed, a later identical call reuses the rewritten files.
    """
    if len(actions) == 1 and isinstance(actions[0], DropFeature):
        return _drop_feature(snapshot, actions[0], options, clock)
    change = _SchemaChange(actions, options, clock)
    try:
        return change.run(snapshot)
    except (StorageFailure, CommitStateUnknown):
        # A retry may succeed, and reuses the files that are written.
        raise
    except DeltaError:
        change.files.forget()
        raise


def plan_schema_change(
    snapshot: Snapshot,
    actions: Sequence[SchemaAction],
    options: SchemaChangeOptions,
    *,
    clock: Clock,
    configuration: TableConfiguration,
    domains: Mapping[str, str],
) -> SchemaChangePlan:
    """The plan of a change on a table that earlier parts of the same statement change first.

    The snapshot has the present files; the configuration and the domains (text by name) are those
    after the earlier parts.
    """
    return _SchemaChange(actions, options, clock).plan(snapshot, configuration, domains)


def _drop_feature(
    snapshot: Snapshot,
    action: DropFeature,
    options: SchemaChangeOptions,
    clock: Clock,
) -> SchemaChangeResult:
    plan = plan_dropped_feature(snapshot.configuration, action)
    if action.name == EXISTING_DEFAULTS_FEATURE:
        # The files come first, in a commit that can resume after a crash.
        freed = change_schema(snapshot, [MaterializeDefaults()], options, clock=clock)
        snapshot = freed.snapshot
        plan = _with_cost_of(plan, freed.plan)
    if options.dry_run:
        return SchemaChangeResult(snapshot.version, {}, snapshot, skipped=True, plan=plan)
    done = drop_feature(
        snapshot,
        action.name,
        truncate_history=action.truncate_history,
        clock=clock,
        commit_info=options.commit_info,
    )
    return SchemaChangeResult(done.version, done.metrics, done.snapshot, plan=plan)


def _with_cost_of(plan: SchemaChangePlan, freed: SchemaChangePlan) -> SchemaChangePlan:
    """The plan of a dropped feature with the cost of rewriting its files."""
    if not freed.affected_files:
        steps = tuple(replace(step, effect="metadata") for step in plan.steps)
        return replace(plan, steps=steps, frees_files_of_feature=False)
    return replace(
        plan,
        affected_files=freed.affected_files,
        affected_bytes=freed.affected_bytes,
    )


@dataclass(slots=True)
class _SchemaChange:
    actions: Sequence[SchemaAction]
    options: SchemaChangeOptions
    clock: Clock
    validation: RowValidation = field(init=False)
    files: ExistingFiles = field(init=False)
    started: float = field(default_factory=time.perf_counter, init=False)
    older_files: OlderFiles = field(default_factory=OlderFiles, init=False)
    rewritten: pa.Table | None = field(default=None, init=False)
    """`pa.Table` of the files that the plan rewrites."""
    planned: SchemaChangePlan = field(init=False)
    """The plan of the latest attempt."""
    looked_at_files: bool = field(default=False, init=False)
    """Whether the plan is valid only for the present files."""

    def __post_init__(self) -> None:
        engine = engine_for(None, self.options.engine)
        self.validation = RowValidation(engine)
        self.files = ExistingFiles(engine, self.options.on_progress)

    def run(self, snapshot: Snapshot) -> SchemaChangeResult:
        """Plan and commit until there is no conflict."""
        done = run_with_retries(
            self._attempt, snapshot.store, snapshot, _RETRIES, ApplicationRecord()
        )
        if not done.skipped:
            self.files.forget()
        return SchemaChangeResult(
            done.version,
            done.metrics,
            done.snapshot,
            done.skipped,
            done.attempts,
            plan=self.planned,
        )

    def _attempt(self, snapshot: Snapshot) -> CommitResult:
        transaction = Transaction(snapshot.store, snapshot, clock=self.clock)
        domains = snapshot.domain_metadata()
        self.planned = self.plan(
            snapshot,
            snapshot.configuration,
            {name: domain.configuration for name, domain in domains.items()},
        )
        if self.options.dry_run or not self.planned.changes_anything:
            return CommitResult(snapshot.version, {}, snapshot, skipped=True)
        return self._commit(transaction, snapshot, self.planned)

    def plan(
        self,
        snapshot: Snapshot,
        configuration: TableConfiguration,
        domains: Mapping[str, str],
    ) -> SchemaChangePlan:
        """What the actions do under a configuration, to the files of a snapshot."""
        plan = plan_schema_changes(
            configuration,
            self.actions,
            PlanningOptions(
                existing_rows=self.options.existing_rows,
                enable_features=self.options.enable_features,
                dry_run=self.options.dry_run,
                domains=domains,
                table_version=snapshot.version + 1,
                has_rows=snapshot.num_files > 0,
                moment=dt.datetime.fromtimestamp(self.clock() / 1000, dt.UTC),
                find_zone=lambda: self.validation.engine.time_zone,
            ),
            new_name=physical_names(configuration),
        )
        # A plan for a table without rows is wrong once the table has rows.
        self.looked_at_files = not snapshot.num_files and any(map(_adds_default, self.actions))
        if plan.existing_defaults and configuration.column_mapping_mode == "none":
            check_unknown_to_files(snapshot, plan.after, tuple(plan.existing_defaults))
            self.looked_at_files = True
        if not plan.rewrites_data:
            return plan
        if not snapshot.num_files:
            # A table without files has no rows to rewrite.
            steps = tuple(step for step in plan.steps if step.effect != "rewrites")
            return replace(plan, fills={}, materializes_defaults=False, steps=steps)
        self.rewritten = (
            self.older_files.of(snapshot) if plan.materializes_defaults else snapshot.live_files()
        )
        size = total_bytes(self.rewritten)
        return replace(plan, affected_files=self.rewritten.num_rows, affected_bytes=size)

    def _commit(
        self, transaction: Transaction, snapshot: Snapshot, plan: SchemaChangePlan
    ) -> CommitResult:
        _refuse_two_rewrites(plan, snapshot.store.location.uri)
        stage_configuration_change(transaction, plan.after)
        for name, text in plan.domains.items():
            transaction.stage_domain(DomainMetadata(domain=name, configuration=text, removed=False))
        metrics: dict[str, int | str] = {}
        if plan.rewrites_data:
            self.files.stage(transaction, snapshot, plan, self.rewritten)
            metrics |= {
                "numRemovedFiles": plan.affected_files,
                "numRemovedBytes": plan.affected_bytes,
                "numOutputRows": self.files.num_rows,
            }
        elif plan.validates_rows:
            self.validation.run(snapshot, plan)
        if (
            plan.rewrites_data
            or plan.validates_rows
            or self.looked_at_files
            or _names_version(plan)
        ):
            # Rows that concurrent commits add have not been checked.
            transaction.depend_on(ReadScope(whole_table=True))
        metrics["executionTimeMs"] = round((time.perf_counter() - self.started) * 1000)
        return transaction.commit(
            _operation(self.actions),
            parameters={"changes": [step.what for step in plan.steps]},
            metrics=metrics,
            user_info=self.options.commit_info,
        )


def _refuse_two_rewrites(plan: SchemaChangePlan, table: str) -> None:
    tracks = plan.after.row_tracking_enabled and not plan.before.row_tracking_enabled
    if plan.rewrites_data and tracks:
        raise InvalidArgument(
            "existing files cannot get row ids and the default of a new column in one commit; "
            "set delta.enableRowTracking in a statement of its own",
            table=table,
        )


def _names_version(plan: SchemaChangePlan) -> bool:
    """Whether the metadata names the version of the change, as the preview of widening does."""
    return "tableVersion" in plan.after.metadata.schema_string


def _adds_default(action: SchemaAction) -> bool:
    return isinstance(action, AddColumn) and action.default is not None


def _operation(actions: Sequence[SchemaAction]) -> str:
    names = {_OPERATIONS.get(type(action), "CHANGE COLUMN") for action in actions}
    return names.pop() if len(names) == 1 else "ALTER TABLE"


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
