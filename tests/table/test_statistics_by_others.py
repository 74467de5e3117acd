"""Filters find every row of files whose statistics other writers wrote in their own way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.engines.spark.log.planner import MAX_DRIVER_FILES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLLECTIONS = pa.table(
    {
        "value": [5, 6, 7],
        "key": ["a", None, None],
        "item": [None, 1, None],
        "m": pa.array([[("a", None), ("b", None)], [("c", 1)], []], pa.map_("string", "int64")),
        "a": [[None, None, None], [1], []],
    }
)
# As deltalake 1.2 writes it: the values of `m` are all counted as nulls of `value`.
OF_COLLECTIONS = {
    "numRecords": 3,
    "minValues": {"value": 5, "key": "a", "item": 1},
    "maxValues": {"value": 7, "key": "a", "item": 1},
    "nullCount": {"value": 3, "key": 0, "item": 3},
}


def with_statistics(path: Path, rows: pa.Table, statistics: dict[str, Any]) -> DeltaTable:
    """A table of one file that has these statistics in the log."""
    table = DeltaTable(str(path), must_exist=False)
    table.append(rows)
    log = path / "_delta_log"
    commit = log / f"{0:020}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["stats"] = json.dumps(statistics)
    for known in log.iterdir():
        known.unlink()
    commit.write_text("\n".join(map(json.dumps, actions)))
    return DeltaTable(str(path))


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("value = 6", 1),
        ("value IS NOT NULL", 3),
        ("key IS NULL", 2),
        ("NOT key <=> 'a'", 2),
        ("item > 0", 1),
    ],
)
def test_null_counts_of_collections_are_not_those_of_a_column(
    tmp_path: Path, where: str, count: int
) -> None:
    table = with_statistics(tmp_path, COLLECTIONS, OF_COLLECTIONS)
    assert table.snapshot().scan(where=where).to_arrow().num_rows == count
    table.checkpoint()
    assert DeltaTable(table.uri).snapshot().scan(where=where).to_arrow().num_rows == count


def test_a_delete_keeps_the_rows_that_null_counts_of_a_map_hide(tmp_path: Path) -> None:
    table = with_statistics(tmp_path, COLLECTIONS, OF_COLLECTIONS)
    table.delete("key >= 'a'")
    assert table.snapshot().scan(["value"]).to_arrow()["value"].to_pylist() == [6, 7]


@pytest.mark.parametrize("has_parsed", [True, False], ids=["parsed", "json"])
def test_spark_finds_rows_in_spite_of_null_counts_of_collections(
    tmp_path: Path, spark: SparkSession, has_parsed: bool
) -> None:
    table = with_statistics(tmp_path, COLLECTIONS, OF_COLLECTIONS)
    table.set_properties({"delta.checkpoint.writeStatsAsStruct": str(has_parsed).lower()})
    table.checkpoint()
    spark.conf.set(MAX_DRIVER_FILES, "0")
    try:
        scan = DeltaTable(table.uri).snapshot().scan(["value"], where="key IS NULL AND value > 6")
        assert scan.to_spark(spark).toArrow()["value"].to_pylist() == [7]
    finally:
        spark.conf.unset(MAX_DRIVER_FILES)
