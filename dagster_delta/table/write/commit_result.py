"""What a write is asked to record, and what it did.

Spec: Transaction Identifiers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot

__all__ = ["AppTransaction", "CommitResult"]


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What one commit did."""

    version: int
    """Version the commit made; for a skipped one, the version at which it was found done."""
    metrics: Mapping[str, int | str]
    """Operation metrics by the names of commitInfo: `numFiles`, `numOutputRows`, …"""
    snapshot: Snapshot
    """The table at that version."""
    skipped: bool = False
    """True when nothing was written: the application's transaction had been committed before, or no
    row was to be changed."""
    attempts: int = 1
    """How often the statement was planned: more than once after conflicts with other writers."""
    compacted_version: int | None = None
    """The version in which the table's small files were compacted after it, where that was due
    (`delta.autoOptimize.autoCompact`)."""


@dataclass(frozen=True, slots=True)
class AppTransaction:
    """How far an application gets with a commit, and how far it has to be before.

    Spec: Transaction Identifiers.
    """

    app_id: str
    version: int
    """Recorded by the commit."""
    after: int | None
    """What the table says so far; None where it says nothing. Another number means that somebody
    else has done a part of the work already."""
