"""What the log alone says of the rows of a version: no data file is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.protocol.statistics.bounds import partition_column
from dagster_delta.protocol.statistics.statistics import leaves_with_statistics
from dagster_delta.sql.skipping import skip_files
from dagster_delta.table.read.scan import Scan
from dagster_delta.table.read.snapshot import Snapshot

_Values: TypeAlias = pa.Array | pa.ChunkedArray


def column_bounds(
    snapshot: Snapshot, names: Sequence[str]
) -> Iterator[tuple[str, _Values, _Values, _Values]]:
    """Name, minimums, maximums and numbers of nulls of each column by file, null if unknown."""
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


def whole_files(scan: Scan) -> pa.BooleanArray | None:
    """Which live files hold the rows of a scan; None if a file may hold others too.

    Returns:
        `pa.BooleanArray`, one value per live file.
    """
    snapshot, where = scan.snapshot, scan.where
    values = snapshot.live_files(["partition_values"])["partition_values"]
    if where is None:
        return None
    found = skip_files(where.typed, snapshot.configuration, values, snapshot.statistics)
    return found.may_match if found.may_match.equals(found.only_matches) else None
