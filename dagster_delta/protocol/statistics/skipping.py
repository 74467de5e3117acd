"""Which files a filter has to read: partition values first, then statistics of the remaining files.

Spec: Partition Value Serialization; Per-file Statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.text_limits import char_length, char_paths, padded_type
from dagster_delta.protocol.schema import ArrayType, MapType, StructType, walk_types
from dagster_delta.protocol.statistics.bounds import (
    ColumnBounds,
    bounds_of_partition_values,
    bounds_of_statistics,
)
from dagster_delta.protocol.statistics.predicates import (
    Predicate,
    computed_parts,
    possible_outcomes,
    referenced_columns,
)
from dagster_delta.protocol.statistics.statistics import (
    StatisticsColumn,
    is_name_in_collections,
)
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.protocol.values.partition_values import parse_partition_column

LoadStatistics: TypeAlias = Callable[[Sequence[StatisticsColumn]], pa.Table]
"""Returns the statistics table of all files for some columns, one row per file in order."""


class SkippedFiles(msgspec.Struct, frozen=True):
    """The result of a predicate for many files."""

    may_match: pa.BooleanArray
    """One value per file: true if a row may satisfy the predicate."""
    only_matches: pa.BooleanArray
    """One value per file: true if every row certainly satisfies the predicate."""
    is_decided: bool
    """Whether partition values alone satisfy the predicate in every file that may match, so that
    its rows need no filter."""

    def filter(self, kept: pa.BooleanArray) -> SkippedFiles:
        """The result for the files that are kept."""
        may_match, only_matches = (
            pc.filter(mask, kept) for mask in (self.may_match, self.only_matches)
        )
        return SkippedFiles(may_match, only_matches, self.is_decided)

    @classmethod
    def concatenated(cls, parts: Sequence[SkippedFiles]) -> SkippedFiles:
        """The combined result for the files of several parts, in order."""
        return cls(
            pa.chunked_array([part.may_match for part in parts], pa.bool_()).combine_chunks(),
            pa.chunked_array([part.only_matches for part in parts], pa.bool_()).combine_chunks(),
            is_decided=all(part.is_decided for part in parts),
        )


def skip_files(
    predicate: Predicate,
    configuration: TableConfiguration,
    partition_values: pa.ChunkedArray | pa.MapArray,
    load_statistics: LoadStatistics,
) -> SkippedFiles:
    """Which of many files may hold a row that satisfies a predicate.

    The predicate is over logical paths; partition values are by physical names. `load_statistics`
    is called at most once, and only if data columns can rule out more files.
    """
    count = len(partition_values)
    paths = referenced_columns(predicate)
    bounds: dict[tuple[str, ...], ColumnBounds] = {}
    for name in configuration.partition_columns:
        if (name,) in paths:
            values = partition_column(name, configuration, partition_values)
            data_type = configuration.schema.field(name).data_type
            bounds[(name,)] = bounds_of_partition_values(values, data_type)
    for part in computed_parts(predicate):
        names = sorted(part.columns)
        known = [partition_column(name, configuration, partition_values) for name in names]
        if (found := part.values(pa.Table.from_arrays(known, names=names))) is not None:
            comparison = part.comparison
            bounds[comparison.column] = bounds_of_partition_values(found, comparison.data_type)
    outcomes = possible_outcomes(predicate, bounds, count)
    undecided = pc.and_(outcomes.true, pc.invert(outcomes.only_true))
    if not pc.any(undecided).as_py():
        return SkippedFiles(outcomes.true, outcomes.only_true, is_decided=True)
    columns = skipping_columns(predicate, configuration)
    if not columns:
        return SkippedFiles(outcomes.true, outcomes.only_true, is_decided=False)
    statistics = load_statistics(list(columns.values()))
    for index, (path, column) in enumerate(columns.items()):
        bounds[path] = bounds_of_statistics(statistics, index, column.data_type)
    outcomes = possible_outcomes(predicate, bounds, count)
    return SkippedFiles(outcomes.true, outcomes.only_true, is_decided=False)


def partition_column(
    name: str, configuration: TableConfiguration, partition_values: pa.ChunkedArray | pa.MapArray
) -> pa.Array:
    """The values that all rows of each file have in the partition column of this logical name."""
    field = configuration.schema.field(name)
    key = string_column([configuration.physical_name(name)])[0]
    # Searching the last occurrence is ten times as fast as the first; keys are unique.
    texts = pc.map_lookup(partition_values, key, "last")
    values = parse_partition_column(texts, field.data_type, column=name)
    length = char_length(padded_type(field))
    return values if length is None else pc.utf8_rpad(values, width=length, padding=" ")


def skipping_columns(
    predicate: Predicate, configuration: TableConfiguration
) -> dict[tuple[str, ...], StatisticsColumn]:
    """The leaves of a predicate that may have statistics, by logical path."""
    return leaves_with_statistics(referenced_columns(predicate), configuration)


def leaves_with_statistics(
    paths: Collection[tuple[str, ...]], configuration: TableConfiguration
) -> dict[tuple[str, ...], StatisticsColumn]:
    """Those of some logical paths that may have statistics, in the order of the paths."""
    partitioned = {(name,) for name in configuration.partition_columns}
    padded = char_paths(configuration.schema)
    columns = {}
    for path in sorted({*paths} - partitioned):
        fields = configuration.schema.fields_along(path)
        if len(fields) == len(path) and not isinstance(fields[-1].data_type, StructType):
            mode = configuration.column_mapping_mode
            names = tuple(physical_name(field, mode) for field in fields)
            columns[path] = StatisticsColumn(
                names,
                fields[-1].data_type,
                is_padded=path in padded,
                has_null_count=not (
                    is_name_in_collections(names) and _may_hold_collections(configuration)
                ),
            )
    return columns


def _may_hold_collections(configuration: TableConfiguration) -> bool:
    """Whether files may have arrays or maps: with column mapping, also those of dropped columns."""
    return configuration.column_mapping_mode != "none" or any(
        isinstance(data_type, ArrayType | MapType) for data_type in walk_types(configuration.schema)
    )
