"""Spark Connect frames go to a table and come back. A process holds one kind of session, so this
one has its own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PIPELINE = """
import json, sys
import dagster as dg
from pyspark.sql import DataFrame
from dagster_delta import DeltaIOManager, DeltaTable, SparkSessionResource, delta_sql_asset
from dagster_delta.orchestration.spark_progress import watch_spark

root = sys.argv[1]
seen = {}


@dg.asset
def numbers(spark: SparkSessionResource):
    seen["session"] = type(spark.session).__module__
    return spark.session.range(4).selectExpr("id", "CAST(id % 2 AS STRING) AS parity")


@dg.asset(
    partitions_def=dg.StaticPartitionsDefinition(["0", "1"]),
    metadata={"partition_expr": "parity"},
)
def by_parity(context, numbers: DataFrame):
    return numbers.where(numbers.parity == context.partition_key)


totals = delta_sql_asset(
    "totals",
    "SELECT parity, sum(id) AS total FROM {numbers} GROUP BY parity",
    {"numbers": numbers},
    engine="spark",
)


@dg.asset(metadata={"mode": "append"})
def added():
    return spark.session.sql("SELECT 1L AS id")


@dg.asset(
    metadata={
        "mode": "merge",
        "merge_config": {"merge_type": "upsert", "predicate": "t.id = s.id"},
        "schema_mode": "merge",
    }
)
def merged(context):
    run = len(context.instance.get_run_ids())
    return spark.session.range(run, run + 2).selectExpr("id", f"{run} AS run")


@dg.asset(metadata={"mode": "ignore"})
def once():
    return spark.session.range(5)


@dg.asset(
    partitions_def=dg.StaticPartitionsDefinition(["a", "b", "c"]),
    metadata={"partition_expr": "p"},
)
def ranged(context):
    keys = context.partition_keys
    rows = spark.session.sql("SELECT explode(array('a', 'b', 'c')) AS p, uuid() AS u")
    return rows.where(rows.p.isin(keys))


class Lines(list):
    def info(self, line):
        self.append(line)


spark = SparkSessionResource(
    remote="local[1]",
    conf={"spark.connect.progress.reportInterval": "100ms"},
)
resources = {"io_manager": DeltaIOManager(root_uri=root, spark=spark), "spark": spark}
assets = [numbers, by_parity]
for key in ("0", "1", "0"):
    dg.materialize(assets, resources=resources, partition_key=key)
rows = DeltaTable(f"{root}/public/by_parity").snapshot().scan().to_arrow()
seen["rows"] = sorted(rows["id"].to_pylist())
done = dg.materialize([numbers, totals], resources=resources)
rows = DeltaTable(f"{root}/public/totals").snapshot().scan().to_arrow()
seen["totals"] = sorted(rows["total"].to_pylist())
(shown,) = done.asset_materializations_for_node("totals")
lineage = shown.metadata["dagster/column_lineage"].value.deps_by_column
seen["lineage"] = {column: [dep.column_name for dep in deps] for column, deps in lineage.items()}

(shown,) = done.asset_materializations_for_node("numbers")
seen["plan"] = shown.metadata["spark/plan"].value
with dg.DagsterInstance.ephemeral() as instance:
    for _ in range(2):
        dg.materialize([added, merged, once], resources=resources, instance=instance)


def rows_of(name, *columns):
    return DeltaTable(f"{root}/public/{name}").snapshot().scan(list(columns) or None).to_arrow().to_pylist()


seen["added"] = [row["id"] for row in rows_of("added")]
seen["merged"] = sorted([row["id"], row["run"]] for row in rows_of("merged"))
seen["once"] = DeltaTable(f"{root}/public/once").version()
ends = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
dg.materialize([ranged], resources=resources, tags=dict(zip(ends, ("a", "c"))))
before = {row["p"]: row["u"] for row in rows_of("ranged")}
dg.materialize([ranged], resources=resources, tags=dict(zip(ends, ("a", "b"))))
after = {row["p"]: row["u"] for row in rows_of("ranged")}
seen["kept"] = sorted(key for key in before if before[key] == after[key])

lines = Lines()
nap = "java_method('java.lang.Thread', 'sleep', 400L)"
frame = spark.session.range(0, 6, 1, 3).selectExpr("id", f"coalesce({nap}, '') AS slept")
with watch_spark(frame, lines, every_seconds=0.05) as work:
    frame.toArrow()
seen["lines"] = lines
seen["known"] = sorted(work)
seen["found"] = SparkSessionResource().session is spark.session
seen["handlers"] = len(spark.session.client._progress_handlers)
print("\\n" + json.dumps(seen))
"""


@pytest.mark.spark
@pytest.mark.exhaustive
def test_a_connect_session_stores_and_loads_partitions_and_runs_queries(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    script = tmp_path / "pipeline.py"
    script.write_text(PIPELINE)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "lake")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["session"].startswith("pyspark.sql.connect")
    assert seen["rows"] == [0, 1, 2, 3]
    assert seen["totals"] == [2, 4]
    assert "Range (0, 4" in seen["plan"]
    assert seen["added"] == [1, 1]
    assert seen["merged"] == [[1, 1], [2, 2], [3, 2]]
    assert seen["once"] == 0
    assert seen["kept"] == ["c"]
    assert any(re.search(r"stage \d+: \d of 3 tasks done", line) for line in seen["lines"])
    assert seen["known"] == ["spark/plan", "spark/seconds"]
    assert seen["found"]
    assert seen["handlers"] == 0
    assert seen["lineage"] == {"parity": ["parity"], "total": ["id"]}
