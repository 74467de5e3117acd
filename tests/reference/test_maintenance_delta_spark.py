"""Tables that we maintained, read by delta-spark and deltalake, whose VACUUM agrees with ours."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from dagster_delta.protocol import table_properties
from dagster_delta.protocol.log.paths import checkpoint_path, parse_log_file_name
from dagster_delta.storage import open_store
from dagster_delta.testing.faulty_store import FaultyStore
from tests.families import family
from tests.reference.test_deltalake import read_by_deltalake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.delta_spark

SHAPES: dict[str, tuple[str, dict[str, str]]] = {
    "plain": ("", {}),
    "partitioned_vectors": ("PARTITIONED BY (p)", {"delta.enableDeletionVectors": "true"}),
    "mapped": (
        "PARTITIONED BY (p)",
        {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"},
    ),
}

WAYS: dict[str, Callable[[DeltaTable], Any]] = {
    "compacted": lambda table: table.optimize(max_deleted_share=0),
    "on_spark": lambda table: table.optimize(max_deleted_share=0, engine="spark"),
    "z_ordered": lambda table: table.optimize(zorder_by=["v", "id"]),
    "z_ordered_on_spark": lambda table: table.optimize(zorder_by=["v", "id"], engine="spark"),
}


def fingerprint(rows: pa.Table) -> tuple[int, int]:
    """The number of rows, and the sum of their hashes: the same in every order."""
    columns = ", ".join(f'"{name}"::VARCHAR' for name in sorted(rows.column_names))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", rows)
        answer = connection.execute(
            f"SELECT count(*), sum(hash({columns})::HUGEINT) FROM rows"
        ).fetchone()
    assert answer is not None
    return int(answer[0]), int(answer[1])


def readings(spark: SparkSession, uri: str) -> set[tuple[int, int]]:
    """What all readers make of a table: one fingerprint where they agree."""
    return {
        fingerprint(DeltaTable(uri).snapshot().scan().to_arrow()),
        fingerprint(spark.read.format("delta").load(uri).toArrow()),
        fingerprint(read_by_deltalake(uri)),
    }


@pytest.fixture(scope="module")
def originals(
    delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """By shape, a table of many small files by delta-spark, with deletes."""
    root = tmp_path_factory.mktemp("originals")
    uris = {}
    for shape, (partitioning, properties) in SHAPES.items():
        uri = uris[shape] = str(root / shape)
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        delta_spark.sql(
            f"CREATE TABLE delta.`{uri}` (id BIGINT, v STRING, d DECIMAL(10,2), at TIMESTAMP, "
            f"s STRUCT<a: INT, b: STRING>, p INT) USING delta {partitioning} "
            + (f"TBLPROPERTIES ({listed})" if listed else "")
        )
        delta_spark.sql(
            f"INSERT INTO delta.`{uri}` SELECT /*+ REPARTITION(5) */ id, concat('v', id % 7), "
            "cast(id / 4 AS DECIMAL(10,2)), timestamp_seconds(id * 3600), "
            "if(id % 5 = 0, null, named_struct('a', cast(id AS INT), 'b', concat('b', id))), "
            "if(id % 4 = 3, null, cast(id % 4 AS INT)) FROM range(0, 300)"
        )
        delta_spark.sql(f"DELETE FROM delta.`{uri}` WHERE id % 11 = 4")
    return uris


@pytest.mark.parametrize(
    ("shape", "way"),
    family(
        [
            ("plain", "compacted"),
            ("plain", "z_ordered_on_spark"),
            ("partitioned_vectors", "on_spark"),
            ("partitioned_vectors", "z_ordered"),
            ("mapped", "compacted"),
            ("mapped", "z_ordered_on_spark"),
        ],
        ("mapped", "z_ordered_on_spark"),
    ),
)
def test_the_rows_are_the_same_to_every_reader(
    delta_spark: SparkSession, originals: dict[str, str], tmp_path: Path, shape: str, way: str
) -> None:
    uri = str(tmp_path / "table")
    shutil.copytree(originals[shape], uri)
    before = fingerprint(DeltaTable(uri).snapshot().scan().to_arrow())
    table = DeltaTable(uri)
    result = WAYS[way](table)
    assert result.metrics["numRemovedFiles"] > result.metrics["numAddedFiles"]
    assert not any(table.snapshot().files()["has_deletion_vector"].to_pylist())
    assert before[0] == 273
    assert readings(delta_spark, uri) == {before}
    versions = [
        row["version"]
        for row in delta_spark.sql(f"DESCRIBE HISTORY delta.`{uri}`").collect()
        if row["operation"] == "OPTIMIZE"
    ]
    assert versions == [*reversed(result.versions)]


def vacuumed(spark: SparkSession, uri: str) -> set[str]:
    """What delta-spark would delete, relative to the root."""
    rows = spark.sql(f"VACUUM delta.`{uri}` RETAIN 0 HOURS DRY RUN").collect()
    return {row["path"].removeprefix("file:").removeprefix(uri).lstrip("/") for row in rows}


@pytest.mark.parametrize("engine", ["arrow", "spark"])
@pytest.mark.examples(2)
def test_vacuum_of_delta_spark_keeps_files_whose_path_is_not_ascii(
    delta_spark: SparkSession, tmp_path: Path, engine: Literal["arrow", "spark"]
) -> None:
    values = ["é", "日本", "😀", "a\u0301", "a\u00a0b", "\u2028", "a b%/:{}é"]
    rows = pa.table({"k": range(len(values)), "größe": values})
    data = rows if engine == "arrow" else delta_spark.createDataFrame(rows.to_pandas())
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(data, partition_by=["größe"], engine=engine)
    delta_spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        assert not {path for path in vacuumed(delta_spark, str(tmp_path)) if "." in path}
    finally:
        delta_spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")


@pytest.mark.parametrize("engine", ["arrow", "spark"])
@pytest.mark.examples(2)
def test_vacuum_of_delta_spark_keeps_the_vector_of_a_small_delete(
    delta_spark: SparkSession, tmp_path: Path, engine: Literal["arrow", "spark"]
) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"k": range(10)}), properties={"delta.enableDeletionVectors": "true"})
    table.delete("k = 3", engine=engine)
    assert table.snapshot().files()["has_deletion_vector"].to_pylist() == [True]
    delta_spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        assert vacuumed(delta_spark, str(tmp_path)) == set()
    finally:
        delta_spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")


def test_vacuum_agrees_with_delta_spark_and_older_rows_come_back(
    delta_spark: SparkSession, originals: dict[str, str], tmp_path: Path
) -> None:
    uri = str(tmp_path / "table")
    shutil.copytree(originals["partitioned_vectors"], uri)
    table = DeltaTable(uri)
    before = fingerprint(table.snapshot().scan().to_arrow())
    restored_to = table.version()
    table.optimize(max_deleted_share=0)
    table.delete("id < 100")
    table.restore(restored_to)
    assert readings(delta_spark, uri) == {before}
    table.optimize(max_deleted_share=0)
    (Path(uri) / "p=1" / "left over.parquet").write_bytes(b"x")
    (Path(uri) / "p=1" / "_hidden.parquet").write_bytes(b"x")
    delta_spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        theirs = vacuumed(delta_spark, uri)
        ours = table.vacuum(0, enforce_retention=False)
        assert set(ours.files["path"].to_pylist()) == {each for each in theirs if "." in each}
        assert ours.num_files > 5
        table.vacuum(0, enforce_retention=False, dry_run=False)
        assert not {each for each in vacuumed(delta_spark, uri) if "." in each}
    finally:
        delta_spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert readings(delta_spark, uri) == {before}
    history = delta_spark.sql(f"DESCRIBE HISTORY delta.`{uri}`").collect()
    assert [each["operation"] for each in history[:4]] == [
        "VACUUM END",
        "VACUUM START",
        "OPTIMIZE",
        "RESTORE",
    ]
    # A writer that does not know ours goes on from here.
    delta_spark.sql(f"DELETE FROM delta.`{uri}` WHERE id = 1")
    assert DeltaTable(uri).snapshot().num_records == before[0] - 1


@pytest.mark.exhaustive
def test_a_lite_vacuum_agrees_with_delta_spark_and_each_goes_on_after_the_other(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    table = DeltaTable(ours, must_exist=False)
    for p in range(2):
        ids = list(range(300))
        table.append(pa.table({"id": ids, "p": [p] * 300}), partition_by=["p"])
        table.append(pa.table({"id": ids, "p": [p] * 300}))
    table.delete("id < 100")
    table.optimize()
    (Path(ours) / "p=1" / "left over.parquet").write_bytes(b"x")
    before = fingerprint(table.snapshot().scan().to_arrow())
    shutil.copytree(ours, theirs)
    delta_spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    delta_spark.conf.set("spark.databricks.delta.vacuum.logging.enabled", "true")
    try:
        result = table.vacuum(0, enforce_retention=False, lite=True, dry_run=False)
        assert result.num_files > 1
        delta_spark.sql(f"VACUUM delta.`{theirs}` LITE RETAIN 0 HOURS")
        assert files_below(ours) == files_below(theirs)
        last = "_delta_log/_last_vacuum_info"
        assert (Path(ours) / last).read_bytes() == (Path(theirs) / last).read_bytes()
        assert readings(delta_spark, ours) == {before}
        # Each goes on where the other ended.
        DeltaTable(theirs).delete("id < 200")
        table.delete("id < 200")
        DeltaTable(theirs).vacuum(0, enforce_retention=False, lite=True, dry_run=False)
        delta_spark.sql(f"VACUUM delta.`{ours}` LITE RETAIN 0 HOURS")
    finally:
        delta_spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
        delta_spark.conf.unset("spark.databricks.delta.vacuum.logging.enabled")
    live = set(DeltaTable(ours).snapshot().files()["path"].to_pylist())
    assert len(files_below(ours)) == len(files_below(theirs))
    assert readings(delta_spark, ours) == readings(delta_spark, theirs)
    assert live <= files_below(ours)


def files_below(uri: str) -> set[str]:
    """Paths of the Parquet files of a table, relative to its root."""
    return {
        str(path.relative_to(uri)) for path in Path(uri).rglob("*.parquet") if path.name[0] != "."
    } - {str(path.relative_to(uri)) for path in (Path(uri) / "_delta_log").rglob("*")}


def test_a_reorg_on_spark_leaves_files_that_delta_spark_has_nothing_to_purge_in(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "table")
    table = DeltaTable(uri, must_exist=False)
    properties = {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"}
    for first in (0, 300):
        ids = list(range(first, first + 300))
        table.append(pa.table({"id": ids, "v": ids}), properties=properties)
    table.delete("id % 7 = 3")
    table.drop_column("v")
    before = fingerprint(table.snapshot().scan().to_arrow())
    result = table.reorg(engine="spark")
    assert result.metrics["numRemovedFiles"] == 2
    assert readings(delta_spark, uri) == {before}
    delta_spark.sql(f"REORG TABLE delta.`{uri}` APPLY (PURGE)")
    assert table.refresh().version == result.version
    table.optimize(sort_by=["id"], engine="spark")
    assert readings(delta_spark, uri) == {before}
    (path,) = table.snapshot().files()["path"].to_pylist()
    (column,) = pq.read_table(Path(uri) / path, partitioning=None).columns
    assert column.to_pylist() == sorted(column.to_pylist())


@pytest.mark.exhaustive
def test_a_converted_directory_is_the_table_that_delta_spark_makes_of_it(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    rows = delta_spark.sql(
        "SELECT id, concat('v', id) AS v, cast(id / 4 AS DECIMAL(20,2)) AS d, "
        "timestamp_seconds(id * 3600) AS at, array(id) AS a, id / 3 AS f, "
        "date_add(DATE '2026-01-01', cast(id % 3 AS INT)) AS day, "
        "if(id % 2 = 0, 'x y', null) AS t FROM range(60)"
    )
    rows.repartition(1).write.partitionBy("day", "t").parquet(ours)
    shutil.copytree(ours, theirs)
    delta_spark.sql(f"CONVERT TO DELTA parquet.`{theirs}` PARTITIONED BY (day DATE, t STRING)")
    table, other = DeltaTable.convert(ours), DeltaTable(theirs)
    assert table.schema() == other.schema()
    mine, yours = (
        {row["path"]: row for row in each.snapshot().live_files().to_pylist()}
        for each in (table, other)
    )
    assert mine.keys() == yours.keys()
    before = fingerprint(other.snapshot().scan().to_arrow())
    assert readings(delta_spark, ours) == {before}
    assert table.snapshot().scan(where="day = '2026-01-02' AND v = 'v4'").to_arrow().num_rows == 1
    table.delete("id = 4")
    assert readings(delta_spark, ours) == {fingerprint(table.snapshot().scan().to_arrow())}


@pytest.mark.parametrize("partition_by", family([[], ["day", "t"]], ["day", "t"]))
def test_symlink_manifests_are_those_of_delta_spark(
    delta_spark: SparkSession, tmp_path: Path, partition_by: list[str]
) -> None:
    uri = str(tmp_path / "table")
    table = DeltaTable(uri, must_exist=False)
    properties = {"delta.compatibility.symlinkFormatManifest.enabled": "true"}
    for day, text in (("2026-01-01", "a b/c"), ("2026-01-02", None), ("2026-01-03", "ü:%")):
        rows = pa.table({"id": [1, 2], "day": [day] * 2, "t": pa.array([text] * 2, pa.string())})
        table.append(rows, partition_by=partition_by, properties=properties)
    table.delete("day = '2026-01-03'")
    ours = manifests(uri)
    assert len(ours) == (2 if partition_by else 1)
    shutil.rmtree(Path(uri) / "_symlink_format_manifest")
    delta_spark.sql(f"GENERATE symlink_format_manifest FOR TABLE delta.`{uri}`")
    assert manifests(uri) == ours
    delta_spark.sql(f"DELETE FROM delta.`{uri}` WHERE day = '2026-01-02' AND id = 1")
    theirs = manifests(uri)
    assert theirs != ours
    assert set(table.generate_symlink_manifests()) == theirs.keys()
    assert manifests(uri) == theirs


def manifests(uri: str) -> dict[str, list[str]]:
    """The lines of each manifest by its path."""
    found = Path(uri).rglob("_symlink_format_manifest/**/manifest")
    return {
        str(path.relative_to(uri)): sorted(path.read_text().splitlines(keepends=True))
        for path in found
    }


def aged_log(spark: SparkSession, uri: str, properties: str) -> None:
    """A table of eleven versions by delta-spark, of which the last was written today."""
    spark.sql(f"CREATE TABLE delta.`{uri}` (id BIGINT) USING delta TBLPROPERTIES ({properties})")
    for each in range(1, 9):
        DeltaTable(uri).append(pa.table({"id": [each]}))
    days_ago = (time.time() // 86400 - 36) * 86400
    for file in (Path(uri) / "_delta_log").iterdir():
        name = parse_log_file_name(file.name.removeprefix("."))
        if name is not None:
            at = days_ago + name.version * 86400
            os.utime(file, (at, at))


@pytest.mark.parametrize(
    "properties",
    [
        "'delta.checkpointInterval' = '3'",
        "'delta.checkpointInterval' = '3', 'delta.checkpointPolicy' = 'v2'",
    ],
)
@pytest.mark.exhaustive
def test_the_log_is_cut_where_delta_spark_cuts_it(
    delta_spark: SparkSession, tmp_path: Path, properties: str
) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    aged_log(delta_spark, ours, properties)
    shutil.copytree(ours, theirs)
    # The ninth version has a checkpoint, after which either cleans up.
    result = DeltaTable(ours).append(pa.table({"id": [9]}))
    delta_spark.sql(f"INSERT INTO delta.`{theirs}` VALUES (9)")
    left = [
        sorted(
            each.name[:20]
            for each in (Path(uri) / "_delta_log").iterdir()
            if each.name.endswith(".json") and "checkpoint" not in each.name
        )
        for uri in (ours, theirs)
    ]
    assert left[0] == left[1]
    assert int(left[0][0]) == 6
    assert len(readings(delta_spark, ours)) == 1
    assert result.snapshot.num_records == 9
    assert DeltaTable(ours, version=6).snapshot().num_records == 6
    assert delta_spark.sql(f"DESCRIBE HISTORY delta.`{ours}`").count() == 4
    delta_spark.sql(f"DELETE FROM delta.`{ours}` WHERE id < 4")
    assert DeltaTable(ours).snapshot().num_records == 6


@pytest.mark.exhaustive
def test_all_read_a_log_whose_checkpoints_are_rarer_while_the_table_is_large(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_properties, "_FILES_PER_COMMIT", 1)
    uri, checkpoints = str(tmp_path), []
    rows = pa.table({"id": range(15), "p": [n % 3 for n in range(15)]})
    DeltaTable(uri, must_exist=False).append(rows, partition_by=["p"])
    for version in range(1, 31):
        # There are 13 files at version 10, 8 at version 20, and 18 at version 30.
        if version == 15:
            DeltaTable(uri).overwrite(rows)
        else:
            DeltaTable(uri).append(rows.slice(version % 15, 1))
        if (tmp_path / checkpoint_path(version)).exists():
            checkpoints.append(version)
        if version in (10, 19, 20, 21, 30):
            assert len(readings(delta_spark, uri)) == 1
    assert checkpoints == [20]


@pytest.mark.parametrize("engine", ["arrow", "spark"])
@pytest.mark.examples(2)
def test_rows_that_delta_spark_deletes_meanwhile_are_deleted_in_the_compacted_files(
    engine: Literal["arrow", "spark"], delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "table")
    vectors = "TBLPROPERTIES (delta.enableDeletionVectors = true)"
    delta_spark.sql(
        f"CREATE TABLE delta.`{uri}` (id BIGINT, p BIGINT) USING delta PARTITIONED BY (p) {vectors}"
    )
    for start in (0, 50, 100):
        rows = delta_spark.range(start, start + 50, 1, 2).selectExpr("id", "id % 3 AS p")
        rows.write.format("delta").mode("append").save(uri)
    statements = [f"DELETE FROM delta.`{uri}` WHERE id % 7 = 3"]
    statements += [f"UPDATE delta.`{uri}` SET id = id + 1000 WHERE id IN (1, 51, 53)"]

    def rival(operation: str, path: str) -> None:
        if operation == "put_if_absent" and path.endswith(".json") and statements:
            delta_spark.sql(statements.pop(0))

    store = open_store(uri)
    table = DeltaTable(uri, store=FaultyStore(store, before_call=rival))
    result = table.optimize(engine=engine)
    assert (result.num_left_files, result.metrics["numAddedFiles"]) == (0, 3)
    expected = {each for each in range(150) if each % 7 != 3} - {1, 51, 53} | {1001, 1051, 1053}
    found = DeltaTable(uri).snapshot().scan(["id"]).to_arrow()["id"].to_pylist()
    assert sorted(found) == sorted(expected)
    assert len(readings(delta_spark, uri)) == 1
