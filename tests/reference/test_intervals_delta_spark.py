"""Columns of intervals, which delta-spark writes through SQL, are read and not written."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import SchemaMismatch, UnsupportedExpression, UnsupportedFeature
from dagster_delta.protocol.schema import PrimitiveType, StructType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (
    "id INT, ym INTERVAL YEAR TO MONTH, y INTERVAL YEAR, dt INTERVAL DAY TO SECOND, "
    "h INTERVAL HOUR TO MINUTE, s STRUCT<x: INTERVAL MONTH>, xs ARRAY<INTERVAL DAY>"
)
TYPE_CHECK = "spark.databricks.delta.schema.typeCheck.enabled"
DAY = dt.timedelta(days=1)


@pytest.fixture(scope="module")
def uri(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("intervals") / "t")
    delta_spark.conf.set(TYPE_CHECK, "false")
    try:
        delta_spark.sql(
            f"CREATE TABLE delta.`{path}` ({COLUMNS}) USING delta "
            "TBLPROPERTIES ('delta.checkpointInterval' = '2')"
        )
        delta_spark.sql(
            f"INSERT INTO delta.`{path}` SELECT 1, -INTERVAL '1-3' YEAR TO MONTH, INTERVAL '7' YEAR, "
            "INTERVAL '1 01:02:03.000004' DAY TO SECOND, -INTERVAL '1:30' HOUR TO MINUTE, "
            "named_struct('x', INTERVAL '5' MONTH), array(INTERVAL '2' DAY, NULL)"
        )
        delta_spark.sql(f"INSERT INTO delta.`{path}` (id) VALUES (2)")
    finally:
        delta_spark.conf.unset(TYPE_CHECK)
    return path


def test_intervals_are_months_and_durations(uri: str) -> None:
    snapshot = DeltaTable(uri).snapshot()
    found = snapshot.scan().to_arrow()
    assert found.schema.field("ym").type == pa.int32()
    assert found.schema.field("ym").metadata == {b"delta.type": b"interval year to month"}
    assert found.schema.field("dt").type == pa.duration("us")
    values = {
        "ym": -15,
        "y": 84,
        "dt": DAY + dt.timedelta(hours=1, minutes=2, seconds=3, microseconds=4),
        "h": dt.timedelta(minutes=-90),
        "s": {"x": 5},
        "xs": [2 * DAY, None],
    }
    expected = [{"id": 1, **values}, {"id": 2, **dict.fromkeys(values)}]
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == expected
    # What holds the table afterwards has types for both.
    assert pl.DataFrame(found).sort("id")["dt"].to_list() == [values["dt"], None]
    assert found.to_pandas()["dt"].max() == values["dt"]
    with duckdb.connect() as connection:
        connection.register("found", found)
        cursor = connection.execute("SELECT max(dt), min(ym) FROM found")
        assert cursor.fetchone() == (values["dt"], -15)


def test_spark_has_its_own_intervals(uri: str, delta_spark: SparkSession) -> None:
    ours = DeltaTable(uri).snapshot().scan().to_spark(delta_spark)
    theirs = delta_spark.sql(f"SELECT * FROM delta.`{uri}`")
    assert [field.dataType for field in ours.schema] == [field.dataType for field in theirs.schema]
    texts = [f"CAST({name} AS STRING)" for name in ours.columns]
    found = [frame.selectExpr(*texts).collect() for frame in (ours, theirs)]
    assert sorted(map(str, found[0])) == sorted(map(str, found[1]))


def test_no_file_is_skipped_by_an_interval(uri: str) -> None:
    snapshot = DeltaTable(uri).snapshot()
    assert len(snapshot.scan(where="ym IS NULL").to_arrow()) == 1
    with pytest.raises(UnsupportedExpression, match="interval"):
        snapshot.scan(where="ym = 1").to_arrow()


def test_tables_with_intervals_are_not_written(uri: str, tmp_path: Path) -> None:
    table = DeltaTable(uri)
    with pytest.raises(UnsupportedFeature, match="interval year to month"):
        table.append(pa.table({"id": pa.array([3], pa.int32())}))
    schema = StructType.from_json(table.snapshot().metadata.schema_string)
    assert schema.field("y").data_type == PrimitiveType("interval year")
    with pytest.raises((UnsupportedFeature, SchemaMismatch), match=r"interval|duration"):
        DeltaTable.create(str(tmp_path / "t"), schema)


def test_an_interval_without_units_is_no_type(uri: str) -> None:
    with pytest.raises(Exception, match="'interval'"):
        StructType.from_json(
            '{"type":"struct","fields":[{"name":"x","type":"interval","metadata":{}}]}'
        )
