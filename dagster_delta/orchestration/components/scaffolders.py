"""The files and parameters of `dg scaffold defs` for each component."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar, cast

import dagster as dg
from pydantic import BaseModel, Field

_P = TypeVar("_P", bound=BaseModel)


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


class _Scaffolder(dg.Scaffolder[_P]):
    """Writes a `defs.yaml` with the attributes of one component."""

    params: ClassVar[type[BaseModel]]

    @classmethod
    def get_scaffold_params(cls) -> type[_P]:
        """The class of the parameters."""
        return cast("type[_P]", cls.params)

    def scaffold(self, request: dg.ScaffoldRequest[_P]) -> None:
        """Write the declaration."""
        path = request.target_path
        folder = path.parent.name if request.append else path.name
        dg.scaffold_component(request, self._attributes(request.params, folder))

    def _attributes(self, params: _P, folder: str) -> dict[str, Any]:
        """The declaration; the name of the folder names what has no other name."""
        raise NotImplementedError


class DeltaSqlScaffolder(_Scaffolder[UpstreamParams]):
    """Declares an asset by a query that copies the upstream asset."""

    params = UpstreamParams

    def _attributes(self, params: UpstreamParams, folder: str) -> dict[str, Any]:
        query = {"upstream": {"source": params.upstream}, "sql": "SELECT * FROM {source}"}
        return {"asset": {"key": params.key or folder}, **query}


class DeltaChangeFeedScaffolder(_Scaffolder[UpstreamParams]):
    """Declares an incremental asset that appends every change."""

    params = UpstreamParams

    def _attributes(self, params: UpstreamParams, folder: str) -> dict[str, Any]:
        asset = {"key": params.key or folder}
        return {"asset": asset, "upstream": params.upstream, "mode": "append"}


class DeltaIngestionScaffolder(_Scaffolder[FilesParams]):
    """Declares an asset that appends the rows of new files, and its sensor."""

    params = FilesParams

    def _attributes(self, params: FilesParams, folder: str) -> dict[str, Any]:
        asset = {"key": params.key or folder}
        sensor = {"minimum_interval_seconds": 60}
        return {"asset": asset, "source": params.source, "sensor": sensor}


class DeltaTableScaffolder(_Scaffolder[TableParams]):
    """Declares one table."""

    params = TableParams

    def _attributes(self, params: TableParams, folder: str) -> dict[str, Any]:
        return {"key": params.key or folder, "uri": params.uri, "checks": {"constraints": True}}


class DeltaMaintenanceScaffolder(_Scaffolder[MaintenanceParams]):
    """Declares the maintenance of one table, with the switch that makes VACUUM delete files."""

    params = MaintenanceParams

    def _attributes(self, params: MaintenanceParams, folder: str) -> dict[str, Any]:  # noqa: ARG002
        schedule = {} if params.cron is None else {"cron_schedule": params.cron}
        tables = {params.uri.rstrip("/").rsplit("/", 1)[-1]: params.uri}
        config = {"vacuum": {"dry_run": True}}
        return {"name": params.name, **schedule, "tables": tables, "config": config}


class DeltaSensorScaffolder(_Scaffolder[SensorParams]):
    """Declares a sensor on one table."""

    params = SensorParams

    def _attributes(self, params: SensorParams, folder: str) -> dict[str, Any]:
        return {"name": params.name or folder, "tables": params.uri, "assets": params.assets}


class DeltaLakeScaffolder(_Scaffolder[LakeParams]):
    """Declares all tables below a root."""

    params = LakeParams

    def _attributes(self, params: LakeParams, folder: str) -> dict[str, Any]:  # noqa: ARG002
        return {"root": params.root}
