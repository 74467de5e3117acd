"""The port between planning and rows: what an engine is asked to read and to write.

Planning happens above, once, for every engine; an engine never looks into the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.table_configuration import TableConfiguration
from dagster_delta.storage.object_store import ObjectStore, StoreLocation

if TYPE_CHECKING:
    from dagster_delta.engines.sql_expressions import SqlExpression

__all__ = ["Constraint", "Engine", "ReadPlan", "WriteResult", "WriteSpec"]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """One scan, fully planned."""

    store: ObjectStore
    version: int
    """Version of the table that is read."""
    configuration: TableConfiguration
    """Schema, partitioning, column mapping and features of that version."""
    files: Any
    """pyarrow.Table of the files that may hold rows, with the columns of `LIVE_FILE_SCHEMA`."""
    columns: tuple[str, ...]
    """Logical top-level columns of the result, in order."""
    where: SqlExpression | None = None
    """Exact row filter; pruning with it has happened already."""

    @property
    def schema(self) -> StructType:
        """Logical schema of the result."""
        schema = self.configuration.schema
        return StructType(tuple(schema.field(name) for name in self.columns))


@dataclass(frozen=True, slots=True)
class Constraint:
    """A predicate that every written row must satisfy (null counts as a violation)."""

    name: str
    """What to call it in an error: `NOT NULL c`, `invariant c`, `CHECK name`, `replaceWhere`."""
    sql: str
    """Spark SQL over logical columns."""
    null_passes: bool = False
    """Whether an unknown result passes, as it does for a partition predicate on nothing."""
    is_partition: bool = False
    """Whether a violation is a `PartitionMismatch` rather than a `ConstraintViolation`."""


@dataclass(frozen=True, slots=True)
class WriteSpec:
    """How rows become data files. Picklable, so that executors can follow it."""

    location: StoreLocation
    configuration: TableConfiguration
    """Target schema (logical, partition columns included), partitioning, mapping, properties."""
    constraints: tuple[Constraint, ...] = ()
    """Checked on every row before it is written."""
    target_file_size_bytes: int = 128 * 1024 * 1024
    """A data file is closed once it has grown to about this size."""
    compression: str = "zstd"
    compression_level: int | None = 1
    max_open_partitions: int = 64
    """Partition writers kept open at once; beyond it the least recently used one is closed."""
    sort_by: tuple[str, ...] = ()
    """Logical columns to sort the rows of each file by."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags put on every add action."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The files an engine wrote, none of them referenced yet."""

    files: tuple[AddFile, ...]
    num_rows: int
    num_bytes: int


class Engine(Protocol):
    """Reads and writes rows of one kind of value."""

    def read(self, plan: ReadPlan) -> Any:
        """The rows of the plan, lazily: a `pyarrow.RecordBatchReader` or a Spark DataFrame.

        Raises:
            DataFileMissing: the log names a file that is not there.
            CorruptDeletionVector, UnsupportedExpression, InvalidTable.
        """

    def schema_of(self, data: Any) -> StructType:
        """The logical schema of a value that is about to be written."""

    def write(self, data: Any, spec: WriteSpec, *, store: ObjectStore) -> WriteResult:
        """Write rows as data files under the table root.

        Columns are matched by name (case-insensitively), missing nullable ones become null, and
        values are cast to the table's types under ANSI store assignment.

        Raises:
            SchemaMismatch, InvalidCast, ConstraintViolation, PartitionMismatch: before anything is
                referenced; files already written are deleted where that is possible.
        """


Clock = Callable[[], int]
"""Milliseconds since the epoch; a parameter, so that tests own the time."""
