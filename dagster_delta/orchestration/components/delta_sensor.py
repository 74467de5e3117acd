"""`DeltaSensorComponent`: declared sensors that request a run when a table changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import dagster as dg
from pydantic import Field

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.components.delta_component import (
    DeltaComponent,
    StorageField,
    documented,
    documented_texts,
)
from dagster_delta.orchestration.components.discovered_tables import table_key
from dagster_delta.orchestration.components.scaffolders import DeltaSensorScaffolder
from dagster_delta.orchestration.components.sensor_options import SensorOptions, build_sensor
from dagster_delta.orchestration.storage_options import plain_options
from dagster_delta.storage import open_store


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
        documented_texts(
            "For a root: report each commit on the asset whose key is this prefix and the"
            " table's path below the root. Empty: without a prefix.",
            list[str],
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
