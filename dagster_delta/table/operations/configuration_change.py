"""Commits a new configuration of an existing table, with the changes that its files need for it.

Spec: Change Metadata; Protocol Evolution; Row Tracking (enablement); In-Commit Timestamps.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow.compute as pc

from dagster_delta.clock import Clock
from dagster_delta.engines.footers import count_file_rows
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.features.iceberg_compat import iceberg_compat_version
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.statistics.statistics import parse_statistics_json, with_record_count
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.file_actions import added_again
from dagster_delta.table.transaction.transaction import CommitResult, Transaction


def commit_configuration(
    snapshot: Snapshot,
    configuration: TableConfiguration,
    operation: str,
    parameters: Mapping[str, object],
    *,
    clock: Clock,
    commit_info: Mapping[str, object] | None = None,
) -> CommitResult:
    """Commit a planned configuration; no commit if the table already has it."""
    transaction = Transaction(snapshot.store, snapshot, clock=clock)
    if configuration == snapshot.configuration:
        return CommitResult(snapshot.version, {}, snapshot, skipped=True)
    stage_configuration_change(transaction, configuration)
    return transaction.commit(operation, parameters=parameters, user_info=commit_info)


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
