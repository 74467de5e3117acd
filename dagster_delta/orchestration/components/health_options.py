"""The asset that reports the health of tables, declared in a `defs.yaml`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import dagster as dg
from pydantic import ConfigDict, Field

from dagster_delta.orchestration.components.config_fields import documented, documented_texts
from dagster_delta.orchestration.maintenance.health_asset import delta_health_asset
from dagster_delta.orchestration.maintenance.maintained_tables import Asset
from dagster_delta.orchestration.storage_options import StorageOptions

__all__ = ["HealthOptions", "build_health"]


class HealthOptions(dg.Model, dg.Resolvable):
    """The health page of tables, and its thresholds."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    name: Annotated[str, documented("Name of the asset.")] = "delta_health"
    key_prefix: Annotated[
        list[str], documented_texts("Prefix of the key of the asset.", list[str])
    ] = Field(default=[])
    group_name: Annotated[str | None, documented("Group of the asset.")] = None
    thresholds: Annotated[
        dict[str, float | None],
        documented(
            "Upper bounds on health measures, by name; null disables a default.",
            examples=[{"num_small_files": 50, "partition_skew": 20}],
        ),
    ] = Field(default={})
    automation_condition: Annotated[
        dg.AutomationCondition[Any] | None,
        documented(
            "When to report.",
            examples=["{{ dg.AutomationCondition.on_cron('0 6 * * *') }}"],
            template=True,
        ),
    ] = None


def build_health(
    options: HealthOptions, assets: Iterable[Asset], storage_options: StorageOptions | None
) -> dg.Definitions:
    """The asset with its check.

    Raises:
        InvalidArgument: there are no tables, or a threshold has an unknown name.
    """
    asset = delta_health_asset(
        options.name,
        assets=assets,
        storage_options=storage_options,
        thresholds=options.thresholds,
        key_prefix=options.key_prefix or None,
        group_name=options.group_name,
        automation_condition=options.automation_condition,
    )
    return dg.Definitions(assets=[asset])
