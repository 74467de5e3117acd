"""Processes of a code location share one Spark Connect server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from dagster_delta.engines.spark.session.shared_server import SharedServer

pytest.importorskip("grpc_status", reason="Spark Connect needs the extra 'connect'")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="needs file locks")]

CHAIN = """
import os
import dagster as dg
from pyspark.sql import DataFrame
from dagster_delta import DeltaIOManager, DeltaTable, SparkSessionResource

SPARK = SparkSessionResource(
    shared=True,
    master="local[2]",
    idle_minutes=float(os.environ["IDLE_MINUTES"]),
    conf={
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
        "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.ui.enabled": "true",
    },
)


@dg.asset
def a0(spark: SparkSessionResource) -> DataFrame:
    return spark.session.range(10)


def after(number):
    @dg.asset(name=f"a{number}", ins={"rows": dg.AssetIn(f"a{number - 1}")})
    def asset(rows: DataFrame) -> DataFrame:
        return rows.where(f"id > {number}")

    return asset


def chain():
    manager = DeltaIOManager(root_uri=os.environ["ROOT"], spark=SPARK)
    return dg.Definitions(
        [a0, after(1)],
        jobs=[dg.define_asset_job("all")],
        resources={"io_manager": manager, "spark": SPARK},
        executor=getattr(dg, os.environ["EXECUTOR"]),
    ).resolve_job_def("all")


if __name__ == "__main__":
    with dg.DagsterInstance.get() as instance:
        with dg.execute_job(dg.reconstructable(chain), instance) as done:
            assert done.success
    print(DeltaTable(os.environ["ROOT"] + "/public/a1").snapshot().num_records)
"""

ONE = """
import logging, sys
logging.basicConfig(level="INFO")
from chain import SPARK

frame = SPARK.session.range(5)
print(frame.count(), flush=True)
if "wait" in sys.argv:
    sys.stdin.read()
    try:
        frame.count()
    except Exception as error:
        print(type(error).__name__, error)
    print(SPARK.session.range(7).count())
"""

LONG = """
import signal
from chain import SPARK

# A test run in the background ignores it, and so would this process.
signal.signal(signal.SIGINT, signal.default_int_handler)

def sleep(batches):
    import time
    time.sleep(0.5)
    yield from batches

# For minutes on both cores; each of its tasks is short.
frame = SPARK.session.range(0, 1000, 1, 1000).mapInArrow(sleep, "id long")
print("begins", flush=True)
print(frame.count(), flush=True)
"""

EDITED = """
import edited
from chain import SPARK

def rows(batches):
    for batch in batches:
        yield edited.change(batch)

print(SPARK.session.range(1).mapInArrow(rows, "id long").collect()[0].id)
"""


@contextmanager
def _code_location(directory: Path) -> Iterator[dict[str, str]]:
    """The environment of the processes of a code location, whose servers end with the test."""
    scripts = {"chain": CHAIN, "one": ONE, "long": LONG, "use_edited": EDITED}
    for name, script in scripts.items():
        (directory / f"{name}.py").write_text(script)
    (directory / "home").mkdir()
    (directory / "home" / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    names = {"TMPDIR": directory, "DAGSTER_HOME": directory / "home", "ROOT": directory / "lake"}
    given = {name: str(path) for name, path in names.items()}
    yield {**os.environ, **given, "IDLE_MINUTES": "5"}
    for server in _servers(directory):
        with suppress(ProcessLookupError):
            os.kill(server.process_id, signal.SIGTERM)


@pytest.fixture
def location(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A code location without a server."""
    with _code_location(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A code location whose server was started by a run that has ended, of several steps."""
    with _code_location(tmp_path_factory.mktemp("running")) as made:
        out, errors = _answer("chain.py", {**made, "EXECUTOR": "in_process_executor"})
        assert out.split()[-1] == "8"
        assert len(re.findall("(Started|Joined) the shared Spark server", errors)) == 1
        yield made


def _servers(directory: Path) -> list[SharedServer]:
    """The servers that were not removed."""
    found = directory.glob("dagster-delta-spark-*/*/server.json")
    return [msgspec.json.decode(path.read_bytes(), type=SharedServer) for path in found]


def _server(location: dict[str, str]) -> SharedServer:
    (server,) = _servers(Path(location["TMPDIR"]))
    return server


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


def _answer(script: str, location: dict[str, str], *arguments: str) -> tuple[str, str]:
    process = _run(script, location, *arguments)
    try:
        out, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return out.strip(), errors


def _sparks(location: dict[str, str]) -> set[int]:
    """Process ids of the JVMs of Spark that processes of a code location have started."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_text().split("\0")
            is_spark = (
                command[0].endswith("/java") and "org.apache.spark.deploy.SparkSubmit" in command
            )
            is_launcher = "org.apache.spark.launcher.Main" in command
            of_location = f"ROOT={location['ROOT']}\0" in (process / "environ").read_text()
            if is_spark and not is_launcher and of_location:
                found.add(int(process.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs the processes of Linux")
def test_the_steps_of_a_chain_of_assets_share_the_server(running: dict[str, str]) -> None:
    sparks = _sparks(running)
    process = _run("chain.py", {**running, "EXECUTOR": "multiprocess_executor"})
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(process.communicate, timeout=400)
        while not answer.done():
            sparks |= _sparks(running)
            time.sleep(0.1)
    out, errors = answer.result()
    assert process.returncode == 0, errors
    assert out.split()[-1] == "8"
    assert len(re.findall("Joined the shared Spark server", errors)) == 2
    assert len(sparks) == 1


@pytest.mark.exhaustive
def test_two_first_steps_at_once_start_one_server_which_ends_after_the_last(
    location: dict[str, str],
) -> None:
    processes = [_run("one.py", {**location, "IDLE_MINUTES": "0.01"}) for _ in range(2)]
    answers = [process.communicate(timeout=300) for process in processes]
    assert [out.split() for out, _ in answers] == [["5"], ["5"]]
    started = [errors.count("Started the shared Spark server") for _, errors in answers]
    assert sorted(started) == [0, 1]
    end = time.monotonic() + 60
    while _servers(Path(location["TMPDIR"])):
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.exhaustive
def test_a_server_that_died_is_named_and_started_again(running: dict[str, str]) -> None:
    process = _run("one.py", running, "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "5\n"
    dead = _server(running).process_id
    os.kill(dead, signal.SIGKILL)
    out, errors = process.communicate(timeout=300)
    assert "SparkSessionLost the shared Spark server has ended" in out, errors
    assert out.split()[-1] == "7"
    assert errors.count("Started the shared Spark server") == 1
    assert process.returncode == 0
    assert _server(running).process_id != dead


def _running_jobs(url: str) -> int:
    with urllib.request.urlopen(f"{url}/api/v1/applications") as answer:
        (application,) = msgspec.json.decode(answer.read())
    jobs = f"{url}/api/v1/applications/{application['id']}/jobs?status=running"
    with urllib.request.urlopen(jobs) as answer:
        return len(msgspec.json.decode(answer.read()))


@pytest.mark.exhaustive
def test_a_long_job_leaves_cores_to_other_steps_and_ends_if_its_step_is_interrupted(
    running: dict[str, str],
) -> None:
    ui = _server(running).ui
    assert ui is not None
    step = _run("long.py", running)
    try:
        assert step.stdout is not None
        assert step.stdout.readline() == "begins\n"
        while not _running_jobs(ui):
            assert step.poll() is None
            time.sleep(0.1)
        out, log = _answer("one.py", running)
        assert out == "5"
        assert f"its UI is {ui}" in log
        assert step.poll() is None
        assert _running_jobs(ui)
        step.send_signal(signal.SIGINT)
        step.communicate(timeout=60)
    finally:
        step.kill()
    end = time.monotonic() + 30
    while _running_jobs(ui):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_an_edited_module_is_used_by_the_next_step(running: dict[str, str]) -> None:
    module = Path(running["TMPDIR"], "edited.py")
    for edit, expected in (("batch", "0"), ("batch.from_pydict({'id': [41]})", "41")):
        module.write_text(f"def change(batch):\n    return {edit}\n")
        assert _answer("use_edited.py", running)[0] == expected
