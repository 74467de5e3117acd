"""What the log says at one version: read on first use, cached, and carried forward by commits.

Spec: Action Reconciliation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from threading import RLock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.protocol.arrow_columns import (
    MIN_SLICE_ROWS,
    integer_column,
    slices_where,
    string_column,
)
from dagster_delta.protocol.arrow_values import integer_scalar
from dagster_delta.protocol.checkpoint_batches import (
    FileBatch,
    batches_of_files,
    batches_of_part,
    batches_of_removes,
)
from dagster_delta.protocol.checkpoint_reader import CheckpointPart, TableActions
from dagster_delta.protocol.log_replay import (
    LIVE_FILE_SCHEMA,
    TOMBSTONE_SCHEMA,
    HiddenFiles,
    ReconciledTail,
    reconcile_tail,
)
from dagster_delta.protocol.log_segment import LogSegment
from dagster_delta.protocol.log_statistics import (
    checkpoint_statistics,
    checkpoint_statistics_json,
)
from dagster_delta.protocol.log_tail import (
    LogTail,
    RawCommit,
    add_columns,
    decode_tail,
    remove_columns,
)
from dagster_delta.protocol.statistics import StatisticsColumn, parse_statistics_json
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log_reader import EMPTY_CHECKPOINT, open_checkpoint, read_commits

__all__ = ["LogState"]

# Statistics are carried forward from checkpoint to checkpoint unless they would weigh too much.
_MAX_KEPT_STATISTICS_BYTES = 64 * 1024 * 1024
# A column gains a chunk with every commit that settles; beyond this number small ones are merged.
_MAX_CHUNKS = 64
_SMALL_CHUNK_ROWS = 4096
# Beyond this number of chunks, dropping a row of one copies it rather than making two of it.
_MAX_CUT_CHUNKS = 1024


@dataclass(frozen=True, slots=True)
class _Base:
    """Everything older than the tail."""

    actions: TableActions = field(default_factory=TableActions)
    parts: tuple[CheckpointPart, ...] = ()
    masks: tuple[Any, ...] | None = None
    """Per part a `pa.BooleanArray` of its live adds; None while nobody has looked."""
    rows: Any = field(default_factory=partial(pa.Table.from_batches, [], LIVE_FILE_SCHEMA))
    """`pa.Table` of LIVE_FILE_SCHEMA: live files that later commits added."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Columns that are in memory already: the parts' live adds, then `rows`."""
    statistics: tuple[tuple[StatisticsColumn, ...], Any] | None = None
    """The last statistics that were asked for and their `pa.Table`, row for row with `columns`."""
    tombstones: Any = None
    """`pa.Table` of TOMBSTONE_SCHEMA; None for those of the parts."""
    tombstone_tails: tuple[LogTail, ...] = ()
    """Commits that are in `masks` and `rows`, and not yet in the tombstones."""


class _Source:
    """A base and the commits read together with it; shared by the versions that build on it."""

    def __init__(self, read: Callable[[], tuple[_Base, tuple[LogTail, ...]]]) -> None:
        self._read = read
        self._lock = RLock()
        self._loaded: tuple[_Base, tuple[LogTail, ...]] | None = None

    def load(self) -> tuple[_Base, tuple[LogTail, ...]]:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._read()
            return self._loaded


@dataclass(frozen=True, slots=True)
class _Files:
    """Which files are live."""

    tail: ReconciledTail
    masks: tuple[Any, ...]
    """Per part of the base a `pa.BooleanArray` of its live adds."""
    kept: Any
    """`pa.BooleanArray` over the base's live rows: those the tail leaves alone; None for all."""
    rows: Any
    """`pa.Table`: the live ones of the base's `rows`."""
    num_files: int


class LogState:
    """The reconciled log at one version. Thread-safe; nothing about it changes but its caches."""

    def __init__(self, source: _Source, later: tuple[LogTail, ...] = ()) -> None:
        self._source = source
        self._later = later
        self._lock = RLock()
        self._files: _Files | None = None
        self._columns: dict[str, Any] = {}
        self._added_rows: Any = None
        self._statistics: tuple[tuple[StatisticsColumn, ...], Any] | None = None
        self._tombstones: Any = None
        self._actions: TableActions | None = None

    @classmethod
    def of_segment(cls, store: ObjectStore, segment: LogSegment) -> LogState:
        """The state of a log segment. Nothing is read before it is asked for."""
        return cls(_Source(partial(_read_segment, store, segment)))

    def advance(self, tail: LogTail) -> LogState:
        """The state after more commits; what is known already is carried over."""
        with self._lock:
            if self._files is None:
                return LogState(self._source, (*self._later, tail))
            settled = self._settle(self._files)
        return LogState(_Source(lambda: (settled, ())), (tail,))

    def table_actions(self) -> TableActions:
        """Protocol, metadata, transactions and domains (removed ones included)."""
        with self._lock:
            if self._actions is None:
                base, tails = self._load()
                merged = TableActions()
                merged.take(base.actions)
                for tail in tails:
                    merged.protocol = tail.protocol or merged.protocol
                    merged.metadata = tail.metadata or merged.metadata
                    merged.txns.update(tail.txns)
                    merged.domain_metadata.update(tail.domain_metadata)
                self._actions = merged
            return self._actions

    @property
    def num_files(self) -> int:
        """Number of live files."""
        return self._reconciled().num_files

    @property
    def max_file_actions(self) -> int:
        """Number of live files and tombstones, or some more."""
        with self._lock:
            base, tails = self._load()
        known = len(base.rows) + (0 if base.tombstones is None else len(base.tombstones))
        tails = (*base.tombstone_tails, *tails)
        return known + sum(part.num_rows for part in base.parts) + sum(len(t.keys) for t in tails)

    def unread_parts(self) -> tuple[CheckpointPart, ...]:
        """The files of the checkpoint, if nobody has looked for live files in them yet."""
        with self._lock:
            base, _ = self._load()
            return base.parts if self._files is None and base.masks is None else ()

    def replayed_tail(self) -> tuple[tuple[str, ...], Any]:
        """What the commits after the checkpoint say: keys of files that they remove or add again,
        and the files they leave added, a `pa.Table` of LIVE_FILE_SCHEMA.
        """
        with self._lock:
            _, tails = self._load()
            tail = reconcile_tail(tails)
            return tail.keys, add_columns(_commits(tails), tail.live_adds)

    def live_files(self, names: Sequence[str]) -> Any:
        """A `pa.Table` with these columns of LIVE_FILE_SCHEMA, in the same row order always."""
        with self._lock:
            self._read_columns([name for name in names if name not in self._columns])
            schema = pa.schema([LIVE_FILE_SCHEMA.field(name) for name in names])
            return pa.Table.from_arrays([self._columns[name] for name in names], schema=schema)

    def file_batches(
        self, names: Sequence[str], statistics: Sequence[StatisticsColumn] | None
    ) -> Iterator[FileBatch]:
        """The live files in the order of `live_files`, a batch at a time, none of them kept.

        Args:
            names: columns of LIVE_FILE_SCHEMA.
            statistics: columns that statistics may be asked for; None where none are.
        """
        with self._lock:
            base, tails = self._load()
            if self._files is not None:
                hidden, masks = HiddenFiles(()), self._files.masks
                known = [self._files.rows, self._added()]
            else:
                tail = reconcile_tail(tails)
                hidden, masks = HiddenFiles(tail.keys), base.masks or (None,) * len(base.parts)
                vectors = base.rows.column("deletion_vector")
                kept = hidden.rows_to_keep(base.rows.column("path"), vectors.filter)
                rows = base.rows if kept is None else base.rows.filter(kept)
                known = [rows, add_columns(_commits(tails), tail.live_adds)]
        checkpointed = (
            batches_of_part(part, names, statistics, hidden=hidden, live=mask)
            for part, mask in zip(base.parts, masks, strict=True)
        )
        return chain(
            chain.from_iterable(checkpointed),
            chain.from_iterable(batches_of_files(each, names) for each in known),
        )

    def tombstone_batches(self, *, removed_after_ms: int) -> Iterator[Any]:
        """What `tombstones` gives, in several `pa.Table`s, none of them kept."""
        with self._lock:
            base, tails = self._load()
            if self._tombstones is not None or base.tombstones is not None:
                return iter([self.tombstones(removed_after_ms=removed_after_ms)])
            tails = (*base.tombstone_tails, *tails)
        tail = reconcile_tail(tails)
        hidden = HiddenFiles(tail.keys)
        older = chain.from_iterable(batches_of_removes(part, hidden) for part in base.parts)
        newer = remove_columns(_commits(tails), tail.live_removes)
        return (_unexpired(each, removed_after_ms) for each in chain(older, [newer]))

    def statistics(self, columns: Sequence[StatisticsColumn]) -> Any:
        """The statistics table of all live files, row for row with `live_files`."""
        with self._lock:
            wanted = tuple(columns)
            if self._statistics is not None and self._statistics[0] == wanted:
                return self._statistics[1]
            older = self._base_statistics(wanted)
            newer = parse_statistics_json(self._added().column("stats"), columns)
            table = pa.concat_tables([*older, newer])
            if table.nbytes <= _MAX_KEPT_STATISTICS_BYTES:
                self._statistics = wanted, table
            return table

    def _base_statistics(self, columns: tuple[StatisticsColumn, ...]) -> list[Any]:
        files = self._reconciled()
        base, _ = self._load()
        if base.statistics is not None and base.statistics[0] == columns:
            table = base.statistics[1]
            return [table if files.kept is None else table.filter(files.kept)]
        tables = [
            checkpoint_statistics(part, mask, columns)
            for part, mask in zip(base.parts, files.masks, strict=True)
        ]
        return [*tables, parse_statistics_json(files.rows.column("stats"), columns)]

    def tombstones(self, *, removed_after_ms: int) -> Any:
        """A `pa.Table` of TOMBSTONE_SCHEMA: removes that came later than that, oldest first.

        Spec: a remove without a timestamp has expired long ago.
        """
        with self._lock:
            if self._tombstones is None:
                self._tombstones = self._read_tombstones()
            # What has expired once needs not be carried on.
            self._tombstones = _unexpired(self._tombstones, removed_after_ms)
            return self._tombstones

    def _load(self) -> tuple[_Base, tuple[LogTail, ...]]:
        base, tails = self._source.load()
        return base, (*tails, *self._later)

    def _reconciled(self) -> _Files:
        with self._lock:
            if self._files is None:
                self._files = self._reconcile()
            return self._files

    def _reconcile(self) -> _Files:
        base, tails = self._load()
        tail = reconcile_tail(tails)
        masks, paths = _live_paths(base)
        kept = HiddenFiles(tail.keys).rows_to_keep(
            pa.chunked_array(paths, pa.string()), partial(_vectors_of, base, masks)
        )
        rows = base.rows
        if kept is not None:
            paths = _filtered(paths, kept)
            rows = rows.filter(kept.slice(len(kept) - len(rows)))
            masks = _narrowed(masks, kept)
        added = _in_order([path for each in tails for path in each.add_paths], tail.live_adds)
        column = _extended(pa.chunked_array(paths, pa.string()), string_column(added))
        self._columns["path"] = column
        return _Files(tail, masks, kept, rows, len(column))

    def _read_columns(self, names: Sequence[str]) -> None:
        files = self._reconciled()
        names = [name for name in names if name not in self._columns]
        if not names:
            return
        base, tails = self._load()
        held = {name: base.columns[name] for name in names if name in base.columns}
        if files.kept is not None:
            held = {
                name: pa.chunked_array(_filtered(column.chunks, files.kept), column.type)
                for name, column in held.items()
            }
        held |= _read_base(base, files, [name for name in names if name not in held])
        for name in names:
            if name == "size_bytes":
                sizes = [size for each in tails for size in each.add_sizes]
                added = integer_column(_in_order(sizes, files.tail.live_adds))
            else:
                added = self._added().column(name)
            self._columns[name] = _extended(held[name], added)

    def _added(self) -> Any:
        if self._added_rows is None:
            files = self._reconciled()
            self._added_rows = add_columns(_commits(self._load()[1]), files.tail.live_adds)
        return self._added_rows

    def _read_tombstones(self) -> Any:
        base, tails = self._load()
        tails = (*base.tombstone_tails, *tails)
        tail = reconcile_tail(tails)
        older = base.tombstones
        if older is None:
            removes = [part.read_removes() for part in base.parts]
            older = (
                pa.concat_tables(removes)
                if removes
                else pa.Table.from_batches([], TOMBSTONE_SCHEMA)
            )
        vectors = older.column("deletion_vector")
        kept = HiddenFiles(tail.keys).rows_to_keep(older.column("path"), vectors.filter)
        older = older if kept is None else older.filter(kept)
        return pa.concat_tables([older, remove_columns(_commits(tails), tail.live_removes)])

    def _settle(self, files: _Files) -> _Base:
        base, tails = self._load()
        if self._tombstones is None:
            tombstones, pending = base.tombstones, (*base.tombstone_tails, *tails)
        else:
            tombstones, pending = _compacted(self._tombstones), ()
        return _Base(
            actions=self.table_actions(),
            parts=base.parts,
            masks=files.masks,
            rows=_compacted(pa.concat_tables([files.rows, self._added()])),
            columns={name: _merge_chunks(column) for name, column in self._columns.items()},
            statistics=self._statistics and (self._statistics[0], _compacted(self._statistics[1])),
            tombstones=tombstones,
            tombstone_tails=pending,
        )


def _read_segment(store: ObjectStore, segment: LogSegment) -> tuple[_Base, tuple[LogTail, ...]]:
    checkpoint = EMPTY_CHECKPOINT
    if segment.checkpoint is not None:
        checkpoint = open_checkpoint(store, segment.checkpoint)
    commits = read_commits(store, segment.replay)
    tail = decode_tail((*checkpoint.manifests, *commits))
    return _Base(checkpoint.actions, checkpoint.parts), (tail,)


def _unexpired(tombstones: Any, removed_after_ms: int) -> Any:
    since = pc.greater(tombstones.column("deletion_timestamp_ms"), integer_scalar(removed_after_ms))
    return tombstones if pc.all(since, skip_nulls=False).as_py() else tombstones.filter(since)


def _commits(tails: Sequence[LogTail]) -> list[RawCommit]:
    return [commit for tail in tails for commit in tail.commits]


def _live_paths(base: _Base) -> tuple[tuple[Any, ...], list[Any]]:
    """The masks of the parts, and the paths of all live files of the base in chunks."""
    if base.masks is not None and "path" in base.columns:
        return base.masks, base.columns["path"].chunks
    found = [part.add_rows() for part in base.parts]
    chunks = [chunk for _, paths in found for chunk in paths]
    chunks += base.rows.column("path").chunks
    return tuple(mask for mask, _ in found), chunks


def _filtered(chunks: list[Any], kept: Any) -> list[Any]:
    """The kept rows of a column; the list given is emptied.

    Chunk by chunk, and none copied without need: paths of a large table are the most of what it
    takes to open it.
    """
    remaining: list[Any] = []
    start = 0
    chunks.reverse()
    while chunks:
        chunk = chunks.pop()
        mask = kept.slice(start, len(chunk))
        start += len(chunk)
        num_dropped = len(mask) - mask.true_count
        if not num_dropped:
            remaining.append(chunk)
        elif (
            pa.types.is_string(chunk.type)
            and num_dropped * MIN_SLICE_ROWS <= len(chunk)
            and len(remaining) + len(chunks) < _MAX_CUT_CHUNKS
        ):
            remaining += slices_where(chunk, mask)
        else:
            remaining.append(chunk.filter(mask))
    return remaining


def _vectors_of(base: _Base, masks: Sequence[Any], touched: Any) -> Any:
    """Deletion vectors of some live files of the base: a `pa.ChunkedArray`."""
    narrowed = _narrowed(masks, touched)
    chunks: list[Any] = []
    for part, mask in zip(base.parts, narrowed, strict=True):
        chunks += part.read_adds(["deletion_vector"], mask)["deletion_vector"].chunks
    later = touched.slice(len(touched) - len(base.rows))
    chunks += base.rows.column("deletion_vector").filter(later).chunks
    return pa.chunked_array(chunks, LIVE_FILE_SCHEMA.field("deletion_vector").type)


def _narrowed(masks: Sequence[Any], kept: Any) -> tuple[Any, ...]:
    """Masks over all rows of the parts, cut down by one over their live rows."""
    narrowed, start = [], 0
    for mask in masks:
        length = mask.true_count
        narrowed.append(pc.replace_with_mask(mask, mask, kept.slice(start, length)))
        start += length
    return tuple(narrowed)


def _read_base(base: _Base, files: _Files, names: Sequence[str]) -> dict[str, Any]:
    chunks: dict[str, list[Any]] = {name: [] for name in names}
    plain = [name for name in names if name != "stats"]
    for part, mask in zip(base.parts, files.masks, strict=True):
        columns = part.read_adds(plain, mask) if plain else {}
        if "stats" in chunks:
            columns["stats"] = checkpoint_statistics_json(part, mask)
        for name, column in columns.items():
            chunks[name] += column.chunks
    for name in names:
        chunks[name] += files.rows.column(name).chunks
    return {
        name: pa.chunked_array(chunks[name], LIVE_FILE_SCHEMA.field(name).type) for name in names
    }


def _in_order(values: Sequence[Any], ordinals: Sequence[int]) -> list[Any]:
    return list(values) if len(ordinals) == len(values) else [values[at] for at in ordinals]


def _extended(column: Any, more: Any) -> Any:
    chunks = more.chunks if isinstance(more, pa.ChunkedArray) else [more]
    return pa.chunked_array([*column.chunks, *(each for each in chunks if len(each))], column.type)


def _compacted(table: Any) -> Any:
    columns = [_merge_chunks(column) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _merge_chunks(column: Any) -> Any:
    """The column with the small chunks at its end merged, where it has many chunks."""
    if column.num_chunks <= _MAX_CHUNKS:
        return column
    chunks = column.chunks
    first = len(chunks)
    while first and len(chunks[first - 1]) < _SMALL_CHUNK_ROWS:
        first -= 1
    if len(chunks) - first < 2:
        return column
    return pa.chunked_array([*chunks[:first], pa.concat_arrays(chunks[first:])], column.type)
