"""Filters that compute with partition columns read only the partitions that match."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = [
    {"id": 0, "part": "a", "day": dt.date(2023, 5, 1)},
    {"id": 1, "part": "b", "day": dt.date(2024, 5, 1)},
    {"id": 2, "part": "b", "day": dt.date(2024, 6, 1)},
    {"id": 3, "part": "12", "day": dt.date(2022, 6, 1)},
    {"id": 4, "part": None, "day": dt.date(2024, 6, 2)},
    {"id": 5, "part": "B", "day": None},
]
SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("day", pa.date32())])

FILTERS: list[tuple[str, set[int], int]] = [
    ("upper(part) = 'B'", {1, 2, 5}, 3),
    ("year(day) = 2024", {1, 2, 4}, 3),
    ("NOT (year(day) = 2024)", {0, 3}, 2),
    ("upper(part) = 'B' AND year(day) = 2024", {1, 2}, 2),
    ("upper(part) = 'B' OR id = 0", {0, 1, 2, 5}, 4),
    ("concat(part, cast(year(day) AS string)) = 'a2023'", {0}, 1),
    ("coalesce(part, 'none') = 'none'", {4}, 1),
    ("length(part) > 1 OR month(day) IS NULL", {3, 5}, 2),
    ("upper(part) = cast(id AS string)", set(), 5),
    ("rand() < 2 AND upper(part) = 'A'", {0}, 1),
]
"""Filters, the rows that satisfy them, and how many of the six files are opened."""


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path, must_exist=False)
    table.append(pa.Table.from_pylist(ROWS, SCHEMA), partition_by=["part", "day"])
    return table


@pytest.mark.parametrize(("where", "ids", "num_files"), FILTERS, ids=[each[0] for each in FILTERS])
def test_only_partitions_that_match_are_opened(
    table: DeltaTable, where: str, ids: set[int], num_files: int
) -> None:
    scan = table.snapshot().scan(where=where)
    assert scan.num_files == num_files
    if "rand" not in where:
        assert set(scan.to_arrow()["id"].to_pylist()) == ids


def test_a_condition_that_fails_on_a_partition_skips_only_nulls(table: DeltaTable) -> None:
    scan = table.snapshot().scan(where="part = '12' AND cast(part AS int) + 1 = 13")
    assert scan.to_arrow()["id"].to_pylist() == [3]
    assert table.snapshot().scan(where="cast(part AS int) + 1 = 13").num_files == 5


@pytest.mark.parametrize("engine", ["arrow", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_merge_opens_only_partitions_that_its_condition_allows(
    table: DeltaTable, engine: Literal["arrow", "spark"], request: pytest.FixtureRequest
) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    for partition in ("part=a", "part=12", "part=__HIVE_DEFAULT_PARTITION__"):
        shutil.rmtree(Path(table.uri, partition))
    source = pa.table({"id": [0, 1], "day": [None, dt.date(2000, 1, 1)]})
    merge = table.merge(source, "upper(t.part) = 'B' AND t.id = s.id", engine=engine)
    merge = merge.when_matched_update({"day": "s.day"})
    by_source = merge.when_not_matched_by_source_delete(
        "length(t.part) = 1 AND upper(t.part) = 'B'"
    )
    result = by_source.execute()
    assert result.metrics["numTargetRowsUpdated"] == 1
    assert result.metrics["numTargetRowsDeleted"] == 2


def test_a_delete_by_a_computed_condition_removes_whole_partitions(table: DeltaTable) -> None:
    metrics = table.delete("upper(part) = 'B' AND year(day) = 2024").metrics
    assert metrics["numRemovedFiles"] == 2
    assert set(table.snapshot().scan().to_arrow()["id"].to_pylist()) == {0, 3, 4, 5}


@pytest.mark.spark
def test_spark_opens_the_same_files(table: DeltaTable, spark: SparkSession) -> None:
    for where, ids, num_files in FILTERS[:-1]:
        frame = table.snapshot().scan(where=where).to_spark(spark)
        assert {row.id for row in frame.collect()} == ids
        assert len(frame.inputFiles()) <= num_files


@pytest.mark.spark
def test_spark_adds_months_in_the_time_zone_of_its_session(
    tmp_path: Path, spark: SparkSession
) -> None:
    # In New York the first is the evening of 29 February, a month before the evening of 29 March.
    moments = [
        dt.datetime(2024, 3, 1, 2, tzinfo=dt.UTC),
        dt.datetime(2024, 2, 29, 2, tzinfo=dt.UTC),
    ]
    data = pa.table({"id": [0, 1], "at": pa.array(moments, pa.timestamp("us", "UTC"))})
    table = DeltaTable(tmp_path, must_exist=False)
    table.append(data.append_column("part", data["at"]), partition_by=["part"])
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for column in ("part", "at"):
            for where in (
                f"{column} = TIMESTAMP '2024-03-30 01:00:00Z' - INTERVAL 1 MONTH",
                f"{column} + INTERVAL 1 MONTH = TIMESTAMP '2024-03-30 01:00:00Z'",
            ):
                expected = table.snapshot().scan().to_spark(spark).where(where).collect()
                found = table.snapshot().scan(where=where).to_spark(spark).collect()
                assert [row.id for row in found] == [row.id for row in expected] == [0]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
