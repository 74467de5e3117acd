"""Spark Connect frames go to a table and come back. A process holds one kind of session, so this
one has its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PIPELINE = """
import json, sys
import dagster as dg
from pyspark.sql import DataFrame
from dagster_delta import DeltaIOManager, DeltaTable, SparkSessionResource, delta_sql_asset

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
)
spark = SparkSessionResource(remote="local[1]")
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
print("\\n" + json.dumps(seen))
"""


@pytest.mark.spark
@pytest.mark.slow
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
    assert seen["lineage"] == {"parity": ["parity"], "total": ["id"]}
