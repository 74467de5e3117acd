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

import pyarrow as pa

from dagster_delta.cached_property import cached_property
from dagster_delta.engines.data_input import to_reader
from dagster_delta.engines.plans import (
    Backfilled,
    ChangeFileSet,
    MatchedRows,
    OlderRows,
    ReadPlan,
    RewriteResult,
    RowRewrite,
    RowRules,
    WriteResult,
    WriteSpec,
)
from dagster_delta.engines.spark.changes.change_replay import replay_changes
from dagster_delta.engines.spark.changes.compared_rows import compare_rows
from dagster_delta.engines.spark.changes.delete_update import find_matches, find_older, rewrite_rows
from dagster_delta.engines.spark.changes.merge import SparkMergeSource, merge_frames
from dagster_delta.engines.spark.read.reader import read_frame
from dagster_delta.engines.spark.session import active_session
from dagster_delta.engines.spark.session.errors import spark_failures
from dagster_delta.engines.spark.session.schema import from_spark_schema, to_spark_schema
from dagster_delta.engines.spark.session.session import (
    frame_of,
    is_apache_spark,
    with_nullable_parts,
)
from dagster_delta.engines.spark.write.compaction import (
    backfill_on_spark,
    compact_on_spark,
    sort_on_spark,
)
from dagster_delta.engines.spark.write.writer import ObservedFrame, write_frame
from dagster_delta.engines.statements.expectations import ObservedReader
from dagster_delta.errors import InvalidArgument
from dagster_delta.parquet.store_assignment import assign_batches
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema, to_arrow_schema
from dagster_delta.storage.locations import scheme_of
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_delta.engines.engine import ExpectedSource
    from dagster_delta.engines.statements.change_replay import Replayed, ReplayPlan
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
            compare_rows(session, store, changes, columns)
            if changes.is_compared
            else read_frame(session, changes.read_plan(store, columns))
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

    def find_older(self, plan: ReadPlan, keys: Sequence[str], order_by: Sequence[str]) -> OlderRows:
        """All live rows but the latest one of each key. Raises as `Engine` says."""
        return find_older(self._session_for(plan.store), plan, keys, order_by)

    def rewrite(self, rewrite: RowRewrite) -> RewriteResult:
        """Rewrite rows, in no order. Raises as `Engine` says."""
        return rewrite_rows(self._session_for(rewrite.source.store), rewrite)

    def merge_source(self, data: object, directory: str, *, store: ObjectStore) -> SparkMergeSource:
        """The source of a MERGE as a DataFrame. Raises as `Engine` says."""
        return SparkMergeSource.of(
            self._session_for(store), data, directory, table=store.location.uri
        )

    def expect_rows(self, data: object, rules: RowRules, *, store: ObjectStore) -> ExpectedSource:
        """The rows of a source, counted in this session. Raises as `Engine` says."""
        session, table = self._session_for(store), store.location.uri
        if active_session.is_spark_frame(data) and is_apache_spark(session):
            return ObservedFrame(cast("DataFrame", data), rules, store)
        # Other servers do not cache rows between queries, so this process does.
        is_frame = active_session.is_spark_frame(data)
        rows = with_nullable_parts(cast("DataFrame", data)).toArrow() if is_frame else data
        return ObservedReader(rows, rules, leaves_out=None, zone=self.time_zone, table=table)

    def merge(self, plan: MergePlan) -> MergedRows:
        """Carry out a MERGE on the executors. Raises as `Engine` says."""
        return merge_frames(self.session, plan)

    def replay_changes(self, plan: ReplayPlan, directory: str) -> Replayed:  # noqa: ARG002  executors store rows
        """What change events change. Raises as `Engine` says."""
        return replay_changes(self.session, plan)

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
