"""Statistics and partition values in the typed form that checkpoints hold.

Spec: Checkpoint Format (`stats_parsed`, `partitionValues_parsed`); Per-file Statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.statistics.statistics import StatisticsColumn, plant
from dagster_delta.protocol.table_properties import ColumnMappingMode
from dagster_delta.protocol.values.arrow_columns import struct_column, whole_array
from dagster_delta.protocol.values.partition_values import parse_partition_column

# Physical names to columns, or to trees of them.
_Tree: TypeAlias = dict[str, Any]


def statistics_columns(configuration: TableConfiguration) -> tuple[StatisticsColumn, ...]:
    """The leaf columns that files of the table have statistics on, in schema order.

    `delta.dataSkippingStatsColumns` names them; otherwise they are the first
    `delta.dataSkippingNumIndexedCols` leaves of the data columns.
    """
    properties = configuration.properties
    named, limit = properties.data_skipping_stats_columns, properties.data_skipping_num_indexed_cols
    leaves = list(_leaves(configuration.data_schema, configuration.column_mapping_mode, (), ()))
    if named is None:
        return tuple(leaf for _, leaf in (leaves if limit < 0 else leaves[:limit]))
    wanted = [tuple(step.casefold() for step in path) for path in named]
    return tuple(
        leaf
        for logical, leaf in leaves
        if any(tuple(step.casefold() for step in logical[: len(path)]) == path for path in wanted)
    )


def _leaves(
    schema: StructType,
    mode: ColumnMappingMode,
    logical: tuple[str, ...],
    physical: tuple[str, ...],
) -> Iterator[tuple[tuple[str, ...], StatisticsColumn]]:
    for field in schema:
        here = (*logical, field.name)
        path = (*physical, physical_name(field, mode))
        if isinstance(field.data_type, StructType):
            yield from _leaves(field.data_type, mode, here, path)
        else:
            yield here, StatisticsColumn(path, field.data_type)


def parsed_statistics(columns: Sequence[StatisticsColumn], statistics: pa.Table) -> pa.StructArray:
    """The `stats_parsed` column: a pa.StructArray, null if a file has no statistics."""
    groups: _Tree = {"numRecords": statistics["num_records"]}
    for index, column in enumerate(columns):
        if column.has_bounds:
            plant(groups.setdefault("minValues", {}), column.path, statistics[f"min.{index}"])
            plant(groups.setdefault("maxValues", {}), column.path, statistics[f"max.{index}"])
        plant(groups.setdefault("nullCount", {}), column.path, statistics[f"null_count.{index}"])
    groups["tightBounds"] = statistics["tight_bounds"]
    order = ("numRecords", "minValues", "maxValues", "nullCount", "tightBounds")
    known = {name: groups[name] for name in order if name in groups}
    return _build(known, mask=whole_array(pc.is_null(statistics["num_records"])))


def _build(tree: _Tree, *, mask: pa.BooleanArray | None = None) -> pa.StructArray:
    arrays = [
        _build(node) if isinstance(node, dict) else whole_array(node) for node in tree.values()
    ]
    if mask is None:
        return pa.StructArray.from_arrays(arrays, names=list(tree))
    types = zip(tree, (array.type for array in arrays), strict=True)
    return struct_column(arrays, pa.struct(types), mask)


def parsed_partition_values(
    configuration: TableConfiguration, partition_values: pa.ChunkedArray
) -> pa.StructArray:
    """The `partitionValues_parsed` column of a partitioned table: a pa.StructArray."""
    names = configuration.physical_partition_columns
    maps = whole_array(partition_values)
    columns = [
        whole_array(
            parse_partition_column(pc.map_lookup(maps, pa.scalar(name), "last"), field.data_type)
        )
        for name, field in zip(names, configuration.partition_schema, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, names=list(names))
