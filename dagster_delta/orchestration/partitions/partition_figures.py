"""Rows, files and bytes of each Dagster partition, from the log alone, if the log has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from dagster_delta.errors import InvalidArgument, SchemaMismatch
from dagster_delta.orchestration.partitions.partitions import PartitionSelection, single_partitions
from dagster_delta.orchestration.partitions.predicates import partition_predicate
from dagster_delta.protocol.statistics.skipping import skip_files

if TYPE_CHECKING:
    from dagster_delta.protocol.statistics.predicates import Predicate
    from dagster_delta.table.read.snapshot import Snapshot

__all__ = ["PartitionFigures", "partition_figures"]

_MAX_COMPARISONS = 10_000_000
"""Maximum number of partitions times files: at most a few seconds of work after a write."""


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """Totals of one partition."""

    rows: int | None
    """None if a file has no row count."""
    files: int
    size_bytes: int


def partition_figures(
    snapshot: Snapshot, selection: PartitionSelection
) -> Mapping[str, PartitionFigures]:
    """Partition key to the totals of its rows in this version.

    A key is omitted if a file may hold rows of this partition and of others: neither the partition
    values nor the bounds of its columns tell.
    """
    if len(selection.keys) * snapshot.num_files > _MAX_COMPARISONS:
        return {}
    files = snapshot.live_files(["partition_values", "size_bytes"])
    rows = snapshot.record_counts()
    figures = {}
    for key, single in single_partitions(selection).items():
        predicate = _predicate(snapshot, single)
        if predicate is None:
            continue
        values = files["partition_values"]
        found = skip_files(predicate, snapshot.configuration, values, snapshot.statistics)
        if not found.may_match.equals(found.only_matches):
            continue
        counts = rows.filter(found.may_match)
        figures[key] = PartitionFigures(
            rows=None if counts.null_count else int(pc.sum(counts).as_py() or 0),
            files=len(counts),
            size_bytes=int(pc.sum(files["size_bytes"].filter(found.may_match)).as_py() or 0),
        )
    return figures


def _predicate(snapshot: Snapshot, selection: PartitionSelection) -> Predicate | None:
    try:
        where = snapshot.scan(where=partition_predicate(selection, snapshot.schema)).where
    except (InvalidArgument, SchemaMismatch):
        # A column may distinguish all partitions of the run together, and not each of them.
        return None
    return None if where is None else where.to_predicate()
