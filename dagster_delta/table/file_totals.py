"""Totals over all files of a large table, added up while its log goes by.

Spec: Action Reconciliation; Per-file Statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.protocol.arrow_values import integer_scalar
from dagster_delta.protocol.file_skipping import skip_files, skipping_columns
from dagster_delta.protocol.predicates import Predicate

if TYPE_CHECKING:
    from dagster_delta.table.snapshot import Snapshot

__all__ = ["FileTotals", "add_up_files", "count_matching_records", "count_records", "live_records"]


@dataclass(frozen=True, slots=True)
class FileTotals:
    """What is added up over the live files."""

    num_files: int = 0
    size_bytes: int = 0
    """Of all data files, deleted rows included."""
    num_deletion_vectors: int = 0
    """Files with a deletion vector."""
    num_deleted_records: int = 0
    """Rows that deletion vectors hide."""


def add_up_files(snapshot: Snapshot) -> FileTotals:
    """The totals of a version.

    Raises:
        InvalidTable, StorageFailure: of the log.
    """
    num_files = size_bytes = num_vectors = num_deleted = 0
    for batch in snapshot.file_batches(["size_bytes", "deletion_vector"]):
        vectors = batch.files["deletion_vector"]
        num_files += batch.files.num_rows
        size_bytes += _sum(batch.files["size_bytes"])
        num_vectors += len(vectors) - vectors.null_count
        num_deleted += _sum(_cardinality(vectors))
    return FileTotals(num_files, size_bytes, num_vectors, num_deleted)


def count_records(snapshot: Snapshot) -> int | None:
    """Rows of a version from statistics alone; None where a file has none.

    Raises:
        InvalidTable, StorageFailure: of the log.
    """
    total = 0
    for batch in snapshot.file_batches(["deletion_vector"], ()):
        records = live_records(batch.statistics(())["num_records"], batch.files["deletion_vector"])
        if records.null_count:
            return None
        total += _sum(records)
    return total


def count_matching_records(snapshot: Snapshot, predicate: Predicate) -> int | None:
    """Rows that satisfy a predicate; None where partition values and statistics do not tell.

    Args:
        snapshot: the version.
        predicate: with what follows for generated columns.

    Raises:
        InvalidTable, StorageFailure: of the log.
    """
    configuration = snapshot.configuration
    columns = list(skipping_columns(predicate, configuration).values())
    total = 0
    for batch in snapshot.file_batches(["partition_values", "deletion_vector"], columns):
        values = batch.files["partition_values"]
        skipped = skip_files(predicate, configuration, values, batch.statistics)
        if not skipped.is_decided:
            return None
        if not pc.any(skipped.may_match).as_py():
            continue
        counts = batch.statistics(())["num_records"]
        records = live_records(counts, batch.files["deletion_vector"]).filter(skipped.may_match)
        if records.null_count:
            return None
        total += _sum(records)
    return total


def live_records(num_records: Any, vectors: Any) -> Any:
    """Rows of files, what their deletion vectors hide subtracted; null where unknown.

    Args:
        num_records: rows of the data files.
        vectors: as DELETION_VECTOR_TYPE, row for row.
    """
    if vectors.null_count == len(vectors):
        return num_records
    return pc.subtract(num_records, pc.fill_null(_cardinality(vectors), integer_scalar(0)))


def _cardinality(vectors: Any) -> Any:
    return pc.cast(pc.struct_field(vectors, "cardinality"), pa.int64())


def _sum(values: Any) -> int:
    return int(pc.sum(values, min_count=0).as_py() or 0)
