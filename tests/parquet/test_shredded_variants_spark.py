"""Variants that Spark has shredded say here what they say in Spark."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.protocol.values.arrow_schema import VARIANT_STORAGE
from dagster_delta.protocol.variant.binary import decode_variant
from tests.families import family
from tests.golden.answers import answer, table_path
from tests.parquet.shredding import is_shredded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOLDEN = {
    "spark__variant-stats-no-checkpoint": "i",
    "spark__variant-stats-state-reconstruction": "v",
    "spark__variant-stats-with-struct-no-checkpoint": "s.i",
    "golden__spark-variant-checkpoint": "id",
}
"""Tables of others with variants, and what tells their rows apart."""
UNSHREDDED = "golden__spark-variant-checkpoint"

JSONS = (
    '{"a": 1, "b": "x", "c": [{"x": 1.5, "y": [1]}, 7, null], "d": {"e": 1.25, "f": null}}',
    '{"a": 12345678901, "b": null, "c": [], "d": {}, "z": {"deep": {"deeper": [true, "é"]}}}',
    '{"a": "not a number", "c": {"x": 2}, "d": [1, 2], "b": 3}',
    '{"d": {"e": "1.25", "g": 1}, "😀": "long %s"}' % ("text " * 60),
    "{}",
    "[]",
    '[1, [2, {}], {"a": -1}]',
    '[{"x": 2.5, "y": {"a": 1}}, {"x": "3"}, {}]',
    "null",
    "true",
    '"plain"',
    "-170141183460469231731.25",
    "1e300",
    "0",
    "-129",
    "4611686018427387904",
)
SQLS = (
    "CAST(DATE'2024-02-29' AS VARIANT)",
    "CAST(TIMESTAMP'1969-12-31 23:59:59.123456Z' AS VARIANT)",
    "CAST(TIMESTAMP_NTZ'2024-01-01 10:00:00' AS VARIANT)",
    "CAST(X'00ff' AS VARIANT)",
    "CAST(1.20 AS VARIANT)",
    "CAST(CAST(0.1 AS FLOAT) AS VARIANT)",
    "CAST(CAST(0.1 AS DOUBLE) AS VARIANT)",
    "to_variant_object(named_struct('a', 7, 'when', TIMESTAMP'2024-01-01 00:00:00Z', "
    "'b', X'ff', 'd', named_struct('e', CAST(12.34 AS DECIMAL(10, 2)))))",
    "to_variant_object(array(named_struct('x', CAST(1 AS DOUBLE), 'y', DATE'2020-01-01')))",
    "NULL",
)
FORCED = (
    "a INT, b STRING, c ARRAY<STRUCT<x DOUBLE, y VARIANT>>, d STRUCT<e DECIMAL(10, 2), f DATE>",
    "a BIGINT, d VARIANT, `😀` STRING, `when` TIMESTAMP, absent BOOLEAN",
    "ARRAY<STRUCT<x DECIMAL(2, 1), y STRUCT<a SMALLINT>>>",
    "STRING",
    "BOOLEAN",
    "TINYINT",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(38, 2)",
    "DECIMAL(3, 2)",
    "DATE",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "BINARY",
)


@pytest.fixture
def shredding(delta_spark: SparkSession) -> Iterator[SparkSession]:
    """The session, writing shredded variants."""
    settings = {
        "spark.sql.variant.writeShredding.enabled": "true",
        "spark.sql.variant.inferShreddingSchema": "false",
        "spark.sql.variant.forceShreddingSchemaForTest": "",
        "spark.sql.session.timeZone": "UTC",
    }
    before = {name: delta_spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        delta_spark.conf.set(name, value)
    yield delta_spark
    for name, original in before.items():
        delta_spark.conf.set(name, original or "")


def values(spark: SparkSession) -> DataFrame:
    """A frame of `id` and every kind of variant as `v`, in one partition."""
    expressions = [*(f"parse_json('{each}')" for each in JSONS), *SQLS]
    rows = ", ".join(f"({number}, {each})" for number, each in enumerate(expressions))
    return spark.sql(f"SELECT * FROM VALUES {rows} AS t(id, v)").coalesce(1)


def assert_same(path: str, by_spark: DataFrame, key: str = "id") -> pa.Table:
    """Every row is what Spark reads, when both are put in the order of a column."""
    table = DeltaTable(path).snapshot().scan().to_arrow()
    names = table.column_names
    texts = by_spark.selectExpr(f"to_json(struct({', '.join(names)}))").collect()
    spark_rows = [json.loads(text, parse_float=Decimal) for (text,) in texts]
    ours = [logical(each, pa.struct(table.schema)) for each in table.to_pylist()]
    assert len(ours) == len(spark_rows)
    ours.sort(key=lambda row: _at(row, key))
    spark_rows.sort(key=lambda row: _at(row, key))
    for our, spark_row in zip(ours, spark_rows, strict=True):
        assert_equal(our, spark_row)
    return table


def _at(row: Any, key: str) -> Any:
    for name in key.split("."):
        row = row[name]
    return row


def logical(value: Any, data_type: Any) -> Any:
    """A value of an Arrow column with its variants decoded; like Spark, without null fields."""
    if value is None:
        return None
    if data_type.equals(VARIANT_STORAGE):
        return decode_variant(value["metadata"], value["value"])
    if pa.types.is_struct(data_type):
        return {
            each.name: logical(value[each.name], each.type)
            for each in data_type
            if value[each.name] is not None
        }
    if pa.types.is_map(data_type):
        return {key: logical(each, data_type.item_type) for key, each in value}
    if pa.types.is_list(data_type):
        return [logical(each, data_type.value_type) for each in value]
    return value


def assert_equal(ours: Any, spark: Any) -> None:
    """A decoded value is what Spark has written as JSON."""
    match ours:
        case dict():
            assert isinstance(spark, dict)
            assert ours.keys() == spark.keys()
            for name, each in ours.items():
                assert_equal(each, spark[name])
        case list():
            assert isinstance(spark, list)
            assert len(ours) == len(spark)
            for our, other in zip(ours, spark, strict=True):
                assert_equal(our, other)
        case dt.datetime():
            assert dt.datetime.fromisoformat(spark) == ours
        case dt.date():
            assert spark == ours.isoformat()
        case bytes():
            assert base64.b64decode(spark) == ours
        case float():
            assert isinstance(spark, Decimal)
            # Spark writes the shortest digits of a float, and Python has only doubles.
            assert math.isclose(float(spark), ours, rel_tol=1e-7)
        case _:
            assert spark == ours
            assert isinstance(spark, bool) == isinstance(ours, bool)
            assert isinstance(spark, str) == isinstance(ours, str)


@pytest.mark.parametrize("name", family(GOLDEN, "spark__variant-stats-with-struct-no-checkpoint"))
@pytest.mark.usefixtures("golden_tables")
def test_tables_of_others_say_what_they_say_in_spark(name: str, shredding: SparkSession) -> None:
    path = table_path(name)
    assert is_shredded(path) == (name != UNSHREDDED)
    table = assert_same(path, shredding.read.format("delta").load(path), GOLDEN[name])
    assert table.num_rows == answer(name)["row_count"]


@pytest.mark.parametrize("schema", family(FORCED, *FORCED[:3]))
def test_any_value_under_any_shredding_says_what_it_says_in_spark(
    schema: str, shredding: SparkSession, tmp_path: Path
) -> None:
    shredding.conf.set("spark.sql.variant.forceShreddingSchemaForTest", schema)
    path = str(tmp_path)
    writer = values(shredding).write.format("delta").option("delta.enableVariantShredding", "true")
    writer.save(path)
    assert is_shredded(path)
    assert assert_same(path, shredding.read.format("delta").load(path)).num_rows == 26


@pytest.mark.parametrize("mode", family(["none", "name", "id"], "name"))
def test_nested_variants_of_mapped_columns_say_what_they_say_in_spark(
    mode: str, shredding: SparkSession, tmp_path: Path
) -> None:
    shredding.conf.set("spark.sql.variant.inferShreddingSchema", "true")
    path = str(tmp_path)
    shredding.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, s STRUCT<v VARIANT, n INT>, l ARRAY<VARIANT>, "
        "m MAP<STRING, VARIANT>, t STRUCT<v VARIANT>) USING delta TBLPROPERTIES "
        f"('delta.columnMapping.mode' = '{mode}', 'delta.enableVariantShredding' = 'true')"
    )
    shredding.sql(
        """SELECT id,
            IF(id % 7 = 0, NULL, named_struct('v', v, 'n', 1)) AS s,
            array(v, NULL, parse_json('1')) AS l,
            map('k', v, 'none', NULL) AS m,
            named_struct('v', IF(id % 5 = 0, NULL, v:tags)) AS t
        FROM (SELECT id, parse_json(to_json(named_struct(
            'a', id, 'name', concat('n', id), 'tags', array(id, id + 1),
            'sub', named_struct('x', id / 3, 'y', IF(id % 3 = 0, NULL, 'y'))))) AS v
            FROM range(0, 60, 1, 1))"""
    ).write.format("delta").mode("append").save(path)
    assert is_shredded(path)
    assert assert_same(path, shredding.read.format("delta").load(path)).num_rows == 60
