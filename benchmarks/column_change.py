"""A column changed online beside delta-spark's rewrite of the table under another schema.

    python -m benchmarks.column_change --rows 20000000 --rounds 3

Each run changes a copy of the same table, whose data files are links: `v` from text to a number.
While ours runs once more, a writer of ours appends a row at a time and a reader looks for one; the
longest that either took in any round is shown, beside the longest without a change. delta-spark's
rewrite runs alone, as it fails when somebody appends meanwhile.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from benchmarks._delta_spark import arguments_of_rows, delta_spark_session
from dagster_delta.table.delta_table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILES = 8
_PROPERTIES = {
    "delta.columnMapping.mode": "name",
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


@dataclass(frozen=True)
class Sample:
    """One change of one copy."""

    seconds: float
    bytes_written: int = 0
    waits: tuple[tuple[str, float], ...] = ()
    """Longest append and longest read, in seconds, meanwhile and without a change."""


def timed(change: Callable[[], object]) -> float:
    start = time.perf_counter()
    change()
    return time.perf_counter() - start


def ours(engine: str) -> Callable[[SparkSession, str], Sample]:
    def change(_: SparkSession, uri: str) -> Sample:
        table = DeltaTable(uri)
        return Sample(
            timed(lambda: table.change_column("v", "INT", engine=engine, enable_features=True))
        )

    return change


def ours_among_others(_: SparkSession, uri: str) -> Sample:
    with Neighbours(uri) as alone:
        time.sleep(3)
    table = DeltaTable(uri)
    with Neighbours(uri) as meanwhile:
        seconds = timed(lambda: table.change_column("v", "INT", enable_features=True))
    left = DeltaTable(uri).snapshot().scan(where="id = -1").to_arrow()
    if left.num_rows != alone.appended + meanwhile.appended:
        sys.exit(
            f"{left.num_rows} rows of {alone.appended + meanwhile.appended} appended are there"
        )
    waits = (
        ("append", meanwhile.longest_append),
        ("append alone", alone.longest_append),
        ("read", meanwhile.longest_read),
        ("read alone", alone.longest_read),
    )
    return Sample(seconds, waits=waits)


def theirs(spark: SparkSession, uri: str) -> Sample:
    changed = spark.read.format("delta").load(uri).selectExpr("id", "CAST(v AS INT) v", "x", "s")
    writer = changed.write.format("delta").mode("overwrite")
    return Sample(timed(lambda: writer.option("overwriteSchema", "true").save(uri)))


def bytes_written(before: set[Path], root: Path) -> int:
    return sum(each.stat().st_size for each in set(root.rglob("*.parquet")) - before)


def report(samples: dict[str, list[Sample]]) -> None:
    print("| way | median seconds (all) | MB written | longest of all rounds |")
    print("|---|---|---|---|")
    for name, taken in samples.items():
        median = statistics.median(each.seconds for each in taken)
        rounds = ", ".join(f"{each.seconds:.1f}" for each in taken)
        size = statistics.median(each.bytes_written for each in taken) / 1e6
        waits: dict[str, float] = {}
        for who, seconds in itertools.chain.from_iterable(each.waits for each in taken):
            waits[who] = max(waits.get(who, 0.0), seconds)
        told = ", ".join(f"{who} {seconds:.2f} s" for who, seconds in waits.items())
        print(f"| {name} | {median:.1f} ({rounds}) | {size:.0f} | {told} |")


def main() -> None:
    arguments = arguments_of_rows(20_000_000).parse_args()
    spark = delta_spark_session(settings={"spark.databricks.delta.snapshotPartitions": "2"})
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
        samples: dict[str, list[Sample]] = {each: [] for each in ways}
        for _, (name, change) in itertools.product(range(arguments.rounds), ways.items()):
            copy = root / f"copy-{next(copies)}"
            shutil.copytree(root / "table", copy, copy_function=os.link)
            before = set(copy.rglob("*.parquet"))
            taken = change(spark, str(copy))
            samples[name].append(replace(taken, bytes_written=bytes_written(before, copy)))
            shutil.rmtree(copy)
    report(samples)
    spark.stop()


if __name__ == "__main__":
    main()
