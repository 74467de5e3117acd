"""The 22 queries of TPC-H on Spark over three kinds of tables: ours, delta-spark and plain Parquet in
one session, interleaved. A query opens its tables again, and all three must return the same rows.

    pip install tpchgen-cli
    python -m benchmarks.tpch --scale 1 --rounds 3

The least seconds of the rounds as a Markdown table for each kind, and our time divided by that of
each peer: other work on the machine only adds.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._delta_spark import FEW_PARTITIONS, delta_spark_session
from dagster_delta.table.delta_table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
KINDS = ("plain", "vectors", "partitioned")
_PARTITION_BY = {"lineitem": "l_shipmode", "orders": "o_orderpriority"}
_DELETED = "pmod(hash({}), 50) = 0"
"""Of the orders, and of the rows of the line items: one in fifty."""


def queries() -> dict[str, str]:
    """The queries by name."""
    text = Path(__file__).with_suffix(".sql").read_text()
    found = re.findall(r"^-- (q\d+)\n(.*?);$", text, flags=re.MULTILINE | re.DOTALL)
    return dict(found)


def generate(directory: Path, scale: float) -> None:
    """The tables of TPC-H as Parquet files."""
    command = Path(sys.executable).with_name("tpchgen-cli")
    if not command.exists():
        sys.exit("pip install tpchgen-cli")
    arguments = [command, "parquet", "-s", str(scale), "--output-dir", directory]
    subprocess.run(list(map(str, arguments)), check=True, capture_output=True)


def write(spark: SparkSession, source: Path, root: Path, kind: str) -> None:
    """The tables of a kind, as Delta tables and with the same rows as Parquet files."""
    for name in TABLES:
        uri = str(root / "delta" / name)
        writer = spark.read.parquet(f"{source}/{name}.parquet").write.format("delta")
        if kind == "vectors":
            writer = writer.option("delta.enableDeletionVectors", "true")
        if kind == "partitioned" and name in _PARTITION_BY:
            writer = writer.option("delta.columnMapping.mode", "name")
            writer = writer.partitionBy(_PARTITION_BY[name])
        writer.save(uri)
        if kind == "vectors" and name in _PARTITION_BY:
            column = "o_orderkey" if name == "orders" else "l_orderkey, l_linenumber"
            spark.sql(f"DELETE FROM delta.`{uri}` WHERE {_DELETED.format(column)}").collect()
        rows = spark.read.format("delta").load(uri)
        by = [_PARTITION_BY[name]] if kind == "partitioned" and name in _PARTITION_BY else []
        rows.write.partitionBy(*by).parquet(str(root / "parquet" / name))


def readers(spark: SparkSession, root: Path) -> dict[str, Callable[[str], DataFrame]]:
    """How each peer opens a table."""
    delta = str(root / "delta")
    return {
        "ours": lambda name: DeltaTable(f"{delta}/{name}").snapshot().scan().to_spark(spark),
        "delta-spark": lambda name: spark.read.format("delta").load(f"{delta}/{name}"),
        "Parquet": lambda name: spark.read.parquet(str(root / "parquet" / name)),
    }


def run(
    spark: SparkSession, read: Callable[[str], DataFrame], query: str
) -> tuple[float, list[object]]:
    """Seconds and rows of a query, whose tables are opened first."""
    began = time.perf_counter()
    for name in TABLES:
        if re.search(rf"\b{name}\b", query):
            read(name).createOrReplaceTempView(name)
    rows: list[object] = list(spark.sql(query).collect())
    return time.perf_counter() - began, rows


def race(spark: SparkSession, root: Path, names: Sequence[str], rounds: int) -> None:
    """Print the table of a kind."""
    peers = readers(spark, root)
    total = dict.fromkeys(peers, 0.0)
    for name in names:
        samples: dict[str, list[float]] = {peer: [] for peer in peers}
        # The first round fills caches and compiles: it compares the rows only.
        for number in range(rounds + 1):
            answers = {}
            # Each goes first in turn: the first one waits for what the round before it left.
            order = list(peers)[number % len(peers) :] + list(peers)[: number % len(peers)]
            for peer in order:
                taken, answers[peer] = run(spark, peers[peer], queries()[name])
                samples[peer].extend([taken] if number else [])
            if any(rows != answers["ours"] for rows in answers.values()):
                sys.exit(f"{name}: the rows differ: {answers}")
        least = {peer: min(taken) for peer, taken in samples.items()}
        total = {peer: total[peer] + least[peer] for peer in peers}
        print_row(name, least)
    print_row("**total**", total)


def print_row(name: str, seconds: dict[str, float]) -> None:
    mine, *others = seconds.values()
    cells = [*(f"{taken:.2f}" for taken in seconds.values()), *(f"{mine / o:.2f}" for o in others)]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0, help="1 is 8.7 million rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--queries", nargs="*", default=list(queries()))
    arguments = parser.parse_args()
    spark = delta_spark_session(settings=FEW_PARTITIONS)
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "source")
        generate(source, arguments.scale)
        for kind in arguments.kinds:
            write(spark, source, Path(directory, kind), kind)
            print(f"\n{kind}, scale {arguments.scale:g}\n")
            print("| query | ours | delta-spark | Parquet | to delta-spark | to Parquet |")
            print("|---|---|---|---|---|---|")
            race(spark, Path(directory, kind), arguments.queries, arguments.rounds)
    spark.stop()


if __name__ == "__main__":
    main()
