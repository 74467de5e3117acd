"""Catalogs as resources: assets, sensors and jobs name their tables `catalog.schema.table`.

A table of a catalog has the location `catalog://main.shop.orders`. Its place in storage, and the
credentials for it, are asked of the catalog whenever the table is opened.
"""

from __future__ import annotations

from typing import Any, ClassVar

import dagster as dg
from pydantic import ConfigDict, Field, PrivateAttr

from dagster_delta.catalogs import CatalogTable, GlueCatalog, UnityCatalog
from dagster_delta.errors import InvalidArgument, TableNotFound
from dagster_delta.orchestration.known_fields import KnownFieldsOnly
from dagster_delta.orchestration.storage_options import (
    AnyStorageOptions,
    LocalStorageOptions,
    make_secret_field,
    refuse_mask,
)
from dagster_delta.storage import (
    CreatingResolver,
    StoreLocation,
    TableResolver,
    absolute_uri,
    catalog_uri,
    resolve_variable,
)
from dagster_delta.table.delta_table import DeltaTable

__all__ = [
    "CatalogResource",
    "CatalogTable",
    "GlueCatalogResource",
    "UnityCatalogResource",
    "WritableTables",
]


class CatalogResource(KnownFieldsOnly, dg.ConfigurableResource[TableResolver]):
    """Base class of catalogs: a subclass says in `resolve` where the table of a name is.

    A subclass whose catalog takes new tables has `new_table` too, as `CreatingResolver` describes.

    Examples:
        class FolderCatalog(CatalogResource):
            name_parts = 2
            root: str

            def resolve(self, name: str) -> StoreLocation:
                return StoreLocation(f"{self.root}/{name.replace('.', '/')}", {})
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    name_parts: ClassVar[int] = 3
    """Number of parts of a table's name: 3 for `catalog.schema.table`, 2 for `database.table`."""

    def resolve(self, name: str) -> StoreLocation:
        """Where the table of a name is, and the options to open it with; as `TableResolver`."""
        raise NotImplementedError(f"{type(self).__name__} has no method resolve")

    def table(self, name: str, version: int | None = None) -> DeltaTable:
        """The table of a name, opened.

        Args:
            name: of the table, in the catalog.
            version: version to open; None for the latest.

        Raises:
            TableNotFound: the catalog has no such table.
        """
        options = {"catalog": self}
        return DeltaTable(catalog_uri(name), storage_options=options, version=version)


class UnityCatalogResource(CatalogResource):
    """Tables of a Unity Catalog, of Databricks or open source, by their names.

    Examples:
        catalog = UnityCatalogResource(uri="https://host", token=dg.EnvVar("UNITY_TOKEN"))

        dg.Definitions(
            assets=[orders],                      # key main/shop/orders: table main.shop.orders
            resources={"io_manager": DeltaIOManager(catalog=catalog)},
            sensors=[
                delta_table_sensor(
                    "orders_changed", "catalog://main.shop.orders",
                    storage_options=catalog, target=report,
                )
            ],
        )
    """

    uri: str = Field(description="Address of the server, https://…, without a path.")
    token: str | None = make_secret_field("Bearer token.")
    client_id: str | None = Field(
        default=None, description="Client id of a service principal, instead of a token."
    )
    client_secret: str | None = make_secret_field("Client secret of the service principal.")
    oauth_uri: str | None = Field(
        default=None,
        description="Where the service principal gets tokens. Default: <uri>/oidc/v1/token.",
    )
    storage_options: AnyStorageOptions = Field(
        default=LocalStorageOptions(),
        description="Options of the storage that the catalog does not give, such as an endpoint, "
        "and credentials if it gives none.",
    )
    vend_credentials: bool = Field(
        default=True,
        description="Whether the catalog gives the credentials of the storage; if not, they are "
        "among storage_options, or the environment's.",
    )
    ca_bundle: str | None = Field(
        default=None, description="Path of certificates to trust instead of the system's."
    )
    timeout_seconds: float = Field(default=60, gt=0, description="Limit of a request.")
    allow_http: bool = Field(
        default=False,
        description="Whether the token may travel to another machine without TLS.",
    )

    _client: UnityCatalog | None = PrivateAttr(default=None)

    def resolve(self, name: str) -> StoreLocation:
        """Where the table of a name is, and the options to open it with, credentials included.

        Raises:
            TableNotFound: the catalog has no such table.
            StorageFailure: the catalog refused or failed.
        """
        return self.client.resolve(name)

    def new_table(self, name: str, location: str | None = None) -> StoreLocation:
        """Where a new table is created; its first commit registers it. As `CreatingResolver`."""
        return self.client.new_table(name, location)

    @property
    def client(self) -> UnityCatalog:
        """The client of the server."""
        if self._client is None:
            names = ("uri", "token", "client_id", "client_secret", "oauth_uri")
            given: dict[str, Any] = {name: resolve_variable(getattr(self, name)) for name in names}
            for name, value in given.items():
                refuse_mask(name, value)
            self._client = UnityCatalog(
                **given,
                storage_options=self.storage_options.to_options(),
                vend_credentials=self.vend_credentials,
                ca_bundle=self.ca_bundle,
                timeout_seconds=self.timeout_seconds,
                allow_http=self.allow_http,
            )
        return self._client


class GlueCatalogResource(CatalogResource):
    """Tables of the Data Catalog of AWS Glue by their names, `database.table`. Other programs
    create and register them; assets read and write them.

    Examples:
        DeltaIOManager(catalog=GlueCatalogResource(region="eu-central-1"))
    """

    name_parts: ClassVar[int] = 2

    region: str | None = Field(
        default=None, description="Region of the catalog. Default: that of the AWS configuration."
    )
    catalog_id: str | None = Field(
        default=None, description="Id of the account that has the catalog. Default: one's own."
    )
    endpoint: str | None = Field(
        default=None, description="URL of the service, if not Amazon's own."
    )
    storage_options: AnyStorageOptions = Field(
        default=LocalStorageOptions(), description="Options of the storage of the tables."
    )

    def resolve(self, name: str) -> StoreLocation:
        """Where the table of a name is.

        Raises:
            TableNotFound: the catalog has no such table.
            StorageFailure: the catalog refused or failed.
        """
        found = GlueCatalog(
            region=resolve_variable(self.region),
            catalog_id=resolve_variable(self.catalog_id),
            endpoint=resolve_variable(self.endpoint),
            storage_options=self.storage_options.to_options(),
        )
        return found.resolve(name)


class WritableTables:
    """A resolver for a writer: a table that the catalog does not have is a new one.

    Args:
        catalog: that has the tables.
        name: of the table.
        root_uri: where a new table is, at `<schema>/<table>`, if the catalog does not manage it;
            empty for one that it manages.
        location: of the table alone, which it has to be at if it exists.
    """

    def __init__(
        self, catalog: CatalogResource, name: str, root_uri: str, location: str | None = None
    ) -> None:
        self._catalog = catalog
        self._name = name
        self._root = resolve_variable(root_uri).rstrip("/")
        self._location = location
        self._new: dict[str, StoreLocation] = {}

    def resolve(self, name: str) -> StoreLocation:
        """Where the table is, or is to be created. That of a table beside it, whose name begins
        with its name, begins with its location.
        """
        location = self._find_wanted(name)
        try:
            found = self._catalog.resolve(name)
        except TableNotFound as error:
            if not isinstance(self._catalog, CreatingResolver):
                raise TableNotFound(
                    f"{error.message}; {type(self._catalog).__name__} has no method new_table: "
                    "create and register the table by another program",
                    table=name,
                ) from error
            if name not in self._new:
                self._new[name] = self._catalog.new_table(name, location)
            return self._new[name]
        if self._location and location and absolute_uri(found.uri) != absolute_uri(location):
            raise InvalidArgument(
                f"the table {name} is at {found.uri} by its catalog, and its metadata location "
                f"says {location}: omit location, or drop the table from the catalog first"
            )
        return found

    def _find_wanted(self, name: str) -> str | None:
        if self._location is not None:
            return self._location.rstrip("/") + name.removeprefix(self._name)
        return "/".join([self._root, *name.split(".")[-2:]]) if self._root else None
