"""Plans reads of tables with more files than the driver should hold, on the cluster.

The executors decode the checkpoint and skip its files as the driver does, each a share of the row
groups.

Spec: Action Reconciliation; Checkpoints; Per-file Statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from dagster_delta.engines.plans import LARGE_TABLE_FILES, LoggedFiles, ReadPlan
from dagster_delta.engines.spark.read.read_tasks import (
    PART_SCHEMA,
    LogTask,
    listed_files,
)
from dagster_delta.engines.spark.read.reader import read_listed_files
from dagster_delta.engines.spark.session.session import frame_of, functions_of, is_apache_spark
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.statistics.predicates import Constant, Predicate
from dagster_delta.storage.locations import scheme_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_DRIVER_FILES = "spark.dagster_delta.maxDriverFiles"
"""Session setting: tables with more files than this in their checkpoint are planned by Spark."""
MAX_COLLECTED_FILES = "spark.dagster_delta.maxCollectedFiles"
"""Session setting: maximum number of such a table's files on the driver for one read."""

_DEFAULTS = {MAX_DRIVER_FILES: LARGE_TABLE_FILES, MAX_COLLECTED_FILES: 250_000}

_SHARE_FILES = 250_000
_TASK_BYTES = 128 * 1024 * 1024
_TASK_FILES = 10_000
_MAX_TASKS = 100_000


@dataclass(frozen=True, slots=True)
class SparkLogPlanner:
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

    def find_files(self, logged: LoggedFiles, predicate: Predicate) -> pa.Table | None:
        """The live files that may match as a `pa.Table`, None if they are too many."""
        limit = self._setting(MAX_COLLECTED_FILES)
        if predicate == Constant(value=True) and logged.num_files - len(logged.hidden) > limit:
            return None
        files = self._checkpointed_files(logged, predicate)
        if files is None:
            return logged.added
        found = _as_live_files(files.limit(limit + 1).toArrow())
        return None if found.num_rows > limit else pa.concat_tables([found, logged.added])

    def read_files(self, plan: ReadPlan, logged: LoggedFiles, predicate: Predicate) -> DataFrame:
        """The rows of the live files that may match, for any number of files.

        The executors read them with the Arrow engine, because Spark's own reader needs all files on
        the driver.

        `plan`: the read; its files are ignored.
        """
        added = listed_files(logged.added)
        named = frame_of(self.session, added, from_arrow_schema(added.schema))
        num_tasks = -(-logged.added.num_rows // _TASK_FILES)
        files = self._checkpointed_files(logged, predicate)
        if files is not None:
            num_tasks += self._num_tasks(files)
            named = files.select(*added.column_names).union(named)
        spread = named.repartition(max(1, min(num_tasks, _MAX_TASKS)))
        return read_listed_files(self.session, plan, spread)

    def _checkpointed_files(self, logged: LoggedFiles, predicate: Predicate) -> DataFrame | None:
        """The live files of the checkpoint that may match, with the columns of `LIVE_FILE_SCHEMA`;
        None if it has no files.
        """
        shares = list(_shares(logged))
        if not shares:
            return None
        named = frame_of(self.session, pa.Table.from_pylist(shares), PART_SCHEMA)
        task = LogTask(logged.store.location, logged.configuration, predicate, logged.hidden)
        schema = from_arrow_schema(LIVE_FILE_SCHEMA)
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
