"""The part of a table that a MERGE reads and depends on: decided from the log alone.

Spec: Per-file Statistics; Partition Value Serialization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from dagster_delta.engines.engine import LogPlanner
from dagster_delta.engines.statements.merge_clauses import MergeClause
from dagster_delta.engines.statements.merge_condition import MergeCondition, in_table
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.statistics.predicates import And, Constant, IsTrue, Or, Predicate
from dagster_delta.table.read.file_planner import FilePlanner

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot


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
        *,
        session_is_utc: bool = True,
        planner: LogPlanner | None = None,
    ) -> MergeScope:
        """The scope of a MERGE.

        `keys` are known facts about the table's side of the keys; `planner` finds the files of
        large tables, if the engine has its own.
        """
        file_planner = FilePlanner(snapshot, planner, session_is_utc=session_is_utc)
        target_only = map(in_table, condition.target_only)
        matching = And((*map(file_planner.predicate_of, target_only), *keys))
        lacking = Or(
            tuple(
                Constant(True)
                if each.condition is None
                else IsTrue(file_planner.predicate_of(in_table(each.condition)))
                for each in clauses
                if each.text.kind == "not_matched_by_source"
            )
        )
        predicates = file_planner.with_generated(matching), file_planner.with_generated(lacking)
        found = file_planner.candidates(*predicates)
        may_match, may_lack_source = (each.may_match for each in found.skipped)
        return cls(found.files, may_match, may_lack_source, file_planner.may_hold(*predicates))

    def reads(self, paths: Iterable[str]) -> ReadScope:
        """What a concurrent commit must not have changed."""
        return ReadScope(may_hold=self.may_hold, paths=frozenset(paths))
