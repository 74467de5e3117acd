"""`DeltaSensorComponent`: declared sensors that request a run when a table changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import Field

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.components.delta_component import (
    DeltaAttributes,
    DeltaComponent,
    StorageField,
)
from dagster_delta.orchestration.components.discovered_tables import table_key
from dagster_delta.orchestration.components.scaffolders import DeltaSensorScaffolder
from dagster_delta.orchestration.sensors.sensors import (
    DeltaSensorOptions,
    delta_change_feed_sensor,
    delta_table_sensor,
)
from dagster_delta.orchestration.storage_options import StorageOptions, plain_options
from dagster_delta.storage import open_store


class SensorOptions(DeltaAttributes):
    """Which commits to include, and what they run.

    The attributes without a description are those of `DeltaSensorOptions`.
    """

    passed_to = DeltaSensorOptions

    name: str
    """Name of the sensor."""
    target: str | list[str] | None = Field(
        default=None, examples=["group:reports", 'key:"reports/daily"+']
    )
    """Assets to materialize, in Dagster's asset selection syntax."""
    job_name: str | None = None
    """Alternative to target: name of a job to run."""
    change_feed: bool = False
    """Require the change data feed: a commit that it did not record is an error."""
    start_from: Literal["latest", "earliest"] | int = "latest"
    operations: list[str] | None = Field(default=None, examples=[["WRITE", "MERGE"]])
    partitions: dict[str, list[str | None]] | None = Field(
        default=None, examples=[{"country": ["AT", "CH"]}]
    )
    """Only these values of partition columns; null is a value."""
    columns: list[str] = Field(default=[])
    minimum_rows: int | None = None
    minimum_age_seconds: float | None = None
    partitions_def: Annotated[
        dg.PartitionsDefinition[Any] | None, dg.Resolver.default(model_field_type=str)
    ] = Field(
        default=None, examples=["{{ dg.DailyPartitionsDefinition(start_date='2024-01-01') }}"]
    )
    partition_expr: str | dict[str, str] | None = None
    run_tags: dict[str, str] = Field(default={})
    max_commits_per_tick: int = 100
    max_runs_per_tick: int = 100
    minimum_interval_seconds: int | None = None
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED
    description: str | None = None

    def sensor(
        self, tables: str | list[str], storage_options: StorageOptions | None, **further: Any
    ) -> dg.SensorDefinition:
        """The sensor on some tables; `further` are options that the YAML does not have."""
        given = {**self.arguments(), **further, "storage_options": storage_options or {}}
        if self.target is not None and self.job_name is not None:
            raise InvalidArgument(
                f"Sensor {self.name} runs either a target or a job: give one of them"
            )
        if self.target is not None:
            given["target"] = dg.AssetSelection.from_coercible(self.target)
        options: Any = {name: value for name, value in given.items() if value is not None}
        make = delta_change_feed_sensor if self.change_feed else delta_table_sensor
        return make(self.name, tables, **options)


@dg.scaffold_with(DeltaSensorScaffolder)
class DeltaSensorComponent(DeltaComponent, SensorOptions):
    """A sensor that requests runs when commits by any writer change the rows of tables.

    It watches some tables, or every table below a root. It runs assets or a job, or only reports
    commits on the assets of the tables, or both. The attributes without a description are those of
    `DeltaSensorOptions`.

    Examples:
        type: dagster_delta.DeltaSensorComponent
        attributes:
          name: flights_changed
          tables: s3://lake/raw/flights
          target: group:reports
          operations: [WRITE, MERGE]
          minimum_rows: 1000
    """

    tables: str | list[str] = Field(default=[], examples=["s3://lake/raw/x"])
    """Location of a table, or of several."""
    root: str | None = Field(default=None, examples=["s3://lake/raw"])
    discover_every_seconds: float = 300
    storage_options: StorageField = None
    asset_key: dg.ResolvedAssetKey | None = None
    """Report each commit of the table on this asset."""
    asset_key_prefix: list[str] | None = None
    """For a root: report each commit on the asset whose key is this prefix and the table's path
    below the root. Empty: without a prefix."""
    asset_event: Literal["materialization", "observation"] = "materialization"

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """The sensor.

        Raises:
            InvalidArgument: the attributes are inconsistent.
        """
        sensor = self.sensor(self.tables, self.storage_options, asset_key=self._asset_key())
        return dg.Definitions(sensors=[sensor])

    def _asset_key(self) -> dg.AssetKey | Callable[[str], dg.AssetKey] | None:
        prefix, root = self.asset_key_prefix, self.root
        if prefix is None:
            return self.asset_key
        if root is None or self.asset_key is not None:
            raise InvalidArgument(
                f"asset_key_prefix of sensor {self.name} goes with a root, and asset_key with one "
                "table"
            )
        options = self.storage_options
        return lambda uri: table_key(
            prefix, open_store(root, plain_options(options)).location.uri, uri
        )
