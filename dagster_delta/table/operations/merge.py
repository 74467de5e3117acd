"""MERGE as one commit: pruned by the log, joined on the keys, written only where rows change.

The part of the table that it reads and depends on, and the columns that it adds, are decided from
the log alone.

Spec: Add File and Remove File; Deletion Vectors; Add CDC File; Per-file Statistics; Transaction
Identifiers; Type Widening (writer requirements).
"""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Self

import msgspec
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.engines import engine_for, universal_engine
from dagster_delta.engines.data_input import without_made_up_types
from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import RewriteResult
from dagster_delta.engines.statements.merge_clauses import (
    SOURCE,
    ClauseKind,
    ClauseText,
    MergeClause,
    MergeNames,
    parse_clauses,
)
from dagster_delta.engines.statements.merge_plan import (
    MergeCondition,
    MergedRows,
    MergePlan,
    MergeSource,
    SourceSummary,
    compared_lengths,
    in_table,
    padding_readers,
    split_condition,
)
from dagster_delta.engines.statements.unchanged_rows import UnchangedRows
from dagster_delta.errors import InvalidArgument, SchemaMismatch, UnsupportedExpression
from dagster_delta.evolution.merge_schema import diff_schemas
from dagster_delta.evolution.table_definition import TableDefinition
from dagster_delta.protocol.actions import AddFile, DomainMetadata
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.text_limits import char_paths
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.schema import (
    StructType,
)
from dagster_delta.protocol.schema_compatibility import find_incompatibility
from dagster_delta.protocol.statistics.bloom_filters import with_filters
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.sql.filters import refuse_quoted_columns
from dagster_delta.sql.typed import TRUE, Call, Column, Typed
from dagster_delta.sql.types import BOOLEAN
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.storage.scratch import scratch_directory
from dagster_delta.table.operations.auto_compact import adopt_write
from dagster_delta.table.operations.change_rows import change_rows
from dagster_delta.table.operations.create import snapshot_before_creation
from dagster_delta.table.operations.expectations import ExpectedRows
from dagster_delta.table.operations.merge_statement import (
    MergeSchemaMode,
    MergeStatement,
    merged_configuration,
)
from dagster_delta.table.operations.write_planning import (
    write_spec,
)
from dagster_delta.table.read.file_planner import FilePlanner, SelectedRows, read_plan
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.retries import run_with_retries
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.table.operations.expectations import Expectation, RowQuarantine
    from dagster_delta.table.slices import Slice
    from dagster_delta.table.table_handle import TableHandle
    from dagster_delta.table.transaction.commit_result import AppTransaction
    from dagster_delta.table.transaction.retries import OnConflict
    from dagster_delta.table.transaction.staged_write import AuditOfWrite

_TARGET_KINDS = ("matched", "not_matched_by_source")
"""Kinds of clauses that change rows of the table."""


def merge(
    table: TableHandle,
    /,
    source: object,
    on: str,
    *,
    source_alias: str = "s",
    target_alias: str = "t",
    commit_info: Mapping[str, object] | None = None,
    idempotency: tuple[str, int] | None = None,
    check: str | None = None,
    progress: Sequence[AppTransaction] = (),
    engine: str | None = None,
    schema_mode: MergeSchemaMode = "strict",
    on_conflict: OnConflict = "retry",
    memory_limit: int | str | None = None,
    creates: TableDefinition | None = None,
    within: Slice | None = None,
    skip_unchanged: bool = False,
    expectations: Sequence[Expectation] = (),
    quarantine: RowQuarantine | None = None,
    audit: AuditOfWrite | None = None,
) -> MergeBuilder:
    """Merge a source into the table: add clauses, then call `execute`.

    Only files that may hold a match are read, by partition values and statistics, and of them
    only the columns of the conditions; unchanged rows are rewritten only if the table has no
    deletion vectors.

    Args:
        source: pyarrow Table, RecordBatchReader or Dataset, pandas or polars frame, Spark
            DataFrame.
        on: Spark SQL condition for a row of the table and a row of the source to match, as in
            `"t.id = s.id"`. With `=` a null equals nothing; with `<=>` null equals null.
        source_alias: name of the source in expressions.
        target_alias: name of the table in expressions.
        commit_info: recorded in the commitInfo beside this library's own fields.
        idempotency: application id and version; a version that was already committed is not
            merged again.
        check: Spark SQL over the table that every inserted or updated row must satisfy.
        progress: `txn` actions to record with this commit, each only if the application's
            version in the table is the expected one; with any of them there is a commit even if
            no row changes.
        engine: `arrow` or `spark`; by default Spark for its own frames, or if only Spark
            evaluates the SQL exactly and a session is active.
        schema_mode: `strict`: only the table's columns, other columns of the source are
            ignored; `widen`: likewise, and columns that clauses take from the source get its
            wider types if the table has `delta.enableTypeWidening`, and other values are cast as
            Spark does: 1.5 to 1; `merge`: columns that clauses
            take from the source, by name or all of them, are added as well. With `widen` and
            `merge`, the source may lack columns, which do not change.
        on_conflict: as for `delete`; the source is read once.
        memory_limit: as for `optimize`: a larger source, and a larger join, go to temporary
            files. The embedded engine keeps 24 bytes per row that changes besides.
        creates: the table that the same commit creates if there is none; its columns are those
            of the source.
        within: the slice of the table that the merge keeps to: rows outside of it neither match
            nor change, and every inserted or updated row has to be in it.
        skip_unchanged: whether rows are left as they are, and are not counted as updated, if all
            new values of an update equal the old ones. Null equals null, NaN equals NaN, and -0.0
            equals 0.0. Clauses that set a map or a variant, or compute another value in each
            call, update all their rows.
        expectations: conditions that the rows of the source are expected to satisfy; others are
            merged, left out or set aside, as for `append`.
        quarantine: as for `append`.
        audit: as for `append`.

    Raises:
        InvalidArgument: an option is invalid; `MergeBuilder.execute` raises other errors.
    """
    statement = MergeStatement(
        source,
        on,
        target_alias,
        source_alias,
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
        skip_unchanged=skip_unchanged,
        expectations=expectations,
        quarantine=quarantine,
        audit=audit,
    )

    def run(statement: MergeStatement) -> CommitResult:
        base = table._existing() if creates is None else table._latest()
        return adopt_write(table, merge_rows(table.store, base, statement), engine, source)

    return MergeBuilder(statement, run)


class MergeBuilder:
    """Collects the clauses of a MERGE; `execute` runs it. Created by `DeltaTable.merge`.

    The first `when_matched` clause whose condition is true applies to a row of the table that
    matches a row of the source. The first such `when_not_matched_by_source` clause applies to a row
    of the table without a match. The first such `when_not_matched` clause inserts a row of the
    source without a match. If no clause applies, the row is unchanged, or not inserted. Conditions
    and values are Spark SQL, and the value `DEFAULT` is the column's default, or null.
    """

    def __init__(
        self, statement: MergeStatement, run: Callable[[MergeStatement], CommitResult]
    ) -> None:
        self._statement = statement
        self._run = run

    def when_matched_update(
        self,
        set: Mapping[str, str],  # noqa: A002  as SQL calls it
        condition: str | None = None,
    ) -> Self:
        """Give matched rows new values: Spark SQL by column, over both sides."""
        return self._add_clause("matched", "update", condition, set)

    def when_matched_update_all(self, condition: str | None = None) -> Self:
        """Give matched rows the values of the source, which must have every column of the table. If
        the merge may change the schema, only columns of the source are set, and new ones are added.
        """
        return self._add_clause("matched", "update", condition)

    def when_matched_delete(self, condition: str | None = None) -> Self:
        """Remove matched rows."""
        return self._add_clause("matched", "delete", condition)

    def when_not_matched_insert(
        self, values: Mapping[str, str], condition: str | None = None
    ) -> Self:
        """Insert rows of the source without a match: Spark SQL by column, over the source; other
        columns get their default, a generated or identity value, or null.
        """
        return self._add_clause("not_matched", "insert", condition, values)

    def when_not_matched_insert_all(self, condition: str | None = None) -> Self:
        """Insert rows of the source without a match: every column of the table except those that
        are filled automatically. If the merge may change the schema, every column of the source,
        and new ones are added to the table.
        """
        return self._add_clause("not_matched", "insert", condition)

    def when_not_matched_by_source_update(
        self,
        set: Mapping[str, str],  # noqa: A002  as SQL calls it
        condition: str | None = None,
    ) -> Self:
        """Change rows without a match in the source: Spark SQL by column, over the table."""
        return self._add_clause("not_matched_by_source", "update", condition, set)

    def when_not_matched_by_source_delete(self, condition: str | None = None) -> Self:
        """Remove rows without a match in the source."""
        return self._add_clause("not_matched_by_source", "delete", condition)

    def add(self, clause: ClauseText) -> Self:
        """Add one clause, for callers that build clauses themselves."""
        self._statement = replace(self._statement, clauses=(*self._statement.clauses, clause))
        return self

    def with_columns_of_table(self, *, besides: Collection[str] = ()) -> Self:
        """Refuse columns of the source, besides some, that neither the table has nor the merge adds
        to it. MERGE ignores them.
        """
        self._statement = replace(self._statement, ignored_columns=besides)
        return self

    def with_unique_keys(self) -> Self:
        """Refuse several new rows of one key. MERGE inserts them all, and the next one fails."""
        self._statement = replace(self._statement, unique_keys=True)
        return self

    def execute(self) -> CommitResult:
        """Run the MERGE as one commit. If nothing changes, there is no commit, and `skipped` is
        true.

        Raises:
            ConstraintViolation: several rows of the source would change one row of the table (only
                a single `when_matched_delete` without a condition allows that), or a new row
                breaks NOT NULL, an invariant or a CHECK.
            InvalidCast: a new value does not fit the type of its column.
            SchemaMismatch: a column is not in the schema; or, for an `_all` clause, the source
                lacks a column of the table.
            InvalidArgument: there is no clause, a clause can never apply, or an expression is
                ambiguous or fails on a value.
            UnsupportedExpression: the embedded engine cannot evaluate an expression exactly as
                Spark would, and there is no Spark session.
            UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written, or is
                append-only.
            TableNotFound: the table does not exist.
            CommitConflict, CommitStateUnknown: the commit failed, or may have failed.
        """
        return self._run(self._statement)

    def _add_clause(
        self,
        kind: ClauseKind,
        action: Literal["update", "delete", "insert"],
        condition: str | None,
        values: Mapping[str, str] | None = None,
    ) -> Self:
        return self.add(ClauseText(kind, action, condition, values))


def merge_rows(
    store: ObjectStore, snapshot: Snapshot | None, statement: MergeStatement
) -> CommitResult:
    """Change, remove and add rows of a table according to a source.

    Without a `snapshot`, the same commit creates the table.

    After any error but CommitStateUnknown nothing was committed, and new files are deleted if the
    store allows.
    """
    started = time.perf_counter()
    domains: tuple[DomainMetadata, ...] = ()
    if snapshot is None:
        assert statement.creates is not None  # noqa: S101  the caller checked
        snapshot, domains = snapshot_before_creation(store, statement.creates)
    _begin_transaction(snapshot, statement)
    if (done := statement.found_done(snapshot)) is not None:
        return done
    engine = engine_for(statement.source, statement.engine, memory_limit=statement.memory_limit)
    expected = ExpectedRows(statement, table=store.location.uri)
    with scratch_directory("merge-") as directory, expected.withdrawn_on_errors():
        # Read once for all attempts, because a stream or a query may return other rows next time.
        rows = without_made_up_types(statement.source, snapshot.schema)
        source = read_source(engine, rows, expected, directory, store)
        began = snapshot

        def merge(snapshot: Snapshot) -> CommitResult:
            nonlocal engine, source
            transaction = _begin_transaction(snapshot, statement)
            expected.prepare_commits_of(transaction)
            if not snapshot.exists:
                transaction.stage_domain(*domains)
            elif not began.exists:
                _check_columns(snapshot, began.schema)
            transaction.stage_applications(statement)
            asked = statement.kept_within(snapshot.schema)
            try:
                merge = PlannedMerge.parse(engine, snapshot, asked, source, began.configuration)
            except UnsupportedExpression:
                chosen = statement.engine is not None or engine.casts_values
                able = None if chosen else universal_engine(store)
                if able is None:
                    raise
                engine, source = able, able.merge_source(source, directory, store=store)
                merge = PlannedMerge.parse(engine, snapshot, asked, source, began.configuration)
            return merge.commit(transaction, started, expected)

        return run_with_retries(merge, store, snapshot, statement)


def read_source(
    engine: Engine, rows: object, expected: ExpectedRows, directory: str, store: ObjectStore
) -> MergeSource:
    """The source of a statement, without the rows that its expectations leave out.

    Raises ExpectationFailed if that fails the statement, and as `Engine.merge_source` does.
    """
    rules = expected.rules()
    if rules is None:
        return engine.merge_source(rows, directory, store=store)
    with engine.expect_rows(rows, rules, store=store) as given:
        source = engine.merge_source(given.rows, directory, store=store)
        observed = given.finish()
    expected.take(observed)
    return source


def stage_merge(
    transaction: Transaction,
    statement: MergeStatement,
    source: MergeSource,
    configuration: TableConfiguration,
    engine: Engine,
) -> tuple[MergedRows, Mapping[str, int]]:
    """Stage the rows of a MERGE beside other rows, for a statement that commits both.

    `configuration` is that of the table after the commit, which already is staged.
    """
    snapshot = transaction.snapshot
    assert snapshot is not None  # noqa: S101  there is a table to merge into
    asked = statement.kept_within(snapshot.schema)
    merge = PlannedMerge.parse(engine, snapshot, asked, source, snapshot.configuration)
    merge = replace(merge, configuration=configuration)
    return merge.stage_rows(transaction, merge.source.summarise(merge.condition))


def _begin_transaction(snapshot: Snapshot, statement: MergeStatement) -> Transaction:
    if snapshot.exists:
        transaction = Transaction(snapshot.store, snapshot)
    else:
        transaction = Transaction(snapshot.store, None)
        transaction.stage_configuration(snapshot.configuration)
    if any(clause.action != "insert" for clause in statement.clauses):
        transaction.check_may_remove("this MERGE")
    return transaction


def _check_columns(created: Snapshot, planned: StructType) -> None:
    """Check that the table that another writer created first has the columns of this one."""
    if diff := diff_schemas(created.schema, planned):
        raise SchemaMismatch(
            "another writer created the table with other columns while this merge was to create "
            f"it; repeat the merge with its columns:\n{diff}",
            table=created.store.location.uri,
            version=created.version,
        )


class PlannedMerge(msgspec.Struct, frozen=True):
    """A MERGE that is planned on a version."""

    engine: Engine
    snapshot: Snapshot
    statement: MergeStatement
    """With the current time replaced by its value."""
    source: MergeSource
    configuration: TableConfiguration
    """Configuration of the table after the commit."""
    names: MergeNames
    clauses: tuple[MergeClause, ...]
    condition: MergeCondition
    reads: ReadScope | None = None
    """What the rows of the source were computed from, beside the rows that they match."""
    num_given_rows: int | None = None
    """Rows that the caller gave, if the rows of the source were computed from them."""
    application: AppTransaction | None = None
    """The `txn` action to record besides, if there is a commit."""
    must_commit: bool = False
    """Whether there is a commit even if no row changes."""

    @classmethod
    def parse(
        cls,
        engine: Engine,
        snapshot: Snapshot,
        statement: MergeStatement,
        source: MergeSource,
        began: TableConfiguration,
    ) -> PlannedMerge:
        """Resolve the names, and plan the new schema of the table.

        `began` is the configuration of the table at the first attempt. A column that others have
        added since then, and that the source lacks, is none of those that `UPDATE SET *` and
        `INSERT *` mean.
        """
        configuration = merged_configuration(snapshot.configuration, source.schema, statement)
        names = _make_names(engine, snapshot, source.schema, statement, configuration)
        statement = statement.at_moment(names.scope("matched"), dt.datetime.now(dt.UTC))
        if lengths := compared_lengths(_list_conditions(statement, names)):
            source = source.padded(lengths)
            names = _make_names(engine, snapshot, source.schema, statement, configuration)
        added = set(configuration.schema.names).difference(began.schema.names)
        is_extended = added and find_incompatibility(began, configuration) is None
        clauses = parse_clauses(
            statement.clauses,
            names,
            configuration,
            evolves=statement.evolves,
            new_columns=added if is_extended else (),
        )
        _check_padded(statement, clauses, names, lengths)
        on = names.condition(statement.on, "matched")
        conditions = (clause.condition for clause in clauses if clause.condition is not None)
        for expression in (on, *conditions):
            for schema in (snapshot.schema, source.schema):
                refuse_quoted_columns(expression, schema)
        condition = split_condition(on)
        if not snapshot.exists:
            keys = (key.target for key in condition.keys)
            columns = [
                key.path[1] for key in keys if isinstance(key, Column) and len(key.path) == 2
            ]
            configuration = with_filters(configuration, columns)
        return cls(engine, snapshot, statement, source, configuration, names, clauses, condition)

    def commit(
        self, transaction: Transaction, started: float, expected: ExpectedRows
    ) -> CommitResult:
        """Carry it out as one commit."""
        if self.configuration is not self.snapshot.configuration:
            transaction.stage_configuration(self.configuration)
        source = self.source.summarise(self.condition)
        merged, counts = self.stage_rows(transaction, source)
        now = time.perf_counter()
        given = self.num_given_rows
        metrics = {
            "numSourceRows": source.num_rows if given is None else given,
            **self._make_metrics(merged, counts),
            "materializeSourceTimeMs": round((source.materialized - started) * 1000),
            "scanTimeMs": round((merged.scanned - source.materialized) * 1000),
            "rewriteTimeMs": round((now - merged.scanned) * 1000),
            "executionTimeMs": round((now - started) * 1000),
            **expected.metrics(),
        }
        changes_rows = merged.num_inserted_rows or any(merged.num_changed_rows.values())
        is_needed = self.must_commit or not self.statement.records_nothing
        if not changes_rows and not is_needed and self.snapshot.exists:
            # As in the reference implementation, a MERGE without changes makes no version.
            expected.commit_rows_aside()
            version, observed = self.snapshot.version, expected.observed
            return CommitResult(version, metrics, self.snapshot, skipped=True, observed=observed)
        if self.application is not None:
            transaction.advance_application(self.application)
        done = transaction.commit(
            "MERGE",
            parameters=self.statement.parameters,
            metrics=metrics,
            user_info=expected.commit_info(self.statement.commit_info),
        )
        return replace(done, observed=expected.observed)

    def stage_rows(
        self, transaction: Transaction, source: SourceSummary
    ) -> tuple[MergedRows, Mapping[str, int]]:
        """Write what the merge writes, and stage it; with the counts of `change_rows`."""
        plan, may_hold = self._plan_merge(source)
        merged = self.engine.merge(plan)
        read = plan.target.files
        files = pc.filter(read, pc.is_in(read["path"], string_column(list(merged.rows))))
        with transaction.created_files:
            reads = self.reads
            if reads is None:
                reads = ReadScope(may_hold=may_hold, paths=frozenset(merged.used_paths))
            selected = SelectedRows(files, merged.rows, reads)
            return merged, self._stage_changes(transaction, merged, selected)

    def _stage_changes(
        self, transaction: Transaction, merged: MergedRows, selected: SelectedRows
    ) -> Mapping[str, int]:
        transaction.stage_written(merged.files)
        transaction.stage_change_files(merged.change_files)
        transaction.stage_high_water_marks(merged.high_water_marks)
        transaction.depend_on(selected.reads)
        transaction.declare_row_ids_kept()
        if not selected.files.num_rows:
            return Counter()
        return change_rows(
            transaction,
            selected,
            self.engine,
            written=RewriteResult((), (), 0, merged.num_copied_rows),
            # Rows added by a concurrent commit that may match, by their statistics, are not
            # compared with the source again.
            selects=bool if self.reads is None and _changes_all_matches(self.clauses) else None,
        )

    def _make_metrics(self, merged: MergedRows, counts: Mapping[str, int]) -> dict[str, int | str]:
        changed = Counter[tuple[str, str]]()
        for number, num_rows in merged.num_changed_rows.items():
            clause = self.clauses[number].text
            changed[clause.kind, clause.action] += num_rows
        updated, deleted = (
            sum(changed[kind, action] for kind in _TARGET_KINDS) for action in ("update", "delete")
        )
        unmatched = "not_matched_by_source"
        return {
            "numTargetRowsInserted": merged.num_inserted_rows,
            "numTargetRowsUpdated": updated,
            "numTargetRowsDeleted": deleted,
            "numTargetRowsMatchedUpdated": changed["matched", "update"],
            "numTargetRowsMatchedDeleted": changed["matched", "delete"],
            "numTargetRowsNotMatchedBySourceUpdated": changed[unmatched, "update"],
            "numTargetRowsNotMatchedBySourceDeleted": changed[unmatched, "delete"],
            "numTargetRowsCopied": counts["numCopiedRows"],
            "numOutputRows": merged.num_inserted_rows + updated + counts["numCopiedRows"],
            "numTargetFilesAdded": counts["numAddedFiles"] + len(merged.files),
            "numTargetBytesAdded": counts["numAddedBytes"]
            + sum(file.size_bytes for file in merged.files),
            "numTargetFilesRemoved": counts["numRemovedFiles"],
            "numTargetBytesRemoved": counts["numRemovedBytes"],
            "numTargetChangeFilesAdded": len(merged.change_files),
            "numTargetChangeFileBytes": sum(file.size_bytes for file in merged.change_files),
            "numTargetDeletionVectorsAdded": counts["numDeletionVectorsAdded"],
            "numTargetDeletionVectorsUpdated": counts["numDeletionVectorsUpdated"],
            "numTargetDeletionVectorsRemoved": counts["numDeletionVectorsRemoved"],
        }

    def _find_unchanged(self) -> dict[int, UnchangedRows]:
        """The rows that each clause would leave as they are, if these are not updated."""
        if not self.statement.skip_unchanged:
            return {}
        found = (UnchangedRows.of(clause, self.names) for clause in self.clauses)
        return {index: test for index, test in enumerate(found) if test is not None}

    def _plan_merge(
        self, source: SourceSummary
    ) -> tuple[MergePlan, Callable[[Sequence[AddFile]], Sequence[AddFile]]]:
        """What the engine does with the files that may hold a row that matches or changes
        otherwise, and those of some files that another commit adds that may hold one.
        """
        planner = FilePlanner(self.snapshot)
        target_only = map(in_table, self.condition.target_only)
        matching = Call("and", (*target_only, *source.keys), BOOLEAN)
        conditions = (
            TRUE if clause.condition is None else in_table(clause.condition)
            for clause in self.clauses
            if clause.text.kind == "not_matched_by_source"
        )
        lacking = Call("or", tuple(conditions), BOOLEAN)
        predicates = planner.predicate_of(matching), planner.predicate_of(lacking)
        found = planner.candidates(*predicates)
        may_match, may_lack_source = (result.may_match for result in found.skipped)
        configuration, location = self.configuration, self.snapshot.store.location
        within, constraints = self.statement.within, self.statement.constraints
        if within is not None:
            constraints = [*constraints, within.constraint(self.snapshot.schema)]
        spec = write_spec(configuration, location, constraints=constraints)
        is_recorded = configuration.change_data_feed_enabled
        plan = MergePlan(
            source=self.source,
            num_source_rows=source.num_rows,
            names=self.names,
            on=self.statement.on,
            condition=self.condition,
            clauses=self.clauses,
            target=read_plan(self.snapshot, found.files, None, configuration),
            may_match=may_match,
            may_lack_source=may_lack_source,
            data=spec,
            change_data=replace(spec, constraints=()) if is_recorded else None,
            unique_keys=self.statement.unique_keys,
            unchanged=self._find_unchanged(),
        )
        return plan, planner.may_hold(*predicates)


def _make_names(
    engine: Engine,
    snapshot: Snapshot,
    source: StructType,
    statement: MergeStatement,
    configuration: TableConfiguration,
) -> MergeNames:
    return MergeNames(
        snapshot.schema,
        source,
        statement.target_alias,
        statement.source_alias,
        assigned=configuration.schema,
        embedded=not engine.casts_values,
        zone=engine.time_zone,
    )


def _list_conditions(statement: MergeStatement, names: MergeNames) -> Iterator[Typed]:
    yield names.condition(statement.on, "matched")
    for clause in statement.clauses:
        if clause.condition is not None:
            yield names.condition(clause.condition, clause.kind)


def _check_padded(
    statement: MergeStatement,
    clauses: Iterable[MergeClause],
    names: MergeNames,
    lengths: Mapping[str, int],
) -> None:
    """Refuse to compute with a text that was padded for a comparison, and to store it in a column
    that is not a CHAR(n): the padding would be a part of the result.
    """
    char = char_paths(names.assigned)
    for condition in _list_conditions(statement, names) if lengths else ():
        for column in padding_readers(condition):
            if column.path[0] == SOURCE and column.path[1:] in {(name,) for name in lengths}:
                raise _padded_text(column.path[-1], "a condition computes with it")
    for clause in clauses if lengths else ():
        for assignment in clause.assignments:
            typed = assignment.value.typed
            if isinstance(typed, Column) and assignment.column in char:
                continue
            for column in padding_readers(typed):
                if column.path[-1] in lengths and names.is_of_source(column.path, clause.text.kind):
                    target = ".".join(assignment.column)
                    raise _padded_text(column.path[-1], f"the new value of {target} is made of it")


def _padded_text(name: str, use: str) -> InvalidArgument:
    return InvalidArgument(
        f"column {name} of the source is compared with a CHAR(n) column, which pads it, and {use}: "
        f"write rtrim(s.{name}) there, with the alias of your source",
        column=name,
    )


def _changes_all_matches(clauses: Sequence[MergeClause]) -> bool:
    """Whether every row that decides the result of the MERGE is also changed by it: a row of the
    source is not inserted if a row of the table matches, even if that row is unchanged.
    """
    if not any(clause.text.kind == "not_matched" for clause in clauses):
        return True
    return any(clause.text.kind == "matched" and clause.condition is None for clause in clauses)
