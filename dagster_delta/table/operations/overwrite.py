"""OVERWRITE: rows in place of all rows, of those of some partitions, or of those that match.

Spec: Add File and Remove File; Append-only Tables; Partition Value Serialization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from itertools import compress
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.plans import WriteResult
from dagster_delta.errors import InvalidArgument, UnsupportedExpression, UnsupportedFeature
from dagster_delta.protocol.actions import AddFile, RemoveFile
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.schema import DataType
from dagster_delta.protocol.statistics.skipping import partition_column
from dagster_delta.protocol.values.arrow_columns import map_column, whole_array
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.protocol.values.partition_values import parse_partition_value
from dagster_delta.table.operations.row_write import (
    DYNAMIC,
    RowWrite,
    overwrite_check,
    write_metrics,
)
from dagster_delta.table.operations.write_planning import write_spec
from dagster_delta.table.read.file_planner import FilePlanner
from dagster_delta.table.read.partition_codes import files_in_partitions
from dagster_delta.table.read.row_selection import read_plan, select_rows
from dagster_delta.table.transaction.file_actions import REMOVED_COLUMNS, file_table, tombstones

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.transaction.transaction import CommitResult

PartitionKey = tuple[object, ...]


class Replacement(msgspec.Struct, frozen=True):
    """The files that an overwrite removes from the table."""

    removes: tuple[RemoveFile, ...] = ()
    """Tombstones of the removed files."""
    reads: ReadScope = msgspec.field(default_factory=ReadScope)
    """What the choice depends on."""


def overwrite_rows(write: RowWrite, snapshot: Snapshot | None) -> CommitResult:
    """Replace all rows, those that a predicate matches, or those of the partitions written.

    Errors are those of `append_rows`, and PartitionMismatch: a new row does not satisfy `where`.
    """
    where = write.options.where
    if write.options.schema_mode == "overwrite" and where is not None:
        raise InvalidArgument(
            "the schema can only be replaced together with all rows; leave out where, or use "
            'schema_mode="merge"'
        )
    parameters: dict[str, object] = {"mode": "Overwrite"}
    if where == DYNAMIC:
        parameters["isDynamicPartitionOverwrite"] = True
    elif where is not None:
        parameters["predicate"] = where

    def overwrite() -> CommitResult:
        configuration = write.stage_configuration()
        if where == DYNAMIC:
            metrics = _replace_partitions(write, configuration)
        elif where is None or write.transaction.snapshot is None:
            metrics = _replace_everything(write, configuration, where)
        else:
            metrics = _replace_matching(write, configuration, write.transaction.snapshot, where)
        return write.commit(configuration, parameters, metrics)

    return write.run(overwrite, snapshot)


def _replace_everything(
    write: RowWrite, configuration: TableConfiguration, where: str | None
) -> dict[str, int | str]:
    snapshot, replaced = write.transaction.snapshot, Replacement()
    if snapshot is not None:
        replaced = replace_everything(snapshot, now_ms=write.clock())
        _refuse_removal(write, replaced.removes)
    check = [] if where is None else [overwrite_check(where)]
    return _stage_replacement(write, replaced, write.write_rows(configuration, check))


def _replace_partitions(write: RowWrite, configuration: TableConfiguration) -> dict[str, int | str]:
    if not configuration.partition_columns:
        raise InvalidArgument(
            'where="dynamic" replaces partitions, and the table has none; leave it out to replace '
            "all rows",
            table=write.store.location.uri,
        )
    written, snapshot, replaced = write.write_rows(configuration), write.transaction.snapshot, None
    if snapshot is not None:
        replaced = replace_partitions(snapshot, written.files, now_ms=write.clock())
        _refuse_removal(write, replaced.removes)
    return _stage_replacement(write, replaced or Replacement(), written)


def _replace_matching(
    write: RowWrite, configuration: TableConfiguration, snapshot: Snapshot, where: str
) -> dict[str, int | str]:
    expression = write.parse_condition(where, snapshot, "the condition of the overwrite")
    replaced = replace_matching_partitions(snapshot, expression, now_ms=write.clock())
    if replaced is None:
        return _replace_rows(write, configuration, snapshot, expression)
    _refuse_removal(write, replaced.removes)
    written = write.write_rows(configuration, [overwrite_check(expression.sql)])
    return _stage_replacement(write, replaced, written)


def _stage_replacement(
    write: RowWrite, replaced: Replacement, written: WriteResult
) -> dict[str, int | str]:
    write.transaction.depend_on(replaced.reads)
    write.transaction.stage_removed(replaced.removes)
    return write_metrics(written) | {
        "numRemovedFiles": len(replaced.removes),
        "numRemovedBytes": sum(remove.size_bytes or 0 for remove in replaced.removes),
    }


def _replace_rows(
    write: RowWrite,
    configuration: TableConfiguration,
    snapshot: Snapshot,
    expression: SqlExpression,
) -> dict[str, int | str]:
    from dagster_delta.table.operations.row_changes import change_rows

    transaction, engine = write.transaction, write.engine
    selected = select_rows(snapshot, expression, engine)
    _refuse_removal(write, selected.files["path"])
    written = write.write_rows(configuration, [overwrite_check(expression.sql)])
    if not selected.files.num_rows:
        transaction.depend_on(selected.reads)
        return write_metrics(written) | {"numRemovedFiles": 0, "numRemovedBytes": 0}
    counts = change_rows(transaction, selected, engine, where=expression)
    if counts["numAddedChangeFiles"]:
        # As soon as a commit has change data files, they alone are the feed.
        plan = read_plan(snapshot, file_table(written.files), None, configuration)
        spec = write_spec(configuration, write.store.location, check_rows=False)
        transaction.stage_change_files(engine.record_inserts(plan, spec))
    names = ("numRemovedFiles", "numRemovedBytes", "numCopiedRows")
    # Copied rows are named only where there are any.
    return write_metrics(written) | {
        name: counts[name] for name in names if counts[name] or name != "numCopiedRows"
    }


def _refuse_removal(write: RowWrite, removed: Sized) -> None:
    snapshot = write.transaction.snapshot
    if len(removed) and snapshot is not None and snapshot.configuration.append_only:
        raise UnsupportedFeature(
            "the table is append-only (delta.appendOnly), and this overwrite would remove "
            "rows; append instead, or unset the property first",
            table=write.store.location.uri,
            version=snapshot.version,
        )


def replace_everything(snapshot: Snapshot, *, now_ms: int) -> Replacement:
    """Every file of the table."""
    files = snapshot.live_files(REMOVED_COLUMNS)
    return Replacement(tombstones(files, now_ms), ReadScope(whole_table=True))


def replace_partitions(
    snapshot: Snapshot, written: Iterable[AddFile], *, now_ms: int
) -> Replacement:
    """Every file of the partitions that new files were written to.

    Partitions are compared by value: writers spell one value in several ways.
    """
    key = _partition_key(snapshot.configuration)
    replaced = {key(file.partition_values) for file in written}
    names = snapshot.configuration.physical_partition_columns

    def is_replaced(files: pa.Table) -> pa.BooleanArray:
        values = files["partition_values"]
        return files_in_partitions(values, names, lambda values: key(values) in replaced)

    removes = tombstones(FilePlanner(snapshot).choose(REMOVED_COLUMNS, is_replaced), now_ms)
    return Replacement(
        removes,
        ReadScope(
            may_hold=lambda adds: [add for add in adds if key(add.partition_values) in replaced],
            paths=frozenset(remove.path for remove in removes),
        ),
    )


def _partition_key(
    configuration: TableConfiguration,
) -> Callable[[Mapping[str, str | None]], PartitionKey]:
    columns = tuple(
        zip(
            configuration.physical_partition_columns,
            (field.data_type for field in configuration.partition_schema),
            strict=True,
        )
    )
    parsed: dict[tuple[str, str | None], object] = {}

    def value(name: str, text: str | None, data_type: DataType) -> object:
        if (name, text) not in parsed:
            found = parse_partition_value(text, data_type)
            # NaN equals nothing, not even itself, but is one partition.
            parsed[name, text] = "NaN" if found != found else found
        return parsed[name, text]

    def key(values: Mapping[str, str | None]) -> PartitionKey:
        return tuple(value(name, values.get(name), data_type) for name, data_type in columns)

    return key


def replace_matching_partitions(
    snapshot: Snapshot, expression: SqlExpression, *, now_ms: int
) -> Replacement | None:
    """The files of the partitions that satisfy a predicate; None if partition values alone cannot
    decide it, or the embedded engine cannot evaluate it.
    """
    by_partition = _by_partition(snapshot.configuration, expression)
    if by_partition is None:
        return None

    def is_replaced(files: pa.Table) -> pa.BooleanArray:
        return by_partition(whole_array(files["partition_values"]))

    removes = tombstones(FilePlanner(snapshot).choose(REMOVED_COLUMNS, is_replaced), now_ms)

    def may_hold(adds: Sequence[AddFile]) -> Sequence[AddFile]:
        held = by_partition(map_column([add.partition_values for add in adds]))
        return list(compress(adds, held.to_pylist()))

    return Replacement(
        removes, ReadScope(may_hold=may_hold, paths=frozenset(remove.path for remove in removes))
    )


def _by_partition(
    configuration: TableConfiguration, expression: SqlExpression
) -> Callable[[pa.MapArray], pa.BooleanArray] | None:
    """A function that decides from partition values whether every row of a file matches, or none
    does.

    None if the predicate needs more than partition values, or another engine.
    """
    partitioned = set(configuration.partition_columns)
    if any(path[0] not in partitioned for path in expression.references):
        return None
    if not partitioned:
        # For a constant: an Arrow table without columns has no rows to evaluate it on.
        return None
    try:
        expression.check_embeddable()
    except UnsupportedExpression:
        return None
    from dagster_delta.sql.evaluation import evaluate_filter

    schema = to_arrow_schema(configuration.partition_schema)

    def matches(partition_values: pa.MapArray) -> pa.BooleanArray:
        names = configuration.partition_columns
        columns = [partition_column(name, configuration, partition_values) for name in names]
        rows = pa.Table.from_arrays(columns, schema=schema)
        return pc.fill_null(evaluate_filter(expression, rows), False)

    return matches
