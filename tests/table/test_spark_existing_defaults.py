"""Columns whose default existing rows take when Spark reads them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta.engines.spark import defaulted_files, reader
from dagster_delta.table.delta_table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int32()),
        "p": ["a", "a", "b", None],
        "s": pa.array([{"a": 1}, None, {"a": None}, {"a": 4}], pa.struct([("a", pa.int32())])),
    }
)
LATER = pa.table(
    {
        "id": pa.array([5, 6], pa.int32()),
        "p": ["a", "b"],
        "s": pa.array(
            [{"a": 5, "x": None}, {"a": 6, "x": 6}],
            pa.struct([("a", pa.int32()), ("x", pa.int32())]),
        ),
        "c": pa.array([None, 9], pa.int32()),
    }
)
FILTERS = ["c > 7", "c IS NULL OR c + id > 9", "s.x = 5 AND p = 'a'"]


def both(table: DeltaTable, spark: SparkSession, where: str | None = None) -> list[dict[str, Any]]:
    """The rows as both engines read them."""
    scan = table.snapshot().scan(where=where)
    ours = sorted(scan.to_arrow().to_pylist(), key=repr)
    found = sorted(scan.to_spark(spark).toArrow().to_pylist(), key=repr)
    assert found == ours
    return ours


def lazy_table(uri: str, **properties: str) -> DeltaTable:
    table = DeltaTable.create(uri, ROWS.schema, partition_by=["p"], properties=properties)
    table.append(ROWS)
    table.alter("ADD COLUMN c INT DEFAULT 7, ADD COLUMN s.x INT DEFAULT 5", existing_rows="lazy")
    table.append(LATER)
    return table


def test_no_filter_skips_a_file_wrongly(spark: SparkSession, tmp_path: Path) -> None:
    table = lazy_table(str(tmp_path))
    assert [row["c"] for row in both(table, spark)] == [7, 7, 7, 7, None, 9]
    for where in FILTERS:
        both(table, spark, where)


def test_both_engines_read_the_default_through_all_that_is_done(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = lazy_table(
        str(tmp_path),
        **{
            "delta.columnMapping.mode": "name",
            "delta.enableDeletionVectors": "true",
            "delta.enableTypeWidening": "true",
        },
    )
    table.delete("id = 1", engine="spark")
    table.update(set={"c": "c * 2"}, where="s.x = 5 AND id = 3", engine="spark")
    table.widen_column("c", "BIGINT")
    source = spark.createDataFrame([(2, 70), (20, 80)], "k int, v bigint")
    merge = table.merge(source, on="t.id = s.k", engine="spark")
    merge.when_matched_update({"c": "t.c + s.v"}).when_not_matched_insert(
        {"id": "s.k", "c": "s.v"}
    ).execute()
    before = both(table, spark)
    assert {row["id"]: row["c"] for row in before} == {2: 77, 3: 14, 4: 7, 5: None, 6: 9, 20: 80}
    table.materialize_defaults(engine="spark")
    assert both(table, spark) == before
    assert table.materialize_defaults().skipped


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


def test_spark_reads_files_by_itself_where_it_is_known_what_they_lack(
    spark: SparkSession, tmp_path: Path, by_arrow: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = DeltaTable.create(str(tmp_path), ROWS.schema)
    table.append(ROWS)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    table.append(LATER.select(["id", "p", "c"]))
    table.add_column("d", "TIMESTAMP", default="TIMESTAMP '2013-01-02'", existing_rows="lazy")
    table.append(LATER.select(["id", "p", "c"]))
    assert len(both(table, spark)) == 8
    assert both(table, spark, "c = 7 AND d < '2020-01-01'")
    assert by_arrow == []
    monkeypatch.setattr(defaulted_files, "MAX_FOOTERS", 1)
    assert table.snapshot().scan(columns=["id"]).to_spark(spark).count() == 8
    assert by_arrow == []
    assert len(both(table, spark)) == 8
    assert by_arrow == [2]
    table.optimize()
    assert len(both(table, spark)) == 8
    assert by_arrow == [2]


def test_spark_shows_the_default_across_a_change_feed(spark: SparkSession, tmp_path: Path) -> None:
    properties = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"}
    table = DeltaTable.create(str(tmp_path), ROWS.schema, properties=properties)
    table.append(ROWS)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    start = table.version() + 1
    table.delete("id = 4")
    table.update(set={"id": "id + 10"}, where="id = 1")
    table.materialize_defaults()
    feed = table.changes(starting_version=start)
    ours = sorted((row["_change_type"], row["id"], row["c"]) for row in feed.to_arrow().to_pylist())
    found = sorted((row["_change_type"], row.id, row.c) for row in feed.to_spark(spark).collect())
    assert found == ours
    assert {row[2] for row in found} == {7}
