"""Every error the library raises, split by whose fault it is.

    DeltaError
    ├── TableNotFound                  no Delta table at this location
    ├── TableAlreadyExists             create(mode="error") on a table that exists
    ├── InvalidTable                   the bytes of the table break the protocol
    │   ├── MissingMetadata            no metaData action in the log
    │   ├── MissingProtocol            no protocol action in the log
    │   ├── LogGap                     a commit between two known versions is missing
    │   ├── CorruptLog                 a log file is truncated or malformed
    │   ├── CorruptDeletionVector      a deletion vector fails its magic, size or checksum
    │   └── DataFileMissing            the log names a file that storage does not have
    ├── UnsupportedFeature             the table needs a feature this library lacks
    │   ├── UnsupportedReaderVersion   minReaderVersion is not one we know
    │   ├── UnsupportedWriterVersion   minWriterVersion is not one we know
    │   └── CatalogRequired            the table can only be opened through its catalog
    ├── UnsupportedExpression          SQL the chosen engine cannot evaluate as Spark would
    ├── SchemaMismatch                 data and table differ in columns or types
    │   └── InvalidCast                a value does not fit the type of its column
    ├── SchemaChangeRefused            a schema change that the table does not allow now
    ├── ColumnChangeFailed             an online change of a column was cancelled
    ├── ConstraintViolation            a row breaks NOT NULL, an invariant or a CHECK
    │   ├── PartitionMismatch          a row is outside the partition or predicate being written
    │   └── ExpectationFailed          rows violate an expectation whose violation fails the write
    ├── AuditFailed                    an audit of a write has failed: nothing was committed
    ├── VersionNotFound                no such version, or none at that timestamp
    │   └── ChangeDataNotRecorded      the change data feed was off at a version of the range
    ├── InvalidArgument                the caller's argument is invalid
    ├── CommitConflict                 a concurrent commit took the version; no rebase possible
    │   ├── ConcurrentAppend           files were added that this commit should have read
    │   ├── ConcurrentDeleteRead       files this commit read were removed
    │   ├── ConcurrentDeleteDelete     files this commit removes were removed already
    │   ├── MetadataChanged            a concurrent commit changed the schema or the properties
    │   ├── ProtocolChanged            a concurrent commit changed the protocol
    │   ├── ConcurrentTransaction      a concurrent commit has the same application id
    │   ├── ConcurrentDomainMetadata   a concurrent commit changed the same metadata domain
    │   └── CommitRetriesExhausted     the version of every attempt was already taken
    ├── CommitStateUnknown             the store never answered: the commit may or may not exist
    ├── StorageFailure                 the store refused or failed
    │   └── ConditionalPutUnsupported  the store cannot do put-if-absent, so it cannot be written
    ├── MemoryExhausted                reading a file took more memory than available
    └── SparkSessionLost               the JVM behind the Spark session has ended

Each carries its facts as attributes beside the message, and no message carries a secret.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from types import MappingProxyType

# Logs of other writers sometimes name files by URIs that hold credentials.
_USER = re.compile(r"(?<=://)[^/@]*:[^@]*(?=@)")
_SIGNATURE = re.compile(
    r"(?i)([?&][^=&]*(?:sig|signature|token|secret|password|credential|key)[^=&]*=)[^&]*"
)


def _without_secrets(uri: str) -> str:
    if "://" not in uri:
        return uri
    return _SIGNATURE.sub(r"\1***", _USER.sub("***", uri))


MAX_EXAMPLES = 5
"""Offending values or rows that an error shows, at most."""
_MAX_EXAMPLE_LENGTH = 300


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_EXAMPLE_LENGTH else f"{text[: _MAX_EXAMPLE_LENGTH - 1]}…"


class DeltaError(Exception):
    """Base class of all errors that the library raises.

    Args:
        message: what happened and what to do now, without the location.
        table: URI of the table, without credentials.
        version: table version the error is about.
        file: log or data file the error is about, relative to the table root.
        column: dotted logical path of the column the error is about.
        examples: a few offending values or rows, already rendered; long ones are shortened.
    """

    def __init__(
        self,
        message: str,
        *,
        table: str | None = None,
        version: int | None = None,
        file: str | None = None,
        column: str | None = None,
        examples: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.table = table
        self.version = version
        self.file = file
        self.column = column
        self.examples = tuple(map(_shortened, examples))

    def __setattr__(self, name: str, value: object) -> None:
        # Some errors get their table and file only as they propagate.
        if name in ("table", "file") and isinstance(value, str):
            value = _without_secrets(value)
        super().__setattr__(name, value)

    def __str__(self) -> str:
        facts = {
            "table": self.table,
            "version": self.version,
            "file": self.file,
            "column": self.column,
        }
        where = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        text = f"{self.message} [{where}]" if where else self.message
        if self.examples:
            text += "\nFor example:\n" + "\n".join(f"  {example}" for example in self.examples)
        return text


class TableNotFound(DeltaError):
    """No Delta table at this location."""


class TableAlreadyExists(DeltaError):
    """A table already exists at the location of the new one."""


class InvalidTable(DeltaError):
    """The bytes of the table break the protocol."""


class MissingMetadata(InvalidTable):
    """The log has no (valid) metaData action."""


class MissingProtocol(InvalidTable):
    """The log has no (valid) protocol action."""


class LogGap(InvalidTable):
    """A commit between two known versions is missing."""


class CorruptLog(InvalidTable):
    """A log file is truncated or malformed."""


class CorruptDeletionVector(InvalidTable):
    """A deletion vector fails its magic, its size or its checksum."""


FILE_MISSING = (
    "the log refers to a file that is missing: restore it, or restore the table to an older version"
)
"""Message of a `DataFileMissing`."""


class DataFileMissing(InvalidTable):
    """The log names a file that storage does not have."""


class UnsupportedFeature(DeltaError):
    """The table needs a feature that this library does not implement."""


class UnsupportedReaderVersion(UnsupportedFeature):
    """minReaderVersion is not one this library knows."""


class UnsupportedWriterVersion(UnsupportedFeature):
    """minWriterVersion is not one this library knows."""


class CatalogRequired(UnsupportedFeature):
    """The table is managed by a catalog and must be opened through it."""


class UnsupportedExpression(DeltaError):
    """A SQL expression that the chosen engine cannot evaluate exactly as Spark would."""


class SchemaMismatch(DeltaError):
    """Data and table differ in columns or types."""


class InvalidCast(SchemaMismatch):
    """A value does not fit the type of its column under ANSI store assignment."""


class SchemaChangeRefused(DeltaError):
    """The table, in its present state, does not allow the schema change: something depends on the
    column, the new type does not hold every old value, or a feature would have to be enabled first.
    """


class ColumnChangeFailed(DeltaError):
    """An online column change was cancelled: some values cannot be converted to the new type, or
    someone else cancelled it.
    """


class ConstraintViolation(DeltaError):
    """A row breaks NOT NULL, an invariant or a CHECK constraint."""


class PartitionMismatch(ConstraintViolation):
    """A row is outside the partition, or the predicate, that is being written."""


class ExpectationFailed(ConstraintViolation):
    """Rows violate an expectation with `on_violation="fail"`."""

    violations: Mapping[str, int] = MappingProxyType({})
    """Number of violating rows by expectation, of all expectations."""
    num_rows: int = 0
    """Rows that were given."""
    rows_by_name: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """The text of a few violating rows by expectation."""


class AuditFailed(DeltaError):
    """An audit of a write has failed, and nothing was committed."""

    results: tuple[object, ...] = ()
    """What each audit has found."""


class VersionNotFound(DeltaError):
    """The table has no such version, or none at that timestamp."""


class ChangeDataNotRecorded(VersionNotFound):
    """The change data feed was off at a version of the requested range."""


class InvalidArgument(DeltaError, ValueError):
    """An argument is invalid."""


class CommitConflict(DeltaError):
    """A concurrent commit took the version, and this commit cannot be rebased on it."""


class ConcurrentAppend(CommitConflict):
    """Files were added that this commit should have read."""


class ConcurrentDeleteRead(CommitConflict):
    """Files that this commit read were removed."""


class ConcurrentDeleteDelete(CommitConflict):
    """Files that this commit removes were removed already."""


class MetadataChanged(CommitConflict):
    """The schema or the table properties were changed by a concurrent commit."""


class ProtocolChanged(CommitConflict):
    """A concurrent commit changed the protocol."""


class ConcurrentTransaction(CommitConflict):
    """A concurrent commit has the same application id."""


class ConcurrentDomainMetadata(CommitConflict):
    """A concurrent commit changed the same metadata domain."""


class CommitRetriesExhausted(CommitConflict):
    """Every attempt failed because its version was already taken."""


class CommitStateUnknown(DeltaError):
    """The store gave no answer: the commit may or may not exist."""


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class StorageFailure(DeltaError):
    """The store refused or failed a request."""

    @classmethod
    def of_system(
        cls, error: OSError, what: str, *, table: str | None = None, file: str | None = None
    ) -> StorageFailure:
        """The StorageFailure for an error of the operating system.

        Args:
            error: the error of the system.
            what: what failed, the beginning of the message.
            table: URI of the table, without credentials.
            file: the file that was read or written, relative to the table root.
        """
        reason = error.strerror or str(error) or type(error).__name__
        remedy = "check permissions, space and the mount, then repeat the operation"
        if error.errno in _FULL:
            remedy = "the disk is full: free some space, then repeat the operation"
        elif error.errno == errno.ENOTDIR:
            remedy = "a part of the location is a file: choose another location"
        elif error.errno == errno.ENAMETOOLONG:
            remedy = "partition the table by shorter values, or give the table a shorter name"
        elif error.errno in _FORBIDDEN:
            remedy = "give the user of this process the right to it, or choose another location"
        return cls(f"{what}: {reason}; {remedy}", table=table, file=file)


class ConditionalPutUnsupported(StorageFailure):
    """The store cannot create a file only if it is absent, so its tables are read-only."""


class MemoryExhausted(DeltaError, MemoryError):
    """Reading a file took more memory than this process has; nothing is known to be damaged."""

    @classmethod
    def of_file(
        cls, error: MemoryError, *, table: str | None = None, file: str | None = None
    ) -> MemoryExhausted:
        """The MemoryExhausted for an allocation that failed while a file was read.

        Args:
            error: the error of the allocation.
            table: URI of the table, without credentials.
            file: the file that was read, relative to the table root.
        """
        reason = str(error) or "an allocation failed"
        return cls(
            f"the memory of this process did not suffice to read a file ({reason}): read fewer "
            "columns or rows, take them in batches with to_batches(), or use the Spark engine; "
            "a file that says it is small may be damaged",
            table=table,
            file=file,
        )


class SparkSessionLost(DeltaError):
    """The JVM behind the Spark session of this process has ended."""
