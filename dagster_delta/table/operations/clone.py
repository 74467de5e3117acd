"""CLONE: a new table with the rows of one version of another, whose files it references or copies.

Spec: Add File and Remove File (path); Deletion Vectors; Row Tracking; Domain Metadata.
"""

from __future__ import annotations

import os
import posixpath
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.clock import DAY_MS, Clock, now_ms
from dagster_delta.errors import (
    CommitConflict,
    DataFileMissing,
    InvalidArgument,
    TableAlreadyExists,
    UnsupportedFeature,
)
from dagster_delta.evolution.programs import check_readers
from dagster_delta.evolution.properties import set_properties
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.features.column_change import COLUMN_CHANGE_KEY
from dagster_delta.protocol.features.deletion_vectors import deletion_vector_path, encode_z85
from dagster_delta.protocol.features.iceberg_compat import iceberg_compat_version
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_writer import (
    CHECKPOINT_PROTECTION_KEY,
    IN_COMMIT_TIMESTAMP_START_KEYS,
)
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.log.paths import LOG_DIRECTORY
from dagster_delta.protocol.log.replay import DELETION_VECTOR_TYPE
from dagster_delta.protocol.values.arrow_columns import column_of, string_column
from dagster_delta.protocol.values.partition_values import (
    decode_path,
    encode_path,
    encode_uri,
    partition_directory,
)
from dagster_delta.storage import open_store
from dagster_delta.storage.locations import scheme_of, spark_path
from dagster_delta.storage.object_store import CopyingStore, ObjectMeta, ObjectStore, is_in_catalog
from dagster_delta.table.catalog_rules import demanded_by_catalog, without_catalog
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.operations.restore import restored_configuration
from dagster_delta.table.operations.unreferenced_files import deletion_vector_paths
from dagster_delta.table.operations.version_difference import FileDifference, VersionDifference
from dagster_delta.table.read.snapshot import Snapshot, find_snapshot
from dagster_delta.table.transaction.commit_result import CHANGE_MEMORY, NOT_FOLLOWED
from dagster_delta.table.transaction.transaction import (
    CommitResult,
    Transaction,
    positions_to_change,
)

if TYPE_CHECKING:
    from dagster_delta.table.table_handle import TableHandle

# Properties that refer to versions of the source's own log.
OF_THE_LOG = (CHECKPOINT_PROTECTION_KEY, *IN_COMMIT_TIMESTAMP_START_KEYS)
"""Table properties that hold for the versions of one log."""

_CHUNK_BYTES = 8 * 1024 * 1024
_MAX_WORKERS = 8


def clone(
    table: TableHandle,
    /,
    target: str | os.PathLike[str],
    *,
    deep: bool = True,
    version: int | None = None,
    timestamp: datetime | str | int | None = None,
    replace: bool = False,
    properties: Mapping[str, object] | None = None,
    storage_options: Mapping[str, object] | None = None,
    store: ObjectStore | None = None,
    commit_info: Mapping[str, object] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> CommitResult:
    """Clone one version of the table to another location; the result is the clone's.

    Schema, partitioning, properties, constraints, table features, row ids, clustering and the
    positions of incremental assets are copied. Older versions, transaction ids and metadata
    domains of other writers are not: the clone has its own log and id, and a write to one table
    does not appear in the other. What AUTO CDC remembers of change events is copied, as a table
    beside the clone.

    A shallow clone refers to the data files of its source, so it costs one commit at any size.
    VACUUM of the source deletes files that only the clone needs: such clones are for tests and
    short-lived copies. VACUUM of the clone does not delete files of the source. A deep clone
    copies data files and deletion vectors to the same relative paths.

    With `replace`, a new version of the existing table equals the source; files that it already
    has are not copied again. If it already equals the source, nothing is committed and
    `skipped` is true. After an interrupted deep clone, a new attempt reuses the copied files
    for one day.

    Args:
        target: path or URI of the clone's root, neither in the source nor around it.
        deep: copy the files instead of referring to them.
        version: which version of the source; the one this handle knows by default.
        timestamp: instead: the latest version committed at or before it, spelled as for
            `snapshot`.
        replace: whether an existing table becomes the clone, as a new version.
        properties: table properties of the clone that replace, or are added to, the source's.
        storage_options: options of the target's storage; those of the source by default.
        store: an opened store instead of the target's own.
        commit_info: recorded in the commitInfo beside this library's own fields.
        on_progress: called with the number of files copied so far, and of all to copy.

    Raises:
        TableAlreadyExists: a table exists, and `replace` is false.
        InvalidArgument: one location is inside the other, the storage of a shallow clone cannot
            open the files, or an argument is invalid.
        TableNotFound, VersionNotFound: the source has no such version.
        DataFileMissing: a file of the version is missing; nothing was committed.
        UnsupportedFeature, ConditionalPutUnsupported: the clone could not be written.
        CommitConflict, CommitStateUnknown, StorageFailure: the commit failed, or may have
            failed.
    """
    source = table.snapshot(version, timestamp)
    if store is None:
        own = table.store.location.options
        store = open_store(target, own if storage_options is None else storage_options)
    options = CloneOptions(deep, replace, properties, commit_info, on_progress)
    return clone_table(source, store, options, clock=now_ms)


class CloneOptions(msgspec.Struct, frozen=True):
    """Options of the caller."""

    deep: bool
    replace: bool = False
    properties: Mapping[str, object] | None = None
    commit_info: Mapping[str, object] | None = None
    on_progress: Callable[[int, int], None] | None = None
    replaced: Snapshot | None = None
    """The version of the target to replace; the newest by default. A later one is a conflict."""
    data_change: bool = True
    """False if the target has the same rows already, in other files."""


def clone_table(
    source: Snapshot, store: ObjectStore, options: CloneOptions, *, clock: Clock
) -> CommitResult:
    """Create a table with the rows of a version in another store, in one commit."""
    newest = check_clone(source, store, options)
    existing = newest if options.replaced is None else options.replaced
    properties = {**demanded_by_catalog(store), **(options.properties or {})}
    configuration = _plan_configuration(source, existing, properties, now_ms=clock())
    transaction = Transaction(store, existing, clock=clock)
    # What readers misread of the source, they misread of its clone.
    check_readers(source.configuration, configuration, table=store.location.uri)
    transaction.stage_configuration(configuration, force=True)
    transaction.depend_on(ReadScope(whole_table=True))
    files = source.live_files()
    copies: list[FileCopy] = []
    vectors: list[FileCopy] = []
    if options.deep:
        copy = _DeepCopy(source, existing, store, clock())
        named, copies, vectors = copy.name(files), copy.copies, list(copy.vectors.values())
    else:
        named = refer_to_files(files, source.store)
    now = named.slice(0, 0) if existing is None else existing.live_files()
    difference = VersionDifference(
        before=existing,
        target=source,
        configuration=configuration,
        files=FileDifference.between(now, named),
        positions=positions_to_change(existing, source),
    )
    follows_events = source.transaction_version(CHANGE_MEMORY) not in (None, NOT_FOLLOWED)
    if existing is not None and not difference.changes_anything and not follows_events:
        return CommitResult(existing.version, {}, existing, skipped=True)
    difference.stage(transaction, data_change=options.data_change)
    # These are not registered as files of this attempt: another clone into the same location may
    # have made the same files. So a failure leaves them to the next attempt, or to VACUUM.
    copy_files(source, store, [*copies, *vectors], options.on_progress)
    if follows_events:
        # Imported late: few tables follow change events.
        from dagster_delta.table.operations.change_memory import ChangeMemory

        memory = ChangeMemory.beside(store, configuration.metadata.id, existing)
        version = memory.take_over(ChangeMemory.of(source), commit_info=options.commit_info)
        transaction.record_application(CHANGE_MEMORY, version)
    try:
        return transaction.commit(
            "CLONE",
            parameters={
                "source": f"delta.`{source.store.location.uri}`",
                "sourceVersion": source.version,
            },
            metrics=_count_copies(files, difference.files.leaving, copies),
            user_info=options.commit_info,
        )
    except CommitConflict:
        if existing is not None:
            raise
        raise _already_exists(store) from None


def check_clone(source: Snapshot, store: ObjectStore, options: CloneOptions) -> Snapshot | None:
    """Check the target of a clone before anything is written; the table that is there, or None.

    Raises:
        InvalidArgument: the location is in or around the source, or cannot refer to its files.
        UnsupportedFeature: it is a shallow clone, and a catalog manages its table.
        TableAlreadyExists: a table is there, and is not to be replaced.
    """
    _check_locations(source, store, deep=options.deep)
    uri = store.location.uri
    if is_in_catalog(store) and not options.deep:
        raise UnsupportedFeature(
            "a table that a catalog manages has its files where the catalog gives credentials, and "
            "cannot refer to those of another table: pass deep=True",
            table=uri,
        )
    existing = find_snapshot(store)
    if existing is not None and not options.replace:
        raise _already_exists(store)
    return existing


def _check_locations(source: Snapshot, store: ObjectStore, *, deep: bool) -> None:
    own, other = source.store.location.uri, store.location.uri
    first, second = (f"{_normalize_uri(uri)}/" for uri in (own, other))
    if first.startswith(second) or second.startswith(first):
        raise InvalidArgument(
            f"a clone lies beside its table and not in it, or VACUUM of one would delete files of "
            f"the other; choose another location than {other}",
            table=own,
        )
    if deep or not source.num_files:
        return
    path = refer_to_files(source.live_files().slice(0, 1), source.store)["path"][0].as_py()
    same_kind = _normalize_uri(own).partition(":")[0] == _normalize_uri(other).partition(":")[0]
    if not same_kind or store.head(decode_path(path)) is None:
        raise InvalidArgument(
            f"the store of {other} does not find the file {path} of the table, so a clone there "
            "could not refer to it; pass deep=True to copy the files, or check that the table is "
            "complete and the storage options reach it",
            table=own,
            version=source.version,
        )


def _normalize_uri(uri: str) -> str:
    """A normal form of a location: equal locations have equal texts."""
    scheme = scheme_of(uri)
    if scheme in ("s3a", "s3n"):
        uri = f"s3{uri[len(scheme) :]}"
    return (f"file:{uri}" if scheme is None else uri).rstrip("/")


def _already_exists(store: ObjectStore) -> TableAlreadyExists:
    return TableAlreadyExists(
        "a table is there already; pass replace=True to make it a clone as a new version, or "
        "choose another location",
        table=store.location.uri,
    )


def _plan_configuration(
    source: Snapshot,
    existing: Snapshot | None,
    properties: Mapping[str, object],
    *,
    now_ms: int,
) -> TableConfiguration:
    if COLUMN_CHANGE_KEY in source.metadata.configuration:
        raise InvalidArgument(
            "a column change is in progress in that version, and the clone could not carry it on; "
            "finish or cancel it, or clone an older version",
            table=source.store.location.uri,
            version=source.version,
        )
    configuration = without_catalog(source.configuration)
    metadata = msgspec.structs.replace(
        configuration.metadata.without(*OF_THE_LOG), id=str(uuid.uuid4()), created_time_ms=now_ms
    )
    configuration = TableConfiguration(configuration.protocol, metadata)
    if existing is not None:
        configuration = restored_configuration(existing.configuration, configuration)
    if properties:
        configuration = set_properties(configuration, properties)
    if iceberg_compat_version(configuration) not in (
        None,
        iceberg_compat_version(source.configuration),
    ):
        raise InvalidArgument(
            "files that were written without Iceberg compatibility do not get it by being cloned; "
            "clone without that property, and create an Iceberg-compatible table from the rows"
        )
    return configuration


def copy_files(
    source: Snapshot,
    store: ObjectStore,
    copies: Sequence[FileCopy],
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Copy files of a version into another store, several at a time. Raises DataFileMissing if one
    is gone.
    """
    if not copies:
        return
    with ThreadPoolExecutor(min(_MAX_WORKERS, len(copies)), "delta-clone") as workers:
        running = [workers.submit(_copy_file, source, store, copy) for copy in copies]
        try:
            for done, future in enumerate(as_completed(running), start=1):
                future.result()
                if on_progress is not None:
                    on_progress(done, len(copies))
        except BaseException:
            workers.shutdown(cancel_futures=True)
            raise


def _copy_file(source: Snapshot, store: ObjectStore, copy: FileCopy) -> None:
    try:
        if isinstance(store, CopyingStore) and store.copy_object(
            source.store, copy.source, copy.target
        ):
            return
        chunk = source.store.read_range(copy.source, 0, _CHUNK_BYTES)
        offset = len(chunk)
        with store.open_output(copy.target) as to:
            to.write(chunk)
            while len(chunk) == _CHUNK_BYTES:
                chunk = source.store.read_range(copy.source, offset, _CHUNK_BYTES)
                offset += len(chunk)
                to.write(chunk)
    except FileNotFoundError as error:
        raise DataFileMissing(
            "a file that the version needs is gone, probably vacuumed, so it cannot be cloned; "
            "clone a newer version",
            table=source.store.location.uri,
            version=source.version,
            file=copy.source,
        ) from error


def _count_copies(
    files: pa.Table, leaving: pa.Table, copies: Sequence[FileCopy]
) -> dict[str, int | str]:
    return {
        "sourceTableSize": total_bytes(files),
        "sourceNumOfFiles": files.num_rows,
        "numRemovedFiles": leaving.num_rows,
        "numCopiedFiles": len(copies),
        "removedFilesSize": total_bytes(leaving),
        "copiedFilesSize": sum(copy.size_bytes for copy in copies),
    }


_PLAIN_PATH = r"^[A-Za-z0-9_][A-Za-z0-9_=.-]*(/[A-Za-z0-9_=][A-Za-z0-9_=.-]*)*$"
(_NO_SEPARATOR,) = string_column([""])

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_Vector = dict[str, object] | None


class FileCopy(msgspec.Struct, frozen=True):
    """A file that the clone needs a copy of."""

    source: str
    """Decoded path in the store of the source."""
    target: str
    """Decoded path relative to the root of the clone."""
    size_bytes: int = 0
    """Size of the file; 0 if the log does not give it."""


def refer_to_files(files: pa.Table, store: ObjectStore) -> pa.Table:
    """Live files by absolute URIs, their deletion vectors included."""

    def name(vector: DeletionVectorDescriptor, fields: dict[str, object]) -> _Vector:
        uri = _absolute_uri(store, deletion_vector_path(vector))
        return {**fields, "storage_type": "p", "path_or_inline_dv": uri}

    return rename_files(files, _absolute_paths(files["path"], store), name)


def _absolute_paths(paths: pa.ChunkedArray, store: ObjectStore) -> list[str]:
    """The absolute URIs of files by their paths as in the log."""
    # Nearly all names need no decoding: those follow the root as they are.
    probe = _absolute_uri(store, "x")
    is_plain = pc.and_(
        pc.match_substring_regex(paths, _PLAIN_PATH),
        pc.invert(pc.match_substring(paths, "..")),
    )
    joined = pc.binary_join_element_wise(string_column([probe[:-1]])[0], paths, _NO_SEPARATOR)
    found: list[str] = joined.to_pylist()
    for position in pc.indices_nonzero(pc.invert(is_plain)).to_pylist():
        found[position] = _absolute_uri(store, decode_path(paths[position].as_py()))
    return found


def _absolute_uri(store: ObjectStore, path: str) -> str:
    """The URI of a file as Spark spells it: delta-spark finds the file of a row by that text, and
    accepts no other spelling when it deletes rows.
    """
    uri = store.resolve_uri(path)
    if scheme_of(uri) in (None, "file"):
        uri = spark_path(uri)
    return encode_uri(uri)


class _DeepCopy:
    """Gives the files of the source names in the directory of the clone, the same relative paths if
    these are free, and notes the copies that it needs.

    Files of the last day with a UUID in their name count as copies of an earlier attempt; no VACUUM
    will delete them soon.
    """

    def __init__(
        self, source: Snapshot, existing: Snapshot | None, store: ObjectStore, now_ms: int
    ) -> None:
        self.copies: list[FileCopy] = []
        """The data files that the clone does not have yet."""
        self.vectors: dict[str, FileCopy] = {}
        """Copies of the files with deletion vectors, by path in the clone."""
        self._partition_columns = source.configuration.physical_partition_columns
        self._reused_since_ms = now_ms - DAY_MS
        self._taken: set[str] = set()
        self._live: dict[str, tuple[int, int]] = {}
        self._live_vectors: frozenset[str] = frozenset()
        if existing is not None:
            columns = ["path", "size_bytes", "modification_time_ms", "deletion_vector"]
            now = existing.live_files(columns)
            paths, sizes, times = (now[name].to_pylist() for name in columns[:3])
            self._live = dict(
                zip(map(decode_path, paths), zip(sizes, times, strict=True), strict=True)
            )
            self._live_vectors = frozenset(deletion_vector_paths(now["deletion_vector"]))
        self._present = {
            meta.path: meta
            for meta in store.list_recursive()
            if not meta.path.startswith(f"{LOG_DIRECTORY}/")
        }

    def name(self, files: pa.Table) -> pa.Table:
        columns = ["path", "partition_values", "size_bytes", "modification_time_ms"]
        paths = []
        for row in files.select(columns).to_pylist():
            source = decode_path(row["path"])
            values = dict(row["partition_values"] or ())
            ordered = {name: values.get(name) for name in self._partition_columns}
            wanted = relative_path_in(source, partition_directory(ordered))
            path = self._choose_path(source, wanted, row["size_bytes"], row["modification_time_ms"])
            paths.append(encode_path(path))
        return rename_files(files, paths, self._name_vector)

    def _choose_path(self, source: str, wanted: str, size_bytes: int, modified_ms: int) -> str:
        """The path of a data file in the clone."""
        if wanted not in self._taken:
            self._taken.add(wanted)
            found = self._present.get(wanted)
            if wanted in self._live:
                if self._live[wanted] == (size_bytes, modified_ms):
                    return wanted
            elif found is None:
                self.copies.append(FileCopy(source, wanted, size_bytes))
                return wanted
            elif found.size_bytes == size_bytes and self._is_earlier_copy(found):
                return wanted
        # Another file has the name, and versions of the clone may need it.
        directory, slash, name = wanted.rpartition("/")
        other = f"{directory}{slash}{uuid.uuid4()}-{name}"
        self.copies.append(FileCopy(source, other, size_bytes))
        return other

    def _is_earlier_copy(self, found: ObjectMeta) -> bool:
        return found.modified_ms >= self._reused_since_ms and _UUID.search(found.path) is not None

    def _name_vector(self, vector: DeletionVectorDescriptor, fields: dict[str, object]) -> _Vector:
        source = deletion_vector_path(vector)
        if vector.storage_type == "p":
            location = encode_z85(_vector_file_id(source).bytes)
            fields = {**fields, "storage_type": "u", "path_or_inline_dv": location}
            vector = DeletionVectorDescriptor(**fields)  # type: ignore[arg-type]
        target = deletion_vector_path(vector)
        # Vector files have unique UUIDs, so an existing file with this one is a copy.
        found = self._present.get(target)
        is_there = found is not None and self._is_earlier_copy(found)
        if not is_there and target not in self._live_vectors:
            self.vectors[target] = FileCopy(source, target)
        return fields


def relative_path_in(path: str, partition: str) -> str:
    """The target path of a file: its own relative path, or its partition if it has none."""
    if not path.startswith("/") and scheme_of(path) is None:
        return posixpath.normpath(path)
    name = path.rpartition("/")[2]
    return f"{partition}/{name}" if partition else name


def _vector_file_id(path: str) -> uuid.UUID:
    """The UUID in the name of a file with vectors, or one computed from the path."""
    found = _UUID.findall(path.rpartition("/")[2])
    return uuid.UUID(found[-1]) if found else uuid.uuid5(uuid.NAMESPACE_URL, path)


def rename_files(
    files: pa.Table,
    paths: list[str],
    name_vector: Callable[[DeletionVectorDescriptor, dict[str, object]], _Vector],
) -> pa.Table:
    """The files with other paths and, where these are in files, other deletion vectors."""
    vectors = files["deletion_vector"].to_pylist()
    for position, fields in enumerate(vectors):
        if fields is not None and fields["storage_type"] != "i":
            vectors[position] = name_vector(DeletionVectorDescriptor(**fields), fields)
    columns = dict(zip(files.column_names, files.columns, strict=True))
    columns["path"] = pa.chunked_array([string_column(paths)])
    columns["deletion_vector"] = pa.chunked_array([column_of(vectors, DELETION_VECTOR_TYPE)])
    return pa.Table.from_arrays(list(columns.values()), schema=files.schema)
