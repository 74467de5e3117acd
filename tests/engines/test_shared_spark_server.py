"""Processes of a code location share one Spark Connect server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("grpc_status", reason="Spark Connect needs the extra 'connect'")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs file locks")

CHAIN = """
import os
import dagster as dg
from pyspark.sql import DataFrame
from dagster_delta import DeltaIOManager, DeltaTable, SparkSessionResource

SPARK = SparkSessionResource(
    shared=True,
    master="local[1]",
    idle_minutes=float(os.environ["IDLE_MINUTES"]),
    conf={
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    },
)


@dg.asset
def first(spark: SparkSessionResource) -> DataFrame:
    return spark.session.range(10)


@dg.asset
def second(first: DataFrame) -> DataFrame:
    return first.where("id > 2")


@dg.asset
def third(second: DataFrame) -> DataFrame:
    return second.where("id > 4")


def chain():
    spark = SPARK
    manager = DeltaIOManager(root_uri=os.environ["ROOT"], spark=spark)
    return dg.Definitions(
        [first, second, third],
        jobs=[dg.define_asset_job("all")],
        resources={"io_manager": manager, "spark": spark},
    ).get_job_def("all")


if __name__ == "__main__":
    with dg.DagsterInstance.get() as instance:
        done = dg.execute_job(dg.reconstructable(chain), instance)
        assert done.success
    print(DeltaTable(os.environ["ROOT"] + "/public/third").snapshot().num_records)
"""

ONE = """
import logging, sys
logging.basicConfig(level="INFO")
from chain import SPARK

frame = SPARK.session.range(5)
print(frame.count(), flush=True)
if "wait" in sys.argv:
    sys.stdin.read()
    from dagster_delta.errors import SparkSessionLost
    from dagster_delta.orchestration.spark.watch import watch_spark
    try:
        with watch_spark(frame, None):
            frame.count()
    except SparkSessionLost as error:
        print("lost", error)
    print(SPARK.session.range(7).count())
"""


@pytest.fixture
def location(tmp_path: Path) -> Iterator[dict[str, str]]:
    (tmp_path / "chain.py").write_text(CHAIN)
    (tmp_path / "one.py").write_text(ONE)
    (tmp_path / "home").mkdir()
    names = {"TMPDIR": tmp_path, "DAGSTER_HOME": tmp_path / "home", "ROOT": tmp_path / "lake"}
    (tmp_path / "home" / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    given = {name: str(path) for name, path in names.items()}
    yield {**os.environ, **given, "IDLE_MINUTES": "5"}
    for server in _servers(tmp_path):
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGTERM)


def _servers(directory: Path) -> list[int]:
    """Process ids of the servers that were not removed."""
    found = directory.glob("dagster-delta-spark-*/*/server.json")
    return [msgspec.json.decode(path.read_bytes())["process_id"] for path in found]


def _run(script: str, location: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, script, *arguments],
        cwd=location["TMPDIR"],
        env=location,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_chain_of_assets_starts_one_server(location: dict[str, str]) -> None:
    process = _run("chain.py", location)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert out.split()[-1] == "5"
    assert len(re.findall("Started the shared Spark server", errors)) == 1
    assert len(re.findall("Joined the shared Spark server", errors)) == 2


def test_a_server_ends_after_its_last_user(location: dict[str, str]) -> None:
    process = _run("one.py", {**location, "IDLE_MINUTES": "0.01"})
    out, errors = process.communicate(timeout=300)
    assert out == "5\n", errors
    end = time.monotonic() + 60
    while _servers(Path(location["TMPDIR"])):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_two_first_steps_at_once_start_one_server(location: dict[str, str]) -> None:
    processes = [_run("one.py", location) for _ in range(2)]
    answers = [process.communicate(timeout=300) for process in processes]
    assert [out.split() for out, _ in answers] == [["5"], ["5"]]
    started = [errors.count("Started the shared Spark server") for _, errors in answers]
    assert sorted(started) == [0, 1]


def test_a_server_that_died_is_named_and_started_again(location: dict[str, str]) -> None:
    process = _run("one.py", location, "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "5\n"
    (server,) = _servers(Path(location["TMPDIR"]))
    os.kill(server, signal.SIGKILL)
    out, errors = process.communicate(timeout=300)
    assert "lost the shared Spark server has ended" in out, errors
    assert out.split()[-1] == "7"
    assert errors.count("Started the shared Spark server") == 2
