"""A scan of many small files on Spark Connect beside a classic session, in one JVM, interleaved.

    python -m benchmarks.connect_files --files 5000 --rounds 5

It prints medians: of making the frame, and of a sum over one column; of the same files read by
Spark alone, given as their directory; and the bytes of the query that Connect sends.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_delta.table.delta_table import DeltaTable
from tests.sessions import classic_session, connect_session_beside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _table(directory: Path, files: int) -> DeltaTable:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    table = DeltaTable.create(str(directory / "many"), schema)
    for number in range(files):
        table.append(pa.table({"id": [number], "x": [number / 7]}, schema))
    return table


def _measure(frame: Callable[[], DataFrame], files: int) -> tuple[float, float]:
    """Seconds to make the frame, and to sum a column of it."""
    began = time.perf_counter()
    made = frame()
    middle = time.perf_counter()
    ((total,),) = made.selectExpr("sum(id)").collect()
    end = time.perf_counter()
    if total != files * (files - 1) // 2:
        raise SystemExit(f"the sum is {total}")
    return middle - began, end - middle


def _query_bytes(session: SparkSession, frame: DataFrame) -> int:
    plan: Any = frame.__dict__["_plan"]
    return int(plan.to_proto(session.client).ByteSize())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        table = _table(directory, options.files)
        snapshot = table.snapshot()
        with (
            classic_session(directory / "warehouse") as classic,
            connect_session_beside(classic) as connect,
        ):
            sessions = {"classic": classic, "connect": connect}
            found: dict[str, list[tuple[float, float]]] = {}
            for _ in range(options.rounds + 1):
                for name, session in sessions.items():
                    for reader, frame in (
                        ("ours", lambda session=session: snapshot.scan().to_spark(session)),
                        ("spark", lambda session=session: session.read.parquet(table.uri)),
                    ):
                        figures = found.setdefault(f"{name}, {reader}", [])
                        figures.append(_measure(frame, options.files))
            for name, figures in found.items():
                # The first round warms up.
                frame_s, sum_s = (
                    statistics.median(each) for each in zip(*figures[1:], strict=True)
                )
                print(f"| {name} | {frame_s:.2f} s | {sum_s:.2f} s | {frame_s + sum_s:.2f} s |")
            size = _query_bytes(connect, snapshot.scan().to_spark(connect))
            print(f"the query of Connect has {size:,} bytes")


if __name__ == "__main__":
    main()
