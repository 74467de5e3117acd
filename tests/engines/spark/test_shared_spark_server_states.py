"""The states of a shared Spark server, with a server process whose JVM is `sleep`."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

if os.name != "posix":
    pytest.skip("needs file locks", allow_module_level=True)
pytest.importorskip("grpc", reason="Spark Connect needs the extra 'connect'")

from dagster_delta.engines.spark.session import shared_server
from dagster_delta.errors import InvalidArgument, SparkSessionLost

SERVER = """
import os, subprocess, sys, time, types
from pathlib import Path
import dagster_delta.engines.spark.session.shared_server as module

jvm = subprocess.Popen(["sleep", "600"])

class Builder:
    def getOrCreate(self):
        arguments = os.environ["PYSPARK_SUBMIT_ARGS"].split()
        file = Path(arguments[arguments.index("--properties-file") + 1])
        Path(os.environ["TMPDIR"], "passed").write_text(f"{file.stat().st_mode & 0o777:o} {file.read_text()}")
        while not Path(os.environ["TMPDIR"], "may_start").exists():
            time.sleep(0.02)
        context = types.SimpleNamespace(uiWebUrl=None, stop=jvm.kill)
        return types.SimpleNamespace(sparkContext=context)

module.SparkSession = types.SimpleNamespace(Builder=Builder)
module.SparkContext = types.SimpleNamespace(_gateway=types.SimpleNamespace(proc=jvm))
try:
    module._serve(Path(sys.argv[1]), float(sys.argv[2]))
finally:
    jvm.kill()
"""


class Session:
    """A session without a server."""

    is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Joins a server; it ends with the test."""
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    (tmp_path / "may_start").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(shared_server, "check_java", lambda: None)
    monkeypatch.setattr(shared_server, "_connect", lambda *_: Session())
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if "-m" in command:
            command = [sys.executable, str(script), *command[3:]]
        process = popen(command, **options)
        started.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", start)

    def join_server(idle_minutes: float = 1.0, **settings: str) -> shared_server.JoinedServer:
        given = {"spark.master": "local[1]", "spark.app.name": "x", **settings}
        return shared_server.join_shared_server(given, idle_minutes=idle_minutes)

    join_server.started = started  # type: ignore[attr-defined]
    yield join_server
    shared_server._leave()
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait()
    monkeypatch.setattr(tempfile, "tempdir", None)


def wait_until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_second_resource_keeps_session_of_first(join: Callable[..., Any]) -> None:
    one = join()
    other = join(**{"spark.sql.shuffle.partitions": "8"})
    assert not one.session.is_stopped
    assert one.server != other.server
    assert join() is one
    shared_server.stop_shared_server(one.settings)
    assert other.is_alive()
    assert not one.is_alive()


def test_settings_reach_the_jvm_by_a_file_of_this_user_alone(
    join: Callable[..., Any], tmp_path: Path
) -> None:
    joined = join(**{"spark.hadoop.fs.s3a.secret.key": "a=b\\c #d"})
    mode, _, text = (tmp_path / "passed").read_text().partition(" ")
    assert mode == "600"
    assert "spark.hadoop.fs.s3a.secret.key=a\\=b\\\\c\\ \\#d\n" in text
    assert not (joined.directory / "spark.properties").exists()


def test_server_whose_starter_was_killed_is_joined(
    join: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "may_start").unlink()
    directory = shared_server._directory_of(
        {"spark.master": "local[1]", "spark.app.name": "x"}, 1.0
    )
    with (directory / "alive").open("ab") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        settings = {"spark.master": "local[1]", "spark.app.name": "x"}
        first = shared_server._launch(directory, settings, 1.0, alive)
    # The starter holds nothing any more: the server alone holds the lock.
    assert not shared_server._can_lock(directory / "alive", fcntl.LOCK_SH)
    (tmp_path / "may_start").touch()
    joined = join()
    assert joined.server.process_id == first.pid
    assert not joined.is_new
    assert len(join.started) == 1  # type: ignore[attr-defined]


def test_server_of_used_files_survives_a_cleaner_of_temporary_files(
    join: Callable[..., Any],
) -> None:
    joined = join(idle_minutes=0.01)
    for name in ("users", "joining", "alive", "server.json"):
        (joined.directory / name).unlink()
    wait_until((joined.directory / "server.json").exists)
    time.sleep(2)
    assert joined.is_alive()
    wait_until(lambda: not shared_server._can_lock(joined.directory / "alive", 1))
    shared_server._leave()
    wait_until(lambda: shared_server._running_server(joined.directory) is None)


def test_stop_signals_no_process_that_has_the_number_of_an_ended_server(
    join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = join()
    (process,) = join.started  # type: ignore[attr-defined]
    process.kill()
    process.wait()
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda *given: signals.append(given[0]))
    shared_server.stop_shared_server()
    assert not signals
    assert not joined.is_alive()


def test_step_ends_although_the_server_does_not_answer(
    join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = join()
    monkeypatch.setattr(shared_server, "_SECONDS_TO_LEAVE", 0.1)
    joined.session.stop = Event().wait
    shared_server._leave()
    assert joined.use.closed
    assert not joined.session.is_stopped


def test_join_names_a_server_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_server, "_SECONDS_TO_ANSWER", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        server = shared_server.SharedServer(process_id=os.getpid(), port=port, token="t")
        with pytest.raises(SparkSessionLost, match="has not answered"):
            shared_server._connect(server, tmp_path)


def test_folder_that_cannot_be_used_names_tmpdir(join: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / f"dagster-delta-spark-{os.geteuid()}").write_text("of somebody else")
    with pytest.raises(InvalidArgument, match="set TMPDIR"):
        join()
