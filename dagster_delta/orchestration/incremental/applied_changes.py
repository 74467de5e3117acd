"""Applies the result of an incremental asset: rows and progress in one commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from dagster import AssetKey

from dagster_delta.errors import ConcurrentTransaction, InvalidCast, SchemaMismatch, TableNotFound
from dagster_delta.orchestration.incremental.column_changes import columns_narrower_than
from dagster_delta.orchestration.incremental.consumption import Consumption
from dagster_delta.orchestration.incremental.net_changes import (
    ACTION_COLUMN,
    DELETE,
    UPSERT,
    net_changes,
    net_changes_of_frame,
)
from dagster_delta.orchestration.io.asset_options import AssetOptions
from dagster_delta.orchestration.io.asset_writer import AssetWrite, WrittenAsset, write_asset
from dagster_delta.orchestration.io.column_lineage import UpstreamColumns, column_lineage_by_name
from dagster_delta.orchestration.io.merge_config import (
    MergeConfig,
    MergeOperationsConfig,
    MergeType,
    OperationConfig,
    OperationWithUpdatesConfig,
)
from dagster_delta.orchestration.partitions.predicates import quote_column

if TYPE_CHECKING:
    from dagster_delta.table.delta_table import DeltaTable
    from dagster_delta.table.read.snapshot import Snapshot

ChangeFeedMode = Literal["merge", "append"]
"""Whether the rows are merged by key, or appended."""

Returns = Literal["changes", "rows"]
"""Whether the returned rows are changes, as their columns say, or rows that must all exist.
"""


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """The output of an incremental asset for its IO manager."""

    consumption: Consumption
    rows: object
    """The value that its function returned; None if it was not called, because nothing had
    changed."""
    mode: ChangeFeedMode
    keys: tuple[str, ...]
    """Columns that identify rows of the table; for the mode `merge`."""
    returns: Returns
    upstream_key: AssetKey | None = None
    """Key of the asset that its columns of the same name come from; None if not declared."""


def write_changes(write: AssetWrite, applied: AppliedChanges) -> WrittenAsset:
    """Apply the rows and record the progress, as one commit."""
    try:
        written = _write(write, applied)
    except ConcurrentTransaction as conflict:
        conflict.message = (
            f"another run of {write.name} applied changes of its upstream table meanwhile, so this "
            "run wrote nothing: launch it again for the changes that remain. With the pool "
            "delta_table_pool(…) of the table on the asset, and a limit of 1, its runs wait for "
            "each other"
        )
        raise
    if applied.upstream_key is None:
        return written
    upstream = UpstreamColumns(
        applied.upstream_key, applied.consumption.changes.snapshot.schema.names
    )
    return replace(
        written, column_lineage=column_lineage_by_name(written.snapshot.schema.names, upstream)
    )


def _write(write: AssetWrite, applied: AppliedChanges) -> WrittenAsset:
    # The progress identifies a repeated attempt, so no identifier per run is needed.
    write = replace(write, idempotency=None, progress=applied.consumption.progress)
    if applied.rows is None:
        return _only_progress(write, applied.consumption)
    if applied.mode == "append":
        if applied.consumption.changes.is_full_refresh:
            return _anew(write, applied.rows)
        _check_types(write, applied)
        options = replace(_growing(write.options), mode="append")
        return _added(replace(write, options=options), applied.rows)
    rows, is_refresh = applied.rows, applied.consumption.changes.is_full_refresh
    if applied.returns == "changes":
        rows = _net(rows, applied, write.name, deletes=not is_refresh)
    if is_refresh:
        return _anew(write, rows)
    _check_types(write, applied)
    _check_keys(write, applied)
    return _added(_merging(write, applied, rows), rows)


def _added(write: AssetWrite, rows: object) -> WrittenAsset:
    try:
        return write_asset(write, rows)
    except InvalidCast as error:
        error.message += f". {_replacing(write)}"
        raise


def _replacing(write: AssetWrite) -> str:
    return (
        f'With the metadata {{"schema_mode": "overwrite"}} on {write.name}, and full_refresh in '
        "its run config, its table takes the columns of the rows"
    )


def _check_types(write: AssetWrite, applied: AppliedChanges) -> None:
    """Refuse columns of the upstream table that would be cast to their older type, if the asset
    requires them unchanged.
    """
    from dagster_delta.engines import engine_for

    target = applied.consumption.target
    if target is None or write.options.schema_mode != "overwrite":
        return
    upstream = applied.consumption.changes.snapshot.schema
    rows = engine_for(applied.rows).schema_of(applied.rows)
    for column in columns_narrower_than(rows, target.configuration):
        name = column.path[0]
        field, copied = upstream.get(name), rows.field(name)
        if field is not None and field.data_type == copied.data_type:
            raise SchemaMismatch(
                f"{column}: its values would be cast. To process every row, launch {write.name} "
                "with full_refresh in its config; to keep those that it has, widen the column "
                "with delta_schema_change_job or DeltaTable.alter",
                table=write.uri,
                column=".".join(column.path),
            )


def _check_keys(write: AssetWrite, applied: AppliedChanges) -> None:
    target = applied.consumption.target
    missing = [key for key in applied.keys if target is not None and target.schema.get(key) is None]
    if missing:
        raise SchemaMismatch(
            f"the table of {write.name} lacks {', '.join(missing)}, by which its rows are told "
            f"apart. {_replacing(write)}",
            table=write.uri,
            column=missing[0],
        )


def _anew(write: AssetWrite, rows: object) -> WrittenAsset:
    try:
        return write_asset(
            replace(write, options=replace(write.options, mode="overwrite")),
            rows,
        )
    except SchemaMismatch as error:
        if write.options.schema_mode == "overwrite" or write.selection is not None:
            raise
        raise SchemaMismatch(
            f"{error.message}\nEvery row of the upstream table was read again: with the metadata "
            f'{{"schema_mode": "overwrite"}}, {write.name} takes their columns as they are',
            table=error.table or write.uri,
            column=error.column,
            examples=error.examples,
        ) from error


def consumption_metadata(consumption: Consumption) -> dict[str, object]:
    """Metadata for the UI about the changes that a run read, besides those of its input."""
    return {
        "delta/full_refresh": consumption.changes.is_full_refresh,
        "delta/full_refresh_because": consumption.changes.refresh_reason,
        "delta/columns_not_followed": consumption.columns_not_followed,
    }


def _only_progress(write: AssetWrite, consumption: Consumption) -> WrittenAsset:
    """The result of a run that found no changed rows: any progress is recorded, so that the older
    log of the upstream table may be cleaned up.
    """
    from dagster_delta.table.delta_table import DeltaTable

    table = DeltaTable(write.uri, storage_options=write.storage_options)
    snapshot = _latest(table, write)
    reason = f"no row has changed up to version {consumption.changes.to_version}"
    if not consumption.is_nothing_new:
        transaction = table.transaction()
        for each in write.progress:
            transaction.advance_application(each)
        snapshot = transaction.commit(
            "WRITE", parameters={"mode": "Append"}, user_info=write.commit_info
        ).snapshot
    return WrittenAsset(write.options.mode, snapshot, {}, None, reason)


def _latest(table: DeltaTable, write: AssetWrite) -> Snapshot:
    try:
        snapshot: Snapshot = table.snapshot()
    except TableNotFound as error:
        raise TableNotFound(
            f"the table of {write.name} went away while its changes were read: launch it again",
            table=write.uri,
        ) from error
    return snapshot


def _net(rows: Any, applied: AppliedChanges, asset: str, *, deletes: bool) -> Any:  # noqa: ANN401
    if type(rows).__module__.startswith("pyspark."):
        from pyspark.sql import functions

        frame = net_changes_of_frame(rows, applied.keys, asset=asset)
        if deletes:
            return frame
        return frame.filter(functions.col(ACTION_COLUMN) == UPSERT).drop(ACTION_COLUMN)
    from dagster_delta.parquet.data_input import to_reader

    return net_changes(to_reader(rows), applied.keys, asset=asset, deletes=deletes)


def _growing(options: AssetOptions) -> AssetOptions:
    """The options for rows that are added to others: existing rows keep their columns, so the
    schema is replaced only in a full refresh.
    """
    if options.schema_mode != "overwrite":
        return options
    return replace(options, schema_mode="merge")


def _merging(write: AssetWrite, applied: AppliedChanges, rows: object) -> AssetWrite:
    """The write as a merge by the keys: changes delete and upsert, rows upsert."""
    from dagster_delta.engines import engine_for

    controls = (ACTION_COLUMN,) if applied.returns == "changes" else ()
    names = [name for name in engine_for(rows).schema_of(rows).names if name not in controls]
    config = _merge_config({quote_column(name): f"s.{quote_column(name)}" for name in names})
    # Nulls are keys like others: otherwise every run would add a row with a null key again.
    on = " AND ".join(f"t.{key} <=> s.{key}" for key in map(quote_column, applied.keys))
    config = config.model_copy(update={"predicate": on})
    if not controls:
        config = MergeConfig(merge_type=MergeType.upsert, predicate=on)
    return replace(
        write,
        options=replace(_growing(write.options), mode="merge", merge=config),
        control_columns=controls,
    )


def _merge_config(values: Mapping[str, str]) -> MergeConfig:
    action = f"s.{quote_column(ACTION_COLUMN)}"
    return MergeConfig(
        merge_type=MergeType.custom,
        merge_operations_config=MergeOperationsConfig(
            when_matched_delete=[OperationConfig(predicate=f"{action} = '{DELETE}'")],
            when_matched_update=[OperationWithUpdatesConfig(updates=dict(values))],
            when_not_matched_insert=[
                OperationWithUpdatesConfig(updates=dict(values), predicate=f"{action} = '{UPSERT}'")
            ],
        ),
    )
