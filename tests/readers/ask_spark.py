"""delta-spark, and pysail: the same questions to a session of Spark or of Sail."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pyarrow as pa
from asking import read_rows, serve, sql_query
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import VariantVal

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
        frame = SESSION.createDataFrame(read_rows(question["new_rows"]))
        if not os.environ.get("ASK_SAIL"):
            frame = with_local_times(frame, uri)
        frame.write.format("delta").mode("append").save(uri)
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
    found = SESSION.sql(sql_query(question, "asked", quote="`"))
    if any(field.dataType.typeName() == "variant" for field in found.schema):
        return collect_variants(found)
    return found.toArrow()


def with_local_times(frame: DataFrame, uri: str) -> DataFrame:
    """The rows with the local times of the table, which PySpark takes from Arrow as instants."""
    schema = SESSION.read.format("delta").load(uri).schema
    wanted = {field.name: field.dataType for field in schema}
    return frame.select(
        [
            frame[f"`{name}`"].cast(wanted[name]).alias(name)
            if name in wanted and "timestamp_ntz" in wanted[name].simpleString()
            else frame[f"`{name}`"]
            for name in frame.columns
        ]
    )


def collect_variants(found: DataFrame) -> pa.Table:
    """Rows with variants, of which PySpark makes no Arrow table if one is NULL."""
    rows = [row.asDict() for row in found.collect()]
    for row in rows:
        for name, value in row.items():
            if isinstance(value, VariantVal):
                row[name] = {"value": bytes(value.value), "metadata": bytes(value.metadata)}
    return pa.table({name: [row[name] for row in rows] for name in found.columns})


if __name__ == "__main__":
    serve(answer)
