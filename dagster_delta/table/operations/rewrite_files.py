"""Rewriting files of a table whose rows stay: all of them in one commit, where rows get the
defaults of new columns or a feature is dropped; or groups of them in several commits.

Every commit has `dataChange` false: sensors, the change data feed and incremental readers ignore
it. A rewrite that fails begins again with the next call. This process deletes the files that it
wrote, unless their commit may have been made; after a crash, VACUUM finds them as unreferenced
files.

A concurrent append does not conflict with a group. Rows that a concurrent commit hides by deletion
vectors are hidden in the new files as well. Any other concurrent change of a file leaves the files
of its group as they are, or, where rows are sorted, all files of the commit.

Spec: Add File and Remove File (dataChange); Default Columns; Deletion Vectors; Column Mapping; Type
Widening.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import WriteResult, WriteSpec
from dagster_delta.engines.statements.row_tracking import keep_row_ids
from dagster_delta.errors import CommitConflict, InvalidArgument
from dagster_delta.evolution.column_paths import ColumnPath
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.features.column_values import ColumnExpression, ColumnValues
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA, keys_of
from dagster_delta.protocol.values.arrow_columns import integer_column, string_column
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.split_by_size import split_by_size
from dagster_delta.sql.filters import at_moment
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.storage.unreferenced_files import CreatedFiles
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.operations.clustering import tag_as_cube
from dagster_delta.table.operations.write_planning import target_file_size, write_spec
from dagster_delta.table.read.file_planner import FilePlanner, check_no_row_lost, read_plan
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.conflicts import MovedGroup, MovedGroups
from dagster_delta.table.transaction.file_actions import tombstones
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.engines.plans import ReadPlan
    from dagster_delta.evolution.plan import SchemaChangePlan
    from dagster_delta.protocol.features.table_configuration import TableConfiguration

_LOG = logging.getLogger(__name__)

MAX_COMMIT_BYTES = 16 * 1024**3
"""Total size of the files that one commit replaces."""


class RewrittenFiles(msgspec.Struct, frozen=True):
    """Files that were rewritten together."""

    sources: frozenset[str]
    """Keys of the files they replace, as `keys_of` spells them."""
    adds: Sequence[AddFile]
    """The new files."""
    num_rows: int
    """Rows in the new files."""


class FileRewrite:
    """Rewrites the files of a table for one commit, planned again after conflicts.

    The next attempt reuses the files of an attempt that no concurrent commit has changed. A context
    manager: at its end the files that no commit refers to are deleted.

    Args:
        engine: reads and writes the rows.
        store: store of the table.
        on_progress: called with the number of files rewritten so far, and of all to rewrite.
    """

    def __init__(
        self,
        engine: Engine,
        store: ObjectStore,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.num_files = 0
        """Files that the latest attempt replaces."""
        self.size_bytes = 0
        """Size of those files."""
        self._engine, self._on_progress = engine, on_progress
        self._created = CreatedFiles(store)
        self._done: list[RewrittenFiles] = []
        self._done_for: object = None
        """What the plan of `_done` makes of the rows."""
        self._moment_ms = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._created.delete()

    def stage(
        self, transaction: Transaction, snapshot: Snapshot, plan: SchemaChangePlan, files: pa.Table
    ) -> None:
        """Rewrite the files that are not rewritten yet, and stage that the new files replace the
        old ones. The commit has to keep the files of a conflict (`keeps_files`).
        """
        transaction.created_files = self._created
        self.num_files, self.size_bytes = files.num_rows, total_bytes(files)
        keys = keys_of(files["path"], files["deletion_vector"])
        self._forget_useless(plan, set(keys.to_pylist()), transaction.clock())
        done = frozenset(key for rewritten in self._done for key in rewritten.sources)
        left = pc.invert(pc.is_in(keys, value_set=string_column(sorted(done))))
        left_files = files.filter(left)
        sizes: Sequence[int] = left_files["size_bytes"].to_pylist()
        max_bytes = self._engine.rewrite_batch_bytes
        for batch in split_by_size(range(len(sizes)), sizes.__getitem__, max_bytes):
            self._done.append(
                self._rewrite_batch(snapshot, plan, left_files.slice(batch[0], len(batch)))
            )
            if self._on_progress is not None:
                num_written = sum(len(rewritten.sources) for rewritten in self._done)
                self._on_progress(num_written, files.num_rows)
        transaction.stage_written(
            msgspec.structs.replace(add, data_change=False)
            for rewritten in self._done
            for add in rewritten.adds
        )
        transaction.stage_removed(tombstones(files, transaction.clock(), data_change=False))
        transaction.declare_row_ids_kept()

    def _forget_useless(self, plan: SchemaChangePlan, live: set[str], now_ms: int) -> None:
        """Delete the files of earlier attempts that another commit has changed, or that are not
        what the plan makes of the rows.
        """
        made = (
            plan.after.metadata,
            dict(plan.fills),
            [(check.name, check.sql) for check in plan.checks],
            plan.frees_files_of_feature,
        )
        if made != self._done_for:
            # A default with the current time is the same in all rows, also after a conflict.
            self._done, self._done_for, self._moment_ms = [], made, now_ms
        self._done = [rewritten for rewritten in self._done if rewritten.sources <= live]
        self._created.delete(
            keep=[decode_path(add.path) for rewritten in self._done for add in rewritten.adds]
        )

    def _rewrite_batch(
        self, snapshot: Snapshot, plan: SchemaChangePlan, files: pa.Table
    ) -> RewrittenFiles:
        after = plan.after
        moment = dt.datetime.fromtimestamp(self._moment_ms / 1000, dt.UTC)
        fills = plan.fills.items()
        defaults = tuple(ColumnExpression(name, at_moment(sql, moment)) for name, sql in fills)
        # What a feature gives to rows is read as long as the log defines it.
        read_as = plan.before if plan.frees_files_of_feature else after
        read = msgspec.structs.replace(
            read_plan(snapshot, files, None, read_as),
            columns=tuple(name for name in after.schema.names if name not in plan.fills),
        )
        spec = write_spec(
            after,
            snapshot.store.location,
            constraints=plan.checks,
            # Rows in the table have passed the constraints so far.
            check_rows=False,
            values=ColumnValues(defaults=defaults),
        )
        read, spec = keep_row_ids(read, spec)
        written = self._engine.write(self._engine.read(read), spec, store=snapshot.store)
        self._created.add(decode_path(file.path) for file in written.files)
        check_no_row_lost(snapshot, files, written.num_rows)
        return RewrittenFiles(
            frozenset(keys_of(files["path"], files["deletion_vector"]).to_pylist()),
            written.files,
            written.num_rows,
        )

    def metrics(self) -> dict[str, int | str]:
        """What the latest attempt replaces, by the names of metrics in the log."""
        return {
            "numRemovedFiles": self.num_files,
            "numRemovedBytes": self.size_bytes,
            "numOutputRows": sum(rewritten.num_rows for rewritten in self._done),
        }


class OptimizeProgress(msgspec.Struct, frozen=True):
    """Progress of an OPTIMIZE or REORG after each of its commits."""

    num_done_bytes: int
    """Size of the files processed so far, those of failed commits included."""
    num_total_bytes: int
    """Size of all files to rewrite."""
    version: int | None
    """Version of the commit; None if it was given up because of a conflict."""
    num_removed_files: int
    num_added_files: int


class OptimizeResult(msgspec.Struct, frozen=True):
    """What an OPTIMIZE or REORG did, or would do."""

    versions: tuple[int, ...]
    """The versions that it committed, in order; empty if there was nothing to do, and after a dry
    run."""
    metrics: Mapping[str, int]
    """Totals over all of its commits, by the names of commitInfo: `numRemovedFiles`,
    `numAddedBytes`, …; of a dry run, those of the files that it would remove."""
    snapshot: Snapshot
    """The table afterwards."""
    conflicts: tuple[CommitConflict, ...] = ()
    """The conflicts of the commits that were given up because a concurrent commit changed a
    file."""
    num_left_files: int = 0
    """Files left unchanged because concurrent commits changed them, or others of their group."""

    @property
    def version(self) -> int:
        """Version of the table afterwards."""
        return self.snapshot.version

    @property
    def skipped(self) -> bool:
        """Whether nothing was committed."""
        return not self.versions


class GroupRewrite(msgspec.Struct, frozen=True, kw_only=True):
    """How groups of files are rewritten."""

    operation: str
    """Name of the operation in the log."""
    parameters: Mapping[str, object]
    """Parameters of the operation in the log."""
    engine: Engine
    target_size_bytes: int
    """Size of the new files."""
    columns: Sequence[ColumnPath] = ()
    """Columns of the curve to sort rows by; empty if files are only compacted."""
    sort_by: Sequence[str] = ()
    """Columns to sort the rows of each file by."""
    clustering: Sequence[ColumnPath] = ()
    """The clustering columns; every group becomes a cube."""
    max_commit_bytes: int = MAX_COMMIT_BYTES
    commit_info: Mapping[str, object] | None = None
    on_progress: Callable[[OptimizeProgress], None] | None = None
    dry_run: bool = False
    """Whether the files to rewrite are only counted."""


def rewrite_groups(
    snapshot: Snapshot, groups: Sequence[pa.Table], rewrite: GroupRewrite, *, clock: Clock
) -> OptimizeResult:
    """Rewrite groups of live files, each to new files of its own.

    After an error, earlier commits of the rewrite remain.
    """
    num_bytes = sum(map(total_bytes, groups))
    if rewrite.dry_run:
        num_files = sum(group.num_rows for group in groups)
        planned = {"numRemovedFiles": num_files, "numRemovedBytes": num_bytes}
        return OptimizeResult((), planned, snapshot)
    job = _GroupRewriting(snapshot, rewrite, num_bytes, clock)
    # A cube is committed alone, because its tag identifies its files.
    max_bytes = 0 if rewrite.clustering else rewrite.max_commit_bytes
    for batch in split_by_size(groups, total_bytes, max_bytes):
        job.run(batch)
    metrics = {name: job.totals[name] for name in _SUMMED}
    return OptimizeResult(
        tuple(job.versions), metrics, job.snapshot, tuple(job.conflicts), job.num_left_files
    )


def choose_target_size(configuration: TableConfiguration, target: int | None) -> int:
    """Bytes that new files should have: as the caller asks, or as the table says."""
    if target is None:
        return target_file_size(configuration)
    if target < 1:
        raise InvalidArgument(
            f"target_file_size is a number of bytes and must be > 0, not {target}"
        )
    return target


def pack_files(
    files: pa.Table,
    chosen: pa.Array | pa.ChunkedArray,
    alone: pa.Array | pa.ChunkedArray,
    *,
    max_bytes: int,
    min_files: int = 1,
) -> list[pa.Table]:
    """The chosen files, in groups of one partition and of at most so many bytes.

    A single file is left unchanged, so that repeated runs end, unless it is worth rewriting
    `alone`; so are partitions with fewer files than `min_files`.
    """
    positions = pc.indices_nonzero(chosen).to_pylist()
    rows = files.select(["size_bytes", "partition_values"]).filter(chosen)
    sizes = dict(zip(positions, rows["size_bytes"].to_pylist(), strict=True))
    partitions: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for position, values in zip(positions, rows["partition_values"].to_pylist(), strict=True):
        # Two spellings of one value make two groups, which only compacts less.
        key = tuple(sorted((name, text or "") for name, text in values or ()))
        partitions.setdefault(key, []).append(position)
    return [
        files.take(integer_column(batch))
        for key in sorted(partitions)
        if len(partitions[key]) >= min_files
        for batch in split_by_size(partitions[key], sizes.__getitem__, max_bytes)
        if len(batch) > 1 or alone[batch[0]].as_py()
    ]


def plan_layout(snapshot: Snapshot, target_size_bytes: int, sort_by: Sequence[str]) -> WriteSpec:
    """How rows of the table are written to files of a size, sorted by columns in each."""
    # The rows are in the table, so they have passed its constraints.
    spec = write_spec(
        snapshot.configuration, snapshot.store.location, check_rows=False, sort_by=sort_by
    )
    return msgspec.structs.replace(spec, target_file_size_bytes=target_size_bytes)


class _GroupRewriting:
    """The commits of a rewrite of groups."""

    def __init__(
        self, snapshot: Snapshot, rewrite: GroupRewrite, total_bytes: int, clock: Clock
    ) -> None:
        self.snapshot = snapshot
        self.versions: list[int] = []
        self.totals = Counter[str]()
        self.conflicts: list[CommitConflict] = []
        self.num_left_files = 0
        self._rewrite, self._clock = rewrite, clock
        self._planned_version = snapshot.version
        self._num_done_bytes, self._num_total_bytes = 0, total_bytes

    def run(self, groups: list[pa.Table]) -> None:
        """Rewrite groups in one commit, those that no concurrent commit has changed."""
        self._num_done_bytes += sum(map(total_bytes, groups))
        planned = sum(group.num_rows for group in groups)
        groups = self._still_live(groups)
        num_removed = 0
        version, metrics = None, dict[str, int]()
        if groups:
            try:
                result, moved = self._commit_groups(groups)
            except CommitConflict as conflict:
                _LOG.info("%d files are left as they are: %s", planned, conflict)
                self.conflicts.append(conflict)
                self.snapshot = self.snapshot.update()
            else:
                self.snapshot, version = result.snapshot, result.version
                num_removed = len(tuple(moved.removes))
                self.versions.append(version)
                metrics = {name: int(value) for name, value in result.metrics.items()}
                self.totals.update(metrics)
        self.num_left_files += planned - num_removed
        if self._rewrite.on_progress is not None:
            self._rewrite.on_progress(
                OptimizeProgress(
                    self._num_done_bytes,
                    self._num_total_bytes,
                    version,
                    metrics.get("numRemovedFiles", 0),
                    metrics.get("numAddedFiles", 0),
                )
            )

    def _still_live(self, groups: list[pa.Table]) -> list[pa.Table]:
        """The groups as they are by now, without those from which a concurrent commit removed a
        file since they were planned.
        """
        if self.snapshot.version == self._planned_version:
            return groups
        planned = pa.chunked_array([chunk for group in groups for chunk in group["path"].chunks])
        live = FilePlanner(self.snapshot).choose(
            LIVE_FILE_SCHEMA.names, lambda files: pc.is_in(files["path"], value_set=planned)
        )
        newest = [live.filter(pc.is_in(live["path"], value_set=group["path"])) for group in groups]
        return [
            now
            for now, planned in zip(newest, groups, strict=True)
            if now.num_rows == planned.num_rows
        ]

    def _commit_groups(self, groups: list[pa.Table]) -> tuple[CommitResult, MovedGroups]:
        snapshot = self.snapshot
        transaction = Transaction(snapshot.store, snapshot, clock=self._clock)
        spec = plan_layout(snapshot, self._rewrite.target_size_bytes, self._rewrite.sort_by)
        kept = [keep_row_ids(read_plan(snapshot, group, None), spec) for group in groups]
        rewritten, results = self._write_groups(groups, [plan for plan, _ in kept], kept[0][1])
        transaction.created_files.add(
            decode_path(file.path) for written in results for file in written.files
        )
        with transaction.created_files:
            for files, written in zip(rewritten, results, strict=True):
                check_no_row_lost(snapshot, files, written.num_rows)
            moved = MovedGroups(
                [
                    MovedGroup(
                        files,
                        tombstones(files, self._clock(), data_change=False),
                        self._tag_files(written),
                        keeps_order=not (self._rewrite.columns or self._rewrite.sort_by),
                    )
                    for files, written in zip(rewritten, results, strict=True)
                ]
            )
        transaction.declare_row_ids_kept()
        transaction._stage_moved(moved)
        result = transaction.commit(
            self._rewrite.operation,
            parameters=self._rewrite.parameters,
            metrics=lambda: _count_moved(moved),
            user_info=self._rewrite.commit_info,
        )
        return result, moved

    def _write_groups(
        self, groups: list[pa.Table], plans: Sequence[ReadPlan], spec: WriteSpec
    ) -> tuple[list[pa.Table], list[WriteResult]]:
        engine, columns = self._rewrite.engine, self._rewrite.columns
        if not columns:
            return groups, engine.compact(plans, spec)
        is_hilbert = bool(self._rewrite.clustering)
        written = engine.sort(plans, spec, columns, is_hilbert=is_hilbert)
        return [pa.concat_tables(groups)], [written]

    def _tag_files(self, written: WriteResult) -> tuple[AddFile, ...]:
        clustering = self._rewrite.clustering
        added = [msgspec.structs.replace(file, data_change=False) for file in written.files]
        return tuple(tag_as_cube(added, clustering) if clustering else added)


_SUMMED = (
    "numAddedFiles",
    "numAddedBytes",
    "numRemovedFiles",
    "numRemovedBytes",
    "numDeletionVectorsRemoved",
)


def _count_moved(moved: MovedGroups) -> dict[str, int]:
    adds, removes = tuple(moved.adds), tuple(moved.removes)
    sizes = sorted(add.size_bytes for add in adds) or [0]
    return {
        "numAddedFiles": len(adds),
        "numAddedBytes": sum(sizes),
        "numRemovedFiles": len(removes),
        "numRemovedBytes": sum(remove.size_bytes or 0 for remove in removes),
        "numDeletionVectorsRemoved": sum(remove.deletion_vector is not None for remove in removes),
        "minFileSize": sizes[0],
        "p25FileSize": sizes[len(sizes) // 4],
        "p50FileSize": sizes[len(sizes) // 2],
        "p75FileSize": sizes[len(sizes) * 3 // 4],
        "maxFileSize": sizes[-1],
    }
