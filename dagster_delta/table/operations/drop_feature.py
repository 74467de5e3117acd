"""Dropping a table feature: first the table stops using it, then the protocol stops naming it.

Spec: Table Features; Checkpoint Protection; Deletion Vectors; Row Tracking.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.clock import Clock
from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.feature_drop import FeatureDrop, plan_feature_drop
from dagster_delta.protocol.actions import DeletionVectorDescriptor, RemoveFile
from dagster_delta.protocol.features.deletion_vectors import deletion_vector_path
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.log.paths import LOG_DIRECTORY, parse_log_file_name
from dagster_delta.protocol.values.partition_values import encode_path
from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint
from dagster_delta.table.operations.outdated_files import (
    OlderFiles,
    outdated_files,
    stage_moved_rows,
)
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.file_actions import added_again
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

_NUM_BARRIERS = 3
"""Number of empty commits with a checkpoint each before a reader feature is dropped: a client that
does not know the feature finds one of them wherever it starts reading close to the drop."""


def drop_feature(
    snapshot: Snapshot,
    name: str,
    *,
    truncate_history: bool,
    clock: Clock,
    commit_info: Mapping[str, object] | None = None,
) -> CommitResult:
    """Remove a feature from the protocol, in as many commits as needed.

    If a later commit conflicts with a concurrent commit, the table still has the feature but no
    longer uses it; the call can be repeated. A feature that cannot be dropped, or not yet, is an
    InvalidArgument that says what to do.
    """
    drop = plan_feature_drop(snapshot.configuration, name)
    if drop.feature.name == "checkpointProtection":
        _check_history_is_gone(
            snapshot, snapshot.configuration.properties.checkpoint_protection_before_version
        )
    parameters = {"featureName": drop.feature.name, "truncateHistory": truncate_history}
    if drop.needs_protected_history:
        snapshot = _prepare(snapshot, drop, parameters, clock)
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
    snapshot: Snapshot, drop: FeatureDrop, parameters: Mapping[str, object], clock: Clock
) -> Snapshot:
    files = _files_to_rewrite(snapshot, drop)
    if drop.prepared.metadata == snapshot.metadata and not files.num_rows:
        return snapshot
    transaction = Transaction(snapshot.store, snapshot, clock=clock)
    transaction.depend_on(ReadScope(whole_table=True))
    transaction.stage_configuration(drop.prepared)
    if files.num_rows:
        stage_moved_rows(transaction, files, drop.prepared)
        transaction.stage_removed(_vector_files(files, clock()))
    return transaction.commit("DROP FEATURE", parameters=parameters).snapshot


def _files_to_rewrite(snapshot: Snapshot, drop: FeatureDrop) -> pa.Table:
    files = snapshot.live_files()
    match drop.files:
        case "all":
            return files
        case "with_vectors":
            return files.filter(pc.is_valid(files["deletion_vector"]))
        case "of_old_types":
            return outdated_files(snapshot, files, ["widened_types"])
        case "without_defaults":
            return OlderFiles().of(snapshot)
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
    entries = snapshot.store.list_from(LOG_DIRECTORY, "0")
    names = (parse_log_file_name(entry.path.rpartition("/")[2]) for entry in entries)
    versions = [name.version for name in names if name is not None]
    if versions and min(versions) < before_version:
        raise InvalidArgument(
            f"the log still holds versions from {min(versions)} on, and those before "
            f"{before_version} use the feature; clean the log up to that version first, or leave "
            "truncate_history out: then the history stays, under the feature checkpointProtection",
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )
