"""What the log says at one version: read on first use, cached, and carried forward by commits.

Spec: Checkpoints; Log Compaction Files; Action Reconciliation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, update_wrapper
from itertools import chain, islice
from threading import RLock
from typing import Concatenate, ParamSpec, TypeVar

import msgspec
import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import CorruptLog, LogGap, TableNotFound, VersionNotFound
from dagster_delta.protocol.checkpoint.batches import (
    FileBatch,
    batches_of_files,
    batches_of_part,
    batches_of_removes,
    read_adds,
    read_removes,
    read_statistics,
)
from dagster_delta.protocol.checkpoint.reader import CheckpointPart
from dagster_delta.protocol.features.table_configuration import (
    TRUNCATION_VARIABLE,
    TableConfiguration,
)
from dagster_delta.protocol.log.commit_file import TableActions
from dagster_delta.protocol.log.paths import LogFileKind, parse_log_file_name
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA, HiddenFiles
from dagster_delta.protocol.log.segment import LogSegment
from dagster_delta.protocol.log.tail import (
    LogTail,
    ReconciledTail,
    add_columns,
    check_file_actions,
    decode_tail,
    reconcile_tail,
    remove_columns,
    repeated_removals,
)
from dagster_delta.protocol.log.version_checksum import VersionChecksum
from dagster_delta.protocol.statistics.statistics import StatisticsColumn, parse_statistics_json
from dagster_delta.protocol.values.arrow_columns import integer_column, string_column
from dagster_delta.protocol.values.arrow_values import integer_scalar
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.columns import (
    chosen,
    compacted,
    extended,
    filtered,
    in_known_order,
    narrowed,
    with_merged_chunks,
)
from dagster_delta.table.log.reader import (
    EMPTY_CHECKPOINT,
    check_readable,
    configuration_of,
    list_log,
    located,
    open_checkpoint,
    read_checksum,
    read_commits,
)

# Statistics are carried forward from checkpoint to checkpoint up to this size.
_MAX_KEPT_STATISTICS_BYTES = 64 * 1024 * 1024

_LOG = logging.getLogger(__name__)

_P = ParamSpec("_P")
_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")


class _Source:
    """A base and the commits read together with it; shared by the versions that build on it."""

    def __init__(self, read: Callable[[], tuple[_LogBase, tuple[LogTail, ...]]]) -> None:
        self._read = read
        self._lock = RLock()
        self.loaded: tuple[_LogBase, tuple[LogTail, ...]] | None = None

    def load(self) -> tuple[_LogBase, tuple[LogTail, ...]]:
        with self._lock:
            if self.loaded is None:
                self.loaded = self._read()
            return self.loaded


class _Files(msgspec.Struct, frozen=True):
    masks: tuple[pa.BooleanArray, ...]
    """Per part of the base a `pa.BooleanArray` of its live adds."""
    kept: pa.BooleanArray | None
    """`pa.BooleanArray` over the base's live rows: those unchanged by the tail; None for all."""
    rows: pa.Table
    """`pa.Table`: the live ones of the base's `rows`."""
    num_files: int


def _despite_damage(
    answer: Callable[Concatenate[LogState, _P], _Answer],
) -> Callable[Concatenate[LogState, _P], _Answer]:
    """A decorator: if a dispensable file of the log is damaged, or a clean-up has deleted commits
    since they were listed, the method reads other files. Other errors name table and version.
    """

    def answer_despite_damage(self: LogState, /, *args: _P.args, **kwargs: _P.kwargs) -> _Answer:
        with located(self._fallback.store, self._fallback.segment.version):
            try:
                return answer(self, *args, **kwargs)
            except (CorruptLog, LogGap) as error:
                with self._lock:
                    self._fall_back(error)
                return answer(self, *args, **kwargs)

    update_wrapper(answer_despite_damage, answer)
    return answer_despite_damage


class LogState:
    """The reconciled log at one version. Thread-safe; only its caches change."""

    def __init__(
        self,
        source: _Source,
        fallback: _LogFallback,
        later: tuple[LogTail, ...] = (),
        *,
        newest_is_whole: bool = False,
    ) -> None:
        self._source = source
        self._fallback = fallback
        self._later = later
        self._newest_is_whole = newest_is_whole
        self._lock = RLock()
        self._reconciled_tail: ReconciledTail | None = None
        self._files: _Files | None = None
        self._columns: dict[str, pa.ChunkedArray] = {}
        self._added_rows: pa.Table | None = None
        self._statistics: tuple[tuple[StatisticsColumn, ...], pa.Table] | None = None
        self._tombstones: pa.Table | None = None
        self._actions: TableActions | None = None

    @classmethod
    def of_segment(cls, store: ObjectStore, segment: LogSegment) -> LogState:
        """The state of a log segment. Nothing is read before it is needed."""
        return cls(_Source(partial(_read_segment, store, segment)), _LogFallback(store, segment))

    def advance(self, tail: LogTail, segment: LogSegment, *, is_own: bool = False) -> LogState:
        """The state after more commits; what is already known is carried over."""
        with self._lock:
            fallback = replace(self._fallback, segment=segment)
            if self._files is None:
                later = (*self._later, tail)
                return LogState(self._source, fallback, later, newest_is_whole=is_own)
            settled = self._make_base(self._files)
        source = _Source(lambda: (settled, ()))
        return LogState(source, fallback, (tail,), newest_is_whole=is_own)

    @_despite_damage
    def check_newest_commit(self) -> None:
        """Decode the newest commit, as far as readers use it, unless that was done.

        A version checksum has all that a write needs, so the commit that it describes may not have
        been read yet. A deleted commit is a LogGap.
        """
        with self._lock:
            if self._newest_is_whole:
                return
            tails = self._later
            if self._source.loaded is not None:
                tails = (*self._source.loaded[1], *tails)
            newest = [commit for tail in tails for commit in tail.commits][-1:]
            if not newest and self._source.loaded is None:
                newest = list(
                    read_commits(self._fallback.store, self._fallback.segment.replay[-1:])
                )
                decode_tail(newest)
            check_file_actions(newest)
            self._newest_is_whole = True

    @_despite_damage
    def repeated_removals(self) -> tuple[int, ...]:
        """As the function of that name, of the commits that this version is read from."""
        return repeated_removals(self._load_base_and_tails()[1])

    @property
    def damaged_files(self) -> tuple[str, ...]:
        """Damaged files of the log that this version does not need."""
        return self._fallback.damaged

    def _fall_back(self, error: CorruptLog | LogGap) -> None:
        """Read from other files of the log; rows keep their known order."""
        if error.file in self._fallback.passed_over:
            # Another thread has already done it.
            return
        fallback = self._fallback.around(error)
        read = partial(_read_segment, fallback.store, fallback.segment)
        other = LogState(_Source(read), fallback)
        actions, rows = other.table_actions(), other.live_files(LIVE_FILE_SCHEMA.names)
        tombstones = other.tombstones(removed_after_ms=0)
        self._fallback = other._fallback
        if self._files is not None:
            rows = in_known_order(rows, self._columns["path"], error)
        base = _LogBase(actions=actions, rows=rows, tombstones=tombstones)
        self._source, self._later = _Source(lambda: (base, ())), ()
        # The part of it that readers need was just decoded.
        self._newest_is_whole = True
        self._reconciled_tail = self._files = self._added_rows = self._statistics = None
        self._tombstones = self._actions = None
        self._columns = {}

    @_despite_damage
    def table_actions(self) -> TableActions:
        """Protocol, metadata, transactions and domains (removed ones included)."""
        with self._lock:
            if self._actions is None:
                base, tails = self._load_base_and_tails()
                merged = TableActions()
                merged.take(base.actions)
                for tail in tails:
                    merged.take(tail)
                self._actions = merged
            return self._actions

    @property
    @_despite_damage
    def num_files(self) -> int:
        """Number of live files."""
        return self._find_live_files().num_files

    @property
    @_despite_damage
    def max_file_actions(self) -> int:
        """Number of live files and tombstones, or an upper bound of it."""
        with self._lock:
            base, tails = self._load_base_and_tails()
        known = len(base.rows) + (0 if base.tombstones is None else len(base.tombstones))
        tails = (*base.tombstone_tails, *tails)
        return known + sum(part.num_rows for part in base.parts) + sum(len(t.keys) for t in tails)

    @_despite_damage
    def unread_parts(self) -> tuple[CheckpointPart, ...]:
        """The files of the checkpoint, if live files have not been read from them yet. Their
        footers have been read.
        """
        with self._lock:
            base, _ = self._load_base_and_tails()
            if self._files is not None or base.masks is not None:
                return ()
            for part in base.parts:
                part.check_footer()
            return base.parts

    @_despite_damage
    def live_files(self, names: Sequence[str]) -> pa.Table:
        """A `pa.Table` with these columns of LIVE_FILE_SCHEMA, always in the same row order."""
        with self._lock:
            self._read_columns([name for name in names if name not in self._columns])
            schema = pa.schema([LIVE_FILE_SCHEMA.field(name) for name in names])
            return pa.Table.from_arrays([self._columns[name] for name in names], schema=schema)

    @_despite_damage
    def file_batches(
        self, names: Sequence[str], statistics: Sequence[StatisticsColumn] | None
    ) -> Iterator[FileBatch]:
        """The live files in the order of `live_files`, one batch at a time; no batch is cached.

        Damage that is found before the first batch is avoided by other files, if possible.
        `statistics` are columns whose statistics may be needed; None for no statistics.
        """
        with self._lock:
            base, tails = self._load_base_and_tails()
            if self._files is not None:
                hidden, masks = HiddenFiles(()), self._files.masks
                known = [self._files.rows, self._read_added_rows()]
            else:
                tail = self._reconcile_tails()
                hidden, masks = HiddenFiles(tail.keys), base.masks or (None,) * len(base.parts)
                vectors = base.rows.column("deletion_vector")
                kept = hidden.rows_to_keep(base.rows.column("path"), vectors.filter)
                rows = base.rows if kept is None else pc.filter(base.rows, kept)
                known = [rows, add_columns(tails, tail.live_adds)]
        checkpointed = (
            batches_of_part(part, names, statistics, hidden=hidden, live=mask)
            for part, mask in zip(base.parts, masks, strict=True)
        )
        return _compute_first(
            chain(
                chain.from_iterable(checkpointed),
                chain.from_iterable(batches_of_files(rows, names) for rows in known),
            )
        )

    @_despite_damage
    def tombstone_batches(self, *, removed_after_ms: int) -> Iterator[pa.Table]:
        """The rows of `tombstones`, in several `pa.Table`s; none of them is cached."""
        with self._lock:
            base, _ = self._load_base_and_tails()
            if self._tombstones is not None or base.tombstones is not None:
                return iter([self.tombstones(removed_after_ms=removed_after_ms)])
            tails, tail = self._tombstone_tails()
        hidden = HiddenFiles(tail.keys)
        older = chain.from_iterable(batches_of_removes(part, hidden) for part in base.parts)
        newer = remove_columns(tails, tail.live_removes, removed_after_ms=removed_after_ms)
        return _compute_first(
            chain((_drop_expired(removes, removed_after_ms) for removes in older), [newer])
        )

    @_despite_damage
    def statistics(self, columns: Sequence[StatisticsColumn]) -> pa.Table:
        """The statistics table of all live files, row for row with `live_files`.

        Without columns it may have more than the numbers of rows.
        """
        with self._lock:
            wanted = tuple(columns)
            if self._statistics is not None and (not wanted or self._statistics[0] == wanted):
                return self._statistics[1]
            older = self._base_statistics(wanted)
            newer = parse_statistics_json(self._read_added_rows().column("stats"), columns)
            table = pa.concat_tables([*older, newer])
            if table.nbytes <= _MAX_KEPT_STATISTICS_BYTES:
                self._statistics = wanted, table
            return table

    def _base_statistics(self, columns: tuple[StatisticsColumn, ...]) -> list[pa.Table]:
        files = self._find_live_files()
        base, _ = self._load_base_and_tails()
        if base.statistics is not None and base.statistics[0] == columns:
            table = base.statistics[1]
            return [table if files.kept is None else pc.filter(table, files.kept)]
        tables = [
            read_statistics(part, columns, mask)
            for part, mask in zip(base.parts, files.masks, strict=True)
        ]
        return [*tables, parse_statistics_json(files.rows.column("stats"), columns)]

    @_despite_damage
    def tombstones(self, *, removed_after_ms: int) -> pa.Table:
        """A `pa.Table` of TOMBSTONE_SCHEMA: removes later than `removed_after_ms`, oldest first.

        Spec: a remove without a timestamp has expired long ago.
        """
        with self._lock:
            if self._tombstones is None:
                self._tombstones = self._read_tombstones(removed_after_ms)
            # Expired tombstones need not be carried forward.
            self._tombstones = _drop_expired(self._tombstones, removed_after_ms)
            return self._tombstones

    def _load_base_and_tails(self) -> tuple[_LogBase, tuple[LogTail, ...]]:
        base, tails = self._source.load()
        return base, (*tails, *self._later)

    def _reconcile_tails(self) -> ReconciledTail:
        with self._lock:
            if self._reconciled_tail is None:
                self._reconciled_tail = reconcile_tail(self._load_base_and_tails()[1])
            return self._reconciled_tail

    def _tombstone_tails(self) -> tuple[tuple[LogTail, ...], ReconciledTail]:
        """The commits that are not in the tombstones of the base."""
        base, tails = self._load_base_and_tails()
        if not base.tombstone_tails:
            return tails, self._reconcile_tails()
        tails = (*base.tombstone_tails, *tails)
        return tails, reconcile_tail(tails)

    def _find_live_files(self) -> _Files:
        with self._lock:
            if self._files is None:
                self._files = self._reconcile_live_files()
            return self._files

    def _reconcile_live_files(self) -> _Files:
        base, tails = self._load_base_and_tails()
        tail = self._reconcile_tails()
        masks, paths = _live_paths(base)
        kept = HiddenFiles(tail.keys).rows_to_keep(
            pa.chunked_array(paths, pa.string()), partial(_vectors_of, base, masks)
        )
        rows = base.rows
        if kept is not None:
            paths = filtered(paths, kept)
            rows = pc.filter(rows, kept.slice(len(kept) - len(rows)))
            masks = narrowed(masks, kept)
        added = chosen([path for tail in tails for path in tail.add_paths], tail.live_adds)
        column = extended(pa.chunked_array(paths, pa.string()), string_column(added))
        self._columns["path"] = column
        return _Files(masks, kept, rows, len(column))

    def _read_columns(self, names: Sequence[str]) -> None:
        files = self._find_live_files()
        names = [name for name in names if name not in self._columns]
        if not names:
            return
        base, tails = self._load_base_and_tails()
        held = {name: base.columns[name] for name in names if name in base.columns}
        if files.kept is not None:
            held = {
                name: pa.chunked_array(filtered(column.chunks, files.kept), column.type)
                for name, column in held.items()
            }
        held |= _read_base(
            base, files.masks, files.rows, [name for name in names if name not in held]
        )
        for name in names:
            if name == "size_bytes":
                sizes = [size for tail in tails for size in tail.add_sizes]
                added = integer_column(chosen(sizes, self._reconcile_tails().live_adds))
            else:
                added = self._read_added_rows().column(name)
            self._columns[name] = extended(held[name], added)

    def _read_added_rows(self) -> pa.Table:
        if self._added_rows is None:
            self._added_rows = add_columns(
                self._load_base_and_tails()[1], self._reconcile_tails().live_adds
            )
        return self._added_rows

    def _read_tombstones(self, removed_after_ms: int) -> pa.Table:
        base, _ = self._load_base_and_tails()
        tails, tail = self._tombstone_tails()
        hidden, known = HiddenFiles(tail.keys), base.tombstones
        if known is None:
            older = [read_removes(part, hidden) for part in base.parts]
        else:
            kept = hidden.rows_to_keep(known.column("path"), known.column("deletion_vector").filter)
            older = [known if kept is None else pc.filter(known, kept)]
        newer = remove_columns(tails, tail.live_removes, removed_after_ms=removed_after_ms)
        return pa.concat_tables([*older, newer])

    def _make_base(self, files: _Files) -> _LogBase:
        base, tails = self._load_base_and_tails()
        if self._tombstones is None:
            tombstones, pending = base.tombstones, (*base.tombstone_tails, *tails)
        else:
            tombstones, pending = compacted(self._tombstones), ()
        return _LogBase(
            actions=self.table_actions(),
            parts=base.parts,
            masks=files.masks,
            rows=compacted(pa.concat_tables([files.rows, self._read_added_rows()])),
            columns={name: with_merged_chunks(column) for name, column in self._columns.items()},
            statistics=self._statistics and (self._statistics[0], compacted(self._statistics[1])),
            tombstones=tombstones,
            tombstone_tails=pending,
        )


def _drop_expired(tombstones: pa.Table, removed_after_ms: int) -> pa.Table:
    since = pc.greater(tombstones.column("deletion_timestamp_ms"), integer_scalar(removed_after_ms))
    return tombstones if pc.all(since, skip_nulls=False).as_py() else pc.filter(tombstones, since)


class _LogBase(msgspec.Struct, frozen=True):
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


def _live_paths(base: _LogBase) -> tuple[tuple[pa.BooleanArray, ...], list[pa.Array]]:
    """The masks of the parts, and the paths of all live files of the base in chunks."""
    if base.masks is not None and "path" in base.columns:
        return base.masks, base.columns["path"].chunks
    found = [part.add_rows() for part in base.parts]
    chunks = [chunk for _, paths in found for chunk in paths]
    chunks += base.rows.column("path").chunks
    return tuple(mask for mask, _ in found), chunks


def _vectors_of(
    base: _LogBase, masks: Sequence[pa.BooleanArray], touched: pa.BooleanArray
) -> pa.ChunkedArray:
    touched_masks = narrowed(masks, touched)
    chunks: list[pa.Array] = []
    for part, mask in zip(base.parts, touched_masks, strict=True):
        chunks += read_adds(part, ["deletion_vector"], mask)["deletion_vector"].chunks
    later = touched.slice(len(touched) - len(base.rows))
    chunks += pc.filter(base.rows.column("deletion_vector"), later).chunks
    return pa.chunked_array(chunks, LIVE_FILE_SCHEMA.field("deletion_vector").type)


def _read_base(
    base: _LogBase, masks: Sequence[pa.BooleanArray], rows: pa.Table, names: Sequence[str]
) -> dict[str, pa.ChunkedArray]:
    """Columns of LIVE_FILE_SCHEMA of the live files of the base, as `pa.ChunkedArray`s."""
    chunks: dict[str, list[pa.Array]] = {name: [] for name in names}
    tables = [read_adds(part, names, mask) for part, mask in zip(base.parts, masks, strict=True)]
    for table in (*tables, rows):
        for name in names:
            chunks[name] += table.column(name).chunks
    return {
        name: pa.chunked_array(chunks[name], LIVE_FILE_SCHEMA.field(name).type) for name in names
    }


def _read_segment(store: ObjectStore, segment: LogSegment) -> tuple[_LogBase, tuple[LogTail, ...]]:
    """The state before the last commits of a segment, and those commits."""
    checkpoint = EMPTY_CHECKPOINT
    if segment.checkpoint is not None:
        checkpoint = open_checkpoint(store, segment.checkpoint)
    commits = read_commits(store, segment.replay)
    tail = decode_tail((*checkpoint.manifests, *commits))
    return _LogBase(checkpoint.actions, checkpoint.parts), (tail,)


def _compute_first(items: Iterable[_Item]) -> Iterator[_Item]:
    """The items, with the first one already computed: its errors are raised here."""
    rest = iter(items)
    return chain(list(islice(rest, 1)), rest)


class _LogFallback(msgspec.Struct, frozen=True):
    """The attempts to read one version without damaged checkpoints and compacted commits.

    A checkpoint only repeats what the commits before it say. If all of these exist, or an older
    checkpoint and the commits after it, the version can be read without the damaged one.
    """

    store: ObjectStore
    segment: LogSegment
    """The files that the version is read from."""
    damaged: tuple[str, ...] = ()
    """Files that were found to be damaged, relative to the table root."""
    passed_over: frozenset[str] = frozenset()
    """The damaged files, and the files that cannot be used without them."""

    def around(self, error: CorruptLog | LogGap) -> _LogFallback:
        """The next attempt, without the damaged or deleted file.

        If the version needs the damaged file, the given error is raised. LogGap or VersionNotFound:
        a clean-up of the log deleted what the version needs.
        """
        file = error.file
        if isinstance(error, LogGap):
            return self._after_clean_up(f"commit {error.version}", self.passed_over | {str(file)})
        name = None if file is None else parse_log_file_name(file.rpartition("/")[2])
        if file is None or (name is not None and name.kind is LogFileKind.COMMIT):
            raise error
        passed_over = self.passed_over | {file}
        is_compacted = name is not None and name.kind is LogFileKind.COMPACTED
        checkpoint = None if is_compacted else self.segment.checkpoint
        if checkpoint is not None:
            # A checkpoint needs all of its parts, and the damage may be in a sidecar.
            passed_over |= {file.path for file in checkpoint.files}
            if any(self.store.head(file.path) is None for file in checkpoint.files):
                what = f"the checkpoint of version {checkpoint.version}"
                return self._after_clean_up(what, passed_over)
        segment = self._segment_without(passed_over, error)
        _LOG.warning(
            "%s of %s is damaged and was passed over, as version %d can be read without it: %s; "
            "write a new checkpoint before a clean-up of the log needs this one",
            file,
            self.store.location.uri,
            segment.version,
            error.message,
        )
        return _LogFallback(self.store, segment, (*self.damaged, file), passed_over)

    def _after_clean_up(self, what: str, passed_over: frozenset[str]) -> _LogFallback:
        version, table = self.segment.version, self.store.location.uri
        segment = list_log(self.store, without=passed_over).segment(version, table=table)
        _LOG.info(
            "%s of %s was deleted after the log was listed, as a clean-up of the log does; version "
            "%d is read without it",
            what,
            table,
            version,
        )
        return replace(self, segment=segment, passed_over=passed_over)

    def _segment_without(self, passed_over: frozenset[str], error: CorruptLog) -> LogSegment:
        version, table = self.segment.version, self.store.location.uri
        listing = list_log(self.store, end=version, without=passed_over)
        try:
            return listing.segment(version, table=table)
        except (LogGap, TableNotFound, VersionNotFound):
            raise error from None


def open_state(
    store: ObjectStore, segment: LogSegment
) -> tuple[LogState, TableConfiguration, VersionChecksum | None]:
    """What a log segment says, the configuration of its version, and the checksum file of that."""
    checksum = read_checksum(store, segment)
    state = LogState.of_segment(store, segment)
    with located(store, segment.version):
        if checksum is None:
            actions = state.table_actions()
            configuration = configuration_of(actions.protocol, actions.metadata)
        else:
            configuration = TableConfiguration(checksum.protocol, checksum.metadata)
        check_readable(store, configuration, segment.version)
    if configuration.has_nanoseconds:
        _LOG.warning(
            "%s has timestamps in nanoseconds, whose last three digits are cut off; set %s=false "
            "to refuse such tables",
            store.location.uri,
            TRUNCATION_VARIABLE,
        )
    return state, configuration, checksum
