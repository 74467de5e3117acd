"""Delta Lake tables in Dagster, on the library's own implementation of the Delta protocol.

Names are imported when they are first used: using a table does not import Dagster, and a Spark
executor does not import Dagster or start anything.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from dagster_delta._version import __version__

if TYPE_CHECKING:
    from dagster_delta.engines.spark.session.session import ship_package
    from dagster_delta.errors import DeltaError
    from dagster_delta.evolution.column_definition import Column, Identity
    from dagster_delta.orchestration.catalogs import (
        CatalogResource,
        GlueCatalogResource,
        UnityCatalogResource,
    )
    from dagster_delta.orchestration.checks.asset_checks import delta_asset_checks
    from dagster_delta.orchestration.checks.health_asset import delta_health_asset
    from dagster_delta.orchestration.components.catalog_tables import UnityCatalogComponent
    from dagster_delta.orchestration.components.computed_assets import (
        DeltaChangeFeedComponent,
        DeltaIngestionComponent,
        DeltaSqlComponent,
    )
    from dagster_delta.orchestration.components.external_tables import (
        DeltaLakeComponent,
        DeltaMaintenanceComponent,
        DeltaMaintenanceSensorComponent,
        DeltaSensorComponent,
        DeltaTableComponent,
    )
    from dagster_delta.orchestration.definition_checks import check_definitions
    from dagster_delta.orchestration.incremental.change_feed_assets import (
        ChangeFeedConfig,
        delta_change_feed_asset,
    )
    from dagster_delta.orchestration.incremental.file_assets import (
        delta_files_asset,
        delta_files_sensor,
    )
    from dagster_delta.orchestration.incremental.upstream_changes import UpstreamChanges
    from dagster_delta.orchestration.io.audits import Audit, delta_metadata
    from dagster_delta.orchestration.io.column_lineage import UpstreamColumns, sql_column_lineage
    from dagster_delta.orchestration.io.io_manager import DeltaIOManager
    from dagster_delta.orchestration.io.merge_config import (
        MergeConfig,
        MergeOperationsConfig,
        MergeType,
    )
    from dagster_delta.orchestration.io.openlineage import openlineage_dataset
    from dagster_delta.orchestration.io.sql_assets import delta_sql_asset
    from dagster_delta.orchestration.io.type_handlers import TableInput, TypeHandler
    from dagster_delta.orchestration.maintenance.branch_job import (
        DeltaBranchConfig,
        delta_branch_job,
    )
    from dagster_delta.orchestration.maintenance.jobs import (
        delta_clone_job,
        delta_maintenance_job,
        delta_maintenance_schedule,
        delta_restore_job,
    )
    from dagster_delta.orchestration.maintenance.maintained_tables import delta_table_pool
    from dagster_delta.orchestration.maintenance.operations import (
        CheckpointConfig,
        CleanLogConfig,
        CloneConfig,
        DeltaCloneConfig,
        DeltaMaintenanceConfig,
        DeltaRestoreConfig,
        FsckConfig,
        OptimizeConfig,
        ReorgConfig,
        RestoreConfig,
        RetentionConfig,
        VacuumConfig,
        checkpoint_op,
        clean_log_op,
        clone_op,
        fsck_op,
        history_op,
        optimize_op,
        reorg_op,
        restore_op,
        vacuum_op,
    )
    from dagster_delta.orchestration.op_outputs import OpOutputsConfig, delta_op_outputs_job
    from dagster_delta.orchestration.pipes import report_delta_commit
    from dagster_delta.orchestration.resources import DeltaTableResource, SparkSessionResource
    from dagster_delta.orchestration.schema_changes import (
        DeltaSchemaChangeConfig,
        SchemaChangeKind,
        delta_schema_change_job,
    )
    from dagster_delta.orchestration.sensors.maintenance_sensor import delta_maintenance_sensor
    from dagster_delta.orchestration.sensors.observations import observable_delta_asset
    from dagster_delta.orchestration.sensors.sensors import (
        DeltaSensorOptions,
        delta_change_feed_sensor,
        delta_table_sensor,
    )
    from dagster_delta.orchestration.sensors.table_watcher import DeltaCommitRange, TableChanges
    from dagster_delta.orchestration.storage_options import (
        AzureStorageOptions,
        FsspecStorageOptions,
        GcsStorageOptions,
        LocalStorageOptions,
        S3StorageOptions,
        StorageOptions,
    )
    from dagster_delta.parquet.variants import (
        variants_from_json,
        variants_from_python,
        variants_to_json,
        variants_to_python,
    )
    from dagster_delta.sql.expectation import Expectation
    from dagster_delta.streaming.data_source import register_delta_log
    from dagster_delta.streaming.sink import DeltaSink, delta_sink
    from dagster_delta.table.branches.branch import Branch, find_branches
    from dagster_delta.table.branches.publish import Publication
    from dagster_delta.table.delta_table import DeltaTable
    from dagster_delta.table.operations.fsck import MissingFiles
    from dagster_delta.table.operations.health import TableHealth
    from dagster_delta.table.operations.rewrite_files import OptimizeResult
    from dagster_delta.table.operations.unreferenced_files import UnreferencedFiles
    from dagster_delta.table.operations.vacuum import VacuumResult
    from dagster_delta.table.read.change_data_feed import ChangeDataFeed
    from dagster_delta.table.read.scan import Scan
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.slices import Range, Slice
    from dagster_delta.table.transaction.commit_result import CommitResult
    from dagster_delta.table.transaction.retries import ConflictRetries
    from dagster_delta.table.transaction.staged_write import StagedWrite
    from dagster_delta.table.transaction.transaction import Transaction

__all__ = [
    "Audit",
    "AzureStorageOptions",
    "Branch",
    "CatalogResource",
    "ChangeDataFeed",
    "ChangeFeedConfig",
    "CheckpointConfig",
    "CleanLogConfig",
    "CloneConfig",
    "Column",
    "CommitResult",
    "ConflictRetries",
    "DeltaBranchConfig",
    "DeltaChangeFeedComponent",
    "DeltaCloneConfig",
    "DeltaCommitRange",
    "DeltaError",
    "DeltaIOManager",
    "DeltaIngestionComponent",
    "DeltaLakeComponent",
    "DeltaMaintenanceComponent",
    "DeltaMaintenanceConfig",
    "DeltaMaintenanceSensorComponent",
    "DeltaRestoreConfig",
    "DeltaSchemaChangeConfig",
    "DeltaSensorComponent",
    "DeltaSensorOptions",
    "DeltaSink",
    "DeltaSqlComponent",
    "DeltaTable",
    "DeltaTableComponent",
    "DeltaTableResource",
    "Expectation",
    "FsckConfig",
    "FsspecStorageOptions",
    "GcsStorageOptions",
    "GlueCatalogResource",
    "Identity",
    "LocalStorageOptions",
    "MergeConfig",
    "MergeOperationsConfig",
    "MergeType",
    "MissingFiles",
    "OpOutputsConfig",
    "OptimizeConfig",
    "OptimizeResult",
    "Publication",
    "Range",
    "ReorgConfig",
    "RestoreConfig",
    "RetentionConfig",
    "S3StorageOptions",
    "Scan",
    "SchemaChangeKind",
    "Slice",
    "Snapshot",
    "SparkSessionResource",
    "StagedWrite",
    "StorageOptions",
    "TableChanges",
    "TableHealth",
    "TableInput",
    "Transaction",
    "TypeHandler",
    "UnityCatalogComponent",
    "UnityCatalogResource",
    "UnreferencedFiles",
    "UpstreamChanges",
    "UpstreamColumns",
    "VacuumConfig",
    "VacuumResult",
    "__version__",
    "check_definitions",
    "checkpoint_op",
    "clean_log_op",
    "clone_op",
    "delta_asset_checks",
    "delta_branch_job",
    "delta_change_feed_asset",
    "delta_change_feed_sensor",
    "delta_clone_job",
    "delta_files_asset",
    "delta_files_sensor",
    "delta_health_asset",
    "delta_maintenance_job",
    "delta_maintenance_schedule",
    "delta_maintenance_sensor",
    "delta_metadata",
    "delta_op_outputs_job",
    "delta_restore_job",
    "delta_schema_change_job",
    "delta_sink",
    "delta_sql_asset",
    "delta_table_pool",
    "delta_table_sensor",
    "find_branches",
    "fsck_op",
    "history_op",
    "observable_delta_asset",
    "openlineage_dataset",
    "optimize_op",
    "register_delta_log",
    "reorg_op",
    "report_delta_commit",
    "restore_op",
    "ship_package",
    "sql_column_lineage",
    "vacuum_op",
    "variants_from_json",
    "variants_from_python",
    "variants_to_json",
    "variants_to_python",
]  # fmt: skip

_MODULES = {
    "engines.spark.session.session": "ship_package",
    "errors": "DeltaError",
    "evolution.column_definition": "Column Identity",
    "orchestration.checks.asset_checks": "delta_asset_checks",
    "orchestration.checks.health_asset": "delta_health_asset",
    "orchestration.components.computed_assets": (
        "DeltaChangeFeedComponent DeltaIngestionComponent DeltaSqlComponent"
    ),
    "orchestration.components.external_tables": (
        "DeltaLakeComponent DeltaMaintenanceComponent DeltaMaintenanceSensorComponent "
        "DeltaSensorComponent DeltaTableComponent"
    ),
    "orchestration.definition_checks": "check_definitions",
    "orchestration.incremental.change_feed_assets": "ChangeFeedConfig delta_change_feed_asset",
    "orchestration.incremental.file_assets": "delta_files_asset delta_files_sensor",
    "orchestration.incremental.upstream_changes": "UpstreamChanges",
    "orchestration.io.audits": "Audit delta_metadata",
    "orchestration.io.column_lineage": "UpstreamColumns sql_column_lineage",
    "orchestration.components.catalog_tables": "UnityCatalogComponent",
    "orchestration.catalogs": "CatalogResource GlueCatalogResource UnityCatalogResource",
    "orchestration.io.io_manager": "DeltaIOManager",
    "orchestration.io.merge_config": "MergeConfig MergeOperationsConfig MergeType",
    "orchestration.io.openlineage": "openlineage_dataset",
    "orchestration.io.sql_assets": "delta_sql_asset",
    "orchestration.io.type_handlers": "TableInput TypeHandler",
    "orchestration.maintenance.branch_job": "DeltaBranchConfig delta_branch_job",
    "orchestration.maintenance.jobs": (
        "delta_clone_job delta_maintenance_job delta_maintenance_schedule delta_restore_job"
    ),
    "orchestration.maintenance.maintained_tables": "delta_table_pool",
    "orchestration.maintenance.operations": (
        "CheckpointConfig CleanLogConfig CloneConfig DeltaCloneConfig DeltaMaintenanceConfig "
        "DeltaRestoreConfig FsckConfig OptimizeConfig ReorgConfig RestoreConfig "
        "RetentionConfig VacuumConfig checkpoint_op clean_log_op clone_op fsck_op history_op "
        "optimize_op reorg_op restore_op vacuum_op"
    ),
    "orchestration.op_outputs": "OpOutputsConfig delta_op_outputs_job",
    "orchestration.pipes": "report_delta_commit",
    "orchestration.resources": "DeltaTableResource SparkSessionResource",
    "orchestration.schema_changes": (
        "DeltaSchemaChangeConfig SchemaChangeKind delta_schema_change_job"
    ),
    "orchestration.sensors.maintenance_sensor": "delta_maintenance_sensor",
    "orchestration.sensors.observations": "observable_delta_asset",
    "orchestration.sensors.sensors": (
        "DeltaSensorOptions delta_change_feed_sensor delta_table_sensor"
    ),
    "orchestration.sensors.table_watcher": "DeltaCommitRange TableChanges",
    "orchestration.storage_options": (
        "AzureStorageOptions FsspecStorageOptions GcsStorageOptions LocalStorageOptions "
        "S3StorageOptions StorageOptions"
    ),
    "parquet.variants": (
        "variants_from_json variants_from_python variants_to_json variants_to_python"
    ),
    "sql.expectation": "Expectation",
    "streaming.data_source": "register_delta_log",
    "streaming.sink": "DeltaSink delta_sink",
    "table.branches.branch": "Branch find_branches",
    "table.branches.publish": "Publication",
    "table.delta_table": "DeltaTable",
    "table.operations.fsck": "MissingFiles",
    "table.operations.health": "TableHealth",
    "table.operations.unreferenced_files": "UnreferencedFiles",
    "table.operations.rewrite_files": "OptimizeResult",
    "table.operations.vacuum": "VacuumResult",
    "table.read.change_data_feed": "ChangeDataFeed",
    "table.read.scan": "Scan",
    "table.read.snapshot": "Snapshot",
    "table.slices": "Range Slice",
    "table.transaction.commit_result": "CommitResult",
    "table.transaction.retries": "ConflictRetries",
    "table.transaction.staged_write": "StagedWrite",
    "table.transaction.transaction": "Transaction",
}
"""The public names of each module."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        from dagster_delta.nearest_name import nearest_name

        near = nearest_name(name, __all__)
        nearest = f", the nearest name is {near!r}" if near else ""
        raise AttributeError(
            f"module 'dagster_delta' has no attribute {name!r}{nearest}; docs/migration.md says "
            "what replaces the names of other packages"
        )
    value = getattr(importlib.import_module(f"dagster_delta.{home}"), name)
    # The next access finds it without calling this function.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
