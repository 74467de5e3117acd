"""The Spark sessions of the tests: classic, of a Connect server beside it, of Connect alone, or of
Sail, a Connect server that is not Spark and needs no Java.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from tests.reference.jars import delta_spark_settings, resolve_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ON_SAIL = os.environ.get("SPARK_SESSION") == "sail"
"""Whether every test that asks for a session gets one of Sail."""

CONNECT_ONLY = ON_SAIL or os.environ.get("SPARK_SESSION") == "connect"
"""Whether every test that asks for a session gets one of Connect, as in `make test-connect` and `make test-sail`."""

SAIL_LIMITS = {
    "test_an_error_of_the_data_is_the_same_on_every_engine[connect-update_value]": "the server "
    "evaluates expressions, and names its own errors",
    "test_a_full_scan_gives_the_expected_rows[connect-golden__collations-preview-table]": "types "
    "of text have no collations there",
    "test_a_column_may_have_the_name_of_a_value_of_the_session[connect]": "current_date is the "
    "function there, whatever columns there are",
    "test_both_spellings_are_read_and_found_as_one_instant[connect]": "tasks there do not know the "
    "zone of the session",
    "test_a_checkpoint_keeps_the_meaning_of_both_spellings[connect]": "tasks there do not know the "
    "zone of the session",
}
"""Conformance tests that fail on Sail, and why."""

_SERVICE = "org.apache.spark.sql.connect.service"


def java_is_there() -> bool:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    return (
        java is not None and subprocess.run([java, "-version"], capture_output=True).returncode == 0
    )


def server_settings(warehouse: Path) -> dict[str, str]:
    """What a JVM of the tests is started with, with delta-spark's JARs where they are."""
    jars, _ = resolve_jars()
    settings = {
        "spark.driver.memory": "3g",
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        # VACUUM of delta-spark lists directories in this many tasks: 10,000 unless it is told.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        # Sessions live for minutes, for which the best of compilers does not pay. The other one
        # gets 48 MB for its code, which all tests together fill: it would drop and compile again.
        # Memory that grows in small steps is collected at every step. Released JARs need no
        # verification of their bytecode, which takes seconds.
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
        "-XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=512m -Xms1536m -Xmn768m "
        "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions "
        "-XX:-BytecodeVerificationRemote",
        # The tables of tests are small: to compile a query costs more than to interpret it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(free_port()),
    }
    if jars:
        settings |= delta_spark_settings(jars)
    return settings


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def classic_session(warehouse: Path) -> Iterator[SparkSession]:
    """A classic local session, the one of this process."""
    from dagster_delta.engines.spark.session.session import local_spark_session

    session = local_spark_session("tests", server_settings(warehouse), cores=2)
    yield session
    session.stop()


@contextmanager
def connect_session_beside(classic: SparkSession) -> Iterator[SparkSession]:
    """A session of a Connect server in the JVM of a classic one: both in one process of Python."""
    pytest.importorskip("grpc_status", reason="Spark Connect needs the extra 'connect'")
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    context = classic.sparkContext
    service = getattr(context._jvm, f"{_SERVICE}.SparkConnectService")
    service.start(context._jsc.sc())
    port = context.getConf().get("spark.connect.grpc.binding.port")
    session = ConnectSession.builder.remote(f"sc://127.0.0.1:{port}").create()
    yield session  # type: ignore[misc]
    session.stop()


@contextmanager
def connect_session_alone(directory: Path) -> Iterator[SparkSession]:
    """The session of a process that has no JVM: its Connect server is a process of its own."""
    pytest.importorskip("grpc_status", reason="Spark Connect needs the extra 'connect'")
    from pyspark.sql import SparkSession

    settings = server_settings(directory / "warehouse")
    port = settings["spark.connect.grpc.binding.port"]
    log = directory / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            _server_command(settings),
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _await_port(int(port), server, log)
        session = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
        yield session
        session.stop()
    finally:
        _stop(server)


@contextmanager
def sail_server(directory: Path) -> Iterator[str]:
    """The address of a Sail server, a process of its own."""
    pytest.importorskip("grpc_status", reason="Spark Connect needs the extra 'connect'")
    pytest.importorskip("pysail", reason="Sail is not installed: pip install pysail")
    port = free_port()
    log = directory / "server.log"
    command = [sys.executable, "-m", "pysail", "spark", "server", "--port", str(port)]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        _await_port(port, server, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        _stop(server)


@contextmanager
def sail_session(directory: Path) -> Iterator[SparkSession]:
    """A session of Sail alone, in a process that has none of Spark."""
    from pyspark.sql import SparkSession

    with sail_server(directory) as url:
        session = SparkSession.builder.remote(url).getOrCreate()
        session.conf.set("spark.sql.session.timeZone", "UTC")
        yield session
        session.stop()


def _server_command(settings: Mapping[str, str]) -> list[str]:
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        **settings,
    }
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    options = [each for pair in settings.items() for each in ("--conf", "=".join(pair))]
    server = f"{_SERVICE}.SparkConnectServer"
    return [str(submit), "--master", "local[2]", "--class", server, *options, "spark-internal"]


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(timeout=60)
    except subprocess.TimeoutExpired:
        # Where a shell ignores the signal, so do the processes below it.
        server.kill()
        server.wait()


def _await_port(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if server.poll() is not None:
            pytest.fail(f"no Connect server: {log.read_text(errors='replace')[-500:]}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    pytest.fail("the Connect server does not answer")
