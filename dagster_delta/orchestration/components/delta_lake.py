"""`DeltaLakeComponent`: every table below a root as an asset, discovered once and stored."""

from __future__ import annotations

import fnmatch
import logging
from pathlib import Path
from typing import Annotated

import dagster as dg
from dagster.components import DefsStateConfig, DefsStateConfigArgs, ResolvedDefsStateConfig
from pydantic import Field

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.components.check_options import (
    HealthOptions,
    build_checks,
    build_health,
)
from dagster_delta.orchestration.components.delta_component import (
    AssetDeltaComponent,
    StorageField,
    documented,
)
from dagster_delta.orchestration.components.delta_maintenance import (
    MaintenanceOptions,
    build_maintenance,
)
from dagster_delta.orchestration.components.delta_sensor import SensorOptions, build_sensor
from dagster_delta.orchestration.components.delta_table import TableAssetOptions, table_asset
from dagster_delta.orchestration.components.discovered_tables import (
    DiscoveredTable,
    Discovery,
    discover_tables,
    path_below,
    table_key,
)
from dagster_delta.orchestration.components.scaffolders import DeltaLakeScaffolder
from dagster_delta.orchestration.storage_options import plain_options

_log = logging.getLogger(__name__)


@dg.scaffold_with(DeltaLakeScaffolder)
class DeltaLakeComponent(AssetDeltaComponent, dg.StateBackedComponent, TableAssetOptions):
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
          sensor: {name: lake_changed, assets: "group:reports"}
    """

    root: str = Field(
        description="Location at and below which to look for tables.", examples=["s3://lake/raw"]
    )
    storage_options: StorageField = None
    key_prefix: Annotated[
        list[str],
        documented("Prefix of the asset keys; the rest is the table's path below the root."),
    ] = Field(default=[])
    include: Annotated[
        list[str],
        documented("Glob patterns; only tables whose path below the root matches one of them."),
    ] = Field(default=["*"])
    exclude: Annotated[
        list[str],
        documented("Glob patterns; no tables whose path below the root matches one of them."),
    ] = Field(default=[])
    maintenance: Annotated[
        MaintenanceOptions | None,
        documented("A job or schedule that maintains all these tables."),
    ] = None
    health: Annotated[
        HealthOptions | None,
        documented("An asset that reports the state of all these tables on one page."),
    ] = None
    sensor: Annotated[
        SensorOptions | None,
        documented(
            "A sensor on all these tables. It reports commits on the assets that are not "
            "observed, and runs assets or a job."
        ),
    ] = None
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
        state_path.write_text(discovery.to_json(), encoding="utf-8")

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
        discovery = Discovery.from_json(state_path.read_text(encoding="utf-8"))
        tables = self._tables(discovery)
        if not tables:
            return dg.Definitions()
        assets = [
            table_asset(
                self,
                self.get_asset_spec,
                key,
                table.uri,
                storage_options=self.storage_options,
                description=table.description,
                metadata=table.metadata(),
            )
            for key, table in tables.items()
        ]
        tables = {asset.key: table for asset, table in zip(assets, tables.values(), strict=True)}
        parts = [dg.Definitions(assets=assets), self._checks(tables)]
        if self.sensor is not None:
            parts.append(self._sensor(self.sensor, tables))
        if self.maintenance is not None:
            parts.append(
                build_maintenance(
                    self.maintenance, assets=assets, storage_options=self.storage_options or {}
                )
            )
        if self.health is not None:
            parts.append(build_health(self.health, assets, self.storage_options))
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

    def _checks(self, tables: dict[dg.AssetKey, DiscoveredTable]) -> dg.Definitions:
        if self.checks is None:
            return dg.Definitions()
        checks = [
            check
            for key, table in tables.items()
            for check in build_checks(self.checks, key, table.uri, self.storage_options)
        ]
        return dg.Definitions(asset_checks=checks)

    def _sensor(
        self, options: SensorOptions, tables: dict[dg.AssetKey, DiscoveredTable]
    ) -> dg.Definitions:
        keys = {table.uri: key for key, table in tables.items()}
        further: dict[str, object] = {} if self.observe else {"asset_key": keys.__getitem__}
        sensor = build_sensor(
            options, tables=list(keys), storage_options=self.storage_options, **further
        )
        return dg.Definitions(sensors=[sensor])
