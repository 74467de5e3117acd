"""AUTO CDC: change events of a source, in any order, become the table that their order would have
made, as the newest row of each key (type 1) or as the history of each key (type 2).

Names and meaning are those of `create_auto_cdc_flow` of Apache Spark 4.3 and of Databricks. Unlike
there, events of one key and sequence that differ are refused unless the later one is to count, and
the sequence is no tracked column unless it is named.

Source: Spark Declarative Pipelines, AUTO CDC; asked of Apache Spark 4.3.0.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.engines import engine_for, universal_engine
from dagster_delta.engines.data_input import without_made_up_types
from dagster_delta.engines.statements.change_replay import (
    CHANGE_COLUMN,
    Replayed,
    ReplayPlan,
    ReplayRules,
)
from dagster_delta.engines.statements.merge_clauses import ClauseText, MergeNames
from dagster_delta.engines.statements.merge_plan import split_condition
from dagster_delta.engines.statements.unchanged_rows import equality_of_structs
from dagster_delta.errors import (
    CommitConflict,
    ConcurrentTransaction,
    SchemaMismatch,
    UnsupportedExpression,
    UnsupportedFeature,
)
from dagster_delta.protocol.features.text_limits import char_length, padded_type
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.schema import DataType, StructField, StructType, as_nullable, fold_name
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.sql.typed import TRUE, Call, Typed, quote
from dagster_delta.sql.types import BOOLEAN, sql_type_name
from dagster_delta.storage.scratch import scratch_directory
from dagster_delta.table.operations.auto_compact import adopt_write
from dagster_delta.table.operations.change_memory import ChangeMemory
from dagster_delta.table.operations.change_rules import (
    AUTO_CDC_PROPERTY,
    END_AT,
    START_AT,
    CdcOptions,
    OnEqualSequence,
    RuleBook,
)
from dagster_delta.table.operations.create import snapshot_before_creation
from dagster_delta.table.operations.expectations import ExpectedRows
from dagster_delta.table.operations.merge import PlannedMerge, read_source
from dagster_delta.table.operations.merge_statement import (
    MergeSchemaMode,
    MergeStatement,
    merged_configuration,
)
from dagster_delta.table.read.file_planner import FilePlanner, read_plan
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.retries import run_with_retries
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.engines.engine import Engine
    from dagster_delta.engines.statements.merge_plan import MergeSource
    from dagster_delta.evolution.table_definition import TableDefinition
    from dagster_delta.protocol.actions import DomainMetadata
    from dagster_delta.protocol.features.table_configuration import TableConfiguration
    from dagster_delta.storage.object_store import ObjectStore
    from dagster_delta.table.operations.expectations import Expectation, RowQuarantine
    from dagster_delta.table.slices import Slice
    from dagster_delta.table.table_handle import TableHandle
    from dagster_delta.table.transaction.commit_result import AppTransaction
    from dagster_delta.table.transaction.retries import OnConflict
    from dagster_delta.table.transaction.staged_write import AuditOfWrite


def apply_changes(
    table: TableHandle,
    /,
    rows: object,
    *,
    keys: Sequence[str],
    sequence_by: str | Sequence[str],
    stored_as_scd_type: int | str = 1,
    apply_as_deletes: str | None = None,
    apply_as_truncates: str | None = None,
    ignore_null_updates: bool = False,
    column_list: Sequence[str] | None = None,
    except_column_list: Sequence[str] | None = None,
    track_history_column_list: Sequence[str] | None = None,
    track_history_except_column_list: Sequence[str] | None = None,
    start_at: str = START_AT,
    end_at: str = END_AT,
    on_equal_sequence: OnEqualSequence = "fail",
    forget_before: str | None = None,
    from_snapshots: bool = False,
    schema_mode: MergeSchemaMode = "strict",
    creates: TableDefinition | None = None,
    commit_info: Mapping[str, object] | None = None,
    idempotency: tuple[str, int] | None = None,
    check: str | None = None,
    progress: Sequence[AppTransaction] = (),
    engine: str | None = None,
    on_conflict: OnConflict = "retry",
    memory_limit: int | str | None = None,
    within: Slice | None = None,
    expectations: Sequence[Expectation] = (),
    quarantine: RowQuarantine | None = None,
    audit: AuditOfWrite | None = None,
) -> CommitResult:
    """Apply change events as one commit, which creates the table if there is none.

    The table is the one that all events, sorted by their sequence, would have made, in whatever
    order and in however many calls they come; an event that comes again changes nothing. If
    nothing changes, there is no commit, and `skipped` is true.

    Deletes that end no row, and events that change no tracked column, may matter to an event that
    comes later. They are remembered in one table beside this one, `<table>_auto_cdc`.

    Args:
        rows: the events, in any form that an append takes.
        keys: columns that identify a row; no event has a null there. Columns of any type that can
            be compared, structs included.
        sequence_by: column that orders the events of a key: numbers, times, texts, structs; or
            Spark SQL over an event, as in `"coalesce(updated, created)"`. Several order one after
            another, as the fields of a struct, and so does `"struct(ts, n)"`. NaN is the greatest
            number.
        stored_as_scd_type: 1 keeps the newest row of each key. 2 keeps a row for each state, with
            the sequence that it begins with and the one that it ends before, which is null for
            the current row.
        apply_as_deletes: Spark SQL over an event: whether it deletes the row of its key.
        apply_as_truncates: Spark SQL over an event: whether it deletes all rows before it. It needs
            no key. Type 1 only.
        ignore_null_updates: whether a null of an event leaves the column as it is.
        column_list: columns of the events that the table has; all by default. Keys are among them.
        except_column_list: instead, columns that it does not have.
        track_history_column_list: columns whose changes begin a new row; by default all that are
            neither keys nor the sequence. The row takes the newest values of the others.
        track_history_except_column_list: instead, columns whose changes begin none.
        start_at: name of the column with the first sequence of a row.
        end_at: name of the column with the first sequence after a row.
        on_equal_sequence: what happens if two events of one key and sequence differ: `fail` refuses
            them; with `last`, the later row counts, and a later call before an earlier one.
        forget_before: Spark SQL of a sequence, as in `"TIMESTAMP '2026-01-01'"`: what is remembered
            of events before it is forgotten. An event before it that comes later is applied as
            if these had never been.
        from_snapshots: whether the rows are whole snapshots of the source, one for each sequence:
            rows that a snapshot has are inserted and updated, those that it lacks end. Snapshots
            are applied in order, and one that is older than the newest of the table is refused.
        schema_mode: as for `merge`. New columns are null in older rows.
        creates: the table to create if there is none; its columns are those of the events.
        commit_info: recorded in the commitInfo beside this library's own fields.
        idempotency: application id and version; a version that was already committed is not
            applied again.
        check: Spark SQL over the table that every inserted or updated row must satisfy.
        progress: as for `merge`.
        engine: as for `merge`.
        on_conflict: as for `merge`; the events are read once.
        memory_limit: as for `merge`.
        within: the slice of the table that its rows have to be in; it is a condition on keys.
        expectations: conditions that the events are expected to satisfy, deletes included; others
            are applied, left out or set aside, as for `append`.
        quarantine: as for `append`.
        audit: as for `append`.

    Raises:
        InvalidArgument: the arguments contradict each other or the table, or name no column.
        ConstraintViolation: an event has no key or no sequence, two events contradict each other, a
            snapshot comes too late, or a row breaks NOT NULL, an invariant or a CHECK.
        SchemaMismatch, InvalidCast: the events do not fit the table; also if the type of the
            sequence has changed.
        UnsupportedExpression: only Spark evaluates a condition, and there is no session.
        UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written.
        CommitConflict, CommitStateUnknown: the commit failed, or may have failed.
    """
    options = CdcOptions(
        keys=keys,
        sequence_by=sequence_by,
        stored_as_scd_type=stored_as_scd_type,
        apply_as_deletes=apply_as_deletes,
        apply_as_truncates=apply_as_truncates,
        ignore_null_updates=ignore_null_updates,
        column_list=column_list,
        except_column_list=except_column_list,
        track_history_column_list=track_history_column_list,
        track_history_except_column_list=track_history_except_column_list,
        start_at=start_at,
        end_at=end_at,
        on_equal_sequence=on_equal_sequence,
        forget_before=forget_before,
        from_snapshots=from_snapshots,
    )
    statement = MergeStatement(
        rows,
        "",
        commit_info=commit_info,
        idempotency=idempotency,
        check=check,
        progress=tuple(progress),
        engine=engine,
        schema_mode=schema_mode,
        on_conflict=on_conflict,
        memory_limit=memory_limit,
        creates=creates,
        within=within,
        ignored_columns=(CHANGE_COLUMN,),
        skip_unchanged=True,
        expectations=expectations,
        quarantine=quarantine,
        audit=audit,
    )
    result = apply_events(table.store, table._latest(), statement, options)
    return adopt_write(table, result, engine, rows)


def apply_events(
    store: ObjectStore, snapshot: Snapshot | None, statement: MergeStatement, options: CdcOptions
) -> CommitResult:
    """Apply events to a version of a table; without one, the same commit creates it.

    After any error but CommitStateUnknown the table is as before, and new files are deleted if the
    store allows.
    """
    started = time.perf_counter()
    if (done := statement.found_done(snapshot)) is not None:
        return done
    engine = engine_for(statement.source, statement.engine, memory_limit=statement.memory_limit)
    expected = ExpectedRows(statement, table=store.location.uri)
    with scratch_directory("changes-") as directory, expected.withdrawn_on_errors():
        known = StructType(()) if snapshot is None else snapshot.schema
        given = without_made_up_types(statement.source, known)
        source = read_source(engine, given, expected, directory, store)
        first = _Changes(engine, source, statement, options, directory, started, expected)
        before = snapshot
        if before is None:
            before, domains = first.table_before(store)
            first = replace(first, domains=domains)

        def attempt(snapshot: Snapshot) -> CommitResult:
            nonlocal first
            try:
                return first.apply_to(snapshot)
            except UnsupportedExpression:
                chosen = statement.engine is not None or first.engine.casts_values
                able = None if chosen else universal_engine(store)
                if able is None:
                    raise
                again = able.merge_source(source, directory, store=store)
                first = replace(first, engine=able, source=again)
                return first.apply_to(snapshot)

        return run_with_retries(attempt, store, before, statement)


class _Changes(msgspec.Struct, frozen=True):
    """Events that were read, and how they are applied."""

    engine: Engine
    source: MergeSource
    statement: MergeStatement
    options: CdcOptions
    directory: str
    started: float
    expected: ExpectedRows
    domains: tuple[DomainMetadata, ...] = ()
    """Of the table that is created."""

    def table_before(self, store: ObjectStore) -> tuple[Snapshot, tuple[DomainMetadata, ...]]:
        """The table that the commit is to create, and its domains."""
        rules = self._rules_for(None)
        schema = StructType(
            tuple(
                StructField(f.name, as_nullable(f.data_type), True, f.metadata) for f in rules.rows
            )
        )
        definition = self.statement.creates
        if definition is None:
            from dagster_delta.evolution.table_definition import TableDefinition

            definition = TableDefinition(schema)
        properties = {**(definition.properties or {}), AUTO_CDC_PROPERTY: self.options.recorded}
        definition = replace(definition, schema=schema, properties=properties)
        return snapshot_before_creation(store, definition)

    def apply_to(self, snapshot: Snapshot) -> CommitResult:
        """Plan the events on a version, and commit them."""
        lengths = self._padded_lengths(snapshot)
        events = self.source.padded(lengths) if lengths else self.source
        return replace(self, source=events)._apply_padded(snapshot)

    def _padded_lengths(self, snapshot: Snapshot) -> dict[str, int]:
        """The texts of the events that are CHAR(n) in the table, which is read with blanks: an
        event without them would be of another key, or begin a row.

        Raises:
            UnsupportedFeature: a column has such a text within a struct, an array or a map.
        """
        of_table = {
            fold_name(field.name): declared
            for field in snapshot.schema
            if (declared := padded_type(field)) is not None
        }
        if not of_table:
            return {}
        lengths = {}
        for name in self._rules_for(snapshot).columns.names:
            declared, field = of_table.get(fold_name(name)), self.source.schema.get(name)
            if declared is None or field is None:
                continue
            length = char_length(declared)
            if length is not None:
                lengths[field.name] = length
            else:
                raise UnsupportedFeature(
                    "change events cannot be compared with texts of the type CHAR(n) within a "
                    "column of the table; leave the column out by except_column_list, or make the "
                    "texts STRING in Spark",
                    table=snapshot.store.location.uri,
                    version=snapshot.version,
                    column=field.name,
                )
        return lengths

    def _apply_padded(self, snapshot: Snapshot) -> CommitResult:
        transaction = self._begin(snapshot)
        rules = self._rules_for(snapshot)
        memory = ChangeMemory.of(snapshot)
        self._check_sequence(rules, snapshot, memory)
        memory.check_columns(rules, snapshot.schema)
        asked = self._merge_of(rules).kept_within(snapshot.schema)
        configuration = merged_configuration(snapshot.configuration, rules.rows, asked)
        plan, reads = self._plan_replay(snapshot, rules, memory, configuration)
        replayed = self.engine.replay_changes(plan, self.directory)
        source = self.engine.merge_source(replayed.rows, self.directory, store=snapshot.store)
        merge = PlannedMerge.parse(self.engine, snapshot, asked, source, snapshot.configuration)
        record = {AUTO_CDC_PROPERTY: self.options.recorded}
        found = merge.configuration.metadata.configuration
        if found.get(AUTO_CDC_PROPERTY) != record[AUTO_CDC_PROPERTY]:
            metadata = replace(merge.configuration.metadata, configuration={**found, **record})
            recorded = replace(merge.configuration, metadata=metadata)
            merge = replace(merge, configuration=recorded)
        remembered = self._remember(replayed, memory, rules)
        merge = replace(
            merge,
            reads=reads,
            num_given_rows=plan.num_events,
            must_commit=remembered is not None,
            application=memory.unchanged() if remembered is None else remembered,
        )
        try:
            return merge.commit(transaction, self.started, self.expected)
        except ConcurrentTransaction as conflict:
            # Another run has applied events meanwhile, with which these are planned again. Whether
            # it was one of the same work shows there.
            raise CommitConflict(
                conflict.message, table=conflict.table, version=conflict.version
            ) from conflict

    def _begin(self, snapshot: Snapshot) -> Transaction:
        transaction = Transaction(snapshot.store, snapshot if snapshot.exists else None)
        if not snapshot.exists:
            transaction.stage_configuration(snapshot.configuration)
            transaction.stage_domain(*self.domains)
        transaction.check_may_remove("applying change events")
        transaction.stage_applications(self.statement)
        self.expected.prepare_commits_of(transaction)
        return transaction

    def _remember(
        self, replayed: Replayed, memory: ChangeMemory, rules: ReplayRules
    ) -> AppTransaction | None:
        """Write the memory first; what the commit of the table records of it."""
        before, rows = self.options.forget_before, replayed.memory
        if rows is None and (before is None or not memory.has_before(before)):
            return None
        return memory.remember(
            _no_rows(rules) if rows is None else rows,
            rules,
            forget_before=before,
            engine=None if rows is None else self.statement.engine,
            commit_info=self.statement.commit_info,
        )

    def _rules_for(self, snapshot: Snapshot | None) -> ReplayRules:
        """The rules on a version of the table, or for a new one."""
        given, zone = self.source.schema, self.engine.time_zone
        return RuleBook(self.options, given, self.statement, snapshot, zone).rules()

    def _check_sequence(self, rules: ReplayRules, snapshot: Snapshot, memory: ChangeMemory) -> None:
        """Refuse that the type of the sequence changes: sequences would not compare any more."""
        known = memory.sequence_type
        if rules.stored_sequence is not None:
            column = snapshot.schema.get(rules.stored_sequence)
            known = known if column is None else column.data_type
        if known is not None and as_nullable(known) != as_nullable(rules.sequence_type):
            raise SchemaMismatch(
                f"sequence_by {rules.order.name} is "
                f"{sql_type_name(rules.sequence_type)}, and the events of the table were ordered "
                f"by {sql_type_name(known)}: cast it to "
                "that type, or overwrite the table and apply all events again",
                table=snapshot.store.location.uri,
                version=snapshot.version,
                column=rules.order.name,
            )

    def _merge_of(self, rules: ReplayRules) -> MergeStatement:
        """The MERGE of the replayed rows."""
        by = [*rules.keys, *([rules.bounds[0]] if rules.keeps_history else [])]
        on = " AND ".join(_equal_columns(name, rules.rows.field(name).data_type) for name in by)
        values = {quote(name): f"s.{quote(name)}" for name in rules.rows.names}
        change = f"s.{quote(CHANGE_COLUMN)}"
        clauses = (
            ClauseText("matched", "delete", f"{change} = 'D'"),
            ClauseText("matched", "update", f"{change} = 'U'", values),
            ClauseText("not_matched", "insert", f"{change} = 'U'", values),
        )
        return replace(self.statement, on=on, clauses=clauses)

    def _plan_replay(
        self,
        snapshot: Snapshot,
        rules: ReplayRules,
        memory: ChangeMemory,
        configuration: TableConfiguration,
    ) -> tuple[ReplayPlan, ReadScope]:
        """What the engine reads, and what the commit depends on."""
        rows_only = StructType(tuple(rules.rows.field(name) for name in rules.keys))
        names = MergeNames(
            rows_only, self.source.schema, "t", "s", embedded=not self.engine.casts_values
        )
        on = " AND ".join(
            _equal_columns(name, rules.rows.field(name).data_type) for name in rules.keys
        )
        condition = split_condition(names.condition(on, "matched"))
        takes_all = self.options.from_snapshots or rules.truncates is not None
        summary = self.source.summarise(condition)
        predicate: Typed = TRUE if takes_all else Call("and", summary.keys, BOOLEAN)
        planner = FilePlanner(snapshot)
        of_table = planner.predicate_of(predicate)
        found = planner.candidates(of_table)
        of_memory = None
        if memory.content is not None:
            of = FilePlanner(memory.content)
            candidates = of.candidates(of.predicate_of(predicate))
            of_memory = read_plan(memory.content, candidates.files, None)
        plan = ReplayPlan(
            rules=rules,
            given=self.source,
            condition=condition,
            num_events=summary.num_rows,
            target=read_plan(snapshot, found.files, None, configuration),
            memory=of_memory,
            table=snapshot.store.location.uri,
            is_exact=self.statement.schema_mode == "strict",
            takes_all=takes_all,
            keys=(TRUE,) if takes_all else summary.keys,
            marks=memory.marks(),
            is_snapshot=self.options.from_snapshots,
        )
        paths = frozenset(found.files["path"].to_pylist())
        return plan, ReadScope(may_hold=planner.may_hold(of_table), paths=paths)


def _equal_columns(name: str, data_type: DataType) -> str:
    """The condition that a column, which is not null, is equal on both sides."""
    left, right = (f"{alias}.{quote(name)}" for alias in ("t", "s"))
    if isinstance(data_type, StructType):
        return equality_of_structs(left, right, data_type)
    return f"{left} = {right}"


def _no_rows(rules: ReplayRules) -> pa.Table:
    return pa.Table.from_batches([], to_arrow_schema(rules.memory))
