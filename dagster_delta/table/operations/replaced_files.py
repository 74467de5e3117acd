"""What an overwrite removes, and how its new rows are recorded beside that.

Spec: Add File and Remove File; Add CDC File; Partition Value Serialization.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_delta.engines.plans import RowRewrite, WriteResult
from dagster_delta.protocol.actions import AddFile, RemoveFile
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.values.partition_values import PartitionKey, partition_key
from dagster_delta.table.log.columns import files_in_partitions
from dagster_delta.table.operations.write_planning import write_spec
from dagster_delta.table.operations.write_rows import RowWrite
from dagster_delta.table.read.file_planner import FilePlanner, read_plan
from dagster_delta.table.transaction.file_actions import REMOVED_COLUMNS, file_table, tombstones

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot


def removal_metrics(removes: Sequence[RemoveFile]) -> dict[str, int | str]:
    """The metrics of removed files by the names of commitInfo."""
    return {
        "numRemovedFiles": len(removes),
        "numRemovedBytes": sum(remove.size_bytes or 0 for remove in removes),
    }


def stage_inserted_changes(
    write: RowWrite, configuration: TableConfiguration, written: WriteResult
) -> int:
    """Stage the new rows as change data, and return the number of its files: as soon as a commit
    has change data files, they alone are the feed.
    """
    snapshot = write.transaction.snapshot
    assert snapshot is not None  # noqa: S101  rows of it were replaced
    plan = read_plan(snapshot, file_table(written.files), None, configuration)
    spec = write_spec(configuration, write.store.location, check_rows=False)
    inserts = RowRewrite(
        plan, {}, (), keeps_rest=False, data=spec, change_data=spec, recorded_as="insert"
    )
    files = write.engine.rewrite(inserts).change_files
    write.transaction.stage_change_files(files)
    return len(files)


def remove_partitions(
    write: RowWrite,
    snapshot: Snapshot,
    written: Iterable[AddFile],
    *,
    columns: Collection[str] | None = None,
) -> Sequence[RemoveFile]:
    """Stage the removal of every file of the partitions that new files were written to.

    Partitions are compared by value: writers spell one value in several ways. With `columns`, they
    are compared by these partition columns alone, and null equals nothing.
    """
    key = _partition_key(snapshot.configuration, columns)
    replaced = {key(file.partition_values) for file in written}
    if columns is not None:
        replaced = {values for values in replaced if None not in values}
    names = snapshot.configuration.physical_partition_columns

    def is_replaced(files: pa.Table) -> pa.BooleanArray:
        values = files["partition_values"]
        return files_in_partitions(values, names, lambda values: key(values) in replaced)

    def may_hold(adds: Sequence[AddFile]) -> Sequence[AddFile]:
        return [add for add in adds if key(add.partition_values) in replaced]

    return remove_files(write, FilePlanner(snapshot).choose(REMOVED_COLUMNS, is_replaced), may_hold)


def remove_files(
    write: RowWrite,
    files: pa.Table,
    may_hold: Callable[[Sequence[AddFile]], Sequence[AddFile]],
) -> Sequence[RemoveFile]:
    """Stage the removal of files, which depends on those that others add and that `may_hold` rows
    of the same kind.
    """
    removes = tombstones(files, write.clock())
    paths = frozenset(remove.path for remove in removes)
    write.transaction.depend_on(ReadScope(may_hold=may_hold, paths=paths))
    write.transaction.stage_removed(removes)
    return removes


def _partition_key(
    configuration: TableConfiguration, chosen: Collection[str] | None
) -> Callable[[Mapping[str, str | None]], PartitionKey]:
    fields = zip(configuration.partition_columns, configuration.partition_types, strict=True)
    return partition_key(typed for name, typed in fields if chosen is None or name in chosen)
