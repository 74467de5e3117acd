"""RESTORE: the rows, the schema and the properties of an older version, as a new version.

Spec: Add File and Remove File; Protocol Evolution; Domain Metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from dagster_delta.clock import DAY_MS, now_ms
from dagster_delta.errors import (
    MAX_EXAMPLES,
    CommitConflict,
    DataFileMissing,
    DeltaError,
    InvalidArgument,
)
from dagster_delta.evolution.programs import READERS_PROPERTY
from dagster_delta.evolution.required_protocol import upgrade_protocol
from dagster_delta.protocol.actions import Metadata
from dagster_delta.protocol.features.column_values import advance_high_water_marks, identity_columns
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_writer import CHECKPOINT_PROTECTION_KEY
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.operations.fsck import existing_files
from dagster_delta.table.operations.unreferenced_files import deletion_vector_paths
from dagster_delta.table.operations.version_difference import FileDifference, VersionDifference
from dagster_delta.table.read.history import latest_commits
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.transaction import (
    CommitResult,
    Transaction,
    positions_to_change,
)

if TYPE_CHECKING:
    from dagster_delta.table.table_handle import TableHandle

_MAX_COMMITS_BACK = 1000
_MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
_KEPT_PREFIXES = (
    "delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablement",
    CHECKPOINT_PROTECTION_KEY,
    READERS_PROPERTY,
)


def restore(
    table: TableHandle,
    /,
    version: int | None = None,
    timestamp: datetime | str | int | None = None,
    *,
    force: bool = False,
    commit_info: Mapping[str, object] | None = None,
) -> CommitResult:
    """Restore the table to an older version: rows, schema and properties.

    The result is a new version, so nothing is lost and a second restore can undo it. The
    protocol is never lowered, and transaction ids are kept, except for the positions of
    incremental assets, which go back with the rows. Rows of a concurrent append count
    as later and are kept. If the table already has that state, nothing is committed and
    `skipped` is true.

    Args:
        version: the version to restore.
        timestamp: instead: the latest version committed at or before it, spelled as for
            `snapshot`.
        force: whether to restore a version of which readers that the table names (property
            `dagsterDelta.readers`) give wrong rows without an error.
        commit_info: recorded in the commitInfo beside this library's own fields.

    Raises:
        InvalidArgument: neither or both are given.
        VersionNotFound: the version does not exist.
        DataFileMissing: a file of that version is missing; the table is as before. If a VACUUM
            deleted it meanwhile, the restore was committed and taken back by another version.
        UnsupportedFeature: the table is append-only, or cannot be written.
        CommitConflict, CommitStateUnknown: the commit failed, or may have failed; or a VACUUM
            is under way, and the restore was taken back.
    """
    plan = plan_restore(table, version, timestamp)
    by_timestamp = None if timestamp is None else str(timestamp)
    if not plan.changes_anything:
        return CommitResult(plan.before.version, {}, plan.before, skipped=True)
    result = _commit_plan(plan, by_timestamp, commit_info, force=force)
    try:
        _check_not_vacuumed(plan, result, now_ms())
    except DeltaError as error:
        error.version = result.version
        try:
            earlier = compare_versions(result.snapshot, plan.before)
            back = _commit_plan(earlier, None, commit_info, force=True)
        except DeltaError as failure:
            error.message += f"; version {result.version} could not be taken back: {failure}"
        else:
            error.message += f"; version {back.version} took version {result.version} back"
        raise
    return table._adopt(result)


def plan_restore(
    table: TableHandle, /, version: int | None = None, timestamp: datetime | str | int | None = None
) -> RestorePlan:
    """The difference between the latest version and an older one: rows, files, bytes, schema
    and properties. It writes nothing.

    Args:
        version: as for `restore`.
        timestamp: as for `restore`.

    Raises:
        InvalidArgument: neither or both are given.
        VersionNotFound: the version does not exist.
        DataFileMissing: a file of that version is missing, so that it cannot be restored.
    """
    if (version is None) == (timestamp is None):
        raise InvalidArgument("say what to restore by a version or by a timestamp")
    current = table._existing()
    target = Snapshot.load(table._store, version=version, timestamp=timestamp)
    return compare_versions(current, target)


class RestorePlan(VersionDifference, frozen=True, kw_only=True):
    """Difference between the latest version of a table and the version to restore."""

    before: Snapshot

    def to_markdown(self) -> str:
        """The difference for people: rows, files, bytes, schema, properties."""
        if not self.changes_anything:
            return f"The table is already as it was at version {self.target.version}.\n"
        now = f"version {self.before.version}, now"
        then = f"version {self.target.version}, restored"
        return "\n".join(self.render(now, then)) + "\n"


def compare_versions(current: Snapshot, target: Snapshot) -> RestorePlan:
    """What restoring an older version changes. It writes nothing."""
    files = FileDifference.between(current.live_files(), target.live_files())
    check_files(files.entering, target)
    return RestorePlan(
        before=current,
        target=target,
        configuration=restored_configuration(current.configuration, target.configuration),
        files=files,
        positions=positions_to_change(current, target),
    )


def _commit_plan(
    plan: RestorePlan,
    by_timestamp: str | None,
    commit_info: Mapping[str, object] | None,
    *,
    force: bool,
) -> CommitResult:
    """Commit the older state; `by_timestamp` is the timestamp that selected its version."""
    transaction = Transaction(plan.before.store, plan.before)
    transaction.depend_on(ReadScope(whole_table=True))
    transaction.stage_configuration(plan.configuration, force=force)
    plan.stage(transaction)
    return transaction.commit(
        "RESTORE",
        parameters={
            "version": None if by_timestamp is not None else plan.target.version,
            "timestamp": by_timestamp,
        },
        metrics=_count_changes(plan),
        user_info=commit_info,
    )


def restored_configuration(
    current: TableConfiguration, target: TableConfiguration
) -> TableConfiguration:
    """The metadata of an older version under a protocol at least as high as the present one.

    Files and log entries of later features stay in the log, so readers must still support these
    features. Counters that must never decrease, the in-commit timestamps of a log that has them,
    and the protection of its checkpoints keep their present values.
    """
    now = current.metadata.configuration
    properties = {
        key: value
        for key, value in target.metadata.configuration.items()
        if not key.startswith(_KEPT_PREFIXES)
    }
    properties |= {key: value for key, value in now.items() if key.startswith(_KEPT_PREFIXES)}
    if _MAX_COLUMN_ID in now:
        # Spec: column ids are never used twice.
        ids = (
            configuration.properties.column_mapping_max_column_id
            for configuration in (current, target)
        )
        properties[_MAX_COLUMN_ID] = str(max(ids))
    metadata: Metadata = msgspec.structs.replace(
        target.metadata,
        configuration=properties,
        id=current.metadata.id,
        created_time_ms=current.metadata.created_time_ms,
    )
    protocol = upgrade_protocol(current.protocol, target.features)
    # Spec: Identity Columns. A value that was assigned once is never assigned again.
    marks = {
        column.column: column.high_water_mark
        for column in identity_columns(current)
        if column.high_water_mark is not None
    }
    return advance_high_water_marks(TableConfiguration(protocol, metadata), marks)


def check_files(files: pa.Table, target: Snapshot) -> None:
    """Check that files of a version are there. Raises DataFileMissing."""
    paths = [decode_path(file) for file in files["path"].to_pylist()]
    paths += deletion_vector_paths(files["deletion_vector"])
    present = existing_files(target.store, paths)
    missing = [path for path in paths if path not in present]
    if missing:
        raise DataFileMissing(
            f"{len(missing)} of the {len(paths)} files that version {target.version} needs beside "
            "today's are gone, probably vacuumed; restore a newer version, or copy them back from "
            "a backup",
            table=target.store.location.uri,
            version=target.version,
            file=missing[0],
            examples=tuple(missing[:MAX_EXAMPLES]),
        )


def _check_not_vacuumed(plan: RestorePlan, result: CommitResult, now_ms: int) -> None:
    """Check that no VACUUM has deleted, or may still delete, a file that was restored.

    One that begins after the restore spares its files; one that began before records its end, if it
    records anything, after it has deleted the last file. One of which a day later no end is
    recorded was stopped.
    """
    if not plan.files.entering.num_rows:
        return
    newest = result.snapshot.update()
    distance = newest.version - plan.target.version
    num_ended = 0
    for commit in latest_commits(newest, min(distance, _MAX_COMMITS_BACK)):
        if now_ms - commit.timestamp_ms > DAY_MS:
            break
        if commit.operation == "VACUUM END":
            num_ended += 1
        elif commit.operation == "VACUUM START":
            num_ended -= 1
            if num_ended < 0 and commit.version < result.version:
                raise CommitConflict(
                    f"the VACUUM of version {commit.version} may still delete files of version "
                    f"{plan.target.version}: repeat the restore after its end",
                    table=newest.store.location.uri,
                )
    check_files(plan.files.entering, plan.target)


def _count_changes(plan: RestorePlan) -> dict[str, int | str]:
    return {
        "tableSizeAfterRestore": plan.target.size_bytes,
        "numOfFilesAfterRestore": plan.target.num_files,
        "numRemovedFiles": plan.files.leaving.num_rows,
        "numRestoredFiles": plan.files.entering.num_rows,
        "removedFilesSize": total_bytes(plan.files.leaving),
        "restoredFilesSize": total_bytes(plan.files.entering),
    }
