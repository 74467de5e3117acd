"""Clones against delta-spark: ours are read and written by it, and its own by us, on both engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from dagster_delta import DeltaTable
from tests.families import family
from tests.reference.test_deltalake import read_by_deltalake
from tests.reference.test_maintenance_delta_spark import fingerprint, readings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.delta_spark

SHAPES = {
    "tracked_vectors": {
        "delta.enableDeletionVectors": "true",
        "delta.enableRowTracking": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.constraints.few": "id < 100000",
    },
    "mapped": {"delta.columnMapping.mode": "name", "delta.enableInCommitTimestamps": "true"},
}


@pytest.fixture(scope="module")
def sources(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By shape, a table by delta-spark whose path takes some encoding."""
    root = tmp_path_factory.mktemp("sources")
    uris = {}
    for shape, properties in SHAPES.items():
        uri = uris[shape] = str(root / f"{shape} 100% é")
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        delta_spark.sql(
            f"CREATE TABLE delta.`{uri}` (id BIGINT, v STRING, p STRING) USING delta "
            f"PARTITIONED BY (p) TBLPROPERTIES ({listed})"
        )
        delta_spark.sql(
            f"INSERT INTO delta.`{uri}` SELECT /*+ REPARTITION(1) */ id, concat('v', id), "
            "if(id % 2 = 0, 'a b', 'c%20d') FROM range(0, 2000)"
        )
        delta_spark.sql(f"DELETE FROM delta.`{uri}` WHERE id % 7 = 1")
    return uris


def ids_by_spark(session: SparkSession, uri: str) -> dict[int, int]:
    found = session.read.format("delta").load(uri).select("id", "_metadata.row_id")
    return {each[0]: each[1] for each in found.collect()}


def native(table: DeltaTable, session: SparkSession) -> tuple[int, int]:
    return fingerprint(table.refresh().scan().to_spark(session).toArrow())


@pytest.mark.parametrize(("shape", "deep"), [("tracked_vectors", False), ("mapped", True)])
@pytest.mark.exhaustive
def test_our_clones_are_read_and_written_by_delta_spark(
    delta_spark: SparkSession, sources: dict[str, str], tmp_path: Path, shape: str, deep: bool
) -> None:
    source = DeltaTable(sources[shape])
    before = fingerprint(source.snapshot().scan().to_arrow())
    uri = str(tmp_path / "clone")
    source.clone(uri, deep=deep, properties={"mine": "1"})
    assert readings(delta_spark, uri) == {before}
    assert native(DeltaTable(uri), delta_spark) == before
    if shape == "tracked_vectors":
        assert ids_by_spark(delta_spark, uri) == ids_by_spark(delta_spark, sources[shape])
    (entry,) = delta_spark.sql(f"DESCRIBE HISTORY delta.`{uri}`").collect()
    assert entry["operation"] == "CLONE"
    assert entry["operationParameters"]["sourceVersion"] == str(source.version())
    delta_spark.sql(f"UPDATE delta.`{uri}` SET v = 'new' WHERE id % 5 = 0")
    delta_spark.sql(f"INSERT INTO delta.`{uri}` VALUES (5000, 'x', 'e')")
    assert len(readings(delta_spark, uri)) == 1
    assert DeltaTable(uri).snapshot().num_records == before[0] + 1
    # The source has not changed, and a second clone makes the first one its like again.
    assert readings(delta_spark, sources[shape]) == {before}
    assert not source.clone(uri, deep=deep, replace=True).skipped
    assert readings(delta_spark, uri) == {before}


@pytest.mark.parametrize(
    ("shape", "engine"),
    family([("tracked_vectors", "spark"), ("mapped", "arrow")], ("mapped", "arrow")),
)
def test_clones_of_delta_spark_are_read_and_written_by_us(
    delta_spark: SparkSession,
    sources: dict[str, str],
    tmp_path: Path,
    shape: str,
    engine: Literal["arrow", "spark"],
) -> None:
    uri = str(tmp_path / "clone")
    delta_spark.sql(f"CREATE TABLE delta.`{uri}` SHALLOW CLONE delta.`{sources[shape]}`")
    table = DeltaTable(uri)
    before = fingerprint(table.snapshot().scan().to_arrow())
    assert before == fingerprint(DeltaTable(sources[shape]).snapshot().scan().to_arrow())
    assert native(table, delta_spark) == before
    table.delete("id % 10 = 3", engine=engine)
    table.update({"v": "'u'"}, "id < 50", engine=engine)
    source: Any = delta_spark.sql("SELECT 60L id, 'm' v, 'a b' p UNION SELECT 9999, 'n', 'new'")
    merge = table.merge(source if engine == "spark" else source.toArrow(), on="t.id = s.id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    (after,) = readings(delta_spark, uri)
    assert native(table, delta_spark) == after
    table.optimize(max_deleted_share=0, engine=engine)
    assert readings(delta_spark, uri) == {after}
    if shape == "tracked_vectors":
        ours, theirs = (
            feed.toArrow() if hasattr(feed, "toArrow") else feed.to_arrow()
            for feed in (
                table.changes(0),
                delta_spark.read.format("delta")
                .option("readChangeFeed", "true")
                .option("startingVersion", 0)
                .load(uri),
            )
        )
        columns = ["id", "v", "p", "_change_type", "_commit_version"]
        assert fingerprint(ours.select(columns)) == fingerprint(theirs.select(columns))
    table.restore(0)
    assert readings(delta_spark, uri) == {before}
    assert fingerprint(read_by_deltalake(uri)) == before
