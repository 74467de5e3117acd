"""FSCK: the data files of a table that storage no longer has, and their removal from the log.

Spec: Add File and Remove File; Deletion Vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.clock import now_ms
from dagster_delta.protocol.features.deletion_vectors import vector_file
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.log.tail import decode_tail, repeated_removals
from dagster_delta.protocol.values.arrow_columns import boolean_column, string_column
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.reader import list_log, read_versions
from dagster_delta.table.transaction.file_actions import descriptor_of, tombstones
from dagster_delta.table.transaction.transaction import Transaction

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.table_handle import TableHandle

_CONCURRENT_LOOKUPS = 32
_LISTED_FROM = 1000
"""Tables with at least this many files are listed instead of asking for each file."""


def fsck(
    table: TableHandle, /, *, dry_run: bool = True, commit_info: Mapping[str, object] | None = None
) -> MissingFiles:
    """Find the live files that storage no longer has, and remove them from the table, so that
    the rest can be read again.

    Their rows are lost: try first to copy the files back from a backup, or `restore`. A file
    whose deletion vector is missing is reported and stays, as its deleted rows would come back.

    Args:
        dry_run: only find the files.
        commit_info: recorded in the commitInfo beside this library's own fields.

    Raises:
        TableNotFound: the table does not exist.
        UnsupportedFeature, ConditionalPutUnsupported: the table is append-only, or cannot be
            written.
        CommitConflict, CommitStateUnknown, StorageFailure: the commit failed, or may have
            failed.
    """
    snapshot = table._existing()
    store = table.store
    files = snapshot.live_files()
    has_data, has_vector = _find_existing(store, files)
    lost = files.filter(pc.invert(has_data))
    kinds = ["deletion vector" if data else "data file" for data in has_data.to_pylist()]
    broken = pc.invert(pc.and_(has_data, has_vector))
    found = files.select(["path", "size_bytes"]).append_column("missing", string_column(kinds))
    repeated = _repeated_removals(store, snapshot.version)
    result = MissingFiles(dry_run, found.filter(broken), 0, snapshot, repeated)
    if dry_run or not lost.num_rows:
        return result
    transaction = Transaction(store, snapshot, clock=now_ms)
    transaction.depend_on(ReadScope(paths=frozenset(lost["path"].to_pylist())))
    transaction.stage_removed(tombstones(lost, now_ms()))
    committed = transaction.commit(
        "FSCK",
        parameters={"dryRun": False},
        metrics={
            "numMissingFilesRemoved": lost.num_rows,
            "numFilesScanned": files.num_rows,
        },
        user_info=commit_info,
    )
    table._adopt(committed)
    return MissingFiles(False, result.files, lost.num_rows, committed.snapshot, repeated)


class MissingFiles(msgspec.Struct, frozen=True):
    """What an FSCK found."""

    dry_run: bool
    files: pa.Table
    """`pa.Table` of the live files that cannot be read: `path` as in the log, `size_bytes`, and
    `missing`: `data file`, or `deletion vector`."""
    num_removed: int
    """Files that were removed from the table."""
    snapshot: Snapshot
    """The table after the FSCK."""

    repeated_removals: tuple[int, ...] = ()
    """Versions of commits in the log that removed files which were removed before: rows may be in
    the table twice. Restore the version before the first of them, or delete the rows."""

    @property
    def version(self) -> int:
        """Version of the table after the FSCK."""
        return self.snapshot.version


def _repeated_removals(store: ObjectStore, newest: int) -> tuple[int, ...]:
    """Of all commits that the log holds up to a version, read some at a time."""
    listing = list_log(store, end=newest)
    first = listing.first_commit_before(newest)
    commits = read_versions(store, listing, range(first, newest + 1))
    return repeated_removals(decode_tail([commit]) for commit in commits)


def _find_existing(store: ObjectStore, files: pa.Table) -> tuple[pa.BooleanArray, pa.BooleanArray]:
    """For each file whether storage has it, and whether it has its deletion vector."""
    rows = files.select(["path", "deletion_vector"]).to_pylist()
    paths = [decode_path(row["path"]) for row in rows]
    vectors = [vector_file(descriptor_of(row)) for row in rows]
    present = existing_files(store, filter(None, [*paths, *vectors]))
    has_vector = [path is None or path in present for path in vectors]
    return boolean_column([path in present for path in paths]), boolean_column(has_vector)


def existing_files(store: ObjectStore, paths: Iterable[str]) -> set[str]:
    """Those of some files, relative to the root or absolute, that storage has."""
    wanted = list(dict.fromkeys(paths))
    present: set[str] = set()
    if len(wanted) >= _LISTED_FROM:
        present = {file.path for file in store.list_recursive()}
    doubtful = [path for path in wanted if path not in present]
    with ThreadPoolExecutor(_CONCURRENT_LOOKUPS, "delta-lookup") as workers:
        found = zip(doubtful, workers.map(store.head, doubtful), strict=True)
        return present | {path for path, meta in found if meta is not None}
