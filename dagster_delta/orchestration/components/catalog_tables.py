"""A component of the tables of a Unity Catalog: assets with what the catalog says of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dagster as dg
import msgspec
from pydantic import Field

from dagster_delta.orchestration.catalogs import CatalogTable, UnityCatalogResource
from dagster_delta.orchestration.components.external_tables import (
    DiscoveredTablesComponent,
    asset_key_of_parts,
)
from dagster_delta.orchestration.components.scaffolders import UnityCatalogScaffolder
from dagster_delta.orchestration.metadata_keys import RawMetadata
from dagster_delta.orchestration.sensors.observations import delta_asset_spec
from dagster_delta.orchestration.storage_options import GivenStorage
from dagster_delta.storage import catalog_uri

_TEAM = re.compile(r"[A-Za-z0-9_.-]+")


def _make_server_field(name: str, **options: Any) -> Any:  # noqa: ANN401
    """A field of the resource, as an attribute."""
    known = UnityCatalogResource.model_fields[name]
    return Field(description=known.description, **options)


@dg.scaffold_with(UnityCatalogScaffolder)
class UnityCatalogComponent(DiscoveredTablesComponent):
    """Every Delta table of a Unity Catalog, or of one of its schemas, as an asset with its owner,
    comment and columns.

    The tables are listed when the state is refreshed: by `dg dev`, or by
    `dg utils refresh-defs-state` when an image is built. Loading definitions asks the catalog
    nothing. The path of a table is its name.

    Examples:
        type: dagster_delta.UnityCatalogComponent
        attributes:
          uri: https://host
          token: "{{ env.UNITY_TOKEN }}"
          catalog: main
          schema: shop
          exclude: ["*_quarantine"]
          automation_condition: "{{ dg.AutomationCondition.on_cron('*/5 * * * *') }}"
          sensor: {name: shop_changed, target: "group:reports"}
    """

    uri: str = _make_server_field("uri", examples=["https://host"])
    catalog: str = Field(examples=["main"], description="The catalog whose tables become assets.")
    schema_: str | None = Field(
        default=None,
        alias="schema",
        examples=["shop"],
        description="The schema of the catalog. Default: every schema.",
    )
    token: str | None = _make_server_field("token", default=None, repr=False)
    client_id: str | None = _make_server_field("client_id", default=None)
    client_secret: str | None = _make_server_field("client_secret", default=None, repr=False)
    oauth_uri: str | None = _make_server_field("oauth_uri", default=None)
    vend_credentials: bool = _make_server_field("vend_credentials", default=True)
    ca_bundle: str | None = _make_server_field("ca_bundle", default=None)
    timeout_seconds: float = _make_server_field("timeout_seconds", default=60)
    allow_http: bool = _make_server_field("allow_http", default=False)

    @property
    def place(self) -> str:
        """The catalog, or its schema."""
        return ".".join(filter(None, (self.catalog, self.schema_)))

    @property
    def storage(self) -> GivenStorage:
        """The catalog, which opens the tables by name."""
        names = UnityCatalogResource.model_fields
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        return UnityCatalogResource(
            **{name: value for name, value in options.items() if value is not None}
        )

    def write_state_to_path(self, state_path: Path) -> None:
        """List the tables, and store the result.

        Raises:
            TableNotFound: there is no such catalog or schema.
            StorageFailure: the catalog refused or failed.
        """
        server: Any = self.storage
        tables = server.client.list_tables(self.catalog, self.schema_)
        listed = [table for table in tables if table.format == "DELTA"]
        state_path.write_bytes(msgspec.json.format(msgspec.json.encode(listed), indent=1))

    def specs_of_state(self, state: bytes) -> dict[str, dg.AssetSpec]:
        """The assets of the tables, by location."""
        return {
            catalog_uri(table.name): self._make_spec(table)
            for table in msgspec.json.decode(state, type=list[CatalogTable])
            if self.is_wanted(table.name)
        }

    def _make_spec(self, table: CatalogTable) -> dg.AssetSpec:
        shown: RawMetadata = {
            "dagster/table_name": table.name,
            "unity_catalog/owner": table.owner or "",
            "unity_catalog/table_type": table.table_type,
        }
        if table.columns:
            shown["dagster/column_schema"] = describe_columns(table)
        return delta_asset_spec(
            asset_key_of_parts(self.key_prefix, table.name.split(".")),
            catalog_uri(table.name),
            description=table.comment,
            owners=_list_owners(table.owner),
            metadata=shown,
        )


def describe_columns(table: CatalogTable) -> dg.TableSchemaMetadataValue:
    """The columns of a table as its catalog has them."""
    return dg.MetadataValue.table_schema(
        dg.TableSchema(
            [
                dg.TableColumn(
                    column.name,
                    column.type,
                    description=column.comment,
                    constraints=dg.TableColumnConstraints(nullable=column.nullable),
                )
                for column in table.columns
            ]
        )
    )


def _list_owners(owner: str | None) -> list[str]:
    """The owner in a form that Dagster accepts: an address, or a team; others are only shown."""
    if owner and "@" in owner:
        return [owner]
    return [f"team:{owner}"] if owner and _TEAM.fullmatch(owner) else []
