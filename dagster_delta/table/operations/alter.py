"""Runs a schema change: plans it on the latest version, and commits it.

Spec: Change Metadata; Protocol Evolution.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import msgspec

from dagster_delta.engines import engine_for
from dagster_delta.errors import DeltaError, InvalidArgument
from dagster_delta.evolution import actions, table_actions
from dagster_delta.evolution.actions import SchemaAction
from dagster_delta.evolution.column_change import (
    ColumnChangeRequest,
    is_online,
    online_request,
    published_clustering,
)
from dagster_delta.evolution.column_paths import dotted, find_place
from dagster_delta.evolution.dependants import CLUSTERING_DOMAIN
from dagster_delta.evolution.feature_drop import plan_dropped_feature, plan_feature_drop
from dagster_delta.evolution.plan import (
    ColumnChangePlan,
    ExistingRows,
    SchemaChangePlan,
    SchemaDraft,
)
from dagster_delta.evolution.planning import plan_schema_changes
from dagster_delta.evolution.statement import parse_alter
from dagster_delta.protocol.actions import DomainMetadata
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.sql.types import sql_type_name
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.operations.column_change import (
    ColumnChangeJob,
    ColumnChangeProgress,
    begin_column_change,
    plan_for,
)
from dagster_delta.table.operations.configuration_change import (
    RETRIES,
    drop_feature,
    files_to_rewrite,
    stage_configuration_change,
)
from dagster_delta.table.operations.existing_rows import (
    ExistingFiles,
    RowValidation,
    check_unknown_to_files,
)
from dagster_delta.table.operations.write_planning import physical_names
from dagster_delta.table.transaction.retries import (
    run_with_retries,
)
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_delta.clock import Clock
    from dagster_delta.protocol.features.column_change import OnError
    from dagster_delta.protocol.features.table_configuration import TableConfiguration
    from dagster_delta.table.read.snapshot import Snapshot


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
    on_error: OnError = "abort"
    """What an online change does with a value that cannot be converted."""


class SchemaChangeResult(CommitResult, frozen=True, kw_only=True):
    """Result of a schema change; `skipped` if it was a dry run, or nothing changed."""

    plan: SchemaChangePlan
    """The plan that was carried out, or would be."""

    def __str__(self) -> str:
        return self.to_markdown()

    def to_markdown(self) -> str:
        """The plan as text for people: steps, their cost, new features and the schema diff."""
        return self.plan.to_markdown()


def alter_table(
    snapshot: Snapshot,
    sql: str,
    options: SchemaChangeOptions,
    *,
    clock: Clock,
) -> SchemaChangeResult:
    """Run a statement, or plan it.

    Args:
        snapshot: the latest one.
        sql: text of the statement.
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
    wanted = parse_alter(sql)
    if any(isinstance(action, actions.ChangeType) for action in wanted):
        statement = _Statement(snapshot, options, clock)
        statement.plan(wanted)
        if any(isinstance(part.wanted, ColumnChangeRequest) for part in statement.parts):
            return statement.run()
    return change_schema(snapshot, wanted, options, clock=clock)


def change_schema(
    snapshot: Snapshot,
    wanted: Sequence[SchemaAction],
    options: SchemaChangeOptions,
    *,
    clock: Clock,
) -> SchemaChangeResult:
    """Change the schema as one commit, planned again after a conflict.

    If the store failed, a later identical call reuses the rewritten files.
    """
    if len(wanted) == 1 and isinstance(wanted[0], table_actions.DropFeature):
        return _drop_feature(snapshot, wanted[0], options, clock)
    change = _SchemaChange(wanted, options, clock)
    with change.files:
        return change.run(snapshot)


def _drop_feature(
    snapshot: Snapshot,
    action: table_actions.DropFeature,
    options: SchemaChangeOptions,
    clock: Clock,
) -> SchemaChangeResult:
    plan = plan_dropped_feature(snapshot.configuration, action.name)
    if options.dry_run and plan.rewrites_data:
        files = files_to_rewrite(snapshot, plan_feature_drop(snapshot.configuration, action.name))
        plan = plan.with_files(files.num_rows, total_bytes(files))
    if options.dry_run or not plan.changes_anything:
        return SchemaChangeResult(snapshot.version, {}, snapshot, skipped=True, plan=plan)
    rewriting = ExistingFiles(engine_for(None, options.engine), options.on_progress)
    done = drop_feature(snapshot, action, rewriting, clock=clock, commit_info=options.commit_info)
    plan = plan.with_files(rewriting.num_files, rewriting.size_bytes)
    return SchemaChangeResult(done.version, done.metrics, done.snapshot, plan=plan)


@dataclass(slots=True)
class _SchemaChange:
    """Actions that are one commit."""

    wanted: Sequence[SchemaAction]
    options: SchemaChangeOptions
    clock: Clock
    validation: RowValidation = field(init=False)
    files: ExistingFiles = field(init=False)
    started: float = field(default_factory=time.perf_counter, init=False)
    rewritten: pa.Table | None = field(default=None, init=False)
    """`pa.Table` of the files that the plan rewrites."""
    planned: SchemaChangePlan = field(init=False)
    """The plan of the latest attempt."""
    depends_on_files: bool = field(default=False, init=False)
    """Whether the plan is valid only for the present files."""

    def __post_init__(self) -> None:
        engine = engine_for(None, self.options.engine)
        self.validation = RowValidation(engine)
        self.files = ExistingFiles(engine, self.options.on_progress)

    def run(self, snapshot: Snapshot) -> SchemaChangeResult:
        """Plan and commit until there is no conflict."""
        done = run_with_retries(self._attempt, snapshot.store, snapshot, RETRIES)
        return SchemaChangeResult(**msgspec.structs.asdict(done), plan=self.planned)

    def _attempt(self, snapshot: Snapshot) -> CommitResult:
        plan = self.plan(snapshot, snapshot.configuration, snapshot.domain_metadata())
        self.planned = plan
        if self.options.dry_run or not plan.changes_anything:
            return CommitResult(snapshot.version, {}, snapshot, skipped=True)
        return self._commit(snapshot, plan)

    def plan(
        self,
        snapshot: Snapshot,
        configuration: TableConfiguration,
        domains: Mapping[str, DomainMetadata],
    ) -> SchemaChangePlan:
        """What the actions do under a configuration and its domains, to the files of a snapshot."""
        options = self.options
        draft = SchemaDraft(
            configuration,
            physical_names(configuration),
            existing_rows=options.existing_rows,
            enable_features=options.enable_features,
            dry_run=options.dry_run,
            domains=domains,
            table_version=snapshot.version + 1,
            # Only defaults that are kept in the log need to know, and a large log is not counted.
            has_rows=options.existing_rows != "lazy" or snapshot.num_files > 0,
            moment=dt.datetime.fromtimestamp(self.clock() / 1000, dt.UTC),
            find_zone=lambda: self.validation.engine.time_zone,
        )
        plan = plan_schema_changes(draft, self.wanted)
        # A plan for a table without rows is wrong once the table has rows.
        self.depends_on_files = (
            any(
                isinstance(action, actions.AddColumn) and action.default is not None
                for action in self.wanted
            )
            and not snapshot.num_files
        )
        if plan.existing_defaults and configuration.column_mapping_mode == "none":
            check_unknown_to_files(snapshot, plan.after, tuple(plan.existing_defaults))
            self.depends_on_files = True
        if not plan.rewrites_data:
            return plan
        self.rewritten = snapshot.live_files()
        return plan.with_files(self.rewritten.num_rows, total_bytes(self.rewritten))

    def _commit(self, snapshot: Snapshot, plan: SchemaChangePlan) -> CommitResult:
        tracks = plan.after.row_tracking_enabled and not plan.before.row_tracking_enabled
        if plan.rewrites_data and tracks:
            raise InvalidArgument(
                "existing files cannot get row ids and the default of a new column in one commit; "
                "set delta.enableRowTracking in a statement of its own",
                table=snapshot.store.location.uri,
            )
        transaction = Transaction(snapshot.store, snapshot, clock=self.clock)
        stage_configuration_change(transaction, plan.after)
        transaction.stage_domain(*plan.domains.values())
        metrics: dict[str, int | str] = {}
        if plan.rewrites_data:
            self.files.stage(transaction, snapshot, plan, self.rewritten)
            metrics |= self.files.metrics()
        elif plan.validates_rows:
            self.validation.run(snapshot, plan)
        # The preview of type widening records the version of the change.
        names_version = "tableVersion" in plan.after.metadata.schema_string
        if plan.rewrites_data or plan.validates_rows or self.depends_on_files or names_version:
            # Rows that concurrent commits add have not been checked.
            transaction.depend_on(ReadScope(whole_table=True))
        metrics["executionTimeMs"] = round((time.perf_counter() - self.started) * 1000)
        operations = {action.operation for action in self.wanted}
        of_action = self.wanted[0].parameters if len(self.wanted) == 1 else {}
        return transaction.commit(
            operations.pop() if len(operations) == 1 else "ALTER TABLE",
            parameters={"changes": [step.what for step in plan.steps], **of_action},
            metrics=metrics,
            user_info=self.options.commit_info,
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a statement: actions that are one commit, or an online change."""

    wanted: Sequence[SchemaAction] | ColumnChangeRequest
    plan: SchemaChangePlan | ColumnChangePlan


class _Statement:
    """The parts of a statement with an online change, planned one after another."""

    def __init__(self, snapshot: Snapshot, options: SchemaChangeOptions, clock: Clock) -> None:
        self._snapshot = snapshot
        self._options = options
        self._clock = clock
        self._configuration = snapshot.configuration
        self._domains = snapshot.domain_metadata()
        self.parts: list[_Part] = []

    def plan(self, wanted: Sequence[SchemaAction]) -> None:
        """Plan every part on the table as the parts before it leave it."""
        pending: list[SchemaAction] = []
        rest = list(wanted)
        while rest:
            action = rest.pop(0)
            if isinstance(action, actions.ChangeType):
                commit = self._plan_commit(pending) if pending else None
                if is_online((commit.after if commit else self._configuration).schema, action):
                    if commit:
                        self._take_commit(pending, commit)
                    request, count = online_request(action, rest)
                    self._take_online_change(request)
                    pending, rest = [], rest[count:]
                    continue
            pending.append(action)
        if pending:
            self._take_commit(pending, self._plan_commit(pending))

    def _plan_commit(self, wanted: Sequence[SchemaAction]) -> SchemaChangePlan:
        change = _SchemaChange(wanted, self._options, self._clock)
        return change.plan(self._snapshot, self._configuration, self._domains)

    def _take_commit(self, wanted: Sequence[SchemaAction], plan: SchemaChangePlan) -> None:
        self.parts.append(_Part(wanted, plan))
        self._configuration = plan.after
        self._domains |= plan.domains

    def _take_online_change(self, request: ColumnChangeRequest) -> None:
        options = self._options
        request = replace(
            request,
            on_error=options.on_error,
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
            place = find_place(self._configuration.schema, request.column)
            if request.cast is None:
                old, new = sql_type_name(place.data_type), sql_type_name(request.new_type)
                error.message = (
                    f"column {dotted(place.path)} has to change from {old} to {new} online, as "
                    f"that type is not wider: {error.message}"
                )
            raise
        self.parts.append(_Part(request, plan))
        clustering = published_clustering(plan.prepared, plan.change, self._domains)
        if clustering is not None:
            self._domains[CLUSTERING_DOMAIN] = clustering
        self._configuration = plan.published

    def run(self) -> SchemaChangeResult:
        """Run the parts in order; a dry run only reports them."""
        snapshot, plans = self._snapshot, tuple(part.plan for part in self.parts)
        plan = SchemaChangePlan.of_stages(snapshot.configuration, self._configuration, plans)
        if self._options.dry_run:
            return SchemaChangeResult(snapshot.version, {}, snapshot, skipped=True, plan=plan)
        metrics: dict[str, int | str] = {}
        for number, part in enumerate(self.parts):
            try:
                result = self._run(part, snapshot)
            except DeltaError as error:
                done = "; ".join(plan.summary for plan in plans[:number])
                left = "; ".join(plan.summary for plan in plans[number + 1 :])
                if done:
                    error.message += (
                        f"; done before it, and kept as of version {snapshot.version}: {done}"
                    )
                error.message += f"; not done: {left}" if left else ""
                raise
            snapshot = result.snapshot
            _add_metrics(metrics, result.metrics)
        return SchemaChangeResult(snapshot.version, metrics, snapshot, plan=plan)

    def _run(self, part: _Part, snapshot: Snapshot) -> CommitResult:
        options, clock = self._options, self._clock
        if not isinstance(part.wanted, ColumnChangeRequest):
            return change_schema(snapshot, part.wanted, options, clock=clock)
        info = options.commit_info
        engine = engine_for(None, options.engine)
        job = ColumnChangeJob(engine, clock, options.batch_bytes, info, self._report)
        begun = begin_column_change(snapshot, part.wanted, clock=clock, commit_info=info)
        return job.run(begun.snapshot)

    def _report(self, progress: ColumnChangeProgress) -> None:
        state = progress.state
        if state is not None and self._options.on_progress is not None:
            self._options.on_progress(state.num_files - state.num_files_left, state.num_files)


def _add_metrics(metrics: dict[str, int | str], more: Mapping[str, int | str]) -> None:
    for name, value in more.items():
        known = metrics.get(name, 0)
        if isinstance(known, int) and isinstance(value, int):
            value = max(known, value) if name.startswith("longest") else known + value
        metrics[name] = value
