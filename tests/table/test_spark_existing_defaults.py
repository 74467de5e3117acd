"""Columns whose default existing rows take when Spark reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta.engines.spark.read import reader
from dagster_delta.table.delta_table import DeltaTable
from tests.sample_tables import DEFAULTED, UNDEFAULTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILTERS = ["c > 7", "c IS NULL OR c + id > 9", "s.x = 5 AND p = 'a'"]


def both(table: DeltaTable, spark: SparkSession, where: str | None = None) -> list[dict[str, Any]]:
    """The rows as both engines read them."""
    scan = table.snapshot().scan(where=where)
    ours = sorted(scan.to_arrow().to_pylist(), key=repr)
    found = sorted(scan.to_spark(spark).toArrow().to_pylist(), key=repr)
    assert found == ours
    return ours


@pytest.fixture
def by_arrow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files each read left to the Arrow engine, where it left any."""
    counts: list[int] = []
    read_by_arrow = reader._FrameReader._read_by_arrow

    def note(self: Any, files: Any) -> Any:
        counts.append(files.num_rows)
        return read_by_arrow(self, files)

    monkeypatch.setattr(reader._FrameReader, "_read_by_arrow", note)
    return counts


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with settings of its own; after the test, the shared one is active again."""
    yield spark.newSession()
    spark.createDataFrame([], "id int")


def test_spark_reads_files_by_itself_where_it_is_known_what_they_lack(
    spark: SparkSession, tmp_path: Path, by_arrow: list[int]
) -> None:
    table = DeltaTable.create(str(tmp_path), UNDEFAULTED.schema)
    table.append(UNDEFAULTED)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    table.append(DEFAULTED.select(["id", "p", "c"]))
    table.add_column("d", "TIMESTAMP", default="TIMESTAMP '2013-01-02'", existing_rows="lazy")
    table.append(DEFAULTED.select(["id", "p", "c"]))
    assert len(both(table, spark)) == 8
    assert both(table, spark, "c = 7 AND d < '2020-01-01'")
    assert by_arrow == []
    table.optimize()
    assert len(both(table, spark)) == 8
    assert by_arrow == []


def test_the_executors_read_a_column_that_is_added_inside_a_struct(
    spark: SparkSession, tmp_path: Path, by_arrow: list[int]
) -> None:
    table = DeltaTable.create(str(tmp_path), UNDEFAULTED.schema)
    table.append(UNDEFAULTED)
    table.alter("ALTER TABLE t ADD COLUMN s.x INT DEFAULT 5", existing_rows="lazy")
    assert [row["s"] for row in both(table, spark, "id = 1")] == [{"a": 1, "x": 5}]
    assert by_arrow == [1]


DEFAULTS = {
    "BOOLEAN": "true",
    "TINYINT": "CAST(-7 AS TINYINT)",
    "BIGINT": "9223372036854775807L",
    "FLOAT": "CAST(0.1 AS FLOAT)",
    "DOUBLE": "1e-7D",
    "DECIMAL(5,2)": "CAST(-1.5 AS DECIMAL(5,2))",
    "DECIMAL(18,4)": "CAST(-12345678901234.5678 AS DECIMAL(18,4))",
    "STRING": "r'it\\s \"a\" text ✈'",
    "DATE": "DATE '1899-12-31'",
    "TIMESTAMP": "TIMESTAMP '2024-03-31 01:30:00.000001Z'",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ '2024-03-31 02:30:00.000001'",
}
NOT_BY_SPARK = {
    "DECIMAL(38,10)": "CAST(-12345678901234567890.0123456789 AS DECIMAL(38,10))",
    "BINARY": "X'00FF27'",
}


@pytest.mark.classic("the session has settings of its own")
@pytest.mark.parametrize("is_filled", [True, False])
def test_a_default_of_any_type_is_the_same_in_any_session(
    spark: SparkSession, session: SparkSession, tmp_path: Path, by_arrow: list[int], is_filled: bool
) -> None:
    table = DeltaTable.create(str(tmp_path), UNDEFAULTED.schema)
    table.append(UNDEFAULTED)
    defaults = DEFAULTS if is_filled else NOT_BY_SPARK
    for number, (kind, default) in enumerate(defaults.items()):
        table.add_column(f"c{number}", kind, default=default, existing_rows="lazy")
    for name, value in {
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.parser.escapedStringLiterals": "true",
    }.items():
        session.conf.set(name, value)
    for read_by in (spark, session):
        (row, *_) = both(table, read_by)
        assert None not in [row[f"c{number}"] for number in range(len(defaults))]
    assert by_arrow == ([] if is_filled else [1, 1])


@pytest.mark.classic("the session has settings of its own")
@pytest.mark.parametrize("by_columns", ["true", "false"])
def test_a_null_stays_null_whichever_reader_of_spark_is_used(
    session: SparkSession, tmp_path: Path, by_arrow: list[int], by_columns: str
) -> None:
    table = DeltaTable.create(str(tmp_path), UNDEFAULTED.schema)
    table.append(UNDEFAULTED)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    table.append(
        DEFAULTED.select(["id", "p"]).append_column("c", pa.nulls(len(DEFAULTED), pa.int32()))
    )
    session.conf.set("spark.sql.parquet.enableVectorizedReader", by_columns)
    rows = both(table, session)
    assert [row["c"] for row in rows].count(None) == len(DEFAULTED)
    assert by_arrow == []
