"""A program with a Spark session of its own, which writes and reads tables by file systems of Hadoop.

Its argument is the directory of the event log. It reads one JSON object: the class path of the file
systems, settings of the session, and the storage options of each table by its URI. It prints what
it has read as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from dagster_delta.table.delta_table import DeltaTable

PROPERTIES = {"delta.enableDeletionVectors": "true"}


def main(events: str, given: dict[str, Any]) -> dict[str, dict[str, object]]:
    """Per table: the schemes of the files, and the rows as Spark and as Arrow read them."""
    session = _session(events, given)
    found = {uri: _use(session, uri, options) for uri, options in given["tables"].items()}
    session.stop()
    return found


def _use(session: SparkSession, uri: str, options: dict[str, str]) -> dict[str, object]:
    rows = session.range(100).selectExpr("id", "concat('d ', id % 3) AS day")
    table = DeltaTable(uri, storage_options=options, must_exist=False)
    table.append(rows, partition_by=["day"])
    table.set_properties(PROPERTIES)
    table.delete("id % 7 = 3", engine="spark")
    scan = table.snapshot().scan(where="id > 10")
    frame = scan.to_spark(session)
    frame.explain("extended")
    return {
        "schemes": sorted({file.partition(":")[0] for file in frame.inputFiles()}),
        "spark": sorted(row["id"] for row in frame.collect()),
        "arrow": sorted(scan.to_arrow()["id"].to_pylist()),
    }


def _session(events: str, given: dict[str, Any]) -> SparkSession:
    settings: dict[str, bool | float | int | str | None] = {
        **given["settings"],
        "spark.driver.extraClassPath": given["class_path"],
        "spark.driver.memory": "1g",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events,
        "spark.eventLog.compress": "false",
        "spark.log.level": "INFO",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    return builder.config(map=settings).getOrCreate()


if __name__ == "__main__":
    sys.stdout.write("found: " + json.dumps(main(sys.argv[1], json.load(sys.stdin))))
