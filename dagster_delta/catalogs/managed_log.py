"""The log of a table whose commits Unity Catalog takes.

It looks like that of any table. What the catalog has accepted and nobody has published yet is
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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from dagster_delta.catalogs.catalog_store import CatalogStore, version_of
from dagster_delta.catalogs.unity_client import CatalogRefusal, table_path
from dagster_delta.catalogs.unity_messages import (
    TABLE_ID_KEY,
    CatalogCommit,
    LoadedTable,
    changes_metadata,
    commit_timestamp_ms,
    describe_commit,
    describe_metrics,
)
from dagster_delta.catalogs.unity_table import UnityTable
from dagster_delta.errors import (
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
    commit_path,
    parse_log_file_name,
)
from dagster_delta.storage.object_store import MaintenanceWork, ObjectMeta, ObjectStore

if TYPE_CHECKING:
    from dagster_delta.storage.file_objects import PendingFile

_LOG = logging.getLogger(__name__)

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
        version = version_of(path)
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
        version = version_of(path)
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
        version = version_of(path)
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
            version = version_of(path)
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


def _is_of_log(path: str) -> bool:
    return path == LOG_DIRECTORY or path.startswith(f"{LOG_DIRECTORY}/")


def _staged_path(commit: CatalogCommit) -> str:
    return f"{STAGED_COMMIT_DIRECTORY}/{commit.file_name}"


def _meta_of(commit: CatalogCommit) -> ObjectMeta:
    # Without a time: the published copy will have another one than the staged file.
    return ObjectMeta(commit_path(commit.version), commit.file_size, 0)
