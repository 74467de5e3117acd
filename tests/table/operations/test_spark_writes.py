"""Spark DataFrames through the same calls: executors write, the driver commits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta import Column
from dagster_delta.errors import ConstraintViolation
from dagster_delta.table.delta_table import DeltaTable
from tests.table_rows import ids_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> DeltaTable:
    """Ids 0 to 9, in partitions by parity, created by a DataFrame."""
    created = DeltaTable(tmp_path / "t", must_exist=False)
    frame = spark.range(10).selectExpr("id", "id % 2 AS p", "1 AS one")
    assert created.append(frame, partition_by=["p"]).version == 0
    return created


def test_a_predicate_means_what_it_means_in_the_time_zone_of_the_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC"
    table = DeltaTable(tmp_path / "t", must_exist=False)
    hours = [1_700_000_000 + 3600 * hour for hour in range(4)]
    stamps = pa.array([second * 1_000_000 for second in hours], pa.timestamp("us", "UTC"))
    table.append(pa.table({"id": [0, 1, 2, 3], "at": stamps}), partition_by=["at"])
    try:
        # 22:13:20 UTC is 14:13:20 in Los Angeles, where this predicate takes the last two hours.
        spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
        frame = spark.range(9, 10).selectExpr("id", "timestamp_seconds(1700007200) AS at")
        table.overwrite(frame, where="at >= TIMESTAMP '2023-11-14 16:13:20'")
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert ids_of(table) == [0, 1, 9]


@pytest.mark.parametrize("mode", ["none", "name", "id"])
def test_a_filter_finds_nan_in_files_whose_footers_leave_it_out(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    columns = [Column("id", "INT"), Column("f", "FLOAT"), Column("s", "STRUCT<d: DOUBLE>")]
    properties = {"delta.columnMapping.mode": mode}
    table = DeltaTable.create(tmp_path / "t", columns, properties=properties)
    values = [1.0, float("nan")]
    floats = pa.array(values, pa.float32())
    structs = pa.array([{"d": each} for each in values])
    table.append(pa.table({"id": pa.array([1, 2], pa.int32()), "f": floats, "s": structs}))
    # NaN is greater than every other number.
    for where in ("f > 100", "s.d > 100", "isnan(f)", "f = CAST('NaN' AS FLOAT)"):
        found = table.snapshot().scan(columns=["id"], where=where).to_spark(spark)
        assert [row.id for row in found.collect()] == [2]
        whole = table.snapshot().scan().to_spark(spark).where(where)
        assert [row.id for row in whole.collect()] == [2]
    table.delete("f > 100", engine="spark")
    assert ids_of(table) == [1]


def test_values_are_cast_in_the_time_zone_of_the_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC"
    at = "TIMESTAMP '2024-01-15 22:00:00'"
    columns = {
        "day_at": ("TIMESTAMP", "DATE '2024-01-15'"),
        "local_at": ("TIMESTAMP", "TIMESTAMP_NTZ '2024-01-15 22:00:00'"),
        "day": ("DATE", at),
        "local": ("TIMESTAMP_NTZ", at),
        "text": ("STRING", at),
        "days": ("ARRAY<STRUCT<day: DATE>>", f"array(named_struct('day', {at}))"),
        "by_day": ("MAP<DATE, STRING>", f"map({at}, {at})"),
    }
    schema = [Column(name, data_type) for name, (data_type, _) in columns.items()]
    generated = Column("first_day", "DATE", generated_as="CAST(day_at AS DATE)")
    appended = DeltaTable.create(tmp_path / "appended", [*schema, generated])
    merged = DeltaTable.create(tmp_path / "merged", [*schema, generated])
    try:
        # 22:00 in New York is 03:00 UTC of the next day.
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        values = [f"{value} AS {name}" for name, (_, value) in columns.items()]
        frame = spark.sql(f"SELECT {', '.join(values)}")
        appended.append(frame, schema_mode="merge")
        # Strict merges refuse times in dates, as strict appends do.
        merge = merged.merge(frame, "t.day = s.day", schema_mode="merge")
        merge.when_not_matched_insert_all().execute()
        cast = [f"CAST({value} AS {data_type})" for data_type, value in columns.values()]
        stored = appended.snapshot().scan().to_spark(spark)
        kept = ["text", "day", "first_day", *columns]
        expected = spark.sql(
            f"SELECT '2024-01-15 22:00:00', DATE '2024-01-15', DATE '2024-01-15', {', '.join(cast)}"
        )
        assert stored.select(*kept).collect() == expected.collect()
        assert merged.snapshot().scan().to_spark(spark).collect() == stored.collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.parametrize("engine", [None, "arrow", "spark"])
def test_every_statement_is_in_the_time_zone_of_the_session(
    spark: SparkSession, tmp_path: Path, engine: Any
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC"
    columns = [
        Column("id", "BIGINT"),
        Column("at", "TIMESTAMP"),
        Column("day", "DATE", generated_as="CAST(at AS DATE)"),
        Column("opens", "TIMESTAMP", default="TIMESTAMP '2024-01-15 08:00:00'"),
    ]
    table = DeltaTable.create(tmp_path / "t", columns, partition_by=["day"])
    # 22:00, 23:00, 00:00 and so on of 15 January in New York
    stamps = [f"2024-01-16T{hour:02}:00Z" for hour in range(3, 9)]
    rows = pa.table({"id": range(6), "at": pa.array(stamps).cast(pa.timestamp("us", "UTC"))})
    whole = {"engine": engine}
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        data = spark.createDataFrame(rows) if engine == "spark" else rows
        table.append(data)
        stored = [f"cast({name} AS STRING) {name}" for name in ("at", "day", "opens")]

        def found(where: str) -> list[tuple[object, ...]]:
            scan = table.snapshot().scan(where=where)
            frame = scan.to_spark(spark)
            assert sorted(scan.to_arrow()["id"].to_pylist()) == ids_of_frame(frame)
            assert scan.count() == frame.count()
            return sorted(map(tuple, frame.selectExpr("id", *stored).collect()))

        def ids_of_frame(frame: Any) -> list[int]:
            return sorted(row.id for row in frame.collect())

        assert (
            found("at < '2024-01-16 00:00:00'")
            == found("hour(at) >= 22")
            == [
                (0, "2024-01-15 22:00:00", "2024-01-15", "2024-01-15 08:00:00"),
                (1, "2024-01-15 23:00:00", "2024-01-15", "2024-01-15 08:00:00"),
            ]
        )
        table.alter("ADD CONSTRAINT january CHECK (at >= '2024-01-15 22:00:00')")
        with pytest.raises(ConstraintViolation):
            table.update({"at": "DATE '2024-01-15'"}, "id = 1", **whole)
        table.update(
            {"at": "DATE '2024-01-16'", "opens": "date_trunc('DAY', at)"}, "id = 0", **whole
        )
        table.delete("to_date(at) = '2024-01-15'", **whole)
        source = pa.table({"id": [3, 9]})
        merge = table.merge(source, "t.id = s.id", **whole)
        merge.when_matched_update({"opens": "CAST(t.at + INTERVAL 1 DAY AS DATE)"})
        merge.when_not_matched_insert({"id": "s.id", "at": "'2024-01-16 23:30:00'"})
        merge.when_not_matched_by_source_delete("t.at >= TIMESTAMP '2024-01-16 03:00:00'").execute()
        assert found("true") == [
            (0, "2024-01-16 00:00:00", "2024-01-16", "2024-01-15 00:00:00"),
            (2, "2024-01-16 00:00:00", "2024-01-16", "2024-01-15 08:00:00"),
            (3, "2024-01-16 01:00:00", "2024-01-16", "2024-01-17 00:00:00"),
            (4, "2024-01-16 02:00:00", "2024-01-16", "2024-01-15 08:00:00"),
            (9, "2024-01-16 23:30:00", "2024-01-16", "2024-01-15 08:00:00"),
        ]
        nothing = spark.createDataFrame(rows).limit(0) if engine == "spark" else rows[:0]
        table.overwrite(nothing, where="at < '2024-01-16 01:00:00'")
        assert [id_ for id_, *_ in found("true")] == [3, 4, 9]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_a_filter_on_a_base_column_skips_partitions_for_spark_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = [
        Column("at", "TIMESTAMP"),
        Column("day", "DATE", generated_as="CAST(at AS DATE)"),
    ]
    table = DeltaTable.create(tmp_path / "days", columns, partition_by=["day"])
    days = spark.range(30).selectExpr(
        "timestampadd(DAY, id, TIMESTAMP '2024-01-01 12:00:00') AS at"
    )
    table.append(days)
    scan = table.snapshot().scan(where="at > TIMESTAMP '2024-01-28 00:00:00Z'")
    assert len(scan.to_spark(spark).inputFiles()) <= 5
    assert scan.to_spark(spark).count() == 3


VALUES = pa.table(
    {
        "id": pa.array([1, 2, None], pa.int32()),
        "s": ["a", None, "b"],
        "at": pa.array([0, None, 1], pa.timestamp("us", "UTC")),
        "local": pa.array([0, None, 1], pa.timestamp("us")),
        "d": pa.array([None, 1, 2], pa.decimal128(9, 2)),
        "n": [{"x": 1, "l": [1, 2]}, None, {"x": None, "l": None}],
    }
)


@pytest.mark.parametrize("form", ["table", "reader", "pandas", "polars"])
def test_rows_in_memory_are_written_by_spark_where_that_is_asked_for(
    form: str, spark: SparkSession, tmp_path: Path
) -> None:
    data: Any = VALUES
    if form == "reader":
        data = VALUES.to_reader(max_chunksize=1)
    elif form == "pandas":
        data = VALUES.select(["s", "at"]).to_pandas()
    elif form == "polars":
        data = pytest.importorskip("polars").from_arrow(VALUES)
    table = DeltaTable(tmp_path / "t", must_exist=False)
    table.append(data, engine="spark")
    found = table.snapshot().scan().to_arrow().to_pylist()
    columns = ["s", "at"] if form == "pandas" else VALUES.column_names
    assert sorted(found, key=repr) == sorted(VALUES.select(columns).to_pylist(), key=repr)
    table.overwrite(VALUES.slice(0, 1).select(columns), where="s = 'a'", engine="spark")
    assert len(table.snapshot().scan().to_arrow()) == 3
