"""ALTER TABLE: a statement is one commit, or several if it changes a column online."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dagster_delta.clock import now_ms
from dagster_delta.engines import engine_for
from dagster_delta.errors import DeltaError
from dagster_delta.evolution import actions
from dagster_delta.evolution.actions import SchemaAction
from dagster_delta.evolution.column_change import (
    published_clustering,
)
from dagster_delta.evolution.column_change_request import (
    ColumnChangeRequest,
    is_online,
    online_request,
)
from dagster_delta.evolution.column_paths import dotted, find_place
from dagster_delta.evolution.dependants import CLUSTERING_DOMAIN
from dagster_delta.evolution.plan import ColumnChangePlan, SchemaChangePlan
from dagster_delta.evolution.statement import parse_alter
from dagster_delta.sql.types import sql_type_name
from dagster_delta.table.operations.change_schema import (
    SchemaChange,
    SchemaChangeOptions,
    SchemaChangeResult,
    change_schema,
)
from dagster_delta.table.operations.column_change import (
    ColumnChangeJob,
    ColumnChangeProgress,
    begin_column_change,
    plan_for,
)
from dagster_delta.table.operations.drop_feature import drop_table_feature
from dagster_delta.table.transaction.transaction import CommitResult

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.evolution.plan import ExistingRows
    from dagster_delta.protocol.features.column_change import OnError
    from dagster_delta.table.operations.change_schema import EngineName
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.table_handle import TableHandle


def alter(
    table: TableHandle,
    /,
    statement: str,
    *,
    dry_run: bool = False,
    enable_features: bool = False,
    force: bool = False,
    existing_rows: ExistingRows = "rewrite",
    engine: EngineName | None = None,
    batch_bytes: int | None = None,
    on_error: OnError = "abort",
    commit_info: Mapping[str, object] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> SchemaChangeResult:
    """Run an `ALTER TABLE` statement: as one commit, or as the online change of a column.

    It accepts the syntax of Spark, Delta, DuckDB, DuckLake, MySQL and TiDB; see
    `dagster_delta.evolution.statement`.

    `MODIFY`, `CHANGE` and `ALTER … TYPE` widen a type in the log alone. To any other atomic
    type, or with `USING`, they run the online change of `change_column`, if its switches are
    on. Its last commit includes everything that the statement says about the column: its name,
    NOT NULL, default, comment and position. Other actions are separate commits, before or after
    the change as in the statement. Everything is planned before the first commit. If an action
    fails, the actions before it remain committed, and the message names them; an online change
    that fails is rolled back.

    Args:
        statement: `ALTER TABLE t ADD COLUMN c INT DEFAULT 0`; `ALTER TABLE t` may be omitted,
            and the name is ignored.
        dry_run: True to plan the change and commit nothing: the result has the plan, which
            names the table features that it needs and what has to be enabled first.
        enable_features: whether column mapping (needed to drop and rename columns) and type
            widening may be enabled for the whole table; older clients then cannot read it.
        force: whether to make a change after which readers that the table names (property
            `dagsterDelta.readers`) give wrong rows without an error.
        existing_rows: the value of existing rows in a new column with a default. `rewrite`: the
            default; their files are rewritten in this commit. `lazy`: the default, filled in by
            readers, and files are unchanged; it needs a reader feature of this library, so
            other clients refuse the table until `materialize_defaults`. With it, a field of a
            struct can also have a default, for existing rows only. `null`: null, as in Delta.
        engine: the engine that reads and writes existing rows, if needed: `arrow` (the default)
            or `spark`.
        batch_bytes: size of the data files that an online change rewrites in one commit; 1 GiB.
        on_error: whether a value that an online change cannot convert aborts the change, or
            becomes `null`.
        commit_info: recorded in the commitInfo beside this library's own fields.
        on_progress: called with the number of files rewritten so far, and of all to rewrite.

    Returns:
        Result of the last commit. The metrics of an online change are those of `change_column`.

    Raises:
        ColumnChangeFailed: values cannot be converted to the new type of a column.
        InvalidArgument: the statement does not parse (the message marks the place) or is
            invalid for this table.
        SchemaChangeRefused: something depends on a column, a type is not wider, or a feature
            would have to be enabled.
        SchemaMismatch: a column is not in the schema.
        ConstraintViolation, InvalidCast: existing rows do not allow it.
        UnsupportedExpression: only Spark evaluates an expression exactly.
        UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written.
        TableNotFound: the table does not exist.
        CommitConflict, CommitStateUnknown, StorageFailure: the commit failed, or may have
            failed.
    """
    options = SchemaChangeOptions(
        dry_run=dry_run,
        enable_features=enable_features,
        force=force,
        existing_rows=existing_rows,
        engine=engine,
        batch_bytes=batch_bytes,
        on_error=on_error,
        commit_info=commit_info,
        on_progress=on_progress,
        allow_column_changes=table._allow_column_changes,
    )
    result = alter_table(table._existing(), statement, options, clock=now_ms)
    table._adopt(result)
    return result


def alter_table(
    snapshot: Snapshot,
    sql: str,
    options: SchemaChangeOptions,
    *,
    clock: Clock,
) -> SchemaChangeResult:
    """Run a statement, or plan it. With an online change it is several commits: the metrics are
    those of all of them, and the message of an error says which of them were made.
    """
    wanted = parse_alter(sql)
    if len(wanted) == 1 and isinstance(wanted[0], actions.DropFeature):
        return drop_table_feature(snapshot, wanted[0], options, clock=clock)
    if any(isinstance(action, actions.ChangeType) for action in wanted):
        statement = _Statement(snapshot, options, clock)
        statement.plan(wanted)
        if any(isinstance(plan, ColumnChangePlan) for _, plan in statement.parts):
            return statement.run()
    return change_schema(snapshot, wanted, options, clock=clock)


class _Statement:
    """The parts of a statement with an online change, planned one after another."""

    def __init__(self, snapshot: Snapshot, options: SchemaChangeOptions, clock: Clock) -> None:
        self._snapshot = snapshot
        self._options = options
        self._clock = clock
        self._configuration = snapshot.configuration
        self._domains = snapshot.domain_metadata()
        self.parts: list[tuple[Sequence[SchemaAction] | ColumnChangeRequest, SchemaChangePlan]] = []
        """Actions that are one commit, or an online change, with their plan."""

    def plan(self, wanted: Sequence[SchemaAction]) -> None:
        """Plan every part on the table as the parts before it leave it."""
        pending: list[SchemaAction] = []
        rest = list(wanted)
        while rest:
            action = rest.pop(0)
            if isinstance(action, actions.ChangeType):
                before = self._plan_commit(pending).after if pending else self._configuration
                if is_online(before.schema, action):
                    self._take_commit(pending)
                    request, count = online_request(action, rest)
                    self._take_online_change(request)
                    pending, rest = [], rest[count:]
                    continue
            pending.append(action)
        self._take_commit(pending)

    def _plan_commit(self, wanted: Sequence[SchemaAction]) -> SchemaChangePlan:
        change = SchemaChange(wanted, self._options, self._clock)
        return change.plan(self._snapshot, self._configuration, self._domains)

    def _take_commit(self, wanted: Sequence[SchemaAction]) -> None:
        if wanted:
            plan = self._plan_commit(wanted)
            self.parts.append((wanted, plan))
            self._configuration = plan.after
            self._domains |= plan.domains

    def _take_online_change(self, request: ColumnChangeRequest) -> None:
        options = self._options
        request = replace(
            request,
            on_error=options.on_error,
            enable_features=options.enable_features,
            force=options.force,
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
        self.parts.append((request, plan))
        clustering = published_clustering(plan.prepared, plan.change, self._domains)
        if clustering is not None:
            self._domains[CLUSTERING_DOMAIN] = clustering
        self._configuration = plan.after

    def run(self) -> SchemaChangeResult:
        """Run the parts in order; a dry run only reports them."""
        snapshot, plans = self._snapshot, tuple(plan for _, plan in self.parts)
        plan = SchemaChangePlan.of_stages(snapshot.configuration, self._configuration, plans)
        if self._options.dry_run:
            return SchemaChangeResult(snapshot.version, {}, snapshot, skipped=True, plan=plan)
        metrics: dict[str, int | str] = {}
        for number, (wanted, _) in enumerate(self.parts):
            try:
                result = self._change_schema(wanted, snapshot)
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

    def _change_schema(
        self, wanted: Sequence[SchemaAction] | ColumnChangeRequest, snapshot: Snapshot
    ) -> CommitResult:
        options, clock = self._options, self._clock
        if not isinstance(wanted, ColumnChangeRequest):
            return change_schema(snapshot, wanted, options, clock=clock)
        info, engine = options.commit_info, engine_for(None, options.engine)
        job = ColumnChangeJob(engine, clock, options.batch_bytes, info, self._report_progress)
        begun = begin_column_change(snapshot, wanted, clock=clock, commit_info=info)
        return job.run(begun.snapshot)

    def _report_progress(self, progress: ColumnChangeProgress) -> None:
        state = progress.state
        if state is not None and self._options.on_progress is not None:
            self._options.on_progress(state.num_files - state.num_files_left, state.num_files)


def _add_metrics(metrics: dict[str, int | str], more: Mapping[str, int | str]) -> None:
    for name, value in more.items():
        known = metrics.get(name, 0)
        if isinstance(known, int) and isinstance(value, int):
            value = max(known, value) if name.startswith("longest") else known + value
        metrics[name] = value
