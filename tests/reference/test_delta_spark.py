"""delta-spark reads what we wrote, and we read what delta-spark wrote."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint
from tests.families import family
from tests.golden.answers import rows_of
from tests.reference.tables import BUILDERS, PARTITION_ROWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.delta_spark


def read_by_delta_spark(session: SparkSession, uri: str) -> pa.Table:
    return arrow_of(session.read.format("delta").load(uri))


def arrow_of(frame: DataFrame) -> pa.Table:
    return frame.toArrow()


def alike(theirs: pa.Table, ours: pa.Table) -> None:
    """Same columns, same rows; Arrow's spellings of one type do not count."""
    assert theirs.column_names == ours.column_names
    assert rows_of(theirs.cast(ours.schema)) == rows_of(ours)


@pytest.mark.parametrize("name", BUILDERS)
def test_delta_spark_reads_what_we_wrote(
    name: str, delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / name)
    table = BUILDERS[name](uri)
    ours = table.snapshot().scan().to_arrow()
    assert ours.num_rows > 0
    alike(read_by_delta_spark(delta_spark, uri), ours)


@pytest.mark.parametrize("name", family(BUILDERS, "mapped_by_id", "not_null"))
def test_delta_spark_appends_to_our_table_and_we_read_it(
    name: str, delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / name)
    table = BUILDERS[name](uri)
    before = table.snapshot().scan().to_arrow()
    delta_spark.read.format("delta").load(uri).write.format("delta").mode("append").save(uri)
    after = DeltaTable(uri).snapshot()
    assert after.version == table.version() + 1
    assert rows_of(after.scan().to_arrow()) == rows_of(pa.concat_tables([before, before]))
    DeltaTable(uri).append(before)
    alike(read_by_delta_spark(delta_spark, uri), pa.concat_tables([before, before, before]))


def test_delta_spark_skips_files_by_our_statistics(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "skipped")
    table = DeltaTable.create(uri, PARTITION_ROWS.schema)
    for start in range(0, 8, 2):
        table.append(PARTITION_ROWS.slice(start, 2))
    frame = delta_spark.read.format("delta").load(uri).where("id = 5")
    assert [row.id for row in frame.collect()] == [5]
    assert len(frame.inputFiles()) == 1


_NAN, _INFINITY = float("nan"), float("inf")
UNUSUAL = {
    "nan": pa.array([1.5, _NAN, None]),
    "nan alone": pa.array([_NAN, _NAN]),
    "infinity": pa.array([_INFINITY, 1.0], pa.float32()),
    "both infinities": pa.array([-_INFINITY, _INFINITY, _NAN]),
    "small decimals": pa.array([Decimal("1E-18"), Decimal(0)], pa.decimal128(38, 18)),
    "wide decimals": pa.array([Decimal(10**38 - 1), Decimal(-(10**38) + 1)]),
    "long texts": pa.array(["x" * 5000, "é" * 5000]),
    "booleans": pa.array([True, None]),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_bounds_of_unusual_values_are_those_of_delta_spark(
    delta_spark: SparkSession, tmp_path: Path, case: str
) -> None:
    def bounds_of(uri: str) -> tuple[object, object]:
        (text,) = DeltaTable(uri).snapshot().live_files(["stats"])["stats"].to_pylist()
        found = json.loads(text, parse_float=Decimal)
        return found["minValues"].get("v"), found["maxValues"].get("v")

    ours, theirs = (str(tmp_path / name) for name in ("ours", "theirs"))
    table = DeltaTable(ours, must_exist=False)
    table.append(pa.table({"v": UNUSUAL[case]}))
    frame = delta_spark.read.format("delta").load(ours)
    frame.coalesce(1).write.format("delta").save(theirs)
    # delta-spark has no bounds of booleans, and passes over those of others.
    expected = (True, True) if case == "booleans" else bounds_of(theirs)
    assert bounds_of(ours) == expected
    table.append(pa.table({"v": UNUSUAL[case].slice(0, 1)}))
    table.checkpoint()
    frame = delta_spark.read.format("delta").load(ours)
    rows = delta_spark.createDataFrame(frame.collect(), frame.schema)
    for (value,) in rows.distinct().collect():
        counts = {found.where(found.v.eqNullSafe(value)).count() for found in (frame, rows)}
        assert len(counts) == 1, value
    facts = ("min(v)", "max(v)", "count(v)")
    assert str(frame.selectExpr(*facts).collect()) == str(rows.selectExpr(*facts).collect())


def test_stable_type_widening_by_delta_spark_is_read(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "widened")
    delta_spark.sql(
        f"CREATE TABLE delta.`{uri}` (a SHORT, b FLOAT, c DECIMAL(6,2), d DATE, s STRUCT<x: BYTE>) "
        "USING delta TBLPROPERTIES ('delta.enableTypeWidening' = 'true', "
        "'delta.feature.timestampNtz' = 'supported')"
    )
    insert = f"INSERT INTO delta.`{uri}` VALUES "
    delta_spark.sql(insert + "(1, 1.5, 12.34, DATE '2020-02-29', named_struct('x', 7Y))")
    for change in (
        "a TYPE BIGINT",
        "b TYPE DOUBLE",
        "c TYPE DECIMAL(12,4)",
        "d TYPE TIMESTAMP_NTZ",
        "s.x TYPE INT",
    ):
        delta_spark.sql(f"ALTER TABLE delta.`{uri}` ALTER COLUMN {change}")
    delta_spark.sql(
        insert + "(5000000000, 2.5D, 12345678.1234, TIMESTAMP_NTZ '2020-01-01 01:02:03', "
        "named_struct('x', 70000))"
    )
    table = DeltaTable(uri)
    assert "typeWidening" in (table.protocol().reader_features or ())
    alike(read_by_delta_spark(delta_spark, uri), table.snapshot().scan().to_arrow())
    pruned = table.snapshot().scan(where="a > 4000000000").to_arrow()
    assert pruned["a"].to_pylist() == [5000000000]


@pytest.mark.parametrize("rows", family([40, 200_000], 40))
def test_deletion_vectors_by_delta_spark_are_read(
    rows: int, delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "deleted")
    delta_spark.sql(
        f"CREATE TABLE delta.`{uri}` (id BIGINT) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    delta_spark.range(0, rows, 1, 1).write.format("delta").mode("append").save(uri)
    delta_spark.sql(f"DELETE FROM delta.`{uri}` WHERE id % 7 = 3")
    snapshot = DeltaTable(uri).snapshot()
    expected = [n for n in range(rows) if n % 7 != 3]
    assert sorted(snapshot.scan().to_arrow()["id"].to_pylist()) == expected
    assert snapshot.num_records == len(expected)
    assert snapshot.scan(where="id >= 20").count() == len([n for n in expected if n >= 20])


def test_tables_with_row_tracking_by_delta_spark_are_read(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "tracked")
    delta_spark.sql(
        f"CREATE TABLE delta.`{uri}` (id BIGINT, v STRING) USING delta "
        "TBLPROPERTIES ('delta.enableRowTracking' = 'true')"
    )
    delta_spark.sql(f"INSERT INTO delta.`{uri}` SELECT id, 'v' FROM range(100)")
    delta_spark.sql(f"UPDATE delta.`{uri}` SET v = 'w' WHERE id < 10")
    alike(read_by_delta_spark(delta_spark, uri), DeltaTable(uri).snapshot().scan().to_arrow())


@pytest.mark.parametrize("policy", family(["classic", "v2"], "v2"))
def test_checkpoints_by_delta_spark_are_read(
    policy: str, delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / policy)
    delta_spark.sql(
        f"CREATE TABLE delta.`{uri}` (id BIGINT, p INT) USING delta PARTITIONED BY (p) "
        f"TBLPROPERTIES ('delta.checkpointPolicy' = '{policy}', 'delta.checkpointInterval' = '2')"
    )
    for _ in range(5):
        delta_spark.sql(f"INSERT INTO delta.`{uri}` SELECT id, cast(id % 3 AS INT) FROM range(30)")
    snapshot = DeltaTable(uri).snapshot()
    assert list(Path(uri, "_delta_log").glob("*.checkpoint*"))
    alike(read_by_delta_spark(delta_spark, uri), snapshot.scan().to_arrow())
    assert snapshot.scan(where="p = 1").count() == 50


@pytest.mark.parametrize("policy", family(["classic", "v2"], "classic"))
def test_delta_spark_reads_a_split_checkpoint_and_follows_it(
    policy: str, delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / policy)
    properties = {
        "delta.checkpointPolicy": policy,
        "delta.enableDeletionVectors": "true",
        "delta.checkpointInterval": "2",
    }
    rows = pa.table({"id": list(range(30)), "p": [n % 3 for n in range(30)]})
    table = DeltaTable.create(uri, rows.schema, partition_by=["p"], properties=properties)
    for _ in range(2):
        table.append(rows)
    table.delete("id = 7")
    now_ms = table.snapshot().timestamp_ms
    write_checkpoint(DeltaTable(uri).snapshot(), now_ms=now_ms, max_actions_per_file=3)
    for commit in Path(uri, "_delta_log").glob("*[0-9].json"):
        if int(commit.name[:20]) < table.version():
            commit.unlink()
    for other in Path(uri, "_delta_log").glob(f"*{table.version() - 1}.checkpoint*"):
        other.unlink()
    ours = DeltaTable(uri).snapshot().scan().to_arrow()
    assert ours.num_rows == 58
    alike(read_by_delta_spark(delta_spark, uri), ours)
    # Its own checkpoint is made from ours.
    delta_spark.read.format("delta").load(uri).write.format("delta").mode("append").save(uri)
    alike(
        read_by_delta_spark(delta_spark, uri),
        DeltaTable(uri).snapshot().scan().to_arrow(),
    )
