"""Which files of a clustered table are written anew, and which of them along one curve.

Files that were clustered together are a cube, told by their tags. New files and small cubes become
larger cubes; a cube that is large enough stays as it is, so that an OPTIMIZE costs what is new.

Spec: Clustered Table; Add File and Remove File (tags, clusteringProvider).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.compute as pc

from dagster_delta.errors import (
    InvalidArgument,
    InvalidTable,
    SchemaChangeRefused,
    SchemaMismatch,
)
from dagster_delta.evolution.column_paths import ColumnPath, dotted, to_path
from dagster_delta.evolution.dependants import CLUSTERING_DOMAIN, clustering_columns
from dagster_delta.evolution.schema_actions import ClusterBy
from dagster_delta.evolution.schema_draft import SchemaDraft
from dagster_delta.evolution.table_actions import cluster_by
from dagster_delta.protocol.actions import AddFile, DomainMetadata
from dagster_delta.protocol.table_configuration import TableConfiguration
from dagster_delta.table.maintenance.compaction_plan import FileGroup
from dagster_delta.table.write.planning import new_column_name

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot

__all__ = [
    "check_clustered_by",
    "clustered",
    "define_clustering",
    "keep_clustering",
    "plan_cubes",
    "table_clustering",
]

PROVIDER = "liquid"
"""What the reference implementation calls its way of clustering, which is followed here."""

_CUBE_ID, _CUBE_COLUMNS, _CUBE_CURVE = "ZCUBE_ID", "ZCUBE_ZORDER_BY", "ZCUBE_ZORDER_CURVE"


def define_clustering(
    configuration: TableConfiguration, columns: Sequence[str], existing: Snapshot | None
) -> tuple[TableConfiguration, tuple[DomainMetadata, ...]]:
    """The configuration of a table that is created clustered, and the domains that say so.

    Args:
        configuration: of the new table.
        columns: paths of the clustering columns; none where it is not clustered.
        existing: the table that is replaced.

    Raises:
        InvalidArgument, SchemaMismatch, SchemaChangeRefused: nothing is clustered by these columns.
    """
    before = None if existing is None else existing.domain_metadata().get(CLUSTERING_DOMAIN)
    if not columns:
        # It may name columns that the new table does not have.
        left = () if before is None else (msgspec.structs.replace(before, removed=True),)
        return configuration, left
    draft = SchemaDraft(configuration, new_column_name, {})
    cluster_by(draft, ClusterBy(tuple(map(to_path, columns))))
    text = draft.changed_domains[CLUSTERING_DOMAIN]
    domain = DomainMetadata(domain=CLUSTERING_DOMAIN, configuration=text, removed=False)
    return draft.configuration, (domain,)


def keep_clustering(
    snapshot: Snapshot, configuration: TableConfiguration
) -> tuple[TableConfiguration, DomainMetadata | None]:
    """The configuration of a table that stays clustered by columns of the same names, and the
    domain that says so where they are other columns in the files.

    Args:
        snapshot: before its schema is replaced.
        configuration: with the new schema.

    Raises:
        SchemaChangeRefused: the new schema lacks one of them, or nothing is clustered by it now.
        InvalidTable: as `table_clustering` does.
    """
    columns = table_clustering(snapshot)
    if not columns:
        return configuration, None
    draft = SchemaDraft(configuration, new_column_name, {})
    try:
        cluster_by(draft, ClusterBy(columns))
    except SchemaMismatch:
        raise SchemaChangeRefused(
            "the table is clustered by a column that the new schema does not have; alter it with "
            "CLUSTER BY NONE first, or keep the column"
        ) from None
    text = draft.changed_domains[CLUSTERING_DOMAIN]
    before = {CLUSTERING_DOMAIN: snapshot.domain_metadata()[CLUSTERING_DOMAIN].configuration}
    try:
        if clustering_columns(draft.configuration, before) == clustering_columns(
            draft.configuration, {CLUSTERING_DOMAIN: text}
        ):
            return draft.configuration, None
    except InvalidTable:
        # A mapped table has other columns now, of the same names.
        pass
    domain = DomainMetadata(domain=CLUSTERING_DOMAIN, configuration=text, removed=False)
    return draft.configuration, domain


def table_clustering(snapshot: Snapshot) -> tuple[ColumnPath, ...]:
    """Logical paths of the clustering columns; none where the table has none.

    Raises:
        InvalidTable: the domain is damaged, or names a column that is not there.
    """
    if not snapshot.configuration.supports("clustering"):
        return ()
    domains = snapshot.domain_metadata().items()
    texts = {name: each.configuration for name, each in domains}
    return clustering_columns(snapshot.configuration, texts)


def check_clustered_by(snapshot: Snapshot, columns: Sequence[str]) -> None:
    """Make sure that these are the clustering columns of the table.

    Args:
        snapshot: the latest version.
        columns: paths of columns, as `DeltaTable.create` takes them.

    Raises:
        InvalidArgument: they are not.
    """
    own = table_clustering(snapshot)
    asked = [to_path(each) for each in columns]
    if _folded(own) != _folded(asked):
        names = [dotted(each) for each in own]
        raise InvalidArgument(
            f"the table is clustered by {names}, not {list(columns)}: leave cluster_by out, or "
            "change its columns with ALTER TABLE … CLUSTER BY",
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )


def _folded(paths: Iterable[ColumnPath]) -> list[str]:
    return [dotted(each).casefold() for each in paths]


def plan_cubes(
    files: Any,
    columns: Sequence[ColumnPath],
    purged: Any,
    *,
    max_bytes: int,
    full: bool,
) -> list[FileGroup]:
    """The cubes to make, each of the files that go into it.

    Args:
        files: `pa.Table` with `size_bytes`, `tags` and `clustering_provider`.
        columns: the clustering columns.
        purged: `pa.BooleanArray`: files that are written anew anyway.
        max_bytes: of the files of one cube, where it is not one file alone.
        full: whether files that were clustered by other columns are clustered anew too.
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
    for position, is_purged in enumerate(purged.to_pylist()):
        cube = cubes[position]
        is_foreign = providers[position] not in (None, PROVIDER) or by[position] not in (
            None,
            wanted,
        )
        if is_foreign and not full:
            continue
        is_large = cube is not None and not is_foreign and total[cube] * 3 >= max_bytes * 2
        if is_large and not is_purged:
            continue
        chosen.append(position)
        is_worth_it |= is_purged or is_foreign or cube is None
    if not is_worth_it and len({cubes[each] for each in chosen}) < 2:
        # One small cube is as good as it gets.
        return []
    chosen.sort(key=lambda each: cubes[each] or "")
    return list(_packed(chosen, sizes, max_bytes))


def clustered(files: Iterable[AddFile], columns: Sequence[ColumnPath]) -> Iterator[AddFile]:
    """The files as those of a new cube.

    Args:
        files: whose rows lie along one curve.
        columns: the clustering columns.
    """
    tags = {
        _CUBE_ID: str(uuid.uuid4()),
        _CUBE_COLUMNS: _column_names(columns),
        _CUBE_CURVE: "hilbert",
    }
    for each in files:
        yield msgspec.structs.replace(
            each, tags={**(each.tags or {}), **tags}, clustering_provider=PROVIDER
        )


def _column_names(columns: Sequence[ColumnPath]) -> str:
    return msgspec.json.encode([dotted(each) for each in columns]).decode()


def _cube_of(tags: Any, key: str) -> list[str | None]:
    found: list[str | None] = pc.map_lookup(tags, key, "first").to_pylist()
    return found


def _packed(positions: Sequence[int], sizes: Sequence[int], max_bytes: int) -> Iterator[FileGroup]:
    together: list[int] = []
    total = 0
    for each in positions:
        if together and total + sizes[each] > max_bytes:
            yield FileGroup(tuple(together), total)
            together, total = [], 0
        together.append(each)
        total += sizes[each]
    if together:
        yield FileGroup(tuple(together), total)
