"""Updates of the list of columns with statistics, which names columns by logical paths."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_delta.evolution.column_paths import ColumnPath, dotted
from dagster_delta.protocol.features.table_configuration import TableConfiguration

__all__ = ["follow_column"]

_STATS_COLUMNS_KEY = "delta.dataSkippingStatsColumns"


def follow_column(
    configuration: TableConfiguration, path: ColumnPath, new_path: ColumnPath | None
) -> Mapping[str, str]:
    """The table properties, with the list of columns with statistics updated for a column.

    Args:
        configuration: protocol and metadata before the change.
        path: logical path of the column.
        new_path: its path after the change; None if it is dropped.
    """
    properties = configuration.metadata.configuration
    named = configuration.properties.data_skipping_stats_columns
    if named is None:
        return properties
    folded = tuple(step.casefold() for step in path)
    changed: list[ColumnPath] = []
    for column in named:
        if tuple(step.casefold() for step in column[: len(path)]) != folded:
            changed.append(column)
        elif new_path is not None:
            changed.append((*new_path, *column[len(path) :]))
    if tuple(changed) == named:
        return properties
    return {**properties, _STATS_COLUMNS_KEY: ",".join(map(dotted, changed))}
