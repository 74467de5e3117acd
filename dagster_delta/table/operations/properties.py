"""The properties, texts and protocol of a table, one call for each change.

Every call makes one commit, planned again after a conflict, or none if the table already has that
state (`skipped` is true).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from dagster_delta.evolution import actions
from dagster_delta.table.operations.change_schema import (
    change_table,
)

if TYPE_CHECKING:
    from dagster_delta.table.table_handle import TableHandle
    from dagster_delta.table.transaction.commit_result import CommitResult


def set_properties(
    table: TableHandle,
    /,
    properties: Mapping[str, object],
    *,
    force: bool = False,
    commit_info: Mapping[str, object] | None = None,
) -> CommitResult:
    """Set table properties, together with the protocol changes they need, in one commit.

    If the new feature needs it, a legacy protocol is replaced by lists of features, with all
    that it implied. `delta.enableRowTracking` gives ids to existing rows,
    `delta.columnMapping.mode = name` gives ids to the columns, and
    `delta.enableInCommitTimestamps` records when the timestamps began. If the table already has
    these properties, there is no commit, and `skipped` is true.

    Args:
        properties: values by name, text, numbers or booleans; `delta.*` names are checked,
            others are the user's own. `delta.feature.<name> = supported` enables a feature.
        force: as for `alter`.
        commit_info: recorded in the commitInfo beside this library's own fields.

    Raises:
        TableNotFound: the table does not exist.
        InvalidArgument: a name is unknown or not for users, a value is invalid, or the table
            cannot change from its present state to that one.
        UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written.
        CommitConflict, CommitStateUnknown: the commit failed, or may have failed.
    """
    action = actions.SetProperties(properties)
    return change_table(table, action, force=force, commit_info=commit_info)


def unset_properties(
    table: TableHandle,
    /,
    names: Iterable[str],
    *,
    if_exists: bool = False,
    commit_info: Mapping[str, object] | None = None,
) -> CommitResult:
    """Unset table properties; features that they needed stay in the protocol.

    Args:
        names: names of the properties.
        if_exists: whether a property that the table does not have is not an error.
        commit_info: recorded in the commitInfo beside this library's own fields.

    Raises:
        InvalidArgument: the table does not have a property, a property is not for users, or the
            table needs it.
        TableNotFound, UnsupportedFeature, ConditionalPutUnsupported, CommitConflict,
        CommitStateUnknown: as for `set_properties`.
    """
    action = actions.UnsetProperties(tuple(names), if_exists)
    return change_table(table, action, commit_info=commit_info)


def set_name(
    table: TableHandle, /, name: str | None, *, commit_info: Mapping[str, object] | None = None
) -> CommitResult:
    """Set the name of the table that catalogs and tools show; its location stays.

    Args:
        name: the new name; None for none.
        commit_info: recorded in the commitInfo beside this library's own fields.

    Raises:
        TableNotFound, UnsupportedFeature, ConditionalPutUnsupported, CommitConflict,
        CommitStateUnknown: as for `set_properties`.
    """
    action = actions.SetTableText("name", name)
    return change_table(table, action, commit_info=commit_info)


def set_description(
    table: TableHandle,
    /,
    description: str | None,
    *,
    commit_info: Mapping[str, object] | None = None,
) -> CommitResult:
    """Set the description of the table that catalogs and tools show.

    Args:
        description: the new description; None for none.
        commit_info: recorded in the commitInfo beside this library's own fields.

    Raises:
        TableNotFound, UnsupportedFeature, ConditionalPutUnsupported, CommitConflict,
        CommitStateUnknown: as for `set_properties`.
    """
    action = actions.SetTableText("description", description)
    return change_table(table, action, commit_info=commit_info)


def enable_feature(
    table: TableHandle, /, name: str, *, commit_info: Mapping[str, object] | None = None
) -> CommitResult:
    """Add a table feature, and those it depends on, to the protocol.

    A feature with its own property (`delta.enableDeletionVectors`, …) is then supported but not
    yet in use: `set_properties` enables it.

    Args:
        name: name of the feature, as in `"domainMetadata"`.
        commit_info: recorded in the commitInfo beside this library's own fields.

    Raises:
        InvalidArgument: the feature is unknown.
        UnsupportedFeature: this library does not write tables with it.
        TableNotFound, ConditionalPutUnsupported, CommitConflict, CommitStateUnknown: as for
            `set_properties`.
    """
    return set_properties(table, {f"delta.feature.{name}": "supported"}, commit_info=commit_info)


def upgrade_protocol(
    table: TableHandle,
    /,
    *,
    min_reader_version: int = 1,
    min_writer_version: int = 1,
    commit_info: Mapping[str, object] | None = None,
) -> CommitResult:
    """Upgrade the protocol versions; writer version 7 lists the features that the old version
    implied.

    Args:
        min_reader_version: minimum reader version; the table's own may be higher.
        min_writer_version: minimum writer version; the table's own may be higher.
        commit_info: recorded in the commitInfo beside this library's own fields.

    Raises:
        InvalidArgument: the pair of versions does not exist.
        TableNotFound, UnsupportedFeature, ConditionalPutUnsupported, CommitConflict,
        CommitStateUnknown: as for `set_properties`.
    """
    versions = {
        "delta.minReaderVersion": min_reader_version,
        "delta.minWriterVersion": min_writer_version,
    }
    return set_properties(table, versions, commit_info=commit_info)
