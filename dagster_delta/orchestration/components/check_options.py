"""Asset checks on a table and the asset of health, declared in a `defs.yaml`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import Field

from dagster_delta.evolution.column_definition import schema_of_types
from dagster_delta.orchestration.checks.asset_checks import delta_asset_checks
from dagster_delta.orchestration.components.delta_component import DeltaAttributes, documented
from dagster_delta.orchestration.maintenance.health_asset import delta_health_asset
from dagster_delta.orchestration.maintenance.maintained_tables import Asset
from dagster_delta.orchestration.storage_options import StorageOptions


class RowCountBounds(DeltaAttributes):
    """How many rows a table should have."""

    least: Annotated[int | None, documented("Minimum number of rows.")] = None
    most: Annotated[int | None, documented("Maximum number of rows.")] = None


class CheckOptions(DeltaAttributes):
    """The asset checks of a table."""

    constraints: Annotated[
        bool,
        documented(
            "Check what the table declares: NOT NULL, CHECK constraints, invariants and "
            "generated columns."
        ),
    ] = True
    unique: Annotated[
        list[str],
        documented("Columns whose combined values are unique, such as the keys of a merge."),
    ] = Field(default=[])
    row_count: Annotated[RowCountBounds | None, documented("Bounds on the number of rows.")] = None
    freshness_hours: Annotated[
        float | None, documented("Maximum age of the last change of rows, in hours.")
    ] = None
    columns: Annotated[
        dict[str, str],
        documented(
            "Expected columns, with their types in Spark SQL.",
            examples=[{"id": "BIGINT", "name": "STRING"}],
        ),
    ] = Field(default={})
    allow_more_columns: Annotated[
        bool, documented("Whether the table may have additional columns.")
    ] = False
    health: Annotated[
        dict[str, float],
        documented(
            "Upper bounds on health measures, by name.",
            examples=[{"small_file_share": 0.5}],
        ),
    ] = Field(default={})
    all_rows: Annotated[bool, documented("Check all rows every time, not only new ones.")] = False
    masked_columns: Annotated[
        list[str], documented("Columns whose values are hidden where failing rows are shown.")
    ] = Field(default=[])
    blocking: Annotated[
        bool | list[str],
        documented(
            "Whether the checks block downstream assets, or the names of the checks that do."
        ),
    ] = False
    severity: Annotated[Literal["ERROR", "WARN"], documented("Severity of a failed check.")] = (
        "ERROR"
    )


def build_checks(
    options: CheckOptions, key: dg.AssetKey, uri: str, storage_options: StorageOptions | None
) -> list[dg.AssetChecksDefinition]:
    """The checks of one table."""
    bounds = options.row_count
    hours = options.freshness_hours
    return delta_asset_checks(
        key,
        table=uri,
        storage_options=storage_options,
        constraints=options.constraints,
        unique=options.unique or None,
        row_count=None if bounds is None else (bounds.least, bounds.most),
        freshness=None if hours is None else dt.timedelta(hours=hours),
        schema=schema_of_types(options.columns) if options.columns else None,
        allow_more_columns=options.allow_more_columns,
        health=options.health or None,
        all_rows=options.all_rows,
        masked_columns=options.masked_columns,
        blocking=options.blocking,
        severity=dg.AssetCheckSeverity[options.severity],
    )


class HealthOptions(DeltaAttributes):
    """The health page of tables, and its thresholds."""

    name: Annotated[str, documented("Name of the asset.")] = "delta_health"
    key_prefix: Annotated[list[str], documented("Prefix of the key of the asset.")] = Field(
        default=[]
    )
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
    """The asset with its check."""
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
