"""Columns that Spark declared as VARCHAR(n) or CHAR(n): no write of ours goes beyond."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import ConstraintViolation
from dagster_delta.protocol.features.text_limits import text_limits
from dagster_delta.protocol.schema import ArrayType, PrimitiveType, StructField, StructType
from dagster_delta.storage.memory_store import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

TEXT = PrimitiveType("string")
KEY = "__CHAR_VARCHAR_TYPE_STRING"


def limited() -> DeltaTable:
    fields = [
        StructField("id", PrimitiveType("long")),
        StructField("v", TEXT, metadata={KEY: "varchar(3)"}),
        StructField("p", TEXT, metadata={KEY: "char(2)"}),
    ]
    return DeltaTable.create("memory://t", fields, partition_by=["p"], store=MemoryStore())


def rows(v: str | None, p: str | None = "ab") -> pa.Table:
    return pa.table({"id": [1], "v": pa.array([v], pa.string()), "p": pa.array([p], pa.string())})


def test_texts_within_the_length_are_written() -> None:
    table = limited()
    table.append(rows("äöü"))
    table.append(rows(None, None))
    table.append(rows("", ""))
    assert table.snapshot().num_records == 3


def test_texts_beyond_the_length_are_refused() -> None:
    table = limited()
    table.append(rows("abc"))
    writes: tuple[Callable[[], object], ...] = (
        lambda: table.append(rows("abcd")),
        lambda: table.overwrite(rows("x", "abc")),
        lambda: table.update({"v": "concat(v, 'd')"}),
        lambda: table.merge(rows("abcd"), "t.id = s.id").when_matched_update_all().execute(),
    )
    for write in writes:
        with pytest.raises(ConstraintViolation, match=r"CHAR\([23]\) of column"):
            write()
    assert table.snapshot().scan().to_arrow()["v"].to_pylist() == ["abc"]


@pytest.mark.delta_spark
def test_lengths_that_delta_spark_declared_bind_both_engines(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    delta_spark.sql(f"CREATE TABLE delta.`{tmp_path}` (v VARCHAR(3)) USING delta")
    table = DeltaTable(str(tmp_path))
    for data in (pa.table({"v": ["abcd"]}), delta_spark.sql("SELECT 'abcd' AS v")):
        with pytest.raises(ConstraintViolation, match=r"VARCHAR\(3\) of column v"):
            table.append(data)
    table.append(pa.table({"v": ["abc"]}))
    assert [row.v for row in delta_spark.read.format("delta").load(str(tmp_path)).collect()] == [
        "abc"
    ]


def nested() -> DeltaTable:
    struct = StructType(
        (StructField("v", TEXT), StructField("c", TEXT), StructField("n", PrimitiveType("long")))
    )
    declared = "struct<v:varchar(2),c:char(2),n:bigint>"
    fields = [
        StructField("id", PrimitiveType("long")),
        StructField("s", struct, metadata={KEY: declared}),
        StructField("a", ArrayType(TEXT), metadata={KEY: "array<varchar(2)>"}),
        StructField("v", TEXT, metadata={KEY: "varchar(3)"}),
    ]
    return DeltaTable.create(
        "memory://nested",
        fields,
        properties={"delta.columnMapping.mode": "name"},
        store=MemoryStore(),
    )


def declared(table: DeltaTable) -> dict[str, object]:
    return {each.name: each.metadata.get(KEY) for each in table.schema()}


def nested_rows(v: str | None, c: str | None) -> pa.Table:
    kind = pa.struct([("v", pa.string()), ("c", pa.string()), ("n", pa.int64())])
    structs = pa.array([{"v": v, "c": c, "n": 1}, None], kind)
    return pa.table({"id": [1, 2], "s": structs})


def test_limits_of_the_fields_of_structs_bind_too() -> None:
    table = nested()
    table.append(nested_rows("ab", None))
    writes: tuple[Callable[[], object], ...] = (
        lambda: table.append(nested_rows("abc", "x")),
        lambda: table.append(nested_rows("x", "abc")),
        lambda: table.update({"s.v": "'abc'"}),
    )
    for write in writes:
        with pytest.raises(ConstraintViolation, match=r"CHAR\(2\) of column s\.[vc] "):
            write()


def test_declared_types_follow_the_fields_they_name() -> None:
    table = nested()
    table.rename_column("s.v", "the name")
    assert declared(table)["s"] == "struct<`the name`:varchar(2),c:char(2),n:bigint>"
    table.drop_column("s.c")
    table.add_column("s.x", "INT")
    assert declared(table)["s"] == "struct<`the name`:varchar(2),n:bigint,x:int>"
    table.rename_column("s", "t")
    with pytest.raises(ConstraintViolation, match=r"VARCHAR\(2\) of column t\.`the name`"):
        table.append(pa.table({"id": [1], "t": [{"the name": "abc"}]}))
    table.drop_column(["t", "the name"])
    assert declared(table) == {"id": None, "t": None, "a": "array<varchar(2)>", "v": "varchar(3)"}


def test_a_column_that_becomes_string_has_no_limit() -> None:
    table = nested()
    table.alter("ALTER COLUMN v TYPE STRING")
    assert declared(table)["v"] is None
    table.append(pa.table({"id": [1], "v": ["abcd"]}))


def test_what_is_not_understood_of_a_declared_type_limits_nothing() -> None:
    for text in ("struct<", "varchar(x)", "array<varchar(2)>>", "mop<a,b>", ""):
        field = StructField("v", TEXT, metadata={KEY: text})
        assert list(text_limits(StructType((field,)))) == []


@pytest.mark.delta_spark
def test_delta_spark_reads_a_struct_that_lost_a_limited_field(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = f"delta.`{tmp_path}`"
    delta_spark.sql(
        f"CREATE TABLE {uri} (id INT, s STRUCT<v: VARCHAR(2), c: CHAR(2), n: BIGINT>) "
        "USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    delta_spark.sql(f"INSERT INTO {uri} VALUES (1, named_struct('v', 'a', 'c', 'b', 'n', 2))")
    table = DeltaTable(str(tmp_path))
    table.drop_column(("s", "v"))
    table.rename_column(("s", "c"), "z z")
    assert [tuple(each.s) for each in delta_spark.sql(f"SELECT s FROM {uri}").collect()] == [
        ("b ", 2)
    ]
    for data in ("SELECT 2 id, named_struct('z z', 'abc', 'n', 3L) s", "SELECT * FROM " + uri):
        frame = delta_spark.sql(data)
        if "abc" in data:
            with pytest.raises(ConstraintViolation, match=r"CHAR\(2\) of column s\.`z z`"):
                table.append(frame)
            with pytest.raises(Exception, match="CHAR_VARCHAR_LIMIT"):
                delta_spark.sql(f"INSERT INTO {uri} {data}")
        else:
            table.append(frame)
            delta_spark.sql(f"INSERT INTO {uri} {data}")
    assert DeltaTable(str(tmp_path)).snapshot().num_records == 4
