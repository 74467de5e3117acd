"""Row count of each Dagster partition, from the log alone, if the log has it."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.orchestration.partitions.partitions import DimensionSlice, PartitionSelection
from dagster_delta.orchestration.partitions.predicates import identity_values, resolve_column
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.partition_values import serialize_partition_value

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot

__all__ = ["partition_row_counts"]

_KEY_SEPARATOR = "|"
"""Separates the dimensions of a multi-partition key, as in Dagster."""


def partition_row_counts(snapshot: Snapshot, selection: PartitionSelection) -> dict[str, int]:
    """Partition key to its row count in this version.

    Empty if the log does not have it: the table is not physically partitioned by the columns of the
    partition, or a file has no row count.
    """
    schema = snapshot.schema
    columns = [_physical_column(snapshot, column) for column in selection.columns]
    values = [_values_by_key(box, schema) for box in selection.boxes]
    if not columns or None in columns or None in values:
        return {}
    counted = _rows_by_values(snapshot, [str(column) for column in columns])
    if counted is None:
        return {}
    counts = {}
    for box in values:
        for cell in product(*(dimension.items() for dimension in box or ())):
            key = _KEY_SEPARATOR.join(key for key, _ in cell)
            counts[key] = counted.get(tuple(value for _, value in cell), 0)
    return counts


def _physical_column(snapshot: Snapshot, expression: str) -> str | None:
    field = snapshot.schema.get(expression.strip("`"))
    if field is None or field.name not in snapshot.configuration.partition_columns:
        return None
    return snapshot.configuration.physical_name(field.name)


def _values_by_key(
    box: tuple[DimensionSlice, ...], schema: StructType
) -> list[dict[str, str | None]] | None:
    """For each dimension: partition key to the value in the log's spelling."""
    dimensions = []
    for each in box:
        values = identity_values(each, schema)
        if values is None:
            return None
        _, data_type = resolve_column(each.column, schema)
        dimensions.append(
            {
                key: serialize_partition_value(value, data_type)
                for key, value in zip(each.keys, values, strict=True)
            }
        )
    return dimensions


def _rows_by_values(
    snapshot: Snapshot, columns: list[str]
) -> dict[tuple[str | None, ...], int] | None:
    files = snapshot.live_files(["partition_values"])
    rows = snapshot.files()["num_records"]
    if rows.null_count:
        return None
    maps = files["partition_values"].combine_chunks()
    names = [f"value.{index}" for index in range(len(columns))]
    arrays = [pc.map_lookup(maps, query_key=column, occurrence="first") for column in columns]
    table = pa.table([*arrays, rows], names=[*names, "rows"])
    grouped: list[dict[str, Any]] = table.group_by(names).aggregate([("rows", "sum")]).to_pylist()
    return {tuple(each[name] for name in names): each["rows_sum"] for each in grouped}
