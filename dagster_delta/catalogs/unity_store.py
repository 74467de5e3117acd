"""Opens the store of a table of Unity Catalog: its files with vended credentials, and its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dagster_delta.catalogs.catalog_store import CatalogStore, ExternalTableStore
from dagster_delta.catalogs.managed_log import ManagedLogStore
from dagster_delta.catalogs.unity_table import OPTION_PREFIX, UnityTable
from dagster_delta.catalogs.vended_credentials import CredentialSource
from dagster_delta.storage import absolute_uri, open_store, scheme_of
from dagster_delta.storage.object_store import FetchBudget, ObjectStore, RangeStore

if TYPE_CHECKING:
    import pyarrow as pa


def open_unity_table(location: str, options: Mapping[str, object]) -> ObjectStore:
    """The store of a table, by its location and the options that `UnityCatalog.resolve` gives."""
    own = {name: value for name, value in options.items() if name.startswith(OPTION_PREFIX)}
    inner = {name: value for name, value in options.items() if name not in own}
    table = UnityTable.of_options(own)
    if absolute_uri(location) != absolute_uri(table.location):
        # Another table beside it, with the same options of the storage.
        return open_store(location, inner)
    if table.vends_credentials and scheme_of(location) not in (None, "file", "memory"):
        inner["credential_provider"] = CredentialSource(
            server=table.server,
            location=table.location,
            table=table.table,
            is_new=table.is_new,
            staging_id=table.table_id if table.is_new else None,
            older_table_id=table.table_id if table.is_older else None,
        )
    opened = open_store(location, inner)
    of_catalog = table.commits == "catalog"
    kind: type[CatalogStore] = ManagedLogStore if of_catalog else ExternalTableStore
    if isinstance(opened, RangeStore):
        kind = _RangedManagedLogStore if of_catalog else _RangedExternalTableStore
    return kind(opened, table, options)


class _Ranges(CatalogStore):
    """With the optional part of the stores of clouds."""

    def open_ranges(
        self,
        path: str,
        ranges: Sequence[tuple[int, int]],
        size_bytes: int,
        budget: FetchBudget | None = None,
    ) -> pa.NativeFile:
        """As the port."""
        assert isinstance(self._inner, RangeStore)  # noqa: S101
        return self._inner.open_ranges(path, ranges, size_bytes, budget)


class _RangedManagedLogStore(ManagedLogStore, _Ranges):
    """On a cloud."""


class _RangedExternalTableStore(ExternalTableStore, _Ranges):
    """On a cloud."""
