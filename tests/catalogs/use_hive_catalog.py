"""Registers a table in a Hive metastore by delta-spark, and uses it by the program of a page.

Run in a process of its own: a session has Hive support from its beginning, or never. The arguments
are a folder, a file with the program, and the settings of Spark.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dagster_delta import DeltaIOManager
from dagster_delta.errors import TableNotFound


@dg.asset(key=["shop", "orders"])
def orders() -> pa.Table:
    return pa.table({"id": [1, 2, 3]})


@dg.asset(key=["shop", "totals"])
def totals(orders: pa.Table) -> pa.Table:
    return pa.table({"id": [orders.num_rows]})


folder, program, settings = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
builder: Any = SparkSession.builder
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.enableHiveSupport().getOrCreate()
spark.sql("CREATE DATABASE shop")
for name in ("orders", "totals"):
    spark.sql(
        f"CREATE TABLE shop.{name} (id BIGINT) USING delta LOCATION '{folder / 'own' / name}'"
    )
names: dict[str, Any] = {"__name__": "page"}
exec(program.read_text(), names)
manager = DeltaIOManager(catalog=names["HiveCatalog"](), mode="overwrite")
assert dg.materialize([orders, totals], resources={"io_manager": manager}).success
assert [row.id for row in spark.sql("SELECT id FROM shop.orders ORDER BY id").collect()] == [
    1,
    2,
    3,
]
assert [row.id for row in spark.sql("SELECT id FROM shop.totals").collect()] == [3]
with pytest.raises(TableNotFound, match=r"no table shop\.absent"):
    names["HiveCatalog"]().table("shop.absent")
spark.stop()
