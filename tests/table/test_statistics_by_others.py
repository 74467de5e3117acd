"""Filters find every row of files whose statistics other writers wrote in their own way."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.engines.spark.engine import MAX_DRIVER_FILES

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


def bounds_of(name: str, minimum: object, maximum: object) -> dict[str, Any]:
    return {
        "numRecords": 1,
        "minValues": {name: minimum},
        "maxValues": {name: maximum},
        "nullCount": {name: 0},
    }


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


def as_text_of_delta_1(text: str) -> str:
    """A maximum of at least 33 UTF-16 units, as Delta Lake 1.0 and Spark RAPIDS write it."""
    kept = text.encode("utf-16-le")[:64].decode("utf-16-le", "surrogatepass")
    return kept.encode("utf-8", "replace").decode() + "\ufffd"


TEXTS = ["\U0001f600" * 40, "a" + "\U0001f600" * 40, "\u00e9" * 40, "\U0001f600?" * 17]


@pytest.mark.parametrize("text", TEXTS, ids=["even", "odd", "accents", "mixed"])
def test_texts_are_found_that_are_truncated_within_a_character(tmp_path: Path, text: str) -> None:
    least = text[:5]
    statistics = bounds_of("c", least, as_text_of_delta_1(text))
    table = with_statistics(tmp_path, pa.table({"c": [text]}), statistics)
    for where in (f"c = '{text}'", f"c > '{text[:-1]}'", f"startswith(c, '{text[:30]}')"):
        assert table.snapshot().scan(where=where).to_arrow().num_rows == 1, where


# The offsets from UTC have seconds, here in Monrovia and in Calcutta, and Spark 3 drops them.
EARLY = [
    ("1960-06-01 12:00:30.123456", "1960-06-01T11:16:00.123-00:44"),
    ("1800-06-01 12:00:30.123456", "1800-06-01T17:53:58.123+05:53"),
]


@pytest.mark.parametrize(("moment", "bound"), EARLY)
def test_times_are_found_whose_bounds_lack_the_seconds_of_the_offset(
    tmp_path: Path, moment: str, bound: str
) -> None:
    value = pa.array([dt.datetime.fromisoformat(moment)], pa.timestamp("us", "UTC"))
    table = with_statistics(tmp_path, pa.table({"c": value}), bounds_of("c", bound, bound))
    for operator in ("=", "<=", ">="):
        where = f"c {operator} TIMESTAMP '{moment}Z'"
        assert table.snapshot().scan(where=where).to_arrow().num_rows == 1, where


def on_spark(table: DeltaTable, where: str, spark: SparkSession) -> pa.Table:
    """The rows, as Spark finds them where it plans on the log itself."""
    spark.conf.set(MAX_DRIVER_FILES, "0")
    try:
        return DeltaTable(table.uri).snapshot().scan(where=where).to_spark(spark).toArrow()
    finally:
        spark.conf.unset(MAX_DRIVER_FILES)


@pytest.mark.parametrize("has_parsed", [True, False], ids=["parsed", "json"])
def test_spark_finds_the_same_rows(tmp_path: Path, spark: SparkSession, has_parsed: bool) -> None:
    properties = {"delta.checkpoint.writeStatsAsStruct": str(has_parsed).lower()}

    def checkpointed(name: str, rows: pa.Table, statistics: dict[str, Any]) -> DeltaTable:
        table = with_statistics(tmp_path / name, rows, statistics)
        table.set_properties(properties)
        table.checkpoint()
        return table

    table = checkpointed("collections", COLLECTIONS, OF_COLLECTIONS)
    assert on_spark(table, "key IS NULL AND value > 6", spark)["value"].to_pylist() == [7]
    for text in TEXTS:
        statistics = bounds_of("c", text[:5], as_text_of_delta_1(text))
        table = checkpointed(str(TEXTS.index(text)), pa.table({"c": [text]}), statistics)
        assert on_spark(table, f"c = '{text}'", spark).num_rows == 1
    for moment, bound in EARLY:
        value = pa.array([dt.datetime.fromisoformat(moment)], pa.timestamp("us", "UTC"))
        statistics = bounds_of("c", bound, bound)
        table = checkpointed(moment[:4], pa.table({"c": value}), statistics)
        assert on_spark(table, f"c = TIMESTAMP '{moment}Z'", spark).num_rows == 1


def test_the_null_count_of_a_map_does_not_say_that_a_file_has_a_column(
    tmp_path: Path, spark: SparkSession
) -> None:
    statistics = {"numRecords": 3, "nullCount": {"value": 1}}
    table = with_statistics(tmp_path, COLLECTIONS.select(["m"]), statistics)
    table.add_column("value", "INT", default="7", existing_rows="lazy")
    for where in (None, "value = 7"):
        scan = table.snapshot().scan(["value"], where=where)
        assert scan.to_arrow()["value"].to_pylist() == [7] * 3
        assert scan.to_spark(spark).toArrow()["value"].to_pylist() == [7] * 3
    assert table.snapshot().scan(where="value IS NULL").to_arrow().num_rows == 0
