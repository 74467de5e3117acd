"""What a catalog that takes the commits of a table demands of its statements.

Spec: Catalog-managed tables (writer requirements; maintenance operations).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from dagster_delta.errors import InvalidArgument, UnsupportedFeature
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.storage.object_store import (
    CatalogLogStore,
    MaintenanceWork,
    ObjectStore,
    is_in_catalog,
)

CATALOG_FEATURE = "catalogManaged"
TABLE_ID_KEY = "io.unitycatalog.tableId"


def with_catalog_properties(
    store: ObjectStore, properties: Mapping[str, object] | None
) -> Mapping[str, object] | None:
    """Properties of a table that a statement creates or replaces, and those that its catalog asks
    for.
    """
    if not is_in_catalog(store):
        return properties
    return {**store.new_table_properties(), **(properties or {})}


def demanded_by_catalog(store: ObjectStore) -> Mapping[str, str]:
    """What the catalog demands of a copy of another table, without what it only suggests for new
    ones; nothing if the storage takes the commits.
    """
    if not is_in_catalog(store):
        return {}
    features = {f"delta.feature.{name}": "supported" for name in sorted(store.demanded_features)}
    return {**features, **store.demanded_properties()}


def check_contract(
    store: CatalogLogStore, configuration: TableConfiguration, *, table: str
) -> None:
    """Refuse a configuration that the table of a catalog may not have. Unity Catalog 0.7 takes some
    of them, and then refuses every later change of the protocol.

    Raises:
        InvalidArgument: it lacks in-commit timestamps, what binds it to its catalog, or a value
            that the catalog demands.
    """
    given = configuration.metadata.configuration
    demanded = store.demanded_properties()
    missing = [
        what
        for what, is_kept in (
            (f"the feature {CATALOG_FEATURE}", configuration.supports(CATALOG_FEATURE)),
            (TABLE_ID_KEY, TABLE_ID_KEY in given),
            ("delta.enableInCommitTimestamps", configuration.in_commit_timestamps_enabled),
        )
        if not is_kept
    ]
    missing += [
        f"{key} = {value}"
        for key, value in demanded.items()
        if given.get(key) != value and key not in missing
    ]
    if missing:
        raise InvalidArgument(
            f"a catalog manages the table, so that it has to keep {', '.join(missing)}",
            table=table,
        )


def check_droppable(store: ObjectStore, feature: str) -> None:
    """Refuse to drop a feature that the catalog demands, before anything is rewritten for it.

    Raises:
        UnsupportedFeature: the catalog demands it.
    """
    table = store.location.uri
    if is_in_catalog(store) and feature in store.demanded_features:
        raise UnsupportedFeature(
            f"the catalog that manages the table demands the feature {feature}: copy the rows to "
            "an external table without it",
            table=table,
        )


def without_catalog(configuration: TableConfiguration) -> TableConfiguration:
    """The configuration of a copy of a table, which no catalog manages."""
    protocol = configuration.protocol
    lists = {
        name: None if features is None else tuple(f for f in features if f != CATALOG_FEATURE)
        for name, features in (
            ("reader_features", protocol.reader_features),
            ("writer_features", protocol.writer_features),
        )
    }
    return TableConfiguration(
        replace(protocol, **lists), configuration.metadata.without(TABLE_ID_KEY)
    )


def check_maintenance(store: ObjectStore, work: MaintenanceWork, what: str) -> None:
    """Refuse maintenance that the catalog leaves to itself.

    Raises:
        UnsupportedFeature: the catalog does not permit it to clients.
    """
    if not allows_maintenance(store, work):
        raise UnsupportedFeature(
            f"the catalog that manages the table does not permit {what} to clients "
            f"(allowed-maintenance-operations lacks {work}): leave it to the catalog",
            table=store.location.uri,
        )


def allows_maintenance(store: ObjectStore, work: MaintenanceWork) -> bool:
    """Whether clients may do maintenance of the table."""
    return not is_in_catalog(store) or store.allows(work)
