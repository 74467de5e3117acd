"""Tables of a Unity Catalog by name: `catalog.schema.table`."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_delta.storage import StoreLocation


class UnityCatalog:
    """A server of Unity Catalog, of Databricks or open source.

    Args:
        uri: address of the server, `https://…`, without a path.
        token: bearer token.
        client_id: of a service principal, instead of a token.
        client_secret: of the service principal.
        oauth_uri: where the service principal gets tokens; `<uri>/oidc/v1/token` by default.
        storage_options: options of the storage that the catalog does not give, for example an
            endpoint or a region; also credentials, if the server vends none.
        timeout_seconds: limit of a request.
    """

    def __init__(
        self,
        uri: str,
        *,
        token: str | None = None,
        client_id: str | None = None,
        client_secret: str | None = None,
        oauth_uri: str | None = None,
        storage_options: Mapping[str, object] | None = None,
        timeout_seconds: float = 60,
    ) -> None:
        raise NotImplementedError

    def resolve(self, name: str) -> StoreLocation:
        """Where a table is, and the options to open it with, credentials included."""
        raise NotImplementedError

    def new_table(self, name: str, location: str | None = None) -> StoreLocation:
        """Where a new table is to be created; its first commit registers it."""
        raise NotImplementedError
