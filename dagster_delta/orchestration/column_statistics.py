"""What the log knows of the values of each column, as a table in the Dagster UI."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from dagster import MetadataValue, TableColumn, TableMetadataValue, TableRecord, TableSchema

from dagster_delta.orchestration.row_tables import MAX_COLUMNS, check_masked_columns, shown_value
from dagster_delta.protocol.statistics.skipping import leaves_with_statistics, partition_column
from dagster_delta.protocol.values.arrow_values import python_value
from dagster_delta.table.read.snapshot import Snapshot

_Values: TypeAlias = pa.Array | pa.ChunkedArray

_SCHEMA = TableSchema(
    [TableColumn("column"), TableColumn("min"), TableColumn("max"), TableColumn("nulls", "integer")]
)


def column_statistics(snapshot: Snapshot, masked: Collection[str]) -> TableMetadataValue:
    """Minimum, maximum and nulls of the first `MAX_COLUMNS` columns, as the log records them: no
    data is read. What the log lacks for some file is empty. Of long texts, and where rows were
    deleted from files, minimum and maximum may be bounds that no row has; nulls are then empty.

    Raises:
        InvalidArgument: a masked column does not exist.
    """
    check_masked_columns(masked, snapshot.schema)
    hidden = {name.casefold() for name in masked}
    rows = snapshot.statistics([])
    is_exact = pc.min(rows["tight_bounds"]).as_py() is not False
    records = []
    for name, minimums, maximums, nulls in _of_files(snapshot, snapshot.schema.names[:MAX_COLUMNS]):
        # A file of nulls has no bounds.
        needed = pc.fill_null(pc.not_equal(nulls, rows["num_records"]), fill_value=True)
        bounds = (
            pc.min(minimums.filter(needed), skip_nulls=False),
            pc.max(maximums.filter(needed), skip_nulls=False),
        )
        least, greatest = (
            shown_value(python_value(bound), masked=name.casefold() in hidden) for bound in bounds
        )
        count = pc.sum(nulls, skip_nulls=False).as_py() if is_exact else None
        records.append(TableRecord({"column": name, "min": least, "max": greatest, "nulls": count}))
    return MetadataValue.table(records, _SCHEMA)


def _of_files(
    snapshot: Snapshot, names: Sequence[str]
) -> Iterator[tuple[str, _Values, _Values, _Values]]:
    """Minimum, maximum and nulls of each column in each file, null if unknown."""
    configuration = snapshot.configuration
    values = snapshot.live_files(["partition_values"])["partition_values"]
    leaves = leaves_with_statistics([(name,) for name in names], configuration)
    statistics = snapshot.statistics(list(leaves.values()))
    positions = {path[0]: index for index, path in enumerate(leaves)}
    for name in names:
        if name in configuration.partition_columns:
            of_files = partition_column(name, configuration, values)
            nulls = pc.if_else(pc.is_null(of_files), statistics["num_records"], 0)
            yield name, of_files, of_files, nulls
        elif name in positions:
            index = positions[name]
            found = (statistics[f"{part}.{index}"] for part in ("min", "max", "null_count"))
            yield name, *found
        else:
            unknown = pa.nulls(len(values), pa.int64())
            yield name, unknown, unknown, unknown
