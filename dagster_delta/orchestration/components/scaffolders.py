"""The files and parameters of `dg scaffold defs` for each component."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import click
import dagster as dg
from pydantic import BaseModel, Field, create_model, model_validator

_FOLDER = "name of the folder"


class _Asked(NamedTuple):
    """The value of a parameter, in the place where it stands in the attributes."""

    parameter: str
    description: str
    default: Any = ...
    """`...` if the parameter is required; None leaves the attribute out."""
    value: Callable[[str], Any] = str
    """What becomes of the parameter."""


_KEY = _Asked("key", "Key of the asset, as a/b; by default the name of the folder.", _FOLDER)
_TABLE = _Asked("uri", "Location of the table: s3://lake/raw/flights")
_UPSTREAM = _Asked("upstream", "Key of the upstream asset: raw/flights")


class _Parameters(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def _require_options(cls, given: Any) -> Any:  # noqa: ANN401
        # `dg` prints the errors of pydantic as JSON.
        for name, field in cls.model_fields.items():
            if field.is_required() and name not in given:
                raise click.UsageError(f"--{name} is missing. {field.description}")
        return given


def _make_scaffolder(**attributes: Any) -> type[dg.Scaffolder[Any]]:
    """Writes a `defs.yaml` with the attributes of one component."""
    fields: dict[str, Any] = {
        asked.parameter: (str, Field(description=asked.description))
        if asked.default is ...
        else (str | None, Field(default=None, description=asked.description))
        for asked in _list_parameters(attributes)
    }
    model: type[BaseModel] = create_model("Parameters", __base__=_Parameters, **fields)

    class Declaration(dg.Scaffolder[Any]):
        @classmethod
        def get_scaffold_params(cls) -> type[BaseModel]:
            return model

        def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
            path = request.target_path
            folder = path.parent.name if request.append else path.name
            dg.scaffold_component(
                request, _fill_parameters(attributes, dict(request.params), folder)
            )

    return Declaration


def _list_parameters(value: Any) -> list[_Asked]:  # noqa: ANN401
    if isinstance(value, dict):
        return [asked for inner in value.values() for asked in _list_parameters(inner)]
    return [value] if isinstance(value, _Asked) else []


def _fill_parameters(value: Any, given: dict[str, str | None], folder: str) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        filled = {key: _fill_parameters(inner, given, folder) for key, inner in value.items()}
        return {key: inner for key, inner in filled.items() if inner is not None}
    if not isinstance(value, _Asked):
        return value
    found = given[value.parameter]
    if not found and value.default is not ...:
        found = folder if value.default is _FOLDER else value.default
    return None if found is None else value.value(found)


DeltaSqlScaffolder = _make_scaffolder(
    asset={"key": _KEY}, upstream={"source": _UPSTREAM}, sql="SELECT * FROM {source}"
)
DeltaChangeFeedScaffolder = _make_scaffolder(asset={"key": _KEY}, upstream=_UPSTREAM, mode="append")
DeltaIngestionScaffolder = _make_scaffolder(
    asset={"key": _KEY},
    source=_Asked("source", "The files: s3://landing/flights/*.csv"),
    sensor={"minimum_interval_seconds": 60},
)
DeltaTableScaffolder = _make_scaffolder(key=_KEY, uri=_TABLE, checks={"constraints": True})
DeltaMaintenanceScaffolder = _make_scaffolder(
    name=_Asked("name", "Name of the job or schedule; by default that of the folder.", _FOLDER),
    cron_schedule=_Asked("cron", "When it runs: 0 3 * * *", None),
    tables=_TABLE._replace(value=lambda uri: {uri.rstrip("/").rsplit("/", 1)[-1]: uri}),
    # With the switch that makes VACUUM delete files.
    config={"vacuum": {"dry_run": True}},
)
DeltaMaintenanceSensorScaffolder = _make_scaffolder(
    name=_Asked("name", "Name of the sensor; by default that of the folder.", _FOLDER),
    root=_Asked("root", "Location to look for tables at and below: s3://lake/raw"),
)
DeltaSensorScaffolder = _make_scaffolder(
    name=_Asked("name", "Name of the sensor; by default that of the folder.", _FOLDER),
    tables=_TABLE,
    target=_Asked("target", "What it runs: group:reports", "*"),
)
DeltaLakeScaffolder = _make_scaffolder(
    root=_Asked("root", "Location to look for tables at and below: s3://lake/raw")
)
UnityCatalogScaffolder = _make_scaffolder(
    uri=_Asked("uri", "Address of the server: https://host"),
    token=_Asked("token", "Token, as a template of a variable.", "{{ env.UNITY_TOKEN }}"),
    catalog=_Asked("catalog", "The catalog whose tables become assets: main"),
)
