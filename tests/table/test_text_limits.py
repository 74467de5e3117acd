"""Columns that Spark declared as VARCHAR(n) or CHAR(n): no write of ours goes beyond."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import ConstraintViolation
from dagster_delta.protocol.schema import PrimitiveType, StructField
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
