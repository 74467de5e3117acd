"""Assets that a DeltaIOManager writes: computed by SQL, from changes, or loaded from files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import dagster as dg
import pyarrow as pa
from pydantic import Field, ImportString, TypeAdapter

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.checks.asset_checks import delta_asset_checks
from dagster_delta.orchestration.components.check_options import CheckOptions
from dagster_delta.orchestration.components.delta_component import (
    AssetDeltaComponent,
    DeltaAttributes,
    StorageField,
    TableStorageField,
)
from dagster_delta.orchestration.components.scaffolders import (
    DeltaChangeFeedScaffolder,
    DeltaIngestionScaffolder,
    DeltaSqlScaffolder,
)
from dagster_delta.orchestration.incremental.change_feed_assets import (
    ChangeFeedMode,
    Returns,
    delta_change_feed_asset,
)
from dagster_delta.orchestration.incremental.consumption import OnGap
from dagster_delta.orchestration.incremental.file_assets import (
    ChangedFiles,
    LoadMode,
    delta_files_asset,
    delta_files_sensor,
)
from dagster_delta.orchestration.incremental.file_rows import FileFormat, NewColumns
from dagster_delta.orchestration.incremental.landing_files import OnBadFiles, OnBadRows
from dagster_delta.orchestration.io.asset_options import NAMESPACE
from dagster_delta.orchestration.io.sql_assets import delta_sql_asset
from dagster_delta.orchestration.maintenance.maintained_tables import delta_table_pool

_KIND_TAG = "dagster/kind/"
_FUNCTION: TypeAdapter[Callable[..., Any]] = TypeAdapter(ImportString[Callable[..., Any]])


class ComputedAssetComponent(AssetDeltaComponent):
    """The asset of a component that computes rows."""

    asset: dg.ResolvedAssetSpec = Field(
        examples=[{"key": "reports/delays", "metadata": {"mode": "append"}}],
        description="The asset. Its metadata has the options of the DeltaIOManager, such as mode "
        "and partition_expr.",
    )
    io_manager_key: str = Field(
        default="io_manager", description="Key of the DeltaIOManager that writes the table."
    )
    in_table_pool: bool = Field(
        default=False,
        description="Whether the asset runs in the concurrency pool of its table, and so never "
        "while the table is maintained, if the limit of the pool is 1.",
    )
    checks: CheckOptions | None = Field(
        default=None,
        description="Asset checks on the table. The expectations and audits in the metadata of the "
        "asset are checks in any case.",
    )

    def definitions(self, asset: dg.AssetsDefinition) -> dg.Definitions:
        """The asset with its checks."""
        options = {name.removeprefix(NAMESPACE) for name in asset.metadata_by_key[asset.key]}
        checks = []
        if self.checks is not None:
            checks = self.checks.checks(asset)
        elif options & {"expectations", "audits"}:
            checks = delta_asset_checks(asset, constraints=False)
        return dg.Definitions(assets=[asset], asset_checks=checks)

    def asset_options(self, *kinds: str) -> dict[str, Any]:
        """Arguments of `dg.asset`, and the attributes that the function for the asset takes."""
        spec = self.get_asset_spec(self.asset)
        passed_on = (
            *("deps", "description", "metadata", "group_name", "owners", "code_version"),
            *("automation_condition", "partitions_def", "freshness_policy"),
        )
        given = {
            "key_prefix": list(spec.key.path[:-1]),
            "pool": delta_table_pool(spec.key) if self.in_table_pool else None,
            "tags": {k: v for k, v in spec.tags.items() if not k.startswith(_KIND_TAG)},
            **{name: getattr(spec, name) for name in passed_on},
        }
        return {
            **self.arguments(),
            "name": spec.key.path[-1],
            "kinds": {"deltalake", *kinds, *spec.kinds},
            **{name: value for name, value in given.items() if value},
        }


@dg.scaffold_with(DeltaSqlScaffolder)
class DeltaSqlComponent(ComputedAssetComponent):
    """An asset computed from other assets by a query in SQL, with the lineage of its columns.

    The attributes without a description are arguments of `delta_sql_asset`.

    Examples:
        type: dagster_delta.DeltaSqlComponent
        attributes:
          asset: {key: reports/late_carriers, group_name: reports}
          upstream: {flights: raw/flights}
          sql: SELECT carrier, avg(arr_delay) AS delay FROM {flights} GROUP BY carrier
    """

    passed_to = delta_sql_asset

    upstream: dict[str, str] = Field(
        examples=[{"flights": "raw/flights"}],
        description="Name in the query to the key of the asset.",
    )
    sql: str | None = Field(
        default=None,
        examples=["SELECT * FROM {flights}"],
        description="One query, with its tables in braces.",
    )
    sql_file: str | None = Field(
        default=None,
        description="Alternative: file with the query, relative to the folder of the component.",
    )
    engine: Literal["arrow", "spark"] = "arrow"
    memory_limit: str = "2GB"

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The asset with its checks.

        Raises:
            InvalidArgument: the attributes are inconsistent.
        """
        if (self.sql is None) == (self.sql_file is None):
            key = self.asset.key.to_user_string()
            raise InvalidArgument(f"{key} needs either sql or sql_file: give one of them")
        options = self.asset_options("sql", "duckdb" if self.engine == "arrow" else "spark")
        keys = {name: dg.AssetKey.from_user_string(key) for name, key in self.upstream.items()}
        if self.sql_file is not None:
            options["sql"] = (context.path / self.sql_file).read_text(encoding="utf-8")
        return self.definitions(delta_sql_asset(**{**options, "upstream": keys}))


@dg.scaffold_with(DeltaChangeFeedScaffolder)
class DeltaChangeFeedComponent(ComputedAssetComponent):
    """An asset that is updated incrementally from the changes of another Delta table.

    Without a function, it is a copy of the upstream table, or of some of its columns. The
    attributes without a description are arguments of `delta_change_feed_asset`.

    Examples:
        type: dagster_delta.DeltaChangeFeedComponent
        attributes:
          asset: {key: reports/late_flights}
          upstream: raw/flights
          keys: [id]
          function: lakehouse.transforms.late_flights
    """

    passed_to = delta_change_feed_asset

    upstream: dg.ResolvedAssetKey = Field(
        examples=["raw/flights"], description="Key of the asset whose table is read."
    )
    keys: list[str] = Field(default=[])
    mode: ChangeFeedMode = "merge"
    returns: Returns = "changes"
    function: str | None = Field(
        default=None,
        examples=["lakehouse.transforms.late_flights"],
        description="Import path of a function with a parameter `changes`, as for "
        "`delta_change_feed_asset`. Default: changes are applied as they are.",
    )
    table: str | None = None
    storage_options: TableStorageField = None
    columns: list[str] | None = None
    upstream_partition_expr: str | dict[str, str] | None = None
    on_gap: OnGap = "refresh"
    max_bytes: int | None = 1024**3
    lineage: bool = True

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """The asset with its checks.

        Raises:
            InvalidArgument: the attributes are inconsistent.
            pydantic.ValidationError: the function cannot be imported.
        """
        define = delta_change_feed_asset(**self.asset_options())
        function = (
            _return_changes if self.function is None else _FUNCTION.validate_python(self.function)
        )
        return self.definitions(define(function))


class FilesSensorOptions(DeltaAttributes):
    """A sensor that runs the asset when files were added or changed."""

    passed_to = delta_files_sensor

    minimum_interval_seconds: int = 60
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED


@dg.scaffold_with(DeltaIngestionScaffolder)
class DeltaIngestionComponent(ComputedAssetComponent):
    """An asset of Parquet, CSV or JSON files that others put somewhere; each is loaded once.

    The sensor runs it when files arrive; the automation_condition of the asset is a schedule. The
    attributes without a description are arguments of `delta_files_asset`.

    Examples:
        type: dagster_delta.DeltaIngestionComponent
        attributes:
          asset: {key: raw/flights, metadata: {partition_by: day}}
          source: s3://landing/flights/*.csv
          columns: {id: BIGINT, day: DATE}
          sensor: {default_status: RUNNING}
    """

    passed_to = delta_files_asset

    source: str = Field(examples=["s3://landing/flights/*.csv", "/landing/**/*.json"])
    storage_options: StorageField = None
    format: FileFormat | None = None
    mode: LoadMode = "append"
    keys: list[str] = Field(default=[])
    columns: dict[str, str] | None = Field(default=None, examples=[{"id": "BIGINT", "day": "DATE"}])
    delimiter: str = ","
    encoding: str = "utf-8"
    changed_files: ChangedFiles = "skip"
    new_columns: NewColumns | None = None
    on_bad_rows: OnBadRows = "fail"
    on_bad_files: OnBadFiles = "fail"
    minimum_age_seconds: float = 0
    sensor: FilesSensorOptions | None = Field(
        default=None, description="A sensor that runs the asset when files arrive."
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """The asset with its checks and its sensor.

        Raises:
            InvalidArgument: the attributes are inconsistent.
        """
        asset = delta_files_asset(**self.asset_options())
        defined = self.definitions(asset)
        if self.sensor is None:
            return defined
        sensor = delta_files_sensor(
            f"{asset.key.to_python_identifier()}_files",
            self.source,
            target=[asset],
            storage_options=self.storage_options,
            minimum_age_seconds=self.minimum_age_seconds,
            **self.sensor.arguments(),
        )
        return dg.Definitions.merge(defined, dg.Definitions(sensors=[sensor]))


def _return_changes(changes: pa.RecordBatchReader) -> pa.RecordBatchReader:
    return changes
