"""What the log says about one version of a table: its files, its configuration and its totals.

They are compared with the checksum of the version.

Spec: Action Reconciliation; Table Versions; the Version Checksum File of the shipped protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import add
from threading import Lock

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta import clock
from dagster_delta.cached_property import cached_property
from dagster_delta.engines.plans import LARGE_TABLE_FILES
from dagster_delta.errors import CorruptLog, InvalidTable
from dagster_delta.protocol.actions import DomainMetadata, Metadata, Protocol, SetTransaction
from dagster_delta.protocol.checkpoint.batches import FileBatch
from dagster_delta.protocol.checkpoint.reader import KeptBytes
from dagster_delta.protocol.features.row_tracking import NO_ROW_IDS, parse_high_water_mark
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_file import TableActions
from dagster_delta.protocol.log.paths import checksum_path
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.log.segment import LogSegment
from dagster_delta.protocol.log.version_checksum import VersionChecksum
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.statistics.statistics import StatisticsColumn
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.log.commit_range import committed_at_ms
from dagster_delta.table.log.reader import KnownCommit, located
from dagster_delta.table.log.state import LogState

_LOG = logging.getLogger(__name__)

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
        found = self._state.num_files
        if self._comparison is not None:
            self._comparison.compare_number(found)
        return found

    @cached_property
    def size_bytes(self) -> int:
        """Total size of all live files, including rows that deletion vectors hide."""
        if self.is_large_and_unread:
            return self.totals.size_bytes
        return total_bytes(self.live_files(["size_bytes"]))

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
        found = self._state.live_files(names)
        if self._comparison is not None:
            self._comparison.compare(found, self._state.table_actions)
        return found

    def check_totals(self) -> None:
        """Raises CorruptLog if the log, as far as it was read, contradicts the version checksum,
        whichever writer stored it. Called before changes that cannot be undone.
        """
        if self._comparison is not None and self._comparison.contradiction is not None:
            raise self._comparison.contradiction

    def repeated_removals(self) -> tuple[int, ...]:
        """Versions of commits since the checkpoint, as far as they were read, that remove files
        which an earlier one has removed.
        """
        return self._state.repeated_removals()

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
        self._state.check_newest_commit()

    @property
    def max_file_actions(self) -> int:
        """Number of live files and tombstones, or an upper bound of it."""
        return self._state.max_file_actions

    @property
    def is_unread(self) -> bool:
        """Whether the file list is in a checkpoint of which no file was read yet."""
        return any(part.num_adds for part in self._state.unread_parts())

    @property
    def is_large_and_unread(self) -> bool:
        """Whether the file list is large and not loaded yet, so that streaming it in batches is
        better.
        """
        return sum(part.num_adds for part in self._state.unread_parts()) > LARGE_TABLE_FILES

    def kept_bytes(self) -> KeptBytes:
        """Counts the batches of `file_batches` that a caller keeps, up to the limit of memory."""
        with located(self.store, self.version):
            return KeptBytes.of_all([part.kept_bytes() for part in self._state.unread_parts()])

    def statistics(self, columns: Sequence[StatisticsColumn]) -> pa.Table:
        """The statistics of some columns, row for row with `live_files`.

        Returns:
            The table that `parse_statistics_json` describes.
        """
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
        is_recent = now_ms < self.seen_ms + _RECENT_MS
        is_today = clock.midnight_before(now_ms) <= self.seen_ms <= now_ms
        return is_today and is_recent and is_kept


class FileTotals(msgspec.Struct, frozen=True):
    """Totals over live files, for the columns that are known."""

    num_files: int = 0
    size_bytes: int = 0
    """Total size of all data files, deleted rows included."""
    num_deletion_vectors: int = 0
    """Files with a deletion vector."""
    num_deleted_records: int = 0
    """Rows that deletion vectors hide."""

    def __add__(self, other: FileTotals) -> FileTotals:
        return FileTotals(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    @classmethod
    def of(cls, files: pa.Table) -> FileTotals:
        """The totals of a `pa.Table` with columns of LIVE_FILE_SCHEMA."""
        size_bytes = vectors = deleted = 0
        if "size_bytes" in files.column_names:
            size_bytes = total_bytes(files)
        if "deletion_vector" in files.column_names:
            column = files["deletion_vector"]
            vectors = len(column) - column.null_count
            if vectors:
                hidden = pc.cast(pc.struct_field(column, "cardinality"), pa.int64())
                deleted = pc.sum(hidden, min_count=0).as_py()
        return cls(len(files), size_bytes, vectors, deleted)


class ChecksumComparison:
    """Compares each fact once, when it is computed anyway. Thread-safe.

    A contradiction is an error if this library wrote the checksum. Other writers have been seen to
    write wrong counts beside a valid log: for theirs it is a warning, and an error only if rows
    could be lost.
    """

    def __init__(self, checksum: VersionChecksum, version: int, *, table: str) -> None:
        self._checksum = checksum
        self._version = version
        self._table = table
        self._compared: set[str] = set()
        self.contradiction: CorruptLog | None = None
        """The error that was not raised because another writer wrote the checksum."""
        self._lock = Lock()

    def compare(self, files: pa.Table, actions: Callable[[], TableActions]) -> None:
        """Compare the state of the log with the checksum.

        `files` are some columns of all live files, a `pa.Table` of LIVE_FILE_SCHEMA. A
        contradiction is a CorruptLog.
        """
        if not self._compared.issuperset(files.column_names):
            self._compare_facts(FileTotals.of(files), files.column_names, actions)

    def observed(
        self, batches: Iterable[FileBatch], actions: Callable[[], TableActions]
    ) -> Iterator[FileBatch]:
        """Batches of all live files, compared with the checksum after the last one."""
        total, columns = FileTotals(), list[str]()
        for batch in batches:
            columns = batch.files.column_names
            total += FileTotals.of(batch.files)
            yield batch
        self._compare_facts(total, columns, actions)

    def _compare_facts(
        self, counts: FileTotals, columns: Sequence[str], actions: Callable[[], TableActions]
    ) -> None:
        with self._lock:
            for fact in self._list_facts(counts, columns, actions()):
                self._compare_fact(*fact)
            self._compared.update(columns)

    def compare_number(self, num_files: int) -> None:
        """Compare the number of live files with the checksum. Raises as `compare` does."""
        with self._lock:
            self._compare_fact("files", num_files, self._checksum.num_files)

    def _compare_fact(self, fact: str, found: object, expected: object) -> None:
        if found == expected or self.contradiction is not None:
            return
        error = CorruptLog(
            f"The log and the checksum of the version contradict each other ({fact}: {found} by "
            f"the log, {expected} by the checksum), so one of them is damaged: restore the log "
            "from a copy, or open an older version. If it is the checksum that is wrong, delete it",
            table=self._table,
            version=self._version,
            file=checksum_path(self._version),
        )
        if self._checksum.is_own:
            raise error
        self.contradiction = error
        _LOG.warning("version %d of %s: %s", self._version, self._table, error.message)

    def _list_facts(
        self, counts: FileTotals, columns: Sequence[str], actions: TableActions
    ) -> Iterator[tuple[str, object, object]]:
        checksum, protocol, metadata = self._checksum, actions.protocol, actions.metadata
        yield "files", counts.num_files, checksum.num_files
        if "size_bytes" in columns:
            yield "bytes", counts.size_bytes, checksum.size_bytes
        if "deletion_vector" in columns and checksum.num_deletion_vectors is not None:
            yield "deletion vectors", counts.num_deletion_vectors, checksum.num_deletion_vectors
            if checksum.num_deleted_records is not None:
                yield "deleted rows", counts.num_deleted_records, checksum.num_deleted_records
        if protocol is not None:
            yield (
                "protocol",
                _list_features(protocol),
                _list_features(checksum.protocol),
            )
        if metadata is not None:
            expected = checksum.metadata
            yield "table id", metadata.id, expected.id
            yield "schema", metadata.schema_string, expected.schema_string
            partitioning = tuple(metadata.partition_columns), tuple(expected.partition_columns)
            yield "partition columns", *partitioning
            yield "properties", metadata.configuration, expected.configuration


def _list_features(protocol: Protocol) -> tuple[object, ...]:
    # Some writers keep the features as a set: their order has no meaning.
    return (
        protocol.min_reader_version,
        protocol.min_writer_version,
        frozenset(protocol.reader_features or ()),
        frozenset(protocol.writer_features or ()),
    )
