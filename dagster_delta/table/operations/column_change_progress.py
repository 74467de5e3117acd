"""The remaining work of a column change, from the log, and the work that a process has done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.plans import Backfilled
from dagster_delta.evolution.column_paths import dotted
from dagster_delta.protocol.features.column_change import (
    COLUMN_CHANGE_DOMAIN,
    COLUMN_CHANGE_TAG,
    ColumnChange,
    field_at,
)
from dagster_delta.protocol.wire_values import DECODING_ERRORS
from dagster_delta.sql.types import sql_type_name
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.read.snapshot import Snapshot

State = Literal["prepared", "reorganising"]
Progress = Callable[["ColumnChangeProgress"], None]


class DomainState(msgspec.Struct, frozen=True, rename="camel"):
    """Content of the metadata domain of a change."""

    id: str
    state: State
    column: str
    to_type: str


@dataclass(frozen=True, slots=True)
class ColumnChangeState:
    """A change in progress, from the log of one version."""

    id: str
    column: str
    from_type: str
    to_type: str
    state: State
    version: int
    """Version of the table that this was read from."""
    num_files: int
    """Live files of the table."""
    num_files_left: int
    """Number of files without the converted column."""
    bytes_left: int
    """Size of these files."""


@dataclass(frozen=True, slots=True)
class ColumnChangeProgress:
    """One step of a change that has just been committed."""

    state: ColumnChangeState | None
    """The remaining work; None once the change is public."""
    version: int
    num_rows: int
    """Rows rewritten so far."""
    num_nulled: int
    """Values so far that became null because they could not be converted."""
    bytes_written: int


@dataclass(slots=True)
class BackfillTotals:
    """What one run of a column change has converted so far."""

    num_rows: int = 0
    num_nulled: int = 0
    num_late_rows: int = 0
    """Rows among `num_rows` in files that were added after the run began, by writers that do not
    fill the new column themselves.
    """
    num_files: int = 0
    """Data files that were rewritten."""
    num_added_files: int = 0
    bytes_read: int = 0
    """Size of the files that were rewritten."""
    bytes_written: int = 0
    num_batches: int = 0
    num_retries: int = 0
    """Attempts to commit that lost to a concurrent commit."""
    longest_retry_ms: int = 0
    """Longest time from the first attempt of a commit to its success, if it took several."""

    def add_batch(self, files: pa.Table, done: Backfilled, *, late: bool) -> None:
        """Count one batch that was committed."""
        self.num_batches += 1
        self.num_rows += done.num_rows
        self.num_nulled += done.num_nulled
        self.num_late_rows += done.num_rows if late else 0
        self.num_files += files.num_rows
        self.num_added_files += len(done.files)
        self.bytes_read += total_bytes(files)
        self.bytes_written += sum(file.size_bytes for file in done.files)

    def note_retries(self, lost: int, milliseconds: int) -> None:
        """Count the failed attempts at one commit, and the time since the first of them."""
        if lost:
            self.num_retries += lost
            self.longest_retry_ms = max(self.longest_retry_ms, milliseconds)

    def metrics(self) -> dict[str, int | str]:
        """The totals by the names of operation metrics; sizes in bytes, times in milliseconds."""
        return {
            "numCopiedRows": self.num_rows,
            "numLateRows": self.num_late_rows,
            "numNulledValues": self.num_nulled,
            "numRemovedFiles": self.num_files,
            "numRemovedBytes": self.bytes_read,
            "numAddedFiles": self.num_added_files,
            "numAddedBytes": self.bytes_written,
            "numBatches": self.num_batches,
            "numRetries": self.num_retries,
            "longestRetryMs": self.longest_retry_ms,
        }


def state_of(snapshot: Snapshot) -> ColumnChangeState | None:
    """The change in progress, or None."""
    change = ColumnChange.of(snapshot.configuration)
    if change is None:
        return None
    files = snapshot.live_files(("size_bytes", "tags"))
    left = files.filter(unfilled_files(files, change.id))
    known = recorded_state(snapshot, change)
    return ColumnChangeState(
        id=change.id,
        column=dotted(change.path),
        from_type=_present_type(change, snapshot),
        to_type=sql_type_name(change.target_type()),
        state="prepared" if known is None else known.state,
        version=snapshot.version,
        num_files=files.num_rows,
        num_files_left=left.num_rows,
        bytes_left=total_bytes(left),
    )


def _present_type(change: ColumnChange, snapshot: Snapshot) -> str:
    source = change.source(snapshot.schema)
    if source is None:
        return "(dropped)"
    # Writers that do not know the change may have renamed the column.
    try:
        return sql_type_name(field_at(source, change.path[1:]))
    except KeyError:
        return "(altered)"


def unfilled_files(files: pa.Table, change_id: str) -> pa.ChunkedArray:
    """Which files do not hold the shadow column: a boolean `pa.Array`."""
    filled = pc.equal(pc.map_lookup(files["tags"], COLUMN_CHANGE_TAG, "first"), change_id)
    return pc.invert(pc.fill_null(filled, False))


def recorded_state(snapshot: Snapshot, change: ColumnChange) -> DomainState | None:
    """The state of a change in its metadata domain; None if it is unreadable."""
    domain = snapshot.domain_metadata().get(COLUMN_CHANGE_DOMAIN)
    if domain is None:
        return None
    try:
        found = msgspec.json.decode(domain.configuration, type=DomainState)
    except DECODING_ERRORS:
        # The record in the metadata is decisive; the process that resumes rewrites the state.
        return None
    return found if found.id == change.id else None
