"""Components: tables, computed assets, files, upkeep and sensors, declared in a `defs.yaml`."""

from __future__ import annotations

from dagster_delta.orchestration.components.computed_assets import (
    DeltaChangeFeedComponent,
    DeltaIngestionComponent,
    DeltaSqlComponent,
)
from dagster_delta.orchestration.components.delta_lake import DeltaLakeComponent
from dagster_delta.orchestration.components.delta_maintenance import DeltaMaintenanceComponent
from dagster_delta.orchestration.components.delta_sensor import DeltaSensorComponent
from dagster_delta.orchestration.components.delta_table import DeltaTableComponent

__all__ = [
    "DeltaChangeFeedComponent",
    "DeltaIngestionComponent",
    "DeltaLakeComponent",
    "DeltaMaintenanceComponent",
    "DeltaSensorComponent",
    "DeltaSqlComponent",
    "DeltaTableComponent",
]
