"""How the files of a table are named in its clone: by absolute URI, or copied under its own root.

Spec: Add File and Remove File (path); Deletion Vectors (descriptor).
"""

from __future__ import annotations

import posixpath
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.features.deletion_vectors import deletion_vector_path, encode_z85
from dagster_delta.protocol.log.replay import DELETION_VECTOR_TYPE
from dagster_delta.protocol.values.arrow_columns import nested_column, string_column
from dagster_delta.protocol.values.partition_values import (
    decode_path,
    encode_path,
    encode_uri,
    partition_directory,
)
from dagster_delta.storage.locations import scheme_of
from dagster_delta.storage.object_store import ObjectMeta, ObjectStore
from dagster_delta.storage.spark_uris import spark_path

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file that the clone needs a copy of."""

    source: str
    """Decoded path in the store of the source."""
    target: str
    """Decoded path relative to the root of the clone."""
    size_bytes: int = 0
    """Size of the file; 0 if the log does not give it."""


@dataclass(frozen=True, slots=True)
class ClonedFiles:
    """The files of a version as its clone names them."""

    files: pa.Table
    """`pa.Table` of LIVE_FILE_SCHEMA, row for row with the source's."""
    copies: tuple[FileCopy, ...] = ()
    """The data files that the clone does not have yet."""
    vectors: tuple[FileCopy, ...] = ()
    """Copies of the files with deletion vectors, each once."""


def referenced_files(files: pa.Table, store: ObjectStore) -> ClonedFiles:
    """The files at their present location, by absolute URIs."""
    paths = [_absolute_uri(store, decode_path(file)) for file in files["path"].to_pylist()]
    vectors = []
    for fields in files["deletion_vector"].to_pylist():
        if fields is not None and fields["storage_type"] != "i":
            path = deletion_vector_path(DeletionVectorDescriptor(**fields))
            uri = _absolute_uri(store, path)
            fields = {**fields, "storage_type": "p", "path_or_inline_dv": uri}
        vectors.append(fields)
    return ClonedFiles(_renamed(files, paths, vectors))


def _absolute_uri(store: ObjectStore, path: str) -> str:
    """The URI of a file as Spark spells it: delta-spark finds the file of a row by that text, and
    accepts no other spelling when it deletes rows.
    """
    uri = store.resolve_uri(path)
    if scheme_of(uri) in (None, "file"):
        uri = spark_path(uri)
    return encode_uri(uri)


@dataclass(slots=True)
class Landing:
    """Names in the directory of the clone: which exist already, and which may be reused.

    `live` has size and modification time by path of the files that the clone has as a table. Files
    newer than `reused_since_ms`, in milliseconds since the epoch, with a UUID in their name count
    as copies of an earlier attempt; no VACUUM will delete them soon.
    """

    present: Mapping[str, ObjectMeta]
    live: Mapping[str, tuple[int, int]]
    live_vectors: frozenset[str]
    reused_since_ms: int
    _taken: set[str] = field(default_factory=set)

    def place(
        self, source: str, wanted: str, size_bytes: int, modified_ms: int
    ) -> tuple[str, FileCopy | None]:
        """The path of a data file in the clone, and the copy that it needs."""
        if wanted not in self._taken:
            self._taken.add(wanted)
            if wanted in self.live:
                if self.live[wanted] == (size_bytes, modified_ms):
                    return wanted, None
            elif (found := self.present.get(wanted)) is None:
                return wanted, FileCopy(source, wanted, size_bytes)
            elif self._is_earlier_copy(found, size_bytes):
                return wanted, None
        # Another file has the name, and versions of the clone may need it.
        directory, slash, name = wanted.rpartition("/")
        other = f"{directory}{slash}{uuid.uuid4()}-{name}"
        return other, FileCopy(source, other, size_bytes)

    def _is_earlier_copy(self, found: ObjectMeta, size_bytes: int) -> bool:
        return (
            found.size_bytes == size_bytes
            and found.modified_ms >= self.reused_since_ms
            and _UUID.search(found.path) is not None
        )


def copied_files(
    files: pa.Table, physical_partition_columns: tuple[str, ...], to: Landing
) -> ClonedFiles:
    """The files under the root of the clone, with the same relative paths if these are free."""
    copies: list[FileCopy] = []
    paths: list[str] = []
    for row in files.select(
        ["path", "partition_values", "size_bytes", "modification_time_ms"]
    ).to_pylist():
        source = decode_path(row["path"])
        values = dict(row["partition_values"] or ())
        ordered = {name: values.get(name) for name in physical_partition_columns}
        wanted = _relative(source, partition_directory(ordered))
        path, copy = to.place(source, wanted, row["size_bytes"], row["modification_time_ms"])
        paths.append(encode_path(path))
        if copy is not None:
            copies.append(copy)
    vectors, files_of_vectors = _copied_vectors(files["deletion_vector"], to)
    return ClonedFiles(
        _renamed(files, paths, vectors), tuple(copies), tuple(files_of_vectors.values())
    )


def _relative(path: str, partition: str) -> str:
    """The target path of a file: its own relative path, or its partition if it has none."""
    if not path.startswith("/") and scheme_of(path) is None:
        return posixpath.normpath(path)
    name = path.rpartition("/")[2]
    return f"{partition}/{name}" if partition else name


def _copied_vectors(
    vectors: pa.ChunkedArray, to: Landing
) -> tuple[list[dict[str, object] | None], dict[str, FileCopy]]:
    named: list[dict[str, object] | None] = []
    copies: dict[str, FileCopy] = {}
    for fields in vectors.to_pylist():
        if fields is not None and fields["storage_type"] != "i":
            source = deletion_vector_path(DeletionVectorDescriptor(**fields))
            if fields["storage_type"] == "p":
                location = encode_z85(_vector_file_id(source).bytes)
                fields = {**fields, "storage_type": "u", "path_or_inline_dv": location}
            target = deletion_vector_path(DeletionVectorDescriptor(**fields))
            found = to.present.get(target)
            # Vector files have unique UUIDs, so an existing file with this one is a copy.
            is_there = found is not None and found.modified_ms >= to.reused_since_ms
            if not is_there and target not in to.live_vectors:
                copies[target] = FileCopy(source, target)
        named.append(fields)
    return named, copies


def _vector_file_id(path: str) -> uuid.UUID:
    """The UUID in the name of a file with vectors, or one computed from the path."""
    found = _UUID.findall(path.rpartition("/")[2])
    return uuid.UUID(found[-1]) if found else uuid.uuid5(uuid.NAMESPACE_URL, path)


def _renamed(
    files: pa.Table, paths: list[str], vectors: list[dict[str, object] | None]
) -> pa.Table:
    columns = dict(zip(files.column_names, files.columns, strict=True))
    columns["path"] = pa.chunked_array([string_column(paths)])
    columns["deletion_vector"] = pa.chunked_array([nested_column(vectors, DELETION_VECTOR_TYPE)])
    return pa.Table.from_arrays(list(columns.values()), schema=files.schema)
