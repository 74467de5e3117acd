"""What the log says about one version of a table: its files, its configuration and its totals.

Spec: Action Reconciliation; Table Versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta import clock
from dagster_delta.cached_property import cached_property
from dagster_delta.engines.plans import LARGE_TABLE_FILES, LoggedFiles
from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.actions import DomainMetadata, Metadata, Protocol, SetTransaction
from dagster_delta.protocol.checkpoint.batches import FileBatch
from dagster_delta.protocol.checkpoint.kept_bytes import KeptBytes
from dagster_delta.protocol.features.row_tracking import NO_ROW_IDS, parse_high_water_mark
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.cleanup import midnight_before
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.log.segment import LogSegment
from dagster_delta.protocol.log.version_checksum import VersionChecksum
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.statistics.statistics import StatisticsColumn
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.checksum_comparison import ChecksumComparison, FileTotals
from dagster_delta.table.log.commit_range import committed_at_ms
from dagster_delta.table.log.reader import (
    KnownCommit,
    located,
)
from dagster_delta.table.log.state import LogState

_RECENT_MS = 10 * 60 * 1000
_MIN_LOG_RETENTION_MS = 6 * _RECENT_MS


class LogVersion:
    """The log at one version. Its files are listed only when needed.

    Immutable and thread-safe: data that was read is cached, column by column.
    """

    def __init__(
        self,
        store: ObjectStore,
        segment: LogSegment,
        configuration: TableConfiguration,
        state: LogState,
        checksum: VersionChecksum | None = None,
        commit: bytes | None = None,
    ) -> None:
        self.store = store
        self.log_segment = segment
        self.version = segment.version
        self.configuration = configuration
        self.checksum = checksum
        """Totals and table state from the version's checksum file, or None if it has none."""
        self.seen_ms = 0
        """When this version, or an earlier one, was the latest, in milliseconds since the epoch; 0
        if that is not known."""
        self._state = state
        self.known_commit = KnownCommit.newest_of(store, segment, commit)
        """The commit of this version; None if a clean-up has removed it."""
        self._comparison = (
            None
            if checksum is None
            else ChecksumComparison(checksum, self.version, table=store.location.uri)
        )

    @property
    def exists(self) -> bool:
        """Whether the table has been created."""
        return self.version >= 0

    @property
    def protocol(self) -> Protocol:
        """The protocol action: what a client must understand to read and write the table."""
        return self.configuration.protocol

    @property
    def metadata(self) -> Metadata:
        """Identity, schema text, partitioning and properties of the table."""
        return self.configuration.metadata

    @property
    def schema(self) -> StructType:
        """The logical schema, partition columns included."""
        return self.configuration.schema

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The logical schema as a `pa.Schema`."""
        return to_arrow_schema(self.schema)

    @cached_property
    def timestamp_ms(self) -> int:
        """When the version was committed, in milliseconds since the epoch.

        The commit's own timestamp if the table has in-commit timestamps, else the time of its file.
        Raises InvalidTable, StorageFailure.
        """
        return committed_at_ms(self.store, self.log_segment, self.configuration, self.checksum)

    @property
    def num_files(self) -> int:
        """Number of live files."""
        if self.is_large_and_unread:
            return self.totals.num_files
        with located(self.store, self.version):
            found = self._state.num_files
            if self._comparison is not None:
                self._comparison.compare_number(found)
            return found

    @cached_property
    def size_bytes(self) -> int:
        """Total size of all live files, including rows that deletion vectors hide."""
        if self.is_large_and_unread:
            return self.totals.size_bytes
        return pc.sum(self.live_files(["size_bytes"])["size_bytes"], min_count=0).as_py() or 0

    @cached_property
    def totals(self) -> FileTotals:
        """Sums over the live files, read in batches."""
        batches = self.file_batches(["size_bytes", "deletion_vector"])
        return sum((FileTotals.of(batch.files) for batch in batches), FileTotals())

    def live_files(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The live files, a `pa.Table` with the columns of LIVE_FILE_SCHEMA in a stable row order.

        Args:
            columns: which columns, in which order; all by default. Only these are read.

        Raises:
            InvalidTable: the log is damaged, or contradicts the version checksum.
            StorageFailure.
        """
        names = LIVE_FILE_SCHEMA.names if columns is None else columns
        with located(self.store, self.version):
            found = self._state.live_files(names)
            if self._comparison is not None:
                self._comparison.compare(found, self._state.table_actions)
            return found

    def check_totals(self) -> None:
        """Raises CorruptLog if the log, as far as it was read, contradicts the version checksum,
        whichever writer stored it. Called before changes that cannot be undone.
        """
        with located(self.store, self.version):
            if self._comparison is not None and self._comparison.contradiction is not None:
                raise self._comparison.contradiction

    @property
    def damaged_log_files(self) -> tuple[str, ...]:
        """Damaged files of the log found so far that the version does not need, relative to the
        root; a version checksum that contradicts the log is one of them.
        """
        found = self._state.damaged_files
        if self._comparison is None or self._comparison.contradiction is None:
            return found
        return (*found, str(self._comparison.contradiction.file))

    def file_batches(
        self, columns: Sequence[str], statistics: Sequence[StatisticsColumn] | None = None
    ) -> Iterator[FileBatch]:
        """The rows of `live_files` and `statistics`, one batch at a time: nothing is cached, so it
        takes the memory of one batch for any number of files.

        Args:
            columns: columns of LIVE_FILE_SCHEMA.
            statistics: columns whose statistics batches must give; None for no statistics.

        Raises:
            InvalidTable: the log is damaged.
            StorageFailure.
        """
        with located(self.store, self.version):
            batches = self._state.file_batches(columns, statistics)
            if self._comparison is not None:
                batches = self._comparison.observed(batches, self._state.table_actions)
            yield from batches

    def tombstone_batches(self, *, now_ms: int | None = None) -> Iterator[pa.Table]:
        """The rows of `tombstones`, in several `pa.Table`s; none of them is cached.

        Args:
            now_ms: as for `tombstones`.
        """
        with located(self.store, self.version):
            since = self._retained_since_ms(now_ms)
            yield from self._state.tombstone_batches(removed_after_ms=since)

    def check_newest_commit(self) -> None:
        """Check that a write may build on this version.

        A commit after a damaged one would succeed, but could not be read.

        Raises:
            CorruptLog: the newest commit is empty, truncated or changed, or holds a value of a
                wrong type.
            LogGap: the newest commit was deleted.
            StorageFailure: the store refused or failed.
        """
        with located(self.store, self.version):
            self._state.check_newest_commit()

    @property
    def max_file_actions(self) -> int:
        """Number of live files and tombstones, or an upper bound of it."""
        with located(self.store, self.version):
            return self._state.max_file_actions

    @property
    def is_large_and_unread(self) -> bool:
        """Whether the file list is large and not loaded yet, so that streaming it in batches is
        better.
        """
        with located(self.store, self.version):
            parts = self._state.unread_parts()
            return sum(part.num_adds for part in parts) > LARGE_TABLE_FILES

    def kept_bytes(self) -> KeptBytes:
        """Counts the batches of `file_batches` that a caller keeps, up to the limit of memory."""
        with located(self.store, self.version):
            return KeptBytes.of_all([part.kept_bytes() for part in self._state.unread_parts()])

    def logged_files(self, *, more_than: int) -> LoggedFiles | None:
        """The log of a large table, for an engine that replays the log itself.

        Args:
            more_than: number of files above which a table is large.

        Returns:
            None if the table is smaller, or its files are already known.

        Raises:
            InvalidTable, StorageFailure: for the log.
        """
        with located(self.store, self.version):
            parts = self._state.unread_parts()
            if sum(part.num_adds for part in parts) <= more_than:
                return None
            hidden, added = self._state.replayed_tail()
        return LoggedFiles(self.store, self.version, self.configuration, parts, hidden, added)

    def statistics(self, columns: Sequence[StatisticsColumn]) -> pa.Table:
        """The statistics of some columns, row for row with `live_files`.

        Returns:
            The table that `parse_statistics_json` describes.
        """
        with located(self.store, self.version):
            return self._state.statistics(columns)

    def transaction_version(self, app_id: str) -> int | None:
        """The latest version that an application has committed, or None."""
        found = self._transactions_by_id().get(app_id)
        return None if found is None else found.version

    def transactions(self, *, now_ms: int | None = None) -> tuple[SetTransaction, ...]:
        """The latest transaction of every application that has not expired.

        Args:
            now_ms: the time that `delta.setTransactionRetentionDuration` is counted back from,
                milliseconds since the epoch; the clock's by default.
        """
        return tuple(self._transactions_by_id(now_ms).values())

    def _transactions_by_id(self, now_ms: int | None = None) -> dict[str, SetTransaction]:
        retention = self.configuration.properties.set_transaction_retention_ms
        if self.checksum is not None and self.checksum.transactions is not None:
            found = {txn.app_id: txn for txn in self.checksum.transactions}
        else:
            with located(self.store, self.version):
                found = self._state.table_actions().txns
        if retention is None:
            return found
        oldest = (clock.now_ms() if now_ms is None else now_ms) - retention
        # As in the reference implementation, a transaction without a time has expired.
        return {app_id: txn for app_id, txn in found.items() if (txn.last_updated_ms or 0) > oldest}

    def domain_metadata(self) -> dict[str, DomainMetadata]:
        """The metadata domains that are set, by name."""
        checksum = self.checksum
        if checksum is not None and checksum.domain_metadata is not None:
            found = {domain.domain: domain for domain in checksum.domain_metadata}
        else:
            with located(self.store, self.version):
                found = self._state.table_actions().domain_metadata
        return {name: domain for name, domain in found.items() if not domain.removed}

    @property
    def highest_row_id(self) -> int:
        """The highest row id that was assigned; -1 if there is none. Spec: Row Tracking."""
        if not self.configuration.supports("rowTracking"):
            return NO_ROW_IDS
        return parse_high_water_mark(self.domain_metadata().values())

    def tombstones(self, *, now_ms: int | None = None) -> pa.Table:
        """Removes that have not expired, a `pa.Table` of TOMBSTONE_SCHEMA.

        Args:
            now_ms: the time that the retention is counted back from, milliseconds since the epoch;
                the clock's by default.
        """
        with located(self.store, self.version):
            return self._state.tombstones(removed_after_ms=self._retained_since_ms(now_ms))

    def _retained_since_ms(self, now_ms: int | None) -> int:
        now = clock.now_ms() if now_ms is None else now_ms
        return now - self.configuration.properties.deleted_file_retention_ms

    def keeps_log(self, now_ms: int) -> bool:
        """Whether no clean-up can have deleted a commit after this version, as it was the latest
        moments ago: clean-ups delete no commit of the current day (UTC), and none that is younger
        than the retention. False for a local log, which shows it in microseconds.
        """
        if self.store.local_path("") is not None:
            return False
        try:
            is_kept = self.configuration.properties.log_retention_ms >= _MIN_LOG_RETENTION_MS
        except InvalidTable:
            # The property cannot be used, and has to stay repairable.
            return False
        is_recent = midnight_before(now_ms) <= self.seen_ms <= now_ms < self.seen_ms + _RECENT_MS
        return is_recent and is_kept
