"""The history of a table for people, each commit with the run that made it."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence

from dagster import MarkdownMetadataValue, MetadataValue

from dagster_delta.table.read.history import HistoryEntry, latest_commits
from dagster_delta.table.read.snapshot import Snapshot

DEFAULT_HISTORY = 5
"""Number of commits that events show by default."""

_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_SPECIAL = re.compile(r"[\\`*_\[\]<>|#~!&]")
"""Markdown markup to escape; a commit may contain any text."""

_LONGEST_TEXT = 100

# Without case and underscores: other writers spell them num_target_rows_inserted.
_MERGED_ROWS = {
    "numtargetrowsinserted": "inserted",
    "numtargetrowsupdated": "updated",
    "numtargetrowsdeleted": "deleted",
}
_ROWS = {
    "numoutputrows": "written",
    "numaddedrows": "written",
    "numupdatedrows": "updated",
    "numdeletedrows": "deleted",
}


def history_metadata(snapshot: Snapshot, commits: int) -> dict[str, MarkdownMetadataValue]:
    """The latest commits of a table as metadata `delta/history`; empty if `commits` is 0.

    It reads one file per commit. The times are those that the writers recorded.
    """
    if commits < 1:
        return {}
    return {"delta/history": MetadataValue.md(history_markdown(latest_commits(snapshot, commits)))}


def history_markdown(entries: Sequence[HistoryEntry]) -> str:
    """A table of commits with links to their runs, in the order given."""
    head = ["| version | time (UTC) | operation | rows | by | |", "|---:|---|---|---|---|---|"]
    return "\n".join([*head, *(_line(entry) for entry in entries)])


def _line(entry: HistoryEntry) -> str:
    cells = [
        str(entry.version),
        _time(entry.timestamp_ms),
        plain_markdown(entry.operation),
        _rows(entry),
        _author(entry),
        plain_markdown(entry.user_metadata),
    ]
    return f"| {' | '.join(cells)} |"


def _time(timestamp_ms: int) -> str:
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    try:
        return f"{epoch + dt.timedelta(milliseconds=timestamp_ms):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return ""


def _rows(entry: HistoryEntry) -> str:
    found = entry.operation_metrics.items()
    metrics = {name.replace("_", "").lower(): value for name, value in found}
    # The rows written by a merge include copied rows.
    names = _MERGED_ROWS if any(name in metrics for name in _MERGED_ROWS) else _ROWS
    counts = []
    for name, deed in names.items():
        rows = str(metrics.get(name, ""))
        if rows.isdecimal() and int(rows) > 0:
            counts.append(f"{int(rows):,} {deed}")
    return ", ".join(counts)


def _author(entry: HistoryEntry) -> str:
    """The run, its asset and partitions; for commits by other writers, the engine."""
    info = entry.commit_info
    run_id = info.get("dagsterRunId")
    if not isinstance(run_id, str) or _RUN_ID.fullmatch(run_id) is None:
        return plain_markdown(entry.engine_info)
    what = ": ".join(
        plain_markdown(info[key]) for key in ("dagsterAsset", "dagsterPartitions") if key in info
    )
    # Relative, since a run does not know the address of the UI.
    return f"[{run_id[:8]}](/runs/{run_id}) {what}".rstrip()


def plain_markdown(value: object) -> str:
    """The value as text on one line, shortened, without markup; empty for None."""
    if value is None:
        return ""
    text = " ".join(str(value).split())
    if len(text) > _LONGEST_TEXT:
        text = text[:_LONGEST_TEXT] + "…"
    return _SPECIAL.sub(lambda found: "&#" + str(ord(found[0])) + ";", text)
