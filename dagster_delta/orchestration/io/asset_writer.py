"""Writing one asset's value, or its frame for each partition, as one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import pyarrow as pa
from dagster import TableColumnLineage
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.engines import engine_for, is_spark_frame
from dagster_delta.engines.data_input import (
    RepeatableRows,
    is_in_memory,
    to_reader,
    to_rows,
)
from dagster_delta.errors import (
    CommitConflict,
    DeltaError,
    InvalidArgument,
    PartitionMismatch,
    SchemaMismatch,
    TableAlreadyExists,
    TableNotFound,
)
from dagster_delta.evolution.column_rules import check_column_types
from dagster_delta.evolution.merge_schema import check_strict, diff_schemas
from dagster_delta.evolution.properties import (
    COMMENT_KEY,
    is_protocol_property,
    normalize_properties,
)
from dagster_delta.evolution.table_definition import TableDefinition
from dagster_delta.nested_arrays import inner_fields
from dagster_delta.orchestration.io.asset_options import (
    AssetOptions,
    check_merge,
    check_shared,
)
from dagster_delta.orchestration.io.merge_config import MergeConfig, MergeType, add_clauses
from dagster_delta.orchestration.io.table_owner import OWNER_PROPERTY, check_owner, owner_of
from dagster_delta.orchestration.metadata_keys import first_names
from dagster_delta.orchestration.partitions.partitions import (
    PartitionSelection,
    SelectPartitions,
    single_partitions,
)
from dagster_delta.orchestration.partitions.predicates import (
    identity_values,
    partition_condition,
    partition_predicate,
)
from dagster_delta.parquet.store_assignment import assign_batches
from dagster_delta.protocol.features.column_values import filled_columns
from dagster_delta.protocol.schema import StructType, fold_name
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema, to_arrow_schema
from dagster_delta.python_values import python_rows
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.write_planning import check_widening
from dagster_delta.table.transaction.retries import StatementOptions

if TYPE_CHECKING:
    from dagster_delta.table.delta_table import CommitResult
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.transaction.transaction import AppTransaction


class FrameMismatch(PartitionMismatch):
    """A row of the frame of one partition is outside of this partition."""


_MAX_EXAMPLES = 3

_ONE_TYPE = (
    "cast its columns to one type in all frames (pandas has floating point numbers for integers "
    "with nulls)"
)

_RUN_RETENTION = "interval 90 days"
"""How long a new table remembers which runs have written it, for retries and re-executions."""


class AssetWrite(msgspec.Struct, frozen=True):
    """Everything about one write except the rows."""

    name: str
    """Of the asset, for messages."""
    uri: str
    storage_options: Mapping[str, object]
    options: AssetOptions
    selection: PartitionSelection | None
    """The rows to write: of Dagster partitions, or those that the asset owns; None for all."""
    select: SelectPartitions | None
    """Selects some of these partitions; None if the asset has none."""
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

    # Storage options may hold secrets.
    def __repr__(self) -> str:
        return f"AssetWrite({self.uri!r})"

    @property
    def partitions_of_run(self) -> PartitionSelection | None:
        """The Dagster partitions of the run; None if the asset has none."""
        return self.run_selection or self.selection

    def narrowed(self, keys: Iterable[str]) -> AssetWrite:
        """The write of some partitions of the run."""
        assert self.select is not None  # noqa: S101  there are partitions
        return replace(self, selection=self.select(keys), run_selection=self.partitions_of_run)

    def predicate(self, schema: StructType, alias: str | None = None) -> str | None:
        """Spark SQL of the partitions to write; None for the whole table."""
        if self.selection is None:
            return None
        return partition_predicate(self.selection, schema, alias=alias)


class WrittenAsset(msgspec.Struct, frozen=True):
    """Result of one write."""

    write: AssetWrite
    """What was to be written."""
    snapshot: Snapshot
    """The table after it."""
    metrics: Mapping[str, int | str] = msgspec.field(default_factory=dict)
    """Of the commit; empty if nothing was written."""
    predicate: str | None = None
    """Spark SQL of the partitions that were replaced or appended to; None for the whole table."""
    skipped_because: str | None = None
    """Why nothing was written, or None."""
    column_lineage: TableColumnLineage | None = None
    """Lineage of its columns, if known."""
    compacted_version: int | None = None
    """The version in which small files were compacted after the write, if needed."""
    attempts: int = 1
    """Number of attempts of the write; more than one after conflicts."""
    warnings: Sequence[str] = ()
    """What may surprise."""
    kept_partitions: tuple[str, ...] = ()
    """Keys of partitions that were not written, since they have rows and the mode is `ignore`."""
    metadata: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Further metadata for the UI."""


class NothingWritten(msgspec.Struct, frozen=True):
    """Result of a write without rows that has no table."""

    reason: str
    metadata: Mapping[str, object] = msgspec.field(default_factory=dict)
    warnings: Sequence[str] = ()


def nothing_written(write: AssetWrite, reason: str) -> WrittenAsset | NothingWritten:
    """Result of a write without rows. A table keeps its data version, which says what is in it."""
    try:
        table = DeltaTable(write.uri, storage_options=write.storage_options).snapshot()
    except (DeltaError, OSError):
        # The run needs no table.
        return NothingWritten(reason)
    return WrittenAsset(write, table, skipped_because=reason)


class AssetValue(msgspec.Struct, frozen=True):
    """A value that an asset returned and that has a writer of its own."""

    has_own_mode: ClassVar[bool] = False
    """Whether the value determines how the table is written, whatever the mode of the asset."""

    @property
    def rows(self) -> object:
        """Its rows, for what watches Spark; None if it has none in this form."""
        return None

    def converted(self, convert: Callable[[object], object]) -> AssetValue:  # noqa: ARG002
        """The value with its rows in a form that can be written."""
        return self

    def write(self, write: AssetWrite) -> WrittenAsset | NothingWritten:
        """Write the value as one commit."""
        raise NotImplementedError


class Rows(AssetValue, frozen=True):
    """Rows in a form that can be written."""

    rows: object

    def write(self, write: AssetWrite) -> WrittenAsset:
        """Write the rows."""
        return write_asset(write, self.rows)


class NoRows(AssetValue, frozen=True):
    """None, which an asset returned instead of rows."""

    is_expected: bool
    """Whether its annotation allows it."""

    has_own_mode = True

    def write(self, write: AssetWrite) -> WrittenAsset | NothingWritten:
        """Leave the table as it is."""
        reason = f"{write.name} returned None"
        advice = "return the rows, or annotate it with -> None if it writes its table by itself"
        warnings = () if self.is_expected else (f"{reason}: {advice}",)
        return replace(nothing_written(write, reason), warnings=warnings)


class PartitionFrames(AssetValue, frozen=True):
    """One frame per partition key of a run."""

    frames: Mapping[str, object]
    """The rows of each partition, in any form that can be written; None if the partition does not
    change."""

    def write(self, write: AssetWrite) -> WrittenAsset | NothingWritten:
        """Write the rows of all frames as one commit."""
        self._check_keys(write.name, None if write.select is None else write.selection)
        frames = {key: frame for key, frame in self.frames.items() if frame is not None}
        if not frames:
            return nothing_written(write, f"{write.name} returned None for each partition")
        narrowed = write.narrowed(frames)
        return write_asset(narrowed, _rows_of_frames(narrowed, frames))

    def _check_keys(self, asset: str, selection: PartitionSelection | None) -> None:
        """Make sure that there is a frame, or None, for each partition of the run."""
        if selection is None:
            raise InvalidArgument(
                f"{asset} returned a dict, which is for one frame per partition key, and {asset} "
                "is not partitioned: return one frame; pyarrow.table makes one of a mapping from "
                "column to values"
            )
        run_keys, run = selection.keys, first_names(selection.keys)
        if others := [key for key in self.frames if key not in run_keys]:
            raise InvalidArgument(
                f"{asset} returned frames for {first_names(others)}, which are not partitions of "
                f"the run: return one for each of {run} (context.partition_keys)"
            )
        if missing := [key for key in run_keys if key not in self.frames]:
            raise InvalidArgument(
                f"{asset} returned no frame for {first_names(missing)}, of the partitions {run} of "
                "the run: return an empty frame to have no rows in a partition, or None to leave "
                "it as it is"
            )


def write_asset(write: AssetWrite, data: object) -> WrittenAsset:
    """Write the rows of an asset as one commit, or skip it if there is nothing to write."""
    check_shared(write.options, asset=write.name)
    # After the commit nothing may fail: a repeated run would write its rows again.
    properties = normalize_properties(write.options.table_properties)
    table = DeltaTable(write.uri, storage_options=write.storage_options, must_exist=False)
    before: Snapshot | None = None
    with suppress(TableNotFound):
        before = table.snapshot()
    if not is_spark_frame(data):
        data = to_rows(data)
    columns = engine_for(data).schema_of(data)
    schema = StructType(
        tuple(column for column in columns if column.name not in write.control_columns)
    )
    if before is None and schema.fields:
        # The columns of partitions are asked for their types next.
        check_column_types(schema)
    missing = _missing(write, before)
    if before is not None and missing == ():
        return _skipped(write, before)
    kept: tuple[str, ...] = ()
    if missing and write.select is not None:
        kept = tuple(key for key in single_partitions(write.selection) if key not in missing)
        data = rows_outside(data, write.select(kept), columns)
        write = write.narrowed(missing)
    # Rows are cast to the types of the table, so its types determine the partition predicate.
    predicate = write.predicate(schema if before is None else before.schema)
    write = _keeping_other_partitions(_claimed(write, table, before), before, schema)
    partition_by = _partition_by(write, before, schema)
    try:
        if write.options.mode == "merge":
            result = _merge(write, table, before, data, schema, predicate, partition_by)
        else:
            result = _commit(write, table, data, predicate, partition_by)
    except (CommitConflict, TableAlreadyExists):
        # Another run may have written the same since.
        now = table.refresh()
        if _missing(write, now) != ():
            raise
        return _skipped(write, now)
    except PartitionMismatch as error:
        if write.selection is None or isinstance(error, FrameMismatch):
            raise
        raise _outside_of_run(write, write.selection, predicate, error) from error
    # A merge has counted the rows for which it had nothing to do.
    reason = (
        "the rows change nothing"
        if result.metrics
        else "an earlier attempt of this run has committed it"
    )
    return WrittenAsset(
        write,
        result.snapshot,
        result.metrics,
        predicate,
        reason if result.skipped else None,
        compacted_version=result.compacted_version,
        attempts=result.attempts,
        kept_partitions=kept,
        warnings=() if before is None else tuple(_warnings(write, properties, before, schema)),
    )


def _missing(write: AssetWrite, table: Snapshot | None) -> tuple[str, ...] | None:
    """The partitions of the run that have no rows, in the modes `error` and `ignore`; None if
    nothing is there that these modes keep. An asset without partitions has none, once its table is
    there.
    """
    mode, done = write.options.mode, StatementOptions(idempotency=write.idempotency)
    if table is None or mode not in {"error", "ignore"} or done.found_done(table) is not None:
        return None
    single = single_partitions(write.selection)
    missing = tuple(
        key
        for key, partition in single.items()
        if not table.scan(where=partition_predicate(partition, table.schema)).count()
    )
    if write.selection is not None and len(missing) == len(single):
        return None
    if mode == "error":
        what = "the table" if write.select is None else "a partition of the run"
        raise TableAlreadyExists(
            f"{what} of {write.name} exists already, and the mode is error; set the mode to "
            "overwrite or append, or to ignore to leave it as it is",
            table=write.uri,
            version=table.version,
        )
    return missing


def _skipped(write: AssetWrite, table: Snapshot) -> WrittenAsset:
    what = "the table" if write.select is None else "a partition of the run"
    return WrittenAsset(
        write,
        table,
        predicate=write.predicate(table.schema),
        skipped_because=f"the mode is ignore, and {what} exists already",
    )


def rows_outside(data: Any, partitions: PartitionSelection, schema: StructType) -> object:  # noqa: ANN401
    """The rows that are in none of some partitions: of a Spark frame as a Spark frame, of
    other values as a `pa.RecordBatchReader`. `schema` is that of the rows.
    """
    if is_spark_frame(data):
        return data.where(f"NOT coalesce({partition_predicate(partitions, schema)}, false)")
    condition = partition_condition(partitions, schema)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in assign_batches(to_reader(data), schema, table="the rows of the run"):
            inside = pc.fill_null(condition.evaluate_filter(batch), fill_value=False)
            yield batch.filter(pc.invert(inside))

    return pa.RecordBatchReader.from_batches(to_arrow_schema(schema), batches())


def _claimed(write: AssetWrite, table: DeltaTable, before: Snapshot | None) -> AssetWrite:
    """Do the write after making the asset the owner of its table; a new table records it in its
    properties.
    """
    options = write.options
    if before is None:
        owner = owner_of(write.asset_key, options)
        owned = {} if owner is None else {OWNER_PROPERTY: owner}
        properties = {**options.table_properties, **owned}
        if write.idempotency is not None and options.mode != "overwrite":
            properties.setdefault("delta.setTransactionRetentionDuration", _RUN_RETENTION)
        return replace(write, options=options.with_values(table_properties=properties))
    check_owner(table, before, write.asset_key, options, write.commit_info)
    return write


def _warnings(
    write: AssetWrite, properties: Mapping[str, str], before: Snapshot, schema: StructType
) -> Iterator[str]:
    """What an existing table does not take from the rows and the options."""
    if write.options.mode != "merge" and write.options.schema_mode != "overwrite":
        filled = {fold_name(name) for name in filled_columns(before.configuration)}
        missing = diff_schemas(before.schema, schema).missing
        null = [item.column for item in missing if fold_name(item.path[0]) not in filled]
        if null:
            yield (
                f"the rows of {write.name} lack columns of its table, which are null in them: "
                f"{', '.join(null)}. Return them too; columns that nobody needs any more are "
                "dropped with delta_schema_change_job, or with the schema_mode overwrite"
            )
    present = {**before.metadata.configuration, COMMENT_KEY: before.metadata.description}
    differences = [
        f"{key} = {present.get(key) or 'not set'} instead of {value}"
        for key, value in sorted(properties.items())
        if present.get(key) != value and not is_protocol_property(key)
    ]
    if differences:
        yield (
            f"{write.name} has its table already, and table_properties are for new "
            f"ones: the table has {', '.join(differences)}. Set them with ALTER TABLE … SET "
            "TBLPROPERTIES, in delta_schema_change_job or DeltaTable.alter"
        )


def _partition_by(
    write: AssetWrite, before: Snapshot | None, schema: StructType
) -> tuple[str, ...] | None:
    """The columns that partition a new table.

    By default, those with one value per Dagster partition: keys, dates of days, numbers. A column
    with a range of values (a timestamp, the dates of a month) would make a directory per value; for
    it, file skipping uses statistics.
    """
    # A table is clustered or partitioned, not both.
    if write.options.partition_by is not None or before is not None or write.options.cluster_by:
        return write.options.partition_by
    if write.selection is None:
        return None
    columns = []
    for box in write.selection.boxes[0] if write.selection.boxes else ():
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
    if write.selection is None or not options.mode == options.schema_mode == "overwrite":
        return write
    diff = None if before is None else diff_schemas(before.schema, schema)
    if diff is not None and (diff.added or diff.missing or diff.retyped):
        raise InvalidArgument(
            f"{write.name} is partitioned or shares its table, and its schema_mode overwrite would "
            "take other columns from the rows that this run does not write: use schema_mode merge "
            "for new "
            "columns and wider types, delta_schema_change_job or DeltaTable.alter for the rest:\n"
            f"{diff}",
            table=write.uri,
        )
    return replace(write, options=options.with_values(schema_mode="strict"))


def _outside_of_run(
    write: AssetWrite,
    selection: PartitionSelection,
    predicate: str | None,
    error: PartitionMismatch,
) -> PartitionMismatch:
    """The error in terms of the asset, with the rows of the first error."""
    if write.select is None:
        return PartitionMismatch(
            f"{write.name} returned rows that it does not own: by owned_rows, "
            f"{predicate or error.message} holds for its rows",
            table=error.table or write.uri,
            examples=error.examples,
        )
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
        properties=options.table_properties,
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
    within: str | None,
    partition_by: tuple[str, ...] | None,
) -> CommitResult:
    options = write.options
    config = options.merge_config or MergeConfig()
    check_merge(options, (), asset=write.name)
    on, of_target = str(config.predicate), None
    if within is not None:
        known = source if before is None else before.schema
        # A column of the name of an alias is told from it.
        of_target = write.predicate(known, config.target_alias)
        on = f"({on}) AND ({of_target})"
    builder = table.merge(
        data,
        on,
        source_alias=config.source_alias,
        target_alias=config.target_alias,
        commit_info=write.commit_info,
        idempotency=write.idempotency,
        check=within,
        progress=write.progress,
        schema_mode="strict" if before is None else _schema_mode_of_merge(write, before, source),
        creates=TableDefinition(
            source,
            partition_by or (),
            options.table_properties,
            description=write.description,
            cluster_by=options.cluster_by or (),
        ),
    )
    return add_clauses(builder, config, source_columns=source.names, within=of_target).execute()


def _schema_mode_of_merge(
    write: AssetWrite, before: Snapshot, source: StructType
) -> Literal["strict", "merge"]:
    """Whether the merge changes the schema of its table; checks the columns of its rows."""
    mode, known = write.options.schema_mode, before.schema
    if mode == "merge":
        return "merge"
    merge_type = (write.options.merge_config or MergeConfig()).merge_type
    if merge_type is not MergeType.custom or write.control_columns:
        # A merge ignores columns that only the source has; custom clauses may need them for their
        # conditions.
        check_strict(known, source, option='schema_mode "merge"', filled=known.names)
    if mode == "strict":
        return "strict"
    check_widening(before.configuration, source)
    # Without new columns in the rows, only wider types remain to merge.
    return "strict" if diff_schemas(known, source).added else "merge"


def _rows_of_frames(write: AssetWrite, frames: Mapping[str, object]) -> object:
    """The rows of all frames; frames are read one at a time, and each row is checked, when it is
    read, to be in the frame's partition.
    """
    rows = {}
    for key, frame in frames.items():
        if is_spark_frame(frame):
            raise InvalidArgument(
                f"{write.name} returned a Spark frame for {key}: return one Spark frame with the "
                "rows of all partitions of the run"
            )
        rows[key] = to_rows(frame)
    # An empty frame may have no columns.
    schemas = {key: to_reader(data).schema for key, data in rows.items()}
    joined = _joined(write.name, {key: schema for key, schema in schemas.items() if len(schema)})
    schema = from_arrow_schema(joined)
    partitions = single_partitions(write.selection)

    def batches() -> Iterator[pa.RecordBatch]:
        for key, data in rows.items():
            if not len(schemas[key]):
                continue
            condition = partition_condition(partitions[key], schema)
            cast = _exact(write.name, key, to_reader(data), joined)
            exact = pa.RecordBatchReader.from_batches(joined, cast)
            for batch in assign_batches(exact, schema, table=f"the frame of {key}"):
                inside = pc.fill_null(condition.evaluate_filter(batch), fill_value=False)
                if not pc.all(inside, min_count=0).as_py():
                    outside = batch.filter(pc.invert(inside)).slice(0, _MAX_EXAMPLES)
                    raise FrameMismatch(
                        f"{write.name} returned rows for the partition {key} that are not in it, "
                        f"as {condition.sql} does not hold for them",
                        examples=tuple(repr(row) for row in python_rows(outside)),
                    )
                yield batch

    arrow_schema = to_arrow_schema(schema)
    repeatable = RepeatableRows(
        arrow_schema, lambda: pa.RecordBatchReader.from_batches(arrow_schema, batches())
    )
    return repeatable if all(map(is_in_memory, rows.values())) else repeatable.open()


def _joined(asset: str, schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """The columns of all frames, with types that hold the values of each."""
    for key, schema in schemas.items():
        first = next(iter(schemas))
        if differing := set(schemas[first].names) ^ set(schema.names):
            raise SchemaMismatch(
                f"{asset} returned frames with different columns: {', '.join(sorted(differing))} "
                f"is in one of {first} and {key} only"
            )
    frames = {_frame(asset, key): schema for key, schema in schemas.items()}
    return joined_schema(frames, advice=_ONE_TYPE)


def joined_schema(schemas: Mapping[str, pa.Schema], *, advice: str) -> pa.Schema:
    """The columns of all sources of rows, by their name, with types that hold the values of each.

    Raises:
        SchemaMismatch: there are no such types.
    """
    joined = pa.schema([])
    for source, schema in schemas.items():
        try:
            joined = pa.unify_schemas([joined, schema], promote_options="permissive")
        except pa.ArrowException as error:
            raise SchemaMismatch(
                f"the columns of {source} have other types than those of others ({error}): {advice}"
            ) from error
    for source, schema in schemas.items():
        for column in schema:
            kind = joined.field(column.name).type
            if _rounds(column.type, kind):
                raise _rounding(source, f"{column.name} has the type {column.type}", advice)
    return joined


def _rounds(given: pa.DataType, joined: pa.DataType) -> bool:
    """Whether decimals in a type become floating point numbers: Arrow rounds them without an
    error.
    """
    if not pa.types.is_nested(given):
        return bool(pa.types.is_decimal(given) and pa.types.is_floating(joined))
    inner = inner_fields(joined)
    if pa.types.is_struct(given):
        # The joined struct may have more fields.
        by_name = {field.name: field for field in inner}
        inner = [by_name[field.name] for field in given]
    pairs = zip(inner_fields(given), inner, strict=True)
    return any(_rounds(before.type, after.type) for before, after in pairs)


def _exact(
    asset: str, key: str, reader: pa.RecordBatchReader, joined: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The frame in the common types, with an error for values that would be rounded."""
    for batch in reader:
        try:
            yield batch.select(joined.names).cast(joined)
        except pa.ArrowException as error:
            raise _rounding(_frame(asset, key), str(error), _ONE_TYPE) from error


def _frame(asset: str, key: str) -> str:
    return f"the frame that {asset} returned for {key}"


def _rounding(source: str, cause: str, advice: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"{source} has other types than others, which would round its values ({cause}): {advice}"
    )
