"""Writing one asset's value as one commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from dagster import TableColumnLineage

from dagster_delta.errors import (
    CommitConflict,
    InvalidArgument,
    PartitionMismatch,
    TableAlreadyExists,
    TableNotFound,
)
from dagster_delta.evolution.merge_schema import check_strict, diff_schemas
from dagster_delta.evolution.properties.changes import (
    COMMENT_KEY,
    is_protocol_property,
    normalize_properties,
)
from dagster_delta.evolution.table_definition import TableDefinition
from dagster_delta.orchestration.io.asset_options import AssetOptions
from dagster_delta.orchestration.io.existing_partitions import rows_outside, split_existing
from dagster_delta.orchestration.io.merge_config import MergeConfig, MergeType, add_clauses
from dagster_delta.orchestration.io.partition_frames import FrameMismatch
from dagster_delta.orchestration.io.table_owner import TableClaim
from dagster_delta.orchestration.metadata_keys import first_names
from dagster_delta.orchestration.partitions.partitions import PartitionSelection
from dagster_delta.orchestration.partitions.predicates import identity_values, partition_predicate
from dagster_delta.orchestration.resources import NEW_TABLE_PROPERTIES
from dagster_delta.protocol.features.column_values import filled_columns
from dagster_delta.protocol.schema import StructType

if TYPE_CHECKING:
    from dagster_delta.table.delta_table import CommitResult, DeltaTable
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.transaction.transaction import AppTransaction


_RUN_RETENTION = "interval 90 days"
"""How long a new table remembers which runs have written it, for retries and re-executions."""


@dataclass(frozen=True, slots=True)
class AssetWrite:
    """Everything about one write except the rows."""

    name: str
    """Of the asset, for messages."""
    uri: str
    storage_options: Mapping[str, object] = field(repr=False)
    options: AssetOptions
    selection: PartitionSelection | None
    """The Dagster partitions to write; None if the asset has none."""
    idempotency: tuple[str, int] | None
    commit_info: Mapping[str, object]
    progress: tuple[AppTransaction, ...] = ()
    """`txn` actions to record with the commit."""
    description: str | None = None
    """Of the asset; it becomes the description of a new table."""
    asset_key: str | None = None
    """Of the asset, as `a/b`; None for the output of an op."""
    control_columns: tuple[str, ...] = ()
    """Columns of the rows that control a merge and are not written to the table."""
    run_selection: PartitionSelection | None = None
    """The Dagster partitions of the run, if it leaves some of them as they are."""

    @property
    def partitions_of_run(self) -> PartitionSelection | None:
        """The Dagster partitions of the run; None if the asset has none."""
        return self.run_selection or self.selection


@dataclass(frozen=True, slots=True)
class WrittenAsset:
    """Result of one write."""

    mode: str
    snapshot: Snapshot
    """The table after it."""
    metrics: Mapping[str, int | str]
    """Of the commit; empty if nothing was written."""
    predicate: str | None
    """Spark SQL of the partitions that were replaced or appended to; None for the whole table."""
    skipped_because: str | None = None
    """Why nothing was written, or None."""
    merge_type: str | None = None
    """How the mode `merge` merged."""
    column_lineage: TableColumnLineage | None = None
    """Lineage of its columns, if known."""
    compacted_version: int | None = None
    """The version in which small files were compacted after the write, if needed."""
    attempts: int = 1
    """Number of attempts of the write; more than one after conflicts."""
    other_properties: Mapping[str, tuple[str | None, str]] = field(default_factory=dict)
    """Table properties in the options that this existing table does not have: its value, and the
    requested value."""
    kept_partitions: tuple[str, ...] = ()
    """Keys of partitions that were not written, since they have rows and the mode is `ignore`."""
    null_columns: tuple[str, ...] = ()
    """Columns of the table that the rows lack, so that they are null in the written rows."""


def write_asset(write: AssetWrite, data: object) -> WrittenAsset:
    """Write the rows of an asset as one commit, or skip it if there is nothing to write."""
    from dagster_delta.engines import engine_for
    from dagster_delta.table.delta_table import DeltaTable

    # After the commit nothing may fail: a repeated run would write its rows again.
    properties = normalize_properties(write.options.properties)
    table = DeltaTable(write.uri, storage_options=write.storage_options, must_exist=False)
    before = _snapshot(table)
    data = _read_once(data)
    columns = engine_for(data).schema_of(data)
    schema = StructType(
        tuple(column for column in columns if column.name not in write.control_columns)
    )
    predicate = None
    kept: tuple[str, ...] = ()
    if write.selection is not None:
        # Rows are cast to the types of the table, so its types determine the partition predicate.
        known = schema if before is None else before.schema
        predicate = partition_predicate(write.selection, known)
    if before is not None and write.options.mode in {"error", "ignore"}:
        skipped = _keep_existing(write, before, predicate)
        existing, missing = _split_existing(write, before, is_skipped=skipped is not None)
        if existing is not None and missing is not None:
            data = rows_outside(data, existing, columns)
            write = replace(write, selection=missing)
            predicate, kept = partition_predicate(missing, before.schema), existing.keys
        elif skipped is not None:
            return skipped
    write = _claimed(write, table, before)
    write = _keeping_other_partitions(write, before, schema)
    partition_by = _partition_by(write, before, schema)
    try:
        if write.options.mode == "merge":
            result = _merge(write, table, before, data, schema, partition_by)
        else:
            result = _commit(write, table, data, predicate, partition_by)
    except (CommitConflict, TableAlreadyExists):
        # Another run may have written the same since.
        skipped = _written_meanwhile(write, table, predicate)
        if skipped is None:
            raise
        return skipped
    except PartitionMismatch as error:
        if write.selection is None or isinstance(error, FrameMismatch):
            raise
        raise _outside_of_run(write, write.selection, predicate, error) from error
    return WrittenAsset(
        write.options.mode,
        result.snapshot,
        result.metrics,
        predicate,
        _skip_reason(result),
        (write.options.merge or MergeConfig()).merge_type.value
        if write.options.mode == "merge"
        else None,
        compacted_version=result.compacted_version,
        attempts=result.attempts,
        kept_partitions=kept,
        other_properties={} if before is None else _other_properties(properties, before),
        null_columns=() if before is None else _null_columns(write, before, schema),
    )


def _claimed(write: AssetWrite, table: DeltaTable, before: Snapshot | None) -> AssetWrite:
    """Do the write after making the asset the owner of its table; a new table records it in its
    properties.
    """
    options = write.options
    claim = TableClaim(write.asset_key, options.renamed_from, options.shared_table)
    if before is None:
        properties = {**options.properties, **claim.properties}
        if write.idempotency is not None and options.mode != "overwrite":
            properties.setdefault("delta.setTransactionRetentionDuration", _RUN_RETENTION)
        return replace(write, options=replace(options, properties=properties))
    claim.check(table, before, write.commit_info)
    return write


def _other_properties(
    properties: Mapping[str, str], before: Snapshot
) -> dict[str, tuple[str | None, str]]:
    present = {**before.metadata.configuration, COMMENT_KEY: before.metadata.description}
    return {
        key: (present.get(key), value)
        for key, value in properties.items()
        if present.get(key) != value
        and not is_protocol_property(key)
        and key not in NEW_TABLE_PROPERTIES
    }


def _null_columns(write: AssetWrite, before: Snapshot, schema: StructType) -> tuple[str, ...]:
    if write.options.mode == "merge" or write.options.schema_mode == "overwrite":
        return ()
    filled = {name.casefold() for name in filled_columns(before.configuration)}
    missing = diff_schemas(before.schema, schema).missing
    return tuple(each.column for each in missing if each.path[0].casefold() not in filled)


def check_merge_options(options: AssetOptions, asset: str) -> None:
    """Refuse options that a merge cannot follow."""
    (options.merge or MergeConfig()).check(asset)
    if options.schema_mode == "overwrite":
        raise InvalidArgument(
            f"{asset} has mode merge with schema_mode overwrite, which would drop columns of "
            "existing rows; use schema_mode merge or strict"
        )
    if options.sort_by:
        raise InvalidArgument(
            f"{asset} has mode merge, which does not support sort_by: omit it, and Z-order "
            "the table with OPTIMIZE"
        )


def default_partition_columns(selection: PartitionSelection, schema: StructType) -> tuple[str, ...]:
    """The columns that partition a new table by default.

    The columns with one value per Dagster partition: keys, dates of days, numbers. A column with a
    range of values (a timestamp, the dates of a month) would make a directory per value; for it,
    file skipping uses statistics.
    """
    columns = []
    for box in selection.boxes[0] if selection.boxes else ():
        field_ = schema.get(box.column.strip("`"))
        if field_ is not None and identity_values(box, schema) is not None:
            columns.append(field_.name)
    distinct = tuple(dict.fromkeys(columns))
    # A table needs a column that is not a partition column.
    return distinct if len(distinct) < len(schema) else ()


def _keeping_other_partitions(
    write: AssetWrite, before: Snapshot | None, schema: StructType
) -> AssetWrite:
    """The write without `schema_mode` overwrite, which replaces all rows, if a run writes some
    partitions: allowed if the rows have the columns of the table.
    """
    options = write.options
    if write.selection is None or options.mode != "overwrite":
        return write
    if options.schema_mode != "overwrite":
        return write
    diff = None if before is None else diff_schemas(before.schema, schema)
    if diff is not None and (diff.added or diff.missing or diff.retyped):
        raise InvalidArgument(
            f"{write.name} is partitioned, and its schema_mode overwrite would take other columns "
            "from the partitions that this run does not write: use schema_mode merge for new "
            "columns and wider types, delta_schema_change_job or DeltaTable.alter for the rest:\n"
            f"{diff}",
            table=write.uri,
        )
    return replace(write, options=replace(options, schema_mode="strict"))


def _outside_of_run(
    write: AssetWrite,
    selection: PartitionSelection,
    predicate: str | None,
    error: PartitionMismatch,
) -> PartitionMismatch:
    """The error in terms of the asset, with the rows of the first error."""
    run = first_names(selection.keys)
    plural = "s" if len(selection.keys) > 1 else ""
    return PartitionMismatch(
        f"{write.name} returned rows outside of the partition{plural} {run} of the run, for which "
        f"{predicate or error.message} holds: return rows of the run's partitions alone "
        "(context.partition_keys, context.partition_time_window), or name another column in "
        "partition_expr",
        table=error.table or write.uri,
        examples=error.examples,
    )


def _skip_reason(result: CommitResult) -> str | None:
    if not result.skipped:
        return None
    # A merge has counted the rows for which it had nothing to do.
    if result.metrics:
        return "the rows change nothing"
    return "an earlier attempt of this run has committed it"


def _snapshot(table: DeltaTable) -> Snapshot | None:
    try:
        return table.snapshot()
    except TableNotFound:
        return None


def _read_once(data: object) -> object:
    """A value whose schema can be read without reading its rows twice."""
    if type(data).__module__.startswith("pyspark."):
        return data
    from dagster_delta.parquet.data_input import to_reader

    return to_reader(data)


def _keep_existing(
    write: AssetWrite, before: Snapshot, predicate: str | None
) -> WrittenAsset | None:
    """The outcome of the modes `error` and `ignore` if rows exist; None if there are none.

    For a partitioned asset only rows of its partitions count; otherwise the second partition would
    never be written.
    """
    from dagster_delta.table.transaction.app_transactions import ApplicationRecord

    if ApplicationRecord(write.idempotency).is_done(before):
        return None
    if predicate is not None and before.scan(where=predicate).count() == 0:
        return None
    what = "the table" if predicate is None else "a partition of the run"
    if write.options.mode == "ignore":
        reason = f"the mode is ignore, and {what} exists already"
        return WrittenAsset(write.options.mode, before, {}, predicate, reason)
    raise TableAlreadyExists(
        f"{what} of {write.name} exists already, and the mode is error; set the mode to "
        "overwrite or append, or to ignore to leave it as it is",
        table=write.uri,
        version=before.version,
    )


def _written_meanwhile(
    write: AssetWrite, table: DeltaTable, predicate: str | None
) -> WrittenAsset | None:
    if write.options.mode not in {"error", "ignore"}:
        return None
    now = table.refresh()
    skipped = _keep_existing(write, now, predicate)
    _, missing = _split_existing(write, now, is_skipped=skipped is not None)
    if missing is None:
        return skipped
    # The rows of the other partitions may be used up.
    raise TableAlreadyExists(
        f"another run wrote some partitions of this run of {write.name} meanwhile, so this run "
        "wrote none: launch it again for those that are missing",
        table=write.uri,
        version=now.version,
    )


def _split_existing(
    write: AssetWrite, before: Snapshot, *, is_skipped: bool
) -> tuple[PartitionSelection | None, PartitionSelection | None]:
    """The partitions of a skipped run that have rows, and those that it still has to write; None
    unless there are both.
    """
    if not is_skipped or write.selection is None or len(write.selection.keys) == 1:
        return None, None
    existing, missing = split_existing(write.selection, before)
    return (existing, missing) if existing.keys and missing.keys else (None, None)


def _partition_by(
    write: AssetWrite, before: Snapshot | None, schema: StructType
) -> tuple[str, ...] | None:
    if write.options.partition_by is not None:
        return write.options.partition_by
    # A table is clustered or partitioned, not both.
    if before is not None or write.selection is None or write.options.cluster_by:
        return None
    return default_partition_columns(write.selection, schema)


def _commit(
    write: AssetWrite,
    table: DeltaTable,
    data: object,
    predicate: str | None,
    partition_by: tuple[str, ...] | None,
) -> CommitResult:
    options = write.options
    if options.mode == "overwrite":
        # An overwrite is idempotent, so it needs no transaction id, and the log does not grow by
        # one per run.
        commit = partial(table.overwrite, where=predicate)
    else:
        commit = partial(table.append, check=predicate, idempotency=write.idempotency)
        if options.mode in {"error", "ignore"}:
            commit = partial(commit, absent="true" if predicate is None else predicate)
    return commit(
        data,
        schema_mode=options.schema_mode,
        partition_by=partition_by,
        commit_info=write.commit_info,
        properties=options.properties,
        progress=write.progress,
        description=write.description,
        sort_by=options.sort_by or (),
        cluster_by=options.cluster_by,
    )


def _merge(
    write: AssetWrite,
    table: DeltaTable,
    before: Snapshot | None,
    data: object,
    source: StructType,
    partition_by: tuple[str, ...] | None,
) -> CommitResult:
    options = write.options
    config = options.merge or MergeConfig()
    check_merge_options(options, write.name)
    known = source if before is None else before.schema
    on, within = str(config.predicate), None
    if write.selection is not None:
        within = partition_predicate(write.selection, known)
        bound = partition_predicate(write.selection, known, alias=config.target)
        on = f"({on}) AND ({bound})"
    builder = table.merge(
        data,
        on,
        source_alias=config.source,
        target_alias=config.target,
        commit_info=write.commit_info,
        idempotency=write.idempotency,
        check=within,
        progress=write.progress,
        schema_mode="strict" if before is None else _schema_mode_of_merge(write, before, source),
        creates=TableDefinition(
            source,
            partition_by or (),
            options.properties,
            description=write.description,
            cluster_by=options.cluster_by or (),
        ),
    )
    return add_clauses(builder, config, source_columns=source.names, within=within).execute()


def _schema_mode_of_merge(
    write: AssetWrite, before: Snapshot, source: StructType
) -> Literal["strict", "merge"]:
    """Whether the merge changes the schema of its table; checks the columns of its rows."""
    from dagster_delta.table.operations.write_planning import check_widening

    mode, known = write.options.schema_mode, before.schema
    if mode == "merge":
        return "merge"
    merge_type = (write.options.merge or MergeConfig()).merge_type
    if merge_type is not MergeType.custom or write.control_columns:
        # A merge ignores columns that only the source has; custom clauses may need them for their
        # conditions.
        check_strict(known, source, option='schema_mode "merge"', filled=known.names)
    if mode == "strict":
        return "strict"
    check_widening(before.configuration, source)
    # Without new columns in the rows, only wider types remain to merge.
    return "strict" if diff_schemas(known, source).added else "merge"
