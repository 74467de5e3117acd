"""`DeltaLakeComponent`: every table below a root as an asset, discovered once and stored."""

from __future__ import annotations

import fnmatch
import logging
from pathlib import Path
from typing import Any

import dagster as dg
import msgspec
from dagster.components import DefsStateConfig, DefsStateConfigArgs, ResolvedDefsStateConfig
from pydantic import Field

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.checks.health_asset import delta_health_asset
from dagster_delta.orchestration.components.delta_component import Condition, DeltaAttributes
from dagster_delta.orchestration.components.delta_maintenance import MaintenanceOptions
from dagster_delta.orchestration.components.delta_table import (
    ExternalTable,
    ExternalTablesComponent,
)
from dagster_delta.orchestration.components.discovered_tables import (
    DiscoveredTable,
    Discovery,
    discover_tables,
    path_below,
    table_key,
)
from dagster_delta.orchestration.components.scaffolders import DeltaLakeScaffolder
from dagster_delta.orchestration.storage_options import StorageOptions, plain_options

_log = logging.getLogger(__name__)


class HealthOptions(DeltaAttributes):
    """The health page of tables, and its thresholds."""

    passed_to = delta_health_asset

    name: str = "delta_health"
    """Name of the asset."""
    key_prefix: list[str] = Field(default=[])
    """Prefix of the key of the asset."""
    group_name: str | None = None
    """Group of the asset."""
    thresholds: dict[str, float | None] = Field(
        default={}, examples=[{"num_small_files": 50, "partition_skew": 20}]
    )
    automation_condition: Condition = Field(
        default=None, examples=["{{ dg.AutomationCondition.on_cron('0 6 * * *') }}"]
    )
    """When to report."""


@dg.scaffold_with(DeltaLakeScaffolder)
class DeltaLakeComponent(ExternalTablesComponent, dg.StateBackedComponent):
    """Every Delta table at or below a root, as an asset with its columns and comments.

    The tables are discovered when the state is refreshed: by `dg dev`, or by
    `dg utils refresh-defs-state` when an image is built. Loading definitions does not access
    storage.

    Examples:
        type: dagster_delta.DeltaLakeComponent
        attributes:
          root: s3://lake
          exclude: ["scratch/*"]
          group_name: lake
          maintenance: {name: nightly, cron_schedule: 0 3 * * *}
          health: {automation_condition: "{{ dg.AutomationCondition.on_cron('0 6 * * *') }}"}
          sensor: {name: lake_changed, target: "group:reports"}
    """

    root: str = Field(examples=["s3://lake/raw"])
    """Location at and below which to look for tables."""
    key_prefix: list[str] = Field(default=[])
    """Prefix of the asset keys; the rest is the table's path below the root."""
    include: list[str] = Field(default=["*"])
    """Glob patterns; only tables whose path below the root matches one of them."""
    exclude: list[str] = Field(default=[])
    """Glob patterns; no tables whose path below the root matches one of them."""
    maintenance: MaintenanceOptions | None = None
    """A job or schedule that maintains all these tables."""
    health: HealthOptions | None = None
    """An asset that reports the state of all these tables on one page."""
    defs_state: ResolvedDefsStateConfig = DefsStateConfigArgs.local_filesystem()

    @property
    def defs_state_config(self) -> DefsStateConfig:
        """Where the state is kept."""
        return DefsStateConfig.from_args(
            self.defs_state, default_key=f"DeltaLakeComponent[{self.root}]"
        )

    def write_state_to_path(self, state_path: Path) -> None:
        """Discover the tables, and store the result.

        Raises:
            StorageFailure: the root cannot be listed.
        """
        discovery = discover_tables(self.root, plain_options(self.storage_options))
        state_path.write_bytes(msgspec.json.format(msgspec.json.encode(discovery), indent=1))

    def build_defs_from_state(
        self,
        context: dg.ComponentLoadContext,  # noqa: ARG002
        state_path: Path | None,
    ) -> dg.Definitions:
        """The assets of the discovered tables, with their checks, maintenance and sensor.

        Raises:
            InvalidArgument: the attributes are inconsistent.
        """
        if state_path is None:
            _log.warning(
                "the tables below %s were not looked for yet: run `dg utils refresh-defs-state`",
                self.root,
            )
            return dg.Definitions()
        discovery = msgspec.json.decode(state_path.read_bytes(), type=Discovery)
        tables = self._tables(discovery)
        if not tables:
            return dg.Definitions()
        defs = self.definitions(
            ExternalTable(key, table.uri, table.description, table.metadata())
            for key, table in tables.items()
        )
        parts = [defs]
        assets: Any = defs.assets
        options: StorageOptions | dict[str, object] = self.storage_options or {}
        if self.maintenance is not None:
            parts.append(self.maintenance.definitions(assets=assets, storage_options=options))
        if self.health is not None:
            health = dict(self.health)
            asset = delta_health_asset(assets=assets, storage_options=options, **health)
            parts.append(dg.Definitions(assets=[asset]))
        return dg.Definitions.merge(*parts)

    def _tables(self, discovery: Discovery) -> dict[dg.AssetKey, DiscoveredTable]:
        tables: dict[dg.AssetKey, DiscoveredTable] = {}
        for table in discovery.tables:
            if not self._is_wanted(path_below(discovery.root, table.uri)):
                continue
            key = table_key(self.key_prefix, discovery.root, table.uri)
            if key in tables:
                raise InvalidArgument(
                    f"the tables {tables[key].uri} and {table.uri} map to the same asset key "
                    f"{key.to_user_string()}: exclude one of them"
                )
            tables[key] = table
        return tables

    def _is_wanted(self, path: str) -> bool:
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in self.include) and not any(
            fnmatch.fnmatchcase(path, pattern) for pattern in self.exclude
        )
