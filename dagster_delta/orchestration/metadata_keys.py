"""The metadata that the Dagster UI shows of tables: its keys and their order.

The UI shows the metadata of an event in the order in which it was recorded. All code that builds
such metadata takes its keys from `METADATA_KEYS`, and its order from `shown`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from dagster import AssetKey, MetadataValue, TableColumnLineage, TableSchema

RawMetadataValue: TypeAlias = (
    MetadataValue[Any]
    | TableSchema
    | TableColumnLineage
    | AssetKey
    | dict[str, Any]
    | list[Any]
    | str
    | float
    | int
    | bool
    | None
)
"""What Dagster converts to metadata; `dagster` itself exports no type for it."""

RawMetadata: TypeAlias = dict[str, RawMetadataValue]
"""Metadata by key, as `add_output_metadata` and the events of Dagster take it."""

QUERY_KEY = "delta/query"
COLUMNS_READ_KEY = "delta/columns_read"

DETAILS = "delta/details"
"""Key of the facts that have no key of their own, as JSON."""

_COUNTERS = (
    "delta/source_bytes",
    "delta/skipped_files",
    "delta/dropped_rows",
    "delta/quarantined_rows",
    "delta/rows",
    "delta/rows_written",
    "delta/rows_inserted",
    "delta/rows_updated",
    "delta/rows_deleted",
    "delta/files_added",
    "delta/files_removed",
    "delta/bytes_added",
)
"""Keys that are left out if their value is 0."""

METADATA_KEYS = (
    QUERY_KEY,
    COLUMNS_READ_KEY,
    "delta/version",
    "delta/branch",
    "delta/branch_base",
    "delta/mode",
    "delta/operation",
    "delta/skipped",
    "delta/full_refresh",
    "delta/full_refresh_because",
    "delta/columns_not_followed",
    "delta/compared_bytes",
    "delta/source_files",
    *_COUNTERS,
    "delta/expectations",
    "delta/audits",
    "delta/ignored_columns",
    "delta/null_columns",
    "delta/attempts",
    "delta/compacted_version",
    "delta/partition_files",
    "delta/partition_size_bytes",
    "delta/live_files",
    "delta/committer",
    "delta/run",
    "delta/change_files",
    "delta/violations",
    "delta/failing_rows",
    "delta/sample_rows",
    "delta/column_statistics",
    "delta/branch_difference",
    "delta/history",
    DETAILS,
    "delta/input/<name>",
    "delta/bytes_read",
    "dagster/row_count",
    "dagster/partition_row_count",
    "dagster/size_bytes",
    "dagster/last_updated_timestamp",
    "dagster/table_name",
    "dagster/uri",
    "dagster/column_schema",
    "dagster/column_lineage",
)
"""Every key, in the order of the UI; `docs/metadata.md` says what they mean."""

_POSITIONS = {name: position for position, name in enumerate(METADATA_KEYS)}


def shown(*parts: Mapping[str, object]) -> RawMetadata:
    """Metadata in the order of `METADATA_KEYS`, without nulls and zero counters; other keys follow.
    A later value of a key replaces an earlier one, except for the mappings under `DETAILS`, which
    are merged.
    """
    merged: dict[str, object] = {}
    details: dict[str, object] = {}
    for part in parts:
        merged |= part
        given = part.get(DETAILS)
        details |= given if isinstance(given, dict) else {}
    merged[DETAILS] = {key: value for key, value in details.items() if value not in (None, "", ())}
    kept = {
        key: value
        for key, value in merged.items()
        if value is not None and value != {} and not (key in _COUNTERS and value == 0)
    }
    ordered = sorted(kept.items(), key=lambda item: _POSITIONS.get(item[0], len(_POSITIONS)))
    return cast("RawMetadata", dict(ordered))


def counted(number: int | None, noun: str) -> str:
    """`1 file`, `2 files`; None if the number is not known."""
    if number is None:
        return f"an unknown number of {noun}s"
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first_names(names: Sequence[str], most: int = 5) -> str:
    """The first names of a list as text, and the number of the others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
