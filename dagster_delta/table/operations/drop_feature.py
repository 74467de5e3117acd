"""DROP FEATURE: the table first stops using a feature, then the protocol stops naming it.

Spec: Table Features; Checkpoint Protection; Deletion Vectors; Row Tracking.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Unpack

import msgspec
import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.clock import now_ms
from dagster_delta.engines import engine_for
from dagster_delta.engines.footers import map_footers, may_lack, num_steps_found
from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.actions import DropFeature
from dagster_delta.evolution.plan import PlannedStep, SchemaChangePlan
from dagster_delta.evolution.planning import FeatureDrop, plan_feature_drop
from dagster_delta.protocol.actions import RemoveFile
from dagster_delta.protocol.features.existing_defaults import (
    EXISTING_DEFAULTS_FEATURE,
    fields_with_existing_default,
)
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.values.arrow_columns import boolean_column
from dagster_delta.protocol.values.partition_values import encode_path
from dagster_delta.storage.locations import scheme_of
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.catalog_rules import check_droppable
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.log.reader import list_log
from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint
from dagster_delta.table.operations.change_schema import (
    RETRIES,
    AlterOptions,
    SchemaChangeOptions,
    SchemaChangeResult,
)
from dagster_delta.table.operations.clustering import keep_clustering
from dagster_delta.table.operations.reorg import find_outdated_files
from dagster_delta.table.operations.rewrite_files import FileRewrite
from dagster_delta.table.operations.unreferenced_files import deletion_vector_paths
from dagster_delta.table.transaction.file_actions import added_again
from dagster_delta.table.transaction.retries import run_with_retries
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.table_handle import TableHandle


def drop_feature(
    table: TableHandle,
    /,
    name: str,
    truncate_history: bool = False,
    *,
    commit_info: Mapping[str, object] | None = None,
) -> CommitResult:
    """Remove a table feature from the protocol, after removing all traces of it from the table.

    A writer feature is removed in one commit, together with its data: properties, row ids,
    column defaults, metadata domains. For a reader-writer feature, files are rewritten if the
    feature requires it (`deletionVectors`: those with vectors; `typeWidening`: those of old
    types; `columnMapping`, `variantShredding`: all; `dagsterDelta.existingDefaults`: those
    older than such a column), checkpoints are written before the drop, and the feature
    `checkpointProtection` keeps them: older versions stay readable for clients that know the
    feature.

    Args:
        name: name of the feature, as in `"deletionVectors"`.
        truncate_history: whether older versions are deleted instead, so that
            `checkpointProtection` is not needed. The log has to be cleaned first; if it is not,
            the table only stops using the feature, and the error says what to clean.
        commit_info: recorded in the commitInfo of the last commit beside this library's own
            fields.

    Raises:
        InvalidArgument: the table does not have the feature, another feature depends on it,
            something has to be removed first, or the log still holds versions that use it.
        TableNotFound, UnsupportedFeature, ConditionalPutUnsupported, CommitConflict,
        CommitStateUnknown: as for `set_properties`. After a conflict the call can be repeated.
    """
    options = SchemaChangeOptions(commit_info=commit_info)
    drop = DropFeature(name, truncate_history)
    result = drop_table_feature(table._existing(), drop, options, clock=now_ms)
    table._adopt(result)
    return result


def materialize_defaults(
    table: TableHandle,
    /,
    *,
    truncate_history: bool = False,
    **options: Unpack[AlterOptions],
) -> SchemaChangeResult:
    """Write lazy defaults into the data files, after which other clients can read the table:
    the counterpart of `existing_rows="lazy"`.

    Files that already hold the columns are kept. The rewrite is one commit; further commits
    remove the feature `dagsterDelta.existingDefaults` from the protocol. A table without the
    feature is unchanged.

    Args:
        truncate_history: as for `drop_feature`.
        **options: `dry_run`, `engine` and `commit_info`, as for `alter`.

    Raises:
        InvalidArgument: the log still holds versions that use the feature, and
        `truncate_history` is true. CommitConflict, and all that `alter` raises.
    """
    given = SchemaChangeOptions(**options)
    drop = DropFeature(EXISTING_DEFAULTS_FEATURE, truncate_history)
    result = drop_table_feature(table._existing(), drop, given, clock=now_ms)
    table._adopt(result)
    return result


def drop_table_feature(
    snapshot: Snapshot, action: DropFeature, options: SchemaChangeOptions, *, clock: Clock
) -> SchemaChangeResult:
    """Remove a feature from the protocol, after all traces of it are removed from the table."""
    return _FeatureDropping(action, options, snapshot.store, clock).run(snapshot)


_NUM_BARRIERS = 3
"""Number of empty commits with a checkpoint each before a reader feature is dropped: a client that
does not know the feature finds one of them wherever it starts reading close to the drop."""


class _FeatureDropping:
    """Removes a feature from the protocol, in as many commits as needed.

    If a later commit conflicts with a concurrent commit, the table still has the feature but no
    longer uses it; the call can be repeated. A feature that cannot be dropped, or not yet, is an
    InvalidArgument that says what to do.
    """

    def __init__(
        self, action: DropFeature, options: SchemaChangeOptions, store: ObjectStore, clock: Clock
    ) -> None:
        self._action, self._options, self._clock = action, options, clock
        engine = engine_for(None, options.engine)
        self._rewrite = FileRewrite(engine, store, options.on_progress)

    def run(self, snapshot: Snapshot) -> SchemaChangeResult:
        """Drop the feature, or plan it. Lazy defaults need not be there."""
        configuration, name = snapshot.configuration, self._action.name
        plan: SchemaChangePlan
        if self._has_no_defaults(snapshot):
            step = PlannedStep("no row has a lazy default", "nothing")
            plan = SchemaChangePlan(configuration, configuration, (step,))
        else:
            plan = drop = plan_feature_drop(configuration, name)
            check_droppable(snapshot.store, drop.feature.name)
            if self._options.dry_run and plan.rewrites_data:
                files = _files_to_rewrite(snapshot, drop)
                plan = plan.with_files(files.num_rows, total_bytes(files))
        if self._options.dry_run or not plan.changes_anything:
            return SchemaChangeResult(snapshot.version, {}, snapshot, skipped=True, plan=plan)
        done = self._drop_feature(snapshot)
        plan = plan.with_files(self._rewrite.num_files, self._rewrite.size_bytes)
        return SchemaChangeResult(done.version, done.metrics, done.snapshot, plan=plan)

    def _has_no_defaults(self, snapshot: Snapshot) -> bool:
        """Whether lazy defaults are to be dropped, and there are none."""
        name = self._action.name
        return name == EXISTING_DEFAULTS_FEATURE and not snapshot.configuration.supports(name)

    def _drop_feature(self, snapshot: Snapshot) -> CommitResult:
        name, truncates = self._action.name, self._action.truncate_history
        drop = plan_feature_drop(snapshot.configuration, name)
        if drop.feature.name == "checkpointProtection":
            _check_history_is_gone(
                snapshot, snapshot.configuration.properties.checkpoint_protection_before_version
            )
        if drop.needs_protected_history:
            with self._rewrite:
                prepared = run_with_retries(
                    self._stop_using_feature, snapshot.store, snapshot, RETRIES
                )
            snapshot = prepared.snapshot
            if self._has_no_defaults(snapshot):
                return prepared
            if truncates:
                _check_history_is_gone(snapshot, snapshot.version)
            else:
                snapshot = self._put_barriers(snapshot)
            # Others may have changed the table since: the feature of this version is dropped.
            drop = plan_feature_drop(snapshot.configuration, name)
        transaction = Transaction(snapshot.store, snapshot, clock=self._clock)
        transaction.depend_on(ReadScope(whole_table=True))
        protects = drop.needs_protected_history and not truncates
        transaction.stage_configuration(
            drop.with_protected_checkpoints() if protects else drop.after
        )
        if protects:
            transaction.protect_earlier_checkpoints()
        _stage_forgetting(transaction, drop)
        result = self._commit_drop(transaction, drop)
        if drop.needs_protected_history:
            write_checkpoint(result.snapshot, now_ms=self._clock())
        return result

    def _stop_using_feature(self, snapshot: Snapshot) -> CommitResult:
        """Stop using the feature."""
        if self._has_no_defaults(snapshot):
            # Another process has materialized them meanwhile.
            return CommitResult(snapshot.version, {}, snapshot, skipped=True)
        drop = plan_feature_drop(snapshot.configuration, self._action.name)
        files = _files_to_rewrite(snapshot, drop)
        if drop.prepared.metadata == snapshot.metadata and not files.num_rows:
            return CommitResult(snapshot.version, {}, snapshot, skipped=True)
        transaction = Transaction(snapshot.store, snapshot, clock=self._clock)
        transaction.depend_on(ReadScope(whole_table=True))
        transaction.stage_configuration(drop.prepared)
        if drop.prepared.column_mapping_mode != snapshot.configuration.column_mapping_mode:
            # Its columns have other names in files from here on.
            transaction.stage_domain(*keep_clustering(snapshot, drop.prepared)[1])
        if not files.num_rows:
            return self._commit_drop(transaction, drop)
        self._rewrite.stage(transaction, snapshot, replace(drop, after=drop.prepared), files)
        transaction.stage_removed(_vector_files(files, self._clock()))
        return self._commit_drop(transaction, drop, self._rewrite.metrics())

    def _put_barriers(self, snapshot: Snapshot) -> Snapshot:
        for _ in range(_NUM_BARRIERS):
            transaction = Transaction(snapshot.store, snapshot, clock=self._clock)
            snapshot = transaction.commit("Empty Commit").snapshot
            write_checkpoint(snapshot, now_ms=self._clock())
        return snapshot

    def _commit_drop(
        self,
        transaction: Transaction,
        drop: FeatureDrop,
        metrics: Mapping[str, int | str] | None = None,
    ) -> CommitResult:
        truncates = self._action.truncate_history
        return transaction.commit(
            "DROP FEATURE",
            parameters={"featureName": drop.feature.name, "truncateHistory": truncates},
            metrics=metrics,
            user_info=self._options.commit_info,
            keeps_files=True,
        )


def _files_to_rewrite(snapshot: Snapshot, drop: FeatureDrop) -> pa.Table:
    """The files that use a feature, as LIVE_FILE_SCHEMA."""
    files = snapshot.live_files()
    match drop.files:
        case "all":
            return files
        case "deletion_vectors" | "widened_types":
            return find_outdated_files(snapshot, files, [drop.files])
        case "without_defaults":
            return find_files_without_defaults(snapshot)
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


def find_files_without_defaults(snapshot: Snapshot) -> pa.Table:
    """The live files that lack a column which has a default in them, as LIVE_FILE_SCHEMA."""
    schema, mode = snapshot.schema, snapshot.configuration.column_mapping_mode
    files = snapshot.live_files()
    doubtful = files.filter(may_lack(files, schema, mode))
    paths = [path for path, _ in fields_with_existing_default(schema)]

    def lacks(found: pa.Schema) -> bool:
        # A file that lacks the struct around a field has no rows with its default.
        return any(num_steps_found(found, schema, path, mode) == len(path) - 1 for path in paths)

    lacking = map_footers(snapshot.store, doubtful["path"].to_pylist(), lacks)
    return doubtful.filter(boolean_column(lacking))
