"""Polls many tables in parallel for new commits, says what runs and events are told of them, and
keeps the state of a sensor between two ticks: its cursor, as JSON that people can read and edit.

{"tables": {"s3://lake/raw/flights": {"log": {"version": 41, "table_id": …}, "waiting": …}}}
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeAlias

import dagster as dg
import msgspec
from msgspec.structs import replace
from pydantic import Field

from dagster_delta.errors import (
    ChangeDataNotRecorded,
    DeltaError,
    InvalidArgument,
    StorageFailure,
    TableNotFound,
)
from dagster_delta.orchestration.known_fields import KnownFieldsOnly
from dagster_delta.orchestration.metadata_keys import DETAILS, RawMetadata, counted, shown
from dagster_delta.orchestration.table_metadata import DATA_VERSION_TAG
from dagster_delta.storage import ObjectStore
from dagster_delta.table.log.commit_summary import CommitSummary
from dagster_delta.table.read.change_data_feed import changes_columns
from dagster_delta.table.read.watch import (
    NOTHING_SEEN,
    LogCursor,
    StartFrom,
    data_version,
    read_new_commits,
    start_cursor,
)

# Requests mostly wait for the network: 500 tables take 16 rounds.
_TABLES_AT_ONCE = 32

# Dagster hides tags with this prefix.
TABLE_URI_TAG = ".dagster/delta_table_uri"
TABLE_ID_TAG = ".dagster/delta_table_id"
FROM_VERSION_TAG = ".dagster/delta_from_version"
TO_VERSION_TAG = ".dagster/delta_to_version"

PartitionFilter: TypeAlias = (
    Mapping[str, Collection[str | None]] | Callable[[Mapping[str, str | None]], bool]
)
"""The partitions to include: allowed values by column, or a function of a partition's values."""


class CommitRules(msgspec.Struct, frozen=True):
    """Which commits to include, and the start version of a table that is new to the sensor."""

    start_from: StartFrom = "latest"
    operations: frozenset[str] | None = None
    """Names of operations, in upper case; all by default."""
    partitions: PartitionFilter | None = None
    columns: tuple[str, ...] = ()
    """Columns of which at least one must have changed; empty for any."""
    needs_change_feed: bool = False
    """Whether every included commit must have its row changes recorded."""
    max_commits_per_tick: int = 100
    """Maximum number of commits read per table."""

    def select(self, store: ObjectStore, commit: CommitSummary) -> CommitSummary | None:
        """The commit with the changed partitions to include; None if it is not included.

        Commits that change no row are included only if `operations` names their operation.
        """
        included = commit.changes_data
        if self.operations is not None:
            is_named = (commit.operation or "").upper() in self.operations
            included = is_named and (included or not self.needs_change_feed)
        if not included:
            return None
        if self.needs_change_feed and not commit.change_feed_enabled:
            raise ChangeDataNotRecorded(
                f"The change data feed was off when version {commit.version} was made, so its row "
                "changes are not recorded: set delta.enableChangeDataFeed to true, take the whole "
                "table once, then reset the cursor of this table to go on after it",
                version=commit.version,
            )
        if self.columns and not changes_columns(store, commit, self.columns):
            return None
        partitions = self._partitions_of(commit)
        if self.partitions is not None and not partitions and commit.all_partitions_known:
            return None
        return replace(commit, partitions=partitions)

    def _partitions_of(self, commit: CommitSummary) -> tuple[Mapping[str, str | None], ...]:
        rule = self.partitions
        if rule is None:
            return commit.partitions
        if callable(rule):
            return tuple(values for values in commit.partitions if rule(values))
        for values in commit.partitions or ({},):
            missing = [column for column in rule if column not in values]
            if missing and commit.all_partitions_known:
                raise InvalidArgument(
                    f"The table is partitioned by {', '.join(values) or 'no column'} and not by "
                    f"{', '.join(missing)}: filter by its partition columns",
                    column=missing[0],
                )
        return tuple(
            values
            for values in commit.partitions
            if all(values.get(column) in allowed for column, allowed in rule.items())
        )


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
    started_at_ms: int | None = None
    """When the watch began with commits that are older than it; part of the run keys, as an earlier
    watch may have requested runs for the same commits."""


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

    @classmethod
    def of(
        cls, commit: CommitSummary, seen_at_ms: int, started_at_ms: int | None
    ) -> WaitingChanges:
        """One commit, which has the partitions to include."""
        return cls(
            table_id=commit.table_id,
            from_version=commit.version,
            to_version=commit.version,
            commit_digest=commit.digest,
            rows=commit.rows,
            operations=() if commit.operation is None else (commit.operation,),
            committers=() if commit.committer is None else (commit.committer,),
            change_files=tuple(commit.change_files),
            started_at_ms=started_at_ms,
            seen_at_ms=seen_at_ms,
            partitions=tuple(map(dict, commit.partitions)),
        )

    def followed_by(self, later: WaitingChanges) -> WaitingChanges:
        """These commits and later ones, with the partitions of both."""
        rows = None if self.rows is None or later.rows is None else self.rows + later.rows
        changed = (*self.partitions, *later.partitions)
        return msgspec.structs.replace(
            later,
            from_version=self.from_version,
            rows=rows,
            operations=_merge_distinct(self.operations, later.operations),
            committers=_merge_distinct(self.committers, later.committers),
            change_files=_merge_distinct(self.change_files, later.change_files),
            seen_at_ms=self.seen_at_ms,
            partitions=tuple({tuple(sorted(part.items())): part for part in changed}.values()),
        )

    def left_for(self, keys: Sequence[str], earlier: WaitingChanges | None) -> WaitingChanges:
        """What is left to do for some partitions, besides what was left before."""
        both = self if earlier is None else earlier.followed_by(self)
        known = () if earlier is None else earlier.unsent_keys or ()
        unsent = _merge_distinct(known, tuple(keys))
        return msgspec.structs.replace(both, unsent_keys=unsent, partitions=())

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
    later: WaitingChanges | None = None
    """Commits whose `unsent_keys` are time windows that have not ended yet."""
    started_at_ms: int | None = None
    """As in `CommitRange`."""
    missing_since_ms: int | None = None
    """When a tick first found no table, in milliseconds since the epoch."""


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


class PollResult(msgspec.Struct, frozen=True):
    """Result of polling one table."""

    uri: str
    state: TableState | None
    """State to store for it; unchanged after an error."""
    commits: tuple[CommitSummary, ...] = ()
    """New included commits, each with the changed partitions to include."""
    ignored: tuple[str, ...] = ()
    """Operations of the new commits that the sensor does not include."""
    is_missing: bool = False
    """Whether the table does not exist yet."""
    error: DeltaError | None = None
    """Why the poll failed."""
    was_requested: bool = False
    """Whether an earlier tick has requested the runs for what waits."""


def poll_tables(
    uris: Sequence[str],
    state: SensorState,
    open_table: Callable[[str], ObjectStore],
    rules: CommitRules,
    *,
    now_ms: int,
    discovered: bool = False,
) -> list[PollResult]:
    """New commits of each table, in the given order. A failure of one table does not stop the
    others.

    `discovered` locations were found below a root: one without state, although the root was listed
    before, is then a new table with all its commits.
    """
    if not uris:
        return []
    seen_before = discovered and state.discovered_at_ms is not None

    def look(uri: str) -> PollResult:
        known = state.tables.get(uri)
        is_new = seen_before and uri not in state.tables
        try:
            try:
                store = open_table(uri)
            except TableNotFound:
                # A catalog has no table of the name yet, or no longer.
                if known is not None and known.log.version != NOTHING_SEEN:
                    raise
                return _missing_table(uri, known, rules, now_ms)
            return _poll_table(store, uri, known, rules, now_ms, is_new)
        except DeltaError as error:
            error.table = error.table or uri
            return PollResult(uri, known, error=error)
        except OSError as error:
            # A file of the log that vanishes between its listing and its reading, for example.
            failure = StorageFailure(f"The storage cannot be reached ({error})", table=uri)
            failure.__cause__ = error
            return PollResult(uri, known, error=failure)

    with ThreadPoolExecutor(min(_TABLES_AT_ONCE, len(uris))) as pool:
        return list(pool.map(look, uris))


def _missing_table(
    uri: str, known: TableState | None, rules: CommitRules, now_ms: int
) -> PollResult:
    started_at_ms = None if rules.start_from == "latest" else now_ms
    start = TableState(log=LogCursor(version=NOTHING_SEEN), started_at_ms=started_at_ms)
    known = known or start
    since_ms = known.missing_since_ms or now_ms
    state = msgspec.structs.replace(known, missing_since_ms=since_ms)
    return PollResult(uri, state, is_missing=True)


def _poll_table(
    store: ObjectStore,
    uri: str,
    known: TableState | None,
    rules: CommitRules,
    now_ms: int,
    is_new: bool,
) -> PollResult:
    if known is not None and known.waiting is not None and known.waiting.unsent_keys is not None:
        # Its last commits are still being delivered; newer ones wait in the log.
        return PollResult(uri, known)
    if known is None:
        start_from = "earliest" if is_new else rules.start_from
        try:
            start = start_cursor(store, start_from)
        except TableNotFound:
            # Every commit from here on is new.
            start = LogCursor(version=NOTHING_SEEN)
        known = TableState(log=start, started_at_ms=None if start_from == "latest" else now_ms)
    elif known.log.commit_digest is None and known.log.version != NOTHING_SEEN:
        # Somebody has set the version by hand.
        known = msgspec.structs.replace(known, started_at_ms=now_ms)
    cursor, commits = read_new_commits(store, known.log, limit=rules.max_commits_per_tick)
    selected = []
    ignored: dict[str, None] = {}
    waiting = known.waiting
    for commit in commits:
        included = rules.select(store, commit)
        if included is None:
            ignored[commit.operation or "unknown operation"] = None
            continue
        selected.append(included)
        found = WaitingChanges.of(included, now_ms, known.started_at_ms)
        waiting = found if waiting is None else waiting.followed_by(found)
    is_missing = cursor.version == NOTHING_SEEN
    state = msgspec.structs.replace(
        known,
        log=cursor,
        waiting=waiting,
        missing_since_ms=(known.missing_since_ms or now_ms) if is_missing else None,
    )
    return PollResult(uri, state, tuple(selected), tuple(ignored), is_missing=is_missing)


def _merge_distinct(first: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *others)))


AssetEventKind = Literal["materialization", "observation"]

# More are only counted, so that the size of an event is bounded.
_MAX_NAMED_FILES = 100

_DIGEST_LENGTH = 8


class DeltaCommitRange(KnownFieldsOnly, dg.Config):
    """Config of an asset or op: the range of commits that its run processes.

    Examples:
        @dg.asset
        def report(config: DeltaCommitRange) -> None:
            changed = range(config.from_version, config.to_version + 1)
    """

    table_uri: str = Field(description="Location of the table.")
    table_id: str = Field(description="UUID of the table.")
    from_version: int = Field(description="The first commit.")
    to_version: int = Field(description="The last commit, included.")


class TableChanges(CommitRange, frozen=True, kw_only=True):
    """The range of commits that a run is requested for."""

    table_uri: str
    partition_key: str | None
    """The partition of the run; some commits of the range belong to it."""

    @classmethod
    def of(cls, uri: str, waiting: WaitingChanges, partition_key: str | None) -> TableChanges:
        """Commits that wait for a run, for one partition or for the whole table."""
        shared = {name: getattr(waiting, name) for name in CommitRange.__struct_fields__}
        return cls(table_uri=uri, partition_key=partition_key, **shared)

    @property
    def run_key(self) -> str:
        """`table_id:version:digest[:partition]`: Dagster starts only one run per key. The digest of
        the location and the commit distinguishes copies of a table, the versions of a log that was
        set back, and the same commits after the cursor was reset.
        """
        digest = None
        if self.commit_digest is not None:
            identity = f"{self.table_uri} {self.commit_digest}"
            if self.started_at_ms is not None:
                identity += f" {self.started_at_ms}"
            digest = hashlib.sha256(identity.encode()).hexdigest()[:_DIGEST_LENGTH]
        parts = (self.table_id, str(self.to_version), digest, self.partition_key)
        return ":".join(part for part in parts if part is not None)

    @property
    def tags(self) -> dict[str, str]:
        """Tags of the run: one for people, and those that `RunsFilter` finds the run by, which the
        UI of Dagster does not show.
        """
        first, last, facts = self.from_version, self.to_version, ", ".join(self.operations)
        versions = f"version {last}" if first == last else f"versions {first} to {last}"
        if self.rows is not None:
            facts += f"{', ' if facts else ''}{counted(self.rows, 'row')}"
        name = self.table_uri.rpartition("/")[2]
        return {
            "delta/commits": f"{name} {versions}" + (f" ({facts})" if facts else ""),
            TABLE_URI_TAG: self.table_uri,
            TABLE_ID_TAG: self.table_id,
            FROM_VERSION_TAG: str(first),
            TO_VERSION_TAG: str(last),
        }

    def commit_range(self) -> DeltaCommitRange:
        """The range, as config of an asset or op."""
        names = DeltaCommitRange.model_fields
        return DeltaCommitRange(**{name: getattr(self, name) for name in names})


def commit_facts(commit: CommitSummary, uri: str) -> RawMetadata:
    """Metadata of a commit for the UI."""
    time_ms, run_id, files = commit.timestamp_ms, commit.run_id, commit.change_files
    return shown(
        {
            "delta/version": commit.version,
            "delta/operation": commit.operation,
            "delta/rows": commit.rows,
            "delta/files_added": commit.files_added,
            "delta/files_removed": commit.files_removed,
            "delta/committer": commit.committer,
            "delta/run": None if run_id is None else dg.MetadataValue.dagster_run(run_id),
            "delta/change_files": list(files[:_MAX_NAMED_FILES]) or None,
            "dagster/last_updated_timestamp": None
            if time_ms is None
            else dg.MetadataValue.timestamp(time_ms / 1000),
            "dagster/uri": uri,
            DETAILS: {
                "table_id": commit.table_id,
                "last_change": commit.version,
                "change_files": len(files) or None,
            },
        }
    )


def commit_event(
    commit: CommitSummary,
    uri: str,
    asset_key: dg.AssetKey,
    kind: AssetEventKind,
    partition_keys: Sequence[str | None],
) -> list[dg.AssetMaterialization | dg.AssetObservation]:
    """The Dagster events for a commit to an external table, one per partition key."""
    event = dg.AssetMaterialization if kind == "materialization" else dg.AssetObservation
    return [
        event(
            asset_key=asset_key,
            description=f"{commit.operation or 'Commit'} by {commit.committer or 'somebody'}",
            metadata=commit_facts(commit, uri),
            partition=key,
            tags={DATA_VERSION_TAG: data_version(commit.table_id, commit.version)},
        )
        for key in partition_keys
    ]
