"""What others make of a table whose existing rows take a default when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from tests.golden.answers import rows_of
from tests.reference.test_deltalake import read_by_deltalake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "p": ["a", "b", None]})


def lazy_table(uri: str) -> DeltaTable:
    table = DeltaTable.create(uri, ROWS.schema, partition_by=["p"])
    table.append(ROWS)
    table.alter(
        "ADD COLUMN c INT NOT NULL DEFAULT 7, ADD COLUMN d STRING DEFAULT 'x'", existing_rows="lazy"
    )
    table.append(pa.table({"id": [4], "p": ["a"], "c": [9], "d": [None]}, ROWS_LATER))
    return table


ROWS_LATER = pa.schema(
    [("id", pa.int32()), ("p", pa.string()), ("c", pa.int32()), ("d", pa.string())]
)


def test_deltalake_refuses_the_table_until_the_default_is_in_its_files(tmp_path: Path) -> None:
    uri = str(tmp_path)
    table = lazy_table(uri)
    expected = table.snapshot().scan().to_arrow()
    with pytest.raises(Exception, match=r"existingDefaults|[Uu]nsupported"):
        read_by_deltalake(uri)
    with pytest.raises(Exception, match=r"existingDefaults|[Uu]nsupported"):
        deltalake.write_deltalake(uri, ROWS, mode="append", schema_mode="merge")
    table.materialize_defaults()
    theirs = read_by_deltalake(uri)
    assert rows_of(theirs.select(expected.column_names).cast(expected.schema)) == rows_of(expected)


@pytest.mark.delta_spark
def test_delta_spark_refuses_the_table_until_the_default_is_in_its_files(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path)
    table = lazy_table(uri)
    expected = table.snapshot().scan().to_arrow()
    with pytest.raises(Exception, match="existingDefaults"):
        delta_spark.read.format("delta").load(uri).collect()
    with pytest.raises(Exception, match="existingDefaults"):
        delta_spark.sql(f"DELETE FROM delta.`{uri}` WHERE id = 1")
    table.materialize_defaults()
    assert rows_of(delta_spark.read.format("delta").load(uri).toArrow()) == rows_of(expected)
    delta_spark.sql(f"INSERT INTO delta.`{uri}` (id, p) VALUES (5, 'b')")
    found = DeltaTable(uri).snapshot().scan(where="id = 5").to_arrow().to_pylist()
    assert found == [{"id": 5, "p": "b", "c": 7, "d": "x"}]
