"""Two names are one column where delta-spark says so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from dagster_delta import DeltaTable
from dagster_delta.errors import DeltaError, SchemaMismatch
from dagster_delta.protocol.schema import fold_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAIRS = [
    ("Maße", "Masse"),
    ("MAẞE", "maße"),
    ("ſx", "sx"),
    ("σx", "ςx"),
    ("ΑΣ", "ας"),
    ("ﬁx", "fix"),
    ("İx", "ix"),
    ("ıx", "ix"),
    ("\u212ax", "kx"),
    ("ÉA", "éa"),
    ("µ", "μ"),
]


def refuses(session: SparkSession, rows: str, uri: Path) -> bool:
    """Whether delta-spark refuses a table of these columns."""
    try:
        session.sql(f"SELECT {rows}").write.format("delta").save(str(uri))
    except AnalysisException as error:
        # Inside of a struct Spark itself refuses more, as its names of columns resolve otherwise.
        return str(error.getCondition()).startswith(("DELTA_DUPLICATE_COLUMNS", "AMBIGUOUS"))
    return False


@pytest.mark.delta_spark
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_names_are_one_where_delta_spark_refuses_both(
    delta_spark: SparkSession, tmp_path: Path, one: str, other: str
) -> None:
    refused = refuses(delta_spark, f"1 AS `{one}`, 2 AS `{other}`", tmp_path / "theirs")
    nested = f"named_struct('{one}', 1, '{other}', 2) AS s"
    assert refuses(delta_spark, nested, tmp_path / "nested") or not refused
    assert (fold_name(one) == fold_name(other)) is refused
    ours = DeltaTable(str(tmp_path / "ours"), must_exist=False)
    rows = pa.table({one: pa.array([1], pa.int32()), other: pa.array([2], pa.int32())})
    if refused:
        with pytest.raises(DeltaError, match="two columns"):
            ours.append(rows)
        return
    ours.append(rows)
    assert DeltaTable(str(tmp_path / "theirs")).snapshot().scan().to_arrow().equals(rows)
    read = delta_spark.read.format("delta").load(ours.uri)
    assert [row.asDict() for row in read.collect()] == rows.to_pylist()


def test_append_refuses_a_column_that_only_case_folding_makes_equal(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    table.append(pa.table({"id": [1], "Maße": [10]}))
    with pytest.raises(SchemaMismatch, match="Masse"):
        table.append(pa.table({"id": [2], "Masse": [77]}))
    table.append(pa.table({"id": [2], "Masse": [77]}), schema_mode="merge")
    table.append(pa.table({"ID": [3], "MASSE": [5]}))
    rows = table.snapshot().scan().to_arrow().sort_by("id").to_pylist()
    assert rows == [
        {"id": 1, "Maße": 10, "Masse": None},
        {"id": 2, "Maße": None, "Masse": 77},
        {"id": 3, "Maße": None, "Masse": 5},
    ]


def test_table_is_partitioned_by_one_of_two_such_columns(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    rows = pa.table({"Maße": ["a"], "Masse": ["b"]})
    table.append(rows, partition_by=["Masse"])
    (values,) = table.snapshot().files().column("partition_values").to_pylist()
    assert dict(values) == {"Masse": "b"}
    assert table.snapshot().scan(where="Masse = 'b'").to_arrow().to_pylist() == rows.to_pylist()
    assert table.snapshot().scan(where="`Maße` = 'b'").to_arrow().num_rows == 0
