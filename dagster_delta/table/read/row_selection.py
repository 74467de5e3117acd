"""Which rows of which files a predicate selects: by the log as far as it knows, then by reading.

Spec: Per-file Statistics; Partition Value Serialization; Deletion Vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from dagster_delta.engines.engine import LogPlanner, ReadPlan, RowChangeEngine
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.statistics.predicates import Predicate
from dagster_delta.protocol.statistics.skipping import skip_files
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.table_configuration import TableConfiguration
from dagster_delta.protocol.values.arrow_columns import map_column, string_column
from dagster_delta.table.read.large_tables import CandidateFiles, candidates_in_large_table

if TYPE_CHECKING:
    from dagster_delta.engines.sql.expressions import SqlExpression
    from dagster_delta.table.read.snapshot import Snapshot

__all__ = ["SelectedRows", "may_hold_matches", "read_plan", "select_rows"]


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """Live rows of a table version, and what the choice of them depends on."""

    files: Any
    """`pa.Table` of LIVE_FILE_SCHEMA: the files with at least one selected row."""
    rows: Mapping[str, BitMap64]
    """Indexes of the selected rows by path; of a file without an entry every live row is."""
    reads: ReadScope
    """What a concurrent commit must not have changed."""


def select_rows(
    snapshot: Snapshot,
    where: SqlExpression | None,
    engine: RowChangeEngine,
    *,
    session_is_utc: bool = True,
) -> SelectedRows:
    """The live rows for which a predicate is true.

    Files of which the log proves that all rows satisfy it, or none, are not read.

    Args:
        snapshot: the version.
        where: the predicate; None for every row.
        engine: reads the files of which the log does not know.
        session_is_utc: whether that engine reads timestamps without a zone in UTC.

    Raises:
        UnsupportedExpression, InvalidArgument: of the predicate.
        DataFileMissing, CorruptDeletionVector, InvalidTable, StorageFailure: of log or file.
    """
    if where is None:
        files = snapshot.live_files(LIVE_FILE_SCHEMA.names)
        return SelectedRows(files, {}, ReadScope(whole_table=True))
    from dagster_delta.engines.expressions.generated_filters import with_generated_filters

    configuration = snapshot.configuration
    predicate = with_generated_filters(
        where.to_predicate(session_is_utc=session_is_utc), configuration
    )
    candidates = _candidates(snapshot, predicate, engine.log_planner)
    files, skipped = candidates.files, candidates.skipped
    whole = files.filter(pc.and_(skipped.may_match, skipped.only_matches))
    unsure = files.filter(pc.and_(skipped.may_match, pc.invert(skipped.only_matches)))
    rows: dict[str, BitMap64] = {}
    if unsure.num_rows:
        plan = read_plan(snapshot, unsure, where)
        rows = {each.path: each.rows for each in engine.find_matches(plan)}
    found = pc.is_in(unsure["path"], value_set=string_column(list(rows)))
    selected = pa.concat_tables([whole, unsure.filter(found)])
    paths = frozenset(selected["path"].to_pylist())
    return SelectedRows(
        selected, rows, ReadScope(may_hold=may_hold_matches(predicate, configuration), paths=paths)
    )


def _candidates(
    snapshot: Snapshot, predicate: Predicate, planner: LogPlanner | None
) -> CandidateFiles:
    found = candidates_in_large_table(snapshot, predicate, planner)
    if found is not None:
        return found
    files = snapshot.live_files(LIVE_FILE_SCHEMA.names)
    values = files["partition_values"]
    return CandidateFiles(
        files, skip_files(predicate, snapshot.configuration, values, snapshot.statistics)
    )


def read_plan(
    snapshot: Snapshot,
    files: Any,
    where: SqlExpression | None,
    configuration: TableConfiguration | None = None,
) -> ReadPlan:
    """A read of all columns of some live files.

    Args:
        snapshot: what they are live in.
        files: `pa.Table` of LIVE_FILE_SCHEMA.
        where: exact filter.
        configuration: what the rows are read as, where the commit changes it: columns that are
            new are null, and values have the types that columns were widened to.
    """
    read_as = snapshot.configuration if configuration is None else configuration
    return ReadPlan(
        store=snapshot.store,
        version=snapshot.version,
        configuration=read_as,
        files=files,
        columns=read_as.schema.names,
        where=where,
    )


def may_hold_matches(
    predicate: Predicate, configuration: TableConfiguration
) -> Callable[[AddFile], bool]:
    """Whether a file that somebody else added may hold a row for which the predicate is true."""

    def may_hold(add: AddFile) -> bool:
        values = map_column([add.partition_values])
        stats = string_column([add.stats])
        skipped = skip_files(
            predicate,
            configuration,
            values,
            lambda columns: parse_statistics_json(stats, columns),
        )
        return bool(skipped.may_match[0].as_py())

    return may_hold
