"""A handle on a table: its location, the latest version that it has seen, and its settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_delta.clock import now_ms
from dagster_delta.errors import InvalidArgument, TableNotFound
from dagster_delta.protocol.actions import Metadata, Protocol
from dagster_delta.protocol.schema import StructType
from dagster_delta.storage import open_store
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.read.snapshot import Snapshot, find_snapshot
from dagster_delta.table.transaction.commit_result import CommitResult

if TYPE_CHECKING:
    from dagster_delta.table.read.history import HistoryEntry
    from dagster_delta.table.transaction.transaction import Transaction


class TableHandle:
    """State shared by the calls of a table; `DeltaTable` combines and documents them."""

    def __init__(
        self,
        uri: str | os.PathLike[str],
        version: int | None = None,
        *,
        storage_options: Mapping[str, object] | None = None,
        store: ObjectStore | None = None,
        must_exist: bool = True,
        allow_column_changes: bool = True,
    ) -> None:
        self._store = store if store is not None else open_store(uri, storage_options)
        directory, _, name = self._store.location.uri.rstrip("/").rpartition("/")
        if name == "_delta_log":
            raise InvalidArgument(
                f"this is the log of a table: give the location of the table, {directory}",
                table=self._store.location.uri,
            )
        self._allow_column_changes = allow_column_changes
        self._pinned = version is not None
        self._refusal: str | None = None
        self._snapshot: Snapshot | None = None
        try:
            self._snapshot = Snapshot.load(self._store, version=version)
        except TableNotFound as error:
            if must_exist:
                root = self._store.local_path("")
                logs = () if root is None else islice(Path(root).glob("*/_delta_log"), 3)
                if names := sorted(log.parent.name for log in logs):
                    error.message += f"; there are tables in this directory: {', '.join(names)}"
                raise

    def __repr__(self) -> str:
        version = "absent" if self._snapshot is None else f"version {self._snapshot.version}"
        return f"DeltaTable({self.uri!r}, {version})"

    @property
    def uri(self) -> str:
        """Location of the table, without credentials."""
        return self._store.location.uri

    @property
    def store(self) -> ObjectStore:
        """The store that holds the table."""
        return self._store

    def version(self) -> int:
        """The version of this handle. Raises TableNotFound if the table does not exist yet."""
        return self._known().version

    def schema(self) -> StructType:
        """The logical schema. Raises TableNotFound if the table does not exist yet."""
        return self._known().schema

    def protocol(self) -> Protocol:
        """The protocol action. Raises TableNotFound if the table does not exist yet."""
        return self._known().protocol

    def metadata(self) -> Metadata:
        """The metadata action. Raises TableNotFound if the table does not exist yet."""
        return self._known().metadata

    def refuse_writes(self, reason: str) -> None:
        """Make this handle one that only reads: each statement that changes, or plans to change,
        the table is refused with this reason.
        """
        self._refusal = reason

    @property
    def refusal(self) -> str | None:
        """Why this handle refuses writes; None if it does not."""
        return self._refusal

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """The commits, newest first, as far back as the log reaches.

        Args:
            limit: maximum number of commits; None for all.

        Raises:
            TableNotFound, CorruptLog, StorageFailure.
        """
        from dagster_delta.table.read.history import history

        return history(self._known(), limit)

    def snapshot(
        self, version: int | None = None, timestamp: datetime | str | int | None = None
    ) -> Snapshot:
        """One immutable version of the table, by default the version of this handle.

        Args:
            version: number of the version.
            timestamp: the latest version committed at or before it; a text is ISO 8601, a number is
                milliseconds since the epoch.

        Raises:
            TableNotFound, VersionNotFound, InvalidTable, UnsupportedFeature.
            InvalidArgument: both are given.
        """
        if version is None and timestamp is None:
            return self._known()
        known = self._snapshot
        if known is not None and timestamp is None and version == known.version:
            return known
        return Snapshot.load(self._store, version=version, timestamp=timestamp)

    def refresh(self) -> Snapshot:
        """Move this handle to the latest version, and return it.

        Raises:
            TableNotFound, InvalidTable, UnsupportedFeature, StorageFailure.
        """
        if self._refusal is not None:
            return self._known() if self._pinned else self._find_newest() or self._known()
        self._pinned = False
        latest = self._latest()
        return self._known() if latest is None else latest

    def transaction(self) -> Transaction:
        """A transaction on the latest version, for callers that stage actions themselves.

        Raises:
            UnsupportedFeature, UnsupportedWriterVersion: this library cannot write the table.
            ConditionalPutUnsupported: the store cannot commit safely.
            InvalidArgument: the handle was opened at a version.
        """
        from dagster_delta.table.transaction.transaction import Transaction

        return Transaction(self._store, self._latest())

    def _known(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = Snapshot.load(self._store)
        return self._snapshot

    def _recent(self) -> Snapshot | None:
        """The version of this handle if a commit can be tried on it without reading the log: the
        put of the next version fails if that version was committed, unless it was deleted since.
        """
        known = None if self._pinned or self._refusal is not None else self._snapshot
        return known if known is not None and known.keeps_log(now_ms()) else None

    def _latest(self) -> Snapshot | None:
        """The latest version, from which every write starts; None if the table does not exist."""
        self._check_refusal()
        if self._pinned:
            raise InvalidArgument(
                "the handle was opened at a version, and only the latest one can be written; open "
                "the table without version",
                table=self.uri,
            )
        return self._find_newest()

    def _check_refusal(self) -> None:
        if self._refusal is not None:
            raise InvalidArgument(self._refusal, table=self.uri)

    def _find_newest(self) -> Snapshot | None:
        known = self._snapshot
        self._snapshot = find_snapshot(self._store) if known is None else known.update()
        return self._snapshot

    def _existing(self) -> Snapshot:
        latest = self._latest()
        if latest is None:
            raise TableNotFound(
                "there is no Delta table here to change: create it, or append to it first",
                table=self.uri,
            )
        return latest

    def _adopt(self, result: CommitResult) -> CommitResult:
        self._snapshot = result.snapshot
        return result
