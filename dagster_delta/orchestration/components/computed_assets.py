"""Assets that a DeltaIOManager writes: computed by SQL, from changes, or loaded from files."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import dagster as dg
import pyarrow as pa
from pydantic import Field

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.components.delta_component import (
    AssetDeltaComponent,
    DeltaAttributes,
    StorageField,
    documented,
)
from dagster_delta.orchestration.components.scaffolders import (
    DeltaChangeFeedScaffolder,
    DeltaIngestionScaffolder,
    DeltaSqlScaffolder,
)
from dagster_delta.orchestration.incremental.applied_changes import ChangeFeedMode, Returns
from dagster_delta.orchestration.incremental.change_feed_assets import delta_change_feed_asset
from dagster_delta.orchestration.incremental.consumption import OnGap
from dagster_delta.orchestration.incremental.file_assets import (
    delta_files_asset,
    delta_files_sensor,
)
from dagster_delta.orchestration.incremental.file_loads import ChangedFiles
from dagster_delta.orchestration.incremental.landing_files import FileFormat
from dagster_delta.orchestration.io.sql_assets import delta_sql_asset
from dagster_delta.orchestration.maintenance.maintained_tables import delta_table_pool

_KIND_TAG = "dagster/kind/"


class ComputedAssetComponent(AssetDeltaComponent):
    """The asset of a component that computes rows."""

    asset: dg.ResolvedAssetSpec = Field(
        description="The asset. Its metadata has the options of the DeltaIOManager, such as mode "
        "and partition_expr.",
        examples=[{"key": "reports/delays", "metadata": {"mode": "append"}}],
    )
    io_manager_key: Annotated[
        str, documented("Key of the DeltaIOManager that writes the table.")
    ] = "io_manager"
    in_table_pool: Annotated[
        bool,
        documented(
            "Whether the asset runs in the concurrency pool of its table, and so never while the "
            "table is maintained, if the limit of the pool is 1."
        ),
    ] = False

    def asset_options(self, *kinds: str) -> dict[str, Any]:
        """Arguments of `dg.asset`."""
        spec = self.get_asset_spec(self.asset)
        given = {
            "key_prefix": list(spec.key.path[:-1]),
            "pool": delta_table_pool(spec.key) if self.in_table_pool else None,
            "deps": spec.deps,
            "description": spec.description,
            "metadata": spec.metadata,
            "group_name": spec.group_name,
            "owners": spec.owners,
            "code_version": spec.code_version,
            "automation_condition": spec.automation_condition,
            "partitions_def": spec.partitions_def,
            "freshness_policy": spec.freshness_policy,
            "tags": {k: v for k, v in spec.tags.items() if not k.startswith(_KIND_TAG)},
        }
        return {
            "name": spec.key.path[-1],
            "kinds": {"deltalake", *kinds, *spec.kinds},
            "io_manager_key": self.io_manager_key,
            **{name: value for name, value in given.items() if value},
        }


@dg.scaffold_with(DeltaSqlScaffolder)
class DeltaSqlComponent(ComputedAssetComponent):
    """An asset computed from other assets by a query in SQL, with the lineage of its columns.

    Examples:
        type: dagster_delta.DeltaSqlComponent
        attributes:
          asset: {key: reports/late_carriers, group_name: reports}
          upstream: {flights: raw/flights}
          sql: SELECT carrier, avg(arr_delay) AS delay FROM {flights} GROUP BY carrier
    """

    upstream: dict[str, str] = Field(
        description="Name in the query to the key of the asset.",
        examples=[{"flights": "raw/flights"}],
    )
    sql: Annotated[
        str | None,
        documented("One query, with its tables in braces.", examples=["SELECT * FROM {flights}"]),
    ] = None
    sql_file: Annotated[
        str | None,
        documented("Alternative: file with the query, relative to the folder of the component."),
    ] = None
    engine: Annotated[
        Literal["arrow", "spark"],
        documented("arrow: DuckDB in the process of the step, in its SQL; spark: Spark SQL."),
    ] = "arrow"
    memory_limit: Annotated[
        str, documented("Memory limit of DuckDB; what needs more goes to disk.")
    ] = "2GB"

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The asset.

        Raises:
            InvalidArgument: the attributes are inconsistent.
        """
        if (self.sql is None) == (self.sql_file is None):
            key = self.asset.key.to_user_string()
            raise InvalidArgument(f"{key} needs either sql or sql_file: give one of them")
        sql = self.sql
        if self.sql_file is not None:
            sql = _read(context.path / self.sql_file)
        asset = delta_sql_asset(
            sql=str(sql),
            upstream={
                name: dg.AssetKey.from_user_string(key) for name, key in self.upstream.items()
            },
            engine=self.engine,
            memory_limit=self.memory_limit,
            **self.asset_options("sql", "duckdb" if self.engine == "arrow" else "spark"),
        )
        return dg.Definitions(assets=[asset])


@dg.scaffold_with(DeltaChangeFeedScaffolder)
class DeltaChangeFeedComponent(ComputedAssetComponent):
    """An asset that is updated incrementally from the changes of another Delta table.

    Without a function, it is a copy of the upstream table, or of some of its columns.

    Examples:
        type: dagster_delta.DeltaChangeFeedComponent
        attributes:
          asset: {key: reports/late_flights}
          upstream: raw/flights
          keys: [id]
          function: lakehouse.transforms.late_flights
    """

    upstream: dg.ResolvedAssetKey = Field(
        description="Key of the asset whose table is read.", examples=["raw/flights"]
    )
    keys: Annotated[
        list[str],
        documented("Columns that identify the rows of this asset's table; for the mode merge."),
    ] = Field(default=[])
    mode: Annotated[ChangeFeedMode, documented("How rows are written: merge or append.")] = "merge"
    returns: Annotated[
        Returns, documented("Whether the function returns changes, or rows to insert or update.")
    ] = "changes"
    function: Annotated[
        str | None,
        documented(
            "Import path of a function with a parameter `changes`, as for "
            "`delta_change_feed_asset`. Default: changes are applied as they are.",
            examples=["lakehouse.transforms.late_flights"],
        ),
    ] = None
    table: Annotated[
        str | None, documented("Location of the upstream table, if no DeltaIOManager stores it.")
    ] = None
    storage_options: StorageField = None
    columns: Annotated[
        list[str] | None, documented("Columns of the upstream table. Default: all.")
    ] = None
    on_gap: Annotated[
        OnGap, documented("What to do if changes can no longer be read: refresh or fail.")
    ] = "refresh"

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """The asset.

        Raises:
            InvalidArgument: the attributes are inconsistent, or the function cannot be imported.
        """
        define = delta_change_feed_asset(
            self.upstream,
            keys=self.keys,
            mode=self.mode,
            returns=self.returns,
            table=self.table,
            storage_options=self.storage_options,
            columns=self.columns,
            on_gap=self.on_gap,
            **self.asset_options(),
        )
        function = _copy if self.function is None else _imported(self.function)
        return dg.Definitions(assets=[define(function)])


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


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"sql_file {file} cannot be read ({error}): give the path of a file in UTF-8, relative "
            "to the folder of the component"
        ) from error


def _copy(changes: pa.RecordBatchReader) -> pa.RecordBatchReader:
    return changes


def _imported(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"function {path!r} cannot be imported ({error}): give the path of a function in a "
            "module, such as lakehouse.transforms.late_flights"
        ) from error
    if not callable(function):
        raise InvalidArgument(f"function {path!r} is not a function")
    found: Callable[..., Any] = function
    return found
