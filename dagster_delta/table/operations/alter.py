"""ALTER TABLE: plans a schema change on the latest version, and commits it, with the changes that
files need for it.

Where a table feature is dropped, the table first stops using it, then the protocol stops naming it.

Spec: Change Metadata; Protocol Evolution; Row Tracking; In-Commit Timestamps; Table Features;
Checkpoint Protection; Deletion Vectors.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines import engine_for
from dagster_delta.engines.embedded_values import EMBEDDED_VALUES
from dagster_delta.engines.footers import count_file_rows
from dagster_delta.errors import DeltaError, InvalidArgument
from dagster_delta.evolution import actions
from dagster_delta.evolution.actions import SchemaAction
from dagster_delta.evolution.column_change import (
    ColumnChangeRequest,
    is_online,
    online_request,
    published_clustering,
)
from dagster_delta.evolution.column_paths import dotted, find_place
from dagster_delta.evolution.dependants import CLUSTERING_DOMAIN
from dagster_delta.evolution.plan import (
    ColumnChangePlan,
    ExistingRows,
    PlannedStep,
    SchemaChangePlan,
    SchemaDraft,
)
from dagster_delta.evolution.planning import FeatureDrop, plan_feature_drop, plan_schema_changes
from dagster_delta.evolution.statement import parse_alter
from dagster_delta.protocol.actions import AddFile, DomainMetadata, RemoveFile
from dagster_delta.protocol.features.existing_defaults import EXISTING_DEFAULTS_FEATURE
from dagster_delta.protocol.features.iceberg_compat import iceberg_compat_version
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.statistics.statistics import parse_statistics_json, with_record_count
from dagster_delta.protocol.values.partition_values import decode_path, encode_path
from dagster_delta.sql.types import sql_type_name
from dagster_delta.storage.locations import scheme_of
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.log.reader import list_log
from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint
from dagster_delta.table.operations.clustering import keep_clustering
from dagster_delta.table.operations.column_change import (
    RETRIES,
    ColumnChangeJob,
    ColumnChangeProgress,
    begin_column_change,
    plan_for,
)
from dagster_delta.table.operations.existing_rows import (
    ExistingFiles,
    RowValidation,
    check_unknown_to_files,
    older_files,
    outdated_files,
)
from dagster_delta.table.operations.vacuum_plan import deletion_vector_paths
from dagster_delta.table.transaction.file_actions import added_again
from dagster_delta.table.transaction.retries import (
    run_with_retries,
)
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
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
    """Run a statement, or plan it. With an online change it is several commits: the metrics are
    those of all of them, and the message of an error says which of them were made.
    """
    wanted = parse_alter(sql)
    if any(isinstance(action, actions.ChangeType) for action in wanted):
        statement = _Statement(snapshot, options, clock)
        statement.plan(wanted)
        if any(isinstance(plan, ColumnChangePlan) for _, plan in statement.parts):
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
    if len(wanted) == 1 and isinstance(wanted[0], actions.DropFeature):
        return _FeatureDropping(wanted[0], options, clock).run(snapshot)
    change = _SchemaChange(wanted, options, clock)
    with change.files:
        return change.run(snapshot)


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
        plan = plan_schema_changes(draft, self.wanted, EMBEDDED_VALUES)
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
        change = _SchemaChange(wanted, self._options, self._clock)
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
                result = self._run(wanted, snapshot)
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

    def _run(
        self, wanted: Sequence[SchemaAction] | ColumnChangeRequest, snapshot: Snapshot
    ) -> CommitResult:
        options, clock = self._options, self._clock
        if not isinstance(wanted, ColumnChangeRequest):
            return change_schema(snapshot, wanted, options, clock=clock)
        info, engine = options.commit_info, engine_for(None, options.engine)
        job = ColumnChangeJob(engine, clock, options.batch_bytes, info, self._report)
        begun = begin_column_change(snapshot, wanted, clock=clock, commit_info=info)
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


def stage_configuration_change(transaction: Transaction, configuration: TableConfiguration) -> None:
    """Stage a configuration on an existing table, and the changes that its files need for it.

    Files get row ids if row tracking begins with it. The transaction then depends on every file.
    """
    snapshot = transaction.snapshot
    assert snapshot is not None  # noqa: S101  the configuration was planned on one
    old = snapshot.configuration
    transaction.stage_configuration(configuration)
    if iceberg_compat_version(configuration) not in (None, iceberg_compat_version(old)):
        _check_files_for_iceberg(snapshot, configuration)
        transaction.depend_on(ReadScope(whole_table=True))
    if configuration.row_tracking_enabled and not old.row_tracking_enabled:
        # A file that a concurrent commit adds would have no ids.
        transaction.depend_on(ReadScope(whole_table=True))
        transaction.stage_readded(_without_row_ids(snapshot))


def _without_row_ids(snapshot: Snapshot) -> list[AddFile]:
    """The files whose rows have no ids yet; adding them again gives them ids."""
    files = snapshot.live_files()
    lacking = pc.or_(
        pc.is_null(files["base_row_id"]), pc.is_null(files["default_row_commit_version"])
    )
    files = files.filter(lacking)
    counts = parse_statistics_json(files["stats"], ())["num_records"].to_pylist()
    adds = []
    for add, count in zip(added_again(files, data_change=False), counts, strict=True):
        if count is None:
            counted = count_file_rows(snapshot.store, decode_path(add.path))
            stats = with_record_count(add.stats, counted)
            add = msgspec.structs.replace(add, stats=stats)
        adds.append(add)
    return adds


def _check_files_for_iceberg(snapshot: Snapshot, configuration: TableConfiguration) -> None:
    files = snapshot.live_files(["path", "deletion_vector", "stats"])
    version = iceberg_compat_version(configuration)
    what = f"delta.enableIcebergCompatV{version}"
    if not files.num_rows:
        return
    if files["deletion_vector"].null_count < files.num_rows:
        raise InvalidArgument(
            f"{what} allows no deletion vectors, and files of the table have some; "
            'drop_feature("deletionVectors") first',
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )
    if version == 2 or configuration.partition_columns:
        lacking = ["the ids of array elements and map entries"] if version == 2 else []
        lacking += ["their partition values"] if configuration.partition_columns else []
        raise InvalidArgument(
            f"{what} asks for files that hold {' and '.join(lacking)}, and those of the table do "
            "not; create a new table with the property and copy the rows",
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )
    counts = parse_statistics_json(files["stats"], ())["num_records"]
    if counts.null_count:
        path = files["path"].filter(pc.is_null(counts))[0].as_py()
        raise InvalidArgument(
            f"{what} asks for the number of rows of every file, and {counts.null_count} files of "
            "the table do not have it; rewrite them",
            table=snapshot.store.location.uri,
            version=snapshot.version,
            file=path,
        )


_NUM_BARRIERS = 3
"""Number of empty commits with a checkpoint each before a reader feature is dropped: a client that
does not know the feature finds one of them wherever it starts reading close to the drop."""


@dataclass(slots=True)
class _FeatureDropping:
    """Removes a feature from the protocol, in as many commits as needed.

    If a later commit conflicts with a concurrent commit, the table still has the feature but no
    longer uses it; the call can be repeated. A feature that cannot be dropped, or not yet, is an
    InvalidArgument that says what to do.
    """

    action: actions.DropFeature
    options: SchemaChangeOptions
    clock: Clock
    files: ExistingFiles = field(init=False)

    def __post_init__(self) -> None:
        engine = engine_for(None, self.options.engine)
        self.files = ExistingFiles(engine, self.options.on_progress)

    def run(self, snapshot: Snapshot) -> SchemaChangeResult:
        """Drop the feature, or plan it. Lazy defaults need not be there."""
        configuration, name = snapshot.configuration, self.action.name
        plan: SchemaChangePlan
        if name == EXISTING_DEFAULTS_FEATURE and not configuration.supports(name):
            step = PlannedStep("no row has a lazy default", "nothing")
            plan = SchemaChangePlan(configuration, configuration, (step,))
        else:
            plan = drop = plan_feature_drop(configuration, name)
            if self.options.dry_run and plan.rewrites_data:
                files = _files_to_rewrite(snapshot, drop)
                plan = plan.with_files(files.num_rows, total_bytes(files))
        if self.options.dry_run or not plan.changes_anything:
            return SchemaChangeResult(snapshot.version, {}, snapshot, skipped=True, plan=plan)
        done = self._drop(snapshot)
        plan = plan.with_files(self.files.num_files, self.files.size_bytes)
        return SchemaChangeResult(done.version, done.metrics, done.snapshot, plan=plan)

    def _drop(self, snapshot: Snapshot) -> CommitResult:
        name, truncates = self.action.name, self.action.truncate_history
        drop = plan_feature_drop(snapshot.configuration, name)
        if drop.feature.name == "checkpointProtection":
            _check_history_is_gone(
                snapshot, snapshot.configuration.properties.checkpoint_protection_before_version
            )
        if drop.needs_protected_history:
            with self.files:
                prepared = run_with_retries(self._prepare, snapshot.store, snapshot, RETRIES)
            snapshot = prepared.snapshot
            if truncates:
                _check_history_is_gone(snapshot, snapshot.version)
            else:
                snapshot = self._put_barriers(snapshot)
            # Others may have changed the table since: the feature of this version is dropped.
            drop = plan_feature_drop(snapshot.configuration, name)
        transaction = Transaction(snapshot.store, snapshot, clock=self.clock)
        transaction.depend_on(ReadScope(whole_table=True))
        protects = drop.needs_protected_history and not truncates
        transaction.stage_configuration(
            drop.with_protected_checkpoints() if protects else drop.after
        )
        if protects:
            transaction.protect_earlier_checkpoints()
        _stage_forgetting(transaction, drop)
        result = self._commit(transaction, drop)
        if drop.needs_protected_history:
            write_checkpoint(result.snapshot, now_ms=self.clock())
        return result

    def _prepare(self, snapshot: Snapshot) -> CommitResult:
        """Stop using the feature."""
        drop = plan_feature_drop(snapshot.configuration, self.action.name)
        files = _files_to_rewrite(snapshot, drop)
        if drop.prepared.metadata == snapshot.metadata and not files.num_rows:
            return CommitResult(snapshot.version, {}, snapshot, skipped=True)
        transaction = Transaction(snapshot.store, snapshot, clock=self.clock)
        transaction.depend_on(ReadScope(whole_table=True))
        transaction.stage_configuration(drop.prepared)
        if drop.prepared.column_mapping_mode != snapshot.configuration.column_mapping_mode:
            # Its columns have other names in files from here on.
            transaction.stage_domain(*keep_clustering(snapshot, drop.prepared)[1])
        if not files.num_rows:
            return self._commit(transaction, drop)
        self.files.stage(transaction, snapshot, replace(drop, after=drop.prepared), files)
        transaction.stage_removed(_vector_files(files, self.clock()))
        return self._commit(transaction, drop, self.files.metrics())

    def _put_barriers(self, snapshot: Snapshot) -> Snapshot:
        for _ in range(_NUM_BARRIERS):
            transaction = Transaction(snapshot.store, snapshot, clock=self.clock)
            snapshot = transaction.commit("Empty Commit").snapshot
            write_checkpoint(snapshot, now_ms=self.clock())
        return snapshot

    def _commit(
        self,
        transaction: Transaction,
        drop: FeatureDrop,
        metrics: Mapping[str, int | str] | None = None,
    ) -> CommitResult:
        truncates = self.action.truncate_history
        return transaction.commit(
            "DROP FEATURE",
            parameters={"featureName": drop.feature.name, "truncateHistory": truncates},
            metrics=metrics,
            user_info=self.options.commit_info,
        )


def _files_to_rewrite(snapshot: Snapshot, drop: FeatureDrop) -> pa.Table:
    """The files that use a feature, as LIVE_FILE_SCHEMA."""
    files = snapshot.live_files()
    match drop.files:
        case "all":
            return files
        case "deletion_vectors" | "widened_types":
            return outdated_files(snapshot, files, [drop.files])
        case "without_defaults":
            return older_files(snapshot)
        case "none":
            return files.slice(0, 0)


def _vector_files(files: pa.Table, now_ms: int) -> Iterator[RemoveFile]:
    """Tombstones for files with deletion vectors, as for data files.

    A client that does not know the feature would delete them as unreferenced in its VACUUM, and
    older versions would lose them.
    """
    for path in sorted(deletion_vector_paths(files["deletion_vector"])):
        if scheme_of(path) is None and not path.startswith("/"):
            encoded = encode_path(path)
            yield RemoveFile(path=encoded, deletion_timestamp_ms=now_ms, data_change=False)


def _stage_forgetting(transaction: Transaction, drop: FeatureDrop) -> None:
    """Stage what is removed from the log together with the feature."""
    snapshot = transaction.snapshot
    assert snapshot is not None  # noqa: S101  the drop was planned on one
    for domain, found in snapshot.domain_metadata().items():
        if drop.removes_domain(domain):
            transaction.stage_domain(msgspec.structs.replace(found, removed=True))
    if drop.feature.name == "rowTracking":
        files = snapshot.live_files()
        has_ids = pc.or_(
            pc.is_valid(files["base_row_id"]), pc.is_valid(files["default_row_commit_version"])
        )
        transaction.stage_readded(
            msgspec.structs.replace(add, base_row_id=None, default_row_commit_version=None)
            for add in added_again(files.filter(has_ids), data_change=False)
        )


def _check_history_is_gone(snapshot: Snapshot, before_version: int) -> None:
    """Check that the log reaches no further back than a version."""
    older = list_log(snapshot.store, end=before_version - 1)
    if versions := {*older.commits, *older.checkpoints}:
        raise InvalidArgument(
            f"the log still holds versions from {min(versions)} on, and those before "
            f"{before_version} use the feature; clean the log up to that version first, or leave "
            "truncate_history out: then the history stays, under the feature checkpointProtection",
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )
