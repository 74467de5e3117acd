"""Tables with variants that both engines wrote: delta-spark reads them, writes on, and we read."""

from __future__ import annotations

import datetime as dt
import shutil
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from dagster_delta import (
    DeltaTable,
    variants_from_json,
    variants_from_python,
    variants_to_json,
    variants_to_python,
)
from dagster_delta.protocol.variant.binary import SingleFloat
from tests.families import family
from tests.golden.answers import table_path
from tests.parquet.shredding import is_shredded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.delta_spark

COLUMNS = (
    "id",
    "to_json(v) v",
    "schema_of_variant(v) kind",
    "to_json(s) s",
    "to_json(a) a",
    "to_json(m) m",
)
NEW = """SELECT id, CAST(id % 2 AS INT) p, parse_json(text) v, named_struct('x', parse_json('[1]')) s,
    array(parse_json(text), NULL) a, map('k', parse_json('{"z": 1.50}')) m
    FROM (SELECT id, IF(id % 3 = 0, NULL, concat('{"é": ', id, ', "b": [1e3, null]}')) text
          FROM RANGE({first}, {last}))"""


def frame(session: SparkSession, first: int, last: int) -> DataFrame:
    return session.sql(NEW.replace("{first}", str(first)).replace("{last}", str(last)))


def arrow_rows(first: int, last: int) -> pa.Table:
    """The rows of `frame`, which Spark cannot give as Arrow where a variant is null."""
    ids = range(first, last)
    texts = [None if each % 3 == 0 else f'{{"é": {each}, "b": [1e3, null]}}' for each in ids]
    variants = variants_from_json(texts).to_pylist()
    one, decimal = variants_from_json(["[1]", '{"z": 1.50}']).to_pylist()
    storage = variants_from_json([]).type
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "p": pa.array([each % 2 for each in ids], pa.int32()),
            "v": pa.array(variants, storage),
            "s": pa.array([{"x": one}] * len(ids), pa.struct([("x", storage)])),
            "a": pa.array([[each, None] for each in variants], pa.list_(storage)),
            "m": pa.array([[("k", decimal)]] * len(ids), pa.map_(pa.string(), storage)),
        }
    )


def seen(rows: DataFrame) -> list[Any]:
    return sorted(tuple(each) for each in rows.selectExpr(*COLUMNS).collect())


def judged(session: SparkSession, uri: str) -> DataFrame:
    return session.read.format("delta").load(uri)


SHAPES: dict[str, dict[str, str]] = {
    "plain": {},
    "vectors": {
        "delta.enableDeletionVectors": "true",
        "delta.enableRowTracking": "true",
        "delta.enableVariantShredding": "true",
    },
    "mapped": {
        "delta.columnMapping.mode": "name",
        "delta.enableChangeDataFeed": "true",
        "delta.enableVariantShredding": "true",
    },
}


@pytest.mark.parametrize(
    ("engine", "shape"),
    family([("arrow", "mapped"), ("spark", "plain"), ("spark", "vectors")], ("arrow", "mapped")),
)
def test_delta_spark_reads_and_writes_on(
    engine: Any, shape: str, delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path)
    session = delta_spark

    def data(first: int, last: int) -> Any:
        return arrow_rows(first, last) if engine == "arrow" else frame(session, first, last)

    table = DeltaTable.create(
        uri, arrow_rows(0, 0).schema, partition_by=["p"], properties=SHAPES[shape]
    )
    table.append(data(0, 12), engine=engine)
    assert not is_shredded(uri)
    assert seen(judged(session, uri)) == seen(frame(session, 0, 12))
    table.update({"p": "p + 5"}, "id IN (1, 2)", engine=engine)
    table.update({"v": "id"}, "id = 4", engine=engine)
    table.delete("id = 5", engine=engine)
    merge = table.merge(data(10, 15), on="t.id = s.id", engine=engine)
    merge.when_matched_update({"v": "s.v"}).when_not_matched_insert_all().execute()
    wanted = frame(session, 0, 15).where("id <> 5")
    wanted = wanted.selectExpr("id", "p", "IF(id = 4, CAST(4 AS VARIANT), v) v", "s", "a", "m")
    assert seen(judged(session, uri)) == seen(wanted)
    table.optimize(engine=engine)
    assert seen(judged(session, uri)) == seen(wanted)
    frame(session, 30, 33).write.format("delta").mode("append").save(uri)
    after = DeltaTable(uri).snapshot()
    assert seen(after.scan().to_spark(session)) == seen(wanted.union(frame(session, 30, 33)))
    texts = dict(session_texts(wanted.union(frame(session, 30, 33))))
    rows = after.scan().to_arrow()
    assert dict(zip(rows["id"].to_pylist(), variants_to_json(rows["v"]), strict=True)) == texts


def session_texts(rows: DataFrame) -> list[tuple[int, str | None]]:
    return [(each.id, each.v) for each in rows.selectExpr("id", "to_json(v) v").collect()]


@pytest.mark.parametrize("engine", ["arrow", "spark"])
@pytest.mark.exhaustive
def test_a_table_of_delta_spark_is_written_on(
    engine: Any, delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path)
    frame(delta_spark, 0, 3).write.format("delta").partitionBy("p").save(uri)
    delta_spark.sql(
        f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('delta.enableVariantShredding' = 'true')"
    )
    frame(delta_spark, 3, 6).write.format("delta").mode("append").save(uri)
    new = frame(delta_spark, 6, 9)
    DeltaTable(uri).append(arrow_rows(6, 9) if engine == "arrow" else new, engine=engine)
    DeltaTable(uri).update({"p": "9"}, "id IN (1, 4)", engine=engine)
    assert seen(judged(delta_spark, uri)) == seen(frame(delta_spark, 0, 9))


@pytest.mark.exhaustive
def test_a_preview_table_stays_one(delta_spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "copy")
    shutil.copytree(table_path("golden__spark-variant-checkpoint"), uri)
    table = DeltaTable(uri)
    before = judged(delta_spark, uri).selectExpr("to_json(struct(*)) row")
    wanted = sorted(each.row for each in before.collect() for _ in range(3))
    rows, protocol = table.snapshot().scan(), table.protocol()
    table.append(rows.to_arrow())
    table.append(rows.to_spark(delta_spark))
    after = judged(delta_spark, uri).selectExpr("to_json(struct(*)) row")
    assert sorted(each.row for each in after.collect()) == wanted
    assert table.protocol() == protocol


@pytest.mark.exhaustive
def test_delta_spark_reads_values_of_every_type(delta_spark: SparkSession, tmp_path: Path) -> None:
    moment = dt.datetime(1969, 12, 31, 23, 59, 59, 123456)
    values: list[Any] = [
        {
            "bool": each % 2 == 0,
            "int": each * 10**15,
            "decimal": Decimal(each).scaleb(-each),
            "wide": Decimal(10) ** 30 + each,
            "float": SingleFloat.of(each / 7),
            "double": each / 7,
            "date": dt.date(1960, 1, 1) + dt.timedelta(days=each),
            "ntz": moment + dt.timedelta(hours=each),
            "utc": (moment + dt.timedelta(hours=each)).replace(tzinfo=dt.UTC),
            "bytes": bytes([each]),
            "text": "long " * 20 * each,
            "list": [[each], [], [{"x": each}, {"x": None, "y": each}, "z"]],
            "sub": {"deep": {"deeper": each}, **({"rare": each} if each == 3 else {})},
            "mixed": [each, "text", None, {}][each % 4],
            f"own{each}": each,
        }
        for each in range(12)
    ]
    variants = variants_from_python([*values, None, "no object"])
    rows = pa.table({"id": pa.array(range(14), pa.int64()), "v": variants})
    uri = str(tmp_path)
    DeltaTable.create(uri, rows.schema).append(rows)
    stored = DeltaTable(uri).snapshot().scan().to_arrow()
    assert dict(session_texts(judged(delta_spark, uri))) == dict(
        zip(stored["id"].to_pylist(), variants_to_json(stored["v"]), strict=True)
    )
    assert variants_to_python(stored["v"]) == variants_to_python(variants)


@pytest.mark.exhaustive
def test_rows_are_split_by_partition_with_their_variants(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path)
    rows = frame(delta_spark, 0, 400).selectExpr("id", "CAST(id % 40 AS INT) p", "v", "s", "a", "m")
    DeltaTable(uri, must_exist=False).append(rows.repartition(3), partition_by=["p"])
    assert seen(judged(delta_spark, uri)) == seen(rows)
    assert DeltaTable(uri).snapshot().num_files == 40


@pytest.mark.exhaustive
def test_spark_stores_simple_values_and_no_structs(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path)
    table = DeltaTable(uri, must_exist=False)
    table.append(delta_spark.sql("SELECT 0L id, parse_json('1') v"))
    values = ("'x'", "1.50", "CAST(0.1 AS FLOAT)", "DATE '2024-02-29'")
    for index, each in enumerate(values, 1):
        table.append(delta_spark.sql(f"SELECT {index}L id, {each} v"))
    # The same by the reference, whose INSERT casts so.
    cast = ", ".join(
        f"({index}L, CAST({each} AS VARIANT))" for index, each in enumerate(values, 11)
    )
    delta_spark.sql(f"INSERT INTO delta.`{uri}` VALUES {cast}")
    found = judged(delta_spark, uri).selectExpr("id", "to_json(v) v", "schema_of_variant(v) s")
    by_id = {each.id: (each.v, each.s) for each in found.collect()}
    assert [by_id[index] for index in range(1, 5)] == [by_id[index] for index in range(11, 15)]
    with pytest.raises(Exception, match="struct<a: int32"):
        table.append(delta_spark.sql("SELECT 1L id, named_struct('a', 1) v"))


def test_deltalake_reads_variants_as_they_are_stored(tmp_path: Path) -> None:
    uri = str(tmp_path)
    rows = arrow_rows(0, 5)
    DeltaTable(uri, must_exist=False).append(rows)
    found = deltalake.DeltaTable(uri).to_pyarrow_table()
    assert found.to_pylist() == rows.to_pylist()
