"""Branches against delta-spark: of its tables, written by it too, and read by it when published."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_delta import Branch, DeltaTable
from tests.reference.test_clone_delta_spark import SHAPES, ids_by_spark
from tests.reference.test_maintenance_delta_spark import readings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.delta_spark

RECORDED = {"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"}
COLUMNS = ("id", "v", "p")


def rows_by_spark(session: SparkSession, uri: str) -> Counter[tuple[Any, ...]]:
    found = session.read.format("delta").load(uri).select(*COLUMNS)
    return Counter(map(tuple, found.collect()))


def feed_by_spark(
    session: SparkSession, uri: str, version: int
) -> dict[str, Counter[tuple[Any, ...]]]:
    """Rows of a version's feed by their kind of change."""
    reader = session.read.format("delta").option("readChangeFeed", "true")
    found = reader.option("startingVersion", version).option("endingVersion", version).load(uri)
    feed: dict[str, Counter[tuple[Any, ...]]] = {}
    for row in found.collect():
        feed.setdefault(row["_change_type"], Counter())[tuple(row[name] for name in COLUMNS)] += 1
    return feed


@pytest.mark.parametrize("shape", [*SHAPES, "recorded"])
def test_published_rows_are_those_of_the_branch_to_delta_spark(
    delta_spark: SparkSession, tmp_path: Path, shape: str
) -> None:
    uri = str(tmp_path / "lake" / "raw" / f"{shape} 100% é")
    listed = ", ".join(
        f"'{key}' = '{value}'" for key, value in {**SHAPES, "recorded": RECORDED}[shape].items()
    )
    delta_spark.sql(
        f"CREATE TABLE delta.`{uri}` (id BIGINT, v STRING, p STRING) USING delta "
        f"PARTITIONED BY (p) TBLPROPERTIES ({listed})"
    )
    delta_spark.sql(
        f"INSERT INTO delta.`{uri}` SELECT /*+ REPARTITION(1) */ id, concat('v', id), "
        "if(id % 2 = 0, 'a b', 'c%20d') FROM range(0, 200)"
    )
    delta_spark.sql(f"DELETE FROM delta.`{uri}` WHERE id % 7 = 1")
    before = rows_by_spark(delta_spark, uri)
    branch = Branch(str(tmp_path / "lake"), "feature/é")
    table = branch.begin(uri)
    assert table is not None
    table.delete("id % 5 = 0")
    delta_spark.sql(f"UPDATE delta.`{table.uri}` SET v = 'new' WHERE id < 20")
    delta_spark.sql(f"INSERT INTO delta.`{table.uri}` VALUES (5000, 'x', 'e'), (5001, 'y', 'a b')")
    table.optimize(target_file_size=1 << 30)
    assert rows_by_spark(delta_spark, uri) == before
    expected = rows_by_spark(delta_spark, table.uri)
    ids = ids_by_spark(delta_spark, table.uri) if shape == "tracked_vectors" else {}
    [result] = branch.publish().values()
    branch.drop(dry_run=False)
    assert rows_by_spark(delta_spark, uri) == expected
    assert len(readings(delta_spark, uri)) == 1
    if shape == "tracked_vectors":
        assert ids_by_spark(delta_spark, uri) == ids
    if shape != "mapped":
        updated = {row for row in before if row[0] < 20 and row[0] % 5}
        feed = feed_by_spark(delta_spark, uri, result.version)
        assert feed == {
            "delete": Counter(row for row in before if row[0] % 5 == 0),
            "update_preimage": Counter(updated),
            "update_postimage": Counter((row[0], "new", row[2]) for row in updated),
            "insert": Counter({(5000, "x", "e"): 1, (5001, "y", "a b"): 1}),
        }
    delta_spark.sql(f"UPDATE delta.`{uri}` SET v = 'later' WHERE id = 5000")
    assert len(readings(delta_spark, uri)) == 1
    assert DeltaTable(uri).snapshot().num_records == sum(expected.values())
