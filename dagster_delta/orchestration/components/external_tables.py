"""Components of tables that others write: assets with checks, sensors and maintenance, of one table
or of every table below a root.
"""

from __future__ import annotations

import fnmatch
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import dagster as dg
import msgspec
from dagster.components import DefsStateConfig, DefsStateConfigArgs, ResolvedDefsStateConfig
from pydantic import Field

from dagster_delta.errors import DeltaError, InvalidArgument
from dagster_delta.orchestration.checks.health_asset import delta_health_asset
from dagster_delta.orchestration.components.check_options import CheckOptions
from dagster_delta.orchestration.components.delta_component import (
    AssetDeltaComponent,
    DeltaAttributes,
    DeltaComponent,
    MaintenanceConfigField,
    StorageField,
    TableStorageField,
    Template,
)
from dagster_delta.orchestration.components.scaffolders import (
    DeltaLakeScaffolder,
    DeltaMaintenanceScaffolder,
    DeltaMaintenanceSensorScaffolder,
    DeltaSensorScaffolder,
    DeltaTableScaffolder,
)
from dagster_delta.orchestration.maintenance.jobs import (
    delta_maintenance_job,
    delta_maintenance_schedule,
)
from dagster_delta.orchestration.maintenance.operations import DeltaMaintenanceConfig
from dagster_delta.orchestration.metadata_keys import RawMetadata
from dagster_delta.orchestration.op_outputs import find_lasting_tables
from dagster_delta.orchestration.sensors.maintenance_sensor import delta_maintenance_sensor
from dagster_delta.orchestration.sensors.observations import (
    check_freshness_policy,
    delta_asset_spec,
    observable_delta_asset,
)
from dagster_delta.orchestration.sensors.sensors import (
    DeltaSensorOptions,
    delta_change_feed_sensor,
    delta_table_sensor,
)
from dagster_delta.orchestration.sensors.table_watcher import AssetEventKind
from dagster_delta.orchestration.storage_options import GivenStorage, plain_options
from dagster_delta.orchestration.table_metadata import DEFAULT_HISTORY, table_schema
from dagster_delta.storage import open_store
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.table_discovery import DeclaredTable

_log = logging.getLogger(__name__)

_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_.-]")

# Opening a table waits for storage, not for the CPU.
_TABLES_AT_ONCE = 16


class SensorOptions(DeltaAttributes):
    """Which commits to include, and what they run.

    The attributes without a description are those of `DeltaSensorOptions`.
    """

    passed_to = DeltaSensorOptions

    name: str = Field(description="Name of the sensor.")
    target: str | list[str] | None = Field(
        default=None,
        examples=["group:reports", 'key:"reports/daily"+'],
        description="Assets to materialize, in Dagster's asset selection syntax.",
    )
    job_name: str | None = Field(
        default=None, description="Alternative to target: name of a job to run."
    )
    change_feed: bool = Field(
        default=False,
        description="Require the change data feed: a commit that it did not record is an error.",
    )
    start_from: Literal["latest", "earliest"] | int = "latest"
    operations: list[str] | None = Field(default=None, examples=[["WRITE", "MERGE"]])
    partitions: dict[str, list[str | None]] | None = Field(
        default=None,
        examples=[{"country": ["AT", "CH"]}],
        description="Only these values of partition columns; null is a value.",
    )
    columns: list[str] = Field(default=[])
    minimum_rows: int | None = None
    minimum_age_seconds: float | None = None
    partitions_def: Template[dg.PartitionsDefinition[Any]] = Field(
        default=None, examples=["{{ dg.DailyPartitionsDefinition(start_date='2024-01-01') }}"]
    )
    partition_expr: str | dict[str, str] | None = None
    run_tags: dict[str, str] = Field(default={})
    max_commits_per_tick: int = 100
    max_runs_per_tick: int = 100
    fail_missing_after_seconds: float | None = None
    minimum_interval_seconds: int | None = None
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED
    description: str | None = None

    def sensor(
        self, tables: str | list[str], storage_options: GivenStorage | None, **further: Any
    ) -> dg.SensorDefinition:
        """The sensor on some tables; `further` are options that the YAML does not have."""
        given = {**self.arguments(), **further, "storage_options": storage_options or {}}
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

    tables: str | list[str] = Field(
        default=[], examples=["s3://lake/raw/x"], description="Location of a table, or of several."
    )
    root: str | None = Field(default=None, examples=["s3://lake/raw"])
    discover_every_seconds: float = 300
    storage_options: TableStorageField = None
    asset_key: dg.ResolvedAssetKey | None = Field(
        default=None, description="Report each commit of the table on this asset."
    )
    asset_key_prefix: list[str] | None = Field(
        default=None,
        description="For a root: report each commit on the asset whose key is this prefix and the "
        "table's path below the root. Empty: without a prefix.",
    )
    asset_event: AssetEventKind = "materialization"

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


class MaintenanceOptions(DeltaAttributes):
    """The maintenance of tables, and its schedule."""

    passed_to = delta_maintenance_job

    name: str = Field(
        default="delta_maintenance",
        description="Name of the job; with a cron schedule, name of the schedule, whose job is "
        "called <name>_job.",
    )
    cron_schedule: str | None = Field(
        default=None,
        examples=["0 3 * * *"],
        description="Cron expression of the schedule. Default: no schedule, only a job for the "
        "Launchpad.",
    )
    execution_timezone: str | None = Field(
        default=None, description="Time zone of the cron schedule; UTC by default."
    )
    default_status: dg.DefaultScheduleStatus = Field(
        default=dg.DefaultScheduleStatus.STOPPED,
        description="Whether the schedule is initially running.",
    )
    config: MaintenanceConfigField = DeltaMaintenanceConfig()
    spark: str | None = Field(
        default=None, description="Key of the SparkSessionResource, for the engine spark."
    )
    description: str | None = Field(default=None, description="Description of the job.")
    tags: dict[str, str] = Field(default={}, description="Tags of the job.")

    def definitions(self, **job_options: Any) -> dg.Definitions:
        """The job, or the schedule with its job; `job_options` has what the YAML does not have."""
        given = {"description": self.description, "tags": self.tags}
        job_options |= {name: value for name, value in given.items() if value}
        job_options |= self.arguments()
        if self.cron_schedule is None:
            return dg.Definitions(jobs=[delta_maintenance_job(**job_options)])
        schedule = delta_maintenance_schedule(
            cron_schedule=self.cron_schedule,
            execution_timezone=self.execution_timezone,
            default_status=self.default_status,
            **job_options,
        )
        return dg.Definitions(schedules=[schedule])


@dg.scaffold_with(DeltaMaintenanceScaffolder)
class DeltaMaintenanceComponent(DeltaComponent, MaintenanceOptions):
    """A job that optimizes, vacuums and checkpoints tables, one step per table, and its schedule.

    For the tables below a root, use `maintenance` of `DeltaLakeComponent`.

    Examples:
        type: dagster_delta.DeltaMaintenanceComponent
        attributes:
          name: nightly
          cron_schedule: 0 3 * * *
          tables:
            raw/flights: s3://lake/raw/flights
          config:
            vacuum:
              dry_run: false
    """

    tables: dict[str, str] = Field(
        examples=[{"raw/flights": "s3://lake/raw/flights"}],
        description="Tables by name, with their locations.",
    )
    storage_options: TableStorageField = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """The job, or the schedule with its job.

        Raises:
            InvalidArgument: there are no tables, or two have the same name.
        """
        return self.definitions()


@dg.scaffold_with(DeltaMaintenanceSensorScaffolder)
class DeltaMaintenanceSensorComponent(DeltaComponent, DeltaAttributes):
    """A sensor that maintains the tables that need it, worst first, and its job.

    The attributes without a description are arguments of `delta_maintenance_sensor`.

    Examples:
        type: dagster_delta.DeltaMaintenanceSensorComponent
        attributes:
          name: upkeep
          root: s3://lake
          small_files: 500
          at_most_bytes_per_day: 500000000000
    """

    passed_to = delta_maintenance_sensor

    name: str = "delta_maintenance_sensor"
    tables: dict[str, str] | None = Field(
        default=None, examples=[{"raw/flights": "s3://lake/raw/flights"}]
    )
    root: str | None = None
    storage_options: TableStorageField = None
    small_files: int | None = 100
    deleted_rows: float | None = 0.2
    log_bytes: int | None = 64 * 1024**2
    at_most_bytes_per_day: int | None = None
    config: MaintenanceConfigField = DeltaMaintenanceConfig()
    spark: str | None = None
    minimum_interval_seconds: int = 3600
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """The sensor with its job.

        Raises:
            InvalidArgument: there are no tables, or no limit.
        """
        # Null turns a limit off, and has no other default then.
        limits = {
            name: getattr(self, name) for name in ("small_files", "deleted_rows", "log_bytes")
        }
        return dg.Definitions(sensors=[delta_maintenance_sensor(**{**self.arguments(), **limits})])


class ExternalTablesComponent(AssetDeltaComponent):
    """Tables written outside Dagster, as assets with their checks and a sensor."""

    storage_options: TableStorageField = None
    group_name: str | None = Field(default=None, description="Group of the asset.")
    owners: list[str] = Field(
        default=[],
        examples=[["team:data", "ada@example.com"]],
        description="Owners of the asset: e-mail addresses or teams.",
    )
    tags: dict[str, str] = Field(default={}, description="Tags of the asset.")
    kinds: list[str] = Field(default=[], description="Kinds of the asset in addition to deltalake.")
    observe: bool = Field(
        default=True,
        description="Whether the asset is observable. Set to false if a sensor, or the runs that "
        "write the table, report its materializations.",
    )
    automation_condition: Template[dg.AutomationCondition[Any]] = Field(
        default=None,
        examples=["{{ dg.AutomationCondition.on_cron('*/5 * * * *') }}"],
        description="When to observe it.",
    )
    freshness_policy: Template[dg.FreshnessPolicy] = Field(
        default=None,
        examples=["{{ dg.FreshnessPolicy.time_window(fail_window=datetime.timedelta(hours=24)) }}"],
        description="How long ago the last commit may be. It needs observe: false and a sensor, "
        "which reports each commit as a materialization.",
    )
    show_history: int = Field(
        default=DEFAULT_HISTORY,
        description="Number of recent commits to show in every observation, each with a link to "
        "its run.",
    )
    checks: CheckOptions | None = Field(default=None, description="Asset checks on the table.")
    sensor: SensorOptions | None = Field(
        default=None,
        description="A sensor on the tables. It reports commits on the assets that are not "
        "observed, and runs assets or a job.",
    )

    @property
    def storage(self) -> GivenStorage:
        """What the tables are opened with."""
        return self.storage_options or {}

    def definitions(self, specs: Mapping[str, dg.AssetSpec]) -> dg.Definitions:
        """The assets of tables, by location, with their checks and the sensor."""
        assets = []
        checks = []
        keys: dict[str, dg.AssetKey] = {}
        for uri, spec in specs.items():
            asset = self._define_asset(uri, spec)
            assets.append(asset)
            keys[uri.rstrip("/")] = asset.key
            if self.checks is not None:
                checks += self.checks.checks(asset.key, table=uri, storage_options=self.storage)
        sensors = []
        if self.sensor is not None:
            reported = None if self.observe else keys.__getitem__
            sensors = [self.sensor.sensor(list(keys), self.storage, asset_key=reported)]
        return dg.Definitions(assets=assets, asset_checks=checks, sensors=sensors)

    def _define_asset(self, uri: str, spec: dg.AssetSpec) -> dg.AssetsDefinition | dg.AssetSpec:
        if self.automation_condition is not None and not self.observe:
            raise InvalidArgument(
                f"{spec.key.to_user_string()} has an automation_condition, which says when to "
                "observe it, and observe is off: set one of them"
            )
        if self.observe:
            check_freshness_policy(spec.key, self.freshness_policy)
        spec = spec.merge_attributes(tags=self.tags, owners=self.owners, kinds=set(self.kinds))
        spec = spec.replace_attributes(
            group_name=self.group_name,
            automation_condition=self.automation_condition,
            freshness_policy=self.freshness_policy,
        )
        spec = self.get_asset_spec(spec)
        if not self.observe:
            return spec
        asset = observable_delta_asset(
            spec.key,
            uri,
            storage_options=self.storage,
            show_history=self.show_history,
        )
        return asset.map_asset_specs(lambda _: spec)


@dg.scaffold_with(DeltaTableScaffolder)
class DeltaTableComponent(ExternalTablesComponent):
    """A Delta table written outside Dagster, as an asset with observations, checks and a sensor.

    Its data version is the last commit that changed rows, so that downstream automation conditions
    react to changed rows only, and ignore maintenance. Loading definitions reads nothing.

    Examples:
        type: dagster_delta.DeltaTableComponent
        attributes:
          key: raw/flights
          uri: s3://lake/raw/flights
          owners: ["team:data"]
          automation_condition: "{{ dg.AutomationCondition.on_cron('*/5 * * * *') }}"
          checks: {unique: [id], row_count: [1, null], freshness: {hours: 24}}
          sensor: {name: flights_changed, target: "group:reports"}
    """

    key: dg.ResolvedAssetKey = Field(examples=["raw/flights"], description="Key of the asset.")
    uri: str = Field(examples=["s3://lake/raw/flights"], description="Location of the table.")
    description: str | None = Field(default=None, description="Description of the asset.")
    metadata: dict[str, Any] = Field(default={}, description="Additional metadata of the asset.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """The asset with its checks and its sensor.

        Raises:
            InvalidArgument: the attributes are inconsistent.
        """
        spec = delta_asset_spec(
            self.key, self.uri, description=self.description, metadata=self.metadata
        )
        return self.definitions({self.uri: spec})


class HealthOptions(DeltaAttributes):
    """The health page of tables, and its thresholds."""

    passed_to = delta_health_asset

    name: str = Field(default="delta_health", description="Name of the asset.")
    key_prefix: list[str] = Field(default=[], description="Prefix of the key of the asset.")
    group_name: str | None = Field(default=None, description="Group of the asset.")
    thresholds: dict[str, float | None] = Field(
        default={}, examples=[{"num_small_files": 50, "partition_skew": 20}]
    )
    automation_condition: Template[dg.AutomationCondition[Any]] = Field(
        default=None,
        examples=["{{ dg.AutomationCondition.on_cron('0 6 * * *') }}"],
        description="When to report.",
    )


class DiscoveredTablesComponent(ExternalTablesComponent, dg.StateBackedComponent):
    """Tables that are looked for when the state is refreshed, as assets."""

    storage_options: StorageField = None
    key_prefix: list[str] = Field(
        default=[], description="Prefix of the asset keys; the rest is the path of the table."
    )
    include: list[str] = Field(
        default=["*"],
        description="Glob patterns; only tables whose path matches one of them.",
    )
    exclude: list[str] = Field(
        default=[], description="Glob patterns; no tables whose path matches one of them."
    )
    maintenance: MaintenanceOptions | None = Field(
        default=None, description="A job or schedule that maintains all these tables."
    )
    health: HealthOptions | None = Field(
        default=None, description="An asset that reports the state of all these tables on one page."
    )
    defs_state: ResolvedDefsStateConfig = DefsStateConfigArgs.local_filesystem()

    @property
    def place(self) -> str:
        """Where the tables are looked for."""
        raise NotImplementedError

    def specs_of_state(self, state: bytes) -> dict[str, dg.AssetSpec]:
        """The assets of the tables, by location. Raises msgspec.DecodeError for another state."""
        raise NotImplementedError

    @property
    def defs_state_config(self) -> DefsStateConfig:
        """Where the state is kept."""
        return DefsStateConfig.from_args(
            self.defs_state, default_key=f"{type(self).__name__}[{self.place}]"
        )

    def build_defs_from_state(
        self,
        context: dg.ComponentLoadContext,  # noqa: ARG002
        state_path: Path | None,
    ) -> dg.Definitions:
        """The assets of the discovered tables, with their checks, maintenance and sensor.

        Raises:
            InvalidArgument: the attributes are inconsistent, or another release wrote the state.
        """
        if state_path is None:
            _log.warning(
                "the tables below %s were not looked for yet: run `dg utils refresh-defs-state`",
                self.place,
            )
            return dg.Definitions()
        try:
            specs = self.specs_of_state(state_path.read_bytes())
        except msgspec.DecodeError as error:
            raise InvalidArgument(
                f"the tables below {self.place} were looked for by another release: run "
                "`dg utils refresh-defs-state`"
            ) from error
        if not specs:
            return dg.Definitions()
        defs = self.definitions(specs)
        parts = [defs]
        assets: Any = defs.assets
        if self.maintenance is not None:
            parts.append(self.maintenance.definitions(assets=assets, storage_options=self.storage))
        if self.health is not None:
            health = dict(self.health)
            asset = delta_health_asset(assets=assets, storage_options=self.storage, **health)
            parts.append(dg.Definitions(assets=[asset]))
        return dg.Definitions.merge(*parts)

    def is_wanted(self, path: str) -> bool:
        """Whether the patterns include a table."""
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in self.include) and not any(
            fnmatch.fnmatchcase(path, pattern) for pattern in self.exclude
        )


@dg.scaffold_with(DeltaLakeScaffolder)
class DeltaLakeComponent(DiscoveredTablesComponent):
    """Every Delta table at or below a root, as an asset with its columns and comments.

    The tables are discovered when the state is refreshed: by `dg dev`, or by
    `dg utils refresh-defs-state` when an image is built. Loading definitions does not access
    storage. The path of a table is that below the root.

    Examples:
        type: dagster_delta.DeltaLakeComponent
        attributes:
          root: s3://lake
          exclude: ["scratch/*"]
          group_name: lake
          maintenance: {name: nightly, cron_schedule: 0 3 * * *}
          health: {automation_condition: "{{ dg.AutomationCondition.on_cron('0 6 * * *') }}"}
          sensor: {name: lake_changed, target: "group:reports"}
    """

    root: str = Field(
        examples=["s3://lake/raw"], description="Location at and below which to look for tables."
    )

    @property
    def place(self) -> str:
        """The root."""
        return self.root

    def write_state_to_path(self, state_path: Path) -> None:
        """Discover the tables, and store the result.

        Raises:
            StorageFailure: the root cannot be listed.
        """
        discovery = discover_tables(self.root, plain_options(self.storage_options))
        state_path.write_bytes(msgspec.json.format(msgspec.json.encode(discovery), indent=1))

    def specs_of_state(self, state: bytes) -> dict[str, dg.AssetSpec]:
        """The assets of the tables, by location."""
        discovery = msgspec.json.decode(state, type=Discovery)
        uris: dict[dg.AssetKey, str] = {}
        specs = {}
        for uri, declared in discovery.tables.items():
            if not self.is_wanted(path_below(discovery.root, uri)):
                continue
            key = table_key(self.key_prefix, discovery.root, uri)
            if key in uris:
                raise InvalidArgument(
                    f"the tables {uris[key]} and {uri} map to the same asset key "
                    f"{key.to_user_string()}: exclude one of them"
                )
            uris[key] = uri
            specs[uri] = _discovered_spec(key, uri, declared)
        return specs


class Discovery(msgspec.Struct, frozen=True):
    """The tables discovered below a root."""

    root: str
    """Location of the root, in its store's spelling."""
    tables: dict[str, DeclaredTable | None]
    """By location: what the latest version declares; None if the table could not be opened."""


def discover_tables(root: str, storage_options: Mapping[str, object]) -> Discovery:
    """The tables at or below a root, without those of op outputs.

    A table that cannot be opened is included, without its columns; the log says why.
    """
    uris = find_lasting_tables(root, storage_options)
    with ThreadPoolExecutor(_TABLES_AT_ONCE) as threads:
        found = threads.map(lambda uri: _read_declaration(uri, storage_options), uris)
        tables = dict(zip(uris, found, strict=True))
    return Discovery(open_store(root, storage_options).location.uri.rstrip("/"), tables)


def _read_declaration(uri: str, storage_options: Mapping[str, object]) -> DeclaredTable | None:
    try:
        table = DeltaTable(uri, storage_options=storage_options)
        declared = DeclaredTable(table.protocol(), table.metadata())
        table_schema(declared)
    except DeltaError as error:
        _log.warning("the columns of %s stay unknown: %s", uri, error)
        return None
    return declared


def _discovered_spec(key: dg.AssetKey, uri: str, declared: DeclaredTable | None) -> dg.AssetSpec:
    if declared is None:
        return delta_asset_spec(key, uri)
    columns = table_schema(declared)
    shown: RawMetadata = {"dagster/column_schema": dg.MetadataValue.table_schema(columns)}
    return delta_asset_spec(key, uri, description=declared.metadata.description, metadata=shown)


def path_below(root: str, uri: str) -> str:
    """Path of a table relative to the root, both in their store's spelling; empty for the root
    itself.
    """
    root, uri = root.rstrip("/"), uri.rstrip("/")
    if uri != root and not uri.startswith(f"{root}/"):
        raise InvalidArgument(f"The table {uri} does not lie below {root}")
    return uri[len(root) + 1 :]


def table_key(prefix: Sequence[str], root: str, uri: str) -> dg.AssetKey:
    """Key of the asset of a table: the prefix, and its path below the root.

    A table at the root itself is named by the last part of its location. Characters that Dagster
    does not accept become underscores.
    """
    path = path_below(root, uri) or uri.rstrip("/").rsplit("/", 1)[-1]
    return asset_key_of_parts(prefix, path.split("/"))


def asset_key_of_parts(prefix: Sequence[str], parts: Sequence[str]) -> dg.AssetKey:
    """Key of an asset; characters that Dagster does not accept become underscores."""
    return dg.AssetKey([*prefix, *(_NOT_IN_KEYS.sub("_", part) for part in parts)])
