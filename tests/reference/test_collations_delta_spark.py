"""Texts under a collation are compared by it, on Spark, as delta-spark compares them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.engines.spark.read.reader import _FrameReader
from dagster_delta.errors import InvalidArgument, SchemaMismatch, UnsupportedExpression
from dagster_delta.streaming.data_source import register_delta_log
from tests.families import family
from tests.golden.answers import rows_of
from tests.reference.test_delta_spark import alike, read_by_delta_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.delta_spark

LCASE = "STRING COLLATE UTF8_LCASE"
COLUMNS = (
    f"id BIGINT, s {LCASE}, a ARRAY<{LCASE}>, m MAP<STRING, {LCASE}>, "
    f"st STRUCT<x: {LCASE}, y: ARRAY<STRUCT<z: STRING COLLATE UNICODE_CI>>>, plain STRING"
)


@pytest.fixture
def collated(delta_spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A table of a file per row; ours have bounds of the texts, which delta-spark leaves out."""
    uri = str(tmp_path / "collated")
    key = "spark.databricks.delta.schema.typeCheck.enabled"
    delta_spark.conf.set(key, "false")
    try:
        delta_spark.sql(
            f"CREATE TABLE delta.`{uri}` ({COLUMNS}) USING delta "
            "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
        )
        table = DeltaTable(uri)
        schema = table.snapshot().arrow_schema
        for index, text in enumerate(["A", "a", "b", "É", None], 1):
            row = {
                "id": index, "s": text, "a": [text], "m": [("k", text)], "plain": text,
                "st": {"x": text, "y": [{"z": text}]},
            }  # fmt: skip
            table.append(pa.Table.from_pylist([row], schema=schema))
        yield uri
    finally:
        delta_spark.conf.unset(key)


@pytest.mark.parametrize(
    "where",
    family(
        [
            "s = 'a'",
            "s IN ('a', 'É')",
            "s < 'b'",
            "s LIKE 'A%'",
            "startswith(s, 'a')",
            "NOT (s = 'a')",
            "s <=> 'B'",
            "st.x = 'a'",
            "st.y[0].z = 'é'",
            "array_contains(a, 'a')",
            "m['k'] = 'B'",
            "plain = 'a'",
            "s IS NULL",
        ],
        "s IN ('a', 'É')",
        "st.x = 'a'",
    ),
)
def test_filters_find_what_they_find_in_delta_spark(
    delta_spark: SparkSession, collated: str, where: str
) -> None:
    theirs = delta_spark.read.format("delta").load(collated).where(where).select("id")
    ids = sorted(row.id for row in theirs.collect())
    assert ids
    snapshot = DeltaTable(collated).snapshot()
    early = snapshot.scan(["id"], where).to_spark(delta_spark)
    assert sorted(row.id for row in early.collect()) == ids
    late = snapshot.scan().to_spark(delta_spark).where(where)
    assert sorted(row.id for row in late.select("id").collect()) == ids
    if where not in ("plain = 'a'", "s IS NULL"):
        with pytest.raises(UnsupportedExpression):
            snapshot.scan(["id"], where).to_arrow()


@pytest.mark.exhaustive
def test_rows_are_read_with_the_types_of_delta_spark(
    delta_spark: SparkSession, collated: str
) -> None:
    snapshot = DeltaTable(collated).snapshot()
    ours = snapshot.scan().to_spark(delta_spark)
    assert ours.schema == delta_spark.read.format("delta").load(collated).schema
    theirs = read_by_delta_spark(delta_spark, collated)
    alike(theirs, snapshot.scan().to_arrow())
    assert rows_of(ours.toArrow()) == rows_of(theirs)
    assert ours.groupBy("s").count().count() == 4
    nothing = snapshot.scan(["s"], "id = 7").to_spark(delta_spark)
    assert nothing.schema["s"].dataType == ours.schema["s"].dataType


@pytest.mark.exhaustive
def test_files_that_arrow_reads_on_executors_are_compared_by_the_collation_too(
    delta_spark: SparkSession, collated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_FrameReader, "_is_native", lambda _: False)
    rows = DeltaTable(collated).snapshot().scan(where="s = 'a'").to_spark(delta_spark)
    assert sorted(row.id for row in rows.where("st.x = 'A'").collect()) == [1, 2]


@pytest.mark.exhaustive
def test_the_format_for_spark_has_the_types_of_the_table(
    delta_spark: SparkSession, collated: str
) -> None:
    register_delta_log(delta_spark)
    rows = delta_spark.read.format("delta_log").load(collated)
    assert sorted(row.id for row in rows.where("s = 'a'").collect()) == [1, 2]


@pytest.mark.exhaustive
def test_changes_on_spark_find_the_rows_and_keep_the_collations(
    delta_spark: SparkSession, collated: str
) -> None:
    table = DeltaTable(collated)
    declared = [field.metadata for field in table.schema()]
    table.update({"plain": "s", "s": "upper(s)"}, where="s = 'A'", engine="spark")
    alike(read_by_delta_spark(delta_spark, collated), table.snapshot().scan().to_arrow())
    texts = dict(
        zip(*table.snapshot().scan(["id", "s"]).to_arrow().to_pydict().values(), strict=True)
    )
    assert (texts[1], texts[2]) == ("A", "A")
    table.delete("st.x = 'A'", engine="spark")
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [3, 4, 5]
    feed = table.changes(starting_version=1).to_spark(delta_spark)
    assert feed.where("s = 'a' AND _change_type = 'delete'").count() == 2
    assert [field.metadata for field in DeltaTable(collated).schema()] == declared
    alike(read_by_delta_spark(delta_spark, collated), table.snapshot().scan().to_arrow())


@pytest.mark.exhaustive
def test_merges_on_spark_match_by_the_collation(delta_spark: SparkSession, collated: str) -> None:
    table = DeltaTable(collated)
    source = delta_spark.createDataFrame([("B", 30), ("c", 40)], "k STRING, n BIGINT")
    condition = "t.s = collate(u.k, 'UTF8_LCASE')"
    merge = table.merge(source, on=condition, source_alias="u")
    merge.when_matched_update({"id": "u.n"}).execute()
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [1, 2, 4, 5, 30]
    alike(read_by_delta_spark(delta_spark, collated), table.snapshot().scan().to_arrow())


def test_what_the_arrow_engine_would_have_to_compare_is_refused(collated: str) -> None:
    table = DeltaTable(collated)
    with pytest.raises(UnsupportedExpression, match="UTF8_LCASE"):
        table.delete("s = 'a'", engine="arrow")
    source = pa.table({"s": ["a"]})
    merge = table.merge(source, on="t.s = u.s", source_alias="u", engine="arrow")
    with pytest.raises(UnsupportedExpression):
        merge.when_matched_delete().execute()


def test_collations_that_disagree_are_refused_as_spark_refuses_them(
    delta_spark: SparkSession, collated: str
) -> None:
    source = delta_spark.createDataFrame([("B", 30)], "s STRING, n BIGINT")
    merge = DeltaTable(collated).merge(source, on="t.s = u.s", source_alias="u")
    with pytest.raises(InvalidArgument, match="INDETERMINATE_COLLATION"):
        merge.when_matched_delete().execute()


@pytest.mark.exhaustive
def test_constraints_hold_by_the_collation(delta_spark: SparkSession, collated: str) -> None:
    table = DeltaTable(collated)
    delta_spark.sql(f"DELETE FROM delta.`{collated}` WHERE s <> 'a' OR s IS NULL")
    delta_spark.sql(f"ALTER TABLE delta.`{collated}` ADD CONSTRAINT k CHECK (s = 'a')")
    schema = table.snapshot().arrow_schema
    rows = delta_spark.createDataFrame([(9, "A")], "id BIGINT, s STRING")
    table.append(rows)
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [1, 2, 9]
    with pytest.raises(UnsupportedExpression):
        table.append(pa.Table.from_pylist([{"id": 10, "s": "A"}], schema=schema))


def test_a_frame_with_collations_is_refused_by_name(
    delta_spark: SparkSession, collated: str
) -> None:
    table = DeltaTable(collated)
    with pytest.raises(SchemaMismatch, match="collate"):
        table.append(table.snapshot().scan().to_spark(delta_spark))
