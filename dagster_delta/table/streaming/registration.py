"""Makes `format("delta_log")` known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register_delta_log"]


def register_delta_log(spark: SparkSession) -> None:
    """Let a session read tables by `spark.read` and `spark.readStream` with `format("delta_log")`.

    Streams know the options `startingVersion` (a number or `latest`), `startingTimestamp`,
    `maxFilesPerTrigger` (1000 by default) and `maxBytesPerTrigger` (both from Spark 4.2 on),
    `ignoreDeletes`, `ignoreChanges`, `skipChangeCommits` and `readChangeFeed`, with the meanings
    they have in Delta Lake; batch queries know `versionAsOf` and `timestampAsOf`. Storage options
    stand behind `storage.`. In SQL it is `CREATE TEMPORARY VIEW … USING delta_log OPTIONS (…)`.

    Examples:
        register_delta_log(spark)
        clicks = spark.readStream.format("delta_log").option("startingVersion", 7).load(uri)
        spark.sql("CREATE TEMPORARY VIEW clicks USING delta_log OPTIONS (path 's3://lake/clicks')")

    Args:
        spark: a session of Spark 4, classic or Connect, whose Python workers have this package.
    """
    from dagster_delta.table.streaming.data_source import DeltaLogSource

    spark.dataSource.register(DeltaLogSource)
