"""Bounds that delta-spark stores of the values in variants leave files out, and no row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_delta import DeltaTable
from tests.golden.answers import table_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.delta_spark

SETTINGS = {
    "spark.sql.variant.writeShredding.enabled": "true",
    "spark.sql.variant.inferShreddingSchema": "true",
    # Spark 4.2 fails in such a scan while it generates no code.
    "spark.sql.variant.pushVariantIntoScan": "false",
    "spark.databricks.delta.stats.limitPerVariant": "20",
    "spark.databricks.delta.variantShredding.parseFooterForStats": "true",
    "spark.sql.session.timeZone": "UTC",
}
ROW = """to_variant_object(named_struct(
    'n', id, 'dec', CAST(id + 0.25 AS DECIMAL(8, 2)), 'real', CAST(id + 0.1 AS DOUBLE),
    'text', concat(repeat('x', 40), lpad(id, 4, '0')), 'day', date_add(DATE'2024-01-01', CAST(id AS INT)),
    'at', TIMESTAMP'2024-01-01 00:00:00.000999' + make_interval(0, 0, 0, CAST(id AS INT)),
    'local', TIMESTAMP_NTZ'2024-01-01 00:00:00.000999' + make_interval(0, 0, 0, CAST(id AS INT)),
    'deep', named_struct('n', -id, 'b.c', id)))"""
FILES = (
    f"SELECT id, {ROW} v FROM RANGE(0, 100)",
    f"SELECT id, {ROW} v FROM RANGE(100, 200)",
    # Rows without the path, without a variant, and with the value null.
    "SELECT id, CASE id % 4 WHEN 0 THEN NULL WHEN 1 THEN parse_json('{\"z\": 1}') "
    f'WHEN 2 THEN parse_json(\'{{"n": null, "deep": 7}}\') ELSE {ROW} END v FROM RANGE(200, 300)',
    # Values of several types at one path, one of them beyond an integer.
    "SELECT id, parse_json(concat('{\"n\": ', CASE id % 3 WHEN 0 THEN '\"7\"' WHEN 1 THEN CAST(id AS STRING) "
    "ELSE '99999999999' END, '}')) v FROM RANGE(300, 400)",
    # Roots that are no objects.
    "SELECT id, parse_json(CAST(id AS STRING)) v FROM RANGE(400, 500)",
)
FILTERS = {
    "try_variant_get(v, '$.n', 'int') = 150": 4,
    "try_variant_get(v, '$.n', 'int') < 50": 4,
    "try_variant_get(v, '$.n', 'long') > 99999999998": 3,
    "try_variant_get(v, '$.n', 'int') IN (5, 7, 1000)": 4,
    "try_variant_get(v, '$.n', 'int') BETWEEN 150 AND 160": 4,
    "NOT try_variant_get(v, '$.n', 'int') >= 50": 4,
    "try_variant_get(v, '$.n', 'int') <=> 150": 4,
    "try_variant_get(v, '$.n', 'int') = 150 OR id = 10": 5,
    "try_variant_get(v, '$.n', 'decimal(10, 2)') = 150": 4,
    "try_variant_get(v, '$.n', 'tinyint') = 100": 4,
    "try_variant_get(v, '$.n', 'double') < 50": 4,
    "try_variant_get(v, '$.n', 'string') = '7'": 5,
    "try_variant_get(v, '$.n', 'int') IS NULL": 5,
    "coalesce(try_variant_get(v, '$.n', 'int') = 150, true)": 5,
    "try_variant_get(v, '$.dec', 'decimal(8, 2)') = 150.25": 3,
    "try_variant_get(v, '$.dec', 'decimal(8, 1)') = 99.3": 5,
    "try_variant_get(v, '$.dec', 'int') = 99": 5,
    "try_variant_get(v, '$.real', 'double') < 50": 3,
    "try_variant_get(v, '$.real', 'double') > 150": 5,
    "try_variant_get(v, '$.text', 'string') = concat(repeat('x', 40), '0150')": 5,
    "try_variant_get(v, '$.text', 'string') < 'x'": 2,
    "try_variant_get(v, '$.text', 'string') LIKE 'y%'": 2,
    "try_variant_get(v, '$.day', 'date') = DATE'2024-01-11'": 3,
    "try_variant_get(v, '$.day', 'timestamp') = TIMESTAMP'2024-01-11 00:00:00'": 5,
    "try_variant_get(v, '$.at', 'timestamp') < TIMESTAMP'2024-01-01 00:00:00.001Z'": 3,
    "try_variant_get(v, '$.local', 'timestamp_ntz') < TIMESTAMP_NTZ'2024-01-01 00:00:00.001'": 3,
    "try_variant_get(v, '$.deep.n', 'int') = -150": 4,
    "try_variant_get(v, '$.deep[\"b.c\"]', 'int') = 150": 4,
    "try_variant_get(v, '$', 'int') = 450": 5,
    "try_variant_get(v, '$.N', 'int') = 150": 5,
    "try_variant_get(v, '$.absent', 'int') = 150": 5,
    "id < 200 AND v:n::int = 150": 1,
    "id < 200 AND v:deep['b.c']::bigint = 150 AND v:deep.n::int < 0": 1,
}
"""Each with how many files are left."""


@pytest.fixture
def session(delta_spark: SparkSession) -> Iterator[SparkSession]:
    before = {name: delta_spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        delta_spark.conf.set(name, value)
    yield delta_spark
    for name, original in before.items():
        if original is None:
            delta_spark.conf.unset(name)
        else:
            delta_spark.conf.set(name, original)


def test_filters_on_variants_leave_out_files_and_no_row(
    session: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    for rows in FILES:
        frame = session.sql(rows).coalesce(1).write.format("delta").mode("append")
        frame.option("delta.enableVariantShredding", "true").save(uri)
    by_spark = session.read.format("delta").load(uri)
    counted = by_spark.selectExpr(*(f"count_if({where})" for where in FILTERS)).first()
    assert counted is not None
    answers = dict(zip(FILTERS, counted, strict=True))
    for parsed in (False, True):
        if parsed:
            # A checkpoint without JSON, whose bounds are variants.
            session.sql(
                f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ("
                "'delta.checkpoint.writeStatsAsStruct' = 'true', "
                "'delta.checkpoint.writeStatsAsJson' = 'false', 'delta.checkpointInterval' = '1')"
            )
            assert list(tmp_path.glob("t/_delta_log/*.checkpoint*.parquet"))
        snapshot = DeltaTable(uri).snapshot()
        left = {where: snapshot.scan(where=where).num_files for where in FILTERS}
        assert left == FILTERS
    for where, count in answers.items():
        assert snapshot.scan(where=where).to_spark(session).count() == count, where


def test_bounds_of_databricks_leave_out_files(golden_tables: object) -> None:
    snapshot = DeltaTable(table_path("spark__variant-stats-with-struct-no-checkpoint")).snapshot()
    assert snapshot.scan(where="variant_get(v, '$.key', 'int') > 204").num_files == 1
    assert snapshot.scan(where="variant_get(v, '$.key', 'int') BETWEEN 204 AND 205").num_files == 2
    assert snapshot.scan(where="variant_get(v, '$.key', 'int') = 210").num_files == 0
    nested = DeltaTable(table_path("spark__variant-stats-no-checkpoint")).snapshot()
    assert nested.scan(where="variant_get(nv.v, '$.id', 'int') < 10").num_files == 0
    assert nested.scan(where="variant_get(nv.v, '$.id', 'int') = 10").num_files == 1
    root = DeltaTable(table_path("spark__variant-stats-state-reconstruction")).snapshot()
    assert root.scan(where="variant_get(v, '$', 'int') = 1").num_files == 0
    assert root.scan(where="variant_get(v, '$', 'int') = 0").num_files == 1
