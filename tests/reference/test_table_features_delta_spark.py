"""Features enabled and dropped here, and the table that is left: delta-spark reads it, writes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from dagster_delta.evolution.properties import KNOWN_PROPERTIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.delta_spark

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "p": ["x", "y", "x"]})


def ids_by_spark(session: SparkSession, uri: str, version: int | None = None) -> list[int]:
    reader = session.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return sorted(each[0] for each in reader.load(uri).select("id").collect())


def ids_by_us(uri: str) -> list[int]:
    found = DeltaTable(uri).snapshot().scan(["id"]).to_arrow()["id"].to_pylist()
    return sorted(int(each) for each in found)


def features_by_spark(session: SparkSession, uri: str) -> set[str]:
    (detail,) = session.sql(f"DESCRIBE DETAIL delta.`{uri}`").collect()
    return set(detail["tableFeatures"])


ENABLED = {
    "delta.enableDeletionVectors": {"deletionVectors"},
    "delta.enableChangeDataFeed": {"changeDataFeed"},
    "delta.columnMapping.mode": {"columnMapping"},
    "delta.enableTypeWidening": {"typeWidening"},
    "delta.enableInCommitTimestamps": {"inCommitTimestamp"},
    "delta.enableRowTracking": {"rowTracking", "domainMetadata"},
    "delta.checkpointPolicy": {"v2Checkpoint"},
    "delta.feature.vacuumProtocolCheck": {"vacuumProtocolCheck"},
}
VALUES = {
    "delta.columnMapping.mode": "name",
    "delta.checkpointPolicy": "v2",
    "delta.feature.vacuumProtocolCheck": "supported",
}


@pytest.mark.exhaustive
def test_delta_spark_writes_on_after_each_feature_that_was_enabled(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path)
    table = DeltaTable.create(uri, ROWS.schema, partition_by=["p"])
    table.append(ROWS)
    expected, features = [1, 2, 3], {"invariants", "appendOnly"}
    for number, (key, added) in enumerate(ENABLED.items(), start=10):
        DeltaTable(uri).set_properties({key: VALUES.get(key, "true")})
        delta_spark.sql(f"INSERT INTO delta.`{uri}` VALUES ({number}, 'y')")
        expected.append(number)
        features |= added
        assert features <= features_by_spark(delta_spark, uri), key
        assert ids_by_us(uri) == expected, key
    delta_spark.sql(f"UPDATE delta.`{uri}` SET p = 'z' WHERE id = 2")
    DeltaTable(uri).checkpoint()
    delta_spark.sql(f"DELETE FROM delta.`{uri}` WHERE id = 3")
    assert ids_by_us(uri) == [1, 2, *expected[3:]] == ids_by_spark(delta_spark, uri)


DROPPED: dict[str, dict[str, Any]] = {
    "deletionVectors": {"delta.enableDeletionVectors": True, "delta.enableRowTracking": True},
    "typeWidening": {"delta.enableTypeWidening": True},
    "columnMapping": {"delta.columnMapping.mode": "name"},
    "v2Checkpoint": {"delta.checkpointPolicy": "v2"},
    "rowTracking": {"delta.enableRowTracking": True},
    "inCommitTimestamp": {"delta.enableInCommitTimestamps": True},
}


@pytest.mark.parametrize("feature", DROPPED)
@pytest.mark.exhaustive
def test_delta_spark_reads_and_writes_a_table_whose_feature_was_dropped(
    delta_spark: SparkSession, tmp_path: Path, feature: str
) -> None:
    uri = str(tmp_path)
    table = DeltaTable.create(uri, ROWS.schema, partition_by=["p"], properties=DROPPED[feature])
    table.append(ROWS)
    if feature == "typeWidening":
        wide = pa.table({"id": pa.array([4], pa.int64()), "p": ["y"]})
        table.append(wide, schema_mode="merge")
    else:
        table.append(ROWS.slice(0, 1).set_column(0, "id", pa.array([4], pa.int32())))
    table.delete("id = 3")
    before = table.version()
    table.drop_feature(feature)
    assert feature not in features_by_spark(delta_spark, uri)
    assert ids_by_spark(delta_spark, uri) == [1, 2, 4] == ids_by_spark(delta_spark, uri, before)
    delta_spark.sql(f"INSERT INTO delta.`{uri}` VALUES (5, 'y')")
    delta_spark.sql(f"DELETE FROM delta.`{uri}` WHERE id = 1")
    assert ids_by_us(uri) == [2, 4, 5] == ids_by_spark(delta_spark, uri)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.exhaustive
def test_tables_that_stay_readable_as_iceberg_are_written_by_both(
    delta_spark: SparkSession, tmp_path: Path, version: int
) -> None:
    rows = ROWS
    if version == 2:
        nested = pa.array([[[1], None], None, []], pa.list_(pa.list_(pa.int32())))
        rows = ROWS.append_column("xs", nested)
    uri = str(tmp_path)
    properties = {f"delta.enableIcebergCompatV{version}": True}
    table = DeltaTable.create(uri, rows.schema, partition_by=["p"], properties=properties)
    table.append(rows)
    values = "(4, 'y', array(array(7)))" if version == 2 else "(4, 'y')"
    delta_spark.sql(f"INSERT INTO delta.`{uri}` VALUES {values}")
    DeltaTable(uri).update({"p": "'z'"}, "id = 2")
    delta_spark.sql(f"DELETE FROM delta.`{uri}` WHERE id = 1")
    assert ids_by_us(uri) == [2, 3, 4] == ids_by_spark(delta_spark, uri)
    if version == 2:
        found = delta_spark.read.format("delta").load(uri).where("id = 4").select("xs").collect()
        assert found[0][0] == [[7]]
        entries = pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32()))
        new = rows.slice(0, 1).append_column("m", entries)
        DeltaTable(uri).append(new, schema_mode="merge")
        delta_spark.sql(f"INSERT INTO delta.`{uri}` VALUES (8, 'y', null, map('a', 2))")
        assert ids_by_us(uri) == [1, 2, 3, 4, 8] == ids_by_spark(delta_spark, uri)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.exhaustive
def test_spark_writes_tables_that_stay_readable_as_iceberg(
    delta_spark: SparkSession, tmp_path: Path, version: int
) -> None:
    uri = str(tmp_path)
    properties = {f"delta.enableIcebergCompatV{version}": True}
    table = DeltaTable.create(uri, ROWS.schema, partition_by=["p"], properties=properties)
    frame = delta_spark.createDataFrame(ROWS)
    table.append(frame)
    table.merge(
        frame.selectExpr("id + 2 AS id", "'z' AS p"), "t.id = s.id"
    ).when_matched_update_all().when_not_matched_insert_all().execute()
    table.delete("id = 1", engine="spark")
    # Iceberg takes the values of partitions and the ids of columns from the files.
    for path in DeltaTable(uri).snapshot().scan().files()["path"].to_pylist():
        schema = pq.read_schema(tmp_path / path)
        assert all(b"PARQUET:field_id" in each.metadata for each in schema)
        assert len(schema) == len(ROWS.schema)
    delta_spark.sql(f"INSERT INTO delta.`{uri}` VALUES (9, 'y')")
    assert ids_by_us(uri) == [2, 3, 4, 5, 9] == ids_by_spark(delta_spark, uri)


@pytest.mark.exhaustive
def test_partition_columns_stand_in_the_files_too(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    feature = "delta.feature.materializePartitionColumns"
    delta_spark.sql(
        f"CREATE TABLE delta.`{theirs}` (id INT, p STRING) USING delta PARTITIONED BY (p) "
        f"TBLPROPERTIES ('{feature}' = 'supported')"
    )
    table = DeltaTable.create(
        ours, ROWS.schema, partition_by=["p"], properties={feature: "supported"}
    )
    assert table.protocol().writer_features == ("materializePartitionColumns",)
    for uri in (theirs, ours):
        table = DeltaTable(uri)
        table.append(ROWS)
        table.append(
            delta_spark.createDataFrame(ROWS.to_pandas()).selectExpr("CAST(id + 3 AS INT) id", "p")
        )
        table.update({"p": "'z'"}, "id = 2")
        table.update({"p": "'z'"}, "id = 5", engine="spark")
        table.optimize(where="p = 'x'")
        delta_spark.sql(f"INSERT INTO delta.`{uri}` VALUES (7, 'z')")
        assert ids_by_spark(delta_spark, uri) == ids_by_us(uri) == [1, 2, 3, 4, 5, 6, 7]
        paths = DeltaTable(uri).snapshot().files()["path"].to_pylist()
        for each in paths:
            found = pq.ParquetFile(Path(uri) / each).read()
            assert found.column_names == ["id", "p"]
            assert set(found["p"].to_pylist()) == {each.split("/")[0].removeprefix("p=")}
        stats = json.loads(last_add(uri)["stats"])
        assert "p" not in stats["minValues"], "partition columns have their values in the log"
        found = deltalake.DeltaTable(uri).to_pyarrow_table()
        assert sorted(found["p"].to_pylist()) == ["x"] * 4 + ["z"] * 3


def last_add(uri: str) -> Any:
    """The last file that was added before the last commit, which is not ours."""
    log = Path(uri) / "_delta_log" / f"{DeltaTable(uri).version() - 1:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    return next(each["add"] for each in actions if "add" in each)


def test_every_property_that_delta_spark_knows_is_treated_in_some_way(
    delta_spark: SparkSession,
) -> None:
    java: Any = delta_spark._jvm
    entries = java.org.apache.spark.sql.delta.DeltaConfigs.getAllConfigs().iterator()
    known = set()
    while entries.hasNext():
        known.add(entries.next()._2().key())
    assert len(known) > 40
    assert known - KNOWN_PROPERTIES.keys() == set()
