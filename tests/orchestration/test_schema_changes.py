"""Schema changes from the Launchpad: planned first, told, done, resumed and cancelled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta.errors import ColumnChangeFailed, InvalidArgument, SchemaChangeRefused
from dagster_delta.evolution.column_change_request import ColumnChangeRequest
from dagster_delta.orchestration.io.io_manager import DeltaIOManager
from dagster_delta.orchestration.io.sql_assets import delta_sql_asset
from dagster_delta.orchestration.schema_changes import delta_schema_change_job
from dagster_delta.protocol.schema import PrimitiveType
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.column_change import ColumnChangeJob, begin_column_change
from tests.orchestration.conftest import Lake, library_error, plain


@dg.asset
def orders() -> pa.Table:
    return pa.table({"id": [1, 2], "price": ["10", "20"]})


@dg.asset(deps=[orders])
def by_price() -> dg.MaterializeResult[None]:
    lineage = dg.TableColumnLineage(
        {"total": [dg.TableColumnDep(asset_key=orders.key, column_name="price")]}
    )
    return dg.MaterializeResult(metadata={"dagster/column_lineage": lineage})


@dg.asset(deps=[orders])
def ids() -> dg.MaterializeResult[None]:
    lineage = dg.TableColumnLineage(
        {"id": [dg.TableColumnDep(asset_key=orders.key, column_name="id")]}
    )
    return dg.MaterializeResult(metadata={"dagster/column_lineage": lineage})


@dg.asset(deps=[orders])
def opaque() -> None:
    """Tells nothing of its columns."""


@dg.asset(
    deps=[by_price],
    metadata={
        "dagster/column_lineage": dg.TableColumnLineage(
            {"mean": [dg.TableColumnDep(asset_key=by_price.key, column_name="total")]}
        )
    },
)
def by_mean() -> None:
    """Tells of its columns in its definition, and reads what is computed from a price."""


ASSETS = [orders, by_price, ids, opaque, by_mean]


def run(
    lake: Lake,
    config: dict[str, Any],
    *,
    switch: bool = True,
    assets: list[dg.AssetsDefinition] = ASSETS,
    **options: Any,
) -> dg.ExecuteInProcessResult:
    job = delta_schema_change_job(assets=assets, selection=dg.AssetSelection.assets(orders))
    manager = DeltaIOManager(root_uri=str(lake.root), enable_column_change=switch)
    definitions = dg.Definitions(assets=assets, jobs=[job], resources={"io_manager": manager})
    resolved = definitions.resolve_job_def(job.name)
    return resolved.execute_in_process(run_config=config, instance=lake.instance, **options)


def told(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = [each for each in result.all_events if each.event_type_value == "STEP_OUTPUT"]
    return plain(event.step_output_data.metadata)


def observed(lake: Lake) -> list[dict[str, Any]]:
    found = lake.instance.fetch_observations(orders.key, limit=10).records
    return [plain(each.asset_observation.metadata) for each in found if each.asset_observation]


def table_of(lake: Lake) -> DeltaTable:
    return lake.table("orders")


@pytest.fixture
def filled(lake: Lake) -> Lake:
    lake.materialize(*ASSETS)
    return lake


def test_by_default_a_change_is_only_planned_with_those_who_read_the_column(filled: Lake) -> None:
    version = table_of(filled).version()
    metadata = told(
        run(filled, {"statement": "RENAME COLUMN price TO cost", "enable_features": True})
    )
    report = metadata["delta/schema_change"]
    assert "price" in report
    assert "| `by_price` | price |" in report
    assert "| `by_mean` | by_price.total |" in report
    assert "| `opaque` | (no column lineage) |" in report
    assert "| `ids` | (maybe in a filter) |" in report
    assert metadata["delta/dry_run"] is True
    assert table_of(filled).version() == version
    assert observed(filled) == []


@dg.asset(deps=[orders])
def everything() -> dg.MaterializeResult[None]:
    deps = {
        name: [dg.TableColumnDep(asset_key=orders.key, column_name=name)]
        for name in ("id", "price")
    }
    lineage = dg.TableColumnLineage(deps)
    return dg.MaterializeResult(metadata={"dagster/column_lineage": lineage})


@dg.asset(
    deps=[everything],
    metadata={
        "dagster/column_lineage": dg.TableColumnLineage(
            {
                name: [dg.TableColumnDep(asset_key=dg.AssetKey("everything"), column_name=name)]
                for name in ("id", "price")
            }
        )
    },
)
def copy_of_everything() -> None:
    """Reads every column of an asset that reads every column."""


def test_the_plan_of_a_new_column_lists_the_assets_that_read_every_column(lake: Lake) -> None:
    assets = [*ASSETS, everything, copy_of_everything]
    lake.materialize(*assets)
    report = planned_with(lake, assets, "ADD COLUMN note STRING")
    assert "| `everything` | every column |" in report
    assert "| `copy_of_everything` | every column of everything |" in report
    assert "| `opaque` | (no column lineage) |" in report
    for name in ("by_price", "ids"):
        assert f"| `{name}` | (maybe in a filter) |" in report
    assert "`by_mean`" not in report


def test_a_plan_says_that_no_asset_is_affected_and_why(lake: Lake) -> None:
    numbers = counted("SELECT count(*) AS n FROM {orders} WHERE id > 1")
    lake.materialize(orders, numbers)
    other = "affected: the queries that read the table read other columns"
    assert other in planned_with(lake, [orders, numbers], "ADD COLUMN note STRING")
    assert other in planned_with(lake, [orders, numbers], "RENAME COLUMN price TO cost")
    none = "No asset of the code location reads the table"
    assert none in planned_with(lake, [orders], "ADD COLUMN note STRING")
    assert "No asset" not in planned_with(
        lake, [orders], "SET TBLPROPERTIES (delta.appendOnly = true)"
    )
    by_location = delta_schema_change_job(tables={"orders": table_of(lake).uri})
    config = {"statement": "ADD COLUMN note STRING"}
    result = by_location.execute_in_process(config, instance=lake.instance)
    assert "the job has it by location" in told(result)["delta/schema_change"]


def counted(query: str) -> dg.AssetsDefinition:
    return delta_sql_asset("counted", query, {"orders": orders})


@pytest.mark.parametrize(
    ("query", "column"),
    [
        ("SELECT count(*) AS n FROM {orders} WHERE price > '1'", "price"),
        ("SELECT a.id FROM {orders} a JOIN {orders} b USING (id, price)", "price"),
        ("SELECT id FROM {orders} ORDER BY price", "price"),
        ("SELECT * FROM {orders}", "price"),
        ("SELECT id FROM (SELECT COLUMNS('p.*') AS id FROM {orders})", "(maybe in a filter)"),
        ("SELECT * EXCLUDE (price) FROM {orders}", "(maybe in a filter)"),
    ],
)
def test_a_query_reads_the_columns_that_it_filters_joins_and_sorts_by(
    lake: Lake, query: str, column: str
) -> None:
    assets = [orders, counted(query)]
    lake.materialize(*assets)
    assert f"| `counted` | {column} |" in planned_with(lake, assets, "DROP COLUMN price")


def test_what_a_query_reads_is_unknown_until_it_has_run_on_the_present_columns(lake: Lake) -> None:
    stale = "| `counted` | (it has not run since a change) |"
    assets = [orders, counted("SELECT * FROM {orders}")]
    lake.materialize(*assets)
    lake.table("orders").rename_column("price", "cost", enable_features=True)
    assert stale in planned_with(lake, assets, "DROP COLUMN cost")
    assert stale in planned_with(lake, assets, "ADD COLUMN note STRING")
    narrow = counted("SELECT id FROM {orders}")
    lake.materialize(narrow, dg.AssetSpec("orders").with_io_manager_key("io_manager"))
    assert "No asset" in planned_with(lake, [orders, narrow], "DROP COLUMN cost")
    edited = [orders, counted("SELECT id FROM {orders} WHERE cost > '1'")]
    assert stale in planned_with(lake, edited, "DROP COLUMN cost")


def planned_with(lake: Lake, assets: list[dg.AssetsDefinition], statement: str) -> str:
    config = {"statement": statement, "enable_features": True}
    report: str = told(run(lake, config, assets=assets))["delta/schema_change"]
    return report


def test_a_dry_run_without_leave_plans_and_names_what_is_off(
    filled: Lake,
) -> None:
    statement = "RENAME COLUMN price TO cost, ALTER id SET DEFAULT 7"
    planned = told(run(filled, {"statement": statement}))["delta/schema_change"]
    assert "rename column price to cost" in planned
    assert "new table feature `allowColumnDefaults`: other writers have to support it" in planned
    assert "new table feature `columnMapping`: other readers and writers have to" in planned
    assert "**off now**: `columnMapping`" in planned
    assert "delta.columnMapping.mode = name first" in planned
    assert "pass enable_features=True" in planned
    refused = refusal(filled, {"statement": statement, "dry_run": False})
    assert "pass enable_features=True" in refused


def test_a_statement_is_carried_out_and_the_asset_shows_its_new_columns(
    filled: Lake, capfd: pytest.CaptureFixture[str]
) -> None:
    statement = "ADD COLUMN note STRING COMMENT 'by hand', ADD COLUMN vat DOUBLE DEFAULT 0.2"
    run(filled, {"statement": statement, "dry_run": False, "enable_features": True})
    assert "1 of 1 files rewritten" in capfd.readouterr().err
    rows = table_of(filled).snapshot().scan().to_arrow().to_pylist()
    assert rows[0] == {"id": 1, "price": "10", "note": None, "vat": 0.2}
    (seen,) = observed(filled)
    names = [each.name for each in seen["dagster/column_schema"].columns]
    assert names == ["id", "price", "note", "vat"]
    (commit, *_) = table_of(filled).history()
    assert "ALTER" in (commit.operation or "") or "COLUMN" in (commit.operation or "")


def test_a_default_is_read_first_and_written_by_a_later_run(filled: Lake) -> None:
    config = {"statement": "ADD COLUMN vat DOUBLE DEFAULT 0.2", "existing_rows": "lazy"}
    report = told(run(filled, config))["delta/schema_change"]
    assert "existing rows read vat as 0.2; their files are not rewritten" in report
    before = set(table_of(filled).snapshot().files()["path"].to_pylist())
    run(filled, {**config, "dry_run": False})
    assert set(table_of(filled).snapshot().files()["path"].to_pylist()) == before
    rows = [
        {"id": 1, "price": "10", "vat": 0.2},
        {"id": 2, "price": "20", "vat": 0.2},
    ]
    assert table_of(filled).snapshot().scan().to_arrow().to_pylist() == rows
    materialize = {"kind": "MATERIALIZE_DEFAULTS"}
    version = table_of(filled).version()
    assert "**Rewrites data**" in told(run(filled, materialize))["delta/schema_change"]
    assert table_of(filled).version() == version
    run(filled, {**materialize, "dry_run": False})
    assert not before & set(table_of(filled).snapshot().files()["path"].to_pylist())
    assert table_of(filled).snapshot().scan().to_arrow().to_pylist() == rows
    assert table_of(filled).protocol().reader_features is None


METRICS = (
    "rows_converted",
    "rows_converted_late",
    "values_nulled",
    "files_rewritten",
    "batches",
    "commit_retries",
    "longest_retry_ms",
)
CHANGE = {"statement": "ALTER COLUMN price TYPE INT", "enable_features": True}


def test_a_column_changes_its_type_and_the_run_tells_every_commit(filled: Lake) -> None:
    assert "string to int" in told(run(filled, CHANGE))["delta/schema_change"]
    metadata = told(run(filled, {**CHANGE, "dry_run": False, "batch_bytes": 1}))
    counted = {each: metadata[f"delta/{each}"] for each in METRICS}
    assert counted == {
        "rows_converted": 2,
        "rows_converted_late": 0,
        "values_nulled": 0,
        "files_rewritten": 1,
        "batches": 1,
        "commit_retries": 0,
        "longest_retry_ms": 0,
    }
    assert metadata["delta/bytes_rewritten"] > 0
    assert metadata["delta/bytes_written"] > 0
    assert table_of(filled).snapshot().scan().to_arrow()["price"].to_pylist() == [10, 20]


@pytest.mark.parametrize("engine", ["arrow", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_statement_changes_a_column_online_and_the_run_tells_what_it_did(
    filled: Lake, engine: str, capfd: pytest.CaptureFixture[str]
) -> None:
    statement = "ADD COLUMN note STRING, CHANGE COLUMN price cost INT COMMENT 'EUR' FIRST"
    config = {"statement": statement, "enable_features": True, "engine": engine, "batch_bytes": 1}
    version = table_of(filled).version()
    planned = told(run(filled, config))["delta/schema_change"]
    assert "### Part 2: an online change" in planned
    assert "2 rows in 1 file, " in planned
    assert "| `by_price` | price |" in planned
    assert table_of(filled).version() == version
    metadata = told(run(filled, {**config, "dry_run": False}))
    assert metadata["delta/rows_converted"] == 2
    assert metadata["delta/batches"] == 1
    assert ("spark/seconds" in metadata) == (engine == "spark")
    assert "1 of 1 files rewritten" in capfd.readouterr().err
    rows = table_of(filled).snapshot().scan().to_arrow().to_pylist()
    assert rows[0] == {"cost": 10, "id": 1, "note": None}
    (seen,) = observed(filled)
    names = [each.name for each in seen["dagster/column_schema"].columns]
    assert names == ["cost", "id", "note"]


def test_a_statement_names_the_switches_of_the_change_and_the_resource(
    filled: Lake,
) -> None:
    config = {"statement": "MODIFY COLUMN price INT"}
    planned = told(run(filled, config, switch=False))["delta/schema_change"]
    refused = refusal(filled, {**config, "dry_run": False}, switch=False)
    for text in (planned, refused):
        assert "set enable_column_change to true on the resource that opens the table" in text
    assert "dagsterDelta.enableColumnChange = true" in planned
    assert "pass enable_features=True" in planned
    run(filled, {**config, "dry_run": False, "enable_features": True})
    assert table_of(filled).snapshot().scan().to_arrow()["price"].to_pylist() == [10, 20]


def test_a_run_that_dies_is_resumed_or_cancelled_by_another(
    filled: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the run died")

    for ending, expected in (("CANCEL_COLUMN_CHANGE", "10"), ("RESUME_COLUMN_CHANGE", 10)):
        with monkeypatch.context() as patched:
            patched.setattr(ColumnChangeJob, "run", die)
            with pytest.raises(RuntimeError, match="the run died"):
                run(filled, {**CHANGE, "dry_run": False})
        assert "prepared" in told(run(filled, {"kind": ending}))["delta/schema_change"]
        run(filled, {"kind": ending, "dry_run": False})
        assert table_of(filled).column_change() is None
        assert table_of(filled).snapshot().scan().to_arrow()["price"][0].as_py() == expected


def refusal(lake: Lake, config: dict[str, Any], **options: Any) -> str:
    with pytest.raises(Exception) as caught:
        run(lake, config, **options)
    error = library_error(caught.value)
    assert isinstance(error, SchemaChangeRefused)
    return str(error)


@pytest.mark.parametrize("dry_run", [True, False])
def test_the_switch_of_the_resource_is_off_by_default_and_ahead_of_the_tables(
    filled: Lake, dry_run: bool
) -> None:
    table = table_of(filled)
    table.set_properties({"dagsterDelta.enableColumnChange": True})
    config = {**CHANGE, "dry_run": dry_run}
    told_to = (
        told(run(filled, config, switch=False))["delta/schema_change"]
        if dry_run
        else refusal(filled, config, switch=False)
    )
    assert "set enable_column_change to true on the resource" in told_to
    assert DeltaIOManager(root_uri=str(filled.root)).enable_column_change is False
    assert table_of(filled).version() == table.version()


def test_a_table_that_was_there_before_the_switch_has_its_own_say(filled: Lake) -> None:
    alone = {**CHANGE, "enable_features": False}
    planned = told(run(filled, alone))["delta/schema_change"]
    for feature in ("dagsterDelta.enableColumnChange", "columnMapping"):
        assert f"**off now**: `{feature}`" in planned
    assert "or pass enable_features=True" in planned
    assert "2 rows in 1 file, " in planned
    assert "or pass enable_features=True" in refusal(filled, {**alone, "dry_run": False})
    table_of(filled).set_properties({"dagsterDelta.enableColumnChange": False})
    assert "explicitly set to false" in told(run(filled, CHANGE))["delta/schema_change"]
    assert "explicitly set to false" in refusal(filled, {**CHANGE, "dry_run": False})
    assert table_of(filled).protocol().min_reader_version == 1


def test_a_change_in_progress_ends_whatever_the_switch_says_by_then(filled: Lake) -> None:
    for ending in ("CANCEL_COLUMN_CHANGE", "RESUME_COLUMN_CHANGE"):
        table = table_of(filled)
        request = ColumnChangeRequest(("price",), PrimitiveType("integer"), enable_features=True)
        begin_column_change(table.snapshot(), request, clock=lambda: 1)
        run(filled, {"kind": ending, "dry_run": False}, switch=False)
        assert table_of(filled).column_change() is None
    assert str(table_of(filled).schema().field("price").data_type) == "integer"


def test_a_new_table_gets_column_mapping_by_its_first_change_whose_plan_names_the_readers(
    lake: Lake,
) -> None:
    for properties in ({}, {"dagsterDelta.enableColumnChange": "true"}):
        lake.materialize(orders, enable_column_change=True, table_properties=properties)
        table = table_of(lake)
        assert table.protocol().min_reader_version == 1
        assert table.metadata().configuration.get("delta.columnMapping.mode") is None
    planned = told(run(lake, CHANGE))["delta/schema_change"]
    assert "- new table feature `columnMapping`: other readers and writers" in planned
    assert "wrong without an error**: deltalake 1.6" in planned
    assert table_of(lake).protocol().min_reader_version == 1
    assert "enable_features" in refusal(
        lake, {**CHANGE, "enable_features": False, "dry_run": False}
    )
    run(lake, {**CHANGE, "dry_run": False})
    assert table_of(lake).snapshot().configuration.column_mapping_mode == "name"
    assert table_of(lake).snapshot().scan().to_arrow()["price"].to_pylist() == [10, 20]


def test_deltalake_reads_the_rows_of_a_table_created_under_the_switch(lake: Lake) -> None:
    deltalake = pytest.importorskip("deltalake")
    lake.materialize(orders, enable_column_change=True)
    rows = deltalake.DeltaTable(table_of(lake).uri).to_pyarrow_table()
    assert rows["price"].to_pylist() == ["10", "20"]


def test_a_job_says_it_of_tables_that_no_resource_opens(lake: Lake) -> None:
    table = DeltaTable.create(
        str(lake.root / "by_hand"),
        pa.schema([("id", pa.int64()), ("price", pa.string())]),
        properties={"dagsterDelta.enableColumnChange": True, "delta.columnMapping.mode": "name"},
    )
    config = {**CHANGE, "enable_features": False, "dry_run": False}
    tables = {"orders": table.uri}
    silent = delta_schema_change_job(tables=tables)
    done = silent.execute_in_process(config, instance=lake.instance, raise_on_error=False)
    assert not done.success
    outspoken = delta_schema_change_job(tables=tables, enable_column_change=True)
    assert outspoken.execute_in_process(config, instance=lake.instance).success


def test_a_value_in_the_way_fails_the_run_and_leaves_the_table(filled: Lake) -> None:
    table_of(filled).append(pa.table({"id": [3], "price": ["dear"]}))
    with pytest.raises(Exception) as caught:
        run(filled, {**CHANGE, "dry_run": False})
    assert isinstance(library_error(caught.value), ColumnChangeFailed)
    prices = table_of(filled).snapshot().scan().to_arrow()["price"].to_pylist()
    assert sorted(prices) == ["10", "20", "dear"]


def test_a_value_in_the_way_becomes_null_if_that_is_asked_for(filled: Lake) -> None:
    table_of(filled).append(pa.table({"id": [3], "price": ["dear"]}))
    planned = told(run(filled, {**CHANGE, "on_error": "null"}))["delta/schema_change"]
    assert "null" in planned
    metadata = told(run(filled, {**CHANGE, "on_error": "null", "dry_run": False}))
    assert metadata["delta/values_nulled"] == 1
    prices = table_of(filled).snapshot().scan().to_arrow()["price"].to_pylist()
    assert sorted(prices, key=str) == [10, 20, None]


NO_SENSE: list[tuple[dict[str, Any], str]] = [
    ({}, "statement"),
    ({"kind": "CANCEL_COLUMN_CHANGE"}, "no column of the table is being changed"),
]


def test_a_config_without_sense_is_refused(filled: Lake) -> None:
    version = table_of(filled).version()
    for config, message in NO_SENSE:
        with pytest.raises(InvalidArgument, match=message):
            run(filled, config)
    assert table_of(filled).version() == version


@pytest.mark.exhaustive
def test_readers_are_found_among_all_assets_of_the_code_location(tmp_path: Path) -> None:
    root, home = tmp_path / "lake", tmp_path / "home"
    home.mkdir()
    DeltaTable(str(root / "public" / "orders"), must_exist=False).append(pa.table({"price": [1]}))
    config = tmp_path / "config.yaml"
    config.write_text("statement: RENAME price TO amount\nenable_features: true\n")
    module = Path(__file__).with_name("code_location.py")
    command = ["-m", "dagster", "job", "execute", "-f", str(module), "-j", "delta_schema_change"]
    subprocess.run(
        [sys.executable, *command, "-c", str(config)],
        env={**os.environ, "DAGSTER_HOME": str(home), "LAKE_ROOT": str(root)},
        check=True,
        capture_output=True,
        timeout=120,
    )
    with dg.DagsterInstance.from_config(str(home)) as instance:
        (record,) = instance.get_run_records()
        (event,) = [
            each.dagster_event
            for each in instance.all_logs(record.dagster_run.run_id)
            if each.dagster_event is not None
            and each.dagster_event.event_type_value == "STEP_OUTPUT"
        ]
        told_of = plain(event.step_output_data.metadata)["delta/schema_change"]
    assert "| `report` | (no column lineage) |" in told_of


def test_the_assets_of_a_job_may_be_an_iterator(tmp_path: Path) -> None:
    resources = {"io_manager": DeltaIOManager(root_uri=str(tmp_path))}
    job = delta_schema_change_job("change", assets=iter([orders]))
    definitions = dg.Definitions([orders], jobs=[job], resources=resources)
    assert definitions.resolve_job_def("change").name == "change"
