"""Which session this process uses, and which values are Spark's, without importing Spark."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from dagster_delta.sql.time_zone import UTC, UTC_NAMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_spark_frame(data: object) -> bool:
    """Whether a value is a DataFrame of Spark, classic or Connect. Imports nothing."""
    return type(data).__module__.startswith("pyspark.sql")


def session_time_zone(session: SparkSession | None = None) -> str:
    """The time zone of a statement: that of a session, by default the one that this process uses,
    or whose task it runs; UTC if the process does not use Spark.
    """
    session = session or active_spark_session()
    if session is None:
        return _task_time_zone()
    from dagster_delta.engines.spark.session.session import session_conf

    zone = session_conf(session, "spark.sql.session.timeZone") or UTC
    return UTC if zone in UTC_NAMES else zone


def _task_time_zone() -> str:
    """The zone of the session whose query runs as a task in this process of an executor."""
    tasks = sys.modules.get("pyspark.taskcontext")
    task = None if tasks is None else tasks.TaskContext.get()
    zone = None if task is None else task.getLocalProperty("spark.sql.session.timeZone")
    return UTC if zone is None or zone in UTC_NAMES else str(zone)


def active_spark_session() -> SparkSession | None:
    """The session that this process uses: the active one of this thread before that of others, a
    classic one before one of Connect; None if the process does not use Spark.
    """
    modules = ("pyspark.sql.session", "pyspark.sql.connect.session")
    kinds = [sys.modules[name].SparkSession for name in modules if name in sys.modules]
    for kind in kinds:
        if (found := kind.getActiveSession()) is not None:
            return cast("SparkSession", found)
    for kind in kinds:
        # The session of other threads; `active` raises if there is none.
        with suppress(RuntimeError):
            return cast("SparkSession", kind.active())
    return None
