"""Compare the state of the log with the checksum of the version.

Spec: the Version Checksum File of the shipped protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from threading import Lock

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import CorruptLog
from dagster_delta.protocol.actions import Protocol
from dagster_delta.protocol.checkpoint.batches import FileBatch
from dagster_delta.protocol.checkpoint.reader import TableActions
from dagster_delta.protocol.log.paths import checksum_path
from dagster_delta.protocol.log.version_checksum import VersionChecksum
from dagster_delta.table.log.columns import total_bytes

_LOG = logging.getLogger(__name__)


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
        return FileTotals(
            self.num_files + other.num_files,
            self.size_bytes + other.size_bytes,
            self.num_deletion_vectors + other.num_deletion_vectors,
            self.num_deleted_records + other.num_deleted_records,
        )

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
        self._contradiction: CorruptLog | None = None
        self._lock = Lock()

    @property
    def contradiction(self) -> CorruptLog | None:
        """The error that was not raised because another writer wrote the checksum."""
        return self._contradiction

    def compare(self, files: pa.Table, actions: Callable[[], TableActions]) -> None:
        """Compare the state of the log with the checksum.

        `files` are some columns of all live files, a `pa.Table` of LIVE_FILE_SCHEMA. A
        contradiction is a CorruptLog.
        """
        if not self._compared.issuperset(files.column_names):
            self._settle(FileTotals.of(files), files.column_names, actions)

    def observed(
        self, batches: Iterable[FileBatch], actions: Callable[[], TableActions]
    ) -> Iterator[FileBatch]:
        """Batches of all live files, compared with the checksum after the last one."""
        total, columns = FileTotals(), list[str]()
        for batch in batches:
            columns = batch.files.column_names
            total += FileTotals.of(batch.files)
            yield batch
        self._settle(total, columns, actions)

    def _settle(
        self, counts: FileTotals, columns: Sequence[str], actions: Callable[[], TableActions]
    ) -> None:
        with self._lock:
            for fact, found, expected in chain(
                self._facts(counts, columns), self._settings(actions())
            ):
                self._compare(fact, found, expected)
            self._compared.update(columns)

    def compare_number(self, num_files: int) -> None:
        """Compare the number of live files with the checksum. Raises as `compare` does."""
        with self._lock:
            self._compare("files", num_files, self._checksum.num_files)

    def _compare(self, fact: str, found: object, expected: object) -> None:
        if found == expected or self._contradiction is not None:
            return
        error = CorruptLog(
            f"The log and the checksum of the version contradict each other ({fact}: {found} by "
            f"the log, {expected} by the checksum), so one of them is damaged: restore the log "
            "from a copy, or open an older version. If it is the checksum that is wrong, delete it",
            version=self._version,
            file=checksum_path(self._version),
        )
        if self._checksum.is_own:
            raise error
        self._contradiction = error
        _LOG.warning("version %d of %s: %s", self._version, self._table, error.message)

    def _facts(
        self, counts: FileTotals, columns: Sequence[str]
    ) -> Iterator[tuple[str, object, object]]:
        checksum = self._checksum
        yield "files", counts.num_files, checksum.num_files
        if "size_bytes" in columns:
            yield "bytes", counts.size_bytes, checksum.size_bytes
        if "deletion_vector" in columns and checksum.num_deletion_vectors is not None:
            yield "deletion vectors", counts.num_deletion_vectors, checksum.num_deletion_vectors
            if checksum.num_deleted_records is not None:
                yield "deleted rows", counts.num_deleted_records, checksum.num_deleted_records

    def _settings(self, actions: TableActions) -> Iterator[tuple[str, object, object]]:
        protocol, metadata = actions.protocol, actions.metadata
        if protocol is not None:
            yield "protocol", _features(protocol), _features(self._checksum.protocol)
        if metadata is not None:
            expected = self._checksum.metadata
            yield "table id", metadata.id, expected.id
            yield "schema", metadata.schema_string, expected.schema_string
            columns = tuple(metadata.partition_columns), tuple(expected.partition_columns)
            yield "partition columns", *columns
            yield "properties", metadata.configuration, expected.configuration


def _features(protocol: Protocol) -> tuple[object, ...]:
    # Some writers keep the features as a set: their order has no meaning.
    return (
        protocol.min_reader_version,
        protocol.min_writer_version,
        frozenset(protocol.reader_features or ()),
        frozenset(protocol.writer_features or ()),
    )
