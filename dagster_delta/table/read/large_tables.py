"""Which files of a table a predicate needs, found without holding all files of a large table.

An engine with workers of its own looks for them there; otherwise the log is gone through in
batches, of which only what may match is kept.

Spec: Action Reconciliation; Per-file Statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.engine import LoggedFiles, LogPlanner
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.statistics.predicates import Constant, Predicate
from dagster_delta.protocol.statistics.skipping import SkippedFiles, skip_files, skipping_columns
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.arrow_values import every

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot

__all__ = [
    "CandidateFiles",
    "candidate_files",
    "candidates_in_large_table",
    "files_where",
    "large_log",
]


@dataclass(frozen=True, slots=True)
class CandidateFiles:
    """Files that may hold matches, some of them maybe not."""

    files: Any
    """`pa.Table` of LIVE_FILE_SCHEMA."""
    skipped: SkippedFiles
    """What the predicate says of each of them."""


def candidates_in_large_table(
    snapshot: Snapshot,
    predicate: Predicate,
    planner: LogPlanner | None = None,
    names: Sequence[str] = LIVE_FILE_SCHEMA.names,
) -> CandidateFiles | None:
    """The files of a large table that may hold matches: no more of them are held than these.

    Args:
        snapshot: the version.
        predicate: with what follows for generated columns.
        planner: of an engine that looks for them in its own way, where there is one.
        names: columns of LIVE_FILE_SCHEMA that are needed at least.

    Returns:
        None where the table is so small that all of its files may as well be looked at together,
        or where they are known already.

    Raises:
        InvalidTable, StorageFailure: of the log.
    """
    logged = large_log(snapshot, planner)
    if logged is not None and planner is not None:
        found = candidate_files(logged, planner, predicate)
        if found is not None:
            return found
    return _streamed(snapshot, predicate, names) if snapshot.is_large_and_unread else None


def _streamed(snapshot: Snapshot, predicate: Predicate, names: Sequence[str]) -> CandidateFiles:
    configuration = snapshot.configuration
    columns = list(skipping_columns(predicate, configuration).values())
    read = [*names] if "partition_values" in names else [*names, "partition_values"]
    files = [pa.Table.from_batches([], pa.schema(map(LIVE_FILE_SCHEMA.field, names)))]
    only_matches = []
    is_decided = True
    for batch in snapshot.file_batches(read, columns):
        values = batch.files["partition_values"]
        skipped = skip_files(predicate, configuration, values, batch.statistics)
        if not pc.any(skipped.may_match).as_py():
            continue
        files.append(batch.files.select(list(names)).filter(skipped.may_match))
        only_matches.append(skipped.only_matches.filter(skipped.may_match))
        is_decided = is_decided and skipped.is_decided
    found = pa.concat_tables(files)
    certain = pa.chunked_array(only_matches, pa.bool_()).combine_chunks()
    return CandidateFiles(found, SkippedFiles(every(True, found.num_rows), certain, is_decided))


def files_where(snapshot: Snapshot, names: Sequence[str], choose: Callable[[Any], Any]) -> Any:
    """The live files that are chosen, a `pa.Table`; of a large table no others are held.

    Args:
        snapshot: the version.
        names: columns of LIVE_FILE_SCHEMA.
        choose: gives, for a `pa.Table` of these columns, a boolean column.

    Raises:
        InvalidTable, StorageFailure: of the log.
    """
    if not snapshot.is_large_and_unread:
        files = snapshot.live_files(names)
        return files.filter(choose(files))
    chosen = [batch.files.filter(choose(batch.files)) for batch in snapshot.file_batches(names)]
    none = pa.Table.from_batches([], pa.schema(map(LIVE_FILE_SCHEMA.field, names)))
    return pa.concat_tables([none, *chosen])


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
    """The files that may hold matches, as a planner finds them; None where they are too many.

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
