"""A job in another process reports its commits as materializations."""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pyarrow as pa
import pyspark
import pytest
from dagster_pipes import PipesContext

from dagster_delta import DeltaTable, report_delta_commit
from dagster_delta.protocol.log.paths import commit_path
from tests.orchestration.conftest import Lake, plain

JOB = """
import sys

import deltalake
import pyarrow as pa
from dagster_pipes import open_dagster_pipes

from dagster_delta import DeltaTable, report_delta_commit

uri = sys.argv[1]
with open_dagster_pipes() as pipes:
    for mode in ("error", "append"):
        deltalake.write_deltalake(uri, pa.table({"id": [1, 2], "name": ["a", "b"]}), mode=mode)
    report_delta_commit(pipes, DeltaTable(uri))
    report = "dagster" in sys.modules
    pipes.log.info(f"imported dagster: {report}")
"""


def test_a_commit_by_another_process_is_a_materialization(lake: Lake, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    uri = str(lake.root / "remote")

    @dg.asset
    def remote(context: dg.AssetExecutionContext, client: dg.PipesSubprocessClient) -> Any:
        command = [sys.executable, str(script), uri]
        return client.run(command=command, context=context).get_materialize_result()

    result = lake.materialize(remote, resources={"client": dg.PipesSubprocessClient()})
    (event,) = result.asset_materializations_for_node("remote")
    shown = plain(event.metadata)
    assert shown["dagster/uri"] == uri
    assert (shown["delta/version"], shown["dagster/row_count"], shown["delta/live_files"]) == (
        1,
        4,
        2,
    )
    assert shown["delta/operation"] == "WRITE"
    assert shown["delta/operation_metrics"]["num_added_rows"] == 2
    columns = [(each.name, each.type) for each in shown["dagster/column_schema"].columns]
    assert columns == [("id", "bigint"), ("name", "string")]
    assert event.tags is not None
    assert event.tags["dagster/data_version"] == f"{lake.table('remote', '').metadata().id}:1"
    logs = lake.instance.all_logs(result.run_id)
    assert any("imported dagster: False" in each.user_message for each in logs)


SUBMITTED = """
import sys

from dagster_pipes import open_dagster_pipes
from pyspark.sql import SparkSession

from dagster_delta import DeltaTable, report_delta_commit

with open_dagster_pipes() as pipes:
    table = DeltaTable(sys.argv[1], must_exist=False)
    table.append(SparkSession.builder.getOrCreate().range(100))
    report_delta_commit(pipes, table)
"""


@pytest.mark.spark
@pytest.mark.exhaustive
@pytest.mark.classic("spark-submit starts a session of its own")
def test_the_latest_version_is_reported_if_its_commit_was_cleaned_up(tmp_path: Path) -> None:
    uri = str(tmp_path)
    table = DeltaTable(uri, must_exist=False)
    table.append(pa.table({"id": [1, 2]}))
    table.checkpoint()
    (tmp_path / commit_path(0)).unlink()
    reported = Mock(spec=PipesContext)
    report_delta_commit(reported, DeltaTable(uri))
    metadata = reported.report_asset_materialization.call_args.kwargs["metadata"]
    assert (metadata["delta/version"], metadata["dagster/row_count"]) == (0, 2)


@pytest.mark.spark
def test_a_job_of_spark_submit_reports_its_commit(lake: Lake, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(SUBMITTED)
    home = Path(pyspark.__file__).parent
    submit = str(home / "bin" / "spark-submit")
    command = [submit, "--master", "local[1]", str(script), str(lake.root / "remote")]
    env = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}

    @dg.asset
    def remote(context: dg.AssetExecutionContext, client: dg.PipesSubprocessClient) -> Any:
        return client.run(command=command, context=context, env=env).get_materialize_result()

    result = lake.materialize(remote, resources={"client": dg.PipesSubprocessClient()})
    (event,) = result.asset_materializations_for_node("remote")
    shown = plain(event.metadata)
    assert (shown["delta/version"], shown["dagster/row_count"]) == (0, 100)
