"""Commits two concurrent changes of different rows of one file, by uniting their deletion vectors.

A change with deletion vectors hides the selected rows and writes their new values to other files.
If the commit that won hid other rows of the same files, and added no row that this change would
have selected, then this change selects the same rows on the new version. Only the vectors differ.

Spec: Deletion Vectors; Add File and Remove File (a file is replaced by itself with another vector).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from pyroaring import BitMap64

from dagster_delta.errors import (
    ConcurrentAppend,
    ConcurrentDeleteDelete,
    ConcurrentDeleteRead,
    DataFileMissing,
)
from dagster_delta.parquet.deletion_vectors import DeletionVectorLoader
from dagster_delta.protocol.actions import AddFile, DeletionVectorDescriptor, RemoveFile
from dagster_delta.protocol.features.deletion_vectors import vector_files
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_file import CommitActions, decode_commit
from dagster_delta.protocol.log.conflict_checker import (
    Conflict,
    ReadScope,
    TransactionFacts,
    check_conflicts,
    is_blind_append,
)
from dagster_delta.protocol.statistics.statistics import parse_statistics_json, with_record_count
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.transaction.deletion_vector_files import store_deletion_vectors

_ABOUT_ROWS = (ConcurrentAppend, ConcurrentDeleteDelete, ConcurrentDeleteRead)


SelectsRows = Callable[[Sequence[AddFile]], bool]
"""Whether files hold a row that a change selects."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """The actions of a change with deletion vectors, and what it depends on."""

    adds: Sequence[AddFile]
    removes: Sequence[RemoveFile]
    reads: ReadScope
    selects: SelectsRows
    """Asked about new files of others, all of which `reads.may_hold`."""


@dataclass(frozen=True, slots=True)
class UnitedChange:
    """The same change on top of the concurrent commits."""

    adds: tuple[AddFile, ...]
    removes: tuple[RemoveFile, ...]
    new_files: tuple[str, ...]
    """Files that were made for the vectors, relative to the table root."""
    superseded: frozenset[str]
    """Files that were made for the change and that it refers to no more, relative to the table
    root."""


def unite_row_changes(
    store: ObjectStore,
    configuration: TableConfiguration,
    change: RowChange,
    concurrent_commits: Iterable[CommitActions],
) -> UnitedChange | None:
    """The change on top of the commits that won, or None if one of them changed the same rows.

    No concurrent commit has changed the configuration; the commits are those since the version it
    was planned on, in order.
    """
    if change.reads.whole_table:
        return None
    try:
        return _on_top_of(store, configuration, change, concurrent_commits)
    except DataFileMissing:
        # VACUUM may have deleted what one commit added and a later one removed. The newest version
        # shows whether the file is needed.
        return None


def concurrent_row_changes(
    conflict: Conflict, commits: Sequence[tuple[int, bytes]], facts: TransactionFacts
) -> list[CommitActions] | None:
    """The concurrent commits, oldest first; None if the change conflicts with them beyond rows."""
    if facts.isolation_level == "Serializable" or conflict.kind not in _ABOUT_ROWS:
        return None
    concurrent_commits = [decode_commit(data, version=version) for version, data in commits]
    if any(concurrent.protocol or concurrent.metadata for concurrent in concurrent_commits):
        return None
    others = msgspec.structs.replace(facts, reads=ReadScope(), removed_paths=frozenset())
    return concurrent_commits if check_conflicts(others, concurrent_commits) is None else None


def _on_top_of(
    store: ObjectStore,
    configuration: TableConfiguration,
    change: RowChange,
    concurrent_commits: Iterable[CommitActions],
) -> UnitedChange | None:
    hidden = HiddenRows(store)
    removed = {remove.path: remove for remove in change.removes}
    latest: dict[str, AddFile] = {}
    for concurrent in concurrent_commits:
        added = {add.path: add for add in concurrent.adds}
        for remove in concurrent.removes:
            add = added.pop(remove.path, None)
            if add is not None and not hidden.grow(remove, add):
                return None
            if remove.path in removed and add is not None:
                latest[remove.path] = add
            elif remove.path in removed or remove.path in change.reads.paths:
                return None
        if _adds_selected_rows(change, concurrent, list(added.values())):
            return None
    return _united(store, configuration, change, latest, hidden)


def _adds_selected_rows(change: RowChange, concurrent: CommitActions, added: list[AddFile]) -> bool:
    if is_blind_append(concurrent):
        # It counts as if it had come later, as in `conflict_checker`.
        return False
    may_hold = change.reads.may_hold
    found = may_hold(added) if added and may_hold is not None else []
    if any(add.deletion_vector is not None for add in found):
        return True
    return bool(found) and change.selects(found)


def _united(
    store: ObjectStore,
    configuration: TableConfiguration,
    change: RowChange,
    latest: Mapping[str, AddFile],
    hidden: HiddenRows,
) -> UnitedChange | None:
    removed = {remove.path: remove for remove in change.removes}
    mine = {add.path: add for add in change.adds if add.path in latest}
    vectors: dict[str, BitMap64] = {}
    for path, theirs in latest.items():
        if path not in mine:
            return None  # all its rows were to be deleted, those of the other commit included
        before = hidden.rows(removed[path].deletion_vector, path)
        selected = hidden.rows(mine[path].deletion_vector, path) - before
        taken = hidden.rows(theirs.deletion_vector, path)
        if selected & taken:
            return None
        vectors[path] = taken | selected
    counts = {path: _num_rows(mine[path]) for path in vectors}
    emptied = {path for path, rows in vectors.items() if len(rows) == counts[path]}
    kept = [path for path in vectors if path not in emptied]
    stored = store_deletion_vectors(store, configuration, [vectors[path] for path in kept])
    descriptors = dict(zip(kept, stored.descriptors, strict=True))
    adds = tuple(
        _changed(hiding(latest[add.path], descriptors[add.path], counts[add.path]))
        if add.path in descriptors
        else add
        for add in change.adds
        if add.path not in emptied
    )
    removes = tuple(removal(remove, latest.get(remove.path)) for remove in change.removes)
    superseded = frozenset(vector_files(change.adds)) - frozenset(vector_files(adds))
    return UnitedChange(adds, removes, stored.paths, superseded)


def hiding(add: AddFile, descriptor: DeletionVectorDescriptor, num_rows: int) -> AddFile:
    """A file of so many rows, deleted ones included, with another deletion vector."""
    # Spec: numRecords MUST be there and counts the deleted rows; bounds are not tight. A concurrent
    # commit without a vector for the file may have left it with other statistics.
    stats = with_record_count(add.stats, num_rows, tight_bounds=False)
    return msgspec.structs.replace(add, deletion_vector=descriptor, stats=stats)


def _changed(add: AddFile) -> AddFile:
    return msgspec.structs.replace(add, data_change=True)


def removal(remove: RemoveFile, theirs: AddFile | None) -> RemoveFile:
    """The removal of a file in the form that a concurrent commit has given it, if any has."""
    # Spec: a remove names the vector of the logical file that it removes.
    if theirs is None:
        return remove
    return msgspec.structs.replace(remove, deletion_vector=theirs.deletion_vector)


def _num_rows(add: AddFile) -> int:
    """Rows of a file that has a deletion vector, and so says how many."""
    counts = parse_statistics_json(string_column([add.stats]), ())["num_records"]
    count: int = counts[0].as_py()
    return count


class HiddenRows:
    """The rows that deletion vectors hide, each vector loaded once."""

    def __init__(self, store: ObjectStore) -> None:
        self._loader = DeletionVectorLoader(store)
        self._known: dict[str, BitMap64] = {}

    def rows(self, descriptor: DeletionVectorDescriptor | None, path: str) -> BitMap64:
        """The rows that a vector hides in the data file with this path; none without a vector."""
        if descriptor is None:
            return BitMap64()
        key = descriptor.unique_id
        if key not in self._known:
            self._known[key] = self._loader.load(descriptor, data_file=decode_path(path))
        return self._known[key]

    def grow(self, remove: RemoveFile, add: AddFile) -> bool:
        """Whether a file was replaced by itself with no row shown that had been hidden."""
        before = self.rows(remove.deletion_vector, remove.path)
        return before <= self.rows(add.deletion_vector, add.path)
