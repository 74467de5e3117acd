"""One row of a table of many files, by each way to write the filter, on Spark and without it.

    python -m benchmarks.selective_reads --files 1000 --rounds 3
    python -m benchmarks.selective_reads --files 1000 --rounds 3 --delay-ms 20

Each file has ids of its own, so that statistics leave one file. With a delay, the table is in an S3
server on this machine, behind a proxy that waits before each request and counts them. It prints
medians of interleaved rounds: planning and reading, and the requests of the last round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks._cloud_servers import slow_cloud
from dagster_delta import DeltaTable, register_delta_log
from dagster_delta.engines import run_query
from dagster_delta.engines.spark.session.session import local_spark_session
from tests.reference.jars import hadoop_class_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_FILE = 100


def _make_table(path: Path, files: int) -> None:
    table = DeltaTable(path, must_exist=False)
    for number in range(files):
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        table.append(pa.table({"id": ids, "name": ["name"] * ROWS_PER_FILE}))
    table.checkpoint()


@contextmanager
def _placed(path: Path, delay_ms: float) -> Iterator[tuple[str, dict[str, str], Callable[[], int]]]:
    """Location and options of the table, and what counts the requests since the last call."""
    if not delay_ms:
        yield str(path), {}, lambda: 0
        return
    with slow_cloud("s3", delay_ms=delay_ms, bytes_per_second=0) as cloud:
        cloud.load("t", path)
        yield f"{cloud.root}/t", cloud.ours, lambda: len(cloud.seen())


def _ways(
    session: SparkSession, uri: str, options: dict[str, str], where: str
) -> Mapping[str, Callable[[], int]]:
    def table() -> DeltaTable:
        return DeltaTable(uri, storage_options=options)

    named = session.read.format("delta_log")
    named = named.options(**{f"storage.{name}": value for name, value in options.items()})
    query = f"SELECT * FROM t WHERE {where}"
    return {
        "loaded frame, then `.where(…)`": lambda: len(
            table().snapshot().scan().to_spark(session).where(where).collect()
        ),
        "`scan(where=…)`, `where` of an input": lambda: len(
            table().snapshot().scan(where=where).to_spark(session).collect()
        ),
        "SQL asset, Spark": lambda: len(
            session.sql(
                f"SELECT * FROM {{t}} WHERE {where}",
                t=table().snapshot().scan().to_spark(session),
            ).collect()
        ),
        "SQL asset, embedded engine": lambda: (
            run_query(query, {"t": table().snapshot().scan()}, name="q", memory_bytes=1 << 30)
            .read_all()
            .num_rows
        ),
        '`format("delta_log")`, then `.where(…)`': lambda: len(
            named.load(uri).where(where).collect()
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    given = parser.parse_args()
    class_path, why = hadoop_class_path() if given.delay_ms else ("", "")
    if class_path is None:
        sys.exit(why)
    conf = {"spark.driver.memory": "2g", "spark.driver.extraClassPath": class_path}
    session = local_spark_session("selective reads", conf)
    register_delta_log(session)
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "t"
        _make_table(path, given.files)
        with _placed(path, given.delay_ms) as (uri, options, requests):
            where = f"id = {given.files * ROWS_PER_FILE // 2}"
            ways = _ways(session, uri, options, where)
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            count = dict.fromkeys(ways, 0)
            for _ in range(given.rounds + 1):
                for name, read in ways.items():
                    requests()
                    began = time.perf_counter()
                    if read() != 1:
                        raise SystemExit(f"{name} has not found its row")
                    seconds[name].append(time.perf_counter() - began)
                    count[name] = requests()
    print("| way | seconds | requests |\n|---|---|---|")
    for name, found in seconds.items():
        # The first round warms up.
        print(f"| {name} | {statistics.median(found[1:]):.2f} | {count[name]:,} |")


if __name__ == "__main__":
    main()
