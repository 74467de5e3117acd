"""Plans and reports in the log of a run, which is all that a terminal shows of them."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pyarrow as pa

from dagster_delta.orchestration.maintenance.jobs import delta_maintenance_job, delta_restore_job
from dagster_delta.orchestration.maintenance.operations import history_op
from dagster_delta.orchestration.schema_changes import delta_schema_change_job
from tests.orchestration.conftest import Lake


@dg.asset
def orders() -> pa.Table:
    return pa.table({"id": [1, 2], "price": ["10", "20"]})


@dg.asset(deps=[orders])
def opaque() -> None:
    """Tells nothing of its columns."""


def logged(lake: Lake, result: dg.ExecuteInProcessResult) -> str:
    messages = [each.user_message for each in lake.instance.all_logs(result.run_id)]
    return "\n".join(messages)


def run(lake: Lake, job: dg.JobDefinition, config: dict[str, Any]) -> str:
    resources = {"io_manager": lake.manager()}
    definitions = dg.Definitions(assets=[orders, opaque], jobs=[job], resources=resources)
    resolved = definitions.resolve_job_def(job.name)
    return logged(lake, resolved.execute_in_process(config, instance=lake.instance))


def test_a_materialization_logs_its_commit_in_one_line(lake: Lake) -> None:
    text = logged(lake, lake.materialize(orders))
    uri = lake.table("orders").uri
    line = f"orders: version 0 of {uri}, mode overwrite, 2 rows written, 1 files added, "
    assert line in text


def test_the_plan_of_a_schema_change_is_logged_with_its_readers(lake: Lake) -> None:
    lake.materialize(orders)
    job = delta_schema_change_job(
        assets=[orders, opaque], selection=dg.AssetSelection.assets(orders)
    )
    statement = "RENAME COLUMN price TO cost"
    text = run(lake, job, {"statement": statement, "enable_features": True})
    assert f"orders: dry run: {statement}\n| Change" in text
    assert "| metadata only |\n" in text
    assert "\n~ price: renamed to cost\n" in text
    assert "\n| `opaque` | (no column lineage) |" in text
    config = {"statement": statement, "enable_features": True, "dry_run": False}
    assert f"orders: version 1: {statement}\n" in run(lake, job, config)
    none = {"statement": "SET TBLPROPERTIES (delta.columnMapping.mode = 'name')", "dry_run": False}
    assert "orders: no change is needed" in run(lake, job, none)


def test_the_report_of_maintenance_is_logged(lake: Lake) -> None:
    lake.materialize(orders)
    text = run(lake, delta_maintenance_job(assets=[orders]), {})
    assert "- **OPTIMIZE**: nothing to compact\n- **VACUUM (dry run)**: would delete 0" in text
    assert "\n| rows | 2 | 2 |\n" in text


def test_the_difference_to_a_restored_version_is_logged(lake: Lake) -> None:
    lake.materialize(orders)
    lake.table("orders").append(pa.table({"id": [3], "price": ["30"]}))
    text = run(lake, delta_restore_job(assets=[orders]), {"version": 0})
    assert "- **RESTORE (dry run)**: would go from version 1 back to 0: 3 rows to 2" in text
    assert "| rows |" in text
    assert lake.table("orders").version() == 1


def test_the_history_of_a_table_is_logged(lake: Lake) -> None:
    lake.materialize(orders)

    @dg.job
    def shows_history() -> None:
        history_op()

    config = {"ops": {"history_op": {"config": {"uri": lake.table("orders").uri}}}}
    text = logged(lake, shows_history.execute_in_process(config, instance=lake.instance))
    assert f"history of {lake.table('orders').uri}\n| version | time (UTC) |" in text
    assert "2 written" in text
