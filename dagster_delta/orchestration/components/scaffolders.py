"""The files and parameters of `dg scaffold defs` for each component."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import dagster as dg
from pydantic import BaseModel, Field, create_model, model_validator

_KEY = "Key of the asset, as a/b; by default the name of the folder."
_TABLE = "Location of the table: s3://lake/raw/flights"


class _Parameters(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def _require_options(cls, given: Any) -> Any:  # noqa: ANN401
        # `dg` prints the errors of pydantic as JSON.
        for name, field in cls.model_fields.items():
            if field.is_required() and name not in given:
                raise click.UsageError(f"--{name} is missing. {field.description}")
        return given


def _scaffolder(
    attributes: Callable[[Any, str], dict[str, Any]],
    required: dict[str, str],
    optional: dict[str, str],
) -> type[dg.Scaffolder[Any]]:
    """Writes a `defs.yaml` with the attributes of one component, from the parameters and the name
    of the folder, which names what has no other name. Parameters are given with their descriptions.
    """
    fields: dict[str, Any] = {name: (str, Field(description=required[name])) for name in required}
    fields |= {
        name: (str | None, Field(default=None, description=optional[name])) for name in optional
    }
    model: type[BaseModel] = create_model("Parameters", __base__=_Parameters, **fields)

    class Declaration(dg.Scaffolder[Any]):
        @classmethod
        def get_scaffold_params(cls) -> type[BaseModel]:
            return model

        def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
            path = request.target_path
            folder = path.parent.name if request.append else path.name
            dg.scaffold_component(request, attributes(request.params, folder))

    return Declaration


def _maintenance(given: Any, _folder: str) -> dict[str, Any]:  # noqa: ANN401
    """With the switch that makes VACUUM delete files."""
    schedule = {} if given.cron is None else {"cron_schedule": given.cron}
    tables = {given.uri.rstrip("/").rsplit("/", 1)[-1]: given.uri}
    config = {"vacuum": {"dry_run": True}}
    return {
        "name": given.name or "delta_maintenance",
        **schedule,
        "tables": tables,
        "config": config,
    }


DeltaSqlScaffolder = _scaffolder(
    lambda given, folder: {
        "asset": {"key": given.key or folder},
        "upstream": {"source": given.upstream},
        "sql": "SELECT * FROM {source}",
    },
    {"upstream": "Key of the upstream asset: raw/flights"},
    {"key": _KEY},
)
DeltaChangeFeedScaffolder = _scaffolder(
    lambda given, folder: {
        "asset": {"key": given.key or folder},
        "upstream": given.upstream,
        "mode": "append",
    },
    {"upstream": "Key of the upstream asset: raw/flights"},
    {"key": _KEY},
)
DeltaIngestionScaffolder = _scaffolder(
    lambda given, folder: {
        "asset": {"key": given.key or folder},
        "source": given.source,
        "sensor": {"minimum_interval_seconds": 60},
    },
    {"source": "The files: s3://landing/flights/*.csv"},
    {"key": _KEY},
)
DeltaTableScaffolder = _scaffolder(
    lambda given, folder: {
        "key": given.key or folder,
        "uri": given.uri,
        "checks": {"constraints": True},
    },
    {"uri": _TABLE},
    {"key": _KEY},
)
DeltaMaintenanceScaffolder = _scaffolder(
    _maintenance,
    {"uri": _TABLE},
    {"name": "Name of the job or schedule.", "cron": "When it runs: 0 3 * * *"},
)
DeltaSensorScaffolder = _scaffolder(
    lambda given, folder: {
        "name": given.name or folder,
        "tables": given.uri,
        "target": given.target or "*",
    },
    {"uri": _TABLE},
    {
        "name": "Name of the sensor; by default that of the folder.",
        "target": "What it runs: group:reports",
    },
)
DeltaLakeScaffolder = _scaffolder(
    lambda given, _folder: {"root": given.root},
    {"root": "Location to look for tables at and below: s3://lake/raw"},
    {},
)
