"""The files and parameters of `dg scaffold defs` for each component."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field


class TableParams(BaseModel):
    """Parameters for a table."""

    uri: str = Field(description="Location of the table: s3://lake/raw/flights")
    key: str | None = Field(
        default=None, description="Key of the asset, as a/b; by default the name of the folder."
    )


class MaintenanceParams(BaseModel):
    """Parameters for the maintenance of a table."""

    uri: str = Field(description="Location of the table: s3://lake/raw/flights")
    name: str = Field(default="delta_maintenance", description="Name of the job or schedule.")
    cron: str | None = Field(default=None, description="When it runs: 0 3 * * *")


class SensorParams(BaseModel):
    """Parameters for a sensor."""

    uri: str = Field(description="Location of the table: s3://lake/raw/flights")
    name: str | None = Field(
        default=None, description="Name of the sensor; by default that of the folder."
    )
    assets: str = Field(default="*", description="What it runs: group:reports")


class LakeParams(BaseModel):
    """Parameters for the tables below a root."""

    root: str = Field(description="Location to look for tables at and below: s3://lake/raw")


class UpstreamParams(BaseModel):
    """Parameters for an asset computed from another one."""

    upstream: str = Field(description="Key of the upstream asset: raw/flights")
    key: str | None = Field(
        default=None, description="Key of the asset, as a/b; by default the name of the folder."
    )


class FilesParams(BaseModel):
    """Parameters for an asset of files."""

    source: str = Field(description="The files: s3://landing/flights/*.csv")
    key: str | None = Field(
        default=None, description="Key of the asset, as a/b; by default the name of the folder."
    )


def _declaring(
    params: type[BaseModel], attributes: Callable[[Any, str], dict[str, Any]]
) -> type[dg.Scaffolder[Any]]:
    """Writes a `defs.yaml` with the attributes of one component, from the parameters and the name
    of the folder, which names what has no other name.
    """

    class Declaration(dg.Scaffolder[Any]):
        @classmethod
        def get_scaffold_params(cls) -> type[BaseModel]:
            return params

        def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
            path = request.target_path
            folder = path.parent.name if request.append else path.name
            dg.scaffold_component(request, attributes(request.params, folder))

    return Declaration


def _maintenance(given: MaintenanceParams, _folder: str) -> dict[str, Any]:
    """With the switch that makes VACUUM delete files."""
    schedule = {} if given.cron is None else {"cron_schedule": given.cron}
    tables = {given.uri.rstrip("/").rsplit("/", 1)[-1]: given.uri}
    config = {"vacuum": {"dry_run": True}}
    return {"name": given.name, **schedule, "tables": tables, "config": config}


DeltaSqlScaffolder = _declaring(
    UpstreamParams,
    lambda given, folder: {
        "asset": {"key": given.key or folder},
        "upstream": {"source": given.upstream},
        "sql": "SELECT * FROM {source}",
    },
)
DeltaChangeFeedScaffolder = _declaring(
    UpstreamParams,
    lambda given, folder: {
        "asset": {"key": given.key or folder},
        "upstream": given.upstream,
        "mode": "append",
    },
)
DeltaIngestionScaffolder = _declaring(
    FilesParams,
    lambda given, folder: {
        "asset": {"key": given.key or folder},
        "source": given.source,
        "sensor": {"minimum_interval_seconds": 60},
    },
)
DeltaTableScaffolder = _declaring(
    TableParams,
    lambda given, folder: {
        "key": given.key or folder,
        "uri": given.uri,
        "checks": {"constraints": True},
    },
)
DeltaMaintenanceScaffolder = _declaring(MaintenanceParams, _maintenance)
DeltaSensorScaffolder = _declaring(
    SensorParams,
    lambda given, folder: {
        "name": given.name or folder,
        "tables": given.uri,
        "assets": given.assets,
    },
)
DeltaLakeScaffolder = _declaring(LakeParams, lambda given, _folder: {"root": given.root})
