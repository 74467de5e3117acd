"""Applies the result of an incremental asset: rows and progress in one commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from dagster import AssetKey, TableColumnDep, TableColumnLineage

from dagster_delta.engines import engine_for, is_spark_frame
from dagster_delta.errors import ConcurrentTransaction, SchemaMismatch
from dagster_delta.orchestration.incremental.column_changes import columns_narrower_than
from dagster_delta.orchestration.incremental.consumption import Consumption
from dagster_delta.orchestration.incremental.net_changes import (
    ACTION_COLUMN,
    DELETE,
    UPSERT,
    net_changes,
    net_changes_of_frame,
)
from dagster_delta.orchestration.io.asset_writer import (
    AssetValue,
    AssetWrite,
    WrittenAsset,
    write_asset,
)
from dagster_delta.orchestration.io.merge_config import (
    MergeConfig,
    MergeOperationsConfig,
    MergeType,
    OperationConfig,
    OperationWithUpdatesConfig,
    match_on,
)
from dagster_delta.orchestration.partitions.predicates import quote_column
from dagster_delta.parquet.data_input import to_reader
from dagster_delta.table.delta_table import DeltaTable

ChangeFeedMode = Literal["merge", "append"]
"""Whether the rows are merged by key, or appended."""

Returns = Literal["changes", "rows"]
"""Whether the returned rows are changes, as their columns say, or rows that must all exist."""


@dataclass(frozen=True, slots=True)
class AppliedChanges(AssetValue):
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

    has_own_mode = True

    def converted(self, convert: Callable[[object], object]) -> AppliedChanges:
        """The changes with their rows in a form that can be written."""
        return replace(self, rows=convert(self.rows))

    def write(self, write: AssetWrite) -> WrittenAsset:
        """Apply the rows and record the progress, as one commit."""
        # The progress identifies a repeated attempt, so no identifier per run is needed.
        write = replace(write, idempotency=None, progress=self.consumption.progress)
        changes = self.consumption.changes
        try:
            written = _only_progress(write, self) if self.rows is None else _write(write, self)
        except ConcurrentTransaction as conflict:
            conflict.message = (
                f"another run of {write.name} applied changes of its upstream table meanwhile, so "
                "this run wrote nothing: launch it again for the changes that remain. With the "
                "pool delta_table_pool(…) of the table on the asset, and a limit of 1, its runs "
                "wait for each other"
            )
            raise
        except SchemaMismatch as error:
            if write.selection is None:
                error.message += (
                    f'\nWith the metadata {{"schema_mode": "overwrite"}} on {write.name}, and '
                    "full_refresh in its run config, its table takes the columns of the rows"
                )
            raise
        lineage = None
        if self.upstream_key is not None:
            known = {name.lower(): name for name in changes.snapshot.schema.names}
            lineage = TableColumnLineage(
                {
                    name: [TableColumnDep(self.upstream_key, known[name.lower()])]
                    for name in written.snapshot.schema.names
                    if name.lower() in known
                }
            )
        metadata = {
            "delta/full_refresh": changes.is_full_refresh,
            "delta/full_refresh_because": changes.refresh_reason,
            "delta/columns_not_followed": self.consumption.columns_not_followed,
        }
        return replace(written, column_lineage=lineage, metadata=metadata)


def _write(write: AssetWrite, applied: AppliedChanges) -> WrittenAsset:
    rows, is_refresh = applied.rows, applied.consumption.changes.is_full_refresh
    has_actions = applied.mode == "merge" and applied.returns == "changes"
    if has_actions:
        if is_spark_frame(rows):
            net: Callable[..., object] = net_changes_of_frame
        else:
            net, rows = net_changes, to_reader(rows)
        rows = net(rows, applied.keys, asset=write.name, deletes=not is_refresh)
    if is_refresh:
        return write_asset(replace(write, options=replace(write.options, mode="overwrite")), rows)
    _check_types(write, applied)
    options = write.options
    if options.schema_mode == "overwrite":
        # Existing rows keep their columns: a full refresh alone replaces the schema.
        options = replace(options, schema_mode="merge")
    if applied.mode == "append":
        return write_asset(replace(write, options=replace(options, mode="append")), rows)
    merge = _merge_config(applied, rows, has_actions=has_actions)
    options = replace(options, mode="merge", merge_config=merge)
    controls = (ACTION_COLUMN,) if has_actions else ()
    return write_asset(replace(write, options=options, control_columns=controls), rows)


def _check_types(write: AssetWrite, applied: AppliedChanges) -> None:
    """Refuse columns of the upstream table that would be cast to their older type, if the asset
    requires them unchanged.
    """
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


def _only_progress(write: AssetWrite, applied: AppliedChanges) -> WrittenAsset:
    """The result of a run that found no changed rows: any progress is recorded, so that the older
    log of the upstream table may be cleaned up.
    """
    table = DeltaTable(write.uri, storage_options=write.storage_options)
    consumption = applied.consumption
    reason = f"no row has changed up to version {consumption.changes.to_version}"
    if consumption.is_nothing_new:
        return WrittenAsset(write, table.snapshot(), skipped_because=reason)
    transaction = table.transaction()
    for application in write.progress:
        transaction.advance_application(application)
    committed = transaction.commit(
        "WRITE", parameters={"mode": "Append"}, user_info=write.commit_info
    )
    return WrittenAsset(write, committed.snapshot, skipped_because=reason)


def _merge_config(applied: AppliedChanges, rows: object, *, has_actions: bool) -> MergeConfig:
    """A merge by the keys: changes delete and upsert, rows upsert."""
    on = match_on(applied.keys)
    if not has_actions:
        return MergeConfig(merge_type=MergeType.upsert, predicate=on)
    names = [name for name in engine_for(rows).schema_of(rows).names if name != ACTION_COLUMN]
    values = {quote_column(name): f"s.{quote_column(name)}" for name in names}
    action = f"s.{quote_column(ACTION_COLUMN)}"
    clauses = MergeOperationsConfig(
        when_matched_delete=[OperationConfig(predicate=f"{action} = '{DELETE}'")],
        when_matched_update=[OperationWithUpdatesConfig(updates=values)],
        when_not_matched_insert=[
            OperationWithUpdatesConfig(updates=values, predicate=f"{action} = '{UPSERT}'")
        ],
    )
    return MergeConfig(merge_type=MergeType.custom, predicate=on, merge_operations_config=clauses)
