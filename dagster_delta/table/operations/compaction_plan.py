"""Which files a compaction rewrites, and in which groups: decided from the log alone.

Spec: Add File and Remove File.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.protocol.values.arrow_columns import boolean_column
from dagster_delta.protocol.values.arrow_values import FALSE, integer_scalar
from dagster_delta.table.transaction.file_actions import split_by_size

PartitionKey = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files of one partition that are rewritten together."""

    positions: tuple[int, ...]
    """Rows of the files in the table they were planned from."""
    size_bytes: int
    """Total size of the files."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    position: int
    size_bytes: int
    is_purged: bool
    """Whether the file is worth rewriting alone, because of its deleted rows."""


def pack_small_files(
    files: pa.Table,
    num_records: pa.ChunkedArray,
    *,
    target_size_bytes: int,
    min_size_bytes: int,
    max_deleted_share: float,
    min_files: int = 1,
    keep_clustered: bool = False,
) -> list[FileGroup]:
    """Groups of about the target size, of files that are small or have many deleted rows.

    A single small file is left unchanged, so that repeated runs end. `num_records` counts deleted
    rows, and is null where unknown. Files below the minimum size are packed, in partitions with at
    least `min_files` of them; so are files with a larger share of deleted rows (0 to 1) at any
    size.
    """
    purged = is_purged(files["deletion_vector"], num_records, max_deleted_share)
    chosen = pc.or_(pc.less(files["size_bytes"], integer_scalar(min_size_bytes)), purged)
    if keep_clustered:
        chosen = pc.and_(chosen, pc.is_null(files["clustering_provider"]))
    groups = []
    for candidates in _by_partition(files, chosen, purged):
        if len(candidates) < min_files:
            continue
        # Smallest first, as in the reference implementation. The sort is stable, so files of equal
        # size stay in the order in which they were written.
        ordered = sorted(candidates, key=lambda each: each.size_bytes)
        groups += list(_pack(ordered, target_size_bytes))
    return groups


def pack_files(files: pa.Table, *, target_size_bytes: int) -> list[FileGroup]:
    """All files, in groups of one partition and of about the target size."""
    everything = boolean_column([True] * files.num_rows)
    return [
        group
        for candidates in _by_partition(files, everything, everything)
        for group in _pack(candidates, target_size_bytes)
    ]


def group_by_partition(files: pa.Table) -> list[FileGroup]:
    """All files, one group per partition."""
    everything = boolean_column([True] * files.num_rows)
    return [_group(each) for each in _by_partition(files, everything, everything)]


def is_purged(
    vectors: pa.ChunkedArray, num_records: pa.ChunkedArray, max_deleted_share: float
) -> pa.Array | pa.ChunkedArray:
    """For each file whether its share of deleted rows is too large: a `pa.BooleanArray`."""
    if vectors.null_count == len(vectors):
        return boolean_column([False] * len(vectors))
    deleted = pc.cast(pc.struct_field(vectors, "cardinality"), pa.float64())
    allowed = pc.multiply(pc.cast(num_records, pa.float64()), max_deleted_share)
    # If the log does not count the rows, any deletion is too much: the share is unknown.
    return pc.fill_null(pc.greater(deleted, pc.fill_null(allowed, 0.0)), FALSE)


def _by_partition(
    files: pa.Table, chosen: pa.Array | pa.ChunkedArray, purged: pa.Array | pa.ChunkedArray
) -> Iterator[list[_Candidate]]:
    positions = pc.indices_nonzero(chosen).to_pylist()
    rows = files.select(["size_bytes", "partition_values"]).filter(chosen)
    sizes = rows["size_bytes"].to_pylist()
    keys = [_key(values) for values in rows["partition_values"].to_pylist()]
    alone = purged.filter(chosen).to_pylist()
    candidates: dict[PartitionKey, list[_Candidate]] = {}
    for key, position, size, is_purged in zip(keys, positions, sizes, alone, strict=True):
        candidates.setdefault(key, []).append(_Candidate(position, size, is_purged))
    for key in sorted(candidates, key=repr):
        yield candidates[key]


def _key(values: Sequence[tuple[str, str | None]] | None) -> PartitionKey:
    # Two spellings of one value make two groups, which only compacts less.
    return tuple(sorted((name, text or "") for name, text in values or ()))


def _pack(candidates: Sequence[_Candidate], target_size_bytes: int) -> Iterator[FileGroup]:
    for together in split_by_size(candidates, lambda each: each.size_bytes, target_size_bytes):
        if len(together) > 1 or any(each.is_purged for each in together):
            yield _group(together)


def _group(candidates: Sequence[_Candidate]) -> FileGroup:
    return FileGroup(
        tuple(candidate.position for candidate in candidates),
        sum(candidate.size_bytes for candidate in candidates),
    )
