"""MERGE as one commit: pruned by the log, joined on the keys, written only where rows change.

The part of the table that it reads and depends on, and the columns that it adds, are decided from
the log alone.

Spec: Add File and Remove File; Deletion Vectors; Add CDC File; Per-file Statistics; Type Widening
(writer requirements).
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.engines import engine_for, universal_engine
from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import RewriteResult
from dagster_delta.engines.statements.merge_clauses import (
    ClauseText,
    MergeClause,
    MergeNames,
    parse_clauses,
)
from dagster_delta.engines.statements.merge_condition import (
    MergeCondition,
    in_table,
    split_condition,
)
from dagster_delta.engines.statements.merge_plan import (
    MergedRows,
    MergePlan,
    MergeSource,
    SourceSummary,
)
from dagster_delta.errors import SchemaMismatch, UnsupportedExpression
from dagster_delta.evolution.merge_schema import diff_schemas
from dagster_delta.protocol.actions import AddFile, DomainMetadata
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.schema import StructField, StructType
from dagster_delta.protocol.schema_compatibility import find_incompatibility
from dagster_delta.protocol.statistics.predicates import And, Constant, IsTrue, Or, Predicate
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.sql.filters import refuse_quoted_columns
from dagster_delta.sql.tokens import tokenize
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.storage.scratch_directory import scratch_directory
from dagster_delta.table.operations.clustering import define_new_table
from dagster_delta.table.operations.merge_statement import MergeStatement
from dagster_delta.table.operations.row_changes import (
    RowChangeCounts,
    change_rows,
    refuse_append_only,
)
from dagster_delta.table.operations.write_planning import grown_configuration, write_spec
from dagster_delta.table.read.file_planner import FilePlanner
from dagster_delta.table.read.row_selection import SelectedRows, read_plan
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.retries import run_with_retries
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.engines.engine import Engine

__all__ = ["MergeStatement", "merge_rows"]

_Path = tuple[str, ...]


def merge_rows(
    store: ObjectStore, snapshot: Snapshot | None, statement: MergeStatement, *, clock: Clock
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
        configuration, domains = define_new_table(statement.creates, None)
        snapshot = Snapshot.before_creation(store, configuration)
    _begin(snapshot, statement, clock)
    if (done := statement.record.found_done(snapshot)) is not None:
        return done
    engine = engine_for(statement.source, statement.engine, memory_limit=statement.memory_limit)
    with scratch_directory("merge-") as directory:
        # Read once for all attempts, because a stream or a query may return other rows next time.
        source = engine.merge_source(statement.source, directory, store=store)
        began, creates_table = snapshot.configuration, not snapshot.exists

        def merge(snapshot: Snapshot) -> CommitResult:
            nonlocal engine, source
            times = MergeTimes(started)
            transaction = _begin(snapshot, statement, clock)
            if not snapshot.exists:
                for domain in domains:
                    transaction.stage_domain(domain)
            elif creates_table:
                _check_columns(snapshot, began.schema)
            if (done := statement.record.found_done(snapshot)) is not None:
                return done
            statement.record.stage(transaction)
            try:
                merge = _Merge.parse(engine, snapshot, statement, source, began)
            except UnsupportedExpression:
                chosen = statement.engine is not None or engine.casts_values
                able = None if chosen else universal_engine(store)
                if able is None:
                    raise
                engine, source = able, able.merge_source(source, directory, store=store)
                merge = _Merge.parse(engine, snapshot, statement, source, began)
            outcome = merge.run(transaction, times)
            return commit_merge(transaction, snapshot, statement, outcome, engine, times)

        return run_with_retries(merge, snapshot, statement.retries, statement.record)


def _begin(snapshot: Snapshot, statement: MergeStatement, clock: Clock) -> Transaction:
    if snapshot.exists:
        transaction = Transaction(snapshot.store, snapshot, clock=clock)
    else:
        transaction = Transaction(snapshot.store, None, clock=clock)
        transaction.stage_configuration(snapshot.configuration)
    if any(clause.action != "insert" for clause in statement.clauses):
        refuse_append_only(transaction, "this MERGE")
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


class _Merge(msgspec.Struct, frozen=True):
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

    @classmethod
    def parse(
        cls,
        engine: Engine,
        snapshot: Snapshot,
        statement: MergeStatement,
        source: MergeSource,
        began: TableConfiguration,
    ) -> _Merge:
        """Resolve the names, and plan the new schema of the table.

        `began` is the configuration of the table at the first attempt. A column that others have
        added since then, and that the source lacks, is none of those that `UPDATE SET *` and
        `INSERT *` mean.
        """
        configuration = merged_configuration(snapshot.configuration, source.schema, statement)
        names = MergeNames(
            snapshot.schema,
            source.schema,
            statement.target_alias,
            statement.source_alias,
            assigned=configuration.schema,
            embedded=not engine.casts_values,
            zone=engine.time_zone,
        )
        statement = statement.at_moment(names.scope("matched"), dt.datetime.now(dt.UTC))
        added = set(configuration.schema.names).difference(began.schema.names)
        is_extended = added and find_incompatibility(began, configuration) is None
        clauses = parse_clauses(
            statement.clauses,
            names,
            configuration,
            evolves=statement.evolves,
            new_columns=added if is_extended else (),
        )
        on = names.condition(statement.on, "matched")
        conditions = (clause.condition for clause in clauses if clause.condition is not None)
        for each in (on, *conditions):
            for schema in (snapshot.schema, source.schema):
                refuse_quoted_columns(each, schema)
        condition = split_condition(on)
        return cls(engine, snapshot, statement, source, configuration, names, clauses, condition)

    def run(self, transaction: Transaction, times: MergeTimes) -> MergeOutcome:
        """Find the rows that change, and write the rows that replace them."""
        if self.configuration is not self.snapshot.configuration:
            transaction.stage_configuration(self.configuration)
        source = self.source.summarise(self.condition)
        times.materialised = source.materialised
        plan, scope = self._plan(source)
        merged = self.engine.merge(plan)
        times.scanned = merged.scanned
        changed = pc.is_in(scope.files["path"], string_column(list(merged.rows)))
        selected = SelectedRows(
            pc.filter(scope.files, changed), merged.rows, scope.reads(merged.used_paths)
        )
        return MergeOutcome(self.clauses, plan.num_source_rows, merged, selected)

    def _plan(self, source: SourceSummary) -> tuple[MergePlan, MergeScope]:
        scope = MergeScope.of(self.snapshot, self.condition, source.keys, self.clauses, self.engine)
        configuration, location = self.configuration, self.snapshot.store.location
        spec = write_spec(configuration, location, constraints=self.statement.constraints)
        is_recorded = configuration.change_data_feed_enabled
        plan = MergePlan(
            source=self.source,
            num_source_rows=source.num_rows,
            names=self.names,
            on=self.statement.on,
            condition=self.condition,
            clauses=self.clauses,
            target=read_plan(self.snapshot, scope.files, None, configuration),
            may_match=scope.may_match,
            may_lack_source=scope.may_lack_source,
            data=spec,
            change_data=replace(spec, constraints=()) if is_recorded else None,
        )
        return plan, scope


class MergeScope(msgspec.Struct, frozen=True):
    """The files that a MERGE has to read."""

    files: pa.Table
    """The files, as LIVE_FILE_SCHEMA."""
    may_match: pa.BooleanArray
    """A value per file: whether a row of it may match."""
    may_lack_source: pa.BooleanArray
    """A value per file: whether a clause for rows not matched by the source may apply to one of its
    rows."""
    may_hold: Callable[[Sequence[AddFile]], Sequence[AddFile]]
    """Those of some files that another commit adds that may hold a row that matches or changes
    otherwise."""

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        condition: MergeCondition,
        keys: Iterable[Predicate],
        clauses: Sequence[MergeClause],
        engine: Engine,
    ) -> MergeScope:
        """The scope of a MERGE; `keys` are known facts about the table's side of the keys."""
        file_planner = FilePlanner(snapshot, engine.log_planner)
        target_only = map(in_table, condition.target_only)
        matching = And((*map(file_planner.predicate_of, target_only), *keys))
        lacking = Or(
            tuple(
                Constant(True)
                if clause.condition is None
                else IsTrue(file_planner.predicate_of(in_table(clause.condition)))
                for clause in clauses
                if clause.text.kind == "not_matched_by_source"
            )
        )
        predicates = file_planner.with_generated(matching), file_planner.with_generated(lacking)
        found = file_planner.candidates(*predicates)
        may_match, may_lack_source = (each.may_match for each in found.skipped)
        return cls(found.files, may_match, may_lack_source, file_planner.may_hold(*predicates))

    def reads(self, paths: Iterable[str]) -> ReadScope:
        """What a concurrent commit must not have changed."""
        return ReadScope(may_hold=self.may_hold, paths=frozenset(paths))


def merged_configuration(
    current: TableConfiguration, source: StructType, statement: MergeStatement
) -> TableConfiguration:
    """Protocol and metadata after the MERGE: unchanged if it adds no column.

    A clause that takes every column adds all columns of the source; other clauses add the columns
    that they assign, if the source has a column with that name.
    """
    if not statement.evolves:
        return current
    # Rows without a match in the source cannot get a column from it.
    writing = [
        clause
        for clause in statement.clauses
        if clause.action != "delete" and clause.kind != "not_matched_by_source"
    ]
    if any(each.values is None for each in writing):
        wanted: StructType | None = source
    else:
        wanted = _narrowed(source, list(_assigned_paths(writing, statement.target_alias)))
    if wanted is None:
        return current
    # A merge need not have every column: columns that an insert omits are checked with its rows.
    return grown_configuration(current, wanted, filled=current.schema.names)


def _assigned_paths(clauses: Iterable[ClauseText], alias: str) -> Iterable[_Path]:
    for clause in clauses:
        for name in clause.values or ():
            tokens = [each for each in tokenize(name) if each.kind in ("word", "quoted")]
            path = tuple(token.text for token in tokens)
            yield path[1:] if len(path) > 1 and path[0].casefold() == alias.casefold() else path


def _narrowed(source: StructType, paths: Iterable[_Path]) -> StructType | None:
    """The part of a schema that contains some paths; None if it contains none of them."""
    listed = [each for each in paths if each]
    fields = []
    for field in source:
        below = [path[1:] for path in listed if path[0].casefold() == field.name.casefold()]
        if () in below:
            fields.append(field)
        elif below and isinstance(field.data_type, StructType):
            inner = _narrowed(field.data_type, below)
            if inner is not None:
                fields.append(StructField(field.name, inner, field.nullable, field.metadata))
    return StructType(tuple(fields)) if fields else None


class MergeOutcome(msgspec.Struct, frozen=True):
    """The rows that a MERGE changes, and the files written to replace them."""

    clauses: Sequence[MergeClause]
    num_source_rows: int
    merged: MergedRows
    selected: SelectedRows
    """The rows of the table that are deleted or updated."""

    @property
    def changes_nothing(self) -> bool:
        """Whether the table is unchanged."""
        return not self.merged.num_inserted_rows and not any(self.merged.num_changed_rows.values())

    def count(self, kind: str, action: str) -> int:
        """Number of rows of the table that clauses of a kind change by an action."""
        return sum(
            self.merged.num_changed_rows.get(index, 0)
            for index, each in enumerate(self.clauses)
            if each.text.kind == kind and each.text.action == action
        )


class MergeTimes(msgspec.Struct):
    """When the phases of a MERGE began, in seconds of one clock."""

    started: float
    materialised: float | None = None
    """When the source was materialised."""
    scanned: float | None = None
    """When the action for each row was known."""

    def metrics(self) -> dict[str, int]:
        """The times by the names of commitInfo."""
        now = time.perf_counter()
        materialised = now if self.materialised is None else self.materialised
        scanned = now if self.scanned is None else self.scanned
        seconds = {
            "materializeSourceTimeMs": materialised - self.started,
            "scanTimeMs": scanned - materialised,
            "rewriteTimeMs": now - scanned,
            "executionTimeMs": now - self.started,
        }
        return {name: round(value * 1000) for name, value in seconds.items()}


def stage_merge(transaction: Transaction, outcome: MergeOutcome, engine: Engine) -> RowChangeCounts:
    """Stage the new files, and the removal of the old rows."""
    transaction.stage_written(outcome.merged.files)
    transaction.stage_change_files(outcome.merged.change_files)
    transaction.stage_high_water_marks(outcome.merged.high_water_marks)
    transaction.depend_on(outcome.selected.reads)
    transaction.declare_row_ids_kept()
    if not outcome.selected.files.num_rows:
        return RowChangeCounts()
    return change_rows(
        transaction,
        outcome.selected,
        engine,
        written=RewriteResult((), (), 0, outcome.merged.num_copied_rows),
        selects=_may_match if _changes_all_matches(outcome.clauses) else None,
    )


def _may_match(added: Sequence[AddFile]) -> bool:
    # Rows added by a concurrent commit that may match, by their statistics, are not compared with
    # the source again.
    return bool(added)


def _changes_all_matches(clauses: Sequence[MergeClause]) -> bool:
    """Whether every row that decides the result of the MERGE is also changed by it: a row of the
    source is not inserted if a row of the table matches, even if that row is unchanged.
    """
    if not any(clause.text.kind == "not_matched" for clause in clauses):
        return True
    return any(clause.text.kind == "matched" and clause.condition is None for clause in clauses)


def commit_merge(
    transaction: Transaction,
    snapshot: Snapshot,
    statement: MergeStatement,
    outcome: MergeOutcome,
    engine: Engine,
    times: MergeTimes,
) -> CommitResult:
    """Commit a MERGE; as in the reference implementation, one without changes makes no version."""
    with transaction.created_files:
        counts = stage_merge(transaction, outcome, engine)
    metrics = {**_metrics(outcome, counts), **times.metrics()}
    if outcome.changes_nothing and statement.record.is_empty and snapshot.exists:
        return CommitResult(snapshot.version, metrics, snapshot, skipped=True)
    return transaction.commit(
        "MERGE",
        parameters=statement.parameters,
        metrics=metrics,
        user_info=statement.commit_info,
    )


def _metrics(outcome: MergeOutcome, counts: RowChangeCounts) -> dict[str, int | str]:
    kinds = ("matched", "not_matched_by_source")
    updated = sum(outcome.count(kind, "update") for kind in kinds)
    files, change_files = outcome.merged.files, outcome.merged.change_files
    return {
        "numSourceRows": outcome.num_source_rows,
        "numTargetRowsInserted": outcome.merged.num_inserted_rows,
        "numTargetRowsUpdated": updated,
        "numTargetRowsDeleted": sum(outcome.count(kind, "delete") for kind in kinds),
        "numTargetRowsMatchedUpdated": outcome.count("matched", "update"),
        "numTargetRowsMatchedDeleted": outcome.count("matched", "delete"),
        "numTargetRowsNotMatchedBySourceUpdated": outcome.count("not_matched_by_source", "update"),
        "numTargetRowsNotMatchedBySourceDeleted": outcome.count("not_matched_by_source", "delete"),
        "numTargetRowsCopied": counts.num_copied_rows,
        "numOutputRows": outcome.merged.num_inserted_rows + updated + counts.num_copied_rows,
        "numTargetFilesAdded": counts.num_added_files + len(files),
        "numTargetBytesAdded": counts.num_added_bytes + sum(file.size_bytes for file in files),
        "numTargetFilesRemoved": counts.num_removed_files,
        "numTargetBytesRemoved": counts.num_removed_bytes,
        "numTargetChangeFilesAdded": len(change_files),
        "numTargetChangeFileBytes": sum(file.size_bytes for file in change_files),
        "numTargetDeletionVectorsAdded": counts.num_vectors_added,
        "numTargetDeletionVectorsUpdated": counts.num_vectors_updated,
        "numTargetDeletionVectorsRemoved": counts.num_vectors_removed,
    }
