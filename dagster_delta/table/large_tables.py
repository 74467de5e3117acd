"""Which files of a table a predicate needs, found by an engine where the table is large.

Spec: Action Reconciliation; Per-file Statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_delta.engines.engine import LoggedFiles, LogPlanner
from dagster_delta.protocol.file_skipping import SkippedFiles, skip_files
from dagster_delta.protocol.predicates import Constant, Predicate
from dagster_delta.protocol.statistics import parse_statistics_json

if TYPE_CHECKING:
    from dagster_delta.table.snapshot import Snapshot

__all__ = ["CandidateFiles", "candidate_files", "large_log"]


@dataclass(frozen=True, slots=True)
class CandidateFiles:
    """Files that may hold matches, some of them maybe not."""

    files: Any
    """`pa.Table` of LIVE_FILE_SCHEMA."""
    skipped: SkippedFiles
    """What the predicate says of each of them."""


def large_log(snapshot: Snapshot, planner: LogPlanner | None) -> LoggedFiles | None:
    """The log of a version whose files the planner should look for; None where that happens here.

    Raises:
        InvalidTable, StorageFailure: of the log.
    """
    if planner is None:
        return None
    logged = snapshot.logged_files(more_than=planner.max_driver_files)
    return logged if logged is not None and planner.can_plan(logged) else None


def candidate_files(
    logged: LoggedFiles, planner: LogPlanner, predicate: Predicate | None
) -> CandidateFiles | None:
    """The files that may hold matches; None where they are too many to be listed here.

    Args:
        logged: the log.
        planner: looks for them.
        predicate: with what follows for generated columns; None for every row.

    Raises:
        InvalidTable, StorageFailure: of the log.
    """
    wanted = Constant(value=True) if predicate is None else predicate
    files = planner.find_files(logged, wanted)
    if files is None:
        return None
    # The planner keeps what it is not sure of; the bounds of the few that are left are at hand.
    skipped = skip_files(
        wanted,
        logged.configuration,
        files["partition_values"],
        lambda columns: parse_statistics_json(files["stats"], columns),
    )
    return CandidateFiles(files, skipped)
