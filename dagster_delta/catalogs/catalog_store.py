"""The files of a table of Unity Catalog, and the log of one whose commits the storage takes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dagster_delta.catalogs.unity_client import (
    CatalogRefusal,
    UnityClient,
    client_of,
    schema_path,
    split_name,
    table_path,
)
from dagster_delta.catalogs.unity_messages import (
    LoadedTable,
    describe_external_change,
    describe_new_table,
)
from dagster_delta.catalogs.unity_table import UnityTable
from dagster_delta.errors import CommitStateUnknown, StorageFailure, TableNotFound
from dagster_delta.protocol.actions import Metadata
from dagster_delta.protocol.log.commit_file import decode_commit
from dagster_delta.protocol.log.paths import (
    LOG_DIRECTORY,
    LogFileKind,
    checksum_path,
    parse_log_file_name,
)
from dagster_delta.protocol.log.version_checksum import parse_version_checksum
from dagster_delta.storage.object_store import ObjectMeta, ObjectStore, StoreLocation

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_delta.storage.file_objects import PendingFile

_LOG = logging.getLogger(__name__)

_CHANGES = (b'"metaData"', b'"protocol"', b'"domainMetadata"')


class CatalogStore:
    """The files of a table of a catalog."""

    def __init__(
        self, inner: ObjectStore, table: UnityTable, options: Mapping[str, object]
    ) -> None:
        self._inner = inner
        self._table = table
        self._location = StoreLocation(inner.location.uri, dict(options))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._table.table!r}, {self._inner!r})"

    @property
    def location(self) -> StoreLocation:
        """Where the table is, with the options that name it in the catalog."""
        return self._location

    @property
    def supports_put_if_absent(self) -> bool:
        """As the storage."""
        return self._inner.supports_put_if_absent

    @property
    def _client(self) -> UnityClient:
        return client_of(self._table.server)

    def read(self, path: str) -> bytes:
        """As the port."""
        return self._inner.read(path)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """As the port."""
        return self._inner.read_range(path, offset, length)

    def head(self, path: str) -> ObjectMeta | None:
        """As the port."""
        return self._inner.head(path)

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        """As the port."""
        return self._inner.list_from(directory, start)

    def list_recursive(self, directory: str = "") -> Iterator[ObjectMeta]:
        """As the port."""
        return self._inner.list_recursive(directory)

    def put_if_absent(self, path: str, data: bytes) -> None:
        """As the port."""
        self._inner.put_if_absent(path, data)

    def put(self, path: str, data: bytes) -> None:
        """As the port."""
        self._inner.put(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        """As the port."""
        self._inner.delete(paths)

    def open_input(self, path: str, *known: Any) -> pa.NativeFile:
        """As the port."""
        return self._inner.open_input(path, *known)

    def open_output(self, path: str) -> PendingFile:
        """As the port."""
        return self._inner.open_output(path)

    def local_path(self, path: str) -> str | None:
        """As the port."""
        return self._inner.local_path(path)

    def resolve_uri(self, path: str) -> str:
        """As the port."""
        return self._inner.resolve_uri(path)

    def _register(self, data: bytes, table_type: str) -> LoadedTable:
        """Register the table by its first commit. Raises CatalogRefusal without an answer."""
        commit = decode_commit(data, version=0)
        catalog, schema, name = split_name(self._table.table)
        request = describe_new_table(name, self._table.location, table_type, commit)
        return self._client.post(f"{schema_path(catalog, schema)}/tables", request, LoadedTable)

    def _load(self) -> LoadedTable:
        return self._client.get(table_path(self._table.table), LoadedTable)

    def _is_registered(self) -> bool:
        try:
            known = self._load().metadata.location
        except (StorageFailure, TableNotFound):
            return False
        return known.rstrip("/") == self._table.location.rstrip("/")

    def _update(
        self, table_id: str, updates: list[dict[str, object]], etag: str | None = None
    ) -> LoadedTable:
        requirements = [{"type": "assert-table-uuid", "uuid": table_id}]
        if etag is not None:
            requirements.append({"type": "assert-etag", "etag": etag})
        body = {"requirements": requirements, "updates": updates}
        return self._client.post(table_path(self._table.table), body, LoadedTable)

    def _metadata_before(self, version: int) -> Metadata | None:
        """Metadata of the version before one, by its checksum; None if it has none."""
        try:
            found = parse_version_checksum(self._inner.read(checksum_path(version - 1)))
        except (FileNotFoundError, StorageFailure):
            return None
        return None if found is None else found.metadata


class ExternalTableStore(CatalogStore):
    """A table whose commits the storage takes; the catalog is told what they change."""

    def put_if_absent(self, path: str, data: bytes) -> None:
        """As the port. The catalog registers a new table, and takes over changes of columns,
        properties and protocol: what it refuses is logged, as the commit is made by then.
        """
        self._inner.put_if_absent(path, data)
        version = version_of(path)
        if version is None or self._table.is_older:
            return
        if self._table.is_new and version == 0:
            self._register_first(data)
        elif any(action in data for action in _CHANGES):
            try:
                self._tell(version, data)
            except (StorageFailure, TableNotFound) as error:
                _LOG.warning(
                    "version %d of %s is committed, but the catalog does not show what it changed "
                    "besides rows: %s",
                    version,
                    self._table.table,
                    error,
                )

    def _register_first(self, data: bytes) -> None:
        try:
            self._register(data, "EXTERNAL")
        except CatalogRefusal as refusal:
            if self._is_registered():
                return
            # No InvalidTable, after which the files of the commit would be deleted.
            raise CommitStateUnknown(
                f"the table was created, but {self._table.table} is not in the catalog: "
                f"{refusal.message}; drop it, or register it by SQL (CREATE TABLE … LOCATION …)",
                table=self._location.uri,
                version=0,
            ) from refusal

    def _tell(self, version: int, data: bytes) -> None:
        known = self._load().metadata
        commit = decode_commit(data, version=version)
        changes = describe_external_change(commit, known, self._metadata_before(version))
        if changes:
            self._update(known.table_uuid, changes)


def version_of(path: str) -> int | None:
    """The version of a commit file; None for other files."""
    if not path.startswith(f"{LOG_DIRECTORY}/") or not path.endswith(".json"):
        return None
    parsed = parse_log_file_name(path[len(LOG_DIRECTORY) + 1 :])
    is_commit = parsed is not None and parsed.kind is LogFileKind.COMMIT
    return parsed.version if parsed is not None and is_commit else None
