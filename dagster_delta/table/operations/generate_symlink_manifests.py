"""GENERATE: writes the symlink manifests of a table on request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_delta.table.log_upkeep.symlink_manifests import generate_manifests

if TYPE_CHECKING:
    from dagster_delta.table.table_handle import TableHandle


def generate_symlink_manifests(table: TableHandle, /) -> tuple[str, ...]:
    """Write the symlink manifests of the latest version, by which Presto, Athena and Hive read
    it, and return their paths, relative to the root.

    On a table with `delta.compatibility.symlinkFormatManifest.enabled`, each commit writes
    those of the partitions that it changes.

    Raises:
        TableNotFound, InvalidTable, StorageFailure.
        UnsupportedFeature: the table has column mapping, or files have deletion vectors.
    """
    return generate_manifests(table._existing())
