"""MERGE in this process: what it does to each row is found first, then the rows are written.

Without deletion vectors the other rows of changed files are written too, to the same files.

Spec: Add File and Remove File; Deletion Vectors; Change Data Files; Column Invariants; CHECK
Constraints.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.arrow.change_data_files import RowWriters
from dagster_delta.engines.arrow.file_rewriting import rewrite_rows_to, with_null_columns
from dagster_delta.engines.arrow.merge_join import (
    ArrowMergeSource,
    MergeJoin,
    Pairs,
    places_where,
    source_columns,
    target_columns,
)
from dagster_delta.engines.arrow.predicate_matching import add_rows, bitmap_of, rows_by_file
from dagster_delta.engines.plans import ReadPlan, WriteSpec
from dagster_delta.engines.statements.completion import (
    IdentityNumbers,
    RowCompletion,
    RowUpdate,
    compute_assigned,
    exact_columns,
)
from dagster_delta.engines.statements.constraint_check import (
    ConstraintCheck,
    generation_constraints,
)
from dagster_delta.engines.statements.merge_clauses import (
    SOURCE,
    TARGET,
    ClauseKind,
    MergeClause,
)
from dagster_delta.engines.statements.merge_plan import (
    MergedRows,
    MergePlan,
    ambiguous_matches,
    repeated_keys,
)
from dagster_delta.engines.statements.row_tracking import remaining_rows
from dagster_delta.engines.statements.source_buffer import SourceRows
from dagster_delta.errors import MAX_EXAMPLES, InvalidTable
from dagster_delta.nested_arrays import index_of
from dagster_delta.parquet.data_file_reader import FILE_ORDINAL, ROW_INDEX, DataFileReader
from dagster_delta.parquet.opened_file import DataFile, data_files
from dagster_delta.parquet.reader import plan_reader, read_ahead
from dagster_delta.parquet.store_assignment import MAX_BATCH_ROWS, assign_rows
from dagster_delta.protocol.features.row_tracking import tracked_configuration
from dagster_delta.protocol.schema import DataType
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.python_values import python_rows
from dagster_delta.sql.evaluator import Columns, Evaluator, column_at

if TYPE_CHECKING:
    from numpy.typing import NDArray


def merge_rows(plan: MergePlan) -> MergedRows:
    """Carry out a MERGE. Raises as `Engine.merge` says."""
    source = cast("ArrowMergeSource", plan.source)
    joined = MergeJoin(plan.condition, source, ClauseChoice(plan, "matched").columns)
    with closing(joined) as join:
        actions = find_row_actions(plan, source, join)
    if plan.checks_new_keys:
        _refuse_repeated_keys(plan, source, actions.source_matched)
    scanned = time.perf_counter()
    change_data = plan.change_data_for(np.unique(actions.clauses).tolist())
    paths = plan.target.files["path"]
    tracked = replace(plan.data, configuration=tracked_configuration(plan.data.configuration))
    with RowWriters.opened(tracked, change_data, plan.target.store) as writers:
        actions = _Changing(plan, source, actions, writers).run()
        rows = {paths[ordinal].as_py(): found for ordinal, found in actions.bitmaps().items()}
        numbers = IdentityNumbers()
        num_inserted = _insert_rows(plan, source, actions, writers, numbers)
        num_copied = 0
        rest = remaining_rows(plan.target, plan.data, rows)
        if rest is not None:
            _, num_copied = rewrite_rows_to(rest, writers)
        files, change_files = writers.finish()
    return MergedRows(
        files=files,
        change_files=change_files,
        num_inserted_rows=num_inserted,
        num_changed_rows=Counter(actions.clauses.tolist()),
        num_copied_rows=num_copied,
        rows=rows,
        used_paths=frozenset(paths[ordinal].as_py() for ordinal in actions.used_files),
        scanned=scanned,
        high_water_marks=numbers.high_water_marks,
    )


class _Changing:
    """Rows of the table to update and, if changes are recorded, rows to delete."""

    def __init__(
        self, plan: MergePlan, source: SourceRows, actions: RowActions, writers: RowWriters
    ) -> None:
        self._plan, self._source, self._actions, self._writers = plan, source, actions, writers
        self._configuration = tracked_configuration(plan.target.configuration)
        self._updates = {
            index: RowUpdate(clause.assignments, _spec_of(plan, clause), self._configuration.schema)
            for index, clause in enumerate(plan.clauses)
            if clause.text.action == "update"
        }
        self._source_names = {
            index: _source_names(plan, clause) for index, clause in enumerate(plan.clauses)
        }
        self._tests = {
            index: [Evaluator(condition) for condition in test.typed]
            for index, test in plan.unchanged.items()
        }

    def run(self) -> RowActions:
        """Write the rows; what remains of the actions without the rows that keep their values."""
        actions = self._actions
        wanted = np.ones(len(actions), dtype=bool)
        if self._writers.changes is None:
            wanted = np.isin(actions.clauses, list(self._updates))
        if not wanted.any():
            return actions
        changed = np.ones(int(wanted.sum()), dtype=bool)
        clauses, source_rows = actions.clauses[wanted], actions.source_rows[wanted]
        needed = self._needed_columns(np.unique(clauses).tolist())
        position = 0
        for columns, count in self._read_rows(actions, wanted, needed):
            part = slice(position, position + count)
            position += count
            rows = with_null_columns(columns, count, to_arrow_schema(self._configuration.schema))
            changed[part] = self._take_changes(rows, clauses[part], source_rows[part])
        if changed.all():
            return actions
        kept = np.ones(len(actions), dtype=bool)
        kept[wanted] = changed
        return actions.only(kept)

    def _needed_columns(self, clauses: Sequence[int]) -> list[str]:
        """The columns of the table that are kept, recorded or used in computations, with row
        ids.
        """
        every = self._configuration.schema.names
        if self._writers.changes is not None:
            return list(every)
        needed: set[str] = set()
        for index in clauses:
            clause = self._plan.clauses[index]
            replaced = {
                assignment.column[0]
                for assignment in clause.assignments
                if len(assignment.column) == 1
            }
            needed.update(name for name in every if name not in replaced)
            needed.update(path[1] for path in self._plan.names.paths(clause) if path[0] == TARGET)
            if (test := self._plan.unchanged.get(index)) is not None:
                needed.update(path[1] for path in test.paths_of(TARGET))
        return [name for name in every if name in needed]

    def _read_rows(
        self, actions: RowActions, wanted: NDArray[np.bool_] | None, columns: list[str]
    ) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        """Some columns of the rows as `pyarrow.RecordBatch`es, in the order of the actions."""
        rows = actions.rows[wanted]
        if not columns:
            for start in range(0, len(rows), MAX_BATCH_ROWS):
                yield None, min(MAX_BATCH_ROWS, len(rows) - start)
            return
        target, bitmaps = self._plan.target, actions.bitmaps(wanted)
        reader = plan_reader(replace(target, configuration=self._configuration), columns)
        files = (
            replace(file, selected=bitmaps[file.ordinal])
            for file in data_files(target.files)
            if file.ordinal in bitmaps
        )
        position = 0
        for batch in read_ahead(target.store, reader.sources(files)):
            indexes = np.from_dlpack(batch.column(ROW_INDEX))
            # Files and rows come in the sort order of the actions. If a row were written instead of
            # another one, data would be lost without an error.
            if not np.array_equal(indexes, rows[position : position + len(indexes)]):
                raise InvalidTable(
                    "the rows of a data file were not read in their order; nothing was changed. "
                    "Verify the file by scan(verify_checksums=True)",
                    table=target.store.location.uri,
                )
            position += batch.num_rows
            yield batch, batch.num_rows

    def _take_changes(
        self, rows: pa.RecordBatch, clauses: NDArray[np.int32], source_rows: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Write or record the changes of rows; whether each of them changes: numpy bool array."""
        changed = np.ones(len(clauses), dtype=bool)
        for index in np.unique(clauses).tolist():
            places = np.flatnonzero(clauses == index)
            chosen = rows if len(places) == len(clauses) else pc.take(rows, index_of(places))
            if index in self._updates and self._plan.clauses[index].text.kind == "matched":
                mine = source_rows[places]
                # Wide rows of the source do not show in the size of the batches of the table.
                for part in self._source.parts(mine, self._source_names[index]):
                    changing = chosen.slice(part.start, part.stop - part.start)
                    changed[places[part]] = self._update_rows(index, changing, mine[part])
            elif index in self._updates:
                changed[places] = self._update_rows(index, chosen, None)
            else:
                self._writers.record(chosen, "delete")
        return changed

    def _update_rows(
        self, index: int, rows: pa.RecordBatch, source_rows: NDArray[np.int64] | None
    ) -> NDArray[np.bool_]:
        sides = {TARGET: self._writers.ids.of_table(rows)}
        if source_rows is not None:
            sides[SOURCE] = self._source.take(source_rows, self._source_names[index])
        differs = np.ones(rows.num_rows, dtype=bool)
        if index in self._tests:
            differs = self._find_differing(index, sides, rows.num_rows)
            if not differs.any():
                return differs
        if not differs.all():
            kept = index_of(np.flatnonzero(differs))
            rows = pc.take(rows, kept)
            sides = {side: pc.take(batch, kept) for side, batch in sides.items()}
        changed = self._updates[index].apply(rows, self._plan.names.rows(sides))
        changed = self._writers.ids.as_changed(changed)
        self._writers.data.add(changed)
        self._writers.record(rows, "update_preimage")
        self._writers.record(changed, "update_postimage")
        return differs

    def _find_differing(
        self, index: int, sides: Mapping[str, pa.RecordBatch], num_rows: int
    ) -> NDArray[np.bool_]:
        """Whether a clause gives each row another value: numpy bool array."""
        differs = np.zeros(num_rows, dtype=bool)
        for test in self._tests[index]:
            open_rows = np.flatnonzero(~differs)
            if not len(open_rows):
                break
            taken = index_of(open_rows)
            columns = {
                path: pc.take(column_at(sides[path[0]], path[1:]), taken) for path in test.columns
            }
            is_same = test.is_true(columns, len(open_rows))
            differs[open_rows[places_where(pc.invert(is_same))]] = True
        return differs


def _insert_rows(
    plan: MergePlan,
    source: SourceRows,
    actions: RowActions,
    writers: RowWriters,
    numbers: IdentityNumbers,
) -> int:
    """Write the rows of the source that match none of the table's; returns their number."""
    choice = ClauseChoice(plan, "not_matched")
    insertions = {index: _Insertion(plan, clause, numbers) for index, clause in choice.clauses}
    if not insertions:
        return 0
    num_rows = 0
    for start, batch in source.batches():
        places = np.flatnonzero(~actions.source_matched[start : start + batch.num_rows])
        if not len(places):
            continue
        rows = batch if len(places) == batch.num_rows else pc.take(batch, index_of(places))
        chosen = choice.choose(source_columns(rows, choice.columns), rows.num_rows)
        for index, insertion in insertions.items():
            mine = np.flatnonzero(chosen == index)
            if len(mine):
                new = insertion.rows(pc.take(rows, index_of(mine)))
                writers.data.add(writers.ids.as_new(new))
                writers.record(new, "insert")
                num_rows += new.num_rows
    return num_rows


def _refuse_repeated_keys(
    plan: MergePlan, source: ArrowMergeSource, matched: NDArray[np.bool_]
) -> None:
    keys = source.keys(plan.condition)
    names = [f"key_{index}" for index in range(len(keys.values))]
    new = pa.table(list(keys.values), names=names)
    new = new.filter(pa.array(~matched[np.concatenate(keys.rows)])) if keys.rows else new
    for name, key in zip(names, plan.condition.keys, strict=True):
        new = new if key.nulls_match else new.filter(pc.is_valid(new[name]))
    groups = new.group_by(names).aggregate([([], "count_all")])
    surplus = new.num_rows - groups.num_rows
    if surplus:
        several = groups.filter(pc.greater(groups["count_all"], 1)).select(names)
        examples = (tuple(row.values()) for row in python_rows(several.slice(0, MAX_EXAMPLES)))
        raise repeated_keys(surplus, examples, table=plan.data.location.uri)


class _Insertion:
    """Makes the new rows of one clause."""

    def __init__(self, plan: MergePlan, clause: MergeClause, numbers: IdentityNumbers) -> None:
        schema, spec = plan.target.configuration.schema, _spec_of(plan, clause)
        self._table = spec.location.uri
        self._names, self._assignments = plan.names, clause.assignments
        self._completion = RowCompletion(spec, schema, numbers)
        self._check = ConstraintCheck(spec, schema)

    def rows(self, source: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the table for rows of the source, as a `pyarrow.RecordBatch`."""
        scope = self._names.rows({SOURCE: source})
        values = [
            compute_assigned(assignment, scope, table=self._table)
            for assignment in self._assignments
        ]
        names = [assignment.column[0] for assignment in self._assignments]
        given = pa.RecordBatch.from_arrays(values, names=names)
        exact = exact_columns(self._assignments)
        assigned = assign_rows(
            given, self._completion.given, table=self._table, exact_columns=exact
        )
        return self._check.checked(self._completion.complete(assigned))


def _spec_of(plan: MergePlan, clause: MergeClause) -> WriteSpec:
    """How the new rows of a clause are completed and checked."""
    constraints = (*plan.data.constraints, *generation_constraints(clause.values))
    return replace(plan.data, values=clause.values, constraints=constraints)


def _source_names(plan: MergePlan, clause: MergeClause) -> list[str]:
    needed = {path[1] for path in plan.names.paths(clause) if path[0] == SOURCE}
    return [name for name in plan.source.schema.names if name in needed]


_NO_SOURCE_ROW = -1


class ClauseChoice:
    """For each row, the first of the clauses of a kind that applies."""

    def __init__(self, plan: MergePlan, kind: ClauseKind) -> None:
        self.clauses = plan.clauses_of(kind)
        self._conditions = [
            (index, None if clause.condition is None else Evaluator(clause.condition))
            for index, clause in self.clauses
        ]
        self.columns: dict[tuple[str, ...], DataType] = {}
        """Type of each column that the conditions read, by path."""
        for _, condition in self._conditions:
            self.columns |= {} if condition is None else condition.columns

    def choose(self, columns: Columns, num_rows: int) -> NDArray[np.int32]:
        """Index of the clause among all clauses per row, -1 if none applies: numpy int32."""
        chosen = np.full(num_rows, -1, dtype=np.int32)
        for index, condition in self._conditions:
            open_rows = np.flatnonzero(chosen == -1)
            if not len(open_rows):
                break
            if condition is None:
                chosen[open_rows] = index
                break
            # A condition must not fail on a row to which an earlier clause applies.
            taken = columns
            if len(open_rows) < num_rows:
                places = index_of(open_rows)
                taken = {path: pc.take(columns[path], places) for path in condition.columns}
            is_true = condition.is_true(taken, len(open_rows))
            chosen[open_rows[places_where(is_true)]] = index
        return chosen


class RowActions(msgspec.Struct, frozen=True):
    """Which rows change, in order of file and row, and which rows of the source matched none."""

    ordinals: NDArray[np.int32]
    """numpy int32 array: file of each row that changes, as its index in the files."""
    rows: NDArray[np.int64]
    """numpy int64 array: index of the row in its file."""
    source_rows: NDArray[np.int64]
    """numpy int64 array: the row of the source that changes it, -1 if none matches."""
    clauses: NDArray[np.int32]
    """numpy int32 array: index of the clause among all clauses of the MERGE."""
    source_matched: NDArray[np.bool_]
    """numpy bool array: whether the row of the source matched a row of the target."""
    used_files: frozenset[int]
    """Files with a row that matched or changes."""

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, kept: NDArray[np.bool_]) -> RowActions:
        """Some of the rows, by a numpy bool array."""
        return replace(
            self,
            ordinals=self.ordinals[kept],
            rows=self.rows[kept],
            source_rows=self.source_rows[kept],
            clauses=self.clauses[kept],
        )

    def bitmaps(self, wanted: NDArray[np.bool_] | None = None) -> dict[int, BitMap64]:
        """Indexes of the rows by file.

        `wanted`: numpy bool array, a value per row; None for all.
        """
        ordinals = self.ordinals if wanted is None else self.ordinals[wanted]
        rows = self.rows if wanted is None else self.rows[wanted]
        return {ordinal: bitmap_of(part) for ordinal, part in rows_by_file(ordinals, rows)}


def find_row_actions(plan: MergePlan, source: SourceRows, join: MergeJoin) -> RowActions:
    """What the clauses do to the existing rows of the table.

    `join`: of the two; it carries the columns of the conditions of the matched clauses.
    """
    target, lacking = plan.target, ClauseChoice(plan, "not_matched_by_source")
    search = _Search(plan, source.num_rows, keeps_rows=bool(lacking.clauses))
    files = list(data_files(target.files))
    searched = [
        file for file, is_in in zip(files, plan.may_match.to_pylist(), strict=True) if is_in
    ]
    if searched and join.num_candidates:
        reader = _make_target_reader(target, join.target_paths)
        sources = (join.narrowed(source) for source in reader.sources(searched))
        batches = read_ahead(target.store, sources)
        for pairs in join.pairs(batches):
            search.take(pairs)
    found = _sort_columns(search.parts)
    if not plan.deletes_every_match:
        _refuse_doubles(plan, found, source)
    found = _without_doubles(found)
    if lacking.clauses:
        rest = [
            replace(file, hidden=search.matched_rows.get(file.ordinal))
            for file, is_in in zip(files, plan.may_lack_source.to_pylist(), strict=True)
            if is_in
        ]
        parts = [found, *_find_unmatched(target, rest, lacking)]
        found = _sort_columns(parts)
    ordinals, rows, source_rows, chosen = found
    used = search.used_files | frozenset(np.unique(ordinals).tolist())
    return RowActions(ordinals, rows, source_rows, chosen, search.source_matched, used)


def _make_target_reader(target: ReadPlan, paths: Iterable[tuple[str, ...]]) -> DataFileReader:
    """Reads the top-level columns of the table that hold some paths, with positions."""
    needed = {path[1] for path in paths}
    names = [name for name in target.configuration.schema.names if name in needed]
    return plan_reader(target, names)


_Columns: TypeAlias = "tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[np.int32]]"
"""numpy arrays: file, row, row of the source, clause."""


class _Search:
    def __init__(self, plan: MergePlan, num_source_rows: int, *, keeps_rows: bool) -> None:
        self._choice = ClauseChoice(plan, "matched")
        self._keeps_rows = keeps_rows
        self.matched_rows: dict[int, BitMap64] = {}
        """Indexes of the rows that have matched, by file, if they are kept."""
        self.source_matched = np.zeros(num_source_rows, dtype=bool)
        self.used_files: frozenset[int] = frozenset()
        self.parts: list[_Columns] = []

    def take(self, pairs: Pairs) -> None:
        self.source_matched[pairs.source_rows] = True
        self.used_files |= frozenset(np.unique(pairs.ordinals).tolist())
        if self._keeps_rows:
            add_rows(self.matched_rows, pairs.ordinals, pairs.rows)
        chosen = self._choice.choose(pairs.columns, len(pairs.rows))
        wanted = chosen >= 0
        if wanted.any():
            self.parts.append(
                (
                    pairs.ordinals[wanted],
                    pairs.rows[wanted],
                    pairs.source_rows[wanted],
                    chosen[wanted],
                )
            )


def _sort_columns(parts: list[_Columns]) -> _Columns:
    """All parts joined, in order of file and row; the list is emptied."""
    if not parts:
        empty = np.empty(0, dtype=np.int64)
        return empty.astype(np.int32), empty, empty, empty.astype(np.int32)
    # There may be many rows, so no more than one column is in memory twice.
    pieces = list(zip(*parts, strict=True))
    parts.clear()
    columns = [np.concatenate(pieces.pop(0)) for _ in range(4)]
    order = np.lexsort(columns[2::-1])
    for index in range(4):
        columns[index] = columns[index][order]
    return columns[0], columns[1], columns[2], columns[3]


def _is_double(found: _Columns) -> NDArray[np.bool_]:
    """Whether each entry has the same target row as the entry before: numpy bool array."""
    ordinals, rows, _, _ = found
    is_double = np.zeros(len(rows), dtype=bool)
    is_double[1:] = (ordinals[1:] == ordinals[:-1]) & (rows[1:] == rows[:-1])
    return is_double


def _without_doubles(found: _Columns) -> _Columns:
    kept = ~_is_double(found)
    if kept.all():
        return found
    ordinals, rows, source_rows, clauses = found
    return ordinals[kept], rows[kept], source_rows[kept], clauses[kept]


def _refuse_doubles(plan: MergePlan, found: _Columns, source: SourceRows) -> None:
    """Check that no two rows of the source change one row of the target."""
    excess = np.unique(found[2][_is_double(found)])
    if not len(excess):
        return
    names = plan.condition.source_names or source.schema.names
    shown = python_rows(source.take(excess[:MAX_EXAMPLES], names))
    raise ambiguous_matches(len(excess), shown, table=plan.target.store.location.uri)


def _find_unmatched(
    target: ReadPlan, files: Sequence[DataFile], choice: ClauseChoice
) -> Iterator[_Columns]:
    """The visible rows of some files to which a clause for unmatched target rows applies."""
    reader = _make_target_reader(target, choice.columns)
    for batch in read_ahead(target.store, reader.sources(files)):
        chosen = choice.choose(target_columns(batch, choice.columns), batch.num_rows)
        wanted = chosen >= 0
        ordinals = np.from_dlpack(batch.column(FILE_ORDINAL))[wanted]
        rows = np.from_dlpack(batch.column(ROW_INDEX))[wanted]
        if len(rows):
            yield ordinals, rows, np.full(len(rows), _NO_SOURCE_ROW), chosen[wanted]
