"""Which files of a version may hold rows for a predicate, for a table of any size, and which rows
of them it selects: decided from the log if possible, else by reading.

The log of a large table is read in batches, and only the files that may match are kept.

Spec: Action Reconciliation; Per-file Statistics; Partition Value Serialization; Deletion Vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import ReadPlan
from dagster_delta.errors import CorruptLog, InvalidTable
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.checkpoint.reader import KeptBytes
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.statistics.statistics import StatisticsColumn, parse_statistics_json
from dagster_delta.protocol.values.arrow_columns import integer_column, map_column, string_column
from dagster_delta.protocol.values.arrow_values import integer_scalar
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.sql.skipping import (
    LoadStatistics,
    SkippedFiles,
    skip_files,
    skipping_columns,
    with_constants,
)
from dagster_delta.sql.typed import Typed

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from dagster_delta.sql.expressions import SqlExpression
    from dagster_delta.table.log.version import LogVersion


class CandidateFiles(msgspec.Struct, frozen=True):
    """Files that may hold a row that satisfies one of some predicates; all others are left out.
    Without predicates these are all files.
    """

    files: pa.Table
    """The files, with the requested columns of LIVE_FILE_SCHEMA."""
    skipped: tuple[SkippedFiles, ...]
    """The result of each predicate on these files, in the order of the predicates."""
    statistics: LoadStatistics
    """Gives the statistics of these files, row for row; for a large table only if the column
    `stats` was requested."""
    is_decided: bool
    """Whether the rows of these files need no filter, because partition values satisfy it."""

    @classmethod
    def of(
        cls, files: pa.Table, skipped: Sequence[SkippedFiles], statistics: LoadStatistics
    ) -> CandidateFiles:
        """The candidates among some files."""
        if not skipped:
            return cls(files, (), statistics, is_decided=True)
        kept, is_decided = skipped[0].may_match, skipped[0].is_decided
        for result in skipped[1:]:
            kept, is_decided = pc.or_(kept, result.may_match), is_decided and result.is_decided
        if kept.true_count == len(kept):
            return cls(files, tuple(skipped), statistics, is_decided)
        return cls(
            pc.filter(files, kept),
            tuple(result.filter(kept) for result in skipped),
            lambda columns: pc.filter(statistics(columns), kept),
            is_decided,
        )

    @classmethod
    def among(
        cls, files: pa.Table, configuration: TableConfiguration, *predicates: Typed
    ) -> CandidateFiles:
        """The candidates among files that are in memory with their statistics."""

        def statistics(columns: Sequence[StatisticsColumn]) -> pa.Table:
            return parse_statistics_json(files["stats"], columns)

        values = files["partition_values"]
        skipped = [
            skip_files(predicate, configuration, values, statistics) for predicate in predicates
        ]
        return cls.of(files, skipped, statistics)


class FilePlanner:
    """Finds the files of a version that a read, a change or a count needs."""

    def __init__(self, snapshot: LogVersion) -> None:
        self.snapshot = snapshot
        self._latest: tuple[tuple[Typed, ...], list[SkippedFiles]] | None = None

    def predicates_of(self, where: SqlExpression | None) -> tuple[Typed, ...]:
        """The predicate of a filter on partition values and bounds: one predicate, or none without
        a filter.
        """
        return () if where is None else (self.predicate_of(where.typed),)

    def predicate_of(self, condition: Typed) -> Typed:
        """The condition with its constants computed, and with those that it implies for generated
        partition columns. Raises nothing.
        """
        from dagster_delta.sql.generated_filters import with_generated_filters

        return with_generated_filters(with_constants(condition), self.snapshot.configuration)

    def candidates(
        self, *predicates: Typed, columns: Sequence[str] = LIVE_FILE_SCHEMA.names
    ) -> CandidateFiles:
        """The files that may hold a row that satisfies one of the predicates. Of a large table only
        these are kept in memory; without predicates all files are.
        """
        if predicates and self.snapshot.is_large_and_unread:
            kept = self.snapshot.kept_bytes()
            return _unite_batches(
                self.batches(columns, *predicates), columns, len(predicates), kept
            )
        return self._select_in_memory(columns, predicates)

    def batches(
        self,
        columns: Sequence[str],
        *predicates: Typed,
        statistics: Sequence[StatisticsColumn] | None = None,
    ) -> Iterator[CandidateFiles]:
        """The files of `candidates` in several parts, for callers that need all files one after
        another. Of a large table only one batch is in memory; of a small one all files are the only
        part.

        Parts give the statistics of `statistics` beside those of the predicates; None for no
        statistics, `()` for numbers of rows.
        """
        if not self.snapshot.is_large_and_unread:
            yield self._select_in_memory(columns, predicates)
            return
        configuration = self.snapshot.configuration
        asked = dict.fromkeys(statistics or ())
        for predicate in predicates:
            asked |= dict.fromkeys(skipping_columns(predicate, configuration).values())
        names = [*columns]
        if predicates and "partition_values" not in names:
            names.append("partition_values")
        loaded = None if statistics is None and not asked else [*asked]
        for batch in self.snapshot.file_batches(names, loaded):
            files, load = batch.files.select([*columns]), batch.statistics
            values = predicates and batch.files["partition_values"]
            skipped = [
                skip_files(predicate, configuration, values, load) for predicate in predicates
            ]
            if not skipped or any(result.may_match.true_count for result in skipped):
                yield CandidateFiles.of(files, skipped, load)

    def choose(
        self, columns: Sequence[str], is_chosen: Callable[[pa.Table], pa.BooleanArray]
    ) -> pa.Table:
        """The chosen files; of a large table only these are kept in memory."""
        kept, chosen = self.snapshot.kept_bytes(), []
        for batch in self.batches(columns):
            chosen.append(pc.filter(batch.files, is_chosen(batch.files)))
            kept.add(chosen[-1:])
        return pa.concat_tables([_no_files(columns), *chosen])

    def may_hold(self, *predicates: Typed) -> Callable[[Sequence[AddFile]], Sequence[AddFile]]:
        """Those of the files that other commits add that may hold a row that satisfies one of the
        predicates, for a `ReadScope`.
        """
        configuration = self.snapshot.configuration

        def may_hold(adds: Sequence[AddFile]) -> Sequence[AddFile]:
            columns = {
                "number": integer_column(range(len(adds))),
                "partition_values": map_column([add.partition_values for add in adds]),
                "stats": string_column([add.stats for add in adds]),
            }
            files = pa.Table.from_arrays(list(columns.values()), names=list(columns))
            found = CandidateFiles.among(files, configuration, *predicates).files
            return [adds[number] for number in found["number"].to_pylist()]

        return may_hold

    def _select_in_memory(
        self, columns: Sequence[str], predicates: tuple[Typed, ...]
    ) -> CandidateFiles:
        """The candidates among the files that the snapshot keeps in memory."""
        snapshot, configuration = self.snapshot, self.snapshot.configuration
        latest, statistics = self._latest, snapshot.statistics
        if latest is None or latest[0] != predicates:
            values = predicates and snapshot.live_files(["partition_values"])["partition_values"]
            skipped = [
                skip_files(predicate, configuration, values, statistics) for predicate in predicates
            ]
            # Kept as one value, because another thread may use other predicates at the same time.
            self._latest = latest = predicates, skipped
        return CandidateFiles.of(snapshot.live_files(columns), latest[1], statistics)


def _unite_batches(
    batches: Iterator[CandidateFiles], columns: Sequence[str], num_predicates: int, kept: KeptBytes
) -> CandidateFiles:
    found = []
    for batch in batches:
        kept.add([batch.files])
        # The function that gives the statistics of a batch keeps all that it decoded.
        found.append((batch.files, batch.skipped))
    files = pa.concat_tables([_no_files(columns), *(files for files, _ in found)])
    skipped = [
        SkippedFiles.concatenated([skipped[number] for _, skipped in found])
        for number in range(num_predicates)
    ]
    return CandidateFiles.of(
        files, skipped, lambda columns: parse_statistics_json(files["stats"], columns)
    )


def _no_files(columns: Sequence[str]) -> pa.Table:
    return pa.Table.from_batches([], pa.schema(map(LIVE_FILE_SCHEMA.field, columns)))


def count_records(planner: FilePlanner, *predicates: Typed) -> int | None:
    """Rows of a version from the log alone; None if values and statistics are not enough."""
    total = 0
    for batch in planner.batches(("path", "deletion_vector"), *predicates, statistics=()):
        if not batch.is_decided:
            return None
        counts, paths = batch.statistics(())["num_records"], partial(batch.files.column, "path")
        records = live_records(planner.snapshot, counts, batch.files["deletion_vector"], paths)
        if records.null_count:
            return None
        total += int(pc.sum(records, min_count=0).as_py())
    return total


_MOST_ROWS = 2**53


def live_records(
    snapshot: LogVersion,
    num_records: pa.ChunkedArray,
    vectors: pa.ChunkedArray,
    paths: Callable[[], pa.ChunkedArray],
) -> pa.ChunkedArray:
    """Rows of files minus the rows that their deletion vectors hide; null where unknown."""
    live = num_records
    if vectors.null_count < len(vectors):
        hidden = pc.fill_null(_count_deleted_rows(vectors), integer_scalar(0))
        live = pc.subtract(num_records, hidden)
    lowest, highest = pc.min(live), pc.max(live)
    is_negative = (lowest.as_py() or 0) < 0
    # The sum over a few files with more rows would not fit 64 bits.
    if is_negative or (highest.as_py() or 0) > _MOST_ROWS:
        place = pc.index_in(lowest if is_negative else highest, live).as_py()
        rows, deleted = num_records[place].as_py(), _count_deleted_rows(vectors)[place].as_py()
        raise CorruptLog(
            f"the log says that a data file has {rows} rows, and that {deleted or 0} of them are "
            "deleted: its statistics or its deletion vector are wrong; restore the table to an "
            "older version",
            table=snapshot.store.location.uri,
            version=snapshot.version,
            file=decode_path(paths()[place].as_py()),
        )
    return live


def _count_deleted_rows(vectors: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(pc.struct_field(vectors, "cardinality"), pa.int64())


def check_no_row_lost(snapshot: LogVersion, files: pa.Table, num_rows: int) -> None:
    """Compare the rows of files that were written again with those in the log, before the files are
    removed.
    """
    counts = parse_statistics_json(files["stats"], ())["num_records"]
    live = live_records(snapshot, counts, files["deletion_vector"], lambda: files["path"])
    expected = pc.sum(live, skip_nulls=False, min_count=0).as_py()
    check_row_count(snapshot, files.num_rows, expected, num_rows)


def check_row_count(
    snapshot: LogVersion, num_files: int, expected: int | None, num_rows: int
) -> None:
    """Refuse to replace files of which other rows were written again than the log counts; None if
    it does not count them.
    """
    if expected is not None and expected != num_rows:
        raise InvalidTable(
            f"the log counts {expected} rows in {num_files} files, which hold {num_rows}: "
            "statistics or a deletion vector are wrong. Nothing was changed; find the file with a "
            "full scan, and write it again from its source",
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )


class SelectedRows(msgspec.Struct, frozen=True):
    """Live rows of a table version, and what their selection depends on."""

    files: pa.Table
    """Files with at least one selected row, as LIVE_FILE_SCHEMA."""
    rows: Mapping[str, BitMap64]
    """Indexes of the selected rows by path; of a file without an entry every live row is
    selected."""
    reads: ReadScope
    """What a concurrent commit must not have changed."""


def select_rows(snapshot: LogVersion, where: SqlExpression | None, engine: Engine) -> SelectedRows:
    """The live rows that satisfy a predicate.

    A file is not read if the log proves that all of its rows satisfy it, or none.
    """
    if where is None:
        files = snapshot.live_files(LIVE_FILE_SCHEMA.names)
        return SelectedRows(files, {}, ReadScope(whole_table=True))
    planner = FilePlanner(snapshot)
    predicates = planner.predicates_of(where)
    found = planner.candidates(*predicates)
    (skipped,) = found.skipped
    whole = pc.filter(found.files, skipped.only_matches)
    unsure = pc.filter(found.files, pc.invert(skipped.only_matches))
    rows: dict[str, BitMap64] = {}
    if unsure.num_rows:
        plan = read_plan(snapshot, unsure, where)
        rows = {match.path: match.rows for match in engine.find_matches(plan)}
    is_matched = pc.is_in(unsure["path"], value_set=string_column(list(rows)))
    selected = pa.concat_tables([whole, pc.filter(unsure, is_matched)])
    paths = frozenset(selected["path"].to_pylist())
    reads = ReadScope(may_hold=planner.may_hold(*predicates), paths=paths)
    return SelectedRows(selected, rows, reads)


def read_plan(
    snapshot: LogVersion,
    files: pa.Table,
    where: SqlExpression | None,
    configuration: TableConfiguration | None = None,
) -> ReadPlan:
    """A read of all columns of some live files.

    `configuration` is given if the commit changes it: new columns are null, and values have the
    widened types.
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
