"""The work of Spark for a step; pyspark is imported only if the step uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from logging import Logger

from dagster_delta.engines import is_spark_frame
from dagster_delta.orchestration.metadata_keys import RawMetadata

_SECONDS_BETWEEN_REPORTS = 10.0


@contextmanager
def watch_spark(
    data: object, log: Logger, *, every_seconds: float = _SECONDS_BETWEEN_REPORTS
) -> Iterator[RawMetadata]:
    """Report on the Spark jobs that the block starts in this thread, and yield their metadata,
    which are complete after the block.

    `data` is the DataFrame or Spark session that the block uses; for other values, nothing is
    reported. Work that is shorter than `every_seconds` has no line in the log. If the block fails
    because the JVM of the session is gone, it raises SparkSessionLost.
    """
    metadata: RawMetadata = {}
    session = getattr(data, "sparkSession", data)
    if not is_spark_frame(data) or type(session).__name__ != "SparkSession":
        yield metadata
        return
    from dagster_delta.orchestration.spark.progress import watched

    with watched(data, metadata, log, every_seconds):
        yield metadata
