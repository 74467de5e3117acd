"""The asset checks of a table, as attributes of a component."""

from __future__ import annotations

import datetime as dt
from typing import Literal

import dagster as dg
from pydantic import Field

from dagster_delta.orchestration.checks.asset_checks import delta_asset_checks
from dagster_delta.orchestration.components.delta_component import DeltaAttributes
from dagster_delta.orchestration.io.asset_options import AssetReference
from dagster_delta.orchestration.storage_options import GivenStorage
from dagster_delta.table.spelling import schema_of


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
    freshness: dict[Literal["days", "hours", "minutes"], float] | None = Field(
        default=None, examples=[{"days": 1, "hours": 12}]
    )
    columns: dict[str, str] = Field(
        default={},
        examples=[{"id": "BIGINT", "name": "STRING"}],
        description="Expected columns, with their types in Spark SQL.",
    )
    allow_more_columns: bool = False
    health: dict[str, float] = Field(default={}, examples=[{"small_file_share": 0.5}])
    anomalies: dict[Literal["rows", "bytes", "age"], float] = Field(
        default={}, examples=[{"rows": 3, "age": 3}]
    )
    training_commits: int = 10
    all_rows: bool = False
    cron: str | None = Field(default=None, examples=["0 * * * *"])
    cron_timezone: str = "UTC"
    masked_columns: list[str] = Field(default=[])
    blocking: bool | list[str] = False
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR

    def checks(
        self,
        asset: AssetReference,
        *,
        table: str | None = None,
        storage_options: GivenStorage | None = None,
    ) -> list[dg.AssetChecksDefinition]:
        """The checks of one table; the arguments are those of `delta_asset_checks`."""
        options = self.arguments()
        if self.freshness is not None:
            options["freshness"] = dt.timedelta(**self.freshness)
        if self.columns:
            options["schema"] = schema_of(self.columns)
        return delta_asset_checks(asset, table=table, storage_options=storage_options, **options)
