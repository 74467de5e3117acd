"""The Spark engine beside delta-spark, in one session, interleaved: medians as a Markdown table.

    python -m benchmarks.spark_engine --rows 5000000 --rounds 5

Both open the table, plan and run, and must give the same answer; full scans end in a hash over all
values. Writes go to a new directory each time. The JARs of delta-spark come from Maven, see tests/reference/jars.py.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._delta_spark import (
    arguments_of_rows,
    delta_spark_session,
    print_head,
    print_medians,
    seconds,
)
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.table.delta_table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Run = Callable[[], object]

_SMALL_APPENDS = 100
_MANY_FILES = 300_000
# Partition columns, and how many rows of a hundred are deleted by vectors.
_TABLES: dict[str, tuple[list[str], int]] = {
    "plain": ([], 0),
    "partitioned": (["p"], 0),
    "dv1": ([], 1),
    "dv30": ([], 30),
}


class Workloads:
    """The tables, and each workload as a pair of calls: ours, delta-spark's."""

    def __init__(self, spark: SparkSession, root: Path, rows: int) -> None:
        self.spark = spark
        self.root = root
        self.rows = rows
        self._directories = itertools.count()

    def prepare(self, name: str, partition_by: list[str], percent_deleted: int) -> None:
        if Path(self.path(name)).exists():
            return
        writer = self.source(8).write.format("delta").partitionBy(*partition_by)
        writer.option("delta.enableDeletionVectors", "true").save(self.path(name))
        if percent_deleted:
            where = f"pmod(hash(id), 100) < {percent_deleted}"
            self.spark.sql(f"DELETE FROM delta.`{self.path(name)}` WHERE {where}")

    def path(self, name: str) -> str:
        return str(self.root / name)

    def fresh(self) -> str:
        return self.path(f"written-{next(self._directories)}")

    def source(self, tasks: int) -> DataFrame:
        return self.spark.range(0, self.rows, 1, tasks).selectExpr(
            "id",
            "CAST(id % 1000 AS INT) AS k",
            "CAST(hash(id) AS DOUBLE) / 7 AS x",
            "CONCAT('customer-', hash(id, 1) % 100000) AS s",
            f"CAST(id * 12 / {self.rows} AS INT) AS p",
        )

    def ours(self, name: str, where: str | None = None) -> DataFrame:
        return DeltaTable(self.path(name)).snapshot().scan(where=where).to_spark(self.spark)

    def theirs(self, name: str, where: str | None = None) -> DataFrame:
        frame = self.spark.read.format("delta").load(self.path(name))
        return frame if where is None else frame.where(where)

    def pairs(self) -> dict[str, tuple[Run, Run]]:
        middle = self.rows // 2
        narrow = f"id BETWEEN {middle} AND {middle + 100}"
        return {
            "full scan": self._reads("plain", to_hash),
            "sum of a column": self._reads("plain", to_sum),
            "pruned scan (1 of 8 files)": self._reads("plain", to_hash, narrow),
            "partitioned, full scan": self._reads("partitioned", to_hash),
            "partitioned, one partition": self._reads("partitioned", to_hash, "p = 7"),
            "1 % deleted, full scan": self._reads("dv1", to_hash),
            "1 % deleted, sum": self._reads("dv1", to_sum),
            "30 % deleted, full scan": self._reads("dv30", to_hash),
            "30 % deleted, sum": self._reads("dv30", to_sum),
            "write": self._writes([]),
            "write, 12 partitions": self._writes(["p"]),
            f"{_SMALL_APPENDS} small appends": self._small_appends(),
            f"one of {_MANY_FILES} files": self._one_of_many(),
            "10,000 files in 1,000 partitions: plan": self._partitions(to_plan),
            "10,000 files in 1,000 partitions: count one": self._partitions(to_count, "p = 7"),
            "10,000 files in 1,000 partitions: count all": self._partitions(to_count),
        }

    def _reads(
        self, name: str, use: Callable[[DataFrame], object], where: str | None = None
    ) -> tuple[Run, Run]:
        partition_by, percent_deleted = _TABLES[name]

        def ours() -> object:
            # The first call of a workload is not measured.
            self.prepare(name, partition_by, percent_deleted)
            return use(self.ours(name, where))

        return ours, lambda: use(self.theirs(name, where))

    def _writes(self, partition_by: list[str]) -> tuple[Run, Run]:
        def ours() -> None:
            table = DeltaTable(self.fresh(), must_exist=False)
            table.append(self.source(4), partition_by=partition_by)

        def theirs() -> None:
            self.source(4).write.format("delta").partitionBy(*partition_by).save(self.fresh())

        return ours, theirs

    def _small_appends(self) -> tuple[Run, Run]:
        def ours() -> None:
            table = DeltaTable(self.fresh(), must_exist=False)
            for _ in range(_SMALL_APPENDS):
                table.append(self.spark.range(0, 10, 1, 1))

        def theirs() -> None:
            path = self.fresh()
            for _ in range(_SMALL_APPENDS):
                frame = self.spark.range(0, 10, 1, 1)
                frame.write.format("delta").mode("append").save(path)

        return ours, theirs

    def _one_of_many(self) -> tuple[Run, Run]:
        """Opening a table without a cache, and planning: only the file that is read is there."""
        where = "id BETWEEN 0 AND 9"

        def copy() -> str:
            if not Path(self.path("many")).exists():
                self._write_many()
            path = self.fresh()
            shutil.copytree(self.path("many"), path, copy_function=os.link)
            return path

        def ours() -> object:
            frame = DeltaTable(copy()).snapshot().scan(where=where).to_spark(self.spark)
            return frame.count()

        def theirs() -> object:
            return self.spark.read.format("delta").load(copy()).where(where).count()

        return ours, theirs

    def _partitions(
        self, use: Callable[[DataFrame], object], where: str | None = None
    ) -> tuple[Run, Run]:
        """Opening a table of many files without a cache, and planning; all of them are there."""

        def path() -> str:
            if not Path(self.path("partitions")).exists():
                self._write_partitions()
            return "partitions"

        def theirs() -> object:
            java: Any = self.spark._jvm  # noqa: SLF001 - the only way to the peer's cache
            java.org.apache.spark.sql.delta.DeltaLog.clearCache()
            return use(self.theirs(path(), where))

        return lambda: use(self.ours(path(), where)), theirs

    def _write_partitions(self) -> None:
        table = DeltaTable(self.path("partitions"), must_exist=False)
        table.append(self.spark.sql("SELECT 0L AS id, 0L AS p"), partition_by=["p"])
        [live] = table.snapshot().live_files().to_pylist()
        adds = []
        for partition, number in itertools.product(range(1000), range(10)):
            name = f"p={partition}/part-{number:05}-{uuid.uuid4()}-c000.snappy.parquet"
            path = Path(self.path("partitions"), name)
            path.parent.mkdir(exist_ok=True)
            os.link(self.path(f"partitions/{live['path']}"), path)
            add = {
                "path": name,
                "partitionValues": {"p": str(partition)},
                "size": live["size_bytes"],
                "modificationTime": live["modification_time_ms"],
                "dataChange": True,
                "stats": live["stats"],
            }
            adds.append(json.dumps({"add": add}))
        table.store.put_if_absent(commit_path(1), "\n".join(adds).encode())

    def _write_many(self) -> None:
        table = DeltaTable(self.path("many"), must_exist=False)
        table.append(self.spark.range(0, 10, 1, 1))
        [live] = table.snapshot().live_files().to_pylist()
        lines = []
        for at in range(1, _MANY_FILES):
            stats = {
                "numRecords": 10,
                "minValues": {"id": 10 * at},
                "maxValues": {"id": 10 * at + 9},
                "nullCount": {"id": 0},
            }
            add = {
                "path": f"part-{at:05}-{uuid.uuid4()}-c000.snappy.parquet",
                "partitionValues": {},
                "size": live["size_bytes"],
                "modificationTime": live["modification_time_ms"],
                "dataChange": True,
                "stats": json.dumps(stats),
            }
            lines.append(json.dumps({"add": add}))
        table.store.put_if_absent(commit_path(1), "\n".join(lines).encode())
        table.refresh()
        table.checkpoint()


def to_hash(frame: DataFrame) -> object:
    # Every value is decoded and looked at. (The `noop` sink keeps delta-spark's optimizer rules
    # from being applied, and fails on its deletion vectors.)
    return frame.selectExpr("BIT_XOR(XXHASH64(*))").collect()


def to_sum(frame: DataFrame) -> object:
    return frame.selectExpr("SUM(k)").collect()


def to_count(frame: DataFrame) -> object:
    return frame.count()


def to_plan(frame: DataFrame) -> object:
    frame._jdf.queryExecution().executedPlan()  # noqa: SLF001 - planning alone
    return None


def main() -> None:
    parser = arguments_of_rows(5_000_000)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    arguments = parser.parse_args()
    spark = delta_spark_session()
    with tempfile.TemporaryDirectory() as root:
        workloads = Workloads(spark, Path(root), arguments.rows)
        print_head()
        for name, (ours, theirs) in workloads.pairs().items():
            if arguments.only not in name:
                continue
            answers = ours(), theirs()
            if answers[0] != answers[1]:
                sys.exit(f"{name}: the engines disagree: {answers}")
            samples = [(seconds(ours), seconds(theirs)) for _ in range(arguments.rounds)]
            print_medians(name, samples)
    spark.stop()


if __name__ == "__main__":
    main()
