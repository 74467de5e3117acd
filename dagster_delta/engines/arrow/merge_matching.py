"""Finds what a MERGE does to each row of the target, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.arrow.merge_join import MergeJoin, Pairs, places_where, target_columns
from dagster_delta.engines.arrow.row_matching import bitmap_of, rows_by_file
from dagster_delta.engines.plans import ReadPlan
from dagster_delta.engines.statements.merge_clauses import MergeClause
from dagster_delta.engines.statements.merge_plan import MergePlan, ambiguous_matches
from dagster_delta.engines.statements.source_rows import SourceRows
from dagster_delta.parquet.data_file_reader import (
    FILE_ORDINAL,
    ROW_INDEX,
    DataFileReader,
)
from dagster_delta.parquet.nested_arrays import index_of
from dagster_delta.parquet.opened_file import DataFile, data_files
from dagster_delta.parquet.reader import plan_reader, read_ahead
from dagster_delta.protocol.schema import DataType
from dagster_delta.sql.evaluator import Columns, Evaluator

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_EXAMPLES = 5
_NO_SOURCE_ROW = -1


class ClauseChoice:
    """For each row, the first of several clauses that applies."""

    def __init__(self, clauses: Sequence[MergeClause]) -> None:
        self._conditions = [
            None if clause.condition is None else Evaluator(clause.condition) for clause in clauses
        ]
        self.columns: dict[tuple[str, ...], DataType] = {}
        """Type of each column that the conditions read, by path."""
        for condition in self._conditions:
            self.columns |= {} if condition is None else condition.columns

    def choose(self, columns: Columns, num_rows: int) -> NDArray[np.int32]:
        """Index of the clause per row, -1 if none applies: numpy int32."""
        chosen = np.full(num_rows, -1, dtype=np.int32)
        for index, condition in enumerate(self._conditions):
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
    target, clauses = plan.target, plan.clauses
    matched = _of_kind(clauses, "matched")
    lacking = _of_kind(clauses, "not_matched_by_source")
    search = _Search(clauses, matched, source.num_rows, keeps_rows=bool(lacking))
    files = list(data_files(target.files))
    searched = [
        each for each, is_in in zip(files, plan.may_match.to_pylist(), strict=True) if is_in
    ]
    if searched and join.num_candidates:
        reader = _reader(target, join.target_paths)
        sources = (join.narrowed(source) for source in reader.sources(searched))
        batches = read_ahead(target.store, sources)
        for pairs in join.pairs(batches):
            search.take(pairs)
    found = _sorted(search.parts)
    is_deleting = [clauses[index].text.action == "delete" for index in matched]
    if is_deleting != [True] or clauses[matched[0]].condition is not None:
        _refuse_doubles(found, join, source, table=target.store.location.uri)
    found = _without_doubles(found)
    if lacking:
        hidden = search.matched_rows()
        rest = [
            replace(each, hidden=hidden.get(each.ordinal))
            for each, is_in in zip(files, plan.may_lack_source.to_pylist(), strict=True)
            if is_in
        ]
        parts = [found, *_lacking(target, rest, clauses, lacking)]
        found = _sorted(parts)
    ordinals, rows, source_rows, chosen = found
    used = search.used_files | frozenset(np.unique(ordinals).tolist())
    return RowActions(ordinals, rows, source_rows, chosen, search.source_matched, used)


def _reader(target: ReadPlan, paths: Iterable[tuple[str, ...]]) -> DataFileReader:
    """Reads the top-level columns of the table that hold some paths, with positions."""
    needed = {path[1] for path in paths}
    names = [name for name in target.configuration.schema.names if name in needed]
    return plan_reader(target, names)


_Columns: TypeAlias = "tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[np.int32]]"
"""numpy arrays: file, row, row of the source, clause."""


class _Search:
    def __init__(
        self,
        clauses: Sequence[MergeClause],
        matched: Sequence[int],
        num_source_rows: int,
        *,
        keeps_rows: bool,
    ) -> None:
        self._choice = ClauseChoice([clauses[index] for index in matched])
        # The last entry means no clause, as -1 does.
        self._indexes = np.array([*matched, -1], dtype=np.int32)
        self._keeps_rows = keeps_rows
        self._matched: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []
        self.source_matched = np.zeros(num_source_rows, dtype=bool)
        self.used_files: frozenset[int] = frozenset()
        self.parts: list[_Columns] = []

    def take(self, pairs: Pairs) -> None:
        self.source_matched[pairs.source_rows] = True
        self.used_files |= frozenset(np.unique(pairs.ordinals).tolist())
        if self._keeps_rows:
            self._matched.append((pairs.ordinals, pairs.rows))
        chosen = self._indexes[self._choice.choose(pairs.columns, len(pairs.rows))]
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

    def matched_rows(self) -> Mapping[int, BitMap64]:
        """Indexes of the rows that have matched, by file."""
        found: dict[int, BitMap64] = {}
        for ordinals, rows in self._matched:
            order = np.lexsort((rows, ordinals))
            for ordinal, part in rows_by_file(ordinals[order], rows[order]):
                found[ordinal] = found.get(ordinal, BitMap64()) | bitmap_of(part)
        return found


def _of_kind(clauses: Sequence[MergeClause], kind: str) -> list[int]:
    return [index for index, each in enumerate(clauses) if each.text.kind == kind]


def _sorted(parts: list[_Columns]) -> _Columns:
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


def _refuse_doubles(found: _Columns, join: MergeJoin, source: SourceRows, *, table: str) -> None:
    """Check that no two rows of the source change one row of the target."""
    excess = np.unique(found[2][_is_double(found)])
    if not len(excess):
        return
    names = join.source_key_names or tuple(source.schema.names)
    shown = source.take(excess[:_MAX_EXAMPLES], names).to_pylist()
    raise ambiguous_matches(len(excess), shown, table=table)


def _lacking(
    target: ReadPlan,
    files: Sequence[DataFile],
    clauses: Sequence[MergeClause],
    lacking: Sequence[int],
) -> Iterator[_Columns]:
    """The visible rows of some files to which a clause for unmatched target rows applies."""
    choice = ClauseChoice([clauses[index] for index in lacking])
    indexes = np.array([*lacking, -1], dtype=np.int32)
    reader = _reader(target, choice.columns)
    for batch in read_ahead(target.store, reader.sources(files)):
        columns = target_columns(batch, choice.columns)
        chosen = indexes[choice.choose(columns, batch.num_rows)]
        wanted = chosen >= 0
        ordinals = np.from_dlpack(batch.column(FILE_ORDINAL))[wanted]
        rows = np.from_dlpack(batch.column(ROW_INDEX))[wanted]
        if len(rows):
            yield ordinals, rows, np.full(len(rows), _NO_SOURCE_ROW), chosen[wanted]
