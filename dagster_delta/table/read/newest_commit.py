"""The look at the newest commit that every write takes before it builds on it.

A version checksum says what a new commit needs to know, so a handle may never have read the commit
that it speaks of. A commit on top of a damaged one would be acknowledged, and could not be read.

Spec: Delta Log Entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_delta.errors import CorruptLog
from dagster_delta.protocol.log.tail import decode_tail
from dagster_delta.table.log.reader import located, read_commits

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot

__all__ = ["check_newest_commit"]


def check_newest_commit(snapshot: Snapshot) -> None:
    """Read the newest commit of a version, unless it was read or a checkpoint replaces it.

    Args:
        snapshot: what a write is planned on.

    Raises:
        CorruptLog: the commit is empty, cut or changed.
        LogGap: it has disappeared.
        StorageFailure: the store refused or failed.
    """
    newest = snapshot.log_segment.replay[-1:]
    if not newest or snapshot.has_read_commits:
        return
    try:
        with located(snapshot.store, snapshot.version):
            decode_tail(read_commits(snapshot.store, newest))
    except CorruptLog:
        # A file of compacted commits may be damaged while the commits themselves are whole. Then
        # the log can be read without it, and otherwise this raises the error again.
        _ = snapshot.max_file_actions
