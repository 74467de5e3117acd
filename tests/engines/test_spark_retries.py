"""What a task that failed and ran again leaves in a commit: nothing of its first attempt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dagster_delta.table.delta_table import DeltaTable

pytestmark = pytest.mark.spark

# Local Spark runs no task twice unless its master says so, and the shared session's does not.
RETRIED = """
import sys
from dagster_delta import DeltaTable
from dagster_delta.engines.spark.session import local_spark_session

uri, failures = sys.argv[1:]

def failing_at_the_end(batches):
    from pyspark import TaskContext

    yield from batches
    # By now the first rows are in files.
    task = TaskContext.get()
    if task.attemptNumber() == 0:
        open(f"{failures}/{task.partitionId()}", "x").close()
        raise RuntimeError("the first attempt fails")

conf = {"spark.master": "local[2,3]", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
spark = local_spark_session("retries", conf)
rows = spark.range(0, 400_000, 1, 2).mapInArrow(failing_at_the_end, "id bigint")
DeltaTable(uri, must_exist=False).append(rows)
spark.stop()
"""


def test_rows_of_a_failed_attempt_are_not_in_the_commit(tmp_path: Path) -> None:
    uri, failures = tmp_path / "table", tmp_path / "failures"
    failures.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", RETRIED, str(uri), str(failures)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        timeout=300,
        check=False,
    )
    errors = done.stderr.decode()
    assert done.returncode == 0, errors[-2000:]
    assert {each.name for each in failures.iterdir()} == {"0", "1"}
    snapshot = DeltaTable(str(uri)).snapshot()
    ids = snapshot.scan().to_arrow()["id"].to_pylist()
    assert sorted(ids) == list(range(400_000))
    assert snapshot.num_records == 400_000
    assert snapshot.num_files == 2
