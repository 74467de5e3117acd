"""Our DELETE and UPDATE against delta-spark's: the same rows, the same changes, read by all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from tests.golden.answers import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.delta_spark

COLUMNS = (
    "id BIGINT, v STRING, n INT, price DECIMAL(10,2), at TIMESTAMP_NTZ, day DATE, "
    "s STRUCT<a: INT, b: STRING>, xs ARRAY<INT>, p INT"
)
SELECT = """SELECT id, concat('v', id), cast(id % 11 AS INT), cast(id / 4 AS DECIMAL(10,2)),
    timestampadd(MINUTE, cast(id AS INT), TIMESTAMP_NTZ '2024-01-01 00:00:00'),
    date_add(DATE '2024-01-01', cast(id % 40 AS INT)),
    if(id % 7 = 0, null, named_struct('a', cast(id AS INT), 'b', concat('b', id))),
    if(id % 5 = 0, null, array(cast(id AS INT), null)),
    if(id % 4 = 3, null, cast(id % 4 AS INT))"""

SHAPES: dict[str, tuple[str, dict[str, str]]] = {
    "plain": ("", {}),
    "partitioned": ("PARTITIONED BY (p)", {}),
    "mapped_by_name": ("PARTITIONED BY (p)", {"delta.columnMapping.mode": "name"}),
    "mapped_by_id": ("PARTITIONED BY (p)", {"delta.columnMapping.mode": "id"}),
    "widened": ("PARTITIONED BY (p)", {"delta.enableTypeWidening": "true"}),
    "vectors": ("", {"delta.enableDeletionVectors": "true"}),
    "partitioned_vectors": ("PARTITIONED BY (p)", {"delta.enableDeletionVectors": "true"}),
    "mapped_vectors": (
        "PARTITIONED BY (p)",
        {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"},
    ),
    "widened_vectors": (
        "",
        {"delta.enableDeletionVectors": "true", "delta.enableTypeWidening": "true"},
    ),
}
BEYOND_DELTALAKE = {
    "mapped_by_id": "deltalake refuses column mapping by id",
    "widened": "deltalake reads no widened tables",
    "widened_vectors": "deltalake reads no widened tables",
}

Operation = tuple[str, str, Callable[[DeltaTable], Any]]

OPERATIONS: list[Operation] = [
    (
        "deletes",
        "DELETE FROM {t} WHERE n = 3 AND id > 20",
        lambda table: table.delete("n = 3 AND id > 20"),
    ),
    (
        "more deletes",
        "DELETE FROM {t} WHERE s.a % 6 = 5 OR p IS NULL AND day < DATE '2024-01-10'",
        lambda table: table.delete("s.a % 6 = 5 OR p IS NULL AND day < DATE '2024-01-10'"),
    ),
    (
        "updates",
        "UPDATE {t} SET v = concat(v, '!'), n = n + 1, price = price * 2 WHERE id % 9 = 2",
        lambda table: table.update(
            {"v": "concat(v, '!')", "n": "n + 1", "price": "price * 2"}, "id % 9 = 2"
        ),
    ),
    (
        "moves",
        "UPDATE {t} SET p = NULL, s.b = 'new', at = TIMESTAMP_NTZ '2020-02-29 12:00:00.000001' "
        "WHERE p = 2 AND id > 40",
        lambda table: table.update(
            {"p": "NULL", "s.b": "'new'", "at": "TIMESTAMP_NTZ '2020-02-29 12:00:00.000001'"},
            "p = 2 AND id > 40",
        ),
    ),
    (
        "casts",
        "UPDATE {t} SET n = '7', price = 1.555, v = id WHERE id BETWEEN 50 AND 60",
        lambda table: table.update(
            {"n": "'7'", "price": "1.555", "v": "id"}, "id BETWEEN 50 AND 60"
        ),
    ),
    ("drops", "DELETE FROM {t} WHERE p = 1", lambda table: table.delete("p = 1")),
    ("nothing", "DELETE FROM {t} WHERE id = -1", lambda table: table.delete("id = -1")),
    (
        "all",
        "UPDATE {t} SET day = day, xs = NULL",
        lambda table: table.update({"day": "day", "xs": "NULL"}),
    ),
]


def build(session: SparkSession, uri: str, shape: str, *, feed: bool) -> None:
    """Two commits of two files by delta-spark, one of them from before the widening."""
    clause, properties = SHAPES[shape]
    properties = {
        "delta.enableDeletionVectors": "false",
        **properties,
        "delta.enableChangeDataFeed": str(feed).lower(),
    }
    texts = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    columns = COLUMNS.replace("n INT", "n SMALLINT") if "widened" in shape else COLUMNS
    session.sql(
        f"CREATE TABLE delta.`{uri}` ({columns}) USING delta {clause} TBLPROPERTIES ({texts})"
    )
    session.sql(f"INSERT INTO delta.`{uri}` {SELECT} FROM range(0, 60, 1, 1)")
    if "widened" in shape:
        session.sql(f"ALTER TABLE delta.`{uri}` ALTER COLUMN n TYPE INT")
    session.sql(f"INSERT INTO delta.`{uri}` {SELECT} FROM range(60, 120, 1, 1)")


def rows(session: SparkSession, uri: str) -> Any:
    return rows_of(session.read.format("delta").load(uri).toArrow())


def changes(session: SparkSession, uri: str, version: int) -> Any:
    frame = (
        session.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", version)
        .option("endingVersion", version)
        .load(uri)
    )
    return rows_of(frame.drop("_commit_timestamp", "_commit_version").toArrow())


@pytest.mark.parametrize("shape", SHAPES)
def test_every_operation_gives_the_rows_and_changes_that_delta_spark_gives(
    shape: str, delta_spark: SparkSession, tmp_path: Path
) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    build(delta_spark, theirs, shape, feed=True)
    shutil.copytree(theirs, ours)
    for name, sql, operation in OPERATIONS:
        delta_spark.sql(sql.format(t=f"delta.`{theirs}`"))
        result = operation(DeltaTable(ours))
        check_rows(delta_spark, ours, theirs, shape, name)
        if not result.skipped:
            version = result.version
            assert changes(delta_spark, ours, version) == changes(delta_spark, theirs, version)


@pytest.mark.parametrize("shape", ["partitioned", "partitioned_vectors"])
def test_without_a_change_data_feed_the_rows_are_the_same(
    shape: str, delta_spark: SparkSession, tmp_path: Path
) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    build(delta_spark, theirs, shape, feed=False)
    shutil.copytree(theirs, ours)
    for name, sql, operation in OPERATIONS:
        delta_spark.sql(sql.format(t=f"delta.`{theirs}`"))
        operation(DeltaTable(ours))
        check_rows(delta_spark, ours, theirs, shape, name)
    assert not Path(ours, "_change_data").exists()


def check_rows(session: SparkSession, ours: str, theirs: str, shape: str, name: str) -> None:
    """Everyone reads from our table what delta-spark made of its own."""
    expected = session.read.format("delta").load(theirs).toArrow()
    table = DeltaTable(ours)
    assert rows(session, ours) == rows_of(expected), name
    assert rows_of(table.snapshot().scan().to_arrow()) == rows_of(expected), name
    assert table.version() == DeltaTable(theirs).version(), name
    assert table.snapshot().num_records == expected.num_rows, name
    if shape not in BEYOND_DELTALAKE:
        read = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(ours))
        found = pa.table(read.execute("SELECT id, v FROM t").read_all())
        assert rows_of(found) == rows_of(expected.select(["id", "v"]).cast(found.schema)), name


@pytest.mark.parametrize("shape", ["plain", "partitioned", "vectors", "mapped_vectors"])
def test_delta_spark_goes_on_where_we_left_off(
    shape: str, delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / shape)
    build(delta_spark, uri, shape, feed=True)
    table = DeltaTable(uri)
    model = {each["id"]: each for each in table.snapshot().scan().to_arrow().to_pylist()}
    for turn in range(3):
        table.refresh()
        table.delete(f"id % 20 = {turn}")
        table.update({"v": f"'ours {turn}'"}, f"id % 20 = {turn + 5}")
        delta_spark.sql(f"DELETE FROM delta.`{uri}` WHERE id % 20 = {turn + 10}")
        delta_spark.sql(f"UPDATE delta.`{uri}` SET v = 'theirs {turn}' WHERE id % 20 = {turn + 15}")
        for each in list(model):
            if each % 20 in (turn, turn + 10):
                del model[each]
            elif each % 20 == turn + 5:
                model[each]["v"] = f"ours {turn}"
            elif each % 20 == turn + 15:
                model[each]["v"] = f"theirs {turn}"
    delta_spark.sql(f"OPTIMIZE delta.`{uri}`")
    found = table.refresh().scan().to_arrow()
    assert {each["id"]: each["v"] for each in found.to_pylist()} == {
        key: each["v"] for key, each in model.items()
    }
    assert rows_of(found) == rows(delta_spark, uri)


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_large_vectors_are_read_by_delta_spark_and_deltalake(
    vectors: str, delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "large")
    table = DeltaTable(uri, must_exist=False)
    data = pa.table({"id": range(300_000), "v": ["x"] * 300_000})
    for start in range(0, 300_000, 100_000):
        table.append(
            data.slice(start, 100_000), properties={"delta.enableDeletionVectors": vectors}
        )
    table.delete("id % 7 = 3 AND id < 200000")
    table.delete("id % 11 = 3")
    expected = [n for n in range(300_000) if not ((n % 7 == 3 and n < 200_000) or n % 11 == 3)]
    found = delta_spark.read.format("delta").load(uri).toArrow()["id"].to_pylist()
    assert sorted(found) == expected
    theirs = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(uri))
    read = pa.table(theirs.execute("SELECT id FROM t").read_all())
    assert sorted(read["id"].to_pylist()) == expected
    files = list(Path(uri).glob("deletion_vector_*.bin"))
    assert len(files) == (2 if vectors == "true" else 0)


def test_statistics_with_wide_bounds_still_skip_files_in_delta_spark(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "skipped")
    table = DeltaTable(uri, must_exist=False)
    for start in (0, 10, 20):
        table.append(
            pa.table({"id": range(start, start + 10)}),
            properties={"delta.enableDeletionVectors": "true"},
        )
    table.delete("id % 10 = 4")
    frame = delta_spark.read.format("delta").load(uri).where("id = 15")
    assert [row.id for row in frame.collect()] == [15]
    assert len(frame.inputFiles()) == 1
