"""The change data feed by delta-spark and by us, of tables that either wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import SchemaMismatch
from tests.families import family
from tests.golden.answers import QUERIES, query_id, rows_of, table_path
from tests.reference.changed_tables import for_few_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.delta_spark, pytest.mark.usefixtures("sparing")]

FEED = "'delta.enableChangeDataFeed' = 'true'"
VECTORS = "'delta.enableDeletionVectors' = 'true'"
KINDS = {
    "rewrite": ("", FEED),
    "vectors": ("", f"{FEED}, {VECTORS}"),
    "partitioned": ("PARTITIONED BY (p)", f"{FEED}, {VECTORS}"),
    "mapped": ("PARTITIONED BY (p)", f"{FEED}, {VECTORS}, 'delta.columnMapping.mode' = 'name'"),
    "mapped by id, timed in commit": (
        "",
        f"{FEED}, 'delta.columnMapping.mode' = 'id', 'delta.enableInCommitTimestamps' = 'true'",
    ),
}


@pytest.fixture
def sparing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Spark does for these tables what they need, and no more."""
    with for_few_rows(request.getfixturevalue("spark")):
        yield


def theirs(session: SparkSession, uri: str, start: int, end: int | None = None) -> pa.Table:
    reader = session.read.format("delta").option("readChangeFeed", "true")
    reader = reader.option("startingVersion", start)
    if end is not None:
        reader = reader.option("endingVersion", end)
    return reader.load(uri).toArrow()


def alike(one: pa.Table, other: pa.Table) -> None:
    assert one.column_names == other.column_names
    assert rows_of(one.cast(other.schema)) == rows_of(other)


def all_alike(session: SparkSession, uri: str, start: int, end: int | None = None) -> pa.Table:
    """Our answer, once delta-spark and our Spark engine have given the same."""
    feed = DeltaTable(uri).changes(start, end)
    ours = feed.to_arrow()
    alike(theirs(session, uri, start, end), ours)
    alike(feed.to_spark(session).toArrow(), ours)
    return ours


def create(session: SparkSession, uri: str, kind: str) -> None:
    partitioning, properties = KINDS[kind]
    session.sql(
        f"CREATE TABLE delta.`{uri}` (id BIGINT, v STRING, p INT, s STRUCT<x: INT>) USING delta "
        f"{partitioning} TBLPROPERTIES ({properties})"
    )
    session.sql(
        f"INSERT INTO delta.`{uri}` SELECT /*+ REPARTITION(1) */ id, concat('v', id), "
        "cast(id % 2 AS INT), named_struct('x', cast(id AS INT)) FROM range(20)"
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.exhaustive
def test_both_read_the_feed_of_delta_spark_alike(
    kind: str, delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    create(delta_spark, uri, kind)
    for statement in (
        f"DELETE FROM delta.`{uri}` WHERE id IN (3, 4)",
        f"UPDATE delta.`{uri}` SET v = 'new' WHERE id BETWEEN 5 AND 7",
        f"MERGE INTO delta.`{uri}` t USING (SELECT id + 18 AS id FROM range(4)) s ON t.id = s.id "
        "WHEN MATCHED AND s.id = 18 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'merged' "
        "WHEN NOT MATCHED THEN INSERT (id, v, p) VALUES (s.id, 'came', 1)",
        f"DELETE FROM delta.`{uri}` WHERE p = 0",
        f"RESTORE TABLE delta.`{uri}` TO VERSION AS OF 2",
        f"OPTIMIZE delta.`{uri}`",
    ):
        delta_spark.sql(statement)
    ours = all_alike(delta_spark, uri, 0)
    assert set(pc.unique(ours["_change_type"]).to_pylist()) == {
        "insert",
        "delete",
        "update_preimage",
        "update_postimage",
    }
    all_alike(delta_spark, uri, 2, 4)
    where = "_change_type <> 'insert' AND (s.x > 4 OR v = 'merged') AND _commit_version >= 3"
    feed = DeltaTable(uri).changes(0, columns=["_commit_version", "v", "id"], where=where)
    wanted = pa_filter(delta_spark, uri, where)
    alike(feed.to_arrow(), wanted)
    alike(feed.to_spark(delta_spark).toArrow(), wanted)


def pa_filter(session: SparkSession, uri: str, where: str) -> pa.Table:
    reader = session.read.format("delta").option("readChangeFeed", "true")
    frame: DataFrame = reader.option("startingVersion", 0).load(uri)
    schema = DeltaTable(uri).changes(0, columns=["_commit_version", "v", "id"]).to_arrow().schema
    return frame.where(where).select("_commit_version", "v", "id").toArrow().cast(schema)


@pytest.mark.parametrize("kind", family(KINDS, "mapped"))
def test_both_read_the_feed_of_our_changes_alike(
    kind: str, delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    create(delta_spark, uri, kind)
    table = DeltaTable(uri)
    table.delete("id IN (3, 4)")
    table.update({"v": "'new'", "s.x": "id * 2"}, "id BETWEEN 5 AND 7")
    table.update({"p": "1 - p"}, "id > 15")
    table.delete("p = 0")
    rows = table.snapshot().scan().to_arrow()
    table.append(rows)
    table.overwrite(rows.slice(0, 2))
    ours = all_alike(delta_spark, uri, 1)
    assert ours["_commit_version"].to_pylist().count(2) == 2
    all_alike(delta_spark, uri, 3, 5)


@pytest.mark.parametrize("query", QUERIES, ids=query_id)
@pytest.mark.exhaustive
def test_a_golden_feed_has_the_same_rows_in_both_engines(
    query: tuple[str, dict[str, Any]], golden_tables: Path, spark: SparkSession
) -> None:
    name, asked = query
    feed = DeltaTable(table_path(name)).changes(asked["start"], asked["end"])
    alike(feed.to_spark(spark).toArrow(), feed.to_arrow())


@pytest.mark.exhaustive
def test_a_range_where_the_feed_was_off_is_read_here_alone(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    delta_spark.sql(f"CREATE TABLE delta.`{uri}` (id BIGINT) USING delta")
    for value in ("true", "false", "true"):
        delta_spark.sql(
            f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = '{value}')"
        )
        delta_spark.sql(f"INSERT INTO delta.`{uri}` VALUES (1)")
    for start, end, inserted in ((0, 1, 0), (1, 3, 1), (1, 6, 3), (3, 6, 2), (4, 6, 2)):
        assert DeltaTable(uri).changes(start, end).to_arrow().num_rows == inserted
        with pytest.raises(Exception, match="DELTA_MISSING_CHANGE_DATA"):
            theirs(delta_spark, uri, start, end)
    all_alike(delta_spark, uri, 1, 2)
    all_alike(delta_spark, uri, 5)


@pytest.mark.parametrize(
    ("change", "is_readable"),
    family(
        [
            ("ADD COLUMNS (w INT)", True),
            ("ADD COLUMNS (s.y STRING)", True),
            ("RENAME COLUMN v TO w", False),
            ("DROP COLUMN v", False),
            ("RENAME COLUMN s.x TO y", False),
        ],
        ("DROP COLUMN v", False),
    ),
)
def test_both_refuse_the_same_schema_changes(
    change: str, is_readable: bool, delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    create(delta_spark, uri, "mapped")
    delta_spark.sql(f"ALTER TABLE delta.`{uri}` {change}")
    delta_spark.sql(f"DELETE FROM delta.`{uri}` WHERE id < 5")
    if is_readable:
        all_alike(delta_spark, uri, 0)
    else:
        with pytest.raises(SchemaMismatch):
            DeltaTable(uri).changes(0).to_arrow()
        with pytest.raises(Exception, match="INCOMPATIBLE"):
            theirs(delta_spark, uri, 0)
    # Each side of the change is read with its own schema.
    all_alike(delta_spark, uri, 0, 1)
    all_alike(delta_spark, uri, 2)


@pytest.mark.exhaustive
def test_both_read_rows_from_before_column_mapping_was_turned_on(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    create(delta_spark, uri, "partitioned")
    delta_spark.sql(
        f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    delta_spark.sql(f"DELETE FROM delta.`{uri}` WHERE id < 5")
    delta_spark.sql(f"ALTER TABLE delta.`{uri}` ADD COLUMNS (w INT)")
    delta_spark.sql(f"UPDATE delta.`{uri}` SET w = 1 WHERE id < 8")
    all_alike(delta_spark, uri, 0)
    all_alike(delta_spark, uri, 2)


@pytest.mark.exhaustive
def test_rows_from_before_a_widening_are_read_as_the_wider_type(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    delta_spark.sql(
        f"CREATE TABLE delta.`{uri}` (a SHORT, b FLOAT) USING delta "
        f"TBLPROPERTIES ({FEED}, 'delta.enableTypeWidening' = 'true')"
    )
    delta_spark.sql(f"INSERT INTO delta.`{uri}` VALUES (1, 1.5), (2, 2.5)")
    delta_spark.sql(f"ALTER TABLE delta.`{uri}` ALTER COLUMN a TYPE BIGINT")
    delta_spark.sql(f"ALTER TABLE delta.`{uri}` ALTER COLUMN b TYPE DOUBLE")
    delta_spark.sql(f"UPDATE delta.`{uri}` SET a = 5000000000 WHERE a = 2")
    feed = DeltaTable(uri).changes(0)
    ours = feed.to_arrow()
    assert sorted(ours.select(["_change_type", "a", "b"]).to_pylist(), key=str) == [
        {"_change_type": "insert", "a": 1, "b": 1.5},
        {"_change_type": "insert", "a": 2, "b": 2.5},
        {"_change_type": "update_postimage", "a": 5000000000, "b": 2.5},
        {"_change_type": "update_preimage", "a": 2, "b": 2.5},
    ]
    alike(feed.to_spark(delta_spark).toArrow(), ours)
    all_alike(delta_spark, uri, 3)


def test_an_end_beyond_the_latest_version_means_the_latest_to_both(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    create(delta_spark, uri, "rewrite")
    assert all_alike(delta_spark, uri, 0, 99).num_rows == 20
