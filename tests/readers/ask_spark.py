"""delta-spark, and pysail: the same questions to a session of Spark or of Sail."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pyarrow as pa
from asking import read_rows, serve, sql_query
from pyspark.sql import SparkSession

KEPT: list[object] = []
"""The server of Sail ends with its object."""


def spark_session() -> SparkSession:
    """A session of Sail where `ASK_SAIL` is set, otherwise one with the JARs of delta-spark."""
    if os.environ.get("ASK_SAIL"):
        from pysail.spark import SparkConnectServer

        server = SparkConnectServer()
        KEPT.append(server)
        server.start(background=True)
        _, port = server.listening_address
        session = SparkSession.builder.remote(f"sc://localhost:{port}").getOrCreate()
        session.conf.set("spark.sql.session.timeZone", "UTC")
        return session
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.extraClassPath", os.environ["ASK_JARS"].replace(",", os.pathsep))
        # Queries of a few rows: to compile them takes longer than to run them.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.sql.warehouse.dir", tempfile.mkdtemp())
        .config("spark.sql.shuffle.partitions", "1")
    )
    return builder.getOrCreate()


SESSION = spark_session()


def answer(question: dict[str, Any]) -> pa.Table:
    uri = question["uri"]
    if question["kind"] == "append":
        new_rows = read_rows(question["new_rows"])
        SESSION.createDataFrame(new_rows).write.format("delta").mode("append").save(uri)
        return pa.table({})
    reader = SESSION.read.format("delta")
    if question["kind"] == "changes":
        reader = reader.option("readChangeFeed", "true")
        reader = reader.option("startingVersion", question["version"] or 0)
    elif question["version"] is not None:
        reader = reader.option("versionAsOf", question["version"])
    if question["timestamp"]:
        reader = reader.option("timestampAsOf", question["timestamp"])
    reader.load(uri).createOrReplaceTempView("asked")
    return SESSION.sql(sql_query(question, "asked", quote="`")).toArrow()


if __name__ == "__main__":
    serve(answer)
