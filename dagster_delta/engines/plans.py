"""The inputs and reports of engines for reads and writes: plain data, fully planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.memory_budget import BUFFER_BYTES
from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.actions import AddCDCFile, AddFile
from dagster_delta.protocol.checkpoint.reader import CheckpointPart
from dagster_delta.protocol.features.column_values import NO_VALUES, ColumnValues
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.time_zone import UTC
from dagster_delta.storage.object_store import ObjectStore, StoreLocation

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression

LARGE_TABLE_FILES = 2_000_000
"""Tables with more files than this in their checkpoint are large, by default."""


class ReadPlan(msgspec.Struct, frozen=True):
    """One scan, fully planned.

    Raises:
        InvalidTable: a file has a deletion vector, but the protocol does not support them.
    """

    store: ObjectStore
    version: int
    """Version of the table that is read."""
    configuration: TableConfiguration
    """Schema, partitioning, column mapping and features of that version."""
    files: pa.Table
    """pyarrow.Table of the files that may have rows, with the columns of `LIVE_FILE_SCHEMA`."""
    columns: tuple[str, ...]
    """Logical top-level columns of the result, in order."""
    where: SqlExpression | None = None
    """Exact row filter; files are already pruned with it."""
    verifies_pages: bool = True
    """Whether to verify Parquet page checksums. Required for rows that are rewritten or select what
    to rewrite: otherwise damaged data would get a new, valid checksum."""
    is_collected: bool = False
    """Whether the caller keeps all rows, so that reading ahead needs no bound."""

    def __post_init__(self) -> None:
        if self.configuration.supports("deletionVectors"):
            return
        if "deletion_vector" not in self.files.column_names:
            return
        marked = pc.filter(self.files, pc.is_valid(self.files["deletion_vector"]))
        if marked.num_rows:
            # Other readers ignore deletion vectors in their count, and return the deleted rows.
            raise InvalidTable(
                "a data file has a deletion vector, and the protocol does not list the feature "
                "deletionVectors, so that readers disagree about its rows; restore an older "
                "version, or add the feature with the engine that wrote the file",
                table=self.store.location.uri,
                version=self.version,
                file=marked["path"][0].as_py(),
            )

    @property
    def schema(self) -> StructType:
        """Logical schema of the result."""
        schema = self.configuration.schema
        return StructType(tuple(schema.field(name) for name in self.columns))


class ChangeFileSet(msgspec.Struct, frozen=True):
    """Files with changes that are read in one way."""

    configuration: TableConfiguration
    """See `feed_configuration`."""
    files: pa.Table
    """`pa.Table` of CHANGE_FILE_SCHEMA, by ascending version."""
    where: SqlExpression | None
    """Exact row filter; None if none is needed."""


class LoggedFiles(msgspec.Struct, frozen=True):
    """The live files of a version as in its log, before any of them is read."""

    store: ObjectStore
    version: int
    configuration: TableConfiguration
    parts: tuple[CheckpointPart, ...]
    """Parquet files of the checkpoint, sidecars included; their adds are live except for
    `hidden`."""
    hidden: tuple[str, ...]
    """Keys of files that later commits removed or added again, see `file_key`."""
    added: pa.Table
    """The files that later commits added, of LIVE_FILE_SCHEMA."""

    @property
    def num_files(self) -> int:
        """Number of live files, or a little more."""
        return sum(part.num_adds for part in self.parts) + int(self.added.num_rows)


class Constraint(msgspec.Struct, frozen=True):
    """A predicate that every written row must satisfy (null counts as a violation)."""

    name: str
    """Its name in an error: `NOT NULL c`, `invariant c`, `CHECK name`, `replaceWhere`."""
    sql: str
    """Spark SQL over logical columns."""
    null_passes: bool = False
    """Whether an unknown result passes, as for a partition predicate on null."""
    is_partition: bool = False
    """Whether a violation is a `PartitionMismatch` rather than a `ConstraintViolation`."""


class WriteSpec(msgspec.Struct, frozen=True):
    """How to write rows as data files. Picklable, so that executors can use it."""

    location: StoreLocation
    configuration: TableConfiguration
    """Target schema (logical, partition columns included), partitioning, mapping, properties."""
    values: ColumnValues = NO_VALUES
    """Sources of the columns that the rows lack; filled before constraints are checked."""
    constraints: tuple[Constraint, ...] = ()
    """Checked on every row before it is written."""
    time_zone: str = UTC
    """Time zone in which the embedded engine computes the values and checks the constraints."""
    target_file_size_bytes: int = 128 * 1024 * 1024
    """A data file is closed when it reaches about this size."""
    row_group_rows: int = 1_000_000
    """Maximum rows of a row group."""
    row_group_bytes: int = 32 * 1024 * 1024
    """Arrow bytes of the rows that make one row group."""
    buffer_bytes: int = BUFFER_BYTES
    """Maximum Arrow bytes of waiting rows in all partitions together."""
    compression: str = "zstd"
    compression_level: int | None = 1
    max_open_partitions: int = 64
    """Partition writers kept open at once; beyond it the least recently used one is closed. While
    workers are busy with it, others may have opened some more."""
    sort_by: tuple[str, ...] = ()
    """Logical columns to sort the rows of each file by."""
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Tags put on every add action."""
    is_change_data: bool = False
    """Whether the files are change data (`_change_data/cdc-…`) rather than data of the table."""
    is_exact: bool = False
    """Whether values are refused that lose a part in the type of their column."""


class WriteResult(msgspec.Struct, frozen=True):
    """The files an engine wrote, none of them referenced yet."""

    files: tuple[AddFile, ...]
    num_rows: int
    num_bytes: int
    high_water_marks: Mapping[str, int] = msgspec.field(default_factory=dict)
    """The last value assigned, by logical name of each identity column that was numbered."""

    @classmethod
    def combined(cls, results: Sequence[WriteResult]) -> WriteResult:
        """The result of several writes that numbered no column."""
        return cls(
            tuple(file for result in results for file in result.files),
            sum(result.num_rows for result in results),
            sum(result.num_bytes for result in results),
        )


class MatchedRows(msgspec.Struct, frozen=True):
    """The live rows of one data file for which a predicate is true; at least one."""

    path: str
    """Path of the file as in the log."""
    rows: BitMap64
    """Indexes of the rows in the file, deleted ones counted and not among them."""


class Assignment(msgspec.Struct, frozen=True):
    """A new value for a column, computed from the row as it was."""

    column: tuple[str, ...]
    """Logical path: a top-level column, or a field inside structs."""
    value: SqlExpression
    """Cast to the type of the column by the rules of store assignment."""
    structs: tuple[SqlExpression, ...] = ()
    """For a field whose struct is assigned field by field: the source structs, outermost first. A
    struct that is null in the source and in the row stays null."""
    uncast: SqlExpression | None = None
    """The value before an ANSI cast that was added to it; None if none was."""


class RowRewrite(msgspec.Struct, frozen=True):
    """Rows of data files to rewrite, changed or not, to new files.

    The live rows of the files fall into two parts: those that match, and the rest. Matching rows
    are written with new values, or not at all if nothing is assigned; the rest is written
    unchanged, or not at all if the files stay.
    """

    source: ReadPlan
    """The files, with all columns of the table. Its `where`, if any, is true only for
    the matching rows; an engine may use it or `matches`."""
    matches: Mapping[str, BitMap64]
    """Indexes of the matching rows by path; in a file without an entry every live
    row matches."""
    assignments: tuple[Assignment, ...]
    """New values of the matching rows; if empty, the rows are deleted."""
    keeps_rest: bool
    """Whether the rest is written too, as copy-on-write needs it."""
    data: WriteSpec
    """How the files are written; its constraints apply to the rows that change."""
    change_data: WriteSpec | None = None
    """How the changes are recorded for the change data feed; None if they are not."""


class RewriteResult(msgspec.Struct, frozen=True):
    """The files a rewrite made, none of them referenced yet."""

    files: tuple[AddFile, ...]
    change_files: tuple[AddCDCFile, ...]
    num_changed_rows: int
    """Rows that matched."""
    num_copied_rows: int
    """Number of unchanged rows that were written."""


class Problems(msgspec.Struct):
    """Rows that stop the change of a column."""

    num_rows: int = 0
    """Number of rows; each counts once, even with several problems."""
    examples: list[str] = msgspec.field(default_factory=list)
    """The first few: value, its problem, and its file."""

    def add(self, num_rows: int, examples: list[str], path: str) -> None:
        """Add problems of one file."""
        self.num_rows += num_rows
        room = _MAX_EXAMPLES - len(self.examples)
        self.examples += [f"{example} (in {path})" for example in examples[:room]]

    def join(self, other: Problems) -> None:
        """Add problems found elsewhere."""
        self.num_rows += other.num_rows
        self.examples = [*self.examples, *other.examples][:_MAX_EXAMPLES]


_MAX_EXAMPLES = 5


class Backfilled(msgspec.Struct, frozen=True):
    """Result of rewriting files with the shadow of a changing column."""

    files: tuple[AddFile, ...]
    """The new files, none of them referenced yet; empty if there are problems."""
    num_rows: int
    num_nulled: int
    """Values that could not be converted and became null, as requested."""
    problems: Problems
