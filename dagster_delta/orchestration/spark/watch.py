"""The work of Spark for a step; pyspark is imported only if the step uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import Logger

from dagster_delta.engines import is_spark_frame
from dagster_delta.orchestration.metadata_keys import RawMetadata

_SECONDS_BETWEEN_REPORTS = 10.0


@dataclass(slots=True)
class SparkWork:
    """Work of Spark for one step; empty without a session."""

    metadata: RawMetadata = field(default_factory=dict)
    """For the metadata of the output, after the work."""


@contextmanager
def watch_spark(
    data: object, log: Logger, *, every_seconds: float = _SECONDS_BETWEEN_REPORTS
) -> Iterator[SparkWork]:
    """Report on the Spark jobs that the block starts in this thread.

    `data` is the DataFrame or Spark session that the block uses; for other values, nothing is
    reported. Work that is shorter than `every_seconds` has no line in the log. If the block fails
    because the JVM of the session is gone, it raises SparkSessionLost.
    """
    work = SparkWork()
    session = getattr(data, "sparkSession", data)
    if not is_spark_frame(data) or type(session).__name__ != "SparkSession":
        yield work
        return
    from dagster_delta.orchestration.spark.progress import watched

    with watched(data, work.metadata, log, every_seconds):
        yield work
