"""The clustering columns of a table: defined, kept, and compared with the options of a write; and
the cubes of its files.

Files that were clustered together form a cube, identified by their tags. New files and small cubes
become larger cubes; a cube that is large enough is left unchanged, so that the cost of an OPTIMIZE
depends on the new files.

Spec: Clustered Table.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import InvalidArgument, SchemaChangeRefused, SchemaMismatch
from dagster_delta.evolution.actions import ClusterBy
from dagster_delta.evolution.column_paths import ColumnPath, dotted, to_path
from dagster_delta.evolution.dependants import CLUSTERING_DOMAIN, clustering_columns
from dagster_delta.evolution.plan import SchemaDraft
from dagster_delta.protocol.actions import AddFile, DomainMetadata
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import fold_name
from dagster_delta.protocol.values.arrow_columns import integer_column
from dagster_delta.split_by_size import split_by_size
from dagster_delta.table.read.snapshot import Snapshot


def define_clustering(
    configuration: TableConfiguration, columns: Sequence[str], existing: Snapshot | None
) -> tuple[TableConfiguration, tuple[DomainMetadata, ...]]:
    """The configuration and the metadata domains of a new clustered table."""
    before = None if existing is None else existing.domain_metadata().get(CLUSTERING_DOMAIN)
    if not columns:
        # It may name columns that the new table does not have.
        left = () if before is None else (msgspec.structs.replace(before, removed=True),)
        return configuration, left
    planned, domain = _clustered_by(configuration, tuple(map(to_path, columns)))
    return planned, (domain,)


def _clustered_by(
    configuration: TableConfiguration, columns: tuple[ColumnPath, ...]
) -> tuple[TableConfiguration, DomainMetadata]:
    draft = SchemaDraft(configuration)
    ClusterBy(columns).apply(draft)
    return draft.configuration, draft.domains[CLUSTERING_DOMAIN]


def keep_clustering(
    snapshot: Snapshot, configuration: TableConfiguration
) -> tuple[TableConfiguration, tuple[DomainMetadata, ...]]:
    """The configuration of a table that keeps the names of its clustering columns, and the new
    domain if these columns have other names in the files.

    If the new schema lacks one of them, or a table cannot be clustered by its new type, it is a
    SchemaChangeRefused.
    """
    columns = table_clustering(snapshot)
    if not columns:
        return configuration, ()
    try:
        planned, domain = _clustered_by(configuration, columns)
    except SchemaMismatch:
        raise SchemaChangeRefused(
            "the table is clustered by a column that the new schema does not have; alter it with "
            "CLUSTER BY NONE first, or keep the column"
        ) from None
    # A table with column mapping may now have other columns, with the same names.
    is_same = domain == snapshot.domain_metadata()[CLUSTERING_DOMAIN]
    return planned, () if is_same else (domain,)


def table_clustering(snapshot: Snapshot) -> tuple[ColumnPath, ...]:
    """Logical paths of the clustering columns; empty if the table has none."""
    if not snapshot.configuration.supports("clustering"):
        return ()
    return clustering_columns(snapshot.configuration, snapshot.domain_metadata())


def clustering_names(snapshot: Snapshot) -> tuple[str, ...]:
    """The clustering columns for people: paths joined by dots."""
    return tuple(map(dotted, table_clustering(snapshot)))


def followed_clustering(snapshot: Snapshot | None, other: Snapshot) -> tuple[DomainMetadata, ...]:
    """The metadata domain by which a table gets the clustering of another version or table; none if
    it has that. Other domains belong to one table only.
    """
    now = None if snapshot is None else snapshot.domain_metadata().get(CLUSTERING_DOMAIN)
    wanted = other.domain_metadata().get(CLUSTERING_DOMAIN)
    if wanted == now:
        return ()
    if wanted is not None:
        return (wanted,)
    return () if now is None else (msgspec.structs.replace(now, removed=True),)


def check_clustered_by(snapshot: Snapshot, columns: Sequence[str]) -> None:
    """Check that these are the clustering columns of the table."""
    own = table_clustering(snapshot)
    asked = [to_path(column) for column in columns]
    if _fold_paths(own) != _fold_paths(asked):
        names = [dotted(column) for column in own]
        raise InvalidArgument(
            f"the table is clustered by {names}, not {list(columns)}: leave cluster_by out, or "
            "change its columns with ALTER TABLE … CLUSTER BY",
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )


def _fold_paths(paths: Iterable[ColumnPath]) -> list[str]:
    return [fold_name(dotted(path)) for path in paths]


PROVIDER = "liquid"
"""The name of this way of clustering in the reference implementation."""

_CUBE_ID, _CUBE_COLUMNS, _CUBE_CURVE = "ZCUBE_ID", "ZCUBE_ZORDER_BY", "ZCUBE_ZORDER_CURVE"


def plan_cubes(
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


def tag_as_cube(files: Iterable[AddFile], columns: Sequence[ColumnPath]) -> Iterator[AddFile]:
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
