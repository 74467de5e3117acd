"""Which files an overwrite removes whole, and what that choice depends on.

Spec: Add File and Remove File; Partition Value Serialization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import UnsupportedExpression
from dagster_delta.protocol.actions import AddFile, RemoveFile
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.schema import DataType
from dagster_delta.protocol.statistics.skipping import partition_column
from dagster_delta.protocol.values.arrow_columns import map_column, whole_array
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.protocol.values.partition_values import parse_partition_value
from dagster_delta.table.read.file_planner import FilePlanner
from dagster_delta.table.read.partition_codes import files_in_partitions
from dagster_delta.table.transaction.file_actions import REMOVED_COLUMNS, tombstones

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression
    from dagster_delta.table.read.snapshot import Snapshot

PartitionKey = tuple[object, ...]


class Replacement(msgspec.Struct, frozen=True):
    """The files that an overwrite removes from the table."""

    removes: tuple[RemoveFile, ...] = ()
    """Tombstones of the removed files."""
    reads: ReadScope = msgspec.field(default_factory=ReadScope)
    """What the choice depends on."""


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
    replaced = {key(each.partition_values) for each in written}
    names = snapshot.configuration.physical_partition_columns

    def is_replaced(files: pa.Table) -> pa.BooleanArray:
        values = files["partition_values"]
        return files_in_partitions(values, names, lambda each: key(each) in replaced)

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
            (each.data_type for each in configuration.partition_schema),
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
