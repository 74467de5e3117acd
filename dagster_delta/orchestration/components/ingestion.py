"""`DeltaIngestionComponent`: an asset of files that others put somewhere, and its sensor."""

from __future__ import annotations

from typing import Annotated, Literal

import dagster as dg
from pydantic import Field

from dagster_delta.orchestration.components.computed_assets import ComputedAssetComponent
from dagster_delta.orchestration.components.delta_component import (
    DeltaAttributes,
    StorageField,
    documented,
)
from dagster_delta.orchestration.components.scaffolders import DeltaIngestionScaffolder
from dagster_delta.orchestration.incremental.file_assets import (
    delta_files_asset,
    delta_files_sensor,
)
from dagster_delta.orchestration.incremental.file_loads import ChangedFiles
from dagster_delta.orchestration.incremental.landing_files import FileFormat


class FilesSensorOptions(DeltaAttributes):
    """A sensor that runs the asset when files were added or changed."""

    minimum_interval_seconds: Annotated[
        int, documented("Minimum number of seconds between two looks.")
    ] = 60
    enabled: Annotated[bool, documented("Whether the sensor is initially running.")] = False


@dg.scaffold_with(DeltaIngestionScaffolder)
class DeltaIngestionComponent(ComputedAssetComponent):
    """An asset of Parquet, CSV or JSON files that others put somewhere; each is loaded once.

    The sensor runs it when files arrive; the automation_condition of the asset is a schedule.

    Examples:
        type: dagster_delta.DeltaIngestionComponent
        attributes:
          asset: {key: raw/flights, metadata: {partition_by: day}}
          source: s3://landing/flights/*.csv
          columns: {id: BIGINT, day: DATE}
          sensor: {enabled: true}
    """

    source: str = Field(
        description="A file, a directory, or a pattern with *, ? and **. Names that begin with _ "
        "or . do not match.",
        examples=["s3://landing/flights/*.csv", "/landing/**/*.json"],
    )
    storage_options: StorageField = None
    format: Annotated[
        FileFormat | None,
        documented(
            "parquet, csv with a header line, or json with one object per line. Default: by the "
            "extension of each file; .gz, .bz2 or .zst may follow."
        ),
    ] = None
    mode: Annotated[
        Literal["append", "merge", "overwrite"],
        documented(
            "append adds the rows; merge updates and inserts them by keys; overwrite replaces all "
            "rows by those of the new files."
        ),
    ] = "append"
    keys: Annotated[list[str], documented("Columns that identify rows; for the mode merge.")] = (
        Field(default=[])
    )
    columns: Annotated[
        dict[str, str] | None,
        documented(
            "Columns to load, with their types in Spark SQL. Default: all of the files.",
            examples=[{"id": "BIGINT", "day": "DATE"}],
        ),
    ] = None
    delimiter: Annotated[str, documented("Of CSV files.")] = ","
    encoding: Annotated[str, documented("Of the text in CSV and JSON files.")] = "utf-8"
    changed_files: Annotated[
        ChangedFiles,
        documented("Whether files that change after they were loaded are loaded again."),
    ] = "skip"
    minimum_age_seconds: Annotated[
        float, documented("Younger files may still be written, and are left for the next run.")
    ] = 0
    sensor: Annotated[
        FilesSensorOptions | None, documented("A sensor that runs the asset when files arrive.")
    ] = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """The asset and its sensor.

        Raises:
            InvalidArgument: the attributes are inconsistent.
        """
        asset = delta_files_asset(
            source=self.source,
            mode=self.mode,
            keys=self.keys,
            storage_options=self.storage_options,
            format=self.format,
            columns=self.columns,
            delimiter=self.delimiter,
            encoding=self.encoding,
            changed_files=self.changed_files,
            minimum_age_seconds=self.minimum_age_seconds,
            **self.asset_options(),
        )
        sensors = []
        if self.sensor is not None:
            status = dg.DefaultSensorStatus
            sensors.append(
                delta_files_sensor(
                    f"{asset.key.to_python_identifier()}_files",
                    self.source,
                    target=[asset],
                    storage_options=self.storage_options,
                    minimum_age_seconds=self.minimum_age_seconds,
                    minimum_interval_seconds=self.sensor.minimum_interval_seconds,
                    default_status=status.RUNNING if self.sensor.enabled else status.STOPPED,
                )
            )
        return dg.Definitions(assets=[asset], sensors=sensors)
