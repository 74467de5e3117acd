"""What an import costs: nothing that the caller may not need."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable

HEAVY = (
    "dagster",
    "pyspark",
    "duckdb",
    "polars",
    "pandas",
    "sqlglot",
    "fsspec",
    "botocore",
    "obstore",
    "hdfs_native",
)

PARSER = ("dagster_delta.sql.parser", "dagster_delta.sql.functions.whitelist")

BUDGETS = {
    "scan().to_arrow()": ("read = table.snapshot().scan().to_arrow()", 114),
    "scan(where=…).to_arrow()": ("read = table.snapshot().scan(where='id = 7').to_arrow()", 139),
    "append": ("table.append(rows)", 137),
    "delete": ("table.delete('id = 5')", 175),
    "update": ("table.update({'v': 'v + 1'}, 'id = 7')", 181),
    "merge": (
        "merge = table.merge(rows, 't.id = s.id', source_alias='s', target_alias='t')\n"
        "merge.when_matched_update_all().when_not_matched_insert_all().execute()",
        207,
    ),
}
"""Statements, and how many modules of this package a process may have loaded after one of them."""


def _loaded(statement: str) -> set[str]:
    """The modules and top-level packages that a fresh process has loaded after `statement`."""
    modules = _loaded_modules(statement)
    return {*modules, *(name.partition(".")[0] for name in modules)}


def _loaded_modules(statement: str) -> list[str]:
    script = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return list(json.loads(done.stdout))


def _protocol_modules() -> str:
    return (
        "import importlib, pkgutil, dagster_delta.protocol as protocol\n"
        "for module in pkgutil.iter_modules(protocol.__path__, 'dagster_delta.protocol.'):\n"
        "    importlib.import_module(module.name)"
    )


@pytest.mark.parametrize(
    "statement",
    [
        "import dagster_delta",
        "from dagster_delta.storage import open_store; open_store('table')",
        "from dagster_delta.storage import open_store; open_store('memory://table')",
        "import dagster_delta.engines.engine",
        "import dagster_delta.testing",
    ],
)
def test_an_import_loads_nothing_that_the_caller_may_not_need(statement: str) -> None:
    assert _loaded(statement).isdisjoint(HEAVY)


def test_a_table_on_s3_with_its_credentials_loads_no_second_client() -> None:
    options = {"access_key_id": "a", "secret_access_key": "b", "region": "eu-central-1"}
    loaded = _loaded(
        f"from dagster_delta.storage import open_store; open_store('s3://b/t', {options})"
    )
    assert "obstore" in loaded
    assert loaded.isdisjoint({"botocore", "fsspec", "pandas", "pyspark", "dagster"})


def test_the_spark_engine_loads_no_client_of_a_cloud() -> None:
    loaded = _loaded("import dagster_delta.engines.spark.engine")
    assert not loaded & {"obstore", "botocore", "hdfs_native", "grpc"}


def test_the_store_of_hdfs_loads_no_client_of_a_cloud() -> None:
    assert _loaded("import dagster_delta.storage.hdfs_store").isdisjoint({"obstore", "botocore"})


def test_the_whole_protocol_loads_nothing_heavy() -> None:
    loaded = _loaded(_protocol_modules())
    assert "dagster_delta" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_the_package_alone_does_not_even_load_arrow() -> None:
    assert "pyarrow" not in _loaded("import dagster_delta")


def test_maintenance_loads_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path, must_exist=False)
    for _ in range(3):
        rows = pa.table({"id": [1, None], "v": ["x", None], "d": [None, 0.5]})
        table.append(rows, properties={"delta.checkpointInterval": "1"})
    statement = (
        "from dagster_delta import DeltaTable\n"
        f"table = DeltaTable({str(tmp_path)!r})\n"
        "assert table.optimize().metrics['numRemovedFiles'] == 3\n"
        "assert table.optimize(zorder_by=['id', 'v', 'd']).metrics['numRemovedFiles'] == 1\n"
        "assert table.vacuum(0, enforce_retention=False, dry_run=False).num_files == 4\n"
        "table.clean_log(dry_run=False)"
    )
    assert _loaded(statement).isdisjoint({"dagster", "pyspark", "pandas", "polars", "fsspec"})


def test_a_first_checkpoint_loads_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "v": ["x"]})
    DeltaTable(tmp_path / "rows", must_exist=False).append(rows)
    table = DeltaTable(tmp_path / "t", must_exist=False)
    table.append(rows, properties={"delta.checkpointInterval": "2"})
    table.append(rows)
    statement = (
        "from dagster_delta import DeltaTable\n"
        f"rows = DeltaTable({str(tmp_path / 'rows')!r}).snapshot().scan()\n"
        f"assert DeltaTable({str(tmp_path / 't')!r}).append(rows.to_batches()).version == 2"
    )
    loaded = set(_loaded_modules(statement))
    assert (tmp_path / "t" / "_delta_log" / f"{2:020}.checkpoint.parquet").exists()
    assert loaded.isdisjoint({"pandas", "pyarrow.compute", "pyarrow.fs", "pyspark", "dagster"})


def test_a_log_with_deletion_vectors_loads_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path, must_exist=False)
    table.append(pa.table({"id": [1, 2, 3]}), properties={"delta.enableDeletionVectors": "true"})
    table.delete("id = 2")
    statement = (
        "from dagster_delta import DeltaTable\n"
        f"snapshot = DeltaTable({str(tmp_path)!r}).snapshot()\n"
        "assert snapshot.num_records == 2\n"
        "assert snapshot.live_files(['path', 'deletion_vector']).num_rows == 1\n"
        "from dagster_delta.protocol.log.replay import keys_of\n"
        "files = snapshot.live_files(['path', 'deletion_vector'])\n"
        "assert len(keys_of(files['path'], files['deletion_vector'])) == 1"
    )
    forbidden = {"dagster", "pyspark", "pandas", "polars", "fsspec", "pyarrow.compute"}
    assert _loaded(statement).isdisjoint(forbidden)


def test_rows_in_polars_load_nothing_that_they_do_not_need(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "p": ["a", None]})
    DeltaTable(tmp_path, must_exist=False).append(rows, partition_by=["p"])
    statement = (
        "import polars as pl\n"
        "from dagster_delta import DeltaTable\n"
        f"scan = DeltaTable({str(tmp_path)!r}).snapshot().scan()\n"
        "assert scan.to_polars().height == 2\n"
        "assert scan.to_polars_lazy().filter(pl.col('id') > 1).collect().height == 1"
    )
    forbidden = {"dagster", "pyspark", "pandas", "duckdb", "fsspec", "pyarrow.compute"}
    # polars decodes these files.
    forbidden.add("dagster_delta.parquet.data_file_reader")
    assert _loaded(statement).isdisjoint(forbidden)


@pytest.mark.parametrize(
    "statement",
    [
        "import polars as pl\n"
        "rows = scan.to_polars_lazy().filter(pl.col('id').is_in([2, 3]) | pl.col('v').is_null())\n"
        "assert rows.collect().height == 2",
        "import duckdb\n"
        "rows = scan.to_duckdb(duckdb.connect()).filter('id = 2')\n"
        "assert len(rows.fetchall()) == 1",
    ],
    ids=["polars", "duckdb"],
)
def test_a_filter_of_another_engine_loads_no_parser(statement: str, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3], "v": [1.5, None, 2.5], "z": [{"x": 1}] * 3})
    DeltaTable(tmp_path, must_exist=False).append(rows)
    opened = (
        "from dagster_delta import DeltaTable\n"
        f"scan = DeltaTable({str(tmp_path)!r}).snapshot().scan()\n"
    )
    loaded = set(_loaded_modules(opened + statement))
    assert "dagster_delta.sql.conditions" in loaded
    assert loaded.isdisjoint(PARSER)


def test_the_input_of_a_partition_loads_no_parser(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "day": ["2024-01-01", "2024-01-02"]})
    DeltaTable(tmp_path / "public" / "rows", must_exist=False).append(rows)
    statement = (
        "import dagster as dg, pyarrow as pa\n"
        "from dagster_delta import DeltaIOManager\n"
        "days = dg.DailyPartitionsDefinition('2024-01-01')\n"
        "upstream = dg.AssetSpec(\n"
        "    'rows', partitions_def=days, metadata={'partition_expr': 'day'}\n"
        ")\n"
        "@dg.asset(partitions_def=days)\n"
        "def reader(rows: pa.Table) -> None:\n"
        "    assert rows['id'].to_pylist() == [2]\n"
        f"manager = DeltaIOManager(root_uri={str(tmp_path)!r})\n"
        "dg.materialize(\n"
        "    [upstream, reader], resources={'io_manager': manager}, partition_key='2024-01-02'\n"
        ")"
    )
    assert set(_loaded_modules(statement)).isdisjoint(PARSER)


def test_a_partitioned_write_loads_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "p": ["a", None]})
    DeltaTable(tmp_path / "source", must_exist=False).append(rows)
    DeltaTable(tmp_path / "t", must_exist=False).append(rows, partition_by=["p"])
    statement = (
        "from dagster_delta import DeltaTable\n"
        f"rows = DeltaTable({str(tmp_path / 'source')!r}).snapshot().scan()\n"
        f"table = DeltaTable({str(tmp_path / 't')!r})\n"
        "table.append(rows.to_batches())\n"
        "table.overwrite(rows.to_batches(), where='dynamic')"
    )
    forbidden = {"dagster", "pyspark", "pandas", "polars", "fsspec", "pyarrow.compute"}
    assert _loaded(statement).isdisjoint(forbidden)


def test_no_statement_on_rows_loads_pandas(tmp_path: Path) -> None:
    at, day = dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.date(2024, 1, 1)
    rows = pa.table({"id": [1, 2], "v": [0.5, None], "at": [at, at], "day": [day, day]})
    events = pa.table({"id": [1, 1, 2], "v": [9.0, 8.0, 7.0], "q": [5, 4, 3], "op": list("UUD")})
    for name, given in (("rows", rows), ("events", events)):
        with pa.ipc.new_file(tmp_path / f"{name}.arrow", given.schema) as writer:
            writer.write_table(given)
    (tmp_path / "files").mkdir()
    pq.write_table(rows.select(["id", "v"]), tmp_path / "files" / "a.parquet")
    statement = f"""
import pyarrow as pa
import pyarrow.parquet as pq
from dagster_delta import DeltaTable, Expectation
root = {str(tmp_path)!r}
rows, events = (
    pa.ipc.open_file(f"{{root}}/{{name}}.arrow").read_all() for name in ("rows", "events")
)
table = DeltaTable(root + "/t", must_exist=False)
table.append(rows, partition_by=["at", "v"], properties={{"delta.enableDeletionVectors": "true"}})
table.alter("ALTER TABLE t ADD CONSTRAINT positive CHECK (id > 0)")
table.append(rows, expectations=[Expectation("known", "v IS NULL OR v > 0", on_violation="drop")])
table.update({{"day": "DATE '2024-01-02'"}}, where="id = 1")
table.delete("at = TIMESTAMP '2024-01-01 00:00:00Z' AND v IS NULL")
merge = table.merge(rows, on="t.id = s.id AND t.v = 7").when_not_matched_insert_all()
merge.execute()
table.overwrite(rows, where="id < 5")
table.overwrite(rows, where="dynamic")
table.optimize()
assert table.snapshot().scan(where="day = DATE '2024-01-01'").to_arrow().num_rows == 2
assert table.changes(0).to_arrow().num_rows == 14
history = DeltaTable(root + "/h", must_exist=False)
options = dict(keys=["id"], sequence_by="q", apply_as_deletes="op = 'D'", except_column_list=["op"])
for _ in range(2):
    history.apply_changes(events, stored_as_scd_type=2, **options)
assert DeltaTable.convert(root + "/files").snapshot().num_records == 2
"""
    assert "pandas" not in _loaded(statement)


@pytest.mark.parametrize(("statement", "budget"), BUDGETS.values(), ids=BUDGETS)
def test_a_first_operation_loads_no_more_than_it_needs(
    statement: str, budget: int, tmp_path: Path
) -> None:
    source = pa.table({"id": [5, 7, 9], "v": [0.5, None, 1.5], "s": ["x", "y", None]})
    DeltaTable(tmp_path / "t", must_exist=False).append(source)
    with pa.ipc.new_file(tmp_path / "rows.arrow", source.schema) as writer:
        writer.write_table(source)
    setup = (
        "import pyarrow as pa\nfrom dagster_delta import DeltaTable\n"
        f"rows = pa.ipc.open_file({str(tmp_path / 'rows.arrow')!r}).read_all()\n"
        f"table = DeltaTable({str(tmp_path / 't')!r})\n"
    )
    loaded = _loaded_modules(setup + statement)
    packages = {name.partition(".")[0] for name in loaded}
    # DuckDB computes the values of an update.
    computing = {"duckdb"} if statement.startswith("table.update") else set()
    assert packages.isdisjoint(set(HEAVY) - computing)
    assert "pyarrow.compute" not in loaded
    ours = [name for name in loaded if name.partition(".")[0] == "dagster_delta"]
    assert len(ours) <= budget, f"{len(ours)} modules: {' '.join(ours)}"
