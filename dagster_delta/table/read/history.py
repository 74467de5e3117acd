"""What was done to a table, commit by commit.

Spec: Commit Provenance Information.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from dagster_delta.cached_property import cached_property
from dagster_delta.errors import InvalidArgument, VersionNotFound
from dagster_delta.protocol.log.commit_file import decode_commit_info, in_commit_timestamp
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.commit_range import commit_times
from dagster_delta.table.log.reader import list_log, located, read_commit_info, read_versions
from dagster_delta.table.read.snapshot import Snapshot

_CONCURRENT_READS = 16


class HistoryEntry(msgspec.Struct, frozen=True, dict=True):
    """One commit. A fact that its writer did not record is None or empty."""

    version: int
    """Version of the table after the commit."""
    timestamp_ms: int
    """Time of the commit in milliseconds since the epoch, as time travel uses it: from this time
    on, the table is at this version. The time of the writer's clock is the `timestamp` of
    `commit_info`."""
    commit_info: Mapping[str, Any]
    """Everything the writer recorded, as in the log."""

    @property
    def operation(self) -> str | None:
        """What was done, such as WRITE or MERGE."""
        return self._find_text("operation")

    @property
    def operation_parameters(self) -> Mapping[str, Any]:
        """How it was done."""
        return self._find_mapping("operationParameters")

    @property
    def operation_metrics(self) -> Mapping[str, Any]:
        """Metrics of the operation."""
        return self._find_mapping("operationMetrics")

    @property
    def engine_info(self) -> str | None:
        """Who wrote it."""
        return self._find_text("engineInfo")

    @property
    def user_metadata(self) -> str | None:
        """Metadata that the user added to the commit."""
        return self._find_text("userMetadata")

    @property
    def transaction_id(self) -> str | None:
        """The unique id of the commit."""
        return self._find_text("txnId")

    @property
    def is_blind_append(self) -> bool | None:
        """Whether it added files without reading the table."""
        value = self.commit_info.get("isBlindAppend")
        return value if isinstance(value, bool) else None

    @cached_property
    def read_version(self) -> int | None:
        """The version that it was based on."""
        value = self.commit_info.get("readVersion")
        return value if isinstance(value, int) else None

    def _find_text(self, key: str) -> str | None:
        value = self.commit_info.get(key)
        return None if value is None else str(value)

    def _find_mapping(self, key: str) -> Mapping[str, Any]:
        value = self.commit_info.get(key)
        return value if isinstance(value, dict) else {}


def history(snapshot: Snapshot, limit: int | None = None) -> list[HistoryEntry]:
    """The commits up to a snapshot that the log still holds, newest first."""
    if limit is not None and limit < 0:
        raise InvalidArgument(f"a limit must be ≥ 0, not {limit}")
    first = 0 if limit is None else max(0, snapshot.version + 1 - limit)
    properties = snapshot.configuration.properties
    has_own_times = snapshot.configuration.in_commit_timestamps_enabled
    own_times_since = properties.in_commit_timestamp_enablement_version or 0
    # The file-based time of a commit depends on those of all commits before it.
    start = first if has_own_times and own_times_since <= first else 0
    store = snapshot.store
    listing = list_log(store, start=start, end=snapshot.version)
    versions = range(listing.first_commit_before(snapshot.version), snapshot.version + 1)
    times = commit_times(listing, versions)
    entries = []
    for commit in read_versions(
        store, listing, [version for version in reversed(versions) if version >= first]
    ):
        with located(store, commit.version):
            info = decode_commit_info(commit.data, version=commit.version, path=commit.path)
        is_own = has_own_times and commit.version >= own_times_since
        own_time = in_commit_timestamp(info) if is_own else None
        time = times[commit.version] if own_time is None else own_time
        entries.append(HistoryEntry(commit.version, time, info))
    return entries


def latest_commits(snapshot: Snapshot, limit: int) -> list[HistoryEntry]:
    """The latest commits up to a snapshot, newest first, by one read each: the log is not listed,
    so that `timestamp_ms` is the time that the writer recorded.
    """
    versions = range(snapshot.version, max(-1, snapshot.version - limit), -1)
    entries = list[HistoryEntry]()
    # A clean-up may have deleted the older ones.
    with ThreadPoolExecutor(_CONCURRENT_READS) as pool, suppress(VersionNotFound):
        entries.extend(pool.map(partial(read_entry, snapshot.store), versions))
    return entries


def read_entry(store: ObjectStore, version: int) -> HistoryEntry:
    """The commit of a version, with the time that its writer recorded, or that of its file.

    Raises:
        VersionNotFound: the log does not hold the commit.
    """
    info = read_commit_info(store, version)
    time = info.get("inCommitTimestamp", info.get("timestamp"))
    if not isinstance(time, int):
        found = store.head(commit_path(version))
        time = 0 if found is None else found.modified_ms
    return HistoryEntry(version, time, info)
