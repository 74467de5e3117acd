"""When the versions of a log were committed.

Spec: Delta Log Entries; In-Commit Timestamps.
"""

from __future__ import annotations

from collections.abc import Sequence

from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_file import decode_commit_info
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.protocol.log.segment import LogListing, LogSegment
from dagster_delta.protocol.log.version_checksum import VersionChecksum
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.reader import located, read_commit


def committed_at_ms(
    store: ObjectStore,
    segment: LogSegment,
    configuration: TableConfiguration,
    checksum: VersionChecksum | None,
) -> int:
    """When the newest version of a segment was committed, in milliseconds since the epoch.

    The commit's own timestamp if the table keeps them, else the time of its file.
    """
    if configuration.in_commit_timestamps_enabled:
        timestamp = _in_commit_timestamp(store, segment, checksum)
        if timestamp is not None:
            return timestamp
    file = segment.commit
    if file is None or not file.modified_ms:
        file = store.head(commit_path(segment.version))
    if file is None and segment.checkpoint is not None:
        file = segment.checkpoint.files[0]
    return 0 if file is None else file.modified_ms


def _in_commit_timestamp(
    store: ObjectStore, segment: LogSegment, checksum: VersionChecksum | None
) -> int | None:
    if checksum is not None and checksum.in_commit_timestamp_ms is not None:
        return checksum.in_commit_timestamp_ms
    if segment.commit is None:
        return None
    path = commit_path(segment.version)
    with located(store, segment.version):
        data = read_commit(store, segment.version)
        info = decode_commit_info(data, version=segment.version, path=path)
    timestamp = info.get("inCommitTimestamp")
    return timestamp if isinstance(timestamp, int) else None


def commit_times(listing: LogListing, versions: Sequence[int]) -> list[int]:
    """Times of commit files in milliseconds, ascending versions, each later than the one before.

    Copying a table or a skewed clock may change the order of file times; a version is then dated
    one millisecond after its predecessor.
    """
    times: list[int] = []
    for version in versions:
        modified = listing.commits[version].modified_ms
        times.append(max(modified, times[-1] + 1) if times else modified)
    return times
