"""The metadata that the Dagster UI shows of tables: every key, its meaning, and the order.

The UI shows the metadata of an event in the order in which it was recorded. All code that builds
such metadata takes its keys from `METADATA_KEYS`, and its order from `shown`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class MetadataKey:
    """One key."""

    name: str
    """The key; a part in angle brackets stands for a name."""
    meaning: str
    """What its value says, with the unit."""
    shown_on: str
    """Events and definitions that have it."""
    omits_zero: bool = False
    """Whether the key is omitted if the value is 0."""


_WRITES = "materializations"
_COMMITS = "commits reported by sensors, observations"
_TABLES = "materializations, observations"
_CHECKS = "asset checks"

METADATA_KEYS = (
    MetadataKey(QUERY_KEY, "The query of a SQL asset.", f"{_WRITES}, definitions"),
    MetadataKey(
        COLUMNS_READ_KEY,
        "The columns that a SQL asset read of each upstream asset, those of filters and joins "
        "included, and the columns that the upstream asset had.",
        _WRITES,
    ),
    MetadataKey(
        "delta/version",
        "Version of the table after the write; of a commit, its version; of a check, the version "
        "that was checked.",
        f"{_WRITES}, {_COMMITS}, {_CHECKS}",
    ),
    MetadataKey("delta/mode", "How the asset was written, such as append or merge.", _WRITES),
    MetadataKey(
        "delta/operation", "The operation of the commit, such as WRITE or MERGE.", _COMMITS
    ),
    MetadataKey("delta/skipped", "Why nothing was written.", _WRITES),
    MetadataKey(
        "delta/full_refresh",
        "Whether an incremental asset read every row of its upstream table.",
        _WRITES,
    ),
    MetadataKey("delta/full_refresh_because", "Why it read every row.", _WRITES),
    MetadataKey(
        "delta/columns_not_followed",
        "Changes of columns of the upstream table that the table of an incremental asset did not "
        "adopt.",
        _WRITES,
    ),
    MetadataKey(
        "delta/rows", "Rows that the commit wrote, changed or deleted.", _COMMITS, omits_zero=True
    ),
    MetadataKey(
        "delta/rows_written",
        "Rows written by this run: on a partition of a run of several partitions, rows written to "
        "that partition.",
        _WRITES,
        omits_zero=True,
    ),
    MetadataKey("delta/rows_inserted", "Rows that a merge inserted.", _WRITES, omits_zero=True),
    MetadataKey("delta/rows_updated", "Rows that a merge updated.", _WRITES, omits_zero=True),
    MetadataKey("delta/rows_deleted", "Rows that a merge deleted.", _WRITES, omits_zero=True),
    MetadataKey(
        "delta/files_added", "Data files added.", f"{_WRITES}, {_COMMITS}", omits_zero=True
    ),
    MetadataKey(
        "delta/files_removed",
        "Data files removed from the table; VACUUM deletes them later.",
        f"{_WRITES}, {_COMMITS}",
        omits_zero=True,
    ),
    MetadataKey("delta/bytes_added", "Size of the added files in bytes.", _WRITES, omits_zero=True),
    MetadataKey("delta/attempts", "Attempts of the write, if conflicts made it repeat.", _WRITES),
    MetadataKey(
        "delta/compacted_version",
        "The version in which small files were compacted after the write.",
        _WRITES,
    ),
    MetadataKey("delta/source_files", "Files that the run has loaded.", _WRITES),
    MetadataKey("delta/source_bytes", "Size of those files in bytes.", _WRITES, omits_zero=True),
    MetadataKey("delta/partition_files", "Data files of the Dagster partition.", _WRITES),
    MetadataKey("delta/partition_size_bytes", "Size of those files in bytes, as stored.", _WRITES),
    MetadataKey("delta/live_files", "Data files of the table.", _TABLES),
    MetadataKey("delta/committer", "The user or the engine that made the commit.", _COMMITS),
    MetadataKey("delta/run", "The Dagster run that made the commit.", _COMMITS),
    MetadataKey(
        "delta/change_files",
        "Change data files of the commit, 100 at most, with paths as in the log.",
        _COMMITS,
    ),
    MetadataKey("delta/violations", "Rows, or keys, that violate the rule.", _CHECKS),
    MetadataKey("delta/failing_rows", "A few of them, as a table.", _CHECKS),
    MetadataKey("delta/sample_rows", "A few rows of the table, if `sample_rows` is set.", _WRITES),
    MetadataKey(
        "delta/column_statistics",
        "Minimum, maximum and nulls of each column, if `column_statistics` is set.",
        _WRITES,
    ),
    MetadataKey("delta/history", "The latest commits, each with a link to its run.", _TABLES),
    MetadataKey(
        DETAILS,
        "Other facts: partition columns, the predicate of replaced rows, metrics of the operation "
        "by their names in the log, …; in a run of several partitions, its totals.",
        f"{_TABLES}, {_CHECKS}",
    ),
    MetadataKey(
        "delta/input/<name>",
        "Version, files, bytes and rows that the run read of an input.",
        _WRITES,
    ),
    MetadataKey(
        "delta/bytes_read",
        "Size in bytes of the data files that the inputs of the run needed; without inputs that "
        "are read lazily.",
        _WRITES,
    ),
    MetadataKey("dagster/row_count", "Rows of the table.", _TABLES),
    MetadataKey("dagster/partition_row_count", "Rows of the Dagster partition.", _WRITES),
    MetadataKey("dagster/size_bytes", "Size of the data files of the table in bytes.", _TABLES),
    MetadataKey("dagster/last_updated_timestamp", "Time of the version or commit.", _TABLES),
    MetadataKey("dagster/table_name", "`schema.table` of the table.", f"{_WRITES}, definitions"),
    MetadataKey(
        "dagster/uri",
        "Location of the table, without credentials.",
        f"{_TABLES}, definitions",
    ),
    MetadataKey(
        "dagster/column_schema",
        "Columns with their types, comments and constraints.",
        f"{_TABLES}, definitions",
    ),
    MetadataKey("dagster/column_lineage", "The upstream columns of each column.", _WRITES),
)
"""Every key, in the order of the UI."""

_POSITIONS = {key.name: position for position, key in enumerate(METADATA_KEYS)}
_OMITTING_ZERO = frozenset(key.name for key in METADATA_KEYS if key.omits_zero)


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
        if value is not None and value != {} and not (key in _OMITTING_ZERO and value == 0)
    }
    ordered = sorted(kept.items(), key=lambda item: _POSITIONS.get(item[0], len(_POSITIONS)))
    return cast("RawMetadata", dict(ordered))


def counted(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first_names(names: Sequence[str], most: int = 5) -> str:
    """The first names of a list as text, and the number of the others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
