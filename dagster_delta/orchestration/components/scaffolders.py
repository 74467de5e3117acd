"""The files and parameters of `dg scaffold defs` for each component."""

from __future__ import annotations

from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

__all__ = [
    "DeltaChangeFeedScaffolder",
    "DeltaIngestionScaffolder",
    "DeltaLakeScaffolder",
    "DeltaMaintenanceScaffolder",
    "DeltaSensorScaffolder",
    "DeltaSqlScaffolder",
    "DeltaTableScaffolder",
]


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


class DeltaSqlScaffolder(dg.Scaffolder[UpstreamParams]):
    """Declares an asset by a query."""

    @classmethod
    def get_scaffold_params(cls) -> type[UpstreamParams]:
        """The class of the parameters."""
        return UpstreamParams

    def scaffold(self, request: dg.ScaffoldRequest[UpstreamParams]) -> None:
        """Write the declaration, with a query that copies the upstream asset."""
        key, upstream = request.params.key or _folder(request), request.params.upstream
        attributes = {"upstream": {"source": upstream}, "sql": "SELECT * FROM {source}"}
        _write(request, {"asset": {"key": key}, **attributes})


class DeltaChangeFeedScaffolder(dg.Scaffolder[UpstreamParams]):
    """Declares an incremental asset."""

    @classmethod
    def get_scaffold_params(cls) -> type[UpstreamParams]:
        """The class of the parameters."""
        return UpstreamParams

    def scaffold(self, request: dg.ScaffoldRequest[UpstreamParams]) -> None:
        """Write the declaration of an asset that appends every change."""
        key, upstream = request.params.key or _folder(request), request.params.upstream
        _write(request, {"asset": {"key": key}, "upstream": upstream, "mode": "append"})


class FilesParams(BaseModel):
    """Parameters for an asset of files."""

    source: str = Field(description="The files: s3://landing/flights/*.csv")
    key: str | None = Field(
        default=None, description="Key of the asset, as a/b; by default the name of the folder."
    )


class DeltaIngestionScaffolder(dg.Scaffolder[FilesParams]):
    """Declares an asset of files and its sensor."""

    @classmethod
    def get_scaffold_params(cls) -> type[FilesParams]:
        """The class of the parameters."""
        return FilesParams

    def scaffold(self, request: dg.ScaffoldRequest[FilesParams]) -> None:
        """Write the declaration of an asset that appends the rows of new files."""
        key, source = request.params.key or _folder(request), request.params.source
        sensor = {"minimum_interval_seconds": 60}
        _write(request, {"asset": {"key": key}, "source": source, "sensor": sensor})


class DeltaTableScaffolder(dg.Scaffolder[TableParams]):
    """Declares one table."""

    @classmethod
    def get_scaffold_params(cls) -> type[TableParams]:
        """The class of the parameters."""
        return TableParams

    def scaffold(self, request: dg.ScaffoldRequest[TableParams]) -> None:
        """Write the declaration."""
        key = request.params.key or _folder(request)
        _write(request, {"key": key, "uri": request.params.uri, "checks": {"constraints": True}})


class DeltaMaintenanceScaffolder(dg.Scaffolder[MaintenanceParams]):
    """Declares the maintenance of one table."""

    @classmethod
    def get_scaffold_params(cls) -> type[MaintenanceParams]:
        """The class of the parameters."""
        return MaintenanceParams

    def scaffold(self, request: dg.ScaffoldRequest[MaintenanceParams]) -> None:
        """Write the declaration, including the switch that makes VACUUM delete files."""
        params = request.params
        attributes: dict[str, object] = {"name": params.name}
        if params.cron is not None:
            attributes["cron_schedule"] = params.cron
        attributes["tables"] = {params.uri.rstrip("/").rsplit("/", 1)[-1]: params.uri}
        attributes["config"] = {"vacuum": {"dry_run": True}}
        _write(request, attributes)


class DeltaSensorScaffolder(dg.Scaffolder[SensorParams]):
    """Declares a sensor on one table."""

    @classmethod
    def get_scaffold_params(cls) -> type[SensorParams]:
        """The class of the parameters."""
        return SensorParams

    def scaffold(self, request: dg.ScaffoldRequest[SensorParams]) -> None:
        """Write the declaration."""
        params = request.params
        name = params.name or _folder(request)
        _write(request, {"name": name, "tables": params.uri, "assets": params.assets})


class DeltaLakeScaffolder(dg.Scaffolder[LakeParams]):
    """Declares all tables below a root."""

    @classmethod
    def get_scaffold_params(cls) -> type[LakeParams]:
        """The class of the parameters."""
        return LakeParams

    def scaffold(self, request: dg.ScaffoldRequest[LakeParams]) -> None:
        """Write the declaration."""
        _write(request, {"root": request.params.root})


def _folder(request: dg.ScaffoldRequest[Any]) -> str:
    path = request.target_path
    return path.parent.name if request.append else path.name


def _write(request: dg.ScaffoldRequest[Any], attributes: dict[str, object]) -> None:
    dg.scaffold_component(request, attributes)
