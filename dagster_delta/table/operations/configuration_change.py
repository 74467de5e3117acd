"""Commits a new configuration of an existing table, with the changes that its files need for it.

Where a table feature is dropped, the table first stops using it, then the protocol stops naming it.

Spec: Change Metadata; Protocol Evolution; Row Tracking; In-Commit Timestamps; Table Features;
Checkpoint Protection; Deletion Vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.clock import Clock
from dagster_delta.engines.footers import count_file_rows
from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.feature_drop import FeatureDrop, plan_feature_drop
from dagster_delta.evolution.plan import SchemaChangePlan
from dagster_delta.evolution.table_actions import DropFeature
from dagster_delta.protocol.actions import AddFile, DeletionVectorDescriptor, RemoveFile
from dagster_delta.protocol.features.deletion_vectors import deletion_vector_path
from dagster_delta.protocol.features.iceberg_compat import iceberg_compat_version
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.statistics.statistics import parse_statistics_json, with_record_count
from dagster_delta.protocol.values.partition_values import decode_path, encode_path
from dagster_delta.table.log.reader import list_log
from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint
from dagster_delta.table.operations.existing_rows import (
    ExistingFiles,
    older_files,
    outdated_files,
)
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.file_actions import added_again
from dagster_delta.table.transaction.retries import (
    ConflictRetries,
    StatementOptions,
    run_with_retries,
)
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

RETRIES = StatementOptions(on_conflict=ConflictRetries(attempts=10, seconds=math.inf))
"""How often a change that conflicts with another commit is planned again: it may rewrite files for
hours, and the next attempt reuses them."""


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


def drop_feature(
    snapshot: Snapshot,
    action: DropFeature,
    rewriting: ExistingFiles,
    *,
    clock: Clock,
    commit_info: Mapping[str, object] | None = None,
) -> CommitResult:
    """Remove a feature from the protocol, in as many commits as needed.

    If a later commit conflicts with a concurrent commit, the table still has the feature but no
    longer uses it; the call can be repeated. A feature that cannot be dropped, or not yet, is an
    InvalidArgument that says what to do.
    """
    name, truncate_history = action.name, action.truncate_history
    drop = plan_feature_drop(snapshot.configuration, name)
    if drop.feature.name == "checkpointProtection":
        _check_history_is_gone(
            snapshot, snapshot.configuration.properties.checkpoint_protection_before_version
        )
    parameters = {"featureName": drop.feature.name, "truncateHistory": truncate_history}
    if drop.needs_protected_history:
        with rewriting:
            snapshot = run_with_retries(
                lambda newest: _prepare(newest, name, rewriting, parameters, clock, commit_info),
                snapshot.store,
                snapshot,
                RETRIES,
            ).snapshot
        if truncate_history:
            _check_history_is_gone(snapshot, snapshot.version)
        else:
            snapshot = _put_barriers(snapshot, clock)
        # Others may have changed the table since: the feature of this version is dropped.
        drop = plan_feature_drop(snapshot.configuration, name)
    transaction = Transaction(snapshot.store, snapshot, clock=clock)
    transaction.depend_on(ReadScope(whole_table=True))
    protects = drop.needs_protected_history and not truncate_history
    transaction.stage_configuration(drop.with_protected_checkpoints() if protects else drop.final)
    if protects:
        transaction.protect_earlier_checkpoints()
    _stage_forgetting(transaction, drop)
    result = transaction.commit("DROP FEATURE", parameters=parameters, user_info=commit_info)
    if drop.needs_protected_history:
        write_checkpoint(result.snapshot, now_ms=clock())
    return result


def _prepare(
    snapshot: Snapshot,
    name: str,
    rewriting: ExistingFiles,
    parameters: Mapping[str, object],
    clock: Clock,
    commit_info: Mapping[str, object] | None,
) -> CommitResult:
    drop = plan_feature_drop(snapshot.configuration, name)
    files = files_to_rewrite(snapshot, drop)
    if drop.prepared.metadata == snapshot.metadata and not files.num_rows:
        return CommitResult(snapshot.version, {}, snapshot, skipped=True)
    transaction = Transaction(snapshot.store, snapshot, clock=clock)
    transaction.depend_on(ReadScope(whole_table=True))
    transaction.stage_configuration(drop.prepared)
    metrics: dict[str, int | str] = {}
    if files.num_rows:
        before = snapshot.configuration
        plan = SchemaChangePlan(before, drop.prepared, (), frees_files_of_feature=True)
        rewriting.stage(transaction, snapshot, plan, files)
        transaction.stage_removed(_vector_files(files, clock()))
        metrics = rewriting.metrics()
    return transaction.commit(
        "DROP FEATURE", parameters=parameters, metrics=metrics, user_info=commit_info
    )


def files_to_rewrite(snapshot: Snapshot, drop: FeatureDrop) -> pa.Table:
    """The files that use a feature, as LIVE_FILE_SCHEMA."""
    files = snapshot.live_files()
    match drop.files:
        case "all":
            return files
        case "with_vectors":
            return files.filter(pc.is_valid(files["deletion_vector"]))
        case "of_old_types":
            return outdated_files(snapshot, files, ["widened_types"])
        case "without_defaults":
            return older_files(snapshot)
        case "none":
            return files.slice(0, 0)


def _vector_files(files: pa.Table, now_ms: int) -> Iterator[RemoveFile]:
    """Tombstones for files with deletion vectors, as for data files.

    A client that does not know the feature would delete them as unreferenced in its VACUUM, and
    older versions would lose them.
    """
    vectors = files["deletion_vector"].drop_null().to_pylist()
    descriptors = (DeletionVectorDescriptor(**vector) for vector in vectors)
    paths = {
        deletion_vector_path(descriptor)
        for descriptor in descriptors
        if descriptor.storage_type == "u"
    }
    for path in sorted(paths):
        yield RemoveFile(path=encode_path(path), deletion_timestamp_ms=now_ms, data_change=False)


def _put_barriers(snapshot: Snapshot, clock: Clock) -> Snapshot:
    for _ in range(_NUM_BARRIERS):
        transaction = Transaction(snapshot.store, snapshot, clock=clock)
        snapshot = transaction.commit("Empty Commit").snapshot
        write_checkpoint(snapshot, now_ms=clock())
    return snapshot


def _stage_forgetting(transaction: Transaction, drop: FeatureDrop) -> None:
    """Stage what is removed from the log together with the feature."""
    snapshot = transaction.snapshot
    assert snapshot is not None  # noqa: S101  the drop was planned on one
    for domain, found in snapshot.domain_metadata().items():
        if drop.removed_domains is None or domain in drop.removed_domains:
            transaction.stage_domain(msgspec.structs.replace(found, removed=True))
    if drop.forgets_row_ids:
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
