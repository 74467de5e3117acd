"""The port between planning and rows: everything that an engine does.

Planning happens once in the layer above, for every engine; an engine never reads the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import pyarrow as pa

from dagster_delta.engines.plans import (
    Backfilled,
    ChangeFileSet,
    MatchedRows,
    ObservedRows,
    OlderRows,
    ReadPlan,
    RewriteResult,
    RowRewrite,
    RowRules,
    WriteResult,
    WriteSpec,
)
from dagster_delta.protocol.schema import StructType
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_delta.engines.statements.change_replay import Replayed, ReplayPlan
    from dagster_delta.engines.statements.merge_plan import MergedRows, MergePlan, MergeSource


class ExpectedSource(Protocol):
    """A source whose rows are counted while they are read. A context manager: left by an error, it
    deletes the files that it has written if the store allows it.
    """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    @property
    def rows(self) -> object:
        """The rows to merge, as `merge_source` takes them; to be read once."""

    def finish(self) -> ObservedRows:
        """The report, once all rows are read."""


class Engine(Protocol):
    """Reads and writes the rows of tables."""

    casts_values: bool
    """Whether the engine itself casts new values to their columns, from any type of the SQL."""
    rewrite_batch_bytes: int
    """Preferred bytes of data files to rewrite at once."""

    @property
    def time_zone(self) -> str:
        """The time zone of its statements, see `session_time_zone`."""

    def read(self, plan: ReadPlan) -> pa.RecordBatchReader | DataFrame:
        """The rows of the plan, lazily: a `pyarrow.RecordBatchReader` or a Spark DataFrame.

        Raises:
            DataFileMissing: a file in the log does not exist.
            CorruptDeletionVector, UnsupportedExpression, InvalidTable.
        """

    def first_rows(self, plan: ReadPlan, count: int) -> list[dict[str, Any]]:
        """Up to `count` rows of the plan as Python values by column; none only if it has none.

        Raises:
            InvalidArgument: the filter fails on a value; and as `read` does.
        """

    def check_reachable(self, store: ObjectStore) -> None:
        """Check that it can read and write a table.

        Raises:
            InvalidArgument: it cannot; there is no session, or the executors cannot access it.
        """

    def read_changes(
        self, store: ObjectStore, sets: Sequence[ChangeFileSet], columns: Sequence[str]
    ) -> pa.RecordBatchReader | DataFrame:
        """The changed rows of all sets, lazily: a `pyarrow.RecordBatchReader`, by ascending
        version, or a Spark DataFrame.

        Args:
            store: store of the table.
            sets: at least one set; their files belong to different versions.
            columns: of the feed, in order.

        Raises:
            DataFileMissing, CorruptDeletionVector, UnsupportedExpression, InvalidTable,
            StorageFailure, InvalidArgument.
        """

    def rows_of(self, data: object) -> pa.RecordBatchReader | DataFrame:
        """The rows of a caller's value in the form that this engine reads: a
        `pyarrow.RecordBatchReader` or a Spark DataFrame.

        Raises:
            InvalidArgument: the value is not tabular data.
            SchemaMismatch: a column has a type that no Delta type holds.
        """

    def schema_of(self, data: Any) -> StructType:  # noqa: ANN401
        """The logical schema of a value to write."""

    def write(self, data: Any, spec: WriteSpec, *, store: ObjectStore) -> WriteResult:  # noqa: ANN401
        """Write rows as data files under the table root.

        Columns are matched by name (case-insensitively), missing ones are filled as in the spec or
        become null, and values are cast to the table's types under ANSI store assignment.

        Raises:
            SchemaMismatch, InvalidCast, ConstraintViolation, PartitionMismatch: before anything is
                referenced; files already written are deleted if possible.
        """

    def compact(self, groups: Sequence[ReadPlan], spec: WriteSpec) -> list[WriteResult]:
        """New files with the rows of each group, one for a group that fits into one.

        The live rows of a group follow each other in the new files as in the old ones.

        Args:
            groups: files that belong together, each of one partition and with all columns of the
                table; of one table.
            spec: how the files are written.

        Raises:
            DataFileMissing, CorruptDeletionVector, InvalidTable, UnsupportedFeature,
            StorageFailure: files that were written are deleted if the store allows it.
            InvalidArgument: the engine cannot access the table.
        """

    def sort(
        self,
        groups: Sequence[ReadPlan],
        spec: WriteSpec,
        columns: Sequence[tuple[str, ...]],
        *,
        is_hilbert: bool = False,
    ) -> WriteResult:
        """New files with the rows sorted along a curve, partition by partition.

        Args:
            groups: as for `compact`.
            spec: how the files are written.
            columns: logical paths of the columns to sort by.
            is_hilbert: whether along the Hilbert curve instead of the Z-order curve.

        Raises:
            As `compact` does.
        """

    def backfill(self, plan: ReadPlan, spec: WriteSpec) -> Backfilled:
        """Rewrite the live rows of files, with the shadow of the column that is being changed.

        Args:
            plan: the files, with all columns of the table, whose metadata has the mark of the
                change.
            spec: how data files of the table are written.

        Raises:
            InvalidArgument: no column is being changed, or the engine cannot access the table.
            DataFileMissing, CorruptDeletionVector, InvalidTable, UnsupportedFeature,
            StorageFailure: of a file; files already written are deleted if the store allows it.
        """

    def find_matches(self, plan: ReadPlan) -> Iterator[MatchedRows]:
        """The live rows that satisfy the plan's predicate, file by file; files without any are
        omitted.

        Raises:
            UnsupportedExpression: the engine cannot evaluate the predicate exactly.
            InvalidArgument: the predicate fails on a value.
            DataFileMissing, CorruptDeletionVector, InvalidTable, StorageFailure: of a file.
        """

    def find_older(self, plan: ReadPlan, keys: Sequence[str], order_by: Sequence[str]) -> OlderRows:
        """All live rows but the latest one of each key. Null is a key; it is the least in order.

        Args:
            plan: the files, with the columns of keys and order.
            keys: columns that rows of one key share.
            order_by: columns, of which the greatest values are the latest.

        Raises:
            DataFileMissing, CorruptDeletionVector, InvalidTable, StorageFailure: of a file.
        """

    def rewrite(self, rewrite: RowRewrite) -> RewriteResult:
        """Rewrite rows; those of one file stay in their order.

        Rows keep their ids if plan and spec carry them, see `keep_row_ids`.

        Raises:
            SchemaMismatch, InvalidCast, ConstraintViolation: a new value cannot be stored in its
                column; files already written are deleted if possible.
            UnsupportedExpression, InvalidArgument, DataFileMissing, CorruptDeletionVector,
            InvalidTable, StorageFailure: as `find_matches` does.
        """

    def merge_source(self, data: Any, directory: str, *, store: ObjectStore) -> MergeSource:  # noqa: ANN401
        """The source of a MERGE: read once, as a second read could give other rows.

        Args:
            data: rows, in any form that this engine writes, or the source that the embedded engine
                has made of them.
            directory: where rows may be stored; it must outlive the source.
            store: store of the table.

        Raises:
            InvalidArgument: the value is not tabular data, or the engine cannot read the table.
            SchemaMismatch: a column has a type that no Delta type holds, or a name occurs twice.
            UnsupportedFeature: the engine cannot merge rows of this form.
        """

    def expect_rows(
        self,
        data: Any,  # noqa: ANN401
        rules: RowRules,
        *,
        store: ObjectStore,
    ) -> ExpectedSource:
        """The rows of a source to be merged, and how they met their expectations.

        Args:
            data: as for `merge_source`.
            rules: what is expected of them.
            store: store of the table that they are merged into.

        Raises:
            UnsupportedExpression, InvalidArgument, SchemaMismatch: of a condition.
        """

    def merge(self, plan: MergePlan) -> MergedRows:
        """Write the updated rows and the new rows, and report which rows to delete.

        Without deletion vectors, the unchanged rows of the same files are written too, together
        with them, so that a statement leaves few files.

        Raises:
            ConstraintViolation: several rows of the source would change one row of the table, or a
                new row breaks a constraint.
            SchemaMismatch, InvalidCast: a new value cannot be stored in its column.
            UnsupportedExpression, InvalidArgument: of an expression.
            DataFileMissing, CorruptDeletionVector, InvalidTable, StorageFailure: of a file.
                Whatever is raised, files already written are deleted if the store allows it.
        """

    def replay_changes(self, plan: ReplayPlan, directory: str) -> Replayed:
        """What change events make of the rows of their keys; nothing is written.

        Args:
            plan: events that `merge_source` of this engine has made.
            directory: where rows may be stored; it must outlive the result.

        Raises:
            ConstraintViolation: an event has no key or no sequence, two events of one key and
                sequence differ, or a snapshot is older than one that the table has.
            UnsupportedExpression, InvalidArgument: of a condition on events.
            SchemaMismatch, InvalidCast: a value cannot be stored in its column.
            DataFileMissing, CorruptDeletionVector, InvalidTable, StorageFailure: of a file.
        """
