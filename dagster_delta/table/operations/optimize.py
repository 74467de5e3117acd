"""OPTIMIZE: rewrites rows to fewer, larger or sorted files, in one or more commits.

Spec: Add File and Remove File (dataChange, tags, clusteringProvider); Deletion Vectors; Per-file
Statistics; Clustered Table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.clock import now_ms
from dagster_delta.engines import engine_for
from dagster_delta.engines.engine import Engine
from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.column_paths import dotted, find_place, to_path
from dagster_delta.evolution.column_rules import layout_problem
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.arrow_columns import boolean_column
from dagster_delta.protocol.values.arrow_values import FALSE, integer_scalar
from dagster_delta.table.catalog_rules import allows_maintenance, check_maintenance
from dagster_delta.table.log_upkeep.post_commit import logged_failure
from dagster_delta.table.operations.clustering import plan_cubes, table_clustering
from dagster_delta.table.operations.rewrite_files import (
    MAX_COMMIT_BYTES,
    GroupRewrite,
    OptimizeProgress,
    OptimizeResult,
    choose_target_size,
    pack_files,
    plan_layout,
    rewrite_groups,
)
from dagster_delta.table.operations.write_planning import target_file_size
from dagster_delta.table.read.file_planner import FilePlanner
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.table_handle import TableHandle

MIN_SIZE_SHARE = 0.75
"""Files of at least this share of the target are large enough, unless the caller sets a size."""


def optimize(
    table: TableHandle,
    /,
    where: str | None = None,
    *,
    target_file_size: int | None = None,
    min_file_size: int | None = None,
    max_deleted_share: float = 0.05,
    zorder_by: Sequence[str] = (),
    sort_by: Sequence[str] = (),
    full: bool = False,
    engine: Literal["arrow", "spark"] | None = None,
    memory_limit: int | str | None = None,
    max_commit_bytes: int | None = None,
    dry_run: bool = False,
    commit_info: Mapping[str, object] | None = None,
    on_progress: Callable[[OptimizeProgress], None] | None = None,
) -> OptimizeResult:
    """Compact small files, and purge rows that deletion vectors mark as deleted. No row
    changes.

    A large table is processed in several independent commits. A concurrent append conflicts
    with none of them, nor does one that hides rows by deletion vectors. If it changes a file in
    another way, the files that were to be compacted with it are left unchanged.

    On a table with clustering columns, files that are new since the last call are clustered
    along a Hilbert curve through these columns, together with rows that were clustered in small
    amounts before; larger amounts are left unchanged.

    Args:
        where: Spark SQL; only files that may hold rows that satisfy it are considered.
        target_file_size: bytes that new files should have; by default `delta.targetFileSize`,
            else 128 MiB.
        min_file_size: files below this number of bytes are small; by default three quarters of
            the target.
        max_deleted_share: files with more than this share of deleted rows (0 to 1) are
            rewritten at any size; 0 purges every deleted row.
        zorder_by: columns to sort the rows of each partition by, along a Z-order curve, so that
            filters on any of them skip files. Every file is then rewritten.
        sort_by: columns to sort the rows of each file by, nulls last; files of a partition
            divide the values of the first one among them. Every file is then rewritten.
        full: on a table with clustering columns, whether files that were clustered by other
            columns than the present ones are clustered again too.
        engine: `arrow` (the default) works in this process, in bounded memory; `spark` on the
            executors of the active session.
        memory_limit: bytes, or a size such as `2GB` (at least 64 MiB), for the rows that
            `arrow` holds at once; more are sorted by way of temporary files. By default
            `DAGSTER_DELTA_MEMORY_LIMIT`, or about 0.5 GB, and on small machines less.
        max_commit_bytes: bytes of the files that one commit replaces; 16 GiB by default.
        dry_run: only count the files that would be rewritten, and their bytes.
        commit_info: recorded in each commitInfo beside this library's own fields.
        on_progress: called after each commit.

    Raises:
        InvalidArgument: an option is invalid; a column to sort by has no statistics, or is a
            partition column.
        SchemaMismatch: a column is not in the schema.
        TableNotFound: the table does not exist.
        InvalidTable: a file does not hold the rows that the log counts in it.
        DataFileMissing, CorruptDeletionVector, StorageFailure: for a file.
        UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written.
        CommitStateUnknown: a commit may have failed.
    """
    options = OptimizeOptions(
        where=where,
        target_file_size_bytes=target_file_size,
        min_file_size_bytes=min_file_size,
        max_deleted_share=max_deleted_share,
        zorder_by=zorder_by,
        sort_by=sort_by,
        full=full,
        engine=engine_for(None, engine, memory_limit=memory_limit),
        max_commit_bytes=max_commit_bytes or MAX_COMMIT_BYTES,
        dry_run=dry_run,
        commit_info=commit_info,
        on_progress=on_progress,
    )
    result = optimize_table(table._existing(), options, clock=now_ms)
    table._snapshot = result.snapshot
    return result


class OptimizeOptions(msgspec.Struct, frozen=True):
    """Options of the caller."""

    engine: Engine
    where: str | None = None
    target_file_size_bytes: int | None = None
    min_file_size_bytes: int | None = None
    max_deleted_share: float = 0.05
    zorder_by: Sequence[str] = ()
    sort_by: Sequence[str] = ()
    """Columns to sort rows by, the first one over all files of a partition."""
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


def optimize_table(snapshot: Snapshot, options: OptimizeOptions, *, clock: Clock) -> OptimizeResult:
    """Compact the small files of a table, or sort its rows.

    After an error, earlier commits of this OPTIMIZE remain.
    """
    # This refuses tables that the library cannot write.
    Transaction(snapshot.store, snapshot, clock=clock)
    check_maintenance(snapshot.store, "DATA_REORGANIZATION", "OPTIMIZE")
    for option, names in (("zorder_by", options.zorder_by), ("sort_by", options.sort_by)):
        if isinstance(names, str):
            raise InvalidArgument(f"{option} is a list of columns; write [{names!r}]")
    target = choose_target_size(snapshot.configuration, options.target_file_size_bytes)
    # Clustering rewrites all of a small table, which is too much after each write.
    clustering = () if options.is_automatic else table_clustering(snapshot)
    if options.full and not clustering:
        raise InvalidArgument(
            "full clusters files again, and the table has no clustering columns: leave it out, or "
            "choose some with ALTER TABLE … CLUSTER BY"
        )
    columns = _choose_sort_columns(snapshot, options) or clustering
    options.engine.check_reachable(snapshot.store)
    everything = bool(clustering or columns)
    files = _choose_files(snapshot, options, target, everything=everything)
    groups = _group_files(snapshot, files, options, target, clustering)
    rewrite = GroupRewrite(
        operation="OPTIMIZE",
        parameters=_describe_options(options, clustering),
        engine=options.engine,
        target_size_bytes=target,
        columns=columns,
        sort_by=options.sort_by,
        clustering=clustering,
        max_commit_bytes=options.max_commit_bytes,
        commit_info=options.commit_info,
        on_progress=options.on_progress,
        dry_run=options.dry_run,
    )
    return rewrite_groups(snapshot, groups, rewrite, clock=clock)


def _choose_sort_columns(
    snapshot: Snapshot, options: OptimizeOptions
) -> tuple[tuple[str, ...], ...]:
    """The columns of the curve that orders the rows of a partition; empty for none."""
    if not options.sort_by:
        return zorder_columns(snapshot.configuration, options.zorder_by)
    if options.zorder_by:
        raise InvalidArgument("rows are sorted by sort_by or by zorder_by: leave one of them out")
    spec = plan_layout(snapshot, 1, options.sort_by)  # refuses columns without an order
    if len(spec.sort_by) != len(set(spec.sort_by)):
        raise InvalidArgument(f"sort_by names a column twice: {', '.join(spec.sort_by)}")
    # A curve through one column has its order; each file is then sorted by all of them.
    return zorder_columns(snapshot.configuration, options.sort_by[:1], option="sort_by")


def _choose_files(
    snapshot: Snapshot, options: OptimizeOptions, target: int, *, everything: bool
) -> pa.Table:
    if everything or options.where is not None:
        return snapshot.scan(where=options.where).files()
    minimum = integer_scalar(_min_size(options, target))

    def is_chosen(files: pa.Table) -> pa.ChunkedArray:
        return pc.or_(pc.less(files["size_bytes"], minimum), pc.is_valid(files["deletion_vector"]))

    return FilePlanner(snapshot).choose(LIVE_FILE_SCHEMA.names, is_chosen)


def _min_size(options: OptimizeOptions, target: int) -> int:
    minimum = options.min_file_size_bytes
    return int(target * MIN_SIZE_SHARE) if minimum is None else minimum


def _group_files(
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
        return pack_files(files, everything, everything, max_bytes=2**63)
    purged = _find_files_to_purge(files, options.max_deleted_share)
    if clustering:
        most = options.max_commit_bytes
        return plan_cubes(files, clustering, purged, max_bytes=most, full=options.full)
    small = pc.less(files["size_bytes"], integer_scalar(_min_size(options, target)))
    chosen = pc.or_(small, purged)
    if snapshot.configuration.supports("clustering"):
        chosen = pc.and_(chosen, pc.is_null(files["clustering_provider"]))
    # Smallest first, as in the reference implementation. The sort is stable, so files of equal
    # size stay in the order in which they were written.
    order = pc.sort_indices(files, [("size_bytes", "ascending")])
    return pack_files(
        files.take(order),
        chosen.take(order),
        purged.take(order),
        max_bytes=target,
        min_files=options.min_files,
    )


def _find_files_to_purge(files: pa.Table, max_deleted_share: float) -> pa.Array | pa.ChunkedArray:
    """For each file whether its share of deleted rows is too large: a `pa.BooleanArray`."""
    vectors = files["deletion_vector"]
    if vectors.null_count == len(vectors):
        return boolean_column([False] * len(vectors))
    num_records = parse_statistics_json(files["stats"], ())["num_records"]
    deleted = pc.cast(pc.struct_field(vectors, "cardinality"), pa.float64())
    allowed = pc.multiply(pc.cast(num_records, pa.float64()), max_deleted_share)
    # If the log does not count the rows, any deletion is too much: the share is unknown.
    return pc.fill_null(pc.greater(deleted, pc.fill_null(allowed, 0.0)), FALSE)


def _describe_options(
    options: OptimizeOptions, clustering: Sequence[tuple[str, ...]]
) -> dict[str, object]:
    parameters: dict[str, object] = {
        "predicate": [] if options.where is None else [options.where],
        "zOrderBy": list(options.zorder_by),
        "auto": options.is_automatic,
    }
    if options.sort_by:
        parameters["sortBy"] = list(options.sort_by)
    if clustering:
        parameters["clusterBy"] = [dotted(column) for column in clustering]
        parameters["isFull"] = options.full
    return parameters


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
        if not allows_maintenance(snapshot.store, "DATA_REORGANIZATION"):
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
