"""The state of a sensor between two ticks: its cursor, as JSON that people can read and edit.

{"tables": {"s3://lake/raw/flights": {"log": {"version": 41, "table_id": …}, "waiting": …}}}
"""

from __future__ import annotations

import msgspec

from dagster_delta.errors import InvalidArgument
from dagster_delta.table.log.commit_summary import CommitSummary
from dagster_delta.table.read.watch import LogCursor


class CommitRange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A range of commits of a table."""

    table_id: str
    from_version: int
    """The first commit."""
    to_version: int
    """The last commit, included."""
    commit_digest: str | None = None
    """Digest of the last commit."""
    rows: int | None = 0
    """Rows written, changed or deleted in the range; None if a commit does not record it."""
    operations: tuple[str, ...] = ()
    """Operations of the commits."""
    committers: tuple[str, ...] = ()
    """Users who made the commits, or engines if no user is recorded."""
    change_files: tuple[str, ...] = ()
    """Change data files, with paths as in the log; empty if the changes follow from added and
    removed data files."""


class WaitingChanges(CommitRange, frozen=True, kw_only=True):
    """Commits that were read and for which no run was requested yet. Those between the first and
    the last that the filters exclude are not counted.
    """

    seen_at_ms: int
    """When the first commit was read, in milliseconds since the epoch."""
    partitions: tuple[dict[str, str | None], ...] = ()
    """Changed partitions, by logical column name."""
    unsent_keys: tuple[str, ...] | None = None
    """Partition keys whose runs wait for the next ticks; None before the first run."""

    def absorb(self, commit: CommitSummary) -> WaitingChanges:
        """The state with one more commit, which has the partitions to include."""
        rows = None if self.rows is None or commit.rows is None else self.rows + commit.rows
        changed = (*self.partitions, *commit.partitions)
        distinct = {tuple(sorted(values.items())): dict(values) for values in changed}
        return msgspec.structs.replace(
            self,
            table_id=commit.table_id,
            to_version=commit.version,
            commit_digest=commit.digest,
            rows=rows,
            operations=_with(self.operations, commit.operation),
            committers=_with(self.committers, commit.committer),
            change_files=(*self.change_files, *commit.change_files),
            partitions=tuple(distinct.values()),
        )

    def is_due(
        self, now_ms: int, *, minimum_rows: int | None, minimum_age_seconds: float | None
    ) -> bool:
        """Whether a run is due: enough rows, or old enough. An unknown row count is enough."""
        if self.unsent_keys is not None or (minimum_rows is None and minimum_age_seconds is None):
            return True
        if minimum_rows is not None and (self.rows is None or self.rows >= minimum_rows):
            return True
        age_ms = now_ms - self.seen_at_ms
        return minimum_age_seconds is not None and age_ms >= minimum_age_seconds * 1000


class TableState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of one table."""

    log: LogCursor
    waiting: WaitingChanges | None = None


class SensorState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of all tables."""

    tables: dict[str, TableState | None] = {}
    """By location; None for a table that starts over."""
    discovered_at_ms: int | None = None
    """When the tables below the root were listed, in milliseconds since the epoch."""

    @classmethod
    def from_cursor(cls, cursor: str | None) -> SensorState:
        """The state in the cursor of a sensor."""
        if not cursor:
            return cls()
        try:
            return msgspec.json.decode(cursor, type=cls)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise InvalidArgument(
                f"The cursor of the sensor is damaged ({error}); reset it, or set it to "
                '{"tables": {"<location>": {"log": {"version": <last version to leave out>}}}}'
            ) from error

    def to_cursor(self) -> str:
        """The cursor of this state."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()


def _with(texts: tuple[str, ...], text: str | None) -> tuple[str, ...]:
    return texts if text is None or text in texts else (*texts, text)
