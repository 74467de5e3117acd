"""OPTIMIZE: rewrites rows to fewer, larger or sorted files, in one or more commits.

Every commit has `dataChange` false: sensors, the change data feed and incremental readers ignore
it. A concurrent append does not conflict with it. Rows that a concurrent commit hides by deletion
vectors are hidden in the compacted files as well. Any other concurrent change of a file leaves the
files that were to be compacted with it as they are, or, where rows are sorted, all files of the
commit.

Files that were clustered together form a cube, identified by their tags. New files and small cubes
become larger cubes; a cube that is large enough is left unchanged, so that the cost of an OPTIMIZE
depends on the new files.

Spec: Add File and Remove File (dataChange, tags, clusteringProvider); Deletion Vectors; Per-file
Statistics; Clustered Table.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import WriteResult, WriteSpec
from dagster_delta.engines.statements.row_tracking import keep_row_ids
from dagster_delta.errors import CommitConflict, InvalidArgument
from dagster_delta.evolution.column_paths import ColumnPath, dotted, find_place, to_path
from dagster_delta.evolution.column_rules import layout_problem
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.arrow_columns import boolean_column, integer_column
from dagster_delta.protocol.values.arrow_values import FALSE, integer_scalar
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.split_by_size import split_by_size
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.log_upkeep.post_commit import logged_failure
from dagster_delta.table.operations.clustering import table_clustering
from dagster_delta.table.operations.existing_rows import Purge, outdated_files
from dagster_delta.table.operations.write_planning import target_file_size, write_spec
from dagster_delta.table.read.file_planner import FilePlanner, check_no_row_lost, read_plan
from dagster_delta.table.transaction.conflicts import MovedGroup, MovedGroups
from dagster_delta.table.transaction.file_actions import tombstones
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.engines.plans import ReadPlan
    from dagster_delta.table.read.snapshot import Snapshot


_LOG = logging.getLogger(__name__)

MIN_SIZE_SHARE = 0.75
"""Files of at least this share of the target are large enough, unless the caller sets a size."""
MAX_COMMIT_BYTES = 16 * 1024**3
"""Total size of the files that one commit replaces."""


@dataclass(frozen=True, slots=True)
class OptimizeProgress:
    """Progress of an OPTIMIZE after each of its commits."""

    num_done_bytes: int
    """Size of the files processed so far, those of failed commits included."""
    num_total_bytes: int
    """Size of all files to rewrite."""
    version: int | None
    """Version of the commit; None if it was given up because of a conflict."""
    num_removed_files: int
    num_added_files: int


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """Options of the caller."""

    engine: Engine
    where: str | None = None
    target_file_size_bytes: int | None = None
    min_file_size_bytes: int | None = None
    max_deleted_share: float = 0.05
    zorder_by: Sequence[str] = ()
    sort_by: Sequence[str] = ()
    """Columns to sort rows by, the first one over all files of a partition."""
    purge: Collection[Purge] | None = None
    """What a REORG removes from files, instead of compacting small ones."""
    full: bool = False
    """Whether files that were clustered by other columns are clustered again."""
    min_files: int = 1
    """Partitions with fewer small files are left unchanged."""
    is_automatic: bool = False
    """Whether it follows a write automatically."""
    max_commit_bytes: int = MAX_COMMIT_BYTES
    commit_info: Mapping[str, object] | None = None
    on_progress: Callable[[OptimizeProgress], None] | None = None
    dry_run: bool = False
    """Whether the files to rewrite are only counted."""


@dataclass(frozen=True, slots=True)
class OptimizeResult:
    """What an OPTIMIZE did, or would do."""

    versions: tuple[int, ...]
    """The versions that it committed, in order; empty if there was nothing to do, and after a dry
    run."""
    metrics: Mapping[str, int]
    """Totals over all of its commits, by the names of commitInfo: `numRemovedFiles`,
    `numAddedBytes`, …; of a dry run, those of the files that it would remove."""
    snapshot: Snapshot
    """The table after the OPTIMIZE."""
    conflicts: tuple[CommitConflict, ...] = ()
    """The conflicts of the commits that were given up because a concurrent commit changed a
    file."""
    num_left_files: int = 0
    """Files left unchanged because concurrent commits changed them, or others of their group."""

    @property
    def version(self) -> int:
        """Version of the table after the OPTIMIZE."""
        return self.snapshot.version

    @property
    def skipped(self) -> bool:
        """Whether nothing was committed."""
        return not self.versions


def optimize_table(snapshot: Snapshot, options: OptimizeOptions, *, clock: Clock) -> OptimizeResult:
    """Compact the small files of a table, or sort its rows.

    After an error, earlier commits of this OPTIMIZE remain.
    """
    # This refuses tables that the library cannot write.
    Transaction(snapshot.store, snapshot, clock=clock)
    for option, names in (("zorder_by", options.zorder_by), ("sort_by", options.sort_by)):
        if isinstance(names, str):
            raise InvalidArgument(f"{option} is a list of columns; write [{names!r}]")
    target = _target_size(snapshot, options)
    # Clustering rewrites all of a small table, which is too much after each write.
    clustering = () if options.is_automatic else table_clustering(snapshot)
    if options.full and not clustering:
        raise InvalidArgument(
            "full clusters files again, and the table has no clustering columns: leave it out, or "
            "choose some with ALTER TABLE … CLUSTER BY"
        )
    clustering = () if options.purge is not None else clustering
    columns = _sort_columns(snapshot, options) or clustering
    options.engine.check_reachable(snapshot.store)
    everything = bool(clustering or columns or options.purge is not None)
    files = _candidates(snapshot, options, target, everything=everything)
    groups = _groups(snapshot, files, options, target, clustering)
    parameters = _parameters(options, clustering)
    if options.dry_run:
        planned = {
            "numRemovedFiles": sum(group.num_rows for group in groups),
            "numRemovedBytes": sum(map(total_bytes, groups)),
        }
        return OptimizeResult((), planned, snapshot)
    job = _Optimization(
        snapshot,
        options,
        clock,
        columns,
        target,
        parameters,
        clustering,
        planned_version=snapshot.version,
        total_bytes=sum(map(total_bytes, groups)),
    )
    # A cube is committed alone, because its tag identifies its files.
    max_bytes = 0 if clustering else options.max_commit_bytes
    for batch in split_by_size(groups, total_bytes, max_bytes):
        job.run(batch)
    metrics = {name: job.totals[name] for name in _SUMMED}
    return OptimizeResult(
        tuple(job.versions), metrics, job.snapshot, tuple(job.conflicts), job.num_left_files
    )


def _sort_columns(snapshot: Snapshot, options: OptimizeOptions) -> tuple[tuple[str, ...], ...]:
    """The columns of the curve that orders the rows of a partition; empty for none."""
    if not options.sort_by:
        return zorder_columns(snapshot.configuration, options.zorder_by)
    if options.zorder_by:
        raise InvalidArgument("rows are sorted by sort_by or by zorder_by: leave one of them out")
    spec = _spec(snapshot, 1, options.sort_by)  # refuses columns without an order
    if len(spec.sort_by) != len(set(spec.sort_by)):
        raise InvalidArgument(f"sort_by names a column twice: {', '.join(spec.sort_by)}")
    # A curve through one column has its order; each file is then sorted by all of them.
    return zorder_columns(snapshot.configuration, options.sort_by[:1], option="sort_by")


def _target_size(snapshot: Snapshot, options: OptimizeOptions) -> int:
    target = options.target_file_size_bytes
    if target is None:
        return target_file_size(snapshot.configuration)
    if target < 1:
        raise InvalidArgument(
            f"target_file_size is a number of bytes and must be > 0, not {target}"
        )
    return target


def _candidates(
    snapshot: Snapshot, options: OptimizeOptions, target: int, *, everything: bool
) -> pa.Table:
    if everything or options.where is not None:
        files = snapshot.scan(where=options.where).files()
        return files if options.purge is None else outdated_files(snapshot, files, options.purge)
    minimum = integer_scalar(_min_size(options, target))

    def is_chosen(files: pa.Table) -> pa.ChunkedArray:
        return pc.or_(pc.less(files["size_bytes"], minimum), pc.is_valid(files["deletion_vector"]))

    return FilePlanner(snapshot).choose(LIVE_FILE_SCHEMA.names, is_chosen)


def _min_size(options: OptimizeOptions, target: int) -> int:
    minimum = options.min_file_size_bytes
    return int(target * MIN_SIZE_SHARE) if minimum is None else minimum


def _groups(
    snapshot: Snapshot,
    files: pa.Table,
    options: OptimizeOptions,
    target: int,
    clustering: Sequence[tuple[str, ...]],
) -> list[pa.Table]:
    """The files to rewrite, in groups whose rows go to the same new files."""
    if not 0 <= options.max_deleted_share <= 1:
        raise InvalidArgument(
            f"max_deleted_share is a share from 0 to 1, not {options.max_deleted_share}"
        )
    everything = boolean_column([True] * files.num_rows)
    if options.zorder_by or options.sort_by:
        return _packed(files, everything, everything, max_bytes=2**63)
    if options.purge is not None:
        return _packed(files, everything, everything, max_bytes=target)
    purged = _is_purged(files, options.max_deleted_share)
    if clustering:
        most = options.max_commit_bytes
        return _plan_cubes(files, clustering, purged, max_bytes=most, full=options.full)
    small = pc.less(files["size_bytes"], integer_scalar(_min_size(options, target)))
    chosen = pc.or_(small, purged)
    if snapshot.configuration.supports("clustering"):
        chosen = pc.and_(chosen, pc.is_null(files["clustering_provider"]))
    # Smallest first, as in the reference implementation. The sort is stable, so files of equal
    # size stay in the order in which they were written.
    order = pc.sort_indices(files, [("size_bytes", "ascending")])
    return _packed(
        files.take(order),
        chosen.take(order),
        purged.take(order),
        max_bytes=target,
        min_files=options.min_files,
    )


def _packed(
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


def _is_purged(files: pa.Table, max_deleted_share: float) -> pa.Array | pa.ChunkedArray:
    """For each file whether its share of deleted rows is too large: a `pa.BooleanArray`."""
    vectors = files["deletion_vector"]
    if vectors.null_count == len(vectors):
        return boolean_column([False] * len(vectors))
    num_records = parse_statistics_json(files["stats"], ())["num_records"]
    deleted = pc.cast(pc.struct_field(vectors, "cardinality"), pa.float64())
    allowed = pc.multiply(pc.cast(num_records, pa.float64()), max_deleted_share)
    # If the log does not count the rows, any deletion is too much: the share is unknown.
    return pc.fill_null(pc.greater(deleted, pc.fill_null(allowed, 0.0)), FALSE)


def _parameters(
    options: OptimizeOptions, clustering: Sequence[tuple[str, ...]]
) -> dict[str, object]:
    parameters: dict[str, object] = {
        "predicate": [] if options.where is None else [options.where],
        "zOrderBy": list(options.zorder_by),
        "auto": options.is_automatic,
    }
    if options.sort_by:
        parameters["sortBy"] = list(options.sort_by)
    if options.purge is not None:
        return {"predicate": parameters["predicate"], "applyPurge": True}
    if clustering:
        parameters["clusterBy"] = [dotted(column) for column in clustering]
        parameters["isFull"] = options.full
    return parameters


@dataclass(slots=True)
class _Optimization:
    snapshot: Snapshot
    options: OptimizeOptions
    clock: Clock
    columns: Sequence[tuple[str, ...]]
    """Columns to sort rows by; empty if files are only compacted."""
    target_size_bytes: int
    parameters: Mapping[str, object]
    clustering: Sequence[tuple[str, ...]]
    """The clustering columns."""
    planned_version: int
    """The version at which the files were chosen."""
    total_bytes: int
    done_bytes: int = 0
    versions: list[int] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)
    conflicts: list[CommitConflict] = field(default_factory=list)
    num_left_files: int = 0

    def run(self, groups: list[pa.Table]) -> None:
        self.done_bytes += sum(map(total_bytes, groups))
        planned = sum(group.num_rows for group in groups)
        groups = self._still_live(groups)
        num_removed = 0
        version, metrics = None, dict[str, int]()
        if groups:
            try:
                result, moved = self._commit(groups)
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
        if self.options.on_progress is not None:
            self.options.on_progress(
                OptimizeProgress(
                    self.done_bytes,
                    self.total_bytes,
                    version,
                    metrics.get("numRemovedFiles", 0),
                    metrics.get("numAddedFiles", 0),
                )
            )

    def _still_live(self, groups: list[pa.Table]) -> list[pa.Table]:
        """The groups as they are by now, without those from which a concurrent commit removed a
        file since they were planned.
        """
        if self.snapshot.version == self.planned_version:
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

    def _commit(self, groups: list[pa.Table]) -> tuple[CommitResult, MovedGroups]:
        snapshot = self.snapshot
        transaction = Transaction(snapshot.store, snapshot, clock=self.clock)
        spec = _spec(snapshot, self.target_size_bytes, self.options.sort_by)
        kept = [keep_row_ids(read_plan(snapshot, group, None), spec) for group in groups]
        rewritten, results = self._rewrite(groups, [plan for plan, _ in kept], kept[0][1])
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
                        tombstones(files, self.clock(), data_change=False),
                        self._added(written),
                        keeps_order=not (self.columns or self.options.sort_by),
                    )
                    for files, written in zip(rewritten, results, strict=True)
                ]
            )
        transaction.declare_row_ids_kept()
        transaction._stage_moved(moved)  # noqa: SLF001 for this statement alone
        result = transaction.commit(
            "OPTIMIZE" if self.options.purge is None else "REORG",
            parameters=self.parameters,
            metrics=lambda: _metrics(moved),
            user_info=self.options.commit_info,
        )
        return result, moved

    def _rewrite(
        self, groups: list[pa.Table], plans: Sequence[ReadPlan], spec: WriteSpec
    ) -> tuple[list[pa.Table], list[WriteResult]]:
        engine = self.options.engine
        if not self.columns:
            return groups, engine.compact(plans, spec)
        is_hilbert = bool(self.clustering)
        written = engine.sort(plans, spec, self.columns, is_hilbert=is_hilbert)
        return [pa.concat_tables(groups)], [written]

    def _added(self, written: WriteResult) -> tuple[AddFile, ...]:
        added = [msgspec.structs.replace(file, data_change=False) for file in written.files]
        return tuple(clustered(added, self.clustering) if self.clustering else added)


def _spec(snapshot: Snapshot, target_size_bytes: int, sort_by: Sequence[str]) -> WriteSpec:
    # The rows are in the table, so they have passed its constraints.
    spec = write_spec(
        snapshot.configuration, snapshot.store.location, check_rows=False, sort_by=sort_by
    )
    return msgspec.structs.replace(spec, target_file_size_bytes=target_size_bytes)


_SUMMED = (
    "numAddedFiles",
    "numAddedBytes",
    "numRemovedFiles",
    "numRemovedBytes",
    "numDeletionVectorsRemoved",
)


def _metrics(moved: MovedGroups) -> dict[str, int]:
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


PROVIDER = "liquid"
"""The name of this way of clustering in the reference implementation."""

_CUBE_ID, _CUBE_COLUMNS, _CUBE_CURVE = "ZCUBE_ID", "ZCUBE_ZORDER_BY", "ZCUBE_ZORDER_CURVE"

_UNORDERED = frozenset({"variant", "void"})


def zorder_columns(
    configuration: TableConfiguration, columns: Sequence[str], *, option: str = "zorder_by"
) -> tuple[tuple[str, ...], ...]:
    """The logical paths of the columns, as the schema spells them.

    `option` is the option that names them, for errors. Dots separate struct fields, and backticks
    quote a name that contains dots.
    """
    if columns and configuration.supports("clustering"):
        raise InvalidArgument(
            "the table has clustering columns, which say how its rows are laid out; leave "
            f"{option} out"
        )
    found: list[tuple[str, ...]] = []
    for name in columns:
        path = find_place(configuration.schema, to_path(name)).path
        problem = layout_problem(configuration, path, unordered=_UNORDERED)
        if path[0] in configuration.partition_columns:
            problem = "it is a partition column, whose values are apart already"
        elif path in found:
            problem = f"{option} names it twice"
        if problem is not None:
            raise InvalidArgument(f"rows cannot be sorted by {name}: {problem}", column=name)
        found.append(path)
    return tuple(found)


def _plan_cubes(
    files: pa.Table,
    columns: Sequence[ColumnPath],
    purged: pa.BooleanArray,
    *,
    max_bytes: int,
    full: bool,
) -> list[pa.Table]:
    """The cubes to write, each with the files that go into it.

    `max_bytes` bounds the files of one cube, unless it is one file; `purged` files are rewritten
    anyway; `full` clusters files that were clustered by other columns again too.
    """
    cubes = _cube_of(files["tags"], _CUBE_ID)
    by = _cube_of(files["tags"], _CUBE_COLUMNS)
    wanted = _column_names(columns)
    sizes = files["size_bytes"].to_pylist()
    total: dict[str | None, int] = {}
    for cube, size in zip(cubes, sizes, strict=True):
        total[cube] = total.get(cube, 0) + size
    providers = files["clustering_provider"].to_pylist()
    chosen, is_worth_it = [], False
    for position, must_rewrite in enumerate(purged.to_pylist()):
        cube = cubes[position]
        is_foreign = providers[position] not in (None, PROVIDER) or by[position] not in (
            None,
            wanted,
        )
        if is_foreign and not full:
            continue
        is_large = cube is not None and not is_foreign and total[cube] * 3 >= max_bytes * 2
        if is_large and not must_rewrite:
            continue
        chosen.append(position)
        is_worth_it |= must_rewrite or is_foreign or cube is None
    if not is_worth_it and len({cubes[position] for position in chosen}) < 2:
        # A single small cube cannot be improved.
        return []
    chosen.sort(key=lambda position: cubes[position] or "")
    return [
        files.take(integer_column(batch))
        for batch in split_by_size(chosen, sizes.__getitem__, max_bytes)
    ]


def clustered(files: Iterable[AddFile], columns: Sequence[ColumnPath]) -> Iterator[AddFile]:
    """The files, tagged as those of a new cube."""
    tags = {
        _CUBE_ID: str(uuid.uuid4()),
        _CUBE_COLUMNS: _column_names(columns),
        _CUBE_CURVE: "hilbert",
    }
    for file in files:
        yield msgspec.structs.replace(
            file, tags={**(file.tags or {}), **tags}, clustering_provider=PROVIDER
        )


def _column_names(columns: Sequence[ColumnPath]) -> str:
    return msgspec.json.encode([dotted(column) for column in columns]).decode()


def _cube_of(tags: pa.ChunkedArray, key: str) -> list[str | None]:
    found: list[str | None] = pc.map_lookup(tags, key, "first").to_pylist()
    return found


MIN_FILES = 50
"""Number of small files in one partition that triggers it, as in the reference implementation."""
_SMALL_SHARE = 0.5
"""Files below this share of the target size are small."""


def compact_after(result: CommitResult, *, engine: Engine, clock: Clock) -> OptimizeResult | None:
    """Compact the small files of a table after a write if that is due, otherwise return None.

    The write is already committed, so a failure is logged and not raised.
    """
    snapshot = result.snapshot
    with logged_failure(snapshot.version, snapshot.store, "small files were not compacted"):
        properties = snapshot.configuration.properties
        asked = properties.auto_compact != "false" or properties.auto_optimize
        if result.skipped or not asked:
            return None
        small_bytes = int(target_file_size(snapshot.configuration) * _SMALL_SHARE)
        limit = integer_scalar(small_bytes)
        small = FilePlanner(snapshot).choose(
            ["size_bytes"], lambda files: pc.less(files["size_bytes"], limit)
        )
        if small.num_rows >= MIN_FILES:
            options = OptimizeOptions(
                min_file_size_bytes=small_bytes,
                min_files=MIN_FILES,
                max_deleted_share=1.0,
                engine=engine,
                is_automatic=True,
            )
            return optimize_table(snapshot, options, clock=clock)
    return None
