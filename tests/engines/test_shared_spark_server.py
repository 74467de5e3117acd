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
        [a0, *map(after, range(1, 6))],
        jobs=[dg.define_asset_job("all")],
        resources={"io_manager": manager, "spark": SPARK},
        executor=getattr(dg, os.environ["EXECUTOR"]),
    ).resolve_job_def("all")


if __name__ == "__main__":
    with dg.DagsterInstance.get() as instance:
        with dg.execute_job(dg.reconstructable(chain), instance) as done:
            assert done.success
    print(DeltaTable(os.environ["ROOT"] + "/public/a5").snapshot().num_records)
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

SLOW = """
import signal
from chain import SPARK

# A test run in the background ignores it, and so would this process.
signal.signal(signal.SIGINT, signal.default_int_handler)

def sleep(batches):
    import time
    time.sleep(float("SECONDS"))
    yield from batches

frame = SPARK.session.range(0, 20, 1, 20).mapInArrow(sleep, "id long")
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


@pytest.fixture
def location(tmp_path: Path) -> Iterator[dict[str, str]]:
    (tmp_path / "chain.py").write_text(CHAIN)
    (tmp_path / "one.py").write_text(ONE)
    (tmp_path / "use_edited.py").write_text(EDITED)
    for name, seconds in (("slow", "0.5"), ("endless", "60")):
        (tmp_path / f"{name}.py").write_text(SLOW.replace("SECONDS", seconds))
    (tmp_path / "home").mkdir()
    names = {"TMPDIR": tmp_path, "DAGSTER_HOME": tmp_path / "home", "ROOT": tmp_path / "lake"}
    (tmp_path / "home" / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    given = {name: str(path) for name, path in names.items()}
    yield {**os.environ, **given, "IDLE_MINUTES": "5", "EXECUTOR": "multiprocess_executor"}
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


def _answer(script: str, location: dict[str, str], *arguments: str) -> tuple[str, str]:
    process = _run(script, location, *arguments)
    out, errors = process.communicate(timeout=300)
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
def test_a_chain_of_assets_starts_one_server(location: dict[str, str]) -> None:
    sparks = set()
    for executor in ("multiprocess_executor", "in_process_executor"):
        process = _run("chain.py", {**location, "EXECUTOR": executor})
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(process.communicate, timeout=400)
            while not answer.done():
                sparks |= _sparks(location)
                time.sleep(0.1)
        out, errors = answer.result()
        assert process.returncode == 0, errors
        assert out.split()[-1] == "4"
        if executor == "multiprocess_executor":
            assert len(re.findall("Joined the shared Spark server", errors)) == 5
    assert len(sparks) == 1


def test_a_server_ends_after_its_last_user(location: dict[str, str]) -> None:
    out, _ = _answer("one.py", {**location, "IDLE_MINUTES": "0.01"})
    assert out == "5"
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
    assert "SparkSessionLost the shared Spark server has ended" in out, errors
    assert out.split()[-1] == "7"
    assert errors.count("Started the shared Spark server") == 2
    assert process.returncode == 0


def _running_jobs(url: str) -> int:
    with urllib.request.urlopen(f"{url}/api/v1/applications") as answer:
        (application,) = msgspec.json.decode(answer.read())
    jobs = f"{url}/api/v1/applications/{application['id']}/jobs?status=running"
    with urllib.request.urlopen(jobs) as answer:
        return len(msgspec.json.decode(answer.read()))


def test_the_jobs_of_a_step_that_was_interrupted_end(location: dict[str, str]) -> None:
    _, log = _answer("one.py", location)
    found = re.search(r"its UI is (http://127\.0\.0\.1:\d+)", log)
    assert found is not None, log
    ui = found[1]
    step = _run("endless.py", location)
    while not _running_jobs(ui):
        assert step.poll() is None
        time.sleep(0.1)
    step.send_signal(signal.SIGINT)
    step.communicate(timeout=60)
    end = time.monotonic() + 30
    while _running_jobs(ui):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_long_job_leaves_cores_to_other_steps(location: dict[str, str]) -> None:
    _answer("one.py", location)
    step = _run("slow.py", location)
    assert step.stdout is not None
    assert step.stdout.readline() == "begins\n"
    assert _answer("one.py", location)[0] == "5"
    assert step.poll() is None
    assert step.communicate(timeout=300)[0] == "20\n"


def test_an_edited_module_is_used_by_the_next_step(location: dict[str, str]) -> None:
    module = Path(location["TMPDIR"], "edited.py")
    for edit, expected in (("batch", "0"), ("batch.from_pydict({'id': [41]})", "41")):
        module.write_text(f"def change(batch):\n    return {edit}\n")
        assert _answer("use_edited.py", location)[0] == expected
