"""CHAR(n) is read and compared as delta-spark does, whatever stands in the files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.engines.spark.read.reader import _FrameReader
from dagster_delta.engines.spark.session.schema import from_spark_schema
from dagster_delta.errors import ConstraintViolation, UnsupportedExpression
from tests.families import family
from tests.golden.answers import rows_of
from tests.reference.test_delta_spark import alike, read_by_delta_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.delta_spark

COLUMNS = (
    "id BIGINT, c CHAR(5), d CHAR(5), v VARCHAR(5), p CHAR(3), s STRUCT<c: CHAR(4), n: INT>, "
    "a ARRAY<CHAR(4)>, m MAP<CHAR(2), STRUCT<x: CHAR(3)>>"
)
ROWS = [
    {
        "id": 1, "c": "ab", "d": "ab", "v": "ab", "p": "x", "s": {"c": "q", "n": 1},
        "a": ["w", None], "m": [("k", {"x": "v"})],
    },
    {"id": 2, "c": "ab   ", "d": "b", "v": "ab", "p": "y", "s": {"c": "q   "}, "a": [], "m": []},
    {"id": 3, "c": "a\t", "d": "é✈", "v": "cd", "p": "x", "s": {"c": None}, "a": ["wxyz"]},
    {"id": 4},
]  # fmt: skip
MODES = ["none", "name", "id"]


def unpadded(session: SparkSession, uri: str, mode: str = "none") -> DeltaTable:
    """A table of delta-spark's, with a file per row of ours."""
    session.sql(
        f"CREATE TABLE delta.`{uri}` ({COLUMNS}) USING delta PARTITIONED BY (p) "
        f"TBLPROPERTIES ('delta.columnMapping.mode' = '{mode}', "
        "'delta.enableChangeDataFeed' = 'true')"
    )
    table = DeltaTable(uri)
    schema = table.snapshot().arrow_schema
    for row in ROWS:
        table.append(pa.Table.from_pylist([row], schema=schema))
    return table


@pytest.fixture(scope="module")
def table(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    return unpadded(delta_spark, str(tmp_path_factory.mktemp("char") / "t"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.exhaustive
def test_texts_are_filled_up_at_every_depth(
    delta_spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    uri = str(tmp_path / "t")
    snapshot = unpadded(delta_spark, uri, mode).snapshot()
    theirs = read_by_delta_spark(delta_spark, uri)
    assert theirs.num_rows == len(ROWS)
    alike(theirs, snapshot.scan().to_arrow())
    assert rows_of(snapshot.scan().to_spark(delta_spark).toArrow()) == rows_of(theirs)


WHERES = [
    "c = 'ab'",
    "'ab ' = c",
    "c = 'ab       '",
    "c <> 'ab'",
    "c < 'ab'",
    "c <= 'ab'",
    "c >= 'ab' AND id > 0",
    "c <=> 'ab'",
    "c IN ('ab', 'zz')",
    "c NOT IN ('ab')",
    "c LIKE 'ab'",
    "c LIKE 'ab%'",
    "length(c) = 5",
    "c = d",
    "c = v",
    "d = 'é✈'",
    "v = 'ab'",
    "c IS NULL",
    "p = 'x'",
    "p <> 'x'",
    "p IN ('x', 'z')",
    "p LIKE 'x'",
    "p IS NULL",
    "s.c = 'q'",
    "s.c = 'q   '",
    "s.c IS NOT NULL",
    "concat(c, '|') = 'ab   |'",
    "upper(c) = 'AB'",
    "CAST(c AS STRING) = 'ab'",
    "string(c) IN ('ab')",
    "c::string = 'ab   '",
    "coalesce(c) = 'ab'",
    "concat(c) = 'ab'",
    "m['k '].x = 'v  '",
]
ONLY_SPARK = ["c BETWEEN 'ab' AND 'ab'", "c = 'abcdefgh'", "c = concat('a', 'b')", "c > p"]


@pytest.mark.parametrize("where", family(WHERES + ONLY_SPARK, *(WHERES + ONLY_SPARK)[::8]))
def test_filters_find_what_they_find_in_delta_spark(
    delta_spark: SparkSession, table: DeltaTable, where: str
) -> None:
    uri = str(table.uri)
    theirs = delta_spark.read.format("delta").load(uri).where(where).select("id")
    ids = sorted(row.id for row in theirs.collect())
    scan = table.snapshot().scan(["id"], where)
    assert sorted(row.id for row in scan.to_spark(delta_spark).collect()) == ids
    later = table.snapshot().scan().to_spark(delta_spark).where(where).select("id")
    assert sorted(row.id for row in later.collect()) == ids
    if where in ONLY_SPARK:
        with pytest.raises(UnsupportedExpression):
            scan.to_arrow()
    else:
        assert sorted(scan.to_arrow()["id"].to_pylist()) == ids
        assert scan.count() == len(ids)


@pytest.mark.parametrize("engine", ["arrow", "spark"])
@pytest.mark.exhaustive
def test_changes_find_and_keep_the_rows(
    delta_spark: SparkSession, tmp_path: Path, engine: str
) -> None:
    uri = str(tmp_path / "t")
    table = unpadded(delta_spark, uri)
    table.add_constraint("ab", "c = 'ab' OR id > 1 OR id < 0")
    table.update({"v": "'new'"}, where="c = 'ab'", engine=engine)
    theirs = read_by_delta_spark(delta_spark, uri)
    assert sorted(zip(*theirs.select(["id", "v"]).to_pydict().values(), strict=True))[:3] == [
        (1, "new"),
        (2, "new"),
        (3, "cd"),
    ]
    alike(theirs, table.snapshot().scan().to_arrow())
    table.delete("p = 'x' AND c = 'ab'", engine=engine)
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [2, 3, 4]
    alike(read_by_delta_spark(delta_spark, uri), table.snapshot().scan().to_arrow())
    changes = table.changes(starting_version=1)
    feed = delta_spark.read.format("delta").option("readChangeFeed", "true")
    texts = [
        (row.c, row["_change_type"])
        for row in feed.option("startingVersion", 1).load(uri).where("id = 1").collect()
    ]
    ours = changes.to_arrow()
    ours = ours.filter(pa.compute.equal(ours["id"], 1)).select(["c", "_change_type"])
    assert sorted(zip(*ours.to_pydict().values(), strict=True)) == sorted(texts)
    spark_rows = changes.to_spark(delta_spark).where("id = 1").collect()
    assert sorted((row.c, row["_change_type"]) for row in spark_rows) == sorted(texts)


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_merges_pad_on_both_sides_of_a_comparison(
    delta_spark: SparkSession, tmp_path: Path, engine: str
) -> None:
    table = unpadded(delta_spark, str(tmp_path / "t"))
    source = pa.table({"k": ["ab"], "n": pa.array([40], pa.int64())})
    merge = table.merge(source, on="t.c = u.k AND t.d = 'ab'", source_alias="u", engine=engine)
    merge.when_matched_update({"id": "u.n"}).when_not_matched_by_source_delete(
        "t.p = 'y'"
    ).execute()
    ids = [each or 0 for each in table.snapshot().scan(["id"]).to_arrow()["id"].to_pylist()]
    assert sorted(ids) == [3, 4, 40]


@pytest.mark.exhaustive
def test_files_that_arrow_reads_on_executors_are_filled_up_too(
    delta_spark: SparkSession, table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_FrameReader, "_is_native", lambda _: False)
    rows = table.snapshot().scan(where="c = 'ab'").to_spark(delta_spark)
    assert sorted(row.id for row in rows.where("d = 'ab'").collect()) == [1]


@pytest.mark.exhaustive
def test_a_constraint_holds_for_what_it_holds_for_in_delta_spark(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    delta_spark.sql(f"CREATE TABLE delta.`{uri}` (id BIGINT, c CHAR(5)) USING delta")
    delta_spark.sql(f"ALTER TABLE delta.`{uri}` ADD CONSTRAINT k CHECK (c = 'ab')")
    for text, is_kept in (("ab   ", True), ("ab", False)):
        rows = pa.table({"id": pa.array([1], pa.int64()), "c": [text]})
        frame = delta_spark.createDataFrame([(1, text)], "id BIGINT, c STRING")
        for data in (rows, frame):
            if is_kept:
                DeltaTable(uri).append(data)
                continue
            with pytest.raises(ConstraintViolation):
                DeltaTable(uri).append(data)
    assert read_by_delta_spark(delta_spark, uri).num_rows == 2


@pytest.mark.exhaustive
def test_a_copy_of_the_rows_keeps_the_declared_lengths(
    delta_spark: SparkSession, table: DeltaTable, tmp_path: Path
) -> None:
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    delta_spark.read.format("delta").load(str(table.uri)).write.format("delta").save(theirs)
    rows = table.snapshot().scan().to_spark(delta_spark)
    assert rows.schema == delta_spark.read.format("delta").load(str(table.uri)).schema
    DeltaTable.create(ours, from_spark_schema(rows.schema)).append(rows)
    alike(read_by_delta_spark(delta_spark, theirs), DeltaTable(ours).snapshot().scan().to_arrow())
    found = DeltaTable(ours).schema(), DeltaTable(theirs).schema()
    assert found[0].field("c").metadata == found[1].field("c").metadata
