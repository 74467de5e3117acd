"""Writing the unchanged rows of changed files on Spark's executors, to few files.

Small files that the statement has written are read again and united with them, so that a statement
leaves files of the target size.

Spec: Add File and Remove File; Change Data Files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from dagster_delta.engines.plans import RowRewrite
from dagster_delta.engines.spark.changes.changed_rows import collect_changes
from dagster_delta.engines.spark.changes.copy_tasks import (
    COPIED_FILES_SCHEMA,
    CopiedFile,
    CopyTask,
)
from dagster_delta.engines.spark.session.session import frame_of
from dagster_delta.engines.spark.shipped_plan import ShippedPlan
from dagster_delta.protocol.actions import AddCDCFile, AddFile
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.storage.unreferenced_files import CreatedFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_TASKS = 512
_SMALL_SHARE = 0.75
_Partition = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """All data files of a statement, none of them referenced yet."""

    files: tuple[AddFile, ...]
    change_files: tuple[AddCDCFile, ...] = ()
    num_removed_rows: int = 0
    num_copied_rows: int = 0


def copy_rows(
    session: SparkSession, rewrite: RowRewrite, written: Sequence[AddFile], created: CreatedFiles
) -> CopiedRows:
    """Write the rows that stay, and unite them with the small files that were written before.

    No expression is evaluated, so tasks read the files directly.

    Args:
        session: classic or Connect.
        rewrite: the files, whose matching rows leave.
        written: files of the same statement; the small ones are replaced and deleted.
        created: gets the new files, and has the written ones.

    Raises:
        DataFileMissing, CorruptDeletionVector, InvalidTable, StorageFailure: of a file.
    """
    target_bytes = rewrite.data.target_file_size_bytes
    staying = list(_staying(rewrite))
    small = _small_files(written, staying, target_bytes)
    groups = list(_packed([*staying, *map(_as_source, small)], target_bytes))
    if not groups:
        return CopiedRows(tuple(written))
    task = CopyTask(ShippedPlan.of(rewrite.source), rewrite.data, rewrite.change_data)
    encoded = [msgspec.json.encode(group).decode() for group in groups]
    rows = pa.Table.from_arrays([string_column(encoded)], names=["files"])
    frame = frame_of(session, rows, COPIED_FILES_SCHEMA)
    store = rewrite.source.store
    copied = collect_changes(frame.repartition(min(len(groups), _MAX_TASKS)), task, store)
    created.add_logged(copied.paths)
    united = CreatedFiles(store)
    united.add_logged(each.path for each in small)
    united.delete()
    paths = {each.path for each in small}
    return CopiedRows(
        (*(each for each in written if each.path not in paths), *copied.files),
        copied.change_files,
        copied.counts[0],
        copied.counts[1] - _num_rows(small),
    )


def _staying(rewrite: RowRewrite) -> Iterator[CopiedFile]:
    for row in rewrite.source.files.select(list(CopiedFile.__struct_fields__[:-1])).to_pylist():
        matches = rewrite.matches.get(row["path"])
        # All rows of a file without an entry leave; they are read only to be recorded.
        if matches is not None or rewrite.change_data is not None:
            yield CopiedFile(**row, matches=None if matches is None else matches.serialize())


def _as_source(file: AddFile) -> CopiedFile:
    # Rows without an id of their own get one when the new file is committed.
    return CopiedFile(
        path=file.path,
        size_bytes=file.size_bytes,
        partition_values=list(file.partition_values.items()),
        deletion_vector=None,
        base_row_id=None,
        default_row_commit_version=None,
        matches=BitMap64().serialize(),
    )


def _small_files(
    written: Sequence[AddFile], staying: Sequence[CopiedFile], target_bytes: int
) -> list[AddFile]:
    """The small files of partitions in which there is another file to write."""
    small = [each for each in written if each.size_bytes < _SMALL_SHARE * target_bytes]
    others = {_partition(each.partition_values) for each in staying}
    counts: dict[_Partition, int] = {}
    keys = [_partition(list(each.partition_values.items())) for each in small]
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    return [file for file, key in zip(small, keys, strict=True) if key in others or counts[key] > 1]


def _packed(files: Sequence[CopiedFile], target_bytes: int) -> Iterator[list[CopiedFile]]:
    """Groups of files of one partition, each of about the target size."""
    by_partition: dict[_Partition, list[CopiedFile]] = {}
    for file in files:
        by_partition.setdefault(_partition(file.partition_values), []).append(file)
    for some in by_partition.values():
        group: list[CopiedFile] = []
        size = 0
        for file in some:
            if group and size + file.size_bytes > target_bytes:
                yield group
                group, size = [], 0
            group.append(file)
            size += file.size_bytes
        yield group


def _partition(values: Sequence[tuple[str, str | None]] | None) -> _Partition:
    return tuple(sorted((name, text) for name, text in values or ()))


def _num_rows(files: Sequence[AddFile]) -> int:
    counts = parse_statistics_json(string_column([each.stats for each in files]), ())
    return sum(counts["num_records"].to_pylist())
