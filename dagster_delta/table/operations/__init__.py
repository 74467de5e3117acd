"""One module for each statement on a table, imported when it is first used.

Tested by `tests/table/operations`, `tests/conformance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_delta.lazy_modules import submodules_of

if TYPE_CHECKING:
    from dagster_delta.table.operations import alter as alter
    from dagster_delta.table.operations import append as append
    from dagster_delta.table.operations import apply_changes as apply_changes
    from dagster_delta.table.operations import change_schema as change_schema
    from dagster_delta.table.operations import checkpoint as checkpoint
    from dagster_delta.table.operations import clean_log as clean_log
    from dagster_delta.table.operations import clone as clone
    from dagster_delta.table.operations import column_change as column_change
    from dagster_delta.table.operations import columns as columns
    from dagster_delta.table.operations import convert as convert
    from dagster_delta.table.operations import create as create
    from dagster_delta.table.operations import delete as delete
    from dagster_delta.table.operations import drop_feature as drop_feature
    from dagster_delta.table.operations import fsck as fsck
    from dagster_delta.table.operations import (
        generate_symlink_manifests as generate_symlink_manifests,
    )
    from dagster_delta.table.operations import health as health
    from dagster_delta.table.operations import keep_latest as keep_latest
    from dagster_delta.table.operations import merge as merge
    from dagster_delta.table.operations import optimize as optimize
    from dagster_delta.table.operations import overwrite as overwrite
    from dagster_delta.table.operations import properties as properties
    from dagster_delta.table.operations import reorg as reorg
    from dagster_delta.table.operations import restore as restore
    from dagster_delta.table.operations import rewrite_files as rewrite_files
    from dagster_delta.table.operations import unreferenced_files as unreferenced_files
    from dagster_delta.table.operations import update as update
    from dagster_delta.table.operations import vacuum as vacuum
    from dagster_delta.table.operations import validate as validate
    from dagster_delta.table.operations import write_planning as write_planning
    from dagster_delta.table.operations import write_rows as write_rows

if not TYPE_CHECKING:
    __getattr__ = submodules_of(__name__)
