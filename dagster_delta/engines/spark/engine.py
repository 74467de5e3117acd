"""The distributed engine: rows as DataFrames, read and written by a Spark cluster.

Reads of tables with more files than the driver should hold are planned on the cluster, too: the
executors decode the checkpoint and skip its files as the driver does, each a share of the row
groups.

Spec: Action Reconciliation; Checkpoints; Per-file Statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema as spark_schema_of

from dagster_delta.cached_property import cached_property
from dagster_delta.engines.data_input import to_reader
from dagster_delta.engines.plans import (
    LARGE_TABLE_FILES,
    Backfilled,
    ChangeFileSet,
    LoggedFiles,
    MatchedRows,
    ReadPlan,
    RewriteResult,
    RowRewrite,
    WriteResult,
    WriteSpec,
)
from dagster_delta.engines.spark.changes.merge import SparkMergeSource, merge_frames
from dagster_delta.engines.spark.changes.row_changes import find_matches, rewrite_rows
from dagster_delta.engines.spark.read.read_tasks import PART_SCHEMA, LogTask, listed_files
from dagster_delta.engines.spark.read.reader import read_frame, read_listed_files
from dagster_delta.engines.spark.session import active_session
from dagster_delta.engines.spark.session.errors import spark_failures
from dagster_delta.engines.spark.session.schema import from_spark_schema, to_spark_schema
from dagster_delta.engines.spark.session.session import frame_of, functions_of, is_apache_spark
from dagster_delta.engines.spark.write.compaction import (
    backfill_on_spark,
    compact_on_spark,
    sort_on_spark,
)
from dagster_delta.engines.spark.write.writer import write_frame
from dagster_delta.errors import InvalidArgument
from dagster_delta.parquet.store_assignment import assign_batches
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema, to_arrow_schema
from dagster_delta.sql.typed import TRUE, Typed
from dagster_delta.storage.locations import scheme_of
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_delta.engines.statements.merge_plan import MergedRows, MergePlan


class SparkEngine:
    """Reads plans into DataFrames and writes DataFrames, of classic and Connect sessions alike.

    The data passes only through the DataFrame API.

    Args:
        session: the session to read with; by default the active one. A DataFrame is written with
            its own session.
    """

    casts_values = True
    rewrite_batch_bytes = 64 * 1024**3  # A cluster needs more than one process.

    def __init__(self, session: SparkSession | None = None) -> None:
        self._session = session

    def read(self, plan: ReadPlan) -> DataFrame:
        """The rows of the plan as a lazy DataFrame with the logical schema of the table."""
        return read_frame(self._session_for(plan.store), plan)

    def first_rows(self, plan: ReadPlan, count: int) -> list[dict[str, Any]]:
        """Some rows of the plan. Raises as `Engine` says."""
        rows = self.read(plan)
        with spark_failures(table=plan.store.location.uri):
            found = rows.limit(count).collect()
        return [row.asDict(recursive=True) for row in found]

    def check_reachable(self, store: ObjectStore) -> None:
        """Check that there is a session whose executors can reach the table."""
        self._session_for(store)

    def read_changes(
        self, store: ObjectStore, sets: Sequence[ChangeFileSet], columns: Sequence[str]
    ) -> DataFrame:
        """The changed rows of all sets, in no order. Raises as `Engine` says."""
        session = self._session_for(store)
        frames = [
            read_frame(session, changes.read_plan(store, columns))
            for changes in [found for found in sets if found.files.num_rows] or sets[:1]
        ]
        return reduce(lambda left, right: left.union(right), frames)

    def rows_of(self, data: object) -> DataFrame:
        """The rows of a value as a DataFrame: a DataFrame unchanged, other values as Arrow,
        through the memory of this process.
        """
        if active_session.is_spark_frame(data):
            return cast("DataFrame", data)
        reader = to_reader(data)
        schema = from_arrow_schema(reader.schema)
        batches = assign_batches(reader, schema, table="a DataFrame of the session")
        rows = pa.Table.from_batches(batches, to_arrow_schema(schema))
        return frame_of(self.session, rows, to_spark_schema(schema))

    def schema_of(self, data: DataFrame) -> StructType:
        """The logical schema of a DataFrame to write."""
        return from_spark_schema(data.schema)

    def write(self, data: DataFrame, spec: WriteSpec, *, store: ObjectStore) -> WriteResult:
        """Write the rows of a DataFrame as data files, on the executors."""
        check_reachable(store)
        return write_frame(data, spec, store)

    def compact(self, groups: Sequence[ReadPlan], spec: WriteSpec) -> list[WriteResult]:
        """New files with the rows of the groups, one task each. Raises as `Engine` says."""
        return compact_on_spark(groups, spec, session=self._session_for(groups[0].store))

    def sort(
        self,
        groups: Sequence[ReadPlan],
        spec: WriteSpec,
        columns: Sequence[tuple[str, ...]],
        *,
        is_hilbert: bool = False,
    ) -> WriteResult:
        """New files with the rows of each partition sorted. Raises as `Engine` says."""
        return sort_on_spark(
            groups, spec, columns, session=self._session_for(groups[0].store), is_hilbert=is_hilbert
        )

    def backfill(self, plan: ReadPlan, spec: WriteSpec) -> Backfilled:
        """Rewrite files with the shadow of a column. Raises as `Engine` says."""
        return backfill_on_spark(plan, spec, session=self._session_for(plan.store))

    def find_matches(self, plan: ReadPlan) -> Iterator[MatchedRows]:
        """The live rows that satisfy the plan's predicate. Raises as `Engine` says."""
        return find_matches(self._session_for(plan.store), plan)

    def rewrite(self, rewrite: RowRewrite) -> RewriteResult:
        """Rewrite rows, in no order. Raises as `Engine` says."""
        return rewrite_rows(self._session_for(rewrite.source.store), rewrite)

    def merge_source(self, data: object, directory: str, *, store: ObjectStore) -> SparkMergeSource:
        """The source of a MERGE as a DataFrame. Raises as `Engine` says."""
        return SparkMergeSource.of(
            self._session_for(store), data, directory, table=store.location.uri
        )

    def merge(self, plan: MergePlan) -> MergedRows:
        """Carry out a MERGE on the executors. Raises as `Engine` says."""
        return merge_frames(self.session, plan)

    @property
    def log_planner(self) -> SparkLogPlanner:
        """The planner that finds the files of large tables. Raises InvalidArgument without a
        session.
        """
        return SparkLogPlanner(self.session)

    @cached_property
    def time_zone(self) -> str:
        """The time zone of the session."""
        return active_session.session_time_zone(self.session)

    @property
    def session(self) -> SparkSession:
        """The session that reads rows. Raises InvalidArgument if there is none."""
        session = self._session or active_session.active_spark_session()
        if session is None:
            raise InvalidArgument(
                "there is no active Spark session: pass one, as in scan.to_spark(spark), or start "
                "one before using the Spark engine"
            )
        return session

    def _session_for(self, store: ObjectStore) -> SparkSession:
        check_reachable(store)
        return self.session


def check_reachable(store: ObjectStore) -> None:
    """Check that Spark's workers can reach the table at the location that this process uses."""
    if scheme_of(store.location.uri) == "memory":
        raise InvalidArgument(
            "Spark executors cannot access a table in the memory of this process: use "
            'engine="arrow", or a location that they share',
            table=store.location.uri,
        )


MAX_DRIVER_FILES = "spark.dagster_delta.maxDriverFiles"
"""Session setting: tables with more files than this in their checkpoint are planned by Spark."""
MAX_COLLECTED_FILES = "spark.dagster_delta.maxCollectedFiles"
"""Session setting: maximum number of such a table's files on the driver for one read."""

_DEFAULTS = {MAX_DRIVER_FILES: LARGE_TABLE_FILES, MAX_COLLECTED_FILES: 250_000}

_SHARE_FILES = 250_000
_TASK_BYTES = 128 * 1024 * 1024
_TASK_FILES = 10_000
_MAX_TASKS = 100_000


class SparkLogPlanner(msgspec.Struct, frozen=True):
    """Replays and prunes the log of a large table in Spark."""

    session: SparkSession

    @property
    def max_driver_files(self) -> int:
        """See `MAX_DRIVER_FILES`. Raises InvalidArgument if the setting is not a number."""
        return self._setting(MAX_DRIVER_FILES)

    def can_plan(self, logged: LoggedFiles) -> bool:
        """Whether the executors can read the log."""
        is_shared = scheme_of(logged.store.location.uri) != "memory"
        return is_shared and is_apache_spark(self.session)

    def find_files(self, logged: LoggedFiles, condition: Typed) -> pa.Table | None:
        """The live files that may match as a `pa.Table`, None if they are too many."""
        limit = self._setting(MAX_COLLECTED_FILES)
        if condition == TRUE and logged.num_files - len(logged.hidden) > limit:
            return None
        files = self._checkpointed_files(logged, condition)
        if files is None:
            return logged.added
        found = _as_live_files(files.limit(limit + 1).toArrow())
        return None if found.num_rows > limit else pa.concat_tables([found, logged.added])

    def read_files(self, plan: ReadPlan, logged: LoggedFiles, condition: Typed) -> DataFrame:
        """The rows of the live files that may match, for any number of files.

        The executors read them with the Arrow engine, because Spark's own reader needs all files on
        the driver.

        `plan`: the read; its files are ignored.
        """
        added = listed_files(logged.added)
        named = frame_of(self.session, added, spark_schema_of(added.schema))
        num_tasks = -(-logged.added.num_rows // _TASK_FILES)
        files = self._checkpointed_files(logged, condition)
        if files is not None:
            num_tasks += self._num_tasks(files)
            named = files.select(*added.column_names).union(named)
        spread = named.repartition(max(1, min(num_tasks, _MAX_TASKS)))
        return read_listed_files(self.session, plan, spread)

    def _checkpointed_files(self, logged: LoggedFiles, condition: Typed) -> DataFrame | None:
        """The live files of the checkpoint that may match, with the columns of `LIVE_FILE_SCHEMA`;
        None if it has no files.
        """
        shares = list(_shares(logged))
        if not shares:
            return None
        named = frame_of(self.session, pa.Table.from_pylist(shares), PART_SCHEMA)
        task = LogTask(logged.store.location, logged.configuration, condition, logged.hidden)
        schema = spark_schema_of(LIVE_FILE_SCHEMA)
        return named.repartition(len(shares)).mapInArrow(task, schema)

    def _num_tasks(self, files: DataFrame) -> int:
        functions = functions_of(self.session)
        counted = files.agg(functions.count("*"), functions.sum("size_bytes")).collect()
        count, size_bytes = int(counted[0][0]), int(counted[0][1] or 0)
        return max(-(-count // _TASK_FILES), -(-size_bytes // _TASK_BYTES))

    def _setting(self, name: str) -> int:
        # Without a default, a Connect server logs an error where the setting is not set.
        text = self.session.conf.get(name, str(_DEFAULTS[name])) or ""
        if not text.isdecimal():
            raise InvalidArgument(f"the Spark setting {name} is a number of files, not {text!r}")
        return int(text)


def _shares(logged: LoggedFiles) -> Iterator[dict[str, str | int]]:
    for part in logged.parts:
        shares = min(-(-part.num_adds // _SHARE_FILES), part.num_row_groups)
        for share in range(shares):
            yield {"path": part.path, "share": share, "shares": shares}


def _as_live_files(rows: pa.Table) -> pa.Table:
    """Rows from Spark as a `pa.Table` of LIVE_FILE_SCHEMA."""
    return rows.cast(LIVE_FILE_SCHEMA)
