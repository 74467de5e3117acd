"""`readers` of the IO manager and of an asset: who reads the tables."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import DeltaIOManager, DeltaTable
from dagster_delta.errors import InvalidArgument, SchemaChangeRefused

ROWS = pa.table({"id": [1], "at": pa.array([1], pa.timestamp("us", "UTC"))})


def materialize(root: Path, rows: pa.Table, **options: object) -> DeltaTable:
    @dg.asset
    def orders() -> pa.Table:
        return rows

    manager = DeltaIOManager(root_uri=str(root), **options)
    dg.materialize([orders], resources={"io_manager": manager})
    return DeltaTable(f"{root}/public/orders")


def test_a_new_table_and_one_that_exists_name_the_readers(tmp_path: Path) -> None:
    def named(table: DeltaTable) -> str | None:
        return table.metadata().configuration.get("dagsterDelta.readers")

    assert named(materialize(tmp_path, ROWS, readers=["duckdb"])) == "DuckDB"
    assert named(materialize(tmp_path, ROWS)) == "DuckDB"
    table = materialize(tmp_path, ROWS, readers=["chdb", "polars"])
    assert named(table) == "chdb,polars"
    version = table.version()
    assert materialize(tmp_path, ROWS, readers=["chdb", "polars"]).version() == version + 1


def test_a_write_that_would_blind_a_reader_is_refused(tmp_path: Path) -> None:
    materialize(tmp_path, ROWS, readers=["chdb"])
    local = pa.table({"id": [1], "at": pa.array([1], pa.timestamp("us"))})
    with pytest.raises(SchemaChangeRefused, match="chdb 4"):
        materialize(tmp_path, local, schema_mode="overwrite")


def test_an_unknown_reader_is_refused_with_the_definition(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="did you mean deltalake"):
        DeltaIOManager(root_uri=str(tmp_path), readers=["delta-lake"])
