"""Commits of a job that Dagster Pipes runs elsewhere, reported as materializations.

It is used in the remote process, and does not import Dagster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_delta.table.read.history import latest_commits
from dagster_delta.table.read.watch import LogCursor, data_version, last_data_change
from dagster_delta.table.spelling import sql_type_name

if TYPE_CHECKING:
    from dagster_pipes import PipesContext, PipesMetadataRawValue, PipesMetadataValue

    from dagster_delta.table.delta_table import DeltaTable
    from dagster_delta.table.read.snapshot import Snapshot


def report_delta_commit(
    pipes: PipesContext,
    table: DeltaTable,
    *,
    version: int | None = None,
    asset_key: str | None = None,
) -> None:
    """Report a commit as a materialization of the asset that the job computes.

    The commit may be of any writer, such as delta-spark on EMR or Databricks. The materialization
    has the last commit that changed rows as its data version, and the columns, location, row count,
    size, operation and metrics as metadata.

    Args:
        pipes: the context of the remote process, from `open_dagster_pipes()`.
        table: the table that the job has written.
        version: of the commit. Default: the latest version.
        asset_key: key of the asset as `a/b`; only needed if the job computes several assets.

    Raises:
        VersionNotFound: the version does not exist.
        DeltaError: the table cannot be read.

    Examples:
        with open_dagster_pipes() as pipes:
            frame.write.format("delta").mode("append").save("s3://lake/raw/flights")
            report_delta_commit(pipes, DeltaTable("s3://lake/raw/flights"))
    """
    snapshot = table.snapshot() if version is None else table.snapshot(version=version)
    changed, _ = last_data_change(snapshot.store, LogCursor(version=snapshot.version))
    pipes.report_asset_materialization(
        metadata=_make_metadata(table.uri, snapshot),
        data_version=data_version(snapshot.metadata.id, changed),
        asset_key=asset_key,
    )


def _make_metadata(
    uri: str, snapshot: Snapshot
) -> Mapping[str, PipesMetadataRawValue | PipesMetadataValue]:
    metadata: dict[str, PipesMetadataRawValue | PipesMetadataValue] = {
        "dagster/uri": {"raw_value": uri, "type": "url" if "://" in uri else "path"},
        "dagster/storage_kind": "deltalake",
        "dagster/column_schema": _describe_columns(snapshot),
        "delta/version": snapshot.version,
    }
    # A clean-up may have deleted the commit.
    for commit in latest_commits(snapshot, 1):
        if commit.operation is not None:
            metadata["delta/operation"] = commit.operation
        if commit.operation_metrics:
            metrics = dict(commit.operation_metrics)
            metadata["delta/operation_metrics"] = {"raw_value": metrics, "type": "json"}
    if not snapshot.is_large_and_unread:
        metadata["dagster/size_bytes"] = snapshot.size_bytes
        metadata["delta/live_files"] = snapshot.num_files
        if snapshot.num_records is not None:
            metadata["dagster/row_count"] = snapshot.num_records
    return metadata


def _describe_columns(snapshot: Snapshot) -> PipesMetadataValue:
    columns = [
        {
            "name": field.name,
            "type": sql_type_name(field.data_type),
            "description": field.comment,
        }
        for field in snapshot.schema
    ]
    return {"raw_value": {"columns": columns}, "type": "table_schema"}
