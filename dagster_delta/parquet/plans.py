"""What to read from data files and how to write them: plain data, fully planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import MAX_EXAMPLES, InvalidTable
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.features.column_values import NO_VALUES, ColumnValues
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.constraint import Constraint
from dagster_delta.sql.expectation import Expectation
from dagster_delta.sql.time_zone import UTC
from dagster_delta.storage import open_store
from dagster_delta.storage.object_store import ObjectStore, StoreLocation

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression

BUFFER_BYTES = 128 * 1024 * 1024
"""Arrow bytes of rows that wait to be written, at most."""


class ReadPlan(msgspec.Struct, frozen=True):
    """One scan, fully planned. Picklable: an executor gets a store of its own for the location.

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

    def __reduce__(self) -> tuple[object, ...]:
        rest = (getattr(self, name) for name in self.__struct_fields__[1:])
        return _with_own_store, (self.store.location, *rest)

    @property
    def schema(self) -> StructType:
        """Logical schema of the result."""
        schema = self.configuration.schema
        return StructType(tuple(schema.field(name) for name in self.columns))


def _with_own_store(location: StoreLocation, *rest: Any) -> ReadPlan:
    return ReadPlan(open_store(location.uri, location.options), *rest)


class SetAside(msgspec.Struct, frozen=True):
    """How rows are written to the table beside the one that they were for. Picklable."""

    spec: WriteSpec
    """Its files; the columns `row` and `reasons` are the text of a row and what it violated."""
    constants: Mapping[str, object]
    """Values of other columns."""


class RowRules(msgspec.Struct, frozen=True):
    """What is expected of rows while they are written. Picklable."""

    expectations: tuple[Expectation, ...]
    set_aside: SetAside | None = None
    """For the rows that violate one with `quarantine`."""


class ObservedRows(msgspec.Struct, frozen=True):
    """How rows met their expectations."""

    num_rows: int = 0
    """Rows that were given."""
    violations: Mapping[str, int] = {}
    """Number of violating rows by expectation, without those that hold."""
    examples: Mapping[str, tuple[str, ...]] = {}
    """The text of a few violating rows by expectation."""
    num_dropped: int = 0
    """Rows that were not written to any table."""
    num_set_aside: int = 0
    """Rows that were written to the table beside."""
    files: tuple[AddFile, ...] = ()
    """Files of the table beside, none of them referenced yet."""

    @classmethod
    def combined(cls, parts: Sequence[ObservedRows]) -> ObservedRows:
        """The sums of several observations."""
        violations: dict[str, int] = {}
        examples: dict[str, tuple[str, ...]] = {}
        for part in parts:
            for name, count in part.violations.items():
                violations[name] = violations.get(name, 0) + count
                shown = (*examples.get(name, ()), *part.examples.get(name, ()))
                examples[name] = shown[:MAX_EXAMPLES]
        return cls(
            sum(part.num_rows for part in parts),
            violations,
            examples,
            sum(part.num_dropped for part in parts),
            sum(part.num_set_aside for part in parts),
            tuple(file for part in parts for file in part.files),
        )


class WriteSpec(msgspec.Struct, frozen=True):
    """How to write rows as data files. Picklable, so that executors can use it."""

    location: StoreLocation
    configuration: TableConfiguration
    """Target schema (logical, partition columns included), partitioning, mapping, properties."""
    values: ColumnValues = NO_VALUES
    """Sources of the columns that the rows lack; filled before constraints are checked."""
    constraints: tuple[Constraint, ...] = ()
    """Checked on every row before it is written."""
    rules: RowRules | None = None
    """What is expected of the rows as they are given, before they get the types of the table."""
    leaves_out: str | None = None
    """Spark SQL; rows for which it is true are neither written nor checked."""
    time_zone: str = UTC
    """Time zone in which the embedded engine computes the values and checks the constraints."""
    target_file_size_bytes: int = 128 * 1024 * 1024
    """A data file is closed when it reaches about this size."""
    row_group_rows: int = 1_048_576
    """Maximum rows of a row group, where the rows are narrow."""
    row_group_bytes: int = 32 * 1024 * 1024
    """Arrow bytes of the rows that make one row group."""
    buffer_bytes: int = BUFFER_BYTES
    """Maximum Arrow bytes of waiting rows in all partitions together."""
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
    high_water_marks: Mapping[str, int] = msgspec.field(default_factory=dict)
    """The last value assigned, by logical name of each identity column that was numbered."""
    observed: ObservedRows | None = None
    """How the rows met their expectations; None if there were none."""

    @classmethod
    def combined(cls, results: Sequence[WriteResult]) -> WriteResult:
        """The result of several writes that numbered no column."""
        return cls(
            tuple(file for result in results for file in result.files),
            sum(result.num_rows for result in results),
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of the files."""
        return sum(file.size_bytes for file in self.files)
