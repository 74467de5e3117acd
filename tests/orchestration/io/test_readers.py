"""`readers` of the IO manager and of an asset: who reads the tables."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import DeltaIOManager, DeltaTable
from dagster_delta.errors import InvalidArgument, SchemaChangeRefused
from dagster_delta.orchestration.io.asset_options import AssetOptions, read_asset_options

ROWS = pa.table({"id": [1], "at": pa.array([1], pa.timestamp("us", "UTC"))})


def materialize(
    root: Path, rows: pa.Table, *, is_shared: bool = False, **options: object
) -> DeltaTable:
    shared = {"shared_table": True, "owned_rows": {}} if is_shared else {}

    @dg.asset(metadata=shared)
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
    assert materialize(tmp_path, ROWS, readers=["polars", "chdb"]).version() == version + 1
    shared = materialize(tmp_path, ROWS, is_shared=True, readers=["daft"])
    assert named(shared) == "chdb,polars,daft"


def test_a_write_that_would_blind_a_reader_is_refused(tmp_path: Path) -> None:
    materialize(tmp_path, ROWS, readers=["chdb"])
    local = pa.table({"id": [1], "at": pa.array([1], pa.timestamp("us"))})
    with pytest.raises(SchemaChangeRefused, match="chdb 4"):
        materialize(tmp_path, local, schema_mode="overwrite")


def test_an_unknown_reader_is_refused_with_the_definition(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="delta-lake is not a program"):
        DeltaIOManager(root_uri=str(tmp_path), readers=["delta-lake"])


def test_an_unknown_reader_of_an_asset_is_refused_before_it_runs() -> None:
    with pytest.raises(InvalidArgument, match="delta-lake is not a program"):
        read_asset_options({"readers": ["delta-lake"]}, AssetOptions(), asset="orders")
