"""Reading one version of a table: which columns, which rows, and from these which files."""

from __future__ import annotations

import datetime as dt
import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.cached_property import cached_property
from dagster_delta.engines import embedded_engine, session_time_zone, spark_engine
from dagster_delta.engines.plans import ReadPlan
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.features.row_tracking import materialized_columns, tracked_configuration
from dagster_delta.protocol.features.text_limits import char_paths
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA, ROW_ID_COLUMNS
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from dagster_delta.protocol.statistics.statistics import NUM_RECORDS
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.protocol.values.session_zone import zone_of_statement
from dagster_delta.sql.conditions import narrowed, to_expression
from dagster_delta.table.read.file_planner import FilePlanner, count_records

if TYPE_CHECKING:
    from types import ModuleType

    import duckdb
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

    from dagster_delta.sql.expressions import SqlExpression
    from dagster_delta.sql.typed import Typed
    from dagster_delta.table.read.batch_dataset import BatchDataset
    from dagster_delta.table.read.snapshot import Snapshot


class RowFrames(ABC):
    """Rows that can be read batch by batch, and so as a whole."""

    @abstractmethod
    def to_batches(self) -> pa.RecordBatchReader:
        """The rows as a `pa.RecordBatchReader`."""

    def to_arrow(self) -> pa.Table:
        """The rows as a `pa.Table`. Raises as `to_batches` does."""
        return self.to_batches().read_all()

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas frame. Raises as `to_batches` does."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars frame.

        Raises:
            InvalidArgument: polars is not installed; and as `to_batches` does.
        """
        frame: pl.DataFrame = require("polars").from_arrow(self.to_arrow())
        return frame

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """The rows as a lazy DuckDB relation, read batch by batch each time it is computed.

        A `Scan` reads the columns that the query needs, and skips files and row groups by filters
        that DuckDB passes on: comparisons of columns with constants.

        Args:
            connection: the connection that computes it; relations are joined on one connection
                only. By default the one of `duckdb.sql`, whose queries name relations by their
                variables.

        Raises:
            As `to_batches` does; a later error is a `duckdb.Error` with the message.
        """
        import duckdb

        if connection is None:
            connection = duckdb.default_connection()
        return connection.from_arrow(self.duckdb_dataset())

    def duckdb_dataset(self) -> BatchDataset:
        """A dataset that only DuckDB can read: `connection.register("name", …)` makes a view of it.
        Raises as `to_batches` does.
        """
        from dagster_delta.table.read.batch_dataset import BatchDataset

        return BatchDataset(self._arrow_schema(), self._read_narrowed, self._exact_columns())

    def to_polars_lazy(self) -> pl.LazyFrame:
        """The rows as a polars LazyFrame: batches are read while a query runs, in bounded memory,
        and again by each query. Of a `Scan`, a query reads only the columns that it uses, and the
        files that may hold rows for its filters.

        polars needs the package cloudpickle for filters with Python functions.

        Raises:
            InvalidArgument: polars is not installed.
            UnsupportedExpression: only Spark can evaluate the filter; use `to_spark`.
            The query raises the other errors of `to_batches`.
        """
        require("polars")
        from dagster_delta.engines.polars import lazy_frame

        return lazy_frame(
            self._arrow_schema(), self._exact_columns(), self._read_narrowed, self._plan_for_polars
        )

    def _arrow_schema(self) -> pa.Schema:
        return self.to_batches().schema

    def _exact_columns(self) -> StructType:
        """The columns on which conditions are pushed down: those that Spark SQL compares as other
        engines do.
        """
        return StructType(())

    def _read_narrowed(self, _columns: Sequence[str], _where: Typed | None) -> pa.RecordBatchReader:
        """At least these columns, of at least the rows that satisfy a condition."""
        return self.to_batches()

    def _plan_for_polars(self, _columns: Sequence[str], _where: Typed | None) -> ReadPlan | None:
        """A plan for rows that polars may read itself."""
        return None


def require(module: str) -> ModuleType:
    """A module of an optional dependency.

    Raises:
        InvalidArgument: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidArgument(
            f"{module} is not installed: pip install 'dagster-delta-protocol[{module}]', "
            "or use to_arrow()"
        ) from error


ROW_ID_NAMES = ("_row_id", "_row_commit_version")
"""Names under which row ids and the versions of rows are read."""

# Columns that the embedded engine needs; statistics and tags of a million files are large.
_EMBEDDED_FILE_COLUMNS = ("path", "partition_values", "size_bytes", "deletion_vector")
_COUNTED_SHARE = 10
"""If at least one file in so many is read, loading the row counts of all takes little time."""


class Scan(RowFrames):
    """A read of one version of a table, planned when rows are requested. Immutable.

    Args:
        snapshot: the version.
        columns: logical names of the columns to read, in the order of the result; all by default.
        where: Spark SQL, or a parsed expression; only rows that satisfy it are read.
        row_ids: whether two columns follow: `_row_id`, which a row keeps as long as it is in the
            table, and `_row_commit_version`, the version that added or last changed it; only the
            first in the draft of row tracking, `rowIds`.
        verify_checksums: whether to verify Parquet page checksums: damage that might read as other
            values is then an error.

    Raises:
        SchemaMismatch: a column, or a name in the filter, is not in the schema.
        InvalidArgument: a column is named twice, the filter is not a boolean expression, or the
            table does not track rows.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        columns: Sequence[str] | None = None,
        where: str | SqlExpression | None = None,
        *,
        row_ids: bool = False,
        verify_checksums: bool = False,
    ) -> None:
        if row_ids:
            _check_row_ids(snapshot)
        self.row_ids = row_ids
        self.verify_checksums = verify_checksums
        self.snapshot = snapshot
        self.columns = resolve_columns(snapshot.schema, columns)
        self.where = resolve_filter(snapshot.schema, where)
        self._planner = FilePlanner(snapshot)

    def __repr__(self) -> str:
        sql = None if self.where is None else self.where.sql
        row_ids = ", row_ids=True" if self.row_ids else ""
        return f"Scan({self.snapshot!r}, columns={list(self.columns)}, where={sql!r}{row_ids})"

    @property
    def schema(self) -> StructType:
        """The logical schema of the result."""
        fields = [self.snapshot.schema.field(name) for name in self.columns]
        if self.row_ids:
            carried = materialized_columns(self.snapshot.configuration)
            # The draft of row tracking has no row commit versions.
            names = ROW_ID_NAMES if carried is None else ROW_ID_NAMES[: len(carried.names)]
            fields += [StructField(name, PrimitiveType("long")) for name in names]
        return StructType(tuple(fields))

    @property
    def num_files(self) -> int:
        """Number of files that may hold rows of the result. Raises as `files` does."""
        if self.where is None:
            return self.snapshot.num_files
        found = self._planner.candidates(*self._predicates, columns=["path"])
        return int(found.files.num_rows)

    @property
    def size_bytes(self) -> int:
        """Bytes of the files that may hold rows of the result. Raises as `files` does."""
        if self.where is None:
            return self.snapshot.size_bytes
        found = self._planner.candidates(*self._predicates, columns=["size_bytes"])
        return int(pc.sum(found.files["size_bytes"]).as_py() or 0)

    def files(self) -> pa.Table:
        """The files that may contain rows of the result: a `pa.Table` of LIVE_FILE_SCHEMA.

        Raises:
            InvalidTable, StorageFailure: for the log.
        """
        return self.plan().files

    def plan(self) -> ReadPlan:
        """The read plan for an engine, for callers with their own engine.

        Row ids are its last two columns, with their names in data files.

        Raises:
            InvalidTable, StorageFailure: for the log.
        """
        return self._plan_read(LIVE_FILE_SCHEMA.names)

    def to_batches(self) -> pa.RecordBatchReader:
        """The rows as a `pa.RecordBatchReader`; files are read while it is consumed.

        Raises:
            UnsupportedExpression: only Spark can evaluate the filter; use `to_spark`.
            DataFileMissing, CorruptDeletionVector, InvalidTable, StorageFailure: for a data file.
            InvalidArgument: the filter fails on a value, as it would in Spark's ANSI mode.
        """
        if self.where is not None:
            self.where.check_embeddable()
        rows = embedded_engine().read(self._embedded_plan())
        if not self.row_ids:
            return rows
        schema = to_arrow_schema(self.schema)
        renamed = (pa.RecordBatch.from_arrays(row.columns, schema=schema) for row in rows)
        return pa.RecordBatchReader.from_batches(schema, renamed)

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars frame. polars reads the data files itself where that gives the same
        rows; `polars.from_arrow(scan.to_arrow())` always reads by Arrow.

        Raises:
            InvalidArgument: polars is not installed; and as `to_batches` does.
        """
        require("polars")
        from dagster_delta.engines.polars import FileFrames, is_readable

        plan = self._plan_for_polars(self.columns, None)
        if plan is None or not is_readable(plan):
            return super().to_polars()
        return FileFrames(plan).frame()

    def to_spark(self, spark: SparkSession | None = None) -> DataFrame:
        """The rows as a lazy Spark DataFrame.

        Args:
            spark: the session, classic or Connect; the active one by default.

        Raises:
            InvalidTable, StorageFailure: of the log.
        """
        engine = spark_engine(spark)
        if self.where is not None and self.where.zone != engine.time_zone:
            return Scan(
                self.snapshot,
                self.columns,
                self.where.in_zone(engine.time_zone),
                row_ids=self.row_ids,
                verify_checksums=self.verify_checksums,
            ).to_spark(spark)
        # The process may use a session with another zone.
        with zone_of_statement(engine.time_zone):
            rows = engine.read(self.plan())
        return rows.toDF(*self.schema.names) if self.row_ids else rows

    def _arrow_schema(self) -> pa.Schema:
        if self.where is not None:
            self.where.check_embeddable()
        return to_arrow_schema(self.schema)

    def _exact_columns(self) -> StructType:
        # Spark SQL pads CHAR(n) with blanks before it compares.
        padded = {path[0] for path in char_paths(self.snapshot.schema)}
        exact = [name for name in self.columns if name not in padded]
        return StructType(tuple(map(self.snapshot.schema.field, exact)))

    def _read_narrowed(self, columns: Sequence[str], where: Typed | None) -> pa.RecordBatchReader:
        return self.to_batches() if self.row_ids else self._narrow_scan(columns, where).to_batches()

    def _narrow_scan(self, columns: Sequence[str], where: Typed | None) -> Scan:
        combined = self.where
        if where is not None:
            schema = self.snapshot.schema
            combined = narrowed(combined, where) if combined else to_expression(where, schema)
        return Scan(self.snapshot, columns, combined, verify_checksums=self.verify_checksums)

    def _plan_for_polars(self, columns: Sequence[str], where: Typed | None) -> ReadPlan | None:
        """A plan for rows of the scan, without those of files that hold none for `where`; None if
        the rows of its files are not those of the scan.
        """
        if self.row_ids or (
            self.where is not None and self._plan_read(("path",)).where is not None
        ):
            return None
        narrowed = self._narrow_scan(columns, where)
        plan = narrowed._embedded_plan()  # noqa: SLF001 a scan too
        return replace(plan, where=None)

    def count(self) -> int:
        """Number of rows, from the log alone if it suffices. Rows marked as deleted are not
        counted.

        Raises:
            As `to_batches` does, if files have to be read.
        """
        known = count_records(self._planner, *self._predicates)
        if known is not None:
            return known
        # Without columns there is nothing to decode, unless a filter needs some.
        return sum(batch.num_rows for batch in Scan(self.snapshot, (), self.where).to_batches())

    @cached_property
    def _predicates(self) -> tuple[Typed, ...]:
        return self._planner.predicates_of(self.where)

    def _plan_read(self, file_columns: Sequence[str]) -> ReadPlan:
        found = self._planner.candidates(*self._predicates, columns=file_columns)
        return self._make_read_plan(found.files, is_decided=found.is_decided)

    def _embedded_plan(self) -> ReadPlan:
        """The plan of a read in this process, with the row counts of the log to verify those of
        the files, unless few files are read and their statistics are not in memory.
        """
        names = (*_EMBEDDED_FILE_COLUMNS, *(ROW_ID_COLUMNS if self.row_ids else ()))
        snapshot, predicates = self.snapshot, self._predicates
        is_large = snapshot.is_large_and_unread
        found = self._planner.candidates(*predicates, columns=names)
        files, is_loaded = found.files, predicates and not found.is_decided
        if not is_large and (is_loaded or files.num_rows * _COUNTED_SHARE >= snapshot.num_files):
            files = files.append_column(NUM_RECORDS, found.statistics(())[NUM_RECORDS])
        return self._make_read_plan(files, is_decided=found.is_decided)

    def _make_read_plan(self, files: pa.Table, *, is_decided: bool) -> ReadPlan:
        configuration, columns = self.snapshot.configuration, self.columns
        if self.row_ids:
            configuration = tracked_configuration(configuration)
            columns += configuration.schema.names[len(self.snapshot.schema) :]
        return ReadPlan(
            store=self.snapshot.store,
            version=self.snapshot.version,
            configuration=configuration,
            files=files,
            columns=columns,
            where=None if is_decided else self.where,
            verifies_pages=self.verify_checksums,
        )


def _check_row_ids(snapshot: Snapshot) -> None:
    if materialized_columns(snapshot.configuration) is None:
        raise InvalidArgument(
            "the table does not track rows; set_properties({'delta.enableRowTracking': 'true'}) "
            "gives ids to the rows that are there",
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )
    taken = [name for name in ROW_ID_NAMES if snapshot.schema.get(name) is not None]
    if taken:
        raise InvalidArgument(
            f"the table has a column {taken[0]}, the name under which a scan returns row ids or "
            "row versions: rename the column",
            table=snapshot.store.location.uri,
            version=snapshot.version,
            column=taken[0],
        )


def resolve_columns(schema: StructType, columns: Sequence[str] | None) -> tuple[str, ...]:
    """The names as the schema spells them; all names if `columns` is None.

    Raises:
        SchemaMismatch: a name is not in the schema.
        InvalidArgument: a name is given twice, or `columns` is a text.
    """
    if columns is None:
        return schema.names
    if isinstance(columns, str):
        raise InvalidArgument(f"columns is a list of names: write [{columns!r}]")
    names = tuple(schema.field(column).name for column in columns)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgument(
            f"a column can be read once, and {', '.join(twice)} is named twice; "
            f"the columns are {', '.join(schema.names)}",
            column=twice[0],
        )
    return names


def resolve_filter(schema: StructType, where: str | SqlExpression | None) -> SqlExpression | None:
    """The filter, parsed and checked to be a boolean expression.

    Raises:
        SchemaMismatch: the filter names a column that is not in the schema.
        InvalidArgument: the filter is not a boolean expression.
    """
    if where is None:
        return None
    if not isinstance(where, str):
        where.check_filter()
        return where
    from dagster_delta.sql.filters import parse_filter

    return parse_filter(where, schema, dt.datetime.now(dt.UTC), session_time_zone())
