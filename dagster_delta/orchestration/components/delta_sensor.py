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
    documented,
)
from dagster_delta.orchestration.components.discovered_tables import table_key
from dagster_delta.orchestration.components.scaffolders import DeltaSensorScaffolder
from dagster_delta.orchestration.sensors.sensors import delta_change_feed_sensor, delta_table_sensor
from dagster_delta.orchestration.storage_options import StorageOptions, plain_options
from dagster_delta.storage import open_store

_OF_THE_DECLARATION = frozenset({"name", "assets", "job", "change_feed", "enabled"})
"""Fields that `delta_table_sensor` does not have, or has by another name."""


class SensorOptions(DeltaAttributes):
    """Which commits to include, and what they run."""

    name: str = Field(description="Name of the sensor.")
    assets: Annotated[
        str | list[str] | None,
        documented(
            "Assets to materialize, in Dagster's asset selection syntax.",
            examples=["group:reports", 'key:"reports/daily"+'],
        ),
    ] = None
    job: Annotated[str | None, documented("Alternative to assets: name of a job to run.")] = None
    change_feed: Annotated[
        bool,
        documented("Require the change data feed: a commit that it did not record is an error."),
    ] = False
    start_from: Annotated[
        Literal["latest", "earliest"] | int,
        documented("Where the first tick starts: latest, earliest or a version."),
    ] = "latest"
    operations: Annotated[
        list[str] | None,
        documented(
            "Only these operations. Operations that change no rows count only if named here.",
            examples=[["WRITE", "MERGE"]],
        ),
    ] = None
    partitions: Annotated[
        dict[str, list[str | None]] | None,
        documented(
            "Only these values of partition columns; null is a value.",
            examples=[{"country": ["AT", "CH"]}],
        ),
    ] = None
    columns: Annotated[list[str], documented("Only commits that change one of these columns.")] = (
        Field(default=[])
    )
    minimum_rows: Annotated[
        int | None, documented("Wait until pending commits have changed this many rows …")
    ] = None
    minimum_age_seconds: Annotated[
        float | None, documented("… or until the oldest of them was seen this many seconds ago.")
    ] = None
    partitions_def: Annotated[
        dg.PartitionsDefinition[Any] | None,
        documented(
            "Partitions definition of the target: one run per changed partition.",
            examples=["{{ dg.DailyPartitionsDefinition(start_date='2024-01-01') }}"],
            template=True,
        ),
    ] = None
    partition_expr: Annotated[
        str | dict[str, str] | None,
        documented(
            "Partition column of the table that maps to the partition key, or a mapping from "
            "dimension to column."
        ),
    ] = None
    run_tags: Annotated[dict[str, str], documented("Additional tags of every run.")] = Field(
        default={}
    )
    max_commits_per_tick: Annotated[
        int, documented("Maximum number of commits that one tick reads per table.")
    ] = 100
    max_runs_per_tick: Annotated[
        int, documented("Maximum number of runs that one tick requests.")
    ] = 100
    minimum_interval_seconds: Annotated[
        int | None, documented("Minimum number of seconds between two ticks.")
    ] = None
    enabled: Annotated[bool, documented("Whether the sensor is initially running.")] = False
    description: Annotated[str | None, documented("Description of the sensor.")] = None


@dg.scaffold_with(DeltaSensorScaffolder)
class DeltaSensorComponent(DeltaComponent, SensorOptions):
    """A sensor that requests runs when commits by any writer change the rows of tables.

    It watches some tables, or every table below a root. It runs assets or a job, or only reports
    commits on the assets of the tables, or both.

    Examples:
        type: dagster_delta.DeltaSensorComponent
        attributes:
          name: flights_changed
          tables: s3://lake/raw/flights
          assets: group:reports
          operations: [WRITE, MERGE]
          minimum_rows: 1000
    """

    tables: Annotated[
        str | list[str],
        documented("Location of a table, or of several.", examples=["s3://lake/raw/x"]),
    ] = Field(default=[])
    root: Annotated[
        str | None,
        documented(
            "Alternative: watch every table at or below this location.", examples=["s3://lake/raw"]
        ),
    ] = None
    discover_every_seconds: Annotated[
        float, documented("How often to look for new tables below the root.")
    ] = 300
    storage_options: StorageField = None
    asset_key: Annotated[
        dg.ResolvedAssetKey | None, documented("Report each commit of the table on this asset.")
    ] = None
    asset_key_prefix: Annotated[
        list[str] | None,
        documented(
            "For a root: report each commit on the asset whose key is this prefix and the"
            " table's path below the root. Empty: without a prefix."
        ),
    ] = None
    asset_event: Annotated[
        Literal["materialization", "observation"],
        documented(
            "Event type for reported commits; automation conditions react to materializations."
        ),
    ] = "materialization"

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """The sensor.

        Raises:
            InvalidArgument: the attributes are inconsistent.
        """
        further: dict[str, object] = {}
        if self.root is not None:
            further = {"root": self.root, "discover_every_seconds": self.discover_every_seconds}
        if (key := self._asset_key()) is not None:
            further |= {"asset_key": key, "asset_event": self.asset_event}
        options = SensorOptions(
            **{name: getattr(self, name) for name in SensorOptions.model_fields}
        )
        sensor = build_sensor(
            options, tables=self.tables, storage_options=self.storage_options, **further
        )
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


def build_sensor(
    options: SensorOptions,
    *,
    tables: str | list[str],
    storage_options: StorageOptions | None,
    **further: Any,
) -> dg.SensorDefinition:
    """The sensor."""
    if options.assets is not None and options.job is not None:
        raise InvalidArgument(
            f"Sensor {options.name} runs either assets or a job: give one of them"
        )
    given = {
        name: value
        for name in SensorOptions.model_fields
        if name not in _OF_THE_DECLARATION and (value := getattr(options, name)) is not None
    }
    if options.assets is not None:
        given["target"] = dg.AssetSelection.from_coercible(options.assets)
    if options.job is not None:
        given["job_name"] = options.job
    if options.enabled:
        given["default_status"] = dg.DefaultSensorStatus.RUNNING
    # The fields have the names of the options, which type checkers cannot verify.
    all_options: Any = {**given, **further, "storage_options": storage_options or {}}
    make = delta_change_feed_sensor if options.change_feed else delta_table_sensor
    return make(options.name, tables, **all_options)
