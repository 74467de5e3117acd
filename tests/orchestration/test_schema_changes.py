"""Schema changes from the Launchpad: planned first, told, done, resumed and cancelled."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta.errors import ColumnChangeFailed, InvalidArgument
from dagster_delta.orchestration.io_manager import DeltaIOManager
from dagster_delta.orchestration.schema_changes import delta_schema_change_job
from dagster_delta.table.column_change_methods import ColumnChangeMethods
from dagster_delta.table.delta_table import DeltaTable
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


ASSETS = [orders, by_price, ids, opaque]


def run(lake: Lake, config: dict[str, Any], **options: Any) -> dg.ExecuteInProcessResult:
    job = delta_schema_change_job(assets=ASSETS, selection=dg.AssetSelection.assets(orders))
    definitions = dg.Definitions(
        assets=ASSETS,
        jobs=[job],
        resources={"io_manager": DeltaIOManager(root_uri=str(lake.root))},
    )
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
    assert "| `opaque` | (no column lineage) |" in report
    assert "`ids`" not in report
    assert metadata["delta/dry_run"] is True
    assert table_of(filled).version() == version
    assert observed(filled) == []


def test_a_statement_is_carried_out_and_the_asset_shows_its_new_columns(filled: Lake) -> None:
    statement = "ADD COLUMN note STRING COMMENT 'by hand', ADD COLUMN vat DOUBLE DEFAULT 0.2"
    run(filled, {"statement": statement, "dry_run": False, "enable_features": True})
    rows = table_of(filled).snapshot().scan().to_arrow().to_pylist()
    assert rows[0] == {"id": 1, "price": "10", "note": None, "vat": 0.2}
    (seen,) = observed(filled)
    names = [each.name for each in seen["dagster/column_schema"].columns]
    assert names == ["id", "price", "note", "vat"]
    (commit, *_) = table_of(filled).history()
    assert "ALTER" in (commit.operation or "") or "COLUMN" in (commit.operation or "")


CHANGE = {"kind": "CHANGE_COLUMN", "column": "price", "new_type": "INT", "enable_features": True}


def test_a_column_changes_its_type_and_the_run_tells_every_commit(filled: Lake) -> None:
    assert "string to int" in told(run(filled, CHANGE))["delta/schema_change"]
    metadata = told(run(filled, {**CHANGE, "dry_run": False, "batch_bytes": 1}))
    assert "| 2 |" in metadata["delta/schema_change"]
    assert table_of(filled).snapshot().scan().to_arrow()["price"].to_pylist() == [10, 20]


def test_a_run_that_dies_is_resumed_or_cancelled_by_another(
    filled: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_only(self: ColumnChangeMethods, column: str, new_type: str, **_: Any) -> Any:
        from dagster_delta.evolution.column_change_plan import ColumnChangeRequest
        from dagster_delta.table.column_change import begin_column_change

        request = ColumnChangeRequest(column, new_type, enable_features=True)
        begin_column_change(self._store, self._existing(), request, clock=lambda: 1)
        raise RuntimeError("the run died")

    for ending, expected in (("CANCEL_COLUMN_CHANGE", "10"), ("RESUME_COLUMN_CHANGE", 10)):
        with monkeypatch.context() as patched:
            patched.setattr(ColumnChangeMethods, "change_column", begin_only)
            with pytest.raises(RuntimeError, match="the run died"):
                run(filled, {**CHANGE, "dry_run": False})
        assert "prepared" in told(run(filled, {"kind": ending}))["delta/schema_change"]
        run(filled, {"kind": ending, "dry_run": False})
        assert table_of(filled).column_change() is None
        assert table_of(filled).snapshot().scan().to_arrow()["price"][0].as_py() == expected


def test_a_value_in_the_way_fails_the_run_and_leaves_the_table(filled: Lake) -> None:
    table_of(filled).append(pa.table({"id": [3], "price": ["dear"]}))
    with pytest.raises(Exception) as caught:
        run(filled, {**CHANGE, "dry_run": False})
    assert isinstance(library_error(caught.value), ColumnChangeFailed)
    prices = table_of(filled).snapshot().scan().to_arrow()["price"].to_pylist()
    assert sorted(prices) == ["10", "20", "dear"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "needs `statement`"),
        ({"statement": "ADD COLUMN a INT", "column": "price"}, "takes no `column`"),
        ({"kind": "CHANGE_COLUMN", "column": "price"}, "needs `new_type`"),
        ({"statement": "ADD COLUMN a INT", "table": "nowhere"}, "'nowhere' is no table"),
        ({"kind": "CANCEL_COLUMN_CHANGE"}, "no column of the table is being changed"),
    ],
)
def test_a_config_without_sense_is_refused(
    filled: Lake, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        run(filled, config)
