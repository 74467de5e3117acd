"""Rows on their way to a commit: how they are written, and what is staged beside them.

Spec: Add File and Remove File; Transaction Identifiers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from dagster_delta.engines import engine_for, is_spark_frame
from dagster_delta.engines.data_input import is_in_memory, without_made_up_types
from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import WriteResult, WriteSpec
from dagster_delta.errors import InvalidCast
from dagster_delta.protocol.actions import DomainMetadata
from dagster_delta.protocol.features.column_values import inserted_values
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.conflict_checker import adds_nullable_columns
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.sql.constraint import Constraint
from dagster_delta.sql.filters import check_repeatable, parse_filter
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.storage.unreferenced_files import CreatedFiles
from dagster_delta.table.operations.expectations import ExpectedRows
from dagster_delta.table.operations.write_planning import (
    WriteOptions,
    cast_remedy,
    plan_configuration,
    write_spec,
)
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.retries import run_with_retries
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.sql.expressions import SqlExpression
    from dagster_delta.table.slices import Slice


DYNAMIC = "dynamic"
"""`where` of an overwrite that replaces the partitions it has rows for."""


class PlannedWrite(msgspec.Struct, frozen=True):
    """A write whose rows others write than those who commit it. Picklable."""

    schema: StructType
    """Of the rows."""
    spec: WriteSpec
    """How they are written; its configuration is that of the table after the commit."""


@dataclass(slots=True)
class RowWrite:
    """One write of rows. Their files are kept for another attempt to commit them if they fit the
    newest version; otherwise rows that can be read again are written again.
    """

    store: ObjectStore
    data: Any
    options: WriteOptions
    clock: Clock
    planned: PlannedWrite | None = None
    """Set, together with `written`, where the rows are in files already: what `plan` returned for
    the same snapshot and options."""
    written: WriteResult | None = None
    transaction: Transaction = field(init=False)
    """Of the present attempt."""
    _engine: Engine | None = field(default=None, init=False)
    _data_schema: StructType | None = field(default=None, init=False)
    _configuration: TableConfiguration | None = field(default=None, init=False)
    """What the files were written for."""
    _source: Any = field(default=None, init=False)
    """The data, if they can be read again."""
    kept: tuple[str, ...] = field(default=(), init=False)
    """Parts of the slice that have rows and stay as they are, at the present attempt."""
    _is_read: bool = field(default=False, init=False)
    """Whether reading of the rows has begun, or was done by others."""
    _expected: ExpectedRows = field(init=False)

    def __post_init__(self) -> None:
        self._expected = ExpectedRows(self.options, table=self.store.location.uri)

    @property
    def engine(self) -> Engine:
        """The engine that the data or the caller chooses."""
        if self._engine is None:
            self._engine = engine_for(self.data, self.options.engine)
            if self.planned is None:
                if is_in_memory(self.data) or is_spark_frame(self.data):
                    self._source = self.data
                # Both the schema and the rows are asked for, and a lazy frame would run twice.
                self.data = self._engine.rows_of(self.data)
        return self._engine

    @property
    def data_schema(self) -> StructType:
        """The logical schema of the rows. Raises as `schema_of` of the engine does."""
        if self._data_schema is None:
            planned = self.planned
            self._data_schema = planned.schema if planned else self.engine.schema_of(self.data)
        return self._data_schema

    def plan(self, snapshot: Snapshot | None, schema: StructType) -> PlannedWrite:
        """How rows are to be written by others; nothing is written yet."""
        # A table that cannot be committed to is refused before its files are written.
        Transaction(self.store, snapshot, clock=self.clock)
        where = self.options.where
        check = [] if where is None or where == DYNAMIC else [overwrite_check(where)]
        configuration = self._planned_configuration(snapshot, schema)
        return PlannedWrite(schema, self._make_spec(configuration, schema, check))

    def run(
        self,
        attempt: Callable[[], CommitResult],
        snapshot: Snapshot | None,
        *,
        is_held: bool = False,
    ) -> CommitResult:
        """The result of the first attempt without a conflict.

        Args:
            attempt: stages the write in the transaction, and commits it.
            snapshot: version of the first attempt; None where there is no table yet.
            is_held: whether that may be older than the latest.
        """
        created = CreatedFiles(self.store)

        def attempt_on(snapshot: Snapshot | None) -> CommitResult:
            if self.written is not None:
                created.delete(keep=[decode_path(file.path) for file in self.written.files])
            self.transaction = Transaction(self.store, snapshot, clock=self.clock)
            self.transaction.created_files = created
            self._expected.prepare_commits_of(self.transaction)
            if snapshot is not None and self.options.if_present == "skip":
                self.kept = self._find_present(snapshot)
                if self._leaves_table(self.kept):
                    return CommitResult(snapshot.version, {}, snapshot, skipped=True)
            return attempt()

        self._is_read = self.written is not None
        if snapshot is not None:
            self.data = without_made_up_types(self.data, self._known_schema(snapshot))

        def may_repeat(newest: Snapshot | None) -> bool:
            present = self._find_present(newest)
            if present and (self.options.if_present == "fail" or self._leaves_table(present)):
                # No row is needed to say so.
                return True
            planned = self._planned_configuration(newest, self.data_schema)
            keeps_same = present == self.kept
            if self.written is not None and keeps_same and _files_fit(self._configuration, planned):
                return True
            if self._source is None:
                # What was read of a reader is gone.
                return not self._is_read
            rows = self.engine.rows_of(self._source)
            self.data = without_made_up_types(rows, self._known_schema(newest))
            self.written = self._data_schema = None
            created.delete()
            self._expected.forget()
            return True

        with created, self._expected.withdrawn_on_errors():
            done = run_with_retries(
                attempt_on,
                self.store,
                snapshot,
                self.options,
                may_repeat=may_repeat,
                is_held=is_held,
            )
        # Files remain only if another process has done the same write.
        created.delete()
        kept = () if self.options.within is None else self.kept
        return replace(
            done,
            kept_parts=kept,
            data_schema=self._data_schema,
            observed=None if done.skipped else self._expected.observed,
        )

    @property
    def within(self) -> Slice | None:
        """The parts of the slice to write, at the present attempt."""
        within = self.options.within
        if within is None or not self.kept:
            return within
        return within.narrowed(part for part in within.parts if part not in self.kept)

    def _find_present(self, snapshot: Snapshot | None) -> tuple[str, ...]:
        """The parts of the slice that are there, and may be neither replaced nor added to. The
        table is the part without a name.
        """
        options = self.options
        if snapshot is None or options.if_present not in ("skip", "fail"):
            return ()
        return ("",) if options.within is None else options.within.present_parts(snapshot)

    def _leaves_table(self, present: tuple[str, ...]) -> bool:
        """Whether all is there."""
        within = self.options.within
        return present == (("",) if within is None else within.parts)

    def parse_condition(self, where: str, snapshot: Snapshot, what: str) -> SqlExpression:
        """A condition on the rows of the table, which has one value for each of them."""
        moment = dt.datetime.fromtimestamp(self.clock() / 1000, dt.UTC)
        expression = parse_filter(where, snapshot.schema, moment, self.engine.time_zone)
        check_repeatable(expression, what)
        return expression

    @property
    def slice_schema(self) -> StructType:
        """The columns that the slice is made of: of the table as it is, or of the rows."""
        snapshot = self.transaction.snapshot
        return self.data_schema if snapshot is None else snapshot.schema

    def stage_configuration(self) -> TableConfiguration:
        """Stage what the write changes in protocol and metadata, and its `txn` actions."""
        self.transaction.stage_applications(self.options)
        snapshot = self.transaction.snapshot
        current = None if snapshot is None else snapshot.configuration
        # The same plan gives new columns the same ids and physical names.
        planned = self._planned_configuration(snapshot, self.data_schema)
        self._configuration = planned
        if self.options.cluster_by is not None or (
            self.options.schema_mode == "overwrite" and snapshot is not None
        ):
            planned = self._stage_clustering(planned, snapshot)
        if planned != current:
            self.transaction.stage_configuration(planned)
        return planned

    def _stage_clustering(
        self, planned: TableConfiguration, snapshot: Snapshot | None
    ) -> TableConfiguration:
        """The configuration with the clustering columns of a new table, or with those that a table
        keeps whose schema is replaced.
        """
        from dagster_delta.table.operations import clustering

        domains: Sequence[DomainMetadata] = ()
        if snapshot is None:
            columns = self.options.cluster_by or ()
            planned, domains = clustering.define_clustering(planned, columns, None)
        else:
            if self.options.cluster_by is not None:
                clustering.check_clustered_by(snapshot, self.options.cluster_by)
            if planned != snapshot.configuration:
                planned, domains = clustering.keep_clustering(snapshot, planned)
        self.transaction.stage_domain(*domains)
        return planned

    def write_rows(
        self, configuration: TableConfiguration, check: Sequence[Constraint] = ()
    ) -> WriteResult:
        """Write the rows, unless they are in files already, and stage the files."""
        if self.written is None:
            schema = self.data_schema
            spec = self._make_spec(configuration, schema, check)
            self._is_read = True
            try:
                self.written = self.engine.write(self.data, spec, store=self.store)
            except InvalidCast as error:
                error.message += cast_remedy(configuration, schema)
                raise
            self.transaction.created_files.add(
                decode_path(file.path) for file in self.written.files
            )
            self._expected.take(self.written.observed)
        self.transaction.stage_written(self.written.files)
        self.transaction.stage_high_water_marks(self.written.high_water_marks)
        return self.written

    def commit(
        self,
        configuration: TableConfiguration,
        parameters: Mapping[str, object],
        metrics: Mapping[str, int | str],
    ) -> CommitResult:
        """Commit what is staged. A conflict leaves the files of the rows for the next attempt."""
        return self.transaction.commit(
            "WRITE",
            parameters={**parameters, "partitionBy": list(configuration.partition_columns)},
            metrics={**metrics, **self._expected.metrics()},
            user_info=self._expected.commit_info(self.options.commit_info),
            keeps_files=True,
        )

    def _known_schema(self, snapshot: Snapshot | None) -> StructType:
        """The schema that the rows are for; without columns if it is to be their own."""
        if snapshot is None or self.options.schema_mode == "overwrite":
            return StructType(())
        return snapshot.schema

    def _planned_configuration(
        self, snapshot: Snapshot | None, schema: StructType
    ) -> TableConfiguration:
        options = self.options
        if snapshot is None:
            # Imported late: most writes create no table.
            from dagster_delta.table.catalog_rules import with_catalog_properties

            properties = with_catalog_properties(self.store, options.properties)
            options = replace(options, properties=properties)
        return plan_configuration(
            None if snapshot is None else snapshot.configuration,
            schema,
            options,
            now_ms=self.clock(),
            next_version=0 if snapshot is None else snapshot.version + 1,
        )

    def _make_spec(
        self, configuration: TableConfiguration, schema: StructType, check: Sequence[Constraint]
    ) -> WriteSpec:
        within, leaves_out = self.within, None
        if within is not None:
            known = self.slice_schema
            check = [*check, within.constraint(known)]
            if self.kept and self.options.within is not None:
                leaves_out = self.options.within.narrowed(self.kept).sql(known)
        return write_spec(
            configuration,
            self.store.location,
            constraints=[*check, *self.options.constraints],
            leaves_out=leaves_out,
            values=inserted_values(configuration, schema.names),
            sort_by=self.options.sort_by,
            is_exact=self.options.schema_mode == "strict",
            rules=self._expected.rules(),
        )


def _files_fit(written_for: TableConfiguration | None, planned: TableConfiguration) -> bool:
    """Whether files that were written for a configuration are right for another one: their columns
    have the same names, ids and types, and the others are null.
    """
    if written_for is None or written_for.protocol != planned.protocol:
        return False
    old, new = written_for.metadata, planned.metadata
    comparable = replace(
        new,
        schema_string=old.schema_string,
        partition_columns=old.partition_columns,
        configuration=old.configuration,
    )
    return adds_nullable_columns(comparable, new)


def overwrite_check(where: str) -> Constraint:
    """What every new row of an overwrite satisfies."""
    return Constraint("the predicate of the overwrite", where, is_partition=True)


def write_metrics(written: WriteResult) -> dict[str, int | str]:
    """The metrics of new files by the names of commitInfo."""
    return {
        "numFiles": len(written.files),
        "numOutputRows": written.num_rows,
        "numOutputBytes": written.num_bytes,
    }
