"""Taking rows out of a table, or changing them, as actions of a transaction.

Merge-on-read where the table has deletion vectors: the files stay, and a vector hides the rows.
Copy-on-write otherwise: the files are removed, and their remaining rows are rewritten. Either way a
file that loses all its rows is only removed.

Spec: Add File and Remove File; Deletion Vectors; Per-file Statistics; Add CDC File.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.engines import (
    DeletionVectorLoader,
    embedded_engine,
    engine_for,
    engine_for_changes,
)
from dagster_delta.engines.engine import Engine
from dagster_delta.engines.footers import count_file_rows
from dagster_delta.engines.plans import Assignment, RewriteResult, RowRewrite
from dagster_delta.engines.statements.assignments import parse_assignments, resolve_defaults
from dagster_delta.engines.statements.constraint_check import changed_values
from dagster_delta.engines.statements.row_tracking import keep_row_ids
from dagster_delta.protocol.actions import AddFile, DeletionVectorDescriptor
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.arrow_columns import boolean_column
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.sql.filters import at_moment, check_repeatable, parse_filter
from dagster_delta.table.operations.write_planning import write_spec
from dagster_delta.table.read.file_planner import (
    SelectedRows,
    check_row_count,
    read_plan,
    select_rows,
)
from dagster_delta.table.transaction.file_actions import (
    added_row,
    descriptor_of,
    file_table,
    hiding,
    store_deletion_vectors,
    tombstone,
)
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.transaction.conflicts import SelectsRows
    from dagster_delta.table.transaction.retries import StatementOptions


RowChangeMetrics = dict[str, int]
"""What a change did, by the names of commitInfo."""
CHANGED_ROWS = "numChangedRows"
"""Stands for the rows that left or changed, which each statement calls otherwise."""


def change_rows(
    transaction: Transaction,
    selected: SelectedRows,
    engine: Engine,
    *,
    assignments: tuple[Assignment, ...] = (),
    where: SqlExpression | None = None,
    written: RewriteResult | None = None,
    selects: SelectsRows | None = None,
) -> RowChangeMetrics:
    """Stage that rows leave the table, or that they get new values.

    The transaction depends on what the selection depends on from here on. Without assignments the
    rows leave. `where` is the expression that selected the rows, if one did, for engines that would
    rather evaluate it again than take row indexes. `written` is what the caller has written and
    staged instead: change data, and the rows that stay. `selects` is as for
    `Transaction.depend_on`; by default what `where` says.
    """
    if selects is None and where is not None:
        selects = selection(transaction, engine, where)
    merges_on_read = transaction.configuration.deletion_vectors_enabled
    transaction.depend_on(selected.reads, selects=selects if merges_on_read else None)
    touched = list(_touched_files(transaction, selected))
    rewritten = written
    if written is None:
        rewritten = _rewrite_files(transaction, selected, touched, engine, assignments, where)
    if rewritten is not None:
        transaction.stage_written(rewritten.files)
        transaction.stage_change_files(rewritten.change_files)
        _check_no_row_lost(transaction, touched, rewritten, bool(assignments))
    kept = [file for file in touched if merges_on_read and not file.leaves]
    _stage_vectors(transaction, kept)
    now_ms = transaction.clock()
    transaction.stage_removed(tombstone(file.row, now_ms) for file in touched)
    return _count_changes(touched, kept, rewritten)


def selection(transaction: Transaction, engine: Engine, where: SqlExpression) -> SelectsRows:
    """Whether files that others added hold a row for which a condition is true."""
    snapshot = transaction.snapshot
    assert snapshot is not None  # noqa: S101  its files were selected

    def selects(added: Sequence[AddFile]) -> bool:
        plan = read_plan(snapshot, file_table(added), where)
        return any(True for _ in engine.find_matches(plan))

    return selects


class _TouchedFile(msgspec.Struct, frozen=True):
    row: Mapping[str, Any]
    """Its row of LIVE_FILE_SCHEMA."""
    vector: DeletionVectorDescriptor | None
    num_records: int | None
    """Rows of the data file, deleted ones included; None where every live row goes anyway."""
    selected: BitMap64 | None
    """Indexes of the rows that go; None for every live row."""

    @property
    def num_live(self) -> int | None:
        deleted = 0 if self.vector is None else self.vector.cardinality
        return None if self.num_records is None else self.num_records - deleted

    @property
    def num_selected(self) -> int | None:
        return self.num_live if self.selected is None else len(self.selected)

    @property
    def num_staying(self) -> int:
        if self.selected is None or self.num_live is None:
            return 0
        return self.num_live - len(self.selected)

    @property
    def leaves(self) -> bool:
        return self.selected is None or len(self.selected) == self.num_live

    def to_add(self, vector: DeletionVectorDescriptor) -> AddFile:
        assert self.num_records is not None  # noqa: S101  counted, as some of its rows stay
        return hiding(added_row(self.row), vector, self.num_records)


def _touched_files(transaction: Transaction, selected: SelectedRows) -> Iterator[_TouchedFile]:
    counts = parse_statistics_json(selected.files["stats"], ())["num_records"].to_pylist()
    for row, counted in zip(selected.files.to_pylist(), counts, strict=True):
        rows = selected.rows.get(row["path"])
        if counted is None and rows is not None:
            # Spec: a file with a deletion vector MUST say how many rows it has.
            counted = count_file_rows(transaction.store, decode_path(row["path"]))
        yield _TouchedFile(row, descriptor_of(row), counted, rows)


def _rewrite_files(
    transaction: Transaction,
    selected: SelectedRows,
    touched: list[_TouchedFile],
    engine: Engine,
    assignments: tuple[Assignment, ...],
    where: SqlExpression | None,
) -> RewriteResult | None:
    """The new files that the change needs; None where it needs none."""
    configuration = transaction.configuration
    keeps_rest = not transaction.configuration.deletion_vectors_enabled and not all(
        file.leaves for file in touched
    )
    if not assignments and not keeps_rest:
        # Readers of the feed need only the removes, and the adds with larger deletion vectors.
        return None
    records = configuration.change_data_feed_enabled
    files = selected.files
    if not assignments and not records:
        staying = boolean_column([not file.leaves for file in touched])
        files = pc.filter(files, staying)
    assert transaction.snapshot is not None  # noqa: S101  its files were selected
    location = transaction.store.location
    data = write_spec(configuration, location, check_rows=False)
    if assignments:
        values = changed_values(configuration, {assignment.column[0] for assignment in assignments})
        data = write_spec(configuration, location, values=values)
    source = read_plan(transaction.snapshot, files, where, configuration)
    source, tracked = keep_row_ids(source, data)
    transaction.declare_row_ids_kept()
    return engine.rewrite(
        RowRewrite(
            source=source,
            matches=selected.rows,
            assignments=assignments,
            keeps_rest=keeps_rest,
            data=tracked,
            # As soon as a commit has change data files, they alone are the feed.
            change_data=data if records else None,
        )
    )


def _check_no_row_lost(
    transaction: Transaction, touched: list[_TouchedFile], rewritten: RewriteResult, updates: bool
) -> None:
    """Compare the rows that were written again with those in the log."""
    assert transaction.snapshot is not None  # noqa: S101  its files were selected
    lost = 0
    if not transaction.configuration.deletion_vectors_enabled:
        lost = sum(file.num_staying for file in touched) - rewritten.num_copied_rows
    if updates:
        changed = [file.num_selected for file in touched]
        if None in changed:
            return
        lost += sum(number or 0 for number in changed) - rewritten.num_changed_rows
    counted = sum(file.num_live or 0 for file in touched)
    check_row_count(transaction.snapshot, len(touched), counted, counted - lost)


def _stage_vectors(transaction: Transaction, files: list[_TouchedFile]) -> None:
    if not files:
        return
    old = [file.vector for file in files if file.vector is not None]
    loader = DeletionVectorLoader(transaction.store, old)
    vectors = []
    for file in files:
        assert file.selected is not None  # noqa: S101  else no row would stay
        hidden = file.selected
        if file.vector is not None:
            hidden = hidden | loader.load(file.vector, data_file=decode_path(file.row["path"]))
        vectors.append(hidden)
    stored = store_deletion_vectors(transaction.store, transaction.configuration, vectors)
    transaction.stage_readded(
        (
            file.to_add(descriptor)
            for file, descriptor in zip(files, stored.descriptors, strict=True)
        ),
        written=stored.paths,
    )


def _count_changes(
    touched: list[_TouchedFile], kept: list[_TouchedFile], rewritten: RewriteResult | None
) -> RowChangeMetrics:
    changed = [file.num_selected for file in touched]
    known = [number for number in changed if number is not None]
    kept_paths = {file.row["path"] for file in kept}
    left = [file for file in touched if file.row["path"] not in kept_paths]
    files = () if rewritten is None else rewritten.files
    return {
        "numRemovedFiles": len(left),
        "numRemovedBytes": sum(file.row["size_bytes"] for file in left),
        "numAddedFiles": len(files),
        "numAddedBytes": sum(file.size_bytes for file in files),
        "numCopiedRows": 0 if rewritten is None else rewritten.num_copied_rows,
        "numDeletionVectorsAdded": len(kept),
        "numDeletionVectorsUpdated": sum(file.vector is not None for file in kept),
        "numDeletionVectorsRemoved": sum(file.vector is not None for file in touched),
        "numAddedChangeFiles": 0 if rewritten is None else len(rewritten.change_files),
        # Where only files left whose rows the log does not count, the number is not known.
        **({CHANGED_ROWS: sum(known)} if len(known) == len(changed) else {}),
    }


NO_CHANGES = _count_changes([], [], None)
"""The metrics of a change of no row."""


class RowStatement:
    """One attempt of a DELETE or UPDATE, on a version."""

    def __init__(
        self,
        name: str,
        snapshot: Snapshot,
        where: str | None,
        options: StatementOptions,
    ) -> None:
        self._started, self._moment = time.perf_counter(), dt.datetime.now(dt.UTC)
        self._name, self._snapshot, self._options = name, snapshot, options
        self._asked = None if options.engine is None else engine_for(None, options.engine)
        self._zone = (self._asked or embedded_engine()).time_zone
        self._transaction = Transaction(snapshot.store, snapshot)
        self._transaction.check_may_remove(f"{'an' if name == 'UPDATE' else 'a'} {name}")
        self._where = None
        if where is not None:
            self._where = parse_filter(where, snapshot.schema, self._moment, self._zone)
            check_repeatable(self._where, f"the condition of {name}")

    def engine_of(self, assignments: tuple[Assignment, ...]) -> Engine:
        """The engine that the caller or the expressions ask for."""
        where = () if self._where is None else (self._where,)
        expressions = (*where, *(assignment.value for assignment in assignments))
        return self._asked or engine_for_changes(expressions, self._snapshot.store, self._zone)

    def assign(self, values: Mapping[str, str]) -> tuple[tuple[Assignment, ...], Engine]:
        """The values that an engine assigns, and this engine."""
        configuration, schema = self._snapshot.configuration, self._snapshot.schema
        dated = {
            name: at_moment(sql, self._moment, schema) if isinstance(sql, str) else sql
            for name, sql in values.items()
        }
        resolved = resolve_defaults(dated, configuration, schema)
        assignments = parse_assignments(resolved, schema, zone=self._zone)
        engine = self.engine_of(assignments)
        if engine.casts_values:
            resolved = resolve_defaults(dated, configuration, schema, embedded=False)
            assignments = parse_assignments(resolved, schema, casts=False, zone=self._zone)
        return assignments, engine

    def run(
        self,
        engine: Engine,
        parameters: Mapping[str, object],
        assignments: tuple[Assignment, ...] = (),
    ) -> CommitResult:
        """Change the selected rows, and commit that."""
        self._transaction.stage_applications(self._options)
        selected = select_rows(self._snapshot, self._where, engine)
        scanned = time.perf_counter()
        if not selected.files.num_rows and self._options.records_nothing:
            # As in the reference implementation, what changes nothing makes no version.
            metrics = self._make_metrics(NO_CHANGES, scanned)
            return CommitResult(self._snapshot.version, metrics, self._snapshot, skipped=True)
        with self._transaction.created_files:
            counts = change_rows(
                self._transaction, selected, engine, assignments=assignments, where=self._where
            )
        return self._transaction.commit(
            self._name,
            parameters=parameters,
            metrics=self._make_metrics(counts, scanned),
            user_info=self._options.commit_info,
        )

    def _make_metrics(self, counts: RowChangeMetrics, scanned: float) -> dict[str, int | str]:
        now = time.perf_counter()
        rows = "numDeletedRows" if self._name == "DELETE" else "numUpdatedRows"
        return {
            **{rows if name == CHANGED_ROWS else name: count for name, count in counts.items()},
            "executionTimeMs": round((now - self._started) * 1000),
            "scanTimeMs": round((scanned - self._started) * 1000),
            "rewriteTimeMs": round((now - scanned) * 1000),
        }
