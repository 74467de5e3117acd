"""Data versions of the partitions of an external table, from its log alone.

The data version of a partition is `table_id:version` of the last commit that changed its rows. A
commit names its partitions by the values of the table's partition columns, also of removed files,
so that deletions count and compaction does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import dagster as dg
import msgspec

from dagster_delta.errors import InvalidArgument, LogGap, VersionNotFound
from dagster_delta.orchestration.partitions.mapping import PartitionMapping
from dagster_delta.orchestration.sensors.table_watcher import commit_facts
from dagster_delta.orchestration.table_metadata import DATA_VERSION_TAG
from dagster_delta.table.log.commit_summary import CommitSummary
from dagster_delta.table.log.reader import KnownCommit
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.read.watch import (
    LogCursor,
    data_version,
    read_new_commits,
    start_cursor,
)


class ChangedPartitions(msgspec.Struct):
    """The partitions that the commits of a range changed."""

    table_id: str
    others_changed_at: int | None
    """The version that stands for the last change of every other partition, where older commits
    were cleaned up, or a commit does not name its partitions; None if the others have not changed.
    """
    commits: dict[str, CommitSummary] = msgspec.field(default_factory=dict)
    """The last commit of each changed partition, by key."""
    others: list[str] = msgspec.field(default_factory=list)
    """The keys of other partitions that have rows, if those have changed."""

    def data_version(self, key: str) -> str | None:
        """The data version of a partition; None if it has not changed."""
        if (commit := self.commits.get(key)) is not None:
            return data_version(commit.table_id, commit.version)
        if self.others_changed_at is None:
            return None
        return data_version(self.table_id, self.others_changed_at)


def find_changed_partitions(
    snapshot: Snapshot,
    known: KnownCommit | None,
    mapping: PartitionMapping,
    warn: Callable[[str], None],
) -> ChangedPartitions:
    """The partitions that changed after a commit, up to a version; after None, all that the log
    still shows.

    Raises:
        InvalidArgument: the table is not partitioned by the columns of the mapping, or a value of
            them belongs to no partition.
    """
    columns, found = snapshot.configuration.partition_columns, mapping.columns
    if missing := [column for column in found if column not in columns]:
        raise InvalidArgument(
            f"the table is partitioned by {', '.join(columns) or 'no column'} and not by "
            f"{', '.join(missing)}, so its commits do not show which partitions changed: name "
            "partition columns of the table in partition_expr, or observe it without "
            "partitions_def",
            table=snapshot.store.location.uri,
            column=missing[0],
        )
    try:
        return _changes_after(snapshot, known, mapping, warn)
    except (VersionNotFound, LogGap):
        if known is None:
            raise
        # The log was cleaned up or set back, or another table is here.
        return _changes_after(snapshot, None, mapping, warn)


def _changes_after(
    snapshot: Snapshot,
    known: KnownCommit | None,
    mapping: PartitionMapping,
    warn: Callable[[str], None],
) -> ChangedPartitions:
    others = None
    if known is None:
        cursor = start_cursor(snapshot.store, "earliest")
        others = max(cursor.version, 0)
    else:
        cursor = LogCursor(
            version=known.version,
            commit_digest=known.digest,
            commit_modified_ms=known.modified_ms,
        )
    changed: dict[tuple[tuple[str, str | None], ...], CommitSummary] = {}
    while cursor.version < snapshot.version:
        cursor, commits = read_new_commits(snapshot.store, cursor)
        if not commits:
            break
        for commit in commits:
            if not commit.changes_data or commit.version > snapshot.version:
                continue
            parts = [tuple(sorted(values.items())) for values in commit.partitions]
            if commit.all_partitions_known and all(
                column in values for values in commit.partitions for column in mapping.columns
            ):
                changed.update(dict.fromkeys(parts, commit))
            else:
                others, changed = commit.version, {}
    result = ChangedPartitions(snapshot.metadata.id, others)
    timestamps = cursor.timestamp_columns or ()
    unmapped = []
    for values, commit in changed.items():
        mapped = mapping.map([dict(values)], timestamp_columns=timestamps)
        unmapped += mapped.unmapped
        for key in (*mapped.keys, *mapped.later):
            last = result.commits.get(key)
            if last is None or last.version < commit.version:
                result.commits[key] = commit
    if others is not None:
        live = snapshot.files()["partition_values"].to_pylist()
        distinct = {tuple(sorted(dict(values).items())) for values in live} - changed.keys()
        mapped = mapping.map(map(dict, sorted(distinct, key=repr)), timestamp_columns=timestamps)
        unmapped += mapped.unmapped
        result.others = [*mapped.keys, *mapped.later]
    if unmapped:
        named = ", ".join(str(dict(values)) for values in unmapped[:10])
        warn(
            f"{len(unmapped)} changed partitions of the table belong to no partition of the asset, "
            f"and are not observed: {named}"
        )
    return result


def partition_observations(
    changes: ChangedPartitions,
    asset_key: dg.AssetKey,
    uri: str,
    instance: dg.DagsterInstance,
    tags: Mapping[str, str],
) -> list[dg.AssetObservation]:
    """An observation, with further tags, of each partition whose data version is not that of its
    last observation.
    """
    known: Mapping[str, Mapping[str, str]] = (
        instance.event_log_storage.get_latest_tags_by_partition(
            asset_key, dg.DagsterEventType.ASSET_OBSERVATION, [DATA_VERSION_TAG]
        )
    )
    keys = dict.fromkeys((*changes.others, *changes.commits))
    if changes.others_changed_at is not None:
        # A commit that is not read may have emptied them.
        keys |= dict.fromkeys(known)
    observations = []
    for key in keys:
        name, commit = changes.data_version(key), changes.commits.get(key)
        if name is None or name == known.get(key, {}).get(DATA_VERSION_TAG):
            continue
        facts = {"dagster/uri": uri} if commit is None else commit_facts(commit, uri)
        all_tags = {**tags, DATA_VERSION_TAG: name}
        observations.append(dg.AssetObservation(asset_key, None, facts, key, all_tags))
    return observations
