"""One write of rows on its way to a commit: what it stages, and what it does about conflicts.

Spec: Add File and Remove File; Transaction Identifiers; Append-only Tables.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from dagster_delta.engines import engine_for
from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import Constraint, WriteResult, WriteSpec
from dagster_delta.errors import (
    CommitConflict,
    InvalidArgument,
    InvalidCast,
    TableAlreadyExists,
    UnsupportedFeature,
)
from dagster_delta.protocol.features.column_values import inserted_values
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.conflict_checker import adds_nullable_columns
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.storage.unreferenced_files import CreatedFiles
from dagster_delta.table.operations.write_planning import (
    WriteOptions,
    cast_remedy,
    plan_configuration,
    write_spec,
)
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.committer import Conflicted
from dagster_delta.table.transaction.file_actions import file_table
from dagster_delta.table.transaction.retries import Attempts, ConflictRetries
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.sql.expressions import SqlExpression
    from dagster_delta.table.operations.overwrite import Replacement

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
    """One write on its way to a commit."""

    transaction: Transaction
    data: Any
    options: WriteOptions
    clock: Clock
    planned: PlannedWrite | None = field(default=None, init=False)
    """Set, together with `written`, where the rows are in files already."""
    written: WriteResult | None = field(default=None, init=False)
    _engine: Engine | None = field(default=None, init=False)
    _data_schema: StructType | None = field(default=None, init=False)
    _configuration: TableConfiguration | None = field(default=None, init=False)
    """What the files were written for."""
    _conflict: CommitConflict | None = field(default=None, init=False)
    """Of the attempt before this one."""

    @classmethod
    def begin(
        cls,
        store: ObjectStore,
        snapshot: Snapshot | None,
        data: object,
        options: WriteOptions,
        clock: Clock,
    ) -> RowWrite:
        """A write on top of a snapshot, None where there is no table."""
        return cls(Transaction(store, snapshot, clock=clock), data, options, clock)

    @property
    def store(self) -> ObjectStore:
        """Store of the table."""
        return self.transaction.store

    @property
    def engine(self) -> Engine:
        """The engine that the data or the caller chooses."""
        if self._engine is None:
            self._engine = engine_for(self.data, self.options.engine)
            if self.planned is None:
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

    def append(self) -> CommitResult:
        """Add the rows. Raises as `append_rows` says."""
        return self._repeat_after_conflict(self._try_append, ConflictRetries())

    def overwrite(self, where: str | None, retries: ConflictRetries) -> CommitResult:
        """Add the rows in place of others. Raises as `overwrite_rows` says."""
        return self._repeat_after_conflict(lambda: self._try_overwrite(where), retries)

    def _repeat_after_conflict(
        self, attempt: Callable[[], CommitResult | Conflicted], retries: ConflictRetries
    ) -> CommitResult:
        """The result of the first attempt without a conflict; the rows are written once."""
        attempts = Attempts(retries)
        created = self.transaction.created_files
        with created:
            while (done := self.options.record.found_done(self.transaction.snapshot)) is None:
                if self._conflict is not None and not attempts.may_repeat(type(self._conflict)):
                    raise attempts.describe(self._conflict)
                outcome = attempt()
                if not isinstance(outcome, Conflicted):
                    return attempts.counted(outcome)
                if self._conflict is None:
                    # The time for writing the rows does not count: they are not written again.
                    attempts = Attempts(retries)
                self._conflict = outcome.conflict.to_error(table=self.store.location.uri)
                self._plan_on_newest(created)
            created.delete()
            return done

    def _plan_on_newest(self, created: CreatedFiles) -> None:
        assert self.written is not None  # noqa: S101  there is no conflict before the commit
        created.delete(keep=[decode_path(file.path) for file in self.written.files])
        planned_on = self.transaction.snapshot
        newest = Snapshot.load(self.store) if planned_on is None else planned_on.update()
        self.transaction = Transaction(self.store, newest, clock=self.clock)
        self.transaction.created_files = created

    def _try_append(self) -> CommitResult | Conflicted:
        self._depend_on_absence()
        configuration = self._stage_configuration()
        written = self._write_rows(configuration)
        return self._commit(configuration, {"mode": "Append"}, metrics=_metrics(written))

    def _depend_on_absence(self) -> None:
        """Make sure that no row satisfies `absent`, and that no concurrent commit adds one."""
        where, snapshot = self.options.absent, self.transaction.snapshot
        if where is None or snapshot is None:
            return
        from dagster_delta.sql.filters import check_repeatable, parse_filter
        from dagster_delta.table.operations.row_changes import selection
        from dagster_delta.table.read.row_selection import select_rows

        moment = dt.datetime.fromtimestamp(self.clock() / 1000, dt.UTC)
        expression = parse_filter(where, snapshot.schema, moment, self.engine.time_zone)
        check_repeatable(expression, "the condition of the append")
        selected = select_rows(snapshot, expression, self.engine)
        if selected.files.num_rows:
            raise TableAlreadyExists(
                f"the table has rows for which {where} holds, and this append is for a table "
                "without any",
                table=self.store.location.uri,
                version=snapshot.version,
            )
        selects = selection(self.transaction, self.engine, expression)
        self.transaction.depend_on(selected.reads, selects=selects)

    def _try_overwrite(self, where: str | None) -> CommitResult | Conflicted:
        parameters: dict[str, object] = {"mode": "Overwrite"}
        if where == DYNAMIC:
            parameters["isDynamicPartitionOverwrite"] = True
        elif where is not None:
            parameters["predicate"] = where
        configuration = self._stage_configuration()
        metrics = self._stage_overwrite(configuration, where)
        return self._commit(configuration, parameters, metrics=metrics)

    def _stage_overwrite(
        self, configuration: TableConfiguration, where: str | None
    ) -> dict[str, int | str]:
        """Write the new rows and stage what they replace; returns the operation metrics."""
        snapshot = self.transaction.snapshot
        if where is None or where == DYNAMIC or snapshot is None:
            return self._replace_files(configuration, where)
        # Imported late, as below: an append needs none of it.
        from dagster_delta.sql.filters import check_repeatable, parse_filter
        from dagster_delta.table.operations.overwrite import replace_matching_partitions

        moment = dt.datetime.fromtimestamp(self.clock() / 1000, dt.UTC)
        expression = parse_filter(where, snapshot.schema, moment, self.engine.time_zone)
        check_repeatable(expression, "the condition of the overwrite")
        replaced = replace_matching_partitions(snapshot, expression, now_ms=self.clock())
        if replaced is None:
            return self._replace_rows(configuration, expression)
        self._refuse_removal(replaced.removes)
        written = self._write_rows(configuration, [overwrite_check(expression.sql)])
        return self._stage_replacement(replaced, written)

    def _replace_files(
        self, configuration: TableConfiguration, where: str | None
    ) -> dict[str, int | str]:
        """All files, or those of the partitions that are written; none where there is no table."""
        from dagster_delta.table.operations.overwrite import (
            Replacement,
            replace_everything,
            replace_partitions,
        )

        snapshot = self.transaction.snapshot
        if where == DYNAMIC:
            if not configuration.partition_columns:
                raise InvalidArgument(
                    'where="dynamic" replaces partitions, and the table has none; leave it out to '
                    "replace all rows",
                    table=self.store.location.uri,
                )
            written = self._write_rows(configuration)
            replaced = Replacement()
            if snapshot is not None:
                replaced = replace_partitions(snapshot, written.files, now_ms=self.clock())
                self._refuse_removal(replaced.removes)
            return self._stage_replacement(replaced, written)
        replaced = Replacement()
        if snapshot is not None:
            replaced = replace_everything(snapshot, now_ms=self.clock())
            self._refuse_removal(replaced.removes)
        check = [] if where is None else [overwrite_check(where)]
        return self._stage_replacement(replaced, self._write_rows(configuration, check))

    def _stage_replacement(
        self, replaced: Replacement, written: WriteResult
    ) -> dict[str, int | str]:
        self.transaction.depend_on(replaced.reads)
        self.transaction.stage_removed(replaced.removes)
        return _metrics(written) | {
            "numRemovedFiles": len(replaced.removes),
            "numRemovedBytes": sum(remove.size_bytes or 0 for remove in replaced.removes),
        }

    def _replace_rows(
        self, configuration: TableConfiguration, expression: SqlExpression
    ) -> dict[str, int | str]:
        from dagster_delta.table.operations.row_changes import change_rows, selection
        from dagster_delta.table.read.row_selection import read_plan, select_rows

        snapshot, transaction, engine = self.transaction.snapshot, self.transaction, self.engine
        assert snapshot is not None  # noqa: S101  the caller looked
        selected = select_rows(snapshot, expression, engine)
        self._refuse_removal(selected.files["path"])
        written = self._write_rows(configuration, [overwrite_check(expression.sql)])
        if not selected.files.num_rows:
            transaction.depend_on(selected.reads)
            return _metrics(written) | {"numRemovedFiles": 0, "numRemovedBytes": 0}
        counts = change_rows(
            transaction, selected, engine, selects=selection(transaction, engine, expression)
        )
        if counts.num_change_files:
            # As soon as a commit has change data files, they alone are the feed.
            plan = read_plan(snapshot, file_table(written.files), None, configuration)
            spec = write_spec(configuration, self.store.location, check_rows=False)
            transaction.stage_change_files(engine.record_inserts(plan, spec))
        copied = {"numCopiedRows": counts.num_copied_rows} if counts.num_copied_rows else {}
        return _metrics(written) | {
            "numRemovedFiles": counts.num_removed_files,
            "numRemovedBytes": counts.num_removed_bytes,
            **copied,
        }

    def _refuse_removal(self, removed: Sized) -> None:
        snapshot = self.transaction.snapshot
        if len(removed) and snapshot is not None and snapshot.configuration.append_only:
            raise UnsupportedFeature(
                "the table is append-only (delta.appendOnly), and this overwrite would remove "
                "rows; append instead, or unset the property first",
                table=self.store.location.uri,
                version=snapshot.version,
            )

    def plan_configuration(self, schema: StructType) -> TableConfiguration:
        """Protocol and metadata after the commit, for rows of a schema."""
        snapshot = self.transaction.snapshot
        return plan_configuration(
            None if snapshot is None else snapshot.configuration,
            schema,
            self.options,
            now_ms=self.clock(),
            next_version=0 if snapshot is None else snapshot.version + 1,
        )

    def spec(
        self, configuration: TableConfiguration, schema: StructType, check: Sequence[Constraint]
    ) -> WriteSpec:
        """How rows of a schema become data files."""
        constraints = list(check)
        if self.options.check is not None:
            constraints.append(Constraint("check", self.options.check, is_partition=True))
        return write_spec(
            configuration,
            self.store.location,
            constraints=constraints,
            values=inserted_values(configuration, schema.names),
            sort_by=self.options.sort_by,
            is_exact=self.options.schema_mode == "strict",
        )

    def _stage_configuration(self) -> TableConfiguration:
        for progress in self.options.progress:
            self.transaction.advance_application(progress)
        snapshot = self.transaction.snapshot
        current = None if snapshot is None else snapshot.configuration
        # The same plan gives new columns the same ids and physical names.
        planned = self.plan_configuration(self.data_schema)
        if self._conflict is not None and not _files_fit(self._configuration, planned):
            raise self._conflict
        self._configuration = planned
        if self.options.cluster_by is not None:
            planned = self._stage_clustering(planned, self.options.cluster_by)
        if planned != current:
            if snapshot is not None and self.options.schema_mode == "overwrite":
                planned = self._keep_clustering(snapshot, planned)
            self.transaction.stage_configuration(planned)
        return planned

    def _stage_clustering(
        self, planned: TableConfiguration, columns: Sequence[str]
    ) -> TableConfiguration:
        """The configuration with these clustering columns, where the write creates the table."""
        from dagster_delta.table.operations.clustering import check_clustered_by, define_clustering

        if self.transaction.snapshot is not None:
            check_clustered_by(self.transaction.snapshot, columns)
            return planned
        planned, domains = define_clustering(planned, columns, None)
        for domain in domains:
            self.transaction.stage_domain(domain)
        return planned

    def _keep_clustering(
        self, snapshot: Snapshot, planned: TableConfiguration
    ) -> TableConfiguration:
        """The configuration under which a table stays clustered whose schema is replaced."""
        if not planned.supports("clustering"):
            return planned
        from dagster_delta.table.operations.clustering import keep_clustering

        planned, domain = keep_clustering(snapshot, planned)
        if domain is not None:
            self.transaction.stage_domain(domain)
        return planned

    def _write_rows(
        self, configuration: TableConfiguration, check: Sequence[Constraint] = ()
    ) -> WriteResult:
        if self.written is None:
            self.written = self._write_data(configuration, check)
        written = self.written
        self.transaction.stage_written(written.files)
        self.transaction.stage_high_water_marks(written.high_water_marks)
        return written

    def _write_data(
        self, configuration: TableConfiguration, check: Sequence[Constraint]
    ) -> WriteResult:
        schema = self.data_schema
        spec = self.spec(configuration, schema, check)
        try:
            return self.engine.write(self.data, spec, store=self.store)
        except InvalidCast as error:
            error.message += cast_remedy(configuration, schema)
            raise

    def _commit(
        self,
        configuration: TableConfiguration,
        parameters: dict[str, object],
        *,
        metrics: dict[str, int | str],
    ) -> CommitResult | Conflicted:
        parameters["partitionBy"] = list(configuration.partition_columns)
        if self.options.idempotency is not None:
            self.transaction.record_application(*self.options.idempotency)
        return self.transaction.try_commit(
            "WRITE", parameters=parameters, metrics=metrics, user_info=self.options.commit_info
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


def _metrics(written: WriteResult) -> dict[str, int | str]:
    return {
        "numFiles": len(written.files),
        "numOutputRows": written.num_rows,
        "numOutputBytes": written.num_bytes,
    }
