"""A merge of ten rows into one table, again and again: ours on Spark, ours on the embedded engine, and
delta-spark, in one warm session, interleaved.

    python -m benchmarks.small_merges --rows 1000000 --rounds 10

Each side merges into its own copy of the table, and all copies must have the same rows at the end.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks._delta_spark import FEW_PARTITIONS, arguments_of_rows, delta_spark_session, seconds
from dagster_delta.table.delta_table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ON = "t.id = s.id"
_FILES = 8
_SIDES = ("ours, Spark", "ours, embedded", "delta-spark")


def prepare(spark: SparkSession, root: Path, rows: int) -> None:
    """The same table for each side."""
    table = spark.range(0, rows, 1, _FILES).selectExpr("id", "id % 7 AS k", "id / 3 AS x")
    for side in _SIDES:
        writer = table.write.format("delta").option("delta.enableDeletionVectors", "true")
        writer.save(str(root / side))


def merges(spark: SparkSession, root: Path, rows: int) -> dict[str, Callable[[int], object]]:
    """The merge of a round for each side: nine rows change and one is new."""

    def source(number: int) -> str:
        ids = ", ".join(f"({(number * 7919 + k * 104729) % rows})" for k in range(9))
        return (
            f"SELECT CAST(id AS BIGINT) AS id, 0L AS k, {number} / 2D AS x "
            f"FROM VALUES {ids}, ({rows + number}) AS v(id)"
        )

    def ours(number: int) -> None:
        merge = DeltaTable(str(root / _SIDES[0])).merge(spark.sql(source(number)), _ON)
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def embedded(number: int) -> None:
        rows_in = spark.sql(source(number)).toArrow()
        merge = DeltaTable(str(root / _SIDES[1])).merge(rows_in, _ON)
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def theirs(number: int) -> None:
        spark.sql(
            f"MERGE INTO delta.`{root / _SIDES[2]}` AS t USING ({source(number)}) AS s ON {_ON} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        ).collect()

    return dict(zip(_SIDES, (ours, embedded, theirs), strict=True))


def main() -> None:
    arguments = arguments_of_rows(1_000_000).parse_args()
    spark = delta_spark_session(settings=FEW_PARTITIONS)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        prepare(spark, root, arguments.rows)
        samples: dict[str, list[float]] = {side: [] for side in _SIDES}
        # The first round warms up.
        for number in range(arguments.rounds + 1):
            for side, merge in merges(spark, root, arguments.rows).items():
                taken = seconds(merge, number)
                samples[side].extend([taken] if number else [])
        frames = [spark.read.format("delta").load(str(root / side)) for side in _SIDES]
        hashes = [
            frame.selectExpr("COUNT(*)", "BIT_XOR(XXHASH64(*))").collect() for frame in frames
        ]
        if hashes.count(hashes[0]) != len(hashes):
            sys.exit(f"the rows differ: {hashes}")
        peer = median(samples[_SIDES[2]])
        print("| merge of 10 rows | s | to delta-spark |\n|---|---|---|")
        for side, taken_all in samples.items():
            print(f"| {side} | {median(taken_all):.2f} | {median(taken_all) / peer:.2f} |")
    spark.stop()


if __name__ == "__main__":
    main()
