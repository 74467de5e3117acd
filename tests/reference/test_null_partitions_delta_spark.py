"""Partition values that are null, or spell Hive's name for null, read as delta-spark reads them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.protocol.values.partition_values import HIVE_NULL
from tests.golden.answers import rows_of
from tests.reference.test_delta_spark import alike, read_by_delta_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.delta_spark


@pytest.fixture(scope="module")
def converted(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table that CONVERT TO DELTA made of a catalog table: nulls are in the log by their Hive name."""
    uri = str(tmp_path_factory.mktemp("converted") / "t")
    name = "default.catalog_table"
    delta_spark.sql(f"DROP TABLE IF EXISTS {name}")
    delta_spark.sql(
        f"CREATE TABLE {name} USING parquet PARTITIONED BY (n, d, s) LOCATION '{uri}' AS "
        "SELECT * FROM VALUES (1L, 7, DATE '2020-01-01', 'a'), (2L, NULL, NULL, NULL) AS (id, n, d, s)"
    )
    delta_spark.sql(f"CONVERT TO DELTA {name}")
    delta_spark.sql(f"DROP TABLE {name}")
    return uri


def test_converted_nulls_are_read_as_delta_spark_reads_them(
    delta_spark: SparkSession, converted: str
) -> None:
    table = DeltaTable(converted)
    partitions = table.snapshot().files()["partition_values"].to_pylist()
    assert any(HIVE_NULL in dict(values).values() for values in partitions)
    theirs = read_by_delta_spark(delta_spark, converted)
    alike(theirs, table.snapshot().scan().to_arrow())
    ours = table.snapshot().scan().to_spark(delta_spark).toArrow()
    assert rows_of(ours) == rows_of(theirs)


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("n IS NULL", [2]),
        ("d IS NULL AND id > 0", [2]),
        ("n IS NOT NULL", [1]),
        ("n = 7", [1]),
        ("d <> DATE '2020-01-02'", [1]),
        ("s IS NULL", []),
        (f"s = '{HIVE_NULL}'", [2]),
    ],
)
def test_converted_nulls_are_found_on_both_engines(
    delta_spark: SparkSession, converted: str, where: str, ids: list[int]
) -> None:
    scan = DeltaTable(converted).snapshot().scan(where=where)
    assert scan.to_arrow()["id"].to_pylist() == ids
    assert [row.id for row in scan.to_spark(delta_spark).collect()] == ids


def test_a_converted_null_partition_is_replaced_and_rewritten(
    delta_spark: SparkSession, converted: str, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    shutil.copytree(converted, uri)
    table = DeltaTable(uri)
    table.update({"id": "id + 10"}, where="n IS NULL")
    rows = table.snapshot().scan().to_arrow()
    alike(read_by_delta_spark(delta_spark, uri), rows)
    table.overwrite(rows.filter(pa.compute.is_null(rows["n"])), where="dynamic")
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [1, 12]
    alike(read_by_delta_spark(delta_spark, uri), table.snapshot().scan().to_arrow())


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_the_hive_name_of_null_as_a_text_is_read_by_delta_spark_as_that_text(
    delta_spark: SparkSession, tmp_path: Path, engine: str
) -> None:
    uri = str(tmp_path / "named")
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "p": [HIVE_NULL, "x", None]})
    table = DeltaTable.create(uri, rows.schema, partition_by=["p"])
    table.append(rows if engine == "arrow" else delta_spark.createDataFrame(rows.to_pandas()))
    snapshot = table.snapshot()
    assert rows_of(snapshot.scan().to_arrow()) == rows_of(rows)
    alike(read_by_delta_spark(delta_spark, uri), rows)
    assert rows_of(snapshot.scan().to_spark(delta_spark).toArrow()) == rows_of(rows)
    for where, ids in ((f"p = '{HIVE_NULL}'", [1]), ("p IS NULL", [3])):
        scan = snapshot.scan(where=where)
        assert scan.to_arrow()["id"].to_pylist() == ids
        assert [row.id for row in scan.to_spark(delta_spark).collect()] == ids
        theirs = delta_spark.read.format("delta").load(uri).where(where)
        assert [row.id for row in theirs.collect()] == ids
