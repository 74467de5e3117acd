"""When the versions of a log were committed, by the times of their files.

Spec: Delta Log Entries.
"""

from __future__ import annotations

from collections.abc import Sequence

from dagster_delta.protocol.log.segment import LogListing

__all__ = ["commit_times"]


def commit_times(listing: LogListing, versions: Sequence[int]) -> list[int]:
    """Times of commit files in milliseconds, ascending versions, each later than the one before.

    Copying a table or a skewed clock may turn the order of file times around; a version is then
    taken to be a millisecond younger than its predecessor.
    """
    times: list[int] = []
    for version in versions:
        modified = listing.commits[version].modified_ms
        times.append(max(modified, times[-1] + 1) if times else modified)
    return times
