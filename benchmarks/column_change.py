"""A column changed online beside delta-spark's rewrite of the table under another schema.

    python -m benchmarks.column_change --rows 20000000 --rounds 3

Each run changes a copy of the same table, whose data files are links: `v` from text to a number.
While ours runs, a writer of ours appends a row at a time and a reader counts rows; the longest that
either took is told, beside the longest without a change. delta-spark's rewrite runs alone, as it
fails when somebody appends meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from dagster_delta.engines.spark.session import local_spark_session
from dagster_delta.table.delta_table import DeltaTable
from tests.reference.jars import resolve_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILES = 8
_PROPERTIES = {
    "delta.columnMapping.mode": "name",
    "delta.feature.domainMetadata": "supported",
}


def prepare(spark: SparkSession, uri: str, rows: int) -> None:
    """Four columns; `v` holds numbers as text."""
    frame = spark.range(0, rows, 1, _FILES).selectExpr(
        "id",
        "CAST(pmod(hash(id), 1000000) AS STRING) AS v",
        "CAST(hash(id) AS DOUBLE) / 7 AS x",
        "CONCAT('customer-', hash(id, 1) % 100000) AS s",
    )
    writer = frame.write.format("delta")
    for name, value in _PROPERTIES.items():
        writer = writer.option(name, value)
    writer.save(uri)


@dataclass
class Neighbours:
    """A writer and a reader of the table that note the longest they took, in seconds."""

    uri: str
    longest_append: float = 0.0
    longest_read: float = 0.0
    appended: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=each) for each in (self._write, self._read)]
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for each in self._threads:
            each.join()

    def _write(self) -> None:
        while not self._ended.wait(0.2):
            table = DeltaTable(self.uri)
            row = {"id": [-1], "v": ["7"], "x": [0.5], "s": ["new"]}
            rows = pa.table(row)
            if str(table.schema().field("v").data_type) != "string":
                rows = pa.table({**row, "v": pa.array([7], pa.int32())})
            start = time.perf_counter()
            table.append(rows)
            self.longest_append = max(self.longest_append, time.perf_counter() - start)
            self.appended += 1

    def _read(self) -> None:
        while not self._ended.wait(0.2):
            start = time.perf_counter()
            DeltaTable(self.uri).snapshot().scan(where="id = 17").to_arrow()
            self.longest_read = max(self.longest_read, time.perf_counter() - start)


def ours(engine: str) -> Callable[[SparkSession, str], str]:
    def change(_: SparkSession, uri: str) -> str:
        DeltaTable(uri).change_column("v", "INT", engine=engine, enable_features=True)
        return ""

    return change


def ours_among_others(_: SparkSession, uri: str) -> str:
    with Neighbours(uri) as alone:
        time.sleep(3)
    with Neighbours(uri) as meanwhile:
        DeltaTable(uri).change_column("v", "INT", enable_features=True)
    left = DeltaTable(uri).snapshot().scan(where="id = -1").to_arrow()
    if left.num_rows != alone.appended + meanwhile.appended:
        sys.exit(
            f"{left.num_rows} rows of {alone.appended + meanwhile.appended} appended are there"
        )
    return (
        f"{meanwhile.appended} appends, the longest {meanwhile.longest_append:.2f} s "
        f"(alone {alone.longest_append:.2f}); longest read {meanwhile.longest_read:.2f} s "
        f"(alone {alone.longest_read:.2f})"
    )


def theirs(spark: SparkSession, uri: str) -> str:
    changed = spark.read.format("delta").load(uri).selectExpr("id", "CAST(v AS INT) v", "x", "s")
    writer = changed.write.format("delta").mode("overwrite")
    writer.option("overwriteSchema", "true").save(uri)
    return ""


def bytes_written(before: set[Path], root: Path) -> int:
    return sum(each.stat().st_size for each in set(root.rglob("*.parquet")) - before)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    jars, why = resolve_jars()
    if not jars:
        sys.exit(why)
    logging.disable(logging.WARNING)
    conf = {
        "spark.driver.memory": "4g",
        "spark.jars": ",".join(jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    spark = local_spark_session("benchmark", conf)
    ways = {
        "ours, Arrow": ours("arrow"),
        "ours, Spark": ours("spark"),
        "ours, Arrow, others at work": ours_among_others,
        "delta-spark, overwriteSchema": theirs,
    }
    copies = itertools.count()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        prepare(spark, str(root / "table"), arguments.rows)
        samples: dict[str, list[tuple[float, int, str]]] = {each: [] for each in ways}
        for _, (name, change) in itertools.product(range(arguments.rounds), ways.items()):
            copy = root / f"copy-{next(copies)}"
            shutil.copytree(root / "table", copy, copy_function=os.link)
            before = set(copy.rglob("*.parquet"))
            start = time.perf_counter()
            note = change(spark, str(copy))
            samples[name].append((time.perf_counter() - start, bytes_written(before, copy), note))
            shutil.rmtree(copy)
    print("| way | seconds | MB written | |")
    print("|---|---|---|---|")
    for name, taken in samples.items():
        seconds = statistics.median(each[0] for each in taken)
        print(f"| {name} | {seconds:.1f} | {taken[0][1] / 1e6:.0f} | {taken[-1][2]} |")
    spark.stop()


if __name__ == "__main__":
    main()
