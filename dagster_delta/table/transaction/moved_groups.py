"""Commits moved rows after concurrent commits that deleted some of them.

A compaction knows which row of which file went where: it writes the live rows of its files one
after the other. If another writer hides rows of one of its files by a deletion vector meanwhile,
the same rows are hidden in the new file. A file that was removed costs only its group.

Spec: Add File and Remove File (dataChange); Deletion Vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from dagster_delta.errors import DataFileMissing
from dagster_delta.protocol.actions import AddFile, RemoveFile
from dagster_delta.protocol.features.deletion_vectors import vector_files
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.table.transaction.conflicts import HiddenRows, UnitedChange, hiding, removal
from dagster_delta.table.transaction.deletion_vector_files import store_deletion_vectors

if TYPE_CHECKING:
    from dagster_delta.protocol.features.table_configuration import TableConfiguration
    from dagster_delta.protocol.log.commit_file import CommitActions
    from dagster_delta.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class MovedGroup:
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


@dataclass(slots=True)
class MovedGroups:
    """Groups of one transaction; after `unite`, those that can still be committed."""

    groups: Sequence[MovedGroup]
    _latest: dict[str, AddFile] = field(default_factory=dict, init=False)
    """What other commits made of removed files, by path."""
    _referenced: frozenset[str] = field(init=False)
    """The files of the change, relative to the table root."""

    def __post_init__(self) -> None:
        self._referenced = frozenset(decode_path(add.path) for add in self.adds)

    @property
    def adds(self) -> Iterator[AddFile]:
        """The new files of all groups."""
        return (add for group in self.groups for add in group.adds)

    @property
    def removes(self) -> Iterator[RemoveFile]:
        """The removals of all groups."""
        return (remove for group in self.groups for remove in group.removes)

    def unite(
        self,
        store: ObjectStore,
        configuration: TableConfiguration,
        concurrent_commits: Sequence[CommitActions],
    ) -> UnitedChange | None:
        """The groups on top of concurrent commits, without those that cannot follow them.

        The commits are those since the version that the groups were last planned on, in order; none
        of them has changed the configuration. None if no group is left.
        """
        hidden = HiddenRows(store)
        try:
            self._leave_out(self._follow(hidden, concurrent_commits))
            vectors = self._vectors(hidden)
        except DataFileMissing:
            # VACUUM may have deleted what one commit added and a later one removed.
            return None
        return self._united(store, configuration, vectors)

    def _follow(self, hidden: HiddenRows, concurrent_commits: Sequence[CommitActions]) -> set[str]:
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

    def _leave_out(self, changed: set[str]) -> None:
        touched = self._latest.keys()
        self.groups = [
            group
            for group in self.groups
            if not group.paths & changed
            and (group.paths.isdisjoint(touched) or (group.keeps_order and _counts(group)))
        ]

    def _vectors(self, hidden: HiddenRows) -> dict[str, BitMap64]:
        """The rows to hide, by path of the new file."""
        found: dict[str, BitMap64] = {}
        for group in self.groups:
            if not group.paths.isdisjoint(self._latest):
                found.update(self._hidden_in(group, hidden))
        return found

    def _hidden_in(self, group: MovedGroup, hidden: HiddenRows) -> Iterator[tuple[str, BitMap64]]:
        positions = []
        start = 0
        for remove, num_rows in zip(group.removes, _counts(group), strict=True):
            planned = hidden.rows(remove.deletion_vector, remove.path)
            theirs = self._latest.get(remove.path)
            if theirs is not None:
                new = hidden.rows(theirs.deletion_vector, remove.path) - planned
                # Rows that were hidden when the file was read have not moved.
                positions += [start + row - planned.rank(row) for row in new]
            start += num_rows - len(planned)
        ends = list(accumulate(_num_rows(group.adds)))
        moved = np.array(positions, np.int64)
        homes = np.searchsorted(ends, moved, side="right")
        for home in np.unique(homes).tolist():
            rows = moved[homes == home] - (ends[home - 1] if home else 0)
            yield group.adds[home].path, BitMap64(rows.tolist())

    def _united(
        self,
        store: ObjectStore,
        configuration: TableConfiguration,
        vectors: Mapping[str, BitMap64],
    ) -> UnitedChange | None:
        if not self.groups:
            return None
        mine = tuple(self.adds)
        counts = dict(zip((add.path for add in mine), _num_rows(mine), strict=True))
        kept = [path for path, rows in vectors.items() if len(rows) < counts[path]]
        stored = store_deletion_vectors(store, configuration, [vectors[path] for path in kept])
        descriptors = dict(zip(kept, stored.descriptors, strict=True))
        adds = tuple(
            hiding(add, descriptors[add.path], counts[add.path]) if add.path in descriptors else add
            for add in mine
            if add.path in descriptors or add.path not in vectors
        )
        removes = tuple(removal(remove, self._latest.get(remove.path)) for remove in self.removes)
        files = frozenset(decode_path(add.path) for add in adds) | frozenset(vector_files(adds))
        superseded = self._referenced - files
        self._referenced = files
        return UnitedChange(adds, removes, stored.paths, superseded)


def _counts(group: MovedGroup) -> list[int]:
    """Rows of the old files, deleted ones included; none if the log does not count them all."""
    counts = parse_statistics_json(group.files["stats"], ())["num_records"]
    return [] if counts.null_count else counts.to_pylist()


def _num_rows(adds: Sequence[AddFile]) -> list[int]:
    """Rows of new files, whose statistics always count them."""
    stats = string_column([add.stats for add in adds])
    counts: list[int] = parse_statistics_json(stats, ())["num_records"].to_pylist()
    return counts
