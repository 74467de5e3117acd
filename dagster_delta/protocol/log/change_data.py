"""Which files hold the row changes of a commit, and which of their rows.

Spec: Add CDC File (Reader Requirements for AddCDCFile); Deletion Vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import pyarrow as pa

from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.actions import AddFile, DeletionVectorDescriptor, RemoveFile
from dagster_delta.protocol.log.commit_file import CommitActions
from dagster_delta.protocol.log.replay import DELETION_VECTOR_TYPE, LIVE_FILE_SCHEMA, file_key
from dagster_delta.protocol.schema import DataType
from dagster_delta.protocol.values.arrow_columns import column_of
from dagster_delta.protocol.values.partition_values import partition_key

_NO_VALUES: Mapping[str, str | None] = {}

CHANGE_FILE_SCHEMA = pa.schema(
    [
        *(
            LIVE_FILE_SCHEMA.field(name)
            for name in ("path", "partition_values", "size_bytes", "stats", "deletion_vector")
        ),
        ("selection", DELETION_VECTOR_TYPE),
        ("commit_version", pa.int64()),
    ]
)
"""Columns of a table of files with changed rows.

Columns that are also in LIVE_FILE_SCHEMA mean the same, so that a change file can be read like a
data file. If there is a `selection`, only the rows that it marks have changed."""


class FileChange(msgspec.Struct, frozen=True):
    """Rows of one file that a commit changed: all except those that a deletion vector hides."""

    path: str
    """As in the log, percent-encoded."""
    partition_values: Mapping[str, str | None]
    """Serialised values by physical column name."""
    size_bytes: int
    """0 if the log does not record it."""
    change_type: str | None = None
    """How the rows changed; None if the file has a change type per row."""
    stats: str | None = None
    deletion_vector: DeletionVectorDescriptor | None = None
    """Rows that were not part of the table before the commit either."""
    selection: DeletionVectorDescriptor | None = None
    """The changed rows among the others; None if all changed."""


def file_changes(actions: CommitActions, *, partitioned: bool) -> tuple[FileChange, ...]:
    """The files with the row changes of a commit; deleted rows before inserted rows."""
    if actions.cdc:
        # Spec: where there are cdc actions, the other file actions of the version are skipped.
        return tuple(
            FileChange(file.path, file.partition_values, file.size_bytes) for file in actions.cdc
        )
    if _merged_nothing(actions):
        return ()
    adds = {file_key(add.path): add for add in actions.adds if add.data_change}
    removes = {file_key(remove.path): remove for remove in actions.removes if remove.data_change}
    changes = [_find_change("delete", removes[key], adds.get(key), partitioned) for key in removes]
    changes += [_find_change("insert", adds[key], removes.get(key), partitioned) for key in adds]
    return tuple(change for change in changes if change is not None)


def may_have_moved(
    changes: Sequence[FileChange], partition_types: Iterable[tuple[str, DataType]]
) -> list[bool]:
    """Whether rows of each file may have moved to or from another one of the same commit: of a
    partition from which files left, and to which others came. Rows that only a deletion vector
    marks have surely left or come, unless whole files did so too.

    `partition_types`: of the partition columns, by physical name.
    """
    kinds = {change.change_type for change in changes if change.selection is None}
    if not kinds >= {"delete", "insert"}:
        return [False] * len(changes)
    key = partition_key(partition_types)
    of_partition = [key(change.partition_values) for change in changes]
    left: set[object] = set()
    came: set[object] = set()
    for change, partition in zip(changes, of_partition, strict=True):
        if change.selection is None and change.change_type is not None:
            (left if change.change_type == "delete" else came).add(partition)
    both = left & came
    return [
        change.change_type is not None and partition in both
        for change, partition in zip(changes, of_partition, strict=True)
    ]


def _merged_nothing(actions: CommitActions) -> bool:
    """Whether the commit is a MERGE that rewrote rows unchanged.

    The reference implementation records it as a data change, and omits it from the feed.
    """
    info = actions.commit_info or {}
    metrics = info.get("operationMetrics")
    if info.get("operation") != "MERGE" or not isinstance(metrics, dict):
        return False
    counts = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    return all(str(metrics.get(count)) == "0" for count in counts)


def _find_change(
    change_type: str,
    file: AddFile | RemoveFile,
    other: AddFile | RemoveFile | None,
    partitioned: bool,
) -> FileChange | None:
    """The rows that a removed file, or an added one, had or has beyond those of the other action on
    it; None if there are none.
    """
    if other is not None and _has_rows_of(other, file):
        return None
    add = other if isinstance(other, AddFile) else file
    if add.partition_values is None and partitioned:
        raise InvalidTable(
            "the log does not say in which partition a removed file was, so the partition of its "
            "rows is unknown; read the changes from the version after it on",
            file=file.path,
        )
    return FileChange(
        file.path,
        add.partition_values or _NO_VALUES,
        file.size_bytes or 0,
        change_type,
        add.stats,
        file.deletion_vector,
        None if other is None else other.deletion_vector,
    )


def _has_rows_of(file: AddFile | RemoveFile, other: AddFile | RemoveFile) -> bool:
    vector = file.deletion_vector
    return vector is None or _unique_id_of(vector) == _unique_id_of(other.deletion_vector)


def _unique_id_of(vector: DeletionVectorDescriptor | None) -> str | None:
    return None if vector is None else vector.unique_id


def change_file_batch(
    changes: Sequence[tuple[int, FileChange, Mapping[str, str]]],
) -> pa.RecordBatch:
    """A `pa.RecordBatch` of CHANGE_FILE_SCHEMA."""
    columns: dict[str, list[object]] = {
        name: [getattr(change, name) for _, change, _ in changes]
        for name in ("path", "size_bytes", "stats", "deletion_vector", "selection")
    }
    columns["partition_values"] = [
        {**change.partition_values, **constants} for _, change, constants in changes
    ]
    columns["commit_version"] = [version for version, _, _ in changes]
    arrays = [column_of(columns[field.name], field.type) for field in CHANGE_FILE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_FILE_SCHEMA)
