"""Runs a schema change: plans it on the latest version, and commits it.

Spec: Change Metadata; Protocol Evolution.
"""

from __future__ import annotations

import datetime as dt
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
from dagster_delta.evolution.schema_change.plan import ExistingRows, SchemaChangePlan
from dagster_delta.evolution.schema_change.planning import (
    PlanningOptions,
    plan_dropped_feature,
    plan_schema_changes,
)
from dagster_delta.protocol.actions import DomainMetadata
from dagster_delta.protocol.features.existing_defaults import EXISTING_DEFAULTS_FEATURE
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.operations.configuration_change import stage_configuration_change
from dagster_delta.table.operations.drop_feature import drop_feature
from dagster_delta.table.operations.existing_rows import ExistingFiles, RowValidation
from dagster_delta.table.operations.outdated_files import OlderFiles, check_unknown_to_files
from dagster_delta.table.operations.write_planning import physical_names
from dagster_delta.table.transaction.committer import Conflicted
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_delta.clock import Clock
    from dagster_delta.protocol.features.table_configuration import TableConfiguration
    from dagster_delta.table.read.snapshot import Snapshot

_MAX_ATTEMPTS = 10
"""How often a change that conflicts with another commit is planned again."""

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
    looked_at_files: bool = field(default=False, init=False)
    """Whether the plan is valid only for the present files."""

    def __post_init__(self) -> None:
        engine = engine_for(None, self.options.engine)
        self.validation = RowValidation(engine)
        self.files = ExistingFiles(engine, self.options.on_progress)

    def run(self, snapshot: Snapshot) -> SchemaChangeResult:
        """Plan and commit until there is no conflict."""
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            transaction = Transaction(snapshot.store, snapshot, clock=self.clock)
            domains = snapshot.domain_metadata()
            plan = self.plan(
                snapshot,
                snapshot.configuration,
                {name: domain.configuration for name, domain in domains.items()},
            )
            if self.options.dry_run or not plan.changes_anything:
                return SchemaChangeResult(snapshot.version, {}, snapshot, skipped=True, plan=plan)
            outcome = self._try(transaction, snapshot, plan)
            if isinstance(outcome, CommitResult):
                self.files.forget()
                return SchemaChangeResult(
                    outcome.version, outcome.metrics, outcome.snapshot, plan=plan
                )
            if attempt == _MAX_ATTEMPTS:
                raise outcome.conflict.to_error(table=snapshot.store.location.uri)
            snapshot = snapshot.update()
        raise AssertionError("unreachable")

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

    def _try(
        self, transaction: Transaction, snapshot: Snapshot, plan: SchemaChangePlan
    ) -> CommitResult | Conflicted:
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
        return transaction.try_commit(
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
