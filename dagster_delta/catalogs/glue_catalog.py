"""Tables of the Data Catalog of AWS Glue by name: `database.table`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_delta.errors import InvalidArgument, StorageFailure, TableNotFound, UnsupportedFeature
from dagster_delta.storage import StoreLocation

_PLACEHOLDER = "-__PLACEHOLDER__"
"""How Spark ends the location of a table whose location it stores as `path` (Spark 4.1,
HiveExternalCatalog)."""

_MANIFESTS = "/_symlink_format_manifest"
"""Where a crawler of Glue says that a table is, if it lists manifests for readers without Delta."""


class GlueCatalog:
    """The Data Catalog of an AWS account. It finds tables; other programs register them.

    Args:
        region: of the catalog; by default that of the AWS configuration.
        catalog_id: id of the account that has the catalog; by default one's own.
        endpoint: URL of the service, if not Amazon's own.
        storage_options: options of the storage of the tables.
    """

    def __init__(
        self,
        *,
        region: str | None = None,
        catalog_id: str | None = None,
        endpoint: str | None = None,
        storage_options: Mapping[str, object] | None = None,
    ) -> None:
        self._region = region
        self._catalog_id = catalog_id
        self._endpoint = endpoint
        self._storage_options = dict(storage_options or {})

    def __repr__(self) -> str:
        return f"GlueCatalog(region={self._region!r}, catalog_id={self._catalog_id!r})"

    def resolve(self, name: str) -> StoreLocation:
        """Where a table is, and the options to open it with.

        Args:
            name: `database.table`.

        Raises:
            TableNotFound: the catalog has no such table.
            UnsupportedFeature: the table is not a Delta table.
            StorageFailure: the catalog refused or failed.
        """
        table = self._get_table(name)
        properties = {key.lower(): value for key, value in table.get("Parameters", {}).items()}
        names = ("table_type", "spark.sql.sources.provider", "classification")
        if "delta" not in {str(properties.get(key, "")).lower() for key in names}:
            raise UnsupportedFeature(
                f"{name} is not a Delta table by the Glue catalog: none of its parameters "
                f"{', '.join(names)} is delta",
                table=name,
            )
        described = table.get("StorageDescriptor", {})
        location = str(described.get("Location") or "").rstrip("/").removesuffix(_MANIFESTS)
        if not location or location.endswith(_PLACEHOLDER):
            location = described.get("SerdeInfo", {}).get("Parameters", {}).get("path", "")
        if not location:
            raise UnsupportedFeature(f"the Glue catalog has no location of {name}", table=name)
        return StoreLocation(location, self._storage_options)

    def _get_table(self, name: str) -> dict[str, Any]:
        try:
            from botocore import exceptions, session
        except ImportError as error:
            raise StorageFailure(
                "the Glue catalog needs its client: pip install 'dagster-delta-protocol[s3]'"
            ) from error
        database, _, table = name.partition(".")
        if not table or "." in table:
            raise InvalidArgument(f"{name!r} is no name in the Glue catalog: write database.table")
        asked = {"DatabaseName": database, "Name": table}
        if self._catalog_id is not None:
            asked["CatalogId"] = self._catalog_id
        try:
            client = session.get_session().create_client(
                "glue", region_name=self._region, endpoint_url=self._endpoint
            )
            found: dict[str, Any] = client.get_table(**asked)["Table"]
        except exceptions.ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code == "EntityNotFoundException":
                raise TableNotFound(
                    f"the Glue catalog has no table {name}: check database and table, and the "
                    "region",
                    table=name,
                ) from error
            raise StorageFailure(
                f"the Glue catalog refused the table {name} ({code}): it needs glue:GetTable",
                table=name,
            ) from error
        except exceptions.BotoCoreError as error:
            raise StorageFailure(
                f"the Glue catalog cannot be asked for {name} ({error})", table=name
            ) from error
        return found
