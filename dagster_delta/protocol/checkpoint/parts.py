"""Checkpoint files written action by action, so that only a few row groups are in memory.

Spec: Checkpoints (multi-part checkpoints); Sidecar Files; Checkpoint Schema.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.protocol.checkpoint.writer import open_actions_writer, stack_actions
from dagster_delta.protocol.values.arrow_columns import index_column

_MAX_PENDING_BYTES = 128 * 1024 * 1024
_MAX_GROUP_ROWS = 250_000


class ActionFile:
    """One Parquet file of a checkpoint while it is written.

    `first` is a `pa.Table` with the first actions; it has every column of later tables.
    """

    def __init__(self, sink: str | pa.NativeFile, first: pa.Table) -> None:
        self._empty = first.slice(0, 0)
        self._writer = open_actions_writer(sink, first.schema)
        self._pending = [first]
        self.num_actions = 0
        """Rows so far."""
        self.pending_bytes = 0
        """Bytes of the rows that are not written yet."""
        self._count(first)

    def add(self, actions: pa.Table) -> None:
        """Add the rows of a `pa.Table`; they are written once there are enough."""
        if not actions.num_rows:
            return
        self._pending.append(actions)
        self._count(actions)
        if self.pending_bytes > _MAX_PENDING_BYTES:
            self.flush()

    def _count(self, actions: pa.Table) -> None:
        self.num_actions += actions.num_rows
        self.pending_bytes += actions.nbytes

    def flush(self) -> None:
        """Write the buffered rows."""
        rows = stack_actions([self._empty, *self._pending])
        if rows.num_rows:
            self._writer.write_table(rows, row_group_size=_MAX_GROUP_ROWS)
        self._pending, self.pending_bytes = [], 0

    def close(self) -> None:
        """Finish the file."""
        self.flush()
        self._writer.close()

    def abandon(self) -> None:
        """Discard a file that will not be used."""
        self._writer.close()


class ClusteredFiles:
    """The parts of a classic checkpoint, written in parallel: all actions of a path in one part."""

    def __init__(self, parts: Sequence[ActionFile]) -> None:
        self._parts = parts

    def add(self, actions: pa.Table, paths: pa.ChunkedArray) -> None:
        """Add file actions."""
        numbers = _part_numbers(paths, len(self._parts))
        # All rows are copied once for all parts together.
        ordered = actions.take(pc.sort_indices(index_column(numbers)))
        counts, start = Counter(numbers), 0
        for number, part in enumerate(self._parts):
            part.add(ordered.slice(start, counts[number]))
            start += counts[number]
        if sum(part.pending_bytes for part in self._parts) > _MAX_PENDING_BYTES:
            for part in self._parts:
                part.flush()


def _part_numbers(paths: pa.ChunkedArray, num_parts: int) -> list[int]:
    # Spec: the parts MUST be clustered by path. The hash is stable, because several attempts at one
    # checkpoint must agree on the contents of a part.
    return [zlib.crc32(path.encode()) % num_parts for path in paths.to_pylist()]
