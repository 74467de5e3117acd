"""Files and time after 100 hourly merges, against `deltalake` and delta-spark.

Each hour a merge without deletion vectors updates some rows of a table and, in one of the two
workloads, inserts some.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dagster_delta import DeltaTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

ROWS = 200_000
HOURS = 100
CHANGED, INSERTED = 50, 10

Merge = Callable[[str, "pa.Table", bool], None]


def rows(ids: list[int], text: str) -> pa.Table:
    import pyarrow as pa

    return pa.table({"id": ids, "text": [f"{text} {each}" for each in ids]})


def hour_rows(hour: int, *, inserts: bool) -> pa.Table:
    """The source of one hour: rows from all over the table, and new ones."""
    ids = [(hour * 7919 + place * 4001) % ROWS for place in range(CHANGED)]
    first = ROWS + hour * INSERTED
    return rows([*ids, *(range(first, first + INSERTED) if inserts else ())], f"hour {hour}")


def ours(uri: str, source: pa.Table, inserts: bool) -> None:
    merge = DeltaTable(uri).merge(source, "t.id = s.id").when_matched_update_all()
    (merge.when_not_matched_insert_all() if inserts else merge).execute()


def ours_on_spark(session: SparkSession) -> Merge:
    def merge(uri: str, source: pa.Table, inserts: bool) -> None:
        ours(uri, session.createDataFrame(source), inserts)

    return merge


def deltalake(uri: str, source: pa.Table, inserts: bool) -> None:
    import deltalake

    merge = deltalake.DeltaTable(uri).merge(
        source, "t.id = s.id", source_alias="s", target_alias="t"
    )
    merge = merge.when_matched_update_all()
    (merge.when_not_matched_insert_all() if inserts else merge).execute()


def delta_spark(session: SparkSession) -> Merge:
    def merge(uri: str, source: pa.Table, inserts: bool) -> None:
        session.createDataFrame(source).createOrReplaceTempView("hourly")
        insert = "WHEN NOT MATCHED THEN INSERT *" if inserts else ""
        session.sql(
            f"MERGE INTO delta.`{uri}` t USING hourly s ON t.id = s.id "
            f"WHEN MATCHED THEN UPDATE SET * {insert}"
        )

    return merge


def measure(peers: Mapping[str, Merge], hours: int, *, inserts: bool) -> None:
    """Print a row of the table of results for each library; they take turns, hour by hour."""
    with tempfile.TemporaryDirectory(prefix="hourly-") as directory:
        uris = {name: f"{directory}/{number}" for number, name in enumerate(peers)}
        for uri in uris.values():
            DeltaTable(uri, must_exist=False).append(rows(list(range(ROWS)), "first"))
        seconds: dict[str, list[float]] = {name: [] for name in peers}
        for hour in range(hours):
            source = hour_rows(hour, inserts=inserts)
            for name, merge in peers.items():
                started = time.perf_counter()
                merge(uris[name], source, inserts)
                seconds[name].append(time.perf_counter() - started)
        for name, uri in uris.items():
            _report(name, DeltaTable(uri), seconds[name], inserts=inserts)


def _report(name: str, table: DeltaTable, seconds: list[float], *, inserts: bool) -> None:
    snapshot = table.snapshot()
    expected = ROWS + (len(seconds) * INSERTED if inserts else 0)
    if snapshot.num_records != expected:
        raise SystemExit(f"{name}: {snapshot.num_records} rows instead of {expected}")
    workload = "updates and inserts" if inserts else "updates"
    median, slowest = statistics.median(seconds), max(seconds)
    print(
        f"| {workload} | {name} | {snapshot.num_files} | {sum(seconds):.1f} s | {median:.3f} s "
        f"| {slowest:.3f} s |",
        flush=True,
    )


def spark_session() -> SparkSession | None:
    """A session of delta-spark, where its JARs are."""
    from dagster_delta.engines.spark.session.session import local_spark_session
    from tests.reference.jars import delta_spark_settings, resolve_jars

    jars, why = resolve_jars()
    if not jars:
        print(f"without Spark: {why}")
        return None
    settings = {
        **delta_spark_settings(jars),
        "spark.sql.shuffle.partitions": "4",
        # By default 50, and 10,000 tasks that list directories: too many for two cores.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    return local_spark_session("hourly-merges", settings, cores=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=HOURS)
    parser.add_argument("--without-spark", action="store_true")
    options = parser.parse_args()
    peers: dict[str, Merge] = {"dagster-delta": ours, "deltalake": deltalake}
    session = None if options.without_spark else spark_session()
    if session is not None:
        peers |= {"dagster-delta on Spark": ours_on_spark(session)}
        peers |= {"delta-spark": delta_spark(session)}
    print("| Merges of | By | Files | Time | Median | Slowest |\n|---|---|---|---|---|---|")
    for inserts in (False, True):
        measure(peers, options.hours, inserts=inserts)
    if session is not None:
        session.stop()


if __name__ == "__main__":
    main()
