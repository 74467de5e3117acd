"""What engines are asked to read and to write, and what they report: plain data, fully planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.actions import AddCDCFile, AddFile
from dagster_delta.protocol.checkpoint.reader import CheckpointPart
from dagster_delta.protocol.features.column_values import NO_VALUES, ColumnValues
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructType
from dagster_delta.storage.object_store import ObjectStore, StoreLocation

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression

__all__ = [
    "LARGE_TABLE_FILES",
    "Assignment",
    "Backfilled",
    "ChangeFileSet",
    "Constraint",
    "LoggedFiles",
    "MatchedRows",
    "Problems",
    "ReadPlan",
    "RewriteResult",
    "RowRewrite",
    "WriteResult",
    "WriteSpec",
]


LARGE_TABLE_FILES = 2_000_000
"""Tables with more files than this in their checkpoint are large, if nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """One scan, fully planned.

    Raises:
        InvalidTable: a file has a deletion vector, and the protocol knows of none.
    """

    store: ObjectStore
    version: int
    """Version of the table that is read."""
    configuration: TableConfiguration
    """Schema, partitioning, column mapping and features of that version."""
    files: pa.Table
    """pyarrow.Table of the files that may hold rows, with the columns of `LIVE_FILE_SCHEMA`."""
    columns: tuple[str, ...]
    """Logical top-level columns of the result, in order."""
    where: SqlExpression | None = None
    """Exact row filter; pruning with it has happened already."""
    verifies_pages: bool = True
    """Whether pages are held against the checksums that they carry. Rows that are written anew,
    or decide what is, have to be: damage would get a good checksum of its own."""

    def __post_init__(self) -> None:
        if self.configuration.supports("deletionVectors"):
            return
        if "deletion_vector" not in self.files.column_names:
            return
        marked = self.files.filter(pc.is_valid(self.files["deletion_vector"]))
        if marked.num_rows:
            # Other readers count without the deleted rows, and then return them.
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


@dataclass(frozen=True, slots=True)
class ChangeFileSet:
    """Files with changes that are read in one way."""

    configuration: TableConfiguration
    """See `feed_configuration`."""
    files: pa.Table
    """`pa.Table` of CHANGE_FILE_SCHEMA, by ascending version."""
    where: SqlExpression | None
    """Exact row filter; None where none is needed."""


@dataclass(frozen=True, slots=True)
class LoggedFiles:
    """The live files of a version as its log holds them, before any of them is looked at."""

    store: ObjectStore
    version: int
    configuration: TableConfiguration
    parts: tuple[CheckpointPart, ...]
    """Parquet files of the checkpoint, sidecars included; their adds are live but for `hidden`."""
    hidden: tuple[str, ...]
    """Keys of what later commits removed or added again, see `file_key`."""
    added: pa.Table
    """The files that later commits added, of LIVE_FILE_SCHEMA."""

    @property
    def num_files(self) -> int:
        """Number of live files, or a little more."""
        return sum(part.num_adds for part in self.parts) + int(self.added.num_rows)


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
    values: ColumnValues = NO_VALUES
    """Where the columns come from that the rows do not bring; filled before constraints bind."""
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
    is_change_data: bool = False
    """Whether the files are change data (`_change_data/cdc-…`) rather than data of the table."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The files an engine wrote, none of them referenced yet."""

    files: tuple[AddFile, ...]
    num_rows: int
    num_bytes: int
    high_water_marks: Mapping[str, int] = field(default_factory=dict)
    """The last value given out, by logical name of each identity column that was numbered."""


@dataclass(frozen=True, slots=True)
class MatchedRows:
    """The live rows of one data file that a predicate is true of; there is at least one."""

    path: str
    """Path of the file as the log spells it."""
    rows: BitMap64
    """Indexes of the rows in the file, deleted ones counted and not among them."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A new value for a column, computed from the row as it was."""

    column: tuple[str, ...]
    """Logical path: a top-level column, or a field inside structs."""
    value: SqlExpression
    """Cast to the type of the column by the rules of store assignment."""
    structs: tuple[SqlExpression, ...] = ()
    """Of a field whose struct is taken over field by field: the structs that it comes from, the
    outermost first. One that is null there and in the row stays null."""
    uncast: SqlExpression | None = None
    """The value before an ANSI cast that was added to it; None where none was."""


@dataclass(frozen=True, slots=True)
class RowRewrite:
    """Rows of data files that are written anew, changed or not, to new files.

    The live rows of the files fall into two parts: those that match, and the rest. Matching rows
    are written with new values, or not at all where nothing is assigned; the rest is written as it
    is, or not at all where the files stay.
    """

    source: ReadPlan
    """The files, with all columns of the table. A `where` in it is true of the matching rows and
    of no others; an engine may go by it or by `matches`."""
    matches: Mapping[str, BitMap64]
    """Indexes of the matching rows by path; of a file without an entry every live row matches."""
    assignments: tuple[Assignment, ...]
    """New values of the matching rows; none take them out of the table."""
    keeps_rest: bool
    """Whether the rest is written too, as copy-on-write needs it."""
    data: WriteSpec
    """How the files are written; its constraints bind the rows that change."""
    change_data: WriteSpec | None = None
    """How the changes are recorded for the change data feed; None where they are not."""


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """The files a rewrite made, none of them referenced yet."""

    files: tuple[AddFile, ...]
    change_files: tuple[AddCDCFile, ...]
    num_changed_rows: int
    """Rows that matched."""
    num_copied_rows: int
    """Rows of the rest, written as they were."""


@dataclass(slots=True)
class Problems:
    """Rows that keep the change of a column from going on."""

    num_rows: int = 0
    """How many there are; each counts once, whatever is wrong with it."""
    examples: list[str] = field(default_factory=list)
    """The first few: value, what is wrong with it, and the file it is in."""

    def add(self, num_rows: int, examples: list[str], path: str) -> None:
        """Take note of problems in one file."""
        self.num_rows += num_rows
        room = _MAX_EXAMPLES - len(self.examples)
        self.examples += [f"{each} (in {path})" for each in examples[:room]]

    def join(self, other: Problems) -> None:
        """Take note of what somebody else met."""
        self.num_rows += other.num_rows
        self.examples = [*self.examples, *other.examples][:_MAX_EXAMPLES]


_MAX_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What writing files again with the shadow of a changing column gave."""

    files: tuple[AddFile, ...]
    """The new files, none of them referenced yet; none where there are problems."""
    num_rows: int
    num_nulled: int
    """Values that could not be converted and became null, as was asked for."""
    problems: Problems
