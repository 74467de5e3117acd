"""Row ids against delta-spark: the same ids read by both, kept by whoever writes next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from tests.families import family
from tests.table_rows import row_ids_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.delta_spark

SHAPES = {
    "copy_on_write": {"delta.enableChangeDataFeed": "true"},
    "vectors": {"delta.enableDeletionVectors": "true"},
    "mapped_vectors": {
        "delta.enableDeletionVectors": "true",
        "delta.columnMapping.mode": "name",
        "delta.enableChangeDataFeed": "true",
    },
    "mapped_by_id": {"delta.columnMapping.mode": "id"},
}
CASES: list[tuple[str, Literal["arrow", "spark"]]] = [
    ("copy_on_write", "arrow"),
    ("copy_on_write", "spark"),
    ("vectors", "arrow"),
    ("mapped_vectors", "spark"),
    ("mapped_by_id", "arrow"),
]

Ids = dict[int, tuple[int, int]]


def rows(start: int, stop: int) -> pa.Table:
    ids = range(start, stop)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "v": pa.array([f"v{each}" for each in ids], pa.string()),
            "p": pa.array([each % 2 for each in ids], pa.int32()),
        }
    )


def ids_by_spark(session: SparkSession, uri: str) -> Ids:
    found = session.read.format("delta").load(uri)
    columns = ("id", "_metadata.row_id", "_metadata.row_commit_version")
    return {each[0]: (each[1], each[2]) for each in found.select(*columns).collect()}


def ids_by_our_spark(session: SparkSession, table: DeltaTable) -> Ids:
    found = table.snapshot().scan(["id"], row_ids=True).to_spark(session).collect()
    return {each["id"]: (each["_row_id"], each["_row_commit_version"]) for each in found}


def both(session: SparkSession, table: DeltaTable) -> Ids:
    """The ids, which both read alike and of which no two are one."""
    found = row_ids_of(DeltaTable(table.uri))
    assert found == ids_by_spark(session, table.uri)
    assert len({row_id for row_id, _ in found.values()}) == len(found)
    return found


def assert_kept(before: Ids, after: Ids, *, changed: set[int], version: int) -> None:
    """Rows that are in both have their ids; only the changed ones are of another version."""
    for key in before.keys() & after.keys():
        expected = (before[key][0], version) if key in changed else before[key]
        assert after[key] == expected, key


def change_with_us(table: DeltaTable, engine: Literal["arrow", "spark"] = "arrow") -> None:
    table.delete("id = 3 OR id = 12", engine=engine)
    table.update({"v": "concat(v, '!')"}, "id % 5 = 4", engine=engine)
    source = pa.table({"id": [6, 8, 100], "v": ["six", "eight", "new"]})
    merge = table.merge(source, "t.id = s.id", engine=engine).when_matched_update({"v": "s.v"})
    merge = merge.when_not_matched_insert({"id": "s.id", "v": "s.v", "p": "0"})
    merge.when_not_matched_by_source_delete("t.id = 15").execute()


def change_with_spark(session: SparkSession, uri: str) -> None:
    session.sql(f"DELETE FROM delta.`{uri}` WHERE id = 3 OR id = 12")
    session.sql(f"UPDATE delta.`{uri}` SET v = concat(v, '!') WHERE id % 5 = 4")
    session.sql(
        f"MERGE INTO delta.`{uri}` t USING (SELECT * FROM VALUES (6, 'six'), (8, 'eight'), "
        "(100, 'new') AS s(id, v)) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v "
        "WHEN NOT MATCHED THEN INSERT (id, v, p) VALUES (s.id, s.v, 0) "
        "WHEN NOT MATCHED BY SOURCE AND t.id = 15 THEN DELETE"
    )


@pytest.mark.parametrize(("shape", "engine"), family(CASES, ("vectors", "arrow")))
def test_ids_stay_through_our_changes_and_delta_sparks(
    delta_spark: SparkSession, tmp_path: Path, shape: str, engine: Literal["arrow", "spark"]
) -> None:
    properties = {"delta.enableRowTracking": "true", **SHAPES[shape]}
    table = DeltaTable.create(
        str(tmp_path), rows(0, 0).schema, partition_by=["p"], properties=properties
    )
    table.append(rows(0, 10))
    table.append(rows(10, 20))
    before = both(delta_spark, table)
    assert sorted(row_id for row_id, _ in before.values()) == list(range(20))
    change_with_us(table, engine)
    after = both(delta_spark, table)
    assert ids_by_our_spark(delta_spark, table) == after
    changed = {4, 9, 14, 19, 6, 8}
    assert after.keys() == before.keys() - {3, 12, 15} | {100}
    for key in after.keys() - {100}:
        version = {6: 5, 8: 5}.get(key, 4) if key in changed else before[key][1]
        assert after[key] == (before[key][0], version), key
    assert after[100][0] >= 20
    delta_spark.sql(f"UPDATE delta.`{table.uri}` SET v = 'spark' WHERE id = 7")
    delta_spark.sql(f"OPTIMIZE delta.`{table.uri}`")
    moved = both(delta_spark, table)
    assert_kept(after, moved, changed={7}, version=6)
    table.update({"v": "'again'"}, "id = 0")
    assert_kept(moved, both(delta_spark, table), changed={0}, version=table.version())


@pytest.mark.parametrize("shape", ["copy_on_write", "mapped_vectors"])
@pytest.mark.exhaustive
def test_ids_of_delta_sparks_rows_stay_through_our_changes(
    delta_spark: SparkSession, tmp_path: Path, shape: str
) -> None:
    uri = str(tmp_path)
    properties = {
        "delta.enableRowTracking": "true",
        "delta.enableDeletionVectors": "false",
        **SHAPES[shape],
    }
    texts = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    delta_spark.sql(
        f"CREATE TABLE delta.`{uri}` (id BIGINT, v STRING, p INT) USING delta PARTITIONED BY (p) "
        f"TBLPROPERTIES ({texts})"
    )
    select = "SELECT id, concat('v', id), cast(id % 2 AS INT)"
    delta_spark.sql(f"INSERT INTO delta.`{uri}` {select} FROM range(0, 20, 1, 1)")
    change_with_spark(delta_spark, uri)
    before = ids_by_spark(delta_spark, uri)
    table = DeltaTable(uri)
    assert row_ids_of(table) == before
    table.update({"v": "'ours'"}, "id IN (1, 6)")
    table.append(rows(200, 203))
    after = both(delta_spark, table)
    assert_kept(before, after, changed={1, 6}, version=5)
    assert min(after[key][0] for key in (200, 201, 202)) > max(i for i, _ in before.values())


@pytest.mark.exhaustive
def test_rows_that_are_there_get_ids_when_tracking_is_enabled(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    table = DeltaTable.create(
        str(tmp_path), rows(0, 0).schema, properties={"delta.enableDeletionVectors": "true"}
    )
    table.append(rows(0, 10))
    table.append(rows(10, 20))
    table.delete("id = 5")
    enabled = table.set_properties({"delta.enableRowTracking": True}).version
    before = both(delta_spark, table)
    assert {version for _, version in before.values()} == {enabled}
    delta_spark.sql(f"INSERT INTO delta.`{table.uri}` VALUES (30, 'spark', 0)")
    change_with_us(DeltaTable(table.uri))
    assert both(delta_spark, table)[30][0] == 20
