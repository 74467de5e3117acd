"""Which log files can be deleted once versions before a checkpoint have expired.

Spec: Metadata Cleanup; Checkpoint Protection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from dagster_delta.protocol.log.paths import LogFileKind, parse_log_file_name
from dagster_delta.protocol.log.segment import ListedFile, LogListing

_DAY_MS = 24 * 60 * 60 * 1000

_F = TypeVar("_F", bound=ListedFile)


def midnight_before(time_ms: int) -> int:
    """The last midnight (UTC) at or before a time, both in milliseconds since the epoch."""
    return time_ms // _DAY_MS * _DAY_MS


def cut_version(
    listing: LogListing, newest_expired: int, *, new_checkpoint_after: int | None = None
) -> int | None:
    """The version of a checkpoint that the log may begin with; None if nothing can be deleted.

    The newest expired version is kept, because it is the state of the table at that time. A
    checkpoint may be written at it if the checkpoint before it is `new_checkpoint_after` versions
    older, or missing; None if it may not.
    """
    earliest = listing.earliest_version
    if earliest is None:
        return None
    # Spec: the newest checkpoint at or before the cut-off commit.
    cut = max(
        (checkpoint for checkpoint in listing.checkpoints if checkpoint <= newest_expired),
        default=None,
    )
    if new_checkpoint_after is not None and (
        cut is None or newest_expired - cut >= new_checkpoint_after
    ):
        cut = newest_expired
    return cut if cut is not None and cut > earliest else None


def expired_log_files(files: Iterable[_F], cut: int) -> list[_F]:
    """The files of versions before the cut, oldest first, so that a crash leaves no gap.

    The commit of the cut is kept too, because only the commit has the provenance.
    """
    expired: list[tuple[int, str, _F]] = []
    for file in files:
        name = parse_log_file_name(file.path.rpartition("/")[2])
        if name is None:
            continue
        # Spec: compacted files that begin at or before the checkpoint are deleted too.
        is_covered = name.kind is LogFileKind.COMPACTED and name.version == cut
        if name.version < cut or is_covered:
            expired.append((name.version, file.path, file))
    return [file for _, _, file in sorted(expired, key=lambda found: found[:2])]
