"""The files that a stream reads first: all that were live at a version, oldest first.

Spec: Add File and Remove File (modificationTime).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.values.arrow_columns import index_column, string_column
from dagster_delta.protocol.values.arrow_values import every, integer_scalar
from dagster_delta.table.read.file_planner import FilePlanner
from dagster_delta.table.read.snapshot import Snapshot

SNAPSHOT_COLUMNS = ("path", "partition_values", "size_bytes", "deletion_vector")
"""Columns of LIVE_FILE_SCHEMA that a stream needs to read files."""

_KEY = ("modification_time_ms", "path")
STRETCH_FILES = 250_000
"""Files of a large table that are in memory at a time, about."""
_MAX_SAMPLES = 100_000


class SnapshotFiles:
    """The live files of a version by modification time and path, an order that is the same in every
    run of a query. Of a large table a range of files is in memory at a time, for which the log is
    read once.

    `stretch_files` of a large table are in memory at a time, about; `max_samples` files divide it
    into such ranges.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        stretch_files: int = STRETCH_FILES,
        max_samples: int = _MAX_SAMPLES,
    ) -> None:
        self._snapshot = snapshot
        self._bounds: list[_Bound] = []
        self._starts = [0]
        if snapshot.is_large_and_unread:
            self._bounds = _sampled_bounds(snapshot, stretch_files, max_samples)
            self._starts += _positions(snapshot, self._bounds)
        self._held: tuple[int, pa.Table] | None = None

    def sizes_from(self, index: int) -> Iterator[list[int]]:
        """Sizes in bytes of the files from a position on, range by range."""
        for stretch in range(bisect_right(self._starts, index) - 1, len(self._starts)):
            files = self._files_of(stretch)
            yield files["size_bytes"].slice(max(0, index - self._starts[stretch])).to_pylist()

    def between(self, start: int, stop: int | None) -> Iterator[pa.Table]:
        """The files from one position to another, or to the end, in `pa.Table`s of
        SNAPSHOT_COLUMNS.
        """
        for stretch in range(bisect_right(self._starts, start) - 1, len(self._starts)):
            first = self._starts[stretch]
            if stop is not None and first >= stop:
                return
            skipped = max(0, start - first)
            length = None if stop is None else max(0, stop - first - skipped)
            yield self._files_of(stretch).slice(skipped, length)

    def _files_of(self, stretch: int) -> pa.Table:
        if self._held is None or self._held[0] != stretch:
            self._held = None
            found = self._read(stretch).sort_by([(name, "ascending") for name in _KEY])
            self._held = stretch, found.select(SNAPSHOT_COLUMNS)
        return self._held[1]

    def _read(self, stretch: int) -> pa.Table:
        names = [*SNAPSHOT_COLUMNS, "modification_time_ms"]
        if not self._bounds:
            return self._snapshot.live_files(names)
        low = self._bounds[stretch - 1] if stretch else None
        high = self._bounds[stretch] if stretch < len(self._bounds) else None

        def is_inside(files: pa.Table) -> pa.ChunkedArray:
            inside = every(True, files.num_rows)
            if low is not None:
                inside = pc.and_(inside, pc.invert(low.is_after(files)))
            return inside if high is None else pc.and_(inside, high.is_after(files))

        return FilePlanner(self._snapshot).choose(names, is_inside)


class _Bound:
    """A boundary between two ranges: the file that begins the later one."""

    def __init__(self, time_ms: int, path: str) -> None:
        self._time = integer_scalar(time_ms)
        self._path = string_column([path])[0]

    def is_after(self, files: pa.Table) -> pa.ChunkedArray:
        """For each file whether it is before this boundary; files without a time come last."""
        times, paths = files["modification_time_ms"], files["path"]
        same = pc.and_(pc.equal(times, self._time), pc.less(paths, self._path))
        return pc.fill_null(pc.or_(pc.less(times, self._time), same), False)


def _sampled_bounds(snapshot: Snapshot, stretch_files: int, max_samples: int) -> list[_Bound]:
    """Boundaries that divide the files into ranges of about equal length."""
    stride = max(1, -(-snapshot.max_file_actions // max_samples))
    samples = [pa.Table.from_batches([], pa.schema(map(LIVE_FILE_SCHEMA.field, _KEY)))]
    first = 0
    for batch in FilePlanner(snapshot).batches(_KEY):
        num_files = batch.files.num_rows
        samples.append(batch.files.take(index_column(range(first, num_files, stride))))
        first = (first - num_files) % stride
    ordered = pa.concat_tables(samples).drop_null()
    ordered = ordered.sort_by([(name, "ascending") for name in _KEY])
    step = max(1, stretch_files // stride)
    chosen = ordered.take(index_column(range(step, ordered.num_rows, step)))
    return [_Bound(*row.values()) for row in chosen.to_pylist()]


def _positions(snapshot: Snapshot, bounds: list[_Bound]) -> list[int]:
    positions = [0] * len(bounds)
    for batch in FilePlanner(snapshot).batches(_KEY):
        for number, bound in enumerate(bounds):
            positions[number] += pc.sum(bound.is_after(batch.files), min_count=0).as_py()
    return positions
