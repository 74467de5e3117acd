"""Commits a change of rows on top of concurrent changes of other rows of the same files.

A change with deletion vectors hides the selected rows and writes their new values to other files.
If the commit that won hid other rows of the same files, and added no row that this change would
have selected, then this change selects the same rows on the new version. Only the vectors differ.

A compaction knows which row of which file went where: it writes the live rows of its files one
after the other. If another writer hides rows of one of its files by a deletion vector meanwhile,
the same rows are hidden in the new file. A file that was removed costs only its group.

Spec: Deletion Vectors; Add File and Remove File (a file is replaced by itself with another vector;
dataChange).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec
import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from dagster_delta.engines import DeletionVectorLoader
from dagster_delta.errors import (
    CommitConflict,
    ConcurrentAppend,
    ConcurrentDeleteDelete,
    ConcurrentDeleteRead,
    DataFileMissing,
)
from dagster_delta.protocol.actions import AddFile, DeletionVectorDescriptor, RemoveFile
from dagster_delta.protocol.features.deletion_vectors import vector_files
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_file import CommitActions, decode_commit
from dagster_delta.protocol.log.conflict_checker import (
    ReadScope,
    TransactionFacts,
    check_conflicts,
    is_blind_append,
)
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.transaction.file_actions import hiding, store_deletion_vectors

_ABOUT_ROWS = (ConcurrentAppend, ConcurrentDeleteDelete, ConcurrentDeleteRead)

SelectsRows = Callable[[Sequence[AddFile]], bool]
"""Whether files hold a row that a change selects."""


Followed = tuple[Mapping[str, AddFile], Mapping[str, BitMap64]]
"""What other commits made of files of a change, by path, and the rows to hide, by path of the file
that it adds."""


class RowChange(msgspec.Struct, frozen=True):
    """The actions of a change with deletion vectors, and what it depends on."""

    adds: Sequence[AddFile]
    removes: Sequence[RemoveFile]
    reads: ReadScope
    selects: SelectsRows
    """Asked about new files of others, all of which `reads.may_hold`."""

    def follow(
        self, hidden: HiddenRows, concurrent_commits: Iterable[CommitActions]
    ) -> Followed | None:
        """The change on top of the commits that won; None if one of them changed the same rows."""
        if self.reads.whole_table:
            return None
        removed = {remove.path: remove for remove in self.removes}
        latest: dict[str, AddFile] = {}
        for concurrent in concurrent_commits:
            added = {add.path: add for add in concurrent.adds}
            for remove in concurrent.removes:
                add = added.pop(remove.path, None)
                if add is not None and not hidden.grow(remove, add):
                    return None
                if remove.path in removed and add is not None:
                    latest[remove.path] = add
                elif remove.path in removed or remove.path in self.reads.paths:
                    return None
            if self._selects_added(concurrent, list(added.values())):
                return None
        mine = {add.path: add for add in self.adds}
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
        return latest, vectors

    def _selects_added(self, concurrent: CommitActions, added: list[AddFile]) -> bool:
        if is_blind_append(concurrent):
            # It counts as if it had come later, as in `conflict_checker`.
            return False
        may_hold = self.reads.may_hold
        found = may_hold(added) if added and may_hold is not None else []
        if any(add.deletion_vector is not None for add in found):
            return True
        return bool(found) and self.selects(found)


class MovedGroup(msgspec.Struct, frozen=True):
    """Files whose live rows were written to new files."""

    files: pa.Table
    """`pa.Table` of LIVE_FILE_SCHEMA."""
    removes: tuple[RemoveFile, ...]
    """Of these files, in the same order."""
    adds: tuple[AddFile, ...]
    """The new files."""
    keeps_order: bool
    """Whether the rows follow each other in the new files as in the old ones."""

    @property
    def paths(self) -> set[str]:
        """Of the files that are removed, as in the log."""
        return {remove.path for remove in self.removes}

    def counts(self) -> list[int]:
        """Rows of the old files, deleted ones included; none if the log does not count them all."""
        counts = parse_statistics_json(self.files["stats"], ())["num_records"]
        return [] if counts.null_count else counts.to_pylist()


@dataclass(slots=True)
class MovedGroups:
    """Groups of one transaction; after `follow`, those that can still be committed."""

    groups: Sequence[MovedGroup]
    _latest: dict[str, AddFile] = field(default_factory=dict, init=False)
    """What other commits made of removed files, by path."""

    @property
    def adds(self) -> Iterator[AddFile]:
        """The new files of all groups."""
        return (add for group in self.groups for add in group.adds)

    @property
    def removes(self) -> Iterator[RemoveFile]:
        """The removals of all groups."""
        return (remove for group in self.groups for remove in group.removes)

    def follow(
        self, hidden: HiddenRows, concurrent_commits: Iterable[CommitActions]
    ) -> Followed | None:
        """The groups on top of commits since the version that they were last planned on, without
        those that cannot follow them; None if no group is left.
        """
        changed = self._note_changes(hidden, concurrent_commits)
        touched = self._latest.keys()
        self.groups = [
            group
            for group in self.groups
            if not group.paths & changed
            and (group.paths.isdisjoint(touched) or (group.keeps_order and group.counts()))
        ]
        if not self.groups:
            return None
        vectors: dict[str, BitMap64] = {}
        for group in self.groups:
            if not group.paths.isdisjoint(touched):
                vectors.update(self._hidden_in(group, hidden))
        return self._latest, vectors

    def _note_changes(
        self, hidden: HiddenRows, concurrent_commits: Iterable[CommitActions]
    ) -> set[str]:
        """Note new vectors of the files; returns the paths that were changed in any other way."""
        mine = {remove.path for remove in self.removes}
        changed: set[str] = set()
        for commit in concurrent_commits:
            added = {add.path: add for add in commit.adds if add.path in mine}
            removed = {gone.path: gone for gone in commit.removes if gone.path in mine}
            for path in added.keys() | removed.keys():
                add, remove = added.get(path), removed.get(path)
                if add is None or remove is None or not hidden.grow(remove, add):
                    changed.add(path)
                else:
                    self._latest[path] = add
        return changed

    def _hidden_in(self, group: MovedGroup, hidden: HiddenRows) -> Iterator[tuple[str, BitMap64]]:
        positions = []
        start = 0
        for remove, num_rows in zip(group.removes, group.counts(), strict=True):
            planned = hidden.rows(remove.deletion_vector, remove.path)
            theirs = self._latest.get(remove.path)
            if theirs is not None:
                new = hidden.rows(theirs.deletion_vector, remove.path) - planned
                # Rows that were hidden when the file was read have not moved.
                positions += [start + row - planned.rank(row) for row in new]
            start += num_rows - len(planned)
        ends = list(accumulate(map(_num_rows, group.adds)))
        moved = np.array(positions, np.int64)
        homes = np.searchsorted(ends, moved, side="right")
        for home in np.unique(homes).tolist():
            rows = moved[homes == home] - (ends[home - 1] if home else 0)
            yield group.adds[home].path, BitMap64(rows.tolist())


class RebasedActions(msgspec.Struct, frozen=True):
    """The actions of a change on top of concurrent commits."""

    adds: tuple[AddFile, ...]
    removes: tuple[RemoveFile, ...]
    new_files: tuple[str, ...]
    """Files that were made for its vectors, relative to the table root."""


def rebase_rows(
    store: ObjectStore,
    configuration: TableConfiguration,
    change: RowChange | MovedGroups,
    concurrent_commits: Iterable[CommitActions],
) -> RebasedActions | None:
    """The change on top of the commits since the version that it was planned on, in order; None if
    it cannot follow them. None of them has changed the configuration.
    """
    hidden = HiddenRows(store)
    try:
        followed = change.follow(hidden, concurrent_commits)
    except DataFileMissing:
        # VACUUM may have deleted what one commit added and a later one removed. The newest version
        # shows whether the file is needed.
        return None
    if followed is None:
        return None
    latest, vectors = followed
    touched = [add for add in change.adds if add.path in vectors]
    counts = {add.path: _num_rows(add) for add in touched}
    # A file without rows leaves the table.
    kept = [path for path, rows in vectors.items() if len(rows) < counts[path]]
    stored = store_deletion_vectors(store, configuration, [vectors[path] for path in kept])
    descriptors = dict(zip(kept, stored.descriptors, strict=True))
    adds = tuple(
        msgspec.structs.replace(
            hiding(latest.get(add.path, add), descriptors[add.path], counts[add.path]),
            data_change=add.data_change,
        )
        if add.path in descriptors
        else add
        for add in change.adds
        if add.path in descriptors or add.path not in vectors
    )
    removes = tuple(_adapt_removal(remove, latest.get(remove.path)) for remove in change.removes)
    return RebasedActions(adds, removes, stored.paths)


def concurrent_row_changes(
    conflict: CommitConflict, commits: Sequence[tuple[int, bytes]], facts: TransactionFacts
) -> list[CommitActions] | None:
    """The concurrent commits, oldest first; None if the change conflicts with them beyond rows."""
    if facts.isolation_level == "Serializable" or not isinstance(conflict, _ABOUT_ROWS):
        return None
    concurrent_commits = [decode_commit(data, version=version) for version, data in commits]
    if any(concurrent.protocol or concurrent.metadata for concurrent in concurrent_commits):
        return None
    others = msgspec.structs.replace(facts, reads=ReadScope(), removed_paths=frozenset())
    return concurrent_commits if check_conflicts(others, concurrent_commits) is None else None


def referenced_files(adds: Sequence[AddFile]) -> set[str]:
    """The data files and the files with vectors of some adds, relative to the table root."""
    return {*(decode_path(add.path) for add in adds), *vector_files(adds)}


def _adapt_removal(remove: RemoveFile, theirs: AddFile | None) -> RemoveFile:
    """The removal of a file in the form that a concurrent commit has given it, if any has."""
    # Spec: a remove names the vector of the logical file that it removes.
    if theirs is None:
        return remove
    return msgspec.structs.replace(remove, deletion_vector=theirs.deletion_vector)


def _num_rows(add: AddFile) -> int:
    assert add.num_records is not None  # noqa: S101  this process has written or counted it
    return add.num_records


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
