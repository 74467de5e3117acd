"""DELETE, UPDATE and MERGE on Spark beside delta-spark, in one session, interleaved: medians as a
Markdown table.

    python -m benchmarks.spark_dml --rows 3000000 --rounds 3

Every run changes a copy of the same table, whose data files are links, and both must change as many
rows. The JARs of delta-spark come from Maven, see tests/reference/jars.py.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._delta_spark import (
    FEW_PARTITIONS,
    arguments_of_rows,
    delta_spark_session,
    print_head,
    print_medians,
    seconds,
)
from benchmarks.harness import linked_copy
from dagster_delta.table.delta_table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Change = Callable[[str], object]

_WHERE = "k < 10"
_ON = "t.id = s.id"
_FILES = 8
_COUNTS = ("numDeletedRows", "numUpdatedRows", "numTargetRowsUpdated")


class Workloads:
    """The tables, and each workload as its table and two calls: ours, delta-spark's."""

    def __init__(self, spark: SparkSession, root: Path, rows: int) -> None:
        self.spark = spark
        self.root = root
        self.rows = rows
        self._copies = itertools.count()

    def prepare(self) -> None:
        """The tables, and a source of every hundredth row and a tenth as many new ones."""
        table = self.spark.range(0, self.rows, 1, _FILES).selectExpr(
            "id",
            "CAST(pmod(hash(id), 1000) AS INT) AS k",
            "CAST(hash(id) AS DOUBLE) / 7 AS x",
            "CONCAT('customer-', hash(id, 1) % 100000) AS s",
        )
        for name, vectors in (("vectors", "true"), ("rewrite", "false")):
            writer = table.write.format("delta").option("delta.enableDeletionVectors", vectors)
            writer.save(str(self.root / name))
        source = table.where("id % 100 = 37").withColumn("x", table["x"] + 1)
        new = source.where("id % 1000 = 37").withColumn("id", source["id"] + 2 * self.rows)
        source.union(new).coalesce(2).write.parquet(str(self.root / "source"))

    def copy(self, name: str) -> str:
        """A table of its own for one run."""
        return linked_copy(self.root / name, self.root / f"copy-{next(self._copies)}")

    def pairs(self) -> dict[str, tuple[str, Change, Change]]:
        """Table, our call and theirs, by what is measured."""
        cases = {
            "delete 1 %": (self._delete, f"DELETE FROM {{}} WHERE {_WHERE}"),
            "update 1 %": (self._update, f"UPDATE {{}} SET x = x * 1.1 WHERE {_WHERE}"),
            "merge 1 %": (
                self._merge,
                f"MERGE INTO {{}} AS t USING source AS s ON {_ON} "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            ),
        }
        return {
            f"{name}, {what}": (table, ours, self._theirs(sql))
            for table, what in (("vectors", "deletion vectors"), ("rewrite", "copy-on-write"))
            for name, (ours, sql) in cases.items()
        }

    def _delete(self, uri: str) -> object:
        return changed(DeltaTable(uri).delete(_WHERE, engine="spark").metrics)

    def _update(self, uri: str) -> object:
        result = DeltaTable(uri).update({"x": "x * 1.1"}, _WHERE, engine="spark")
        return changed(result.metrics)

    def _merge(self, uri: str) -> object:
        merge = DeltaTable(uri).merge(self.spark.read.parquet(str(self.root / "source")), _ON)
        merge.when_matched_update_all().when_not_matched_insert_all()
        return changed(merge.execute().metrics)

    def _theirs(self, sql: str) -> Change:
        def run(uri: str) -> object:
            self.spark.read.parquet(str(self.root / "source")).createOrReplaceTempView("source")
            self.spark.sql(sql.format(f"delta.`{uri}`")).collect()
            return None

        return run


def changed(metrics: object) -> object:
    assert isinstance(metrics, dict)
    return next(metrics[name] for name in _COUNTS if name in metrics)


def check_equal(spark: SparkSession, workloads: Workloads, name: str) -> None:
    """Both leave the same rows."""
    table, ours, theirs = workloads.pairs()[name]
    hashes = []
    for run in (ours, theirs):
        uri = workloads.copy(table)
        run(uri)
        frame = spark.read.format("delta").load(uri)
        hashes.append(frame.selectExpr("COUNT(*)", "BIT_XOR(XXHASH64(*))").collect())
    if hashes[0] != hashes[1]:
        sys.exit(f"{name}: the engines disagree: {hashes}")


def main() -> None:
    parser = arguments_of_rows(3_000_000)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    arguments = parser.parse_args()
    spark = delta_spark_session(settings=FEW_PARTITIONS)
    with tempfile.TemporaryDirectory() as root:
        workloads = Workloads(spark, Path(root), arguments.rows)
        workloads.prepare()
        print_head()
        for name, (table, ours, theirs) in workloads.pairs().items():
            if arguments.only not in name:
                continue
            check_equal(spark, workloads, name)
            samples = [
                (seconds(ours, workloads.copy(table)), seconds(theirs, workloads.copy(table)))
                for _ in range(arguments.rounds)
            ]
            print_medians(name, samples)
    spark.stop()


if __name__ == "__main__":
    main()
