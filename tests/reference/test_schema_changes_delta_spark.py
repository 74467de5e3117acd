"""delta-spark reads, and goes on with, tables whose schema we changed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.evolution.type_spelling import parse_type
from dagster_delta.protocol.features.type_widening import type_changes
from dagster_delta.protocol.schema import walk_fields
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from tests.golden.answers import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.delta_spark

# Every pair of types of the specification, with a value of the old type and one only the new holds.
PAIRS: list[tuple[str, str, Any, Any]] = [
    ("TINYINT", "SMALLINT", -7, 300),
    ("TINYINT", "INT", -7, 2**20),
    ("TINYINT", "BIGINT", -7, 2**40),
    ("TINYINT", "DOUBLE", -7, 0.5),
    ("TINYINT", "DECIMAL(12,2)", -7, Decimal("9999999999.25")),
    ("SMALLINT", "INT", 300, -(2**20)),
    ("SMALLINT", "BIGINT", 300, 2**40),
    ("SMALLINT", "DOUBLE", 300, 0.5),
    ("SMALLINT", "DECIMAL(10,0)", 300, Decimal(9999999999)),
    ("INT", "BIGINT", -(2**31), 2**62),
    ("INT", "DOUBLE", 2**31 - 1, 1e300),
    ("INT", "DECIMAL(20,5)", 2**31 - 1, Decimal("0.00001")),
    ("BIGINT", "DECIMAL(20,0)", -(2**63), Decimal(10) ** 19),
    ("BIGINT", "DECIMAL(38,18)", 2**63 - 1, Decimal("0.000000000000000001")),
    ("FLOAT", "DOUBLE", 1.5, 1e300),
    ("DATE", "TIMESTAMP_NTZ", dt.date(1999, 12, 31), dt.datetime(2021, 1, 2, 3, 4, 5, 6)),
    ("DECIMAL(6,2)", "DECIMAL(6,2)", Decimal("1234.56"), Decimal("0.01")),
    ("DECIMAL(6,2)", "DECIMAL(12,2)", Decimal("1234.56"), Decimal("1234567890.12")),
    ("DECIMAL(6,2)", "DECIMAL(20,9)", Decimal("1234.56"), Decimal("0.000000001")),
]

DEPTHS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "top": ("{0}", "", lambda value: value),
    "field": ("STRUCT<x: {0}>", ".x", lambda value: {"x": value}),
    "element": ("ARRAY<{0}>", ".element", lambda value: [value, None]),
    "value": ("MAP<INT, {0}>", ".value", lambda value: [(1, value)]),
    "key": ("MAP<{0}, INT>", ".key", lambda value: [(value, 1)]),
    "deep": (
        "ARRAY<MAP<STRING, STRUCT<x: ARRAY<{0}>>>>",
        ".element.value.x.element",
        lambda value: [[("k", {"x": [value]})]],
    ),
}


def columns(kind: int, depths: list[str]) -> pa.Table:
    """A row for every pair at every depth: the types before (0) or after (1) the change."""
    arrays = {"n": pa.array([kind], pa.int32())}
    for number, pair in enumerate(PAIRS):
        for depth in depths:
            shape, _, wrap = DEPTHS[depth]
            data_type = to_arrow_type(parse_type(shape.format(pair[kind])))
            arrays[f"{depth}_{number}"] = pa.array([wrap(pair[2 + kind])], data_type)
    return pa.table(arrays)


def widened(uri: str, depths: list[str], partition_by: tuple[str, ...] = ()) -> DeltaTable:
    """A table with files of the old types, whose columns are all widened in one statement."""
    before = columns(0, depths)
    table = DeltaTable.create(uri, before.schema, partition_by=partition_by)
    table.append(before)
    changes = (
        f"ALTER {depth}_{number}{DEPTHS[depth][1]} TYPE {new}"
        for number, (_, new, _, _) in enumerate(PAIRS)
        for depth in depths
    )
    table.alter(", ".join(changes), enable_features=True)
    return table


def alike(session: SparkSession, table: DeltaTable) -> list[dict[str, Any]]:
    """The rows of a table, which delta-spark and both of our engines see alike."""
    ours = table.snapshot().scan().to_arrow()
    theirs = session.read.format("delta").load(table.uri.removeprefix("file://")).toArrow()
    assert theirs.column_names == ours.column_names
    assert rows_of(theirs.cast(ours.schema)) == rows_of(ours)
    by_spark = table.snapshot().scan().to_spark(session).toArrow()
    assert rows_of(by_spark.cast(ours.schema)) == rows_of(ours)
    rows: list[dict[str, Any]] = ours.to_pylist()
    return rows


@pytest.mark.parametrize(
    "depths", [["top", "field", "element"], ["value", "key", "deep"]], ids=["flat", "nested"]
)
@pytest.mark.exhaustive
def test_every_widening_at_every_depth_is_read_alike(
    depths: list[str], delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    table = widened(uri, depths)
    assert len(alike(delta_spark, table)) == 1
    table.append(columns(1, depths))
    assert len(alike(delta_spark, table)) == 2
    # Written by Spark, the new types again, beside files of the old ones.
    table.append(table.snapshot().scan(where="n = 1").to_spark(delta_spark))
    rows = alike(delta_spark, table)
    assert [row["n"] for row in rows].count(1) == 2
    delta_spark.sql(f"OPTIMIZE delta.`{uri}`")
    assert rows_of(DeltaTable(uri).snapshot().scan().to_arrow()) == rows_of(
        table.snapshot().scan().to_arrow()
    )


def test_widened_partition_columns_are_read_and_skipped_alike(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    names = tuple(f"top_{number}" for number in range(len(PAIRS)))
    table = widened(uri, ["top"], partition_by=names)
    table.append(columns(1, ["top"]))
    assert len(alike(delta_spark, table)) == 2
    theirs = delta_spark.read.format("delta").load(uri)
    for sql, n in (("top_2 = -7", 0), ("top_2 > 100000", 1), ("top_15 < '2000-06-01'", 0)):
        assert [row.n for row in theirs.where(sql).collect()] == [n]
    scan = table.snapshot().scan(where="top_2 > 100000")
    assert scan.files().num_rows == 1
    assert scan.to_arrow()["n"].to_pylist() == [1]
    by_spark = table.snapshot().scan(where="top_15 < TIMESTAMP_NTZ '2000-06-01 00:00:00'")
    assert [row.n for row in by_spark.to_spark(delta_spark).collect()] == [0]


@pytest.mark.exhaustive
def test_delta_spark_goes_on_with_what_we_changed(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    table = DeltaTable.create(
        uri,
        pa.schema(
            [
                ("id", pa.int32()),
                ("s", pa.struct([("x", pa.int8()), ("y", pa.string())])),
                ("p", pa.string()),
            ]
        ),
        partition_by=["p"],
    )
    row = {"id": 1, "s": {"x": 1, "y": "y"}, "p": "a"}
    table.append(pa.Table.from_pylist([row], schema=table.snapshot().arrow_schema))
    table.alter(
        "DROP COLUMN s.y, RENAME id TO ident, RENAME p TO `part of it`, ALTER s.x TYPE INT, "
        "ADD COLUMN c STRING DEFAULT 'x', ADD CONSTRAINT positive CHECK (ident > 0), "
        "ALTER ident SET NOT NULL, ALTER c FIRST, ADD s.z INT",
        enable_features=True,
    )
    assert alike(delta_spark, table) == [
        {"c": "x", "ident": 1, "s": {"x": 1, "z": None}, "part of it": "a"}
    ]
    delta_spark.sql(
        f"INSERT INTO delta.`{uri}` (ident, s, `part of it`) "
        "VALUES (2, named_struct('x', 70000, 'z', 5), 'b')"
    )
    with pytest.raises(Exception, match=r"(?i)check constraint positive"):
        delta_spark.sql(f"INSERT INTO delta.`{uri}` (ident) VALUES (-1)")
    delta_spark.sql(f"ALTER TABLE delta.`{uri}` ALTER COLUMN s.x TYPE BIGINT")
    table.refresh()
    table.alter("ALTER s.z TYPE BIGINT, DROP CONSTRAINT positive, RENAME ident TO id")
    rows = sorted(alike(delta_spark, table), key=lambda each: each["id"])
    assert rows[1] == {"c": "x", "id": 2, "s": {"x": 70000, "z": 5}, "part of it": "b"}
    field = dict(walk_fields(table.schema()))["s", "x"]
    changes = [(str(each.from_type), str(each.to_type)) for each in type_changes(field)]
    assert changes == [("byte", "integer"), ("integer", "long")]


@pytest.mark.exhaustive
def test_delta_spark_knows_what_we_cluster_by(delta_spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = DeltaTable.create(uri, pa.schema([("a", pa.int32()), ("b", pa.int32())]))
    table.append(pa.table({"a": pa.array([1, 2], pa.int32()), "b": pa.array([3, 4], pa.int32())}))
    table.alter("RENAME a TO c, CLUSTER BY (c, b)", enable_features=True)
    (detail,) = delta_spark.sql(f"DESCRIBE DETAIL delta.`{uri}`").collect()
    assert detail.clusteringColumns == ["c", "b"]
    delta_spark.sql(f"OPTIMIZE delta.`{uri}`")
    table.refresh()
    assert len(alike(delta_spark, table)) == 2


@pytest.mark.exhaustive
def test_clusters_of_ours_and_of_delta_spark_are_known_to_both(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    rows = pa.table({"a": list(range(100)), "b": [each % 7 for each in range(100)]})
    table = DeltaTable(uri, must_exist=False)
    for _ in range(2):
        table.append(rows, cluster_by=["a", "b"])
    assert not table.optimize(engine="spark").skipped
    (detail,) = delta_spark.sql(f"DESCRIBE DETAIL delta.`{uri}`").collect()
    assert detail.clusteringColumns == ["a", "b"]
    # What one has clustered is a cube to the other, and is left alone.
    (done,) = delta_spark.sql(f"OPTIMIZE delta.`{uri}`").collect()
    assert done.metrics.numFilesRemoved == 0
    table.append(rows)
    (done,) = delta_spark.sql(f"OPTIMIZE delta.`{uri}`").collect()
    assert done.metrics.numFilesRemoved == table.snapshot().num_files
    table.refresh()
    assert table.optimize().skipped
    assert len(alike(delta_spark, table)) == 300


@pytest.mark.exhaustive
def test_a_preview_table_stays_one_that_delta_spark_reads(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    delta_spark.sql(
        f"CREATE TABLE delta.`{uri}` (a SMALLINT, b INT) USING delta TBLPROPERTIES "
        "('delta.feature.typeWidening-preview' = 'supported')"
    )
    delta_spark.sql(f"INSERT INTO delta.`{uri}` VALUES (1, 2)")
    table = DeltaTable(uri)
    table.alter("SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true'), ALTER a TYPE INT")
    table.append(pa.table({"a": pa.array([2**20], pa.int32()), "b": pa.array([1], pa.int32())}))
    assert '"tableVersion":2' in table.schema().to_json()
    assert "typeWidening" not in (table.protocol().reader_features or ())
    assert len(alike(delta_spark, table)) == 2
