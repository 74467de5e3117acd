"""`DeltaTableComponent`: an external table, declared as an asset, and its checks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import dagster as dg
from pydantic import Field

from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.column_definition import schema_of_types
from dagster_delta.orchestration.checks.asset_checks import delta_asset_checks
from dagster_delta.orchestration.components.delta_component import (
    AssetDeltaComponent,
    Condition,
    DeltaAttributes,
    StorageField,
)
from dagster_delta.orchestration.components.delta_sensor import SensorOptions
from dagster_delta.orchestration.components.scaffolders import DeltaTableScaffolder
from dagster_delta.orchestration.metadata_keys import RawMetadataValue
from dagster_delta.orchestration.sensors.observations import (
    delta_asset_spec,
    observable_delta_asset,
)
from dagster_delta.orchestration.storage_options import StorageOptions
from dagster_delta.orchestration.table_history import DEFAULT_HISTORY


class MaximumAge(DeltaAttributes):
    """An age, as arguments of `datetime.timedelta`."""

    days: float = 0
    """Days."""
    hours: float = 0
    """Hours, in addition to the days."""
    minutes: float = 0
    """Minutes, in addition to both."""


class CheckOptions(DeltaAttributes):
    """The asset checks of a table.

    The attributes without a description are arguments of `delta_asset_checks`.
    """

    passed_to = delta_asset_checks

    constraints: bool = True
    unique: list[str] | None = None
    row_count: list[int | None] | None = Field(
        default=None, min_length=2, max_length=2, examples=[[1, None]]
    )
    freshness: MaximumAge | None = None
    columns: dict[str, str] = Field(default={}, examples=[{"id": "BIGINT", "name": "STRING"}])
    """Expected columns, with their types in Spark SQL."""
    allow_more_columns: bool = False
    health: dict[str, float] = Field(default={}, examples=[{"small_file_share": 0.5}])
    all_rows: bool = False
    masked_columns: list[str] = Field(default=[])
    blocking: bool | list[str] = False
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR

    def checks(
        self, key: dg.AssetKey, uri: str, storage_options: StorageOptions | None
    ) -> list[dg.AssetChecksDefinition]:
        """The checks of one table."""
        options = self.arguments()
        if self.freshness is not None:
            options["freshness"] = dt.timedelta(**dict(self.freshness))
        if self.columns:
            options["schema"] = schema_of_types(self.columns)
        return delta_asset_checks(key, table=uri, storage_options=storage_options, **options)


class FreshnessOptions(DeltaAttributes):
    """How long ago the last commit of a table may be."""

    fail_hours: float
    """Older: the asset is overdue."""
    warn_hours: float | None = None
    """Older: the asset is shown as a warning."""

    def policy(self) -> dg.FreshnessPolicy:
        """The freshness policy."""
        warn = None if self.warn_hours is None else dt.timedelta(hours=self.warn_hours)
        fail = dt.timedelta(hours=self.fail_hours)
        return dg.FreshnessPolicy.time_window(fail_window=fail, warn_window=warn)


class ExternalTable(NamedTuple):
    """A table and its asset."""

    key: dg.AssetKey
    uri: str
    description: str | None
    metadata: Mapping[str, RawMetadataValue]


class ExternalTablesComponent(AssetDeltaComponent):
    """Tables written outside Dagster, as assets with their checks and a sensor."""

    storage_options: StorageField = None
    group_name: str | None = None
    """Group of the asset."""
    owners: list[str] = Field(default=[], examples=[["team:data", "ada@example.com"]])
    """Owners of the asset: e-mail addresses or teams."""
    tags: dict[str, str] = Field(default={})
    """Tags of the asset."""
    kinds: list[str] = Field(default=[])
    """Kinds of the asset in addition to deltalake."""
    observe: bool = True
    """Whether the asset is observable. Set to false if a sensor, or the runs that write the table,
    report its materializations."""
    automation_condition: Condition = Field(
        default=None, examples=["{{ dg.AutomationCondition.on_cron('*/5 * * * *') }}"]
    )
    """When to observe it."""
    freshness: FreshnessOptions | None = None
    """How long ago the last commit may be, as a freshness policy of the asset. It needs observe:
    false and a sensor, which reports each commit as a materialization."""
    show_history: int = DEFAULT_HISTORY
    """Number of recent commits to show in every observation, each with a link to its run."""
    checks: CheckOptions | None = None
    """Asset checks on the table."""
    sensor: SensorOptions | None = None
    """A sensor on the tables. It reports commits on the assets that are not observed, and runs
    assets or a job."""

    def definitions(self, tables: Iterable[ExternalTable]) -> dg.Definitions:
        """The assets, with their checks and the sensor."""
        assets = []
        checks = []
        keys: dict[str, dg.AssetKey] = {}
        for table in tables:
            asset = self._asset(table)
            assets.append(asset)
            keys[table.uri.rstrip("/")] = asset.key
            if self.checks is not None:
                checks += self.checks.checks(asset.key, table.uri, self.storage_options)
        sensors = []
        if self.sensor is not None:
            reported = None if self.observe else keys.__getitem__
            sensors = [self.sensor.sensor(list(keys), self.storage_options, asset_key=reported)]
        return dg.Definitions(assets=assets, asset_checks=checks, sensors=sensors)

    def _asset(self, table: ExternalTable) -> dg.AssetsDefinition | dg.AssetSpec:
        if self.automation_condition is not None and not self.observe:
            raise InvalidArgument(
                f"{table.key.to_user_string()} has an automation_condition, which says when to "
                "observe it, and observe is off: set one of them"
            )
        if self.freshness is not None and self.observe:
            raise InvalidArgument(
                f"{table.key.to_user_string()} has freshness, which Dagster evaluates on "
                "materializations, and an observed asset has none: set observe: false and declare "
                "a sensor, which reports each commit as a materialization"
            )
        same = ("group_name", "tags", "owners", "kinds", "automation_condition")
        spec = delta_asset_spec(
            table.key,
            table.uri,
            description=table.description,
            metadata=table.metadata,
            freshness_policy=None if self.freshness is None else self.freshness.policy(),
            **{name: getattr(self, name) for name in same},
        )
        spec = self.get_asset_spec(spec)
        if not self.observe:
            return spec
        asset = observable_delta_asset(
            spec.key,
            table.uri,
            storage_options=self.storage_options,
            show_history=self.show_history,
        )
        return asset.map_asset_specs(lambda _: spec)


@dg.scaffold_with(DeltaTableScaffolder)
class DeltaTableComponent(ExternalTablesComponent):
    """A Delta table written outside Dagster, as an asset with observations, checks and a sensor.

    Its data version is the last commit that changed rows, so that downstream automation conditions
    react to changed rows only, and ignore maintenance. Loading definitions reads nothing.

    Examples:
        type: dagster_delta.DeltaTableComponent
        attributes:
          key: raw/flights
          uri: s3://lake/raw/flights
          owners: ["team:data"]
          automation_condition: "{{ dg.AutomationCondition.on_cron('*/5 * * * *') }}"
          checks: {unique: [id], row_count: [1, null], freshness: {hours: 24}}
          sensor: {name: flights_changed, target: "group:reports"}
    """

    key: dg.ResolvedAssetKey = Field(examples=["raw/flights"])
    """Key of the asset."""
    uri: str = Field(examples=["s3://lake/raw/flights"])
    """Location of the table."""
    description: str | None = None
    """Description of the asset."""
    metadata: dict[str, Any] = Field(default={})
    """Additional metadata of the asset."""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """The asset with its checks and its sensor.

        Raises:
            InvalidArgument: the attributes are inconsistent.
        """
        return self.definitions(
            [ExternalTable(self.key, self.uri, self.description, self.metadata)]
        )
