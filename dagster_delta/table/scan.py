"""Reading one version of a table: which columns, which rows, and so which files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from dagster_delta.engines.engine import ReadPlan
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.arrow_values import every, integer_scalar
from dagster_delta.protocol.file_skipping import SkippedFiles, skip_files
from dagster_delta.protocol.log_replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.predicates import Predicate
from dagster_delta.protocol.schema import StructType
from dagster_delta.table.row_frames import RowFrames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_delta.engines.sql.expressions import SqlExpression
    from dagster_delta.table.snapshot import Snapshot

__all__ = ["Scan", "is_in_utc", "resolve_columns", "resolve_filter"]

# What the embedded engine looks at; statistics and tags of a million files are not small.
_EMBEDDED_FILE_COLUMNS = ("path", "partition_values", "size_bytes", "deletion_vector")


class Scan(RowFrames):
    """A read of one version of a table, planned when it is asked for rows. Immutable.

    Args:
        snapshot: the version.
        columns: logical names of the columns to read, in the order of the result; all by default.
        where: Spark SQL, or an expression parsed already; only rows for which it is true are read.

    Raises:
        SchemaMismatch: a column, or a name in the filter, is not in the schema.
        InvalidArgument: a column is named twice, or the filter is no condition.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        columns: Sequence[str] | None = None,
        where: str | SqlExpression | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.columns = resolve_columns(snapshot.schema, columns)
        self.where = resolve_filter(snapshot.schema, where)

    def __repr__(self) -> str:
        sql = None if self.where is None else self.where.sql
        return f"Scan({self.snapshot!r}, columns={list(self.columns)}, where={sql!r})"

    @property
    def schema(self) -> StructType:
        """The logical schema of the result."""
        return StructType(tuple(self.snapshot.schema.field(name) for name in self.columns))

    def files(self) -> Any:
        """The files that may hold rows of the result: a `pa.Table` of LIVE_FILE_SCHEMA.

        Raises:
            InvalidTable, StorageFailure: of the log.
        """
        return self._files(LIVE_FILE_SCHEMA.names, self._skipped)

    def plan(self) -> ReadPlan:
        """What an engine is asked to do, for an engine of the caller's own.

        Raises:
            InvalidTable, StorageFailure: of the log.
        """
        return self._plan(LIVE_FILE_SCHEMA.names, self._skipped)

    def to_batches(self) -> Any:
        """The rows as a `pa.RecordBatchReader`; files are read while it is consumed.

        Raises:
            UnsupportedExpression: only Spark can evaluate the filter; use `to_spark`.
            DataFileMissing, CorruptDeletionVector, InvalidTable, StorageFailure: of a data file.
            InvalidArgument: the filter fails on a value, as it would in Spark's ANSI mode.
        """
        from dagster_delta.engines.arrow_engine import ArrowEngine

        if self.where is not None:
            self.where.check_embeddable()
        return ArrowEngine().read(self._plan(_EMBEDDED_FILE_COLUMNS, self._skipped))

    def to_spark(self, spark: SparkSession | None = None) -> DataFrame:
        """The rows as a lazy Spark DataFrame.

        Args:
            spark: the session, classic or Connect; the active one by default.

        Raises:
            InvalidTable, StorageFailure: of the log.
        """
        from dagster_delta.engines.spark.engine import SparkEngine

        skipped = self._skipped
        if self.where is not None and self.where.depends_on_time_zone and not is_in_utc(spark):
            skipped = self._skip(self.where.to_predicate(session_is_utc=False))
        return SparkEngine(spark).read(self._plan(LIVE_FILE_SCHEMA.names, skipped))

    def count(self) -> int:
        """Number of rows, from the log alone where it knows; rows that deletion vectors hide are
        not counted.

        Raises:
            As `to_batches` does, where files have to be read.
        """
        known = self._count_from_log()
        if known is not None:
            return known
        # Without columns there is nothing to decode, unless a filter wants some.
        return sum(batch.num_rows for batch in Scan(self.snapshot, (), self.where).to_batches())

    def _count_from_log(self) -> int | None:
        if self.where is None:
            return self.snapshot.num_records
        if not self._skipped.is_decided:
            return None
        counts = self.snapshot.statistics([])["num_records"]
        vectors = self.snapshot.live_files(["deletion_vector"])["deletion_vector"]
        deleted = pc.fill_null(pc.struct_field(vectors, "cardinality"), integer_scalar(0))
        rows = pc.subtract(counts, deleted).filter(self._skipped.may_match)
        total = pc.sum(rows, skip_nulls=False, min_count=0).as_py()
        return None if total is None else int(total)

    @cached_property
    def _skipped(self) -> SkippedFiles:
        return self._skip(None if self.where is None else self.where.to_predicate())

    def _skip(self, predicate: Predicate | None) -> SkippedFiles:
        if predicate is None:
            all_files = every(True, self.snapshot.num_files)
            return SkippedFiles(all_files, all_files, is_decided=True)
        values = self.snapshot.live_files(["partition_values"])["partition_values"]
        return skip_files(predicate, self.snapshot.configuration, values, self.snapshot.statistics)

    def _files(self, names: Sequence[str], skipped: SkippedFiles) -> Any:
        files = self.snapshot.live_files(names)
        return files if pc.all(skipped.may_match).as_py() else files.filter(skipped.may_match)

    def _plan(self, names: Sequence[str], skipped: SkippedFiles) -> ReadPlan:
        return ReadPlan(
            store=self.snapshot.store,
            version=self.snapshot.version,
            configuration=self.snapshot.configuration,
            files=self._files(names, skipped),
            columns=self.columns,
            where=None if skipped.is_decided else self.where,
        )


def resolve_columns(schema: StructType, columns: Sequence[str] | None) -> tuple[str, ...]:
    """The names as the schema spells them; all of them where none are given.

    Raises:
        SchemaMismatch: a name is not in the schema.
        InvalidArgument: a name is there twice, or they are no list.
    """
    if columns is None:
        return schema.names
    if isinstance(columns, str):
        raise InvalidArgument(f"columns is a list of names, and {columns!r} is one: write it [...]")
    names = tuple(schema.field(each).name for each in columns)
    twice = sorted({each for each in names if names.count(each) > 1})
    if twice:
        raise InvalidArgument(
            f"a column can be read once, and {', '.join(twice)} is named twice; "
            f"the columns are {', '.join(schema.names)}",
            column=twice[0],
        )
    return names


def resolve_filter(schema: StructType, where: str | SqlExpression | None) -> SqlExpression | None:
    """The filter, parsed and found to be a condition.

    Raises:
        SchemaMismatch: it names a column that is not in the schema.
        InvalidArgument: it is no condition.
    """
    if where is None:
        return None
    from dagster_delta.engines.sql.expressions import parse_expression

    expression = parse_expression(where, schema) if isinstance(where, str) else where
    expression.check_filter()
    return expression


def is_in_utc(spark: SparkSession | None) -> bool:
    """Whether a session is known to read timestamps without a zone in UTC."""
    from dagster_delta.engines.spark.session import is_utc

    return spark is not None and is_utc(spark)
