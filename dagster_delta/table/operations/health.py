"""The condition of a table, from the log alone: how much maintenance it needs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.evolution.programs import readers_with
from dagster_delta.protocol.values.arrow_values import integer_scalar
from dagster_delta.table.log.columns import partition_texts
from dagster_delta.table.log.reader import find_segment
from dagster_delta.table.operations.optimize import MIN_SIZE_SHARE
from dagster_delta.table.operations.write_planning import target_file_size
from dagster_delta.table.read.snapshot import Snapshot

if TYPE_CHECKING:
    from dagster_delta.table.table_handle import TableHandle


def health(table: TableHandle, /, *, small_file_size: int | None = None) -> TableHealth:
    """Statistics on the table's files, from the log alone.

    Args:
        small_file_size: files below this number of bytes count as small; by default those that
            `optimize` would compact.

    Raises:
        TableNotFound, InvalidTable, StorageFailure.
    """
    return table_health(table._known(), small_file_bytes=small_file_size)


class TableHealth(msgspec.Struct, frozen=True):
    """Statistics on the files of one version of a table, computed from the log alone."""

    version: int
    num_files: int
    size_bytes: int
    """Total size of all data files, deleted rows included."""
    num_records: int | None
    """Live rows; None if a file has no statistics."""
    num_small_files: int
    """Files that are small for OPTIMIZE, in partitions that have more than one of them."""
    small_files_bytes: int
    """Total size of these files."""
    num_files_with_deletions: int
    """Files with a deletion vector."""
    num_deleted_records: int
    """Rows that deletion vectors hide, and that OPTIMIZE would remove."""
    num_partitions: int
    largest_partition_bytes: int
    num_small_partitions: int
    """Partitions of a partitioned table that are smaller than a file should be, which OPTIMIZE
    cannot help: many of them say that the table is partitioned too finely."""
    commits_since_checkpoint: int
    """Commits that a reader has to replay."""
    checkpoint_version: int | None
    log_bytes: int = 0
    """Size of these commits."""
    damaged_log_files: tuple[str, ...] = ()
    """Damaged files of the log that the version does not need while no clean-up deletes the
    commits: write a new checkpoint. Only damage in files that were read is found."""

    repeated_removals: tuple[int, ...] = ()
    """Versions of commits that removed files which were removed before: rows may be in the table
    twice. Only the commits that this version was read from are compared; FSCK compares all."""

    misread_by: tuple[str, ...] = ()
    """Other programs that give wrong rows of such a table without an error, with their versions: of
    those that the property `dagsterDelta.readers` names, or of all that were measured."""
    refused_by: tuple[str, ...] = ()
    """The same for programs that cannot read it."""

    @property
    def average_file_bytes(self) -> float:
        """Mean size of a file; 0 if there are no files."""
        return self.size_bytes / self.num_files if self.num_files else 0.0

    @property
    def small_file_share(self) -> float:
        """Small files among all, 0 to 1."""
        return self.num_small_files / self.num_files if self.num_files else 0.0

    @property
    def deleted_share(self) -> float | None:
        """Deleted rows among all rows in files, 0 to 1; None if they are not counted."""
        if self.num_records is None:
            return None
        total = self.num_records + self.num_deleted_records
        return self.num_deleted_records / total if total else 0.0

    @property
    def partition_skew(self) -> float:
        """Size of the largest partition divided by the mean size; 1 if all are equal."""
        if not self.size_bytes:
            return 1.0
        return self.largest_partition_bytes * self.num_partitions / self.size_bytes


def table_health(snapshot: Snapshot, *, small_file_bytes: int | None = None) -> TableHealth:
    """The facts about a version."""
    if small_file_bytes is None:
        small_file_bytes = int(target_file_size(snapshot.configuration) * MIN_SIZE_SHARE)
    totals = snapshot.totals
    sizes, small, small_bytes = _measure_partitions(snapshot, small_file_bytes)
    # A snapshot that was updated commit by commit knows only the checkpoint that it was opened
    # with.
    segment = find_segment(snapshot.store, snapshot.version)
    checkpoint = segment.checkpoint
    is_partitioned = bool(snapshot.configuration.partition_columns)
    return TableHealth(
        version=snapshot.version,
        num_files=totals.num_files,
        size_bytes=totals.size_bytes,
        num_records=snapshot.num_records,
        num_small_files=sum(number for number in small.values() if number > 1),
        small_files_bytes=sum(
            small_bytes[partition] for partition, number in small.items() if number > 1
        ),
        num_files_with_deletions=totals.num_deletion_vectors,
        num_deleted_records=totals.num_deleted_records,
        num_partitions=len(sizes),
        largest_partition_bytes=max(sizes.values(), default=0),
        num_small_partitions=sum(size < small_file_bytes for size in sizes.values())
        if is_partitioned
        else 0,
        commits_since_checkpoint=snapshot.version
        - (-1 if checkpoint is None else checkpoint.version),
        checkpoint_version=None if checkpoint is None else checkpoint.version,
        log_bytes=sum(commit.file.size_bytes for commit in segment.replay),
        damaged_log_files=snapshot.damaged_log_files,
        repeated_removals=snapshot.repeated_removals(),
        misread_by=readers_with(snapshot.configuration, "wrong"),
        refused_by=readers_with(snapshot.configuration, "refused"),
    )


def _measure_partitions(
    snapshot: Snapshot, small_file_bytes: int
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Bytes, small files and their bytes of each partition; two spellings of a value make two
    partitions.
    """
    names = snapshot.configuration.physical_partition_columns
    sizes, small, small_bytes = Counter[str](), Counter[str](), Counter[str]()
    for batch in snapshot.file_batches(["size_bytes", "partition_values"]):
        is_small = pc.less(batch.files["size_bytes"], integer_scalar(small_file_bytes))
        of_small = pc.if_else(is_small, batch.files["size_bytes"], integer_scalar(0))
        columns = {
            "partition": partition_texts(batch.files["partition_values"], names),
            "size": batch.files["size_bytes"],
            "small": pc.cast(is_small, pa.int64()),
            "bytes": of_small,
        }
        table = pa.Table.from_arrays(list(columns.values()), names=list(columns))
        sums = [("size", "sum"), ("small", "sum"), ("bytes", "sum")]
        grouped = table.group_by("partition").aggregate(sums)
        for row in grouped.to_pylist():
            sizes[row["partition"]] += row["size_sum"]
            small[row["partition"]] += row["small_sum"]
            small_bytes[row["partition"]] += row["bytes_sum"]
    return sizes, small, small_bytes
