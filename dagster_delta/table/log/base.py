"""What a log says before its last commits: the files of a checkpoint, and those added since.

Spec: Checkpoints; Action Reconciliation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.protocol.checkpoint.columns import corruption_named
from dagster_delta.protocol.checkpoint.reader import CheckpointPart, TableActions
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.log.segment import LogSegment
from dagster_delta.protocol.log.tail import LogTail, decode_tail
from dagster_delta.protocol.statistics.log_statistics import checkpoint_statistics_json
from dagster_delta.protocol.statistics.statistics import StatisticsColumn
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.columns import narrowed
from dagster_delta.table.log.reader import EMPTY_CHECKPOINT, open_checkpoint, read_commits


class LogBase(msgspec.Struct, frozen=True):
    """Everything older than the tail."""

    actions: TableActions = msgspec.field(default_factory=TableActions)
    parts: tuple[CheckpointPart, ...] = ()
    masks: tuple[pa.BooleanArray, ...] | None = None
    """Per part a `pa.BooleanArray` of its live adds; None until they are first computed."""
    rows: pa.Table = msgspec.field(
        default_factory=partial(pa.Table.from_batches, [], LIVE_FILE_SCHEMA)
    )
    """`pa.Table` of LIVE_FILE_SCHEMA: live files that later commits added."""
    columns: Mapping[str, pa.ChunkedArray] = msgspec.field(default_factory=dict)
    """Columns that are already in memory: the parts' live adds, then `rows`."""
    statistics: tuple[tuple[StatisticsColumn, ...], pa.Table] | None = None
    """The last statistics that were requested and their `pa.Table`, row for row with `columns`."""
    tombstones: pa.Table | None = None
    """`pa.Table` of TOMBSTONE_SCHEMA; None for those of the parts."""
    tombstone_tails: tuple[LogTail, ...] = ()
    """Commits that are in `masks` and `rows`, and not yet in the tombstones."""


def live_paths(base: LogBase) -> tuple[tuple[pa.BooleanArray, ...], list[pa.Array]]:
    """The masks of the parts, and the paths of all live files of the base in chunks."""
    if base.masks is not None and "path" in base.columns:
        return base.masks, base.columns["path"].chunks
    found = [part.add_rows() for part in base.parts]
    chunks = [chunk for _, paths in found for chunk in paths]
    chunks += base.rows.column("path").chunks
    return tuple(mask for mask, _ in found), chunks


def vectors_of(
    base: LogBase, masks: Sequence[pa.BooleanArray], touched: pa.BooleanArray
) -> pa.ChunkedArray:
    """Deletion vectors of some live files of the base: a `pa.ChunkedArray`."""
    touched_masks = narrowed(masks, touched)
    chunks: list[pa.Array] = []
    for part, mask in zip(base.parts, touched_masks, strict=True):
        chunks += part.read_adds(["deletion_vector"], mask)["deletion_vector"].chunks
    later = touched.slice(len(touched) - len(base.rows))
    chunks += pc.filter(base.rows.column("deletion_vector"), later).chunks
    return pa.chunked_array(chunks, LIVE_FILE_SCHEMA.field("deletion_vector").type)


def read_base(
    base: LogBase, masks: Sequence[pa.BooleanArray], rows: pa.Table, names: Sequence[str]
) -> dict[str, pa.ChunkedArray]:
    """Columns of LIVE_FILE_SCHEMA of the live files of the base, as `pa.ChunkedArray`s."""
    chunks: dict[str, list[pa.Array]] = {name: [] for name in names}
    plain = [name for name in names if name != "stats"]
    for part, mask in zip(base.parts, masks, strict=True):
        columns = part.read_adds(plain, mask) if plain else {}
        if "stats" in chunks:
            with corruption_named(part.path):
                columns["stats"] = checkpoint_statistics_json(part, mask)
        for name, column in columns.items():
            chunks[name] += column.chunks
    for name in names:
        chunks[name] += rows.column(name).chunks
    return {
        name: pa.chunked_array(chunks[name], LIVE_FILE_SCHEMA.field(name).type) for name in names
    }


def read_segment(store: ObjectStore, segment: LogSegment) -> tuple[LogBase, tuple[LogTail, ...]]:
    """The state before the last commits of a segment, and those commits."""
    checkpoint = EMPTY_CHECKPOINT
    if segment.checkpoint is not None:
        checkpoint = open_checkpoint(store, segment.checkpoint)
    commits = read_commits(store, segment.replay)
    tail = decode_tail((*checkpoint.manifests, *commits))
    return LogBase(checkpoint.actions, checkpoint.parts), (tail,)
