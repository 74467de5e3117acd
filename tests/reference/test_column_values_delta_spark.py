"""Generated, default and identity columns: tables of delta-spark written by us, and the reverse."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta import Column, DeltaTable, Identity
from dagster_delta.errors import ConstraintViolation, InvalidArgument, SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.delta_spark

DDL = """CREATE TABLE delta.`{path}` (
    id BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 10 INCREMENT BY -5),
    at TIMESTAMP,
    day DATE GENERATED ALWAYS AS (CAST(at AS DATE)),
    state STRING NOT NULL DEFAULT 'new',
    size INT GENERATED ALWAYS AS (length(state))
) USING delta PARTITIONED BY (day)
TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"""

COLUMNS = (
    Column("id", "BIGINT", identity=Identity(start=10, step=-5)),
    Column("at", "TIMESTAMP"),
    Column("day", "DATE", generated_as="CAST(at AS DATE)"),
    Column("state", "STRING", nullable=False, default="'new'"),
    Column("size", "INT", generated_as="length(state)"),
)

FOLLOWING = tuple((dt.date(2024, 1, 1 + each), "new", 3) for each in range(6))


def frame(spark: SparkSession, *days: int, **columns: str) -> DataFrame:
    return spark.range(0, len(days), 1, max(1, len(days))).selectExpr(
        f"timestampadd(DAY, array({', '.join(map(str, days))})[id] - 1, "
        "TIMESTAMP '2024-01-01 12:00:00') AS at",
        *(f"{sql} AS {name}" for name, sql in columns.items()),
    )


def rows_for(engine: str, spark: SparkSession, *days: int, **columns: str) -> Any:
    found = frame(spark, *days, **columns)
    return found if engine == "spark" else pa.Table.from_pandas(found.toPandas())


def read(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    found = spark.read.format("delta").load(str(path)).orderBy("day", "id").collect()
    return [tuple(each) for each in found]


def check_numbers(rows: list[tuple[Any, ...]], count: int) -> None:
    """Numbers are unique, of the sequence, and each lies beyond all that were given out before."""
    ids = [each[0] for each in rows]
    assert len(set(ids)) == len(ids) == count
    assert all(each <= 10 and each % 5 == 0 for each in ids)


@pytest.mark.parametrize("engine", ["arrow", "spark"])
@pytest.mark.exhaustive
def test_we_write_the_table_of_delta_spark_and_it_goes_on(
    delta_spark: SparkSession, tmp_path: Path, engine: str
) -> None:
    path, spark = tmp_path / "t", delta_spark
    spark.sql(DDL.format(path=path))
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT known CHECK (id <= 10 AND size < 10)")
    frame(spark, 1).write.format("delta").mode("append").save(str(path))
    table = DeltaTable(path)
    table.append(rows_for(engine, spark, 2, 3))
    first = {each[0] for each in read(spark, path)}
    frame(spark, 4, 5).write.format("delta").mode("append").save(str(path))
    then = {each[0] for each in read(spark, path)} - first
    assert max(then) < min(first)
    table.overwrite(rows_for(engine, spark, 6), where="day = DATE '2024-01-06'")
    rows = read(spark, path)
    check_numbers(rows, 6)
    assert min(each[0] for each in rows) == rows[-1][0]
    assert tuple(each[2:] for each in rows) == FOLLOWING
    with pytest.raises(ConstraintViolation, match="GENERATED day"):
        table.append(rows_for(engine, spark, 7, day="DATE '2020-01-01'"))
    with pytest.raises(ConstraintViolation, match="known"):
        table.append(rows_for(engine, spark, 7, state="'much too long'"))
    with pytest.raises(SchemaMismatch, match="GENERATED ALWAYS"):
        table.append(rows_for(engine, spark, 7, id="1L"))
    assert len(read(spark, path)) == 6


def test_delta_spark_writes_the_table_of_ours_and_we_go_on(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    path, spark = tmp_path / "t", delta_spark
    properties = {"delta.constraints.known": "id <= 10 AND size < 10"}
    table = DeltaTable.create(path, COLUMNS, partition_by=["day"], properties=properties)
    table.append(rows_for("spark", spark, 1))
    table.append(rows_for("arrow", spark, 2))
    spark.sql(f"INSERT INTO delta.`{path}` (at) VALUES (TIMESTAMP '2024-01-03 01:00:00')")
    frame(spark, 4, 5).write.format("delta").mode("append").save(str(path))
    table.append(rows_for("arrow", spark, 6))
    rows = read(spark, path)
    check_numbers(rows, 6)
    assert min(each[0] for each in rows) == rows[-1][0]
    assert tuple(each[2:] for each in rows) == FOLLOWING
    for wrong in ("day = DATE '2020-01-01'", "state = 'much too long'"):
        with pytest.raises(Exception, match=r"(?i)generated|known"):
            spark.sql(f"UPDATE delta.`{path}` SET {wrong}")
    spark.sql(f"UPDATE delta.`{path}` SET state = 'done' WHERE id = 10")
    table.refresh()
    assert table.snapshot().scan(["size"], where="id = 10").to_arrow()["size"].to_pylist() == [4]


@pytest.mark.exhaustive
def test_an_update_and_a_merge_leave_what_those_of_delta_spark_leave(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    ours, theirs, spark = tmp_path / "ours", tmp_path / "theirs", delta_spark
    spark.sql(DDL.format(path=ours))
    frame(spark, 1, 2, 3).coalesce(1).write.format("delta").mode("append").save(str(ours))
    shutil.copytree(ours, theirs)
    source = frame(spark, 3, 4, state="'sent'")
    source.createOrReplaceTempView("sent")
    for statement in (
        "UPDATE delta.`{path}` SET at = TIMESTAMP '2024-02-01 00:00:00' WHERE day = '2024-01-01'",
        "UPDATE delta.`{path}` SET state = 'paid' WHERE day = '2024-01-02'",
        "MERGE INTO delta.`{path}` t USING sent s ON t.at = s.at "
        "WHEN MATCHED THEN UPDATE SET state = s.state "
        "WHEN NOT MATCHED THEN INSERT (at) VALUES (s.at)",
    ):
        spark.sql(statement.format(path=theirs))
    table = DeltaTable(ours)
    table.update({"at": "TIMESTAMP '2024-02-01 00:00:00'"}, "day = DATE '2024-01-01'")
    table.update({"state": "'paid'"}, "day = DATE '2024-01-02'")
    (
        table.merge(pa.Table.from_pandas(source.toPandas()), "t.at = s.at")
        .when_matched_update({"state": "s.state"})
        .when_not_matched_insert({"at": "s.at"})
        .execute()
    )
    mine = read(spark, ours)
    assert [each[1:] for each in mine] == [each[1:] for each in read(spark, theirs)]
    check_numbers(mine, 4)


@pytest.mark.exhaustive
def test_tasks_number_rows_without_meeting_or_passing_the_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = (Column("id", "BIGINT", identity=Identity(start=3, step=7)), Column("a", "BIGINT"))
    table = DeltaTable.create(tmp_path / "t", columns)
    halves = spark.range(0, 900, 1, 5).union(spark.range(900, 1000, 1, 4)).selectExpr("id AS a")
    table.append(halves)
    table.append(halves.repartition(3))
    found = table.snapshot().scan().to_arrow()
    ids = found["id"].to_pylist()
    assert len(set(ids)) == len(ids) == 2000
    assert sorted(found["a"].to_pylist()) == sorted([*range(1000), *range(1000)])
    assert all(each >= 3 and each % 7 == 3 for each in ids)
    assert table.schema().field("id").metadata["delta.identity.highWaterMark"] == max(ids)
    near = (Column("id", "BIGINT", identity=Identity(start=2**63 - 9)), Column("a", "BIGINT"))
    table = DeltaTable.create(tmp_path / "near", near)
    with pytest.raises(InvalidArgument, match="64-bit"):
        table.append(halves)
    assert table.version() == 0


@pytest.mark.exhaustive
def test_what_only_spark_computes_is_computed_by_spark(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    columns = (
        Column("name", "STRING"),
        Column("sound", "STRING", generated_as="soundex(name)"),
        Column("tags", "ARRAY<STRING>", default="array('a', 'b')"),
        Column("at", "TIMESTAMP", nullable=False, default="current_timestamp()"),
    )
    table = DeltaTable.create(tmp_path / "t", columns, partition_by=["sound"])
    names = delta_spark.createDataFrame([("Robert",), ("Ann",)], "name string")
    table.append(names)
    with pytest.raises(ConstraintViolation, match="GENERATED sound"):
        table.append(names.selectExpr("name", "'x' AS sound"))
    names.write.format("delta").mode("append").save(str(tmp_path / "t"))
    found = delta_spark.read.format("delta").load(str(tmp_path / "t")).drop("at").collect()
    assert sorted(map(tuple, found)) == sorted(
        [("Robert", "R163", ["a", "b"]), ("Ann", "A500", ["a", "b"])] * 2
    )


@pytest.mark.exhaustive
def test_the_keyword_default_means_what_it_means_to_delta_spark(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    theirs, spark = tmp_path / "theirs", delta_spark
    spark.sql(
        f"CREATE TABLE delta.`{theirs}` (id BIGINT, state STRING DEFAULT 'new', n INT) USING delta "
        "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"
    )
    spark.sql(f"INSERT INTO delta.`{theirs}` VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    copies = {engine: tmp_path / engine for engine in ("arrow", "spark")}
    for each in copies.values():
        shutil.copytree(theirs, each)
    source = spark.sql("SELECT id FROM range(2, 6)")
    source.createOrReplaceTempView("few")
    spark.sql(f"UPDATE delta.`{theirs}` SET state = DEFAULT, n = default WHERE id < 2")
    spark.sql(
        # It knows the keyword in UPDATE alone, so that a MERGE has to say what it stands for.
        f"MERGE INTO delta.`{theirs}` t USING few s ON t.id = s.id "
        "WHEN MATCHED AND s.id = 2 THEN UPDATE SET t.state = 'new', t.n = NULL "
        "WHEN NOT MATCHED THEN INSERT (id, state, n) VALUES (s.id, 'new', NULL)"
    )

    def read_sorted(path: Path) -> list[Any]:
        return sorted(map(tuple, spark.read.format("delta").load(str(path)).collect()))

    expected = read_sorted(theirs)
    assert expected[:3] == [(1, "new", None), (2, "new", None), (3, "c", 3)]
    for engine, path in copies.items():
        table = DeltaTable(path)
        table.update({"state": "DEFAULT", "n": " default "}, "id < 2", engine=engine)
        merge = table.merge(source if engine == "spark" else source.toArrow(), "t.id = s.id")
        merge.when_matched_update({"t.state": "DEFAULT", "n": "DEFAULT"}, "s.id = 2")
        merge.when_not_matched_insert({"id": "s.id", "state": "DEFAULT", "n": "DEFAULT"})
        merge.execute()
        assert read_sorted(path) == expected
