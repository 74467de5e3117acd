"""Writing one asset's value, or its frame for each partition, as one commit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

import msgspec
from dagster import TableColumnLineage
from msgspec.structs import replace

from dagster_delta.engines import engine_for, to_rows
from dagster_delta.errors import (
    DeltaError,
    InvalidArgument,
    PartitionMismatch,
    TableAlreadyExists,
    TableNotFound,
)
from dagster_delta.orchestration.io.asset_options import (
    AssetOptions,
    check_merge,
    check_shared,
)
from dagster_delta.orchestration.io.audits import AuditResult, RejectedRows, WriteAudits
from dagster_delta.orchestration.io.merge_config import (
    MergeConfig,
    MergeType,
    add_clauses,
    cdc_options,
)
from dagster_delta.orchestration.io.table_owner import (
    OWNER_PROPERTY,
    check_owner,
    owner_of,
    record_property,
)
from dagster_delta.orchestration.metadata_keys import counted, first_names
from dagster_delta.orchestration.quarantine import (
    REJECTED_SUFFIX,
    Quarantine,
    WriteQuarantine,
)
from dagster_delta.protocol.schema import StructType
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.create import definition_of, differing_properties
from dagster_delta.table.programs import (
    READERS_PROPERTY,
    known_readers,
    lines_about_properties,
    list_readers,
)
from dagster_delta.table.transaction.retries import StatementOptions

if TYPE_CHECKING:
    from dagster_delta.table.delta_table import CommitResult
    from dagster_delta.table.operations.expectations import ObservedRows
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.slices import IfPresent, Slice
    from dagster_delta.table.transaction.transaction import AppTransaction


_IF_PRESENT: Mapping[str, IfPresent] = {
    "overwrite": "replace",
    "error": "fail",
    "ignore": "skip",
}
"""What these modes do with partitions, or a table, that are there."""

_RUN_RETENTION = "interval 90 days"
"""How long a new table remembers which runs have written it, for retries and re-executions."""


class AssetWrite(msgspec.Struct, frozen=True):
    """Everything about one write except the rows."""

    name: str
    """Of the asset, for messages."""
    uri: str
    storage_options: Mapping[str, object]
    options: AssetOptions
    within: Slice | None
    """The rows to write: of Dagster partitions, each a part with the name of its key, or those that
    the asset owns; None for all."""
    is_partitioned: bool
    """Whether `within` is made of Dagster partitions."""
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
    run: Slice | None = None
    """The Dagster partitions of the run, if it leaves some of them as they are."""
    audits: WriteAudits | None = None
    """What judges the write before its commit; None if nothing does."""

    # Storage options may hold secrets.
    def __repr__(self) -> str:
        return f"AssetWrite({self.uri!r})"

    @property
    def partitions_of_run(self) -> Slice | None:
        """The Dagster partitions of the run; None if the asset has none."""
        return (self.run or self.within) if self.is_partitioned else None

    @property
    def quarantine(self) -> Quarantine:
        """The table beside that of the asset, for rows that are left out of it."""
        owner = self.asset_key or self.name
        return Quarantine.beside(self.uri, owner, self.storage_options, self.commit_info)

    def audited(self) -> AssetWrite:
        """The write with the audits of its options."""
        options, beside = self.options, self.quarantine_of_expectations
        if not options.audits:
            return self
        rejected = RejectedRows(
            self.uri.rstrip("/") + REJECTED_SUFFIX,
            beside.quarantine.owner,
            self.storage_options,
            self.commit_info,
            beside.load.load_id,
        )
        return replace(self, audits=WriteAudits(options.audits, rejected, options.masked_columns))

    @property
    def quarantine_of_expectations(self) -> WriteQuarantine:
        """The same for the rows of this write that violate expectations."""
        return WriteQuarantine.of_write(self.quarantine, self.idempotency, self.progress)

    def narrowed(self, keys: Iterable[str]) -> AssetWrite:
        """The write of some partitions of the run."""
        assert self.within is not None  # noqa: S101  there are partitions
        return replace(self, within=self.within.narrowed(keys), run=self.partitions_of_run)


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
    observed: ObservedRows | None = None
    """How the rows met their expectations; None if there were none."""
    audit_results: tuple[AuditResult, ...] = ()
    """What the audits of the write have found."""
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
        run = write.partitions_of_run
        self._check_keys(write.name, run)
        frames = {key: frame for key, frame in self.frames.items() if frame is not None}
        if not frames:
            return nothing_written(write, f"{write.name} returned None for each partition")
        assert run is not None  # noqa: S101  it was checked
        return write_asset(write.narrowed(frames), run.rows_of(frames))

    def _check_keys(self, asset: str, run: Slice | None) -> None:
        """Make sure that there is a frame, or None, for each partition of the run."""
        if run is None:
            raise InvalidArgument(
                f"{asset} returned a dict, which is for one frame per partition key, and {asset} "
                "is not partitioned: return one frame; pyarrow.table makes one of a mapping from "
                "column to values"
            )
        keys = first_names(run.parts)
        if others := [key for key in self.frames if key not in run.parts]:
            raise InvalidArgument(
                f"{asset} returned frames for {first_names(others)}, which are not partitions of "
                f"the run: return one for each of {keys} (context.partition_keys)"
            )
        if missing := [key for key in run.parts if key not in self.frames]:
            raise InvalidArgument(
                f"{asset} returned no frame for {first_names(missing)}, of the partitions {keys} "
                "of the run: return an empty frame to have no rows in a partition, or None to "
                "leave it as it is"
            )


def write_asset(write: AssetWrite, data: object) -> WrittenAsset:
    """Write the rows of an asset as one commit, or skip it if there is nothing to write."""
    check_shared(write.options, asset=write.name)
    table = DeltaTable(write.uri, storage_options=write.storage_options, must_exist=False)
    before: Snapshot | None = None
    with suppress(TableNotFound):
        before = table.snapshot()
    # After the commit nothing may fail: a repeated run would write its rows again.
    differing = differing_properties(before, write.options.table_properties)
    write = _claim_table(write, table, before).audited()
    try:
        if write.options.mode == "merge":
            result = _merge_rows(write, table, data, creates_table=before is None)
        elif write.options.mode in ("replace_using", "replace_on"):
            result = _replace_matches(write, table, data)
        else:
            result = _append_rows(write, table, data)
    except TableAlreadyExists as error:
        error.message = (
            f"{_name_present(write)} of {write.name} exists already, and the mode is error; set "
            "the mode to overwrite or append, or to ignore to leave it as it is"
        )
        raise
    except PartitionMismatch as error:
        if write.is_partitioned:
            error.message += (
                ". Return rows of the run's partitions alone (context.partition_keys, "
                "context.partition_time_window), or name another column in partition_expr"
            )
        raise
    return _describe_result(write, result, differing)


def _claim_table(write: AssetWrite, table: DeltaTable, before: Snapshot | None) -> AssetWrite:
    """The write, after making the asset the owner of its table; a new table records it in its
    properties. A table that the write leaves as it is may belong to another asset.
    """
    options = write.options
    readers = None if options.readers is None else known_readers(options.readers)
    if before is None:
        owner = owner_of(write.asset_key, options)
        owned = {} if owner is None else {OWNER_PROPERTY: owner}
        named = {} if readers is None else {READERS_PROPERTY: ",".join(readers)}
        properties = {**options.table_properties, **named, **owned}
        config = options.merge_config or MergeConfig()
        is_cdc = options.mode == "merge" and config.merge_type is MergeType.auto_cdc
        if write.idempotency is not None and options.mode != "overwrite" and not is_cdc:
            properties.setdefault("delta.setTransactionRetentionDuration", _RUN_RETENTION)
        # A merge has nothing to change in the schema of a table that it makes of its rows.
        mode = "strict" if options.mode == "merge" else options.schema_mode
        options = dataclasses.replace(options, table_properties=properties, schema_mode=mode)
        return replace(write, options=options)
    if not _leaves_table(write, before):
        check_owner(table, before, write.asset_key, options, write.commit_info)
        recorded = list_readers(before)
        if readers is not None and options.shared_table:
            # The other assets may name others.
            readers = tuple(dict.fromkeys((*recorded, *readers)))
        if readers is not None and set(readers) != set(recorded):
            record_property(table, READERS_PROPERTY, ",".join(readers), write.commit_info)
    return write


def _leaves_table(write: AssetWrite, before: Snapshot) -> bool:
    """Whether the modes `error` and `ignore` write nothing, since all is there."""
    if write.options.mode not in ("error", "ignore") or _is_done(write, before):
        return False
    return write.within is None or write.within.present_parts(before) == write.within.parts


def _is_done(write: AssetWrite, table: Snapshot) -> bool:
    """Whether an earlier attempt of the run has written the rows."""
    return StatementOptions(idempotency=write.idempotency).found_done(table) is not None


def _append_rows(write: AssetWrite, table: DeltaTable, data: object) -> CommitResult:
    options = write.options
    return table.append(
        data,
        within=write.within,
        if_present=_IF_PRESENT.get(options.mode),
        # An overwrite is idempotent, so it needs no transaction id, and the log does not grow by
        # one per run.
        idempotency=None if options.mode == "overwrite" else write.idempotency,
        schema_mode=options.schema_mode,
        partition_by=options.partition_by,
        commit_info=write.commit_info,
        properties=options.table_properties,
        progress=write.progress,
        description=write.description,
        sort_by=options.sort_by or (),
        cluster_by=options.cluster_by,
        expectations=options.expectations,
        quarantine=write.quarantine_of_expectations,
        audit=write.audits,
    )


def _replace_matches(write: AssetWrite, table: DeltaTable, data: object) -> CommitResult:
    options = write.options
    return table.overwrite(
        data,
        within=write.within,
        replace_using=options.replace_using,
        replace_on=options.replace_on,
        expectations=options.expectations,
        quarantine=write.quarantine_of_expectations,
        audit=write.audits,
        # Rows with a null key would be added again by another attempt.
        idempotency=write.idempotency,
        schema_mode=options.schema_mode,
        partition_by=options.partition_by,
        commit_info=write.commit_info,
        properties=options.table_properties,
        progress=write.progress,
        description=write.description,
        sort_by=options.sort_by or (),
        cluster_by=options.cluster_by,
    )


def _merge_rows(
    write: AssetWrite, table: DeltaTable, data: object, *, creates_table: bool
) -> CommitResult:
    options, within = write.options, write.within
    config = options.merge_config or MergeConfig()
    check_merge(options, (), asset=write.name)
    assert options.schema_mode != "overwrite"  # noqa: S101  it was refused
    data = to_rows(data)
    columns = engine_for(data).schema_of(data)
    schema = StructType(tuple(c for c in columns if c.name not in write.control_columns))
    partition_by = options.partition_by
    if creates_table and within is not None and partition_by is None and not options.cluster_by:
        partition_by = within.key_columns(schema)
    creates = definition_of(
        schema,
        partition_by,
        options.table_properties,
        None,
        write.description,
        options.cluster_by,
    )
    if config.merge_type is MergeType.auto_cdc:
        # An event that comes again changes nothing, so no run has to be recorded for a retry, and
        # the memory of the table relies on transactions that are never forgotten.
        return table.apply_changes(
            data,
            within=within,
            commit_info=write.commit_info,
            progress=write.progress,
            expectations=options.expectations,
            quarantine=write.quarantine_of_expectations,
            audit=write.audits,
            schema_mode=options.schema_mode,
            creates=creates,
            **cdc_options(config),
        )
    builder = table.merge(
        data,
        str(config.predicate),
        source_alias=config.source_alias,
        target_alias=config.target_alias,
        within=within,
        commit_info=write.commit_info,
        idempotency=write.idempotency,
        progress=write.progress,
        expectations=options.expectations,
        quarantine=write.quarantine_of_expectations,
        audit=write.audits,
        schema_mode=options.schema_mode,
        creates=creates,
        skip_unchanged=config.skip_unchanged,
    )
    if config.merge_type is not MergeType.custom or write.control_columns:
        # Custom clauses may need columns that only the source has for their conditions.
        builder = builder.with_columns_of_table(besides=write.control_columns)
    return add_clauses(builder, config, source_columns=schema.names).execute()


def _describe_result(
    write: AssetWrite, result: CommitResult, differing: Mapping[str, tuple[str | None, str]]
) -> WrittenAsset:
    kept, within, reason = result.kept_parts, write.within, None
    if within is not None and 0 < len(kept) < len(within.parts):
        write = write.narrowed(part for part in within.parts if part not in kept)
    if result.skipped:
        # A merge has counted the rows for which it had nothing to do.
        reason = "the rows change nothing"
        if not result.metrics:
            reason = "an earlier attempt of this run has committed it"
            if write.options.mode == "ignore" and not _is_done(write, result.snapshot):
                reason = f"the mode is ignore, and {_name_present(write)} exists already"
    return WrittenAsset(
        write,
        result.snapshot,
        result.metrics,
        None if write.within is None else write.within.sql(result.snapshot.schema),
        reason,
        compacted_version=result.compacted_version,
        attempts=result.attempts,
        kept_partitions=() if result.skipped else kept,
        observed=result.observed,
        audit_results=() if write.audits is None else write.audits.results,
        warnings=tuple(_find_warnings(write, result, differing)),
    )


def _name_present(write: AssetWrite) -> str:
    return "a partition of the run" if write.is_partitioned else "the table"


def _find_warnings(
    write: AssetWrite, result: CommitResult, differing: Mapping[str, tuple[str | None, str]]
) -> Iterator[str]:
    """What an existing table does not take from the rows and the options, and what the properties
    of a new one mean for other programs.
    """
    is_new = result.version == 0 and not result.skipped
    if is_new and (
        lines := lines_about_properties(result.snapshot, write.options.table_properties)
    ):
        yield "\n".join((f"the new table of {write.name}:", *lines))
    if null := result.null_columns:
        yield (
            f"the rows of {write.name} lack columns of its table, which are null in them: "
            f"{', '.join(null)}. Return them too; columns that nobody needs any more are "
            "dropped with delta_schema_change_job, or with the schema_mode overwrite"
        )
    if (observed := result.observed) is not None and observed.num_dropped:
        yield f"{counted(observed.num_dropped, 'row')} of {write.name} dropped by its expectations"
    if observed is not None and observed.num_set_aside:
        yield (
            f"{counted(observed.num_set_aside, 'row')} of {write.name} set aside by its "
            f"expectations: see the table {write.quarantine.uri}"
        )
    if differing:
        found = ", ".join(
            f"{key} = {present or 'not set'} instead of {given}"
            for key, (present, given) in differing.items()
        )
        yield (
            f"{write.name} has its table already, and table_properties are for new "
            f"ones: the table has {found}. Set them with ALTER TABLE … SET TBLPROPERTIES, in "
            "delta_schema_change_job or DeltaTable.alter"
        )
