"""The clustering columns of a table: defined, kept, and compared with the options of a write.

Spec: Clustered Table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from dagster_delta.errors import InvalidArgument, SchemaChangeRefused, SchemaMismatch
from dagster_delta.evolution.actions import ClusterBy
from dagster_delta.evolution.column_paths import ColumnPath, dotted, to_path
from dagster_delta.evolution.dependants import CLUSTERING_DOMAIN, clustering_columns
from dagster_delta.evolution.plan import SchemaDraft
from dagster_delta.protocol.actions import DomainMetadata
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import fold_name
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
    if _folded(own) != _folded(asked):
        names = [dotted(column) for column in own]
        raise InvalidArgument(
            f"the table is clustered by {names}, not {list(columns)}: leave cluster_by out, or "
            "change its columns with ALTER TABLE … CLUSTER BY",
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )


def _folded(paths: Iterable[ColumnPath]) -> list[str]:
    return [fold_name(dotted(path)) for path in paths]
