"""Tables of delta-spark with columns and fields of type void are written by both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.delta_spark


def test_both_write_a_table_with_void_columns(delta_spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    delta_spark.sql(
        f"CREATE TABLE delta.`{uri}` (id INT, n VOID, s STRUCT<a: INT, b: VOID>) USING delta"
    )
    delta_spark.sql(f"INSERT INTO delta.`{uri}` VALUES (1, NULL, named_struct('a', 1, 'b', NULL))")
    table = DeltaTable(uri)
    struct = pa.struct([("a", pa.int32()), ("b", pa.null())])
    rows = pa.table({"id": pa.array([2], pa.int32()), "s": pa.array([{"a": 2}], struct)})
    table.append(rows)
    table.append(delta_spark.sql("SELECT 3 AS id, named_struct('a', 3, 'b', NULL) AS s"))
    table.optimize()
    table.update({"s.a": "20"}, "id = 2")
    delta_spark.sql(f"INSERT INTO delta.`{uri}` (id) VALUES (4)")

    def expected(n: Any = None) -> list[Any]:
        structs: list[Any] = [{"a": a, "b": None} for a in (1, 20, 3)]
        return [
            {"id": id_, "n": n if id_ == 5 else None, "s": s}
            for id_, s in enumerate([*structs, None, *([None] if n else [])], 1)
        ]

    def by_spark() -> list[Any]:
        found = delta_spark.read.format("delta").load(uri).orderBy("id").collect()
        return [row.asDict(recursive=True) for row in found]

    def by_us() -> list[Any]:
        found = DeltaTable(uri).snapshot().scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: int(row["id"]))

    assert by_spark() == by_us() == expected()
    DeltaTable(uri).alter("ALTER COLUMN n TYPE STRING")
    delta_spark.sql(f"INSERT INTO delta.`{uri}` VALUES (5, 'x', NULL)")
    assert by_spark() == by_us() == expected("x")
