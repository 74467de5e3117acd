"""How Spark reads files that may lack columns which have a default.

Spark's reader shows a column that a file lacks as null. If these columns are known, they are not
read from the files: a literal gives their value.

Spec: none of the protocol's own; see `protocol.existing_defaults`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.footers import lacked_fields, may_lack
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.table_properties import ColumnMappingMode
from dagster_delta.storage.object_store import ObjectStore

__all__ = ["FileGroup", "groups_by_columns"]

MAX_FOOTERS = 256


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files that are read in one way."""

    files: pa.Table
    """pyarrow.Table with the columns of `LIVE_FILE_SCHEMA`."""
    absent: frozenset[str] = frozenset()
    """Logical names of the columns that all of them lack."""
    by_arrow: bool = False
    """Whether Spark's reader would show nulls instead of defaults."""


def groups_by_columns(
    files: pa.Table,
    store: ObjectStore,
    columns: StructType,
    mode: ColumnMappingMode,
    *,
    max_footers: int = MAX_FOOTERS,
) -> Iterator[FileGroup]:
    """The files of a scan by the columns with a default that they lack.

    Args:
        files: pyarrow.Table with the columns of `LIVE_FILE_SCHEMA`.
        store: store of the table.
        columns: the logical columns that are read from files.
        mode: column mapping mode of the table.
        max_footers: maximum number of footers that the driver reads; more files are read by the
            Arrow engine on the executors, which reads each footer anyway.

    Raises:
        DataFileMissing, InvalidTable, StorageFailure: of a file.
    """
    doubtful = may_lack(files, columns, mode)
    if doubtful.true_count < files.num_rows or not files.num_rows:
        yield FileGroup(files.filter(pc.invert(doubtful)))
    doubted = files.filter(doubtful)
    if not doubted.num_rows:
        return
    if doubted.num_rows > max_footers:
        yield FileGroup(doubted, by_arrow=True)
        return
    lacked = lacked_fields(store, doubted["path"].to_pylist(), columns, mode)
    for kind in dict.fromkeys(lacked):
        same = doubted.filter(pa.array([each == kind for each in lacked], pa.bool_()))
        # A literal inside a struct would require reading the whole struct.
        if any(len(path) > 1 for path in kind):
            yield FileGroup(same, by_arrow=True)
        else:
            yield FileGroup(same, frozenset(path[0] for path in kind))
