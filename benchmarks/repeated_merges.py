"""Small merges into one table, again and again, by each library in turn.

    python -m benchmarks.repeated_merges hourly --hours 100
    python -m benchmarks.repeated_merges warm --rows 1000000 --rounds 10

- hourly: files and time after many merges without deletion vectors, which update some rows and, in one
  of the two workloads, insert some; against `deltalake` and delta-spark.
- warm: the time of a merge of ten rows with deletion vectors in one warm session: ours on Spark, ours on
  the embedded engine, and delta-spark.

All tables must have the same rows at the end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks._delta_spark import FEW_PARTITIONS, delta_spark_session, seconds
from dagster_delta import DeltaTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Merge = Callable[[str, "pa.Table", bool], None]

_ON = "t.id = s.id"

# Of `hourly`.
ROWS = 200_000
CHANGED, INSERTED = 50, 10

# Of `warm`.
_FILES = 8
_SIDES = ("ours, Spark", "ours, embedded", "delta-spark")


def rows(ids: list[int], text: str) -> pa.Table:
    import pyarrow as pa

    return pa.table({"id": ids, "text": [f"{text} {each}" for each in ids]})


def hour_rows(hour: int, *, inserts: bool) -> pa.Table:
    """The source of one hour: rows from all over the table, and new ones."""
    ids = [(hour * 7919 + place * 4001) % ROWS for place in range(CHANGED)]
    first = ROWS + hour * INSERTED
    return rows([*ids, *(range(first, first + INSERTED) if inserts else ())], f"hour {hour}")


def merge_ours(uri: str, source: object, inserts: bool = True) -> None:
    merge = DeltaTable(uri).merge(source, _ON).when_matched_update_all()
    (merge.when_not_matched_insert_all() if inserts else merge).execute()


def merge_ours_on_spark(session: SparkSession) -> Merge:
    def merge(uri: str, source: pa.Table, inserts: bool) -> None:
        merge_ours(uri, session.createDataFrame(source), inserts)

    return merge


def merge_deltalake(uri: str, source: pa.Table, inserts: bool) -> None:
    import deltalake

    merge = deltalake.DeltaTable(uri).merge(source, _ON, source_alias="s", target_alias="t")
    merge = merge.when_matched_update_all()
    (merge.when_not_matched_insert_all() if inserts else merge).execute()


def merge_delta_spark(session: SparkSession) -> Merge:
    def merge(uri: str, source: pa.Table, inserts: bool) -> None:
        session.createDataFrame(source).createOrReplaceTempView("hourly")
        insert = "WHEN NOT MATCHED THEN INSERT *" if inserts else ""
        session.sql(
            f"MERGE INTO delta.`{uri}` t USING hourly s ON {_ON} "
            f"WHEN MATCHED THEN UPDATE SET * {insert}"
        )

    return merge


def measure_hours(peers: Mapping[str, Merge], hours: int, *, inserts: bool) -> None:
    """Print a row of the table of results for each library; they take turns, hour by hour."""
    with tempfile.TemporaryDirectory(prefix="hourly-") as directory:
        uris = {name: f"{directory}/{number}" for number, name in enumerate(peers)}
        for uri in uris.values():
            DeltaTable(uri, must_exist=False).append(rows(list(range(ROWS)), "first"))
        taken: dict[str, list[float]] = {name: [] for name in peers}
        for hour in range(hours):
            source = hour_rows(hour, inserts=inserts)
            for name, merge in peers.items():
                taken[name].append(seconds(merge, uris[name], source, inserts))
        for name, uri in uris.items():
            _print_hours(name, DeltaTable(uri), taken[name], inserts=inserts)


def _print_hours(name: str, table: DeltaTable, taken: list[float], *, inserts: bool) -> None:
    snapshot = table.snapshot()
    expected = ROWS + (len(taken) * INSERTED if inserts else 0)
    if snapshot.num_records != expected:
        raise SystemExit(f"{name}: {snapshot.num_records} rows instead of {expected}")
    workload = "updates and inserts" if inserts else "updates"
    print(
        f"| {workload} | {name} | {snapshot.num_files} | {sum(taken):.1f} s | {median(taken):.3f} s "
        f"| {max(taken):.3f} s |",
        flush=True,
    )


def run_hourly(hours: int, *, without_spark: bool) -> None:
    peers: dict[str, Merge] = {"dagster-delta": merge_ours, "deltalake": merge_deltalake}
    session = None if without_spark else delta_spark_session(settings=FEW_PARTITIONS)
    if session is not None:
        peers |= {"dagster-delta on Spark": merge_ours_on_spark(session)}
        peers |= {"delta-spark": merge_delta_spark(session)}
    print("| Merges of | By | Files | Time | Median | Slowest |\n|---|---|---|---|---|---|")
    for inserts in (False, True):
        measure_hours(peers, hours, inserts=inserts)
    if session is not None:
        session.stop()


def prepare_warm(spark: SparkSession, root: Path, size: int) -> None:
    """The same table for each side."""
    table = spark.range(0, size, 1, _FILES).selectExpr("id", "id % 7 AS k", "id / 3 AS x")
    for side in _SIDES:
        writer = table.write.format("delta").option("delta.enableDeletionVectors", "true")
        writer.save(str(root / side))


def warm_merges(spark: SparkSession, root: Path, size: int) -> dict[str, Callable[[int], object]]:
    """The merge of a round for each side: nine rows change and one is new."""

    def source(number: int) -> str:
        ids = ", ".join(f"({(number * 7919 + k * 104729) % size})" for k in range(9))
        return (
            f"SELECT CAST(id AS BIGINT) AS id, 0L AS k, {number} / 2D AS x "
            f"FROM VALUES {ids}, ({size + number}) AS v(id)"
        )

    def on_spark(number: int) -> None:
        merge_ours(str(root / _SIDES[0]), spark.sql(source(number)))

    def embedded(number: int) -> None:
        merge_ours(str(root / _SIDES[1]), spark.sql(source(number)).toArrow())

    def theirs(number: int) -> None:
        spark.sql(
            f"MERGE INTO delta.`{root / _SIDES[2]}` AS t USING ({source(number)}) AS s ON {_ON} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        ).collect()

    return dict(zip(_SIDES, (on_spark, embedded, theirs), strict=True))


def run_warm(size: int, rounds: int) -> None:
    spark = delta_spark_session(settings=FEW_PARTITIONS)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        prepare_warm(spark, root, size)
        samples: dict[str, list[float]] = {side: [] for side in _SIDES}
        # The first round warms up.
        for number in range(rounds + 1):
            for side, merge in warm_merges(spark, root, size).items():
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", nargs="?", choices=("hourly", "warm"), help="both if empty")
    parser.add_argument("--hours", type=int, default=100)
    parser.add_argument("--without-spark", action="store_true", help="of `hourly`")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of `warm`")
    parser.add_argument("--rounds", type=int, default=3, help="of `warm`")
    options = parser.parse_args()
    if options.workload != "warm":
        run_hourly(options.hours, without_spark=options.without_spark)
    if options.workload != "hourly":
        run_warm(options.rows, options.rounds)


if __name__ == "__main__":
    main()
