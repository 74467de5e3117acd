"""Delta Lake tables in Dagster, on an own implementation of the Delta protocol.

Names are imported when they are first used: a table costs no Dagster, and a Spark executor neither
imports Dagster nor starts anything.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from dagster_delta._version import __version__

if TYPE_CHECKING:
    from dagster_delta.errors import DeltaError
    from dagster_delta.evolution.column_definition import Column, Identity
    from dagster_delta.orchestration.io_manager import DeltaIOManager
    from dagster_delta.orchestration.observations import observable_delta_asset
    from dagster_delta.orchestration.resources import DeltaTableResource, SparkSessionResource
    from dagster_delta.orchestration.sensors import (
        delta_change_feed_sensor,
        delta_table_sensor,
    )
    from dagster_delta.orchestration.storage_options import (
        AzureStorageOptions,
        FsspecStorageOptions,
        GcsStorageOptions,
        LocalStorageOptions,
        S3StorageOptions,
        StorageOptions,
    )
    from dagster_delta.orchestration.table_changes import DeltaCommitRange, TableChanges
    from dagster_delta.table.change_data_feed import ChangeDataFeed
    from dagster_delta.table.delta_table import CommitResult, DeltaTable
    from dagster_delta.table.scan import Scan
    from dagster_delta.table.snapshot import Snapshot
    from dagster_delta.table.transaction import Transaction

__all__ = [
    "AzureStorageOptions",
    "ChangeDataFeed",
    "Column",
    "CommitResult",
    "DeltaCommitRange",
    "DeltaError",
    "DeltaIOManager",
    "DeltaTable",
    "DeltaTableResource",
    "FsspecStorageOptions",
    "GcsStorageOptions",
    "Identity",
    "LocalStorageOptions",
    "S3StorageOptions",
    "Scan",
    "Snapshot",
    "SparkSessionResource",
    "StorageOptions",
    "TableChanges",
    "Transaction",
    "__version__",
    "delta_change_feed_sensor",
    "delta_table_sensor",
    "observable_delta_asset",
]

_HOMES = {
    "AzureStorageOptions": "orchestration.storage_options",
    "ChangeDataFeed": "table.change_data_feed",
    "Column": "evolution.column_definition",
    "CommitResult": "table.transaction",
    "DeltaCommitRange": "orchestration.table_changes",
    "DeltaError": "errors",
    "DeltaIOManager": "orchestration.io_manager",
    "DeltaTable": "table.delta_table",
    "DeltaTableResource": "orchestration.resources",
    "FsspecStorageOptions": "orchestration.storage_options",
    "GcsStorageOptions": "orchestration.storage_options",
    "Identity": "evolution.column_definition",
    "LocalStorageOptions": "orchestration.storage_options",
    "S3StorageOptions": "orchestration.storage_options",
    "Scan": "table.scan",
    "Snapshot": "table.snapshot",
    "SparkSessionResource": "orchestration.resources",
    "StorageOptions": "orchestration.storage_options",
    "TableChanges": "orchestration.table_changes",
    "Transaction": "table.transaction",
    "delta_change_feed_sensor": "orchestration.sensors",
    "delta_table_sensor": "orchestration.sensors",
    "observable_delta_asset": "orchestration.observations",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        from dagster_delta.clash import missing_attribute

        raise AttributeError(missing_attribute(name))
    value = getattr(importlib.import_module(f"dagster_delta.{home}"), name)
    # The next access finds it without coming here.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
