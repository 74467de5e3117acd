"""Tables of Unity Catalog as stores: their files with vended credentials, and a log whose commits
the catalog accepts.

The log looks like that of any table. What the catalog has accepted and nobody has published yet is
listed and read as `_delta_log/<n>.json`, from its staged file; a put of the next one is a proposal
to the catalog. So readers, committers and conflicts know nothing of the catalog.

Spec: Catalog-managed tables (of the Delta protocol); Unity Catalog Managed Tables 1.0.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dagster_delta.catalogs.unity_client import (
    CatalogRefusal,
    UnityClient,
    UnityServer,
    client_of,
    schema_path,
    split_name,
    table_path,
)
from dagster_delta.catalogs.unity_messages import (
    TABLE_ID_KEY,
    CatalogCommit,
    LoadedTable,
    changes_metadata,
    commit_timestamp_ms,
    describe_commit,
    describe_external_change,
    describe_metrics,
    describe_new_table,
)
from dagster_delta.catalogs.vended_credentials import CredentialSource
from dagster_delta.errors import (
    CommitStateUnknown,
    DeltaError,
    InvalidArgument,
    InvalidTable,
    StorageFailure,
    TableAlreadyExists,
    TableNotFound,
    UnsupportedFeature,
)
from dagster_delta.protocol.actions import Metadata
from dagster_delta.protocol.log.commit_file import CommitActions, decode_commit
from dagster_delta.protocol.log.paths import (
    LOG_DIRECTORY,
    STAGED_COMMIT_DIRECTORY,
    LogFileKind,
    checksum_path,
    commit_path,
    parse_log_file_name,
)
from dagster_delta.protocol.log.version_checksum import parse_version_checksum
from dagster_delta.storage import absolute_uri, open_store, scheme_of
from dagster_delta.storage.object_store import (
    FetchBudget,
    MaintenanceWork,
    ObjectMeta,
    ObjectStore,
    RangeStore,
    StoreLocation,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_delta.storage.file_objects import PendingFile

_LOG = logging.getLogger(__name__)

_PREFIX = "unity_catalog_"
_MAX_PROPOSALS = 4
"""How often a commit is proposed whose proposal the catalog did not judge by its version."""
_PAUSE_SECONDS = 0.1
_ICEBERG_KEY = "delta.universalFormat.enabledFormats"
_CONTRACT = (
    TABLE_ID_KEY,
    "delta.checkpoint.writeStatsAsJson",
    "delta.checkpoint.writeStatsAsStruct",
    "delta.checkpointPolicy",
    "delta.enableDeletionVectors",
    "delta.enableInCommitTimestamps",
)
"""Properties that the catalog demands of a table that it manages, also after it was replaced."""

_DEMANDED_FEATURES = frozenset(
    {
        *("catalogManaged", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors"),
        "inCommitTimestamp",
    }
)
"""Those that servers of the versions 0.5 to 0.7 name when a table is created; of an existing table,
no answer tells them."""

Commits = Literal["catalog", "storage"]


class UnityTable(msgspec.Struct, frozen=True):
    """A table of a server: what the options `unity_catalog_…` of a store say."""

    server: UnityServer
    table: str
    """Its name, `catalog.schema.table`."""
    location: str
    """Its location as the catalog spells it."""
    table_id: str | None = None
    """Its id in the catalog; None for an external table that is not registered yet."""
    commits: Commits = "catalog"
    """Who takes commits: the catalog, or the storage as of any table."""
    is_new: bool = False
    """Whether the first commit registers the table."""
    properties: Mapping[str, str] = {}
    """What the first commit of a new table has to set."""
    vends_credentials: bool = True
    is_older: bool = False
    """Whether the server lacks the Delta API."""

    def to_options(self) -> dict[str, object]:
        """The options of a store that `of_options` reads; all are texts."""
        server = {
            name: value
            for name, value in msgspec.structs.asdict(self.server).items()
            if value is not None
        }
        found: dict[str, object] = {
            f"{_PREFIX}{name}": str(value) for name, value in server.items()
        }
        for name in ("table", "location", "commits"):
            found[f"{_PREFIX}{name}"] = getattr(self, name)
        if self.table_id is not None:
            found[f"{_PREFIX}table_id"] = self.table_id
        if self.properties:
            found[f"{_PREFIX}properties"] = msgspec.json.encode(self.properties).decode()
        for name in _SWITCHES:
            found[f"{_PREFIX}{name}"] = str(getattr(self, name)).lower()
        return found

    @classmethod
    def of_options(cls, options: Mapping[str, object]) -> UnityTable:
        """The table that options name. Raises InvalidArgument for others than those of
        `to_options`.
        """
        given = {name.removeprefix(_PREFIX): str(value) for name, value in options.items()}
        try:
            server = msgspec.convert(
                {key: given.pop(key) for key in UnityServer.__struct_fields__ if key in given},
                UnityServer,
                strict=False,
            )
            if "properties" in given:
                given["properties"] = msgspec.json.decode(given["properties"])
            return msgspec.convert({**given, "server": server}, cls, strict=False)
        except (msgspec.ValidationError, msgspec.DecodeError):
            names = ", ".join(sorted(given))
        raise InvalidArgument(
            f"the options {_PREFIX}… of a table are those that UnityCatalog.resolve gives; these "
            f"are not: {names}"
        )


_SWITCHES = ("is_new", "vends_credentials", "is_older")


def open_unity_table(location: str, options: Mapping[str, object]) -> ObjectStore:
    """The store of a table, by its location and the options that `UnityCatalog.resolve` gives."""
    own = {name: value for name, value in options.items() if name.startswith(_PREFIX)}
    inner = {name: value for name, value in options.items() if name not in own}
    table = UnityTable.of_options(own)
    if absolute_uri(location) != absolute_uri(table.location):
        # Another table beside it, with the same options of the storage.
        return open_store(location, inner)
    if table.vends_credentials and scheme_of(location) not in (None, "file", "memory"):
        inner["credential_provider"] = CredentialSource(
            server=table.server,
            location=table.location,
            table=table.table,
            is_new=table.is_new,
            staging_id=table.table_id if table.is_new else None,
            older_table_id=table.table_id if table.is_older else None,
        )
    opened = open_store(location, inner)
    of_catalog = table.commits == "catalog"
    kind: type[CatalogStore] = ManagedLogStore if of_catalog else ExternalTableStore
    if isinstance(opened, RangeStore):
        kind = _RangedManagedLogStore if of_catalog else _RangedExternalTableStore
    return kind(opened, table, options)


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


class _Ranges(CatalogStore):
    """With the optional part of the stores of clouds."""

    def open_ranges(
        self,
        path: str,
        ranges: Sequence[tuple[int, int]],
        size_bytes: int,
        budget: FetchBudget | None = None,
    ) -> pa.NativeFile:
        """As the port."""
        assert isinstance(self._inner, RangeStore)  # noqa: S101
        return self._inner.open_ranges(path, ranges, size_bytes, budget)


class ExternalTableStore(CatalogStore):
    """A table whose commits the storage takes; the catalog is told what they change."""

    def put_if_absent(self, path: str, data: bytes) -> None:
        """As the port. The catalog registers a new table, and takes over changes of columns,
        properties and protocol: what it refuses is logged, as the commit is made by then.
        """
        self._inner.put_if_absent(path, data)
        version = _version_of(path)
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


_CHANGES = (b'"metaData"', b'"protocol"', b'"domainMetadata"')


class _Tail(msgspec.Struct):
    """What is known of the commits of a table. It only grows: a catalog never takes one back."""

    latest: int = -1
    """The newest version; -1 before the table is registered."""
    commits: dict[int, CatalogCommit] = {}
    """Those that were not published when they were seen."""
    published: int = 0
    """Every version up to it is published."""
    loaded: LoadedTable | None = None
    """The last answer."""


class ManagedLogStore(CatalogStore):
    """A table whose commits the catalog takes. Thread-safe."""

    def __init__(
        self, inner: ObjectStore, table: UnityTable, options: Mapping[str, object]
    ) -> None:
        super().__init__(inner, table, options)
        self._tail = _Tail()
        self._reports = True
        self._lock = threading.RLock()

    # What the catalog says.

    def new_table_properties(self) -> Mapping[str, str]:
        """What a commit that creates or replaces the table has to set, features included."""
        return self._table.properties if self._table.is_new else self.demanded_properties()

    def demanded_properties(self) -> Mapping[str, str]:
        """As the port."""
        with self._lock:
            loaded = self._tail.loaded or self._reload()
        held = self._table.properties if loaded is None else loaded.metadata.properties
        return {key: held[key] for key in _CONTRACT if key in held}

    @property
    def demanded_features(self) -> frozenset[str]:
        """As the port."""
        return _DEMANDED_FEATURES

    def allows(self, work: MaintenanceWork) -> bool:
        """Whether the catalog permits maintenance by clients."""
        with self._lock:
            loaded = self._tail.loaded or self._reload()
        return loaded is not None and work in (loaded.allowed_maintenance_operations or ())

    def _reload(self) -> LoadedTable | None:
        """What the catalog says now; None for a new table that it does not have yet."""
        with self._lock:
            try:
                return self._absorb(self._load())
            except TableNotFound:
                if self._table.is_new and self._tail.latest < 0:
                    return None
                raise

    def _absorb(self, loaded: LoadedTable) -> LoadedTable:
        if loaded.metadata.table_uuid != self._table.table_id:
            if self._table.is_new and self._tail.latest < 0:
                raise TableAlreadyExists(
                    f"another client has created {self._table.table} by now: open it by resolve",
                    table=self._location.uri,
                )
            raise InvalidTable(
                f"{self._table.table} is another table in the catalog now, with the id "
                f"{loaded.metadata.table_uuid}: it was dropped and created again; resolve its name "
                "again",
                table=self._location.uri,
            )
        latest, commits = self._read_commits(loaded)
        with self._lock:
            tail = self._tail
            # An answer may arrive after a newer one.
            is_newest = latest >= tail.latest
            tail.commits = commits if is_newest else {**commits, **tail.commits}
            tail.loaded = loaded if is_newest else tail.loaded
            tail.latest = max(tail.latest, latest)
            tail.published = max(tail.published, min(commits, default=latest + 1) - 1)
        return loaded

    def _read_commits(self, loaded: LoadedTable) -> tuple[int, dict[int, CatalogCommit]]:
        """The newest version of an answer, and the commits up to it that it lists.

        Raises:
            StorageFailure: the log would end too early, or have a gap.
        """
        # Not an InvalidTable, which says that nothing was committed: this may be the answer to a
        # commit.
        latest = loaded.latest_table_version
        if latest is None:
            raise StorageFailure(
                f"Unity Catalog does not say which version of {self._table.table} is the newest "
                "(latest-table-version is missing): check that the server supports tables whose "
                "commits it takes",
                table=self._location.uri,
            )
        # Spec: the client must ignore any commits beyond latest-table-version; the list is complete
        # and contiguous up to it.
        listed = {found.version: found for found in loaded.commits or () if found.version <= latest}
        if listed and len(listed) != latest - min(listed) + 1:
            raise StorageFailure(
                f"Unity Catalog lists the commits {sorted(listed)} of {self._table.table}, whose "
                f"newest version is {latest}: others are missing, so that the log has a gap",
                table=self._location.uri,
                version=latest,
            )
        return latest, listed

    # Reading.

    def read(self, path: str) -> bytes:
        """As the port; a commit that the catalog names is read from its staged file."""
        version = _version_of(path)
        if version is None:
            return self._inner.read(path)
        staged = self._find(version)
        if staged is None:
            raise FileNotFoundError(path)
        if staged == path:
            return self._inner.read(path)
        try:
            return self._inner.read(staged)
        except FileNotFoundError:
            # It was published since, and cleaned up.
            return self._inner.read(path)

    def head(self, path: str) -> ObjectMeta | None:
        """As the port."""
        version = _version_of(path)
        if version is None:
            return self._inner.head(path)
        staged = self._find(version)
        if staged is None:
            return None
        commit = self._tail.commits.get(version)
        return self._inner.head(path) if commit is None else _meta_of(commit)

    def _find(self, version: int) -> str | None:
        """Where a commit is stored; None if the table does not have it."""
        with self._lock:
            if version > self._tail.latest:
                self._reload()
            if version > self._tail.latest:
                return None
            commit = self._tail.commits.get(version)
        return commit_path(version) if commit is None else _staged_path(commit)

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        """As the port. The log ends with the newest version of the catalog, also if files of later
        versions are there.
        """
        if directory != LOG_DIRECTORY:
            yield from self._inner.list_from(directory, start)
            return
        # In this order: what the catalog does not name any more was published before.
        self._reload()
        with self._lock:
            latest, commits = self._tail.latest, dict(self._tail.commits)
        if latest < 0:
            return
        metas = {commit_path(version): _meta_of(found) for version, found in commits.items()}
        first = f"{LOG_DIRECTORY}/{start}"
        missing = sorted(path for path in metas if path >= first)
        for meta in self._inner.list_from(directory, start):
            while missing and missing[0] < meta.path:
                yield metas[missing.pop(0)]
            if missing and missing[0] == meta.path:
                missing.pop(0)
            parsed = parse_log_file_name(meta.path[len(LOG_DIRECTORY) + 1 :])
            if parsed is None or parsed.end_version <= latest:
                yield metas.get(meta.path, meta)
        yield from map(metas.__getitem__, missing)

    def local_path(self, path: str) -> str | None:
        """As the port, but for the log: its names on the file system are not all of it."""
        return None if _is_of_log(path) else self._inner.local_path(path)

    # Writing.

    def put_if_absent(self, path: str, data: bytes) -> None:
        """As the port; a commit is proposed to the catalog."""
        version = _version_of(path)
        if version is None:
            self._check_published(path)
            self._inner.put_if_absent(path, data)
        elif version == 0:
            self._create(path, data)
        else:
            self._commit(path, version, data)

    def put(self, path: str, data: bytes) -> None:
        """As the port."""
        self._check_published(path)
        self._inner.put(path, data)

    def open_output(self, path: str) -> PendingFile:
        """As the port."""
        self._check_published(path)
        return self._inner.open_output(path)

    def delete(self, paths: Iterable[str]) -> None:
        """As the port; a commit that is not published is never deleted."""
        paths = list(paths)
        for path in paths:
            version = _version_of(path)
            if version is not None and version > max(0, self._tail.published):
                raise StorageFailure(
                    "the commit is not published yet, and nobody may delete it",
                    table=self._location.uri,
                    version=version,
                )
        self._inner.delete(paths)

    def _check_published(self, path: str) -> None:
        """Refuse a checkpoint of a version that is not published."""
        # Spec: checkpoints and compacted files may only be of published versions.
        name = path[len(LOG_DIRECTORY) + 1 :] if _is_of_log(path) else ""
        parsed = parse_log_file_name(name)
        if parsed is None or parsed.kind is LogFileKind.CHECKSUM:
            return
        if parsed.end_version > self._tail.published:
            self._reload()
            self.publish()
        if parsed.end_version > self._tail.published:
            raise StorageFailure(
                "a commit of the table could not be published yet, and a checkpoint may only "
                "follow published ones; repeat it later",
                table=self._location.uri,
                version=parsed.end_version,
            )

    def _create(self, path: str, data: bytes) -> None:
        """Write the first commit in place, and register the table."""
        if not self._table.is_new or self._reload() is not None:
            raise FileExistsError(path)
        # Delta Kernel for Java 4.4 appends to no table without the directory of staged commits.
        self._stage(0, data, 0)
        try:
            self._inner.put_if_absent(path, data)
        except FileExistsError:
            first = self._inner.read(path)
            if first != data:
                # Another process creates the same table: it may have ended before registering it.
                self._finish_creation(first)
                raise
        try:
            self._finish_creation(data)
        except InvalidArgument:
            # Its files are deleted next: no one may finish it.
            self._inner.delete([path])
            raise

    def _finish_creation(self, data: bytes) -> None:
        try:
            self._absorb(self._register(data, "MANAGED"))
        except (CatalogRefusal, TableAlreadyExists) as refusal:
            # The answer of an earlier request may have been lost.
            if self._is_registered():
                self._reload()
            elif isinstance(refusal, CatalogRefusal) and refusal.status == 400:
                raise InvalidArgument(
                    f"{refusal.message}; the table was not created", table=self._location.uri
                ) from refusal
            else:
                raise

    def _commit(self, path: str, version: int, data: bytes) -> None:
        if version <= self._tail.latest:
            raise FileExistsError(path)
        commit = decode_commit(data, version=version)
        staged = self._stage(version, data, commit_timestamp_ms(commit.commit_info or {}))
        before: Metadata | None = None
        if commit.metadata is not None:
            before = self._metadata_before(version)
        for attempt in range(_MAX_PROPOSALS):
            loaded = self._tail.loaded or self._reload()
            if loaded is None or version <= self._tail.latest:
                raise FileExistsError(path)
            self._check_formats(loaded, version)
            updates = describe_commit(commit, staged, loaded.metadata, before)
            etag = loaded.metadata.etag if changes_metadata(updates) else None
            try:
                answer = self._update(loaded.metadata.table_uuid, updates, etag)
            except CatalogRefusal as refusal:
                self._explain_refusal(refusal, path, version)
                if attempt == _MAX_PROPOSALS - 1:
                    raise
                time.sleep(_PAUSE_SECONDS * attempt)
            else:
                break
        self._absorb(answer)
        self._report_commit(answer.metadata.table_uuid, commit)
        try:
            self.publish()
        except (StorageFailure, TableNotFound) as error:
            _LOG.warning(
                "version %d of %s is committed, but not published yet: %s",
                version,
                self._table.table,
                error,
            )

    def _report_commit(self, table_id: str, commit: CommitActions) -> None:
        """Send what a commit wrote, by which the catalog plans its maintenance of the table."""
        if not self._reports:
            return
        report = describe_metrics(table_id, commit)
        try:
            self._client.post(f"{table_path(self._table.table)}/metrics", report, object)
        except DeltaError as error:
            # The commit stands. Without the report, the catalog compacts the table later.
            self._reports = False
            _LOG.debug("no metrics of %s are sent any more: %s", self._table.table, error)

    def _stage(self, version: int, data: bytes, timestamp_ms: int) -> CatalogCommit:
        # By the contents: the same commit, proposed again, has the same name.
        unique = uuid.UUID(bytes=hashlib.sha256(data).digest()[:16], version=4)
        name = f"{version:020d}.{unique}.json"
        staged = f"{STAGED_COMMIT_DIRECTORY}/{name}"
        with suppress(FileExistsError):
            self._inner.put_if_absent(staged, data)
        found = self._inner.head(staged)
        modified_ms = timestamp_ms if found is None else found.modified_ms
        return CatalogCommit(version, timestamp_ms, name, len(data), modified_ms or timestamp_ms)

    def _check_formats(self, loaded: LoadedTable, version: int) -> None:
        formats = loaded.metadata.properties.get(_ICEBERG_KEY, "")
        if "iceberg" in formats.lower():
            raise UnsupportedFeature(
                f"the table is readable as Iceberg ({_ICEBERG_KEY}), and the catalog takes only "
                "commits with Iceberg metadata, which dagster_delta does not write; write it with "
                "Spark, or unset the property there",
                table=self._location.uri,
                version=version,
            )

    def _explain_refusal(self, refusal: CatalogRefusal, path: str, version: int) -> None:
        """Return if the commit may be proposed again, or raise what its refusal means."""
        if refusal.kind == "ResourceExhaustedException":
            # Writers that ended before they published leave a backlog.
            self._reload()
            self.publish()
            return
        if refusal.status == 409:
            self._reload()
            if version <= self._tail.latest:
                raise FileExistsError(path) from refusal
            # Only the catalog's own facts have changed, for example the comment.
            return
        if refusal.status == 400:
            raise InvalidArgument(
                f"{refusal.message}; nothing was committed",
                table=self._location.uri,
                version=version,
            ) from refusal
        refusal.table, refusal.version = self._location.uri, version
        raise refusal

    def publish(self) -> None:
        """Copy what the catalog has accepted to the log, in order, and report it.

        Raises:
            StorageFailure: the storage or the catalog refused or failed.
        """
        with self._lock:
            tail = self._tail
            loaded, first = tail.loaded, tail.published + 1
            # Those that were copied before, too: the report on them may have been lost.
            waiting = [tail.commits[version] for version in sorted(tail.commits)]
        if loaded is None or not waiting:
            return
        for commit in waiting:
            if commit.version < first:
                continue
            path = commit_path(commit.version)
            try:
                data = self._inner.read(_staged_path(commit))
            except FileNotFoundError:
                # Another client has published it, and deleted the staged file.
                if self._inner.head(path) is not None:
                    continue
                raise StorageFailure(
                    "the catalog has accepted the commit, but its file is gone, so that it cannot "
                    "be published",
                    table=self._location.uri,
                    file=_staged_path(commit),
                    version=commit.version,
                ) from None
            with suppress(FileExistsError):
                self._inner.put_if_absent(path, data)
        published = waiting[-1].version
        # Spec: only after the copy of that version, and all before it, is complete.
        report: dict[str, object] = {
            "action": "set-latest-backfilled-version",
            "latest-published-version": published,
        }
        with self._lock:
            tail.published = max(tail.published, published)
        self._absorb(self._update(loaded.metadata.table_uuid, [report]))


class _RangedManagedLogStore(ManagedLogStore, _Ranges):
    """On a cloud."""


class _RangedExternalTableStore(ExternalTableStore, _Ranges):
    """On a cloud."""


def _is_of_log(path: str) -> bool:
    return path == LOG_DIRECTORY or path.startswith(f"{LOG_DIRECTORY}/")


def _version_of(path: str) -> int | None:
    """The version of a commit file; None for other files."""
    if not path.startswith(f"{LOG_DIRECTORY}/") or not path.endswith(".json"):
        return None
    parsed = parse_log_file_name(path[len(LOG_DIRECTORY) + 1 :])
    is_commit = parsed is not None and parsed.kind is LogFileKind.COMMIT
    return parsed.version if parsed is not None and is_commit else None


def _staged_path(commit: CatalogCommit) -> str:
    return f"{STAGED_COMMIT_DIRECTORY}/{commit.file_name}"


def _meta_of(commit: CatalogCommit) -> ObjectMeta:
    # Without a time: the published copy will have another one than the staged file.
    return ObjectMeta(commit_path(commit.version), commit.file_size, 0)
