"""The part of a table that a MERGE reads and depends on: chosen by the log alone.

Spec: Per-file Statistics; Partition Value Serialization.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from dagster_delta.engines.engine import LogPlanner
from dagster_delta.engines.expressions.generated_filters import with_generated_filters
from dagster_delta.engines.statements.merge_clauses import MergeClause
from dagster_delta.engines.statements.merge_condition import MergeCondition, target_predicate
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.statistics.predicates import And, Constant, IsTrue, Or, Predicate
from dagster_delta.protocol.statistics.skipping import LoadStatistics, skip_files
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.table_configuration import TableConfiguration
from dagster_delta.table.read.large_tables import candidates_in_large_table
from dagster_delta.table.read.row_selection import may_hold_matches

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot

__all__ = ["MergeScope", "matching_predicate"]


@dataclass(frozen=True, slots=True)
class MergeScope:
    """The files that a MERGE has to look into."""

    configuration: TableConfiguration
    files: Any
    """`pyarrow.Table` of LIVE_FILE_SCHEMA."""
    may_match: Any
    """`pyarrow.BooleanArray`, a value per file: whether a row of it may match."""
    may_lack_source: Any
    """`pyarrow.BooleanArray`, a value per file: whether a row of it may be one that a clause for
    rows not matched by the source wants."""
    predicate: Predicate
    """True of every row that may match, or change otherwise."""

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        matching: Predicate,
        clauses: Sequence[MergeClause],
        *,
        session_is_utc: bool = True,
        planner: LogPlanner | None = None,
    ) -> MergeScope:
        """The scope of a MERGE.

        Args:
            snapshot: the version that is merged into.
            matching: true of every row that may match a row of the source.
            clauses: all clauses.
            session_is_utc: whether the engine reads timestamps without a zone in UTC.
            planner: what finds the files of large tables, where the engine has its own.
        """
        lacking: Predicate = Or(
            tuple(
                Constant(True)
                if each.condition is None
                else IsTrue(target_predicate(each.condition, session_is_utc=session_is_utc))
                for each in clauses
                if each.text.kind == "not_matched_by_source"
            )
        )
        configuration = snapshot.configuration
        matching = with_generated_filters(matching, configuration)
        lacking = with_generated_filters(lacking, configuration)
        files, statistics = _files(snapshot, Or((matching, lacking)), planner)
        may_match, may_lack = (
            skip_files(each, configuration, files["partition_values"], statistics).may_match
            for each in (matching, lacking)
        )
        kept = pc.or_(may_match, may_lack)
        return cls(
            configuration,
            files.filter(kept),
            may_match.filter(kept),
            may_lack.filter(kept),
            Or((matching, lacking)),
        )

    def reads(self, paths: Iterable[str]) -> ReadScope:
        """What a concurrent commit must not have changed.

        Args:
            paths: of the files whose rows decided what the MERGE does.
        """
        return ReadScope(
            may_hold=may_hold_matches(self.predicate, self.configuration), paths=frozenset(paths)
        )


def _files(
    snapshot: Snapshot, predicate: Predicate, planner: LogPlanner | None
) -> tuple[Any, LoadStatistics]:
    """The files to look at more closely, and what gives statistics on them."""
    found = candidates_in_large_table(snapshot, predicate, planner)
    if found is None:
        return snapshot.live_files(LIVE_FILE_SCHEMA.names), snapshot.statistics
    files = found.files
    return files, lambda columns: parse_statistics_json(files["stats"], columns)


def matching_predicate(
    condition: MergeCondition, keys: Iterable[Predicate], *, session_is_utc: bool = True
) -> Predicate:
    """What is true of every row of the table that may match a row of the source.

    Args:
        condition: when rows match.
        keys: what is known of the table's side of the keys.
        session_is_utc: as in `MergeScope.of`.
    """
    parts = [
        target_predicate(each, session_is_utc=session_is_utc) for each in condition.target_only
    ]
    return And((*parts, *keys))
