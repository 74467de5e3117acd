"""The inputs and reports of engines for reads and writes: plain data, fully planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import MAX_EXAMPLES
from dagster_delta.parquet.plans import ObservedRows as ObservedRows
from dagster_delta.parquet.plans import ReadPlan as ReadPlan
from dagster_delta.parquet.plans import RowRules as RowRules
from dagster_delta.parquet.plans import SetAside as SetAside
from dagster_delta.parquet.plans import WriteResult as WriteResult
from dagster_delta.parquet.plans import WriteSpec as WriteSpec
from dagster_delta.protocol.actions import AddCDCFile, AddFile
from dagster_delta.protocol.features.change_data import CHANGE_TYPE_COLUMN, RowChangeType
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression

LARGE_TABLE_FILES = 2_000_000
"""Tables with more files than this in their checkpoint are large, by default."""


class ChangeFileSet(msgspec.Struct, frozen=True):
    """Files with changes that are read in one way."""

    configuration: TableConfiguration
    """See `feed_configuration`."""
    files: pa.Table
    """`pa.Table` of CHANGE_FILE_SCHEMA, by ascending version."""
    where: SqlExpression | None
    """Exact row filter; None if none is needed."""
    is_compared: bool = False
    """Whether a deleted and an inserted row of one version that are equal are no change: the row
    has only moved to another file."""

    def read_plan(self, store: ObjectStore, columns: Sequence[str]) -> ReadPlan:
        """The read of some columns of the changed rows."""
        version = pc.max(self.files["commit_version"]).as_py() or 0
        where = None if self.filters_kinds else self.where
        return ReadPlan(store, version, self.configuration, self.files, tuple(columns), where)

    @property
    def filters_kinds(self) -> bool:
        """Whether the filter holds for rows after they were compared: it asks for their kind."""
        found = frozenset() if self.where is None else self.where.references
        return self.is_compared and (CHANGE_TYPE_COLUMN,) in found


class MatchedRows(msgspec.Struct, frozen=True):
    """The live rows of one data file for which a predicate is true; at least one."""

    path: str
    """Path of the file as in the log."""
    rows: BitMap64
    """Indexes of the rows in the file, deleted ones counted and not among them."""


class OlderRows(msgspec.Struct, frozen=True):
    """The live rows that are not the latest of their key."""

    rows: Mapping[str, BitMap64]
    """Indexes of the rows by path of the file, as in the log; files without any are omitted."""
    num_ties: int
    """How many of them are as late as the row that stays."""
    tie_examples: tuple[str, ...] = ()
    """The keys of some of these."""


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
    is_exact: bool = False
    """Whether values that lose a part in the type of the column are refused."""


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
    recorded_as: RowChangeType = "delete"
    """What matching rows are recorded as if nothing is assigned: as `insert` they stay."""


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
        room = MAX_EXAMPLES - len(self.examples)
        self.examples += [f"{example} (in {path})" for example in examples[:room]]

    def join(self, other: Problems) -> None:
        """Add problems found elsewhere."""
        self.num_rows += other.num_rows
        self.examples = [*self.examples, *other.examples][:MAX_EXAMPLES]


class Backfilled(msgspec.Struct, frozen=True):
    """Result of rewriting files with the shadow of a changing column."""

    files: tuple[AddFile, ...]
    """The new files, none of them referenced yet; empty if there are problems."""
    num_rows: int
    num_nulled: int
    """Values that could not be converted and became null, as requested."""
    problems: Problems
