"""Reconciliation of file actions, column by column.

A file's key is its path and the id of its deletion vector. The newest action of a key counts: an
add makes a file live, a remove leaves a tombstone.

Spec: Action Reconciliation; Deletion Vectors, Derived Fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.cached_property import cached_property
from dagster_delta.protocol.actions import AddFile, DeletionVectorDescriptor, RemoveFile
from dagster_delta.protocol.values.arrow_columns import string_column

DELETION_VECTOR_TYPE = pa.struct(
    [
        ("storage_type", pa.string()),
        ("path_or_inline_dv", pa.string()),
        ("offset", pa.int32()),
        ("size_in_bytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)

LIVE_FILE_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("partition_values", pa.map_(pa.string(), pa.string())),
        ("size_bytes", pa.int64()),
        ("modification_time_ms", pa.int64()),
        ("stats", pa.string()),
        ("deletion_vector", DELETION_VECTOR_TYPE),
        ("base_row_id", pa.int64()),
        ("default_row_commit_version", pa.int64()),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("clustering_provider", pa.string()),
    ]
)
"""Columns of a table of live files. Paths are as in the log, percent-encoded; partition values are
keyed by physical column name."""

ROW_ID_COLUMNS = ("base_row_id", "default_row_commit_version")
"""Columns of `LIVE_FILE_SCHEMA` that only a read of row ids needs."""

TOMBSTONE_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("deletion_timestamp_ms", pa.int64()),
        ("data_change", pa.bool_()),
        ("extended_file_metadata", pa.bool_()),
        ("partition_values", pa.map_(pa.string(), pa.string())),
        ("size_bytes", pa.int64()),
        ("stats", pa.string()),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("deletion_vector", DELETION_VECTOR_TYPE),
        ("base_row_id", pa.int64()),
        ("default_row_commit_version", pa.int64()),
    ]
)
"""Columns of a table of removed files."""


def _wire_names(action: type[msgspec.Struct], columns: Iterable[str]) -> Mapping[str, str]:
    names = dict(zip(action.__struct_fields__, action.__struct_encode_fields__, strict=True))
    return {column: names[column] for column in columns}


DELETION_VECTOR_SOURCES = _wire_names(
    DeletionVectorDescriptor, (field.name for field in DELETION_VECTOR_TYPE)
)
"""Name of each field of DELETION_VECTOR_TYPE in the log."""
ADD_SOURCES = _wire_names(AddFile, LIVE_FILE_SCHEMA.names)
"""Name of each column of LIVE_FILE_SCHEMA in an `add`."""
REMOVE_SOURCES = _wire_names(RemoveFile, TOMBSTONE_SCHEMA.names)
"""Name of each column of TOMBSTONE_SCHEMA in a `remove`."""

_ABSOLUTE = re.compile("file:/+")
# No file path contains it, so that a key can be split again.
KEY_SEPARATOR = "\0"
"""Separates path and deletion vector in a key."""
# A Python string as an argument of a pyarrow function would import pandas.
_AT, _NOTHING, _SEPARATOR = string_column(["@", "", KEY_SEPARATOR])


def file_key(
    path: str, storage_type: str | None = None, inline: str | None = None, offset: int | None = None
) -> str:
    """The key of a logical file as one text.

    Paths are compared as spelled, except the three spellings of an absolute local path (`/p`,
    `file:/p`, `file:///p`), which writers mix. `inline` is the path or the contents of the deletion
    vector, as in its descriptor.
    """
    # One comparison is enough for nearly every path; this runs once per file of every commit.
    if path[:1] == "f" and path.startswith("file:/"):
        path = _ABSOLUTE.sub("/", path, count=1)
    if storage_type is None:
        return path
    at = "" if offset is None else f"@{offset}"
    return f"{path}{KEY_SEPARATOR}{storage_type}{inline}{at}"


def keys_of(paths: pa.ChunkedArray, deletion_vectors: pa.ChunkedArray) -> pa.ChunkedArray:
    """The keys of files as a column, in the form of `file_key`."""
    paths = _canonical_paths(paths)
    if deletion_vectors.null_count == len(deletion_vectors):
        return paths
    storage_type = pc.struct_field(deletion_vectors, "storage_type")
    offset = pc.struct_field(deletion_vectors, "offset")
    at = pc.binary_join_element_wise(_AT, pc.cast(offset, pa.string()), _NOTHING)
    vector_id = pc.binary_join_element_wise(
        storage_type,
        pc.struct_field(deletion_vectors, "path_or_inline_dv"),
        pc.coalesce(at, _NOTHING),
        _NOTHING,
    )
    keys = pc.binary_join_element_wise(paths, vector_id, _SEPARATOR)
    return pc.if_else(pc.is_valid(storage_type), keys, paths)


class HiddenFiles:
    """The files in newer actions, which replace older actions on them."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._texts = keys

    @property
    def is_empty(self) -> bool:
        """Whether no file is hidden."""
        return not self._texts

    # Computed on first use: no file is older than the first commits of a log.
    @cached_property
    def _key_column(self) -> pa.StringArray:
        return string_column(list(self._texts))

    @cached_property
    def _path_column(self) -> pa.StringArray:
        return string_column([key.partition(KEY_SEPARATOR)[0] for key in self._texts])

    def rows_to_keep(
        self, paths: pa.ChunkedArray, deletion_vectors: Callable[[pa.BooleanArray], pa.ChunkedArray]
    ) -> pa.BooleanArray | None:
        """Which rows no newer action replaces: a `pa.BooleanArray`, or None if all are kept.

        `deletion_vectors` gives, for a `pa.BooleanArray` over the rows, the chosen ones as
        DELETION_VECTOR_TYPE; it is called only if a path matches.
        """
        if not self._texts or len(paths) == 0:
            return None
        touched = pc.is_in(_canonical_paths(paths), value_set=self._path_column).combine_chunks()
        if not touched.true_count:
            return None
        keys = keys_of(pc.filter(paths, touched), deletion_vectors(touched))
        left_alone = pc.invert(pc.is_in(keys, value_set=self._key_column))
        return pc.replace_with_mask(pc.invert(touched), touched, left_alone.combine_chunks())


def _canonical_paths(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    local = pc.starts_with(paths, "file:/")
    if not pc.any(local).as_py():
        return paths
    return pc.replace_substring_regex(paths, "^file:/+", "/")
