"""Tables of a Unity Catalog by name: `catalog.schema.table`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec

from dagster_delta.catalogs.unity_client import (
    CatalogRefusal,
    UnityClient,
    UnityServer,
    client_of,
    join_name,
    schema_path,
    split_name,
    table_path,
)
from dagster_delta.catalogs.unity_messages import LoadedTable, StagingTable
from dagster_delta.catalogs.unity_table import UnityTable
from dagster_delta.errors import (
    StorageFailure,
    TableAlreadyExists,
    TableNotFound,
    UnsupportedFeature,
)
from dagster_delta.storage import (
    StoreLocation,
    absolute_uri,
    check_no_password,
    local_root,
    resolve_variable,
    scheme_of,
)

_PAGE = 100

_Answer: TypeAlias = dict[str, Any]


class CatalogColumn(msgspec.Struct, frozen=True, rename={"type": "type_text"}):
    """A column as the catalog describes it."""

    name: str
    type: str = ""
    """In the catalog's spelling."""
    comment: str | None = None
    nullable: bool = True


class CatalogTable(
    msgspec.Struct,
    frozen=True,
    rename={"location": "storage_location", "format": "data_source_format"},
):
    """A table as the catalog describes it."""

    name: str
    """`catalog.schema.table`."""
    location: str | None = None
    table_type: str = ""
    """`MANAGED`, `EXTERNAL`, or a kind of view."""
    format: str | None = None
    """`DELTA`, or another format, which cannot be opened."""
    comment: str | None = None
    owner: str | None = None
    columns: tuple[CatalogColumn, ...] = ()
    properties: Mapping[str, str] = {}
    table_id: str | None = None


class UnityCatalog:
    """A server of Unity Catalog, of Databricks or open source. It holds no connection: it can be
    pickled, and it shows no secret.

    Args:
        uri: address of the server, `https://…`, without a path.
        token: bearer token.
        client_id: of a service principal, instead of a token.
        client_secret: of the service principal.
        oauth_uri: where the service principal gets tokens; `<uri>/oidc/v1/token` by default.
        storage_options: options of the storage that the catalog does not give, for example an
            endpoint or a region.
        vend_credentials: whether the catalog gives the credentials of the storage; if False, they
            are among the storage options, or the environment's.
        ca_bundle: path of certificates to trust instead of the system's.
        timeout_seconds: limit of a request.
        allow_http: whether the token may travel to another machine without TLS.

    Raises:
        InvalidArgument: the address or the credentials cannot be used.
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
        vend_credentials: bool = True,
        ca_bundle: str | os.PathLike[str] | None = None,
        timeout_seconds: float = 60,
        allow_http: bool = False,
    ) -> None:
        token, client_id, client_secret, oauth_uri = (
            None if value is None else str(resolve_variable(value))
            for value in (token, client_id, client_secret, oauth_uri)
        )
        self._server = UnityServer(
            str(resolve_variable(uri)).rstrip("/"),
            token=token,
            client_id=client_id,
            client_secret=client_secret,
            oauth_uri=oauth_uri,
            ca_bundle=None if ca_bundle is None else os.fspath(ca_bundle),
            timeout_seconds=timeout_seconds,
            allow_http=allow_http,
        )
        self._server.check()
        self._storage_options = dict(storage_options or {})
        self._vends = vend_credentials

    def __repr__(self) -> str:
        return f"UnityCatalog({self._server.uri!r})"

    @property
    def uri(self) -> str:
        """Address of the server."""
        return self._server.uri

    @property
    def _client(self) -> UnityClient:
        return client_of(self._server)

    def resolve(self, name: str) -> StoreLocation:
        """Where a table is, and the options to open it with. They name the table in the catalog,
        which gives credentials for its storage and renews them, here and on executors.

        Args:
            name: `catalog.schema.table`.

        Raises:
            TableNotFound: the catalog has no such table.
            InvalidArgument: the name does not have three parts.
            UnsupportedFeature: the table is not a Delta table.
            StorageFailure: the catalog refused or failed.
        """
        catalog, _, _ = split_name(name)
        if not self._client.has_delta_api(catalog):
            return self._resolve_older(name)
        try:
            found = self._client.get(table_path(name), LoadedTable).metadata
        except CatalogRefusal as refusal:
            if refusal.kind != "UnsupportedTableFormatException":
                raise
            raise UnsupportedFeature(
                f"{name} is not a Delta table, or one that the catalog does not give to Delta "
                f"clients: {refusal.message}"
            ) from refusal
        return self._locate(
            UnityTable(
                self._server,
                name,
                found.location,
                found.table_uuid,
                "catalog" if found.is_catalog_managed else "storage",
            )
        )

    def new_table(self, name: str, location: str | None = None) -> StoreLocation:
        """Where a new table is to be created; its first commit registers it. A table that the
        catalog manages gets what the catalog requires and suggests: deletion vectors, in-commit
        timestamps, V2 checkpoints, row tracking and column mapping.

        Args:
            name: `catalog.schema.table`.
            location: URI of an external table; None for a table that the catalog manages.

        Raises:
            TableAlreadyExists: the catalog has a table of the name.
            TableNotFound: the catalog or the schema does not exist.
            UnsupportedFeature: the server creates no tables for Delta clients.
            StorageFailure: the catalog refused or failed.
        """
        catalog, schema, table = split_name(name)
        if not self._client.has_delta_api(catalog):
            raise UnsupportedFeature(
                f"the server {self.uri} lacks the Delta API of Unity Catalog (0.5 or newer), by "
                f"which tables are created; create {name} there by SQL, then write to it"
            )
        if self.has_table(name):
            raise TableAlreadyExists(f"{name} is in the catalog already: open it by resolve")
        if location is not None:
            check_no_password(location)
            is_local = scheme_of(location) in (None, "file")
            uri = f"file://{local_root(location)}" if is_local else absolute_uri(location)
            return self._locate(
                UnityTable(self._server, name, uri, None, commits="storage", is_new=True)
            )
        path = f"{schema_path(catalog, schema)}/staging-tables"
        # Another request gets another place: nothing refers to the first.
        staged = self._client.post(path, {"name": table}, StagingTable, repeats=True)
        return self._locate(
            UnityTable(
                self._server,
                name,
                staged.location,
                staged.table_id,
                is_new=True,
                properties=staged.new_table_properties(),
            )
        )

    def has_table(self, name: str) -> bool:
        """Whether the catalog has a table of the name, of whatever format."""
        try:
            self._client.get_older(f"/tables/{_older_name(name)}", object)
        except TableNotFound:
            return False
        return True

    def table(self, name: str) -> CatalogTable:
        """A table as the catalog describes it. Raises TableNotFound, StorageFailure."""
        return _describe_table(self._client.get_older(f"/tables/{_older_name(name)}", _Answer))

    def list_tables(self, catalog: str, schema: str | None = None) -> list[CatalogTable]:
        """The tables of a catalog or a schema, of every format, in the order of their names.

        Raises:
            TableNotFound: there is no such catalog or schema.
            StorageFailure: the catalog refused or failed.
        """
        schemas = self.list_schemas(catalog) if schema is None else [schema]
        found = list[CatalogTable]()
        for name in schemas:
            query = {"catalog_name": catalog, "schema_name": name}
            found += map(_describe_table, self._list("/tables", "tables", query))
        return sorted(found, key=lambda table: table.name)

    def list_schemas(self, catalog: str) -> list[str]:
        """The names of the schemas of a catalog. Raises as `list_tables` does."""
        query = {"catalog_name": catalog}
        return sorted(found["name"] for found in self._list("/schemas", "schemas", query))

    def drop_table(self, name: str) -> None:
        """Remove a table from the catalog, which deletes the files of a table that it manages.

        Raises:
            TableNotFound: the catalog has no such table.
            StorageFailure: the catalog refused or failed.
        """
        self._client.delete(table_path(name))

    def _locate(self, table: UnityTable) -> StoreLocation:
        table = msgspec.structs.replace(table, vends_credentials=self._vends)
        check_no_password(table.location)
        options = {**self._storage_options, **table.to_options()}
        return StoreLocation(table.location, options)

    def _resolve_older(self, name: str) -> StoreLocation:
        info = self.table(name)
        if info.format != "DELTA" or not info.location:
            raise UnsupportedFeature(
                f"{name} is not a Delta table with files of its own, but "
                f"{info.format or info.table_type}"
            )
        return self._locate(
            UnityTable(
                self._server,
                name,
                info.location,
                info.table_id,
                commits="storage",
                is_older=True,
            )
        )

    def _list(self, path: str, key: str, query: Mapping[str, object]) -> Iterator[_Answer]:
        token: str | None = None
        while True:
            asked = {**query, "max_results": _PAGE, **({"page_token": token} if token else {})}
            answer = self._client.get_older(path, _Answer, asked)
            yield from answer.get(key) or ()
            token = answer.get("next_page_token")
            if not token:
                return


def _describe_table(info: _Answer) -> CatalogTable:
    """A table as the API before the Delta API describes it."""
    known = {name: value for name, value in info.items() if value is not None}
    parts = (known.get(f"{part}name", "") for part in ("catalog_", "schema_", ""))
    try:
        return msgspec.convert({**known, "name": join_name(*parts)}, CatalogTable)
    except msgspec.ValidationError as error:
        raise StorageFailure(
            f"Unity Catalog describes the table {known.get('name')} in a way that cannot be read "
            f"({error}); check that the URI is that of a Unity Catalog"
        ) from None


def _older_name(name: str) -> str:
    return quote(".".join(split_name(name)), safe="")
