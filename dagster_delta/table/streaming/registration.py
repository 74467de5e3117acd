"""Makes `format("delta_log")` known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register_delta_log"]

_REDACTED_OPTIONS = "spark.sql.redaction.options.regex"
_SPARK_DEFAULT = "(?i)url"
_STORAGE_OPTIONS = r"storage\."


def register_delta_log(spark: SparkSession) -> None:
    """Register `format("delta_log")` with a session, for reading and writing in Python and SQL.

    Streams know the options `startingVersion` (a number or `latest`), `startingTimestamp`,
    `maxFilesPerTrigger` (1000 by default) and `maxBytesPerTrigger` (both from Spark 4.2 on),
    `ignoreDeletes`, `ignoreChanges`, `skipChangeCommits` and `readChangeFeed`, with the meanings
    they have in Delta Lake; batch queries know `versionAsOf` and `timestampAsOf`, writes
    `mergeSchema`, `overwriteSchema`, `replaceWhere`, `partitionOverwriteMode`, `userMetadata`, and
    `partitionBy` (names with commas between them) for a new table. Storage options stand behind
    `storage.`. In SQL, a temporary view is selected from and inserted into; it stays at the version
    of its first query. `CREATE TABLE … USING delta_log` is of no use: Spark does not hand over the
    location.

    It is the convenient way, not the fast one: `Scan.to_spark` has Spark read Parquet natively, and
    `DeltaTable.append` and `overwrite` have it arrange the rows of partitions before they are
    written. A stream is written by `delta_sink`.

    A query reads every file of its version, whatever its filters: Spark keeps one reader for all
    uses of a frame or view, and those with other filters would lack rows. `Scan` skips files.

    Examples:
        register_delta_log(spark)
        clicks = spark.readStream.format("delta_log").option("startingVersion", 7).load(uri)
        spark.sql("CREATE TEMPORARY VIEW clicks USING delta_log OPTIONS (path 's3://lake/clicks')")
        spark.sql("INSERT INTO clicks SELECT * FROM arrived WHERE day = DATE '2026-01-31'")
        frame.write.format("delta_log").mode("append").save("s3://lake/clicks")

    Args:
        spark: a session of Spark 4, classic or Connect, whose Python workers have this package.
    """
    from dagster_delta.table.streaming.data_source import DeltaLogSource

    spark.dataSource.register(DeltaLogSource)
    _hide_storage_options(spark)


def _hide_storage_options(spark: SparkSession) -> None:
    """Have Spark hide the storage options of views in its plans, its UI and its event logs.

    By itself it hides `secret` and `token`, but not `account_key` or `connection_string`.
    """
    known = spark.conf.get(_REDACTED_OPTIONS, _SPARK_DEFAULT) or _SPARK_DEFAULT
    if _STORAGE_OPTIONS not in known:
        spark.conf.set(_REDACTED_OPTIONS, f"{known}|{_STORAGE_OPTIONS}")
