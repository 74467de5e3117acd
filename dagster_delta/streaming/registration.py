"""Makes `format("delta_log")` known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REDACTED_OPTIONS = "spark.sql.redaction.options.regex"
_SPARK_DEFAULT = "(?i)url"
_STORAGE_OPTIONS = r"storage\."


def register_delta_log(spark: SparkSession) -> None:
    """Register `format("delta_log")` with a session, for reading and writing in Python and SQL.

    Streams accept the options `startingVersion` (a number or `latest`), `startingTimestamp`,
    `maxFilesPerTrigger` (1000 by default) and `maxBytesPerTrigger` (both from Spark 4.2 on),
    `ignoreDeletes`, `ignoreChanges`, `skipChangeCommits` and `readChangeFeed`, with the meanings
    they have in Delta Lake; batch queries accept `versionAsOf` and `timestampAsOf`, writes
    `mergeSchema`, `overwriteSchema`, `replaceWhere`, `partitionOverwriteMode`, `userMetadata`, and
    `partitionBy` (names with commas between them) for a new table. Storage options have the prefix
    `storage.`. In SQL, use a temporary view for SELECT and INSERT; it stays at the version of its
    first query. `CREATE TABLE … USING delta_log` is refused: Spark does not pass on the location.

    This way is convenient but slow. With `Scan.to_spark`, Spark reads Parquet natively, and with
    `DeltaTable.append` and `overwrite`, it groups the rows by partition before they are written. To
    write a stream, use `delta_sink`.

    A query reads every file of its version, with any filter: Spark keeps one reader for all uses of
    a frame or view, and uses with other filters would miss rows. `Scan` skips files.

    Examples:
        register_delta_log(spark)
        clicks = spark.readStream.format("delta_log").option("startingVersion", 7).load(uri)
        spark.sql("CREATE TEMPORARY VIEW clicks USING delta_log OPTIONS (path 's3://lake/clicks')")
        spark.sql("INSERT INTO clicks SELECT * FROM arrived WHERE day = DATE '2026-01-31'")
        frame.write.format("delta_log").mode("append").save("s3://lake/clicks")

    Args:
        spark: a session of Spark 4, classic or Connect, whose Python workers have this package.
    """
    from dagster_delta.streaming.data_source import DeltaLogSource

    spark.dataSource.register(DeltaLogSource)
    _hide_storage_options(spark)


def _hide_storage_options(spark: SparkSession) -> None:
    """Make Spark hide the storage options of views in its plans, its UI and its event logs.

    By default it hides `secret` and `token`, but not `account_key` or `connection_string`.
    """
    known = spark.conf.get(_REDACTED_OPTIONS, _SPARK_DEFAULT) or _SPARK_DEFAULT
    if _STORAGE_OPTIONS not in known:
        spark.conf.set(_REDACTED_OPTIONS, f"{known}|{_STORAGE_OPTIONS}")
