"""Totals over all files of a large table, added up while its log is read.

Spec: Action Reconciliation; Per-file Statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import CorruptLog
from dagster_delta.protocol.statistics.predicates import Predicate
from dagster_delta.protocol.values.arrow_values import integer_scalar
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.table.log.checksum_comparison import FileTotals

if TYPE_CHECKING:
    from dagster_delta.table.read.file_planner import FilePlanner
    from dagster_delta.table.read.snapshot import Snapshot


def add_up_files(snapshot: Snapshot) -> FileTotals:
    """The totals of a version."""
    batches = snapshot.file_batches(["size_bytes", "deletion_vector"])
    return sum((FileTotals.of(batch.files) for batch in batches), FileTotals())


def count_records(planner: FilePlanner, *predicates: Predicate) -> int | None:
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
    snapshot: Snapshot,
    num_records: pa.ChunkedArray,
    vectors: pa.ChunkedArray,
    paths: Callable[[], pa.ChunkedArray],
) -> pa.ChunkedArray:
    """Rows of files minus the rows that their deletion vectors hide; null where unknown."""
    live = num_records
    if vectors.null_count < len(vectors):
        hidden = pc.fill_null(_cardinality(vectors), integer_scalar(0))
        live = pc.subtract(num_records, hidden)
    lowest, highest = pc.min(live), pc.max(live)
    is_negative = (lowest.as_py() or 0) < 0
    # The sum over a few files with more rows would not fit 64 bits.
    if is_negative or (highest.as_py() or 0) > _MOST_ROWS:
        place = pc.index_in(lowest if is_negative else highest, live).as_py()
        rows, deleted = num_records[place].as_py(), _cardinality(vectors)[place].as_py()
        raise CorruptLog(
            f"the log says that a data file has {rows} rows, and that {deleted or 0} of them are "
            "deleted: its statistics or its deletion vector are wrong; restore the table to an "
            "older version",
            table=snapshot.store.location.uri,
            version=snapshot.version,
            file=decode_path(paths()[place].as_py()),
        )
    return live


def _cardinality(vectors: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(pc.struct_field(vectors, "cardinality"), pa.int64())
