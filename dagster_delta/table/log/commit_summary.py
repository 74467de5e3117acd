"""What one commit did to a table, read from the commit alone.

Spec: Commit Provenance Information; Add File and Remove File; Add CDC File.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.log.commit_file import CommitActions

PartitionValues = Mapping[str, str | None]

# Operation metrics, compared without case and underscores: writers spell them numOutputRows or
# num_added_rows.
_MERGED_ROWS = {
    "numtargetrowsinserted": "inserted",
    "numtargetrowsupdated": "updated",
    "numtargetrowsdeleted": "deleted",
}
_ROWS = {
    "numaddedrows": "written",
    "numoutputrows": "written",
    "numupdatedrows": "updated",
    "numdeletedrows": "deleted",
}


class CommitSummary(msgspec.Struct, frozen=True):
    """One commit, as far as code that reacts to it needs."""

    table_id: str
    """UUID of the table that the commit belongs to."""
    version: int
    timestamp_ms: int | None
    """Time of the commit by its commitInfo, in milliseconds since the epoch; None if it has
    none."""
    operation: str | None
    """What was done, such as WRITE or MERGE; None if the writer did not record it."""
    changes_data: bool
    """False for commits that leave every row unchanged: compaction, properties, a new column."""
    partitions: tuple[PartitionValues, ...]
    """The partitions with changed rows: serialised values by logical column name, None for null."""
    all_partitions_known: bool
    """False if the commit removes files without giving their partitions."""
    rows: int | None
    """Rows written, changed or deleted; None if neither metrics nor statistics give it."""
    files_added: int
    files_removed: int
    change_files: tuple[str, ...]
    """Change data files, as the log spells their paths."""
    change_feed_enabled: bool
    """Whether the change data feed was on when the commit was made."""
    committer: str | None
    """Who wrote it: the user, or the engine if no user is named."""
    run_id: str | None
    """The Dagster run that wrote it, or None."""
    digest: str
    """Digest of the commit file: a log that was set back may have another commit of the version."""


def summarise_commit(
    actions: CommitActions,
    *,
    table_id: str,
    partition_columns: PartitionValues,
    change_feed_enabled: bool,
    digest: str,
) -> CommitSummary:
    """The summary of one commit."""
    info = actions.commit_info or {}
    adds = [add for add in actions.adds if add.data_change]
    removes = [remove for remove in actions.removes if remove.data_change]
    changed = [
        *(add.partition_values for add in adds),
        *(remove.partition_values for remove in removes),
        *(file.partition_values for file in actions.cdc),
    ]
    return CommitSummary(
        table_id=table_id,
        version=actions.version,
        timestamp_ms=_find_timestamp(info),
        operation=_find_text(info, "operation"),
        changes_data=bool(changed),
        partitions=_list_partitions(changed, partition_columns),
        all_partitions_known=not partition_columns or None not in changed,
        rows=_count_changed_rows(info.get("operationMetrics"), adds, rewrites=bool(removes)),
        files_added=len(adds),
        files_removed=len(removes),
        change_files=tuple(file.path for file in actions.cdc),
        change_feed_enabled=change_feed_enabled,
        committer=_find_text(info, "userName")
        or _find_text(info, "userId")
        or _find_text(info, "engineInfo"),
        run_id=_find_text(info, "dagsterRunId"),
        digest=digest,
    )


def _find_timestamp(info: Mapping[str, object]) -> int | None:
    for key in ("inCommitTimestamp", "timestamp"):
        value = info.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _find_text(info: Mapping[str, object], key: str) -> str | None:
    value = info.get(key)
    return None if value in (None, "") else str(value)


def _list_partitions(
    changed: Iterable[PartitionValues | None], names: PartitionValues
) -> tuple[PartitionValues, ...]:
    if not names:
        return ()
    # The empty text is null. Spec: Partition Value Serialization.
    found = {
        tuple((names.get(key) or key, value or None) for key, value in sorted(values.items()))
        for values in changed
        if values
    }
    return tuple(dict(values) for values in sorted(found, key=repr))


def rows_by_deed(metrics: Mapping[str, object]) -> dict[str, int]:
    """The rows that a commit has written, or inserted, updated and deleted, as far as its operation
    metrics say so.
    """
    by_name = {name.replace("_", "").lower(): value for name, value in metrics.items()}
    # The rows written by a MERGE include copied rows.
    names = _ROWS if by_name.keys().isdisjoint(_MERGED_ROWS) else _MERGED_ROWS
    found = {deed: str(by_name[name]) for name, deed in names.items() if name in by_name}
    # Spark writes metrics as text.
    return {deed: int(count) for deed, count in found.items() if count.isdecimal()}


def _count_changed_rows(metrics: object, adds: Iterable[AddFile], *, rewrites: bool) -> int | None:
    counts = rows_by_deed(metrics) if isinstance(metrics, dict) else {}
    if "inserted" in counts:
        return sum(counts.values())
    for deed in ("updated", "deleted", "written"):
        if deed in counts:
            return counts[deed]
    # A rewritten file also holds unchanged rows, so its row count says nothing.
    records = [add.num_records for add in adds]
    return None if rewrites or None in records else sum(count or 0 for count in records)
