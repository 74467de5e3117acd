"""A session in which delta-spark runs beside ours, and the table that compares the two."""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dagster_delta.engines.spark.session.session import local_spark_session
from tests.reference.jars import delta_spark_settings, resolve_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def delta_spark_session(memory: str = "4g", settings: dict[str, str] | None = None) -> SparkSession:
    """A session with delta-spark; without its JARs the process ends."""
    jars, why = resolve_jars()
    if not jars:
        sys.exit(why)
    logging.disable(logging.WARNING)
    conf = {"spark.driver.memory": memory, **delta_spark_settings(jars), **(settings or {})}
    return local_spark_session("benchmark", conf)


FEW_PARTITIONS = {"spark.databricks.delta.snapshotPartitions": "2"}
"""Its default of 50 costs delta-spark a second per operation on two cores."""


def arguments_of_rows(rows: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--rounds", type=int, default=3)
    return parser


def seconds(run: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - start


def print_head() -> None:
    print("| workload | ours, s | delta-spark, s | ratio |")
    print("|---|---|---|---|")


def print_medians(name: str, samples: list[tuple[float, float]]) -> None:
    mine, other = (statistics.median(each) for each in zip(*samples, strict=True))
    print(f"| {name} | {mine:.2f} | {other:.2f} | {mine / other:.2f} |", flush=True)
