"""`DeltaTableComponent`: an external table, declared as an asset."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import dagster as dg
from pydantic import Field

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.components.check_options import CheckOptions, build_checks
from dagster_delta.orchestration.components.delta_component import (
    AssetDeltaComponent,
    DeltaAttributes,
    StorageField,
    documented,
)
from dagster_delta.orchestration.components.delta_sensor import SensorOptions, build_sensor
from dagster_delta.orchestration.components.scaffolders import DeltaTableScaffolder
from dagster_delta.orchestration.metadata_keys import RawMetadataValue
from dagster_delta.orchestration.sensors.observations import (
    delta_asset_spec,
    observable_delta_asset,
)
from dagster_delta.orchestration.table_history import DEFAULT_HISTORY


class FreshnessOptions(DeltaAttributes):
    """How long ago the last commit of a table may be."""

    fail_hours: float = Field(description="Older: the asset is overdue.")
    warn_hours: Annotated[float | None, documented("Older: the asset is shown as a warning.")] = (
        None
    )

    def policy(self) -> dg.FreshnessPolicy:
        """The freshness policy."""
        warn = None if self.warn_hours is None else dt.timedelta(hours=self.warn_hours)
        fail = dt.timedelta(hours=self.fail_hours)
        return dg.FreshnessPolicy.time_window(fail_window=fail, warn_window=warn)


class TableAssetOptions(DeltaAttributes):
    """Options of the assets of tables, and their checks."""

    group_name: Annotated[str | None, documented("Group of the asset.")] = None
    owners: Annotated[
        list[str],
        documented(
            "Owners of the asset: e-mail addresses or teams.",
            examples=[["team:data", "ada@example.com"]],
        ),
    ] = Field(default=[])
    tags: Annotated[dict[str, str], documented("Tags of the asset.")] = Field(default={})
    kinds: Annotated[list[str], documented("Kinds of the asset in addition to deltalake.")] = Field(
        default=[]
    )
    observe: Annotated[
        bool,
        documented(
            "Whether the asset is observable. Set to false if a sensor, or the runs that write "
            "the table, report its materializations."
        ),
    ] = True
    automation_condition: Annotated[
        dg.AutomationCondition[Any] | None,
        documented(
            "When to observe it.",
            examples=["{{ dg.AutomationCondition.on_cron('*/5 * * * *') }}"],
            template=True,
        ),
    ] = None
    freshness: Annotated[
        FreshnessOptions | None,
        documented(
            "How long ago the last commit may be, as a freshness policy of the asset. It needs "
            "observe: false and a sensor, which reports each commit as a materialization."
        ),
    ] = None
    show_history: Annotated[
        int,
        documented(
            "Number of recent commits to show in every observation, each with a link to its run."
        ),
    ] = DEFAULT_HISTORY
    checks: Annotated[CheckOptions | None, documented("Asset checks on the table.")] = None


@dg.scaffold_with(DeltaTableScaffolder)
class DeltaTableComponent(AssetDeltaComponent, TableAssetOptions):
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
          checks: {unique: [id], freshness_hours: 24}
          sensor: {name: flights_changed, assets: "group:reports"}
    """

    key: dg.ResolvedAssetKey = Field(description="Key of the asset.", examples=["raw/flights"])
    uri: str = Field(description="Location of the table.", examples=["s3://lake/raw/flights"])
    storage_options: StorageField = None
    description: Annotated[str | None, documented("Description of the asset.")] = None
    metadata: Annotated[dict[str, Any], documented("Additional metadata of the asset.")] = Field(
        default={}
    )
    sensor: Annotated[
        SensorOptions | None,
        documented(
            "A sensor on the table. It reports commits on the asset if that is not observed, and "
            "runs assets or a job."
        ),
    ] = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """The asset with its checks and its sensor.

        Raises:
            InvalidArgument: the attributes are inconsistent.
        """
        asset = table_asset(
            self,
            self.get_asset_spec,
            self.key,
            self.uri,
            storage_options=self.storage_options,
            description=self.description,
            metadata=self.metadata,
        )
        checks = []
        if self.checks is not None:
            checks = build_checks(self.checks, asset.key, self.uri, self.storage_options)
        sensors = []
        if self.sensor is not None:
            further = {} if self.observe else {"asset_key": asset.key}
            sensor = build_sensor(
                self.sensor, tables=self.uri, storage_options=self.storage_options, **further
            )
            sensors.append(sensor)
        return dg.Definitions(assets=[asset], asset_checks=checks, sensors=sensors)


def table_asset(
    options: TableAssetOptions,
    translate: Callable[[dg.AssetSpec], dg.AssetSpec],
    key: dg.AssetKey,
    uri: str,
    *,
    storage_options: StorageField,
    description: str | None,
    metadata: Mapping[str, RawMetadataValue],
) -> dg.AssetsDefinition | dg.AssetSpec:
    """The asset of a table."""
    if options.automation_condition is not None and not options.observe:
        raise InvalidArgument(
            f"{key.to_user_string()} has an automation_condition, which says when to observe it, "
            "and observe is off: set one of them"
        )
    if options.freshness is not None and options.observe:
        raise InvalidArgument(
            f"{key.to_user_string()} has freshness, which Dagster evaluates on materializations, "
            "and an observed asset has none: set observe: false and declare a sensor, which "
            "reports each commit as a materialization"
        )
    looks: dict[str, Any] = {
        "description": description,
        "group_name": options.group_name,
        "metadata": metadata,
        "tags": options.tags,
        "owners": options.owners,
        "kinds": options.kinds,
        "automation_condition": options.automation_condition,
    }
    if options.freshness is not None:
        looks["freshness_policy"] = options.freshness.policy()
    spec = translate(delta_asset_spec(key, uri, **looks))
    if not options.observe:
        return spec
    asset = observable_delta_asset(
        spec.key, uri, storage_options=storage_options, show_history=options.show_history
    )
    return asset.map_asset_specs(lambda _: spec)
