"""A Spark Connect server that all processes of a code location share: a process joins the one that
runs, or starts it, and it ends when no process has used it for some minutes.

The kernel keeps the account, so that a killed process leaves nothing behind: the server holds a
file lock while it lives, each process that has joined holds another one, and a third is held while
a process joins or the server decides to end. The server is a process of Python that starts the
session; its JVM ends with it, and it ends with its JVM.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import msgspec
import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from dagster_delta._version import __version__
from dagster_delta.engines.spark.session.session import apache_spark_sessions, check_java
from dagster_delta.errors import InvalidArgument, SparkSessionLost

TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable with the token that a server requires. Only its user can read it."""

# What the server takes over from the process that starts it: others with other values start theirs.
_INHERITED = ("SPARK_", "PYSPARK_", "JAVA_", "HADOOP_", "AWS_", "AZURE_", "GOOGLE_", "PYTHONPATH")
_CLIENT_ONLY = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_GATEWAY_PORT")

# Jobs of one session may not starve those of others: tasks are shared out between all jobs.
_POOLS = """<?xml version="1.0"?>
<allocations><pool name="default"><schedulingMode>FAIR</schedulingMode></pool></allocations>
"""
_WORKERS = {
    "spark.python.worker.reuse": "false",
    "spark.python.daemon.module": "dagster_delta.engines.spark.python_daemon",
}
_SECONDS_TO_START = 120.0
_SECONDS_BETWEEN_LOOKS = 0.2


class SharedServer(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a server that is ready."""

    process_id: int
    port: int
    token: str
    ui: str | None = None
    """Address of its web UI, if the settings enable one."""


@dataclass(frozen=True, slots=True)
class JoinedServer:
    """The server that this process uses."""

    server: SharedServer
    directory: Path
    session: SparkSession
    is_new: bool
    """Whether this process started it."""
    use: IO[bytes]
    """Holds the lock of a user of the server while it is open."""

    @property
    def log(self) -> Path:
        """The log of the server."""
        return _log_in(self.directory)

    def is_alive(self) -> bool:
        """Whether the server runs, and the session was not stopped."""
        is_stopped: bool = self.session.is_stopped  # type: ignore[attr-defined]
        return not is_stopped and _running_server(self.directory) == self.server


_joined: JoinedServer | None = None
_joining = threading.Lock()


def join_shared_server(settings: Mapping[str, str], *, idle_minutes: float) -> JoinedServer:
    """The server with these settings, started if none runs, and the session of this process on it.

    Args:
        settings: all settings of the server, its name and master among them.
        idle_minutes: how long it stays after the last process that used it has ended.

    Raises:
        InvalidArgument: the server does not start.
    """
    global _joined
    directory = _directory_of(settings, idle_minutes)
    with _joining:
        if _joined is not None and _joined.directory == directory and _joined.is_alive():
            return _joined
        _leave()
        with _locked(directory / "joining"):
            use = (directory / "users").open("ab")
            fcntl.flock(use, fcntl.LOCK_SH)
            server = _running_server(directory)
            is_new = server is None
            if server is None:
                server = _start_server(directory, settings, idle_minutes)
        _joined = JoinedServer(server, directory, _connect(server, directory), is_new, use)
        return _joined


def stop_shared_server() -> None:
    """End the server that this process has joined, for all that use it."""
    if _joined is None:
        return
    with suppress(ProcessLookupError):
        os.kill(_joined.server.process_id, signal.SIGTERM)
    while _is_running(_joined.directory):
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    _leave()


@atexit.register
def _leave() -> None:
    """End the session, which cancels its jobs, and leave the server to others."""
    global _joined
    if _joined is None:
        return
    joined, _joined = _joined, None
    if joined.is_alive():
        joined.session.stop()
    joined.use.close()


def _connect(server: SharedServer, directory: Path) -> SparkSession:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    class UntilServerEnds(DefaultPolicy):
        def can_retry(self, e: BaseException) -> bool:
            if _running_server(directory) != server:
                # Spark's own policy calls a dead server for ten minutes.
                raise SparkSessionLost(
                    "the shared Spark server has ended: it was killed, or had too little memory "
                    "(spark.driver.memory). Run the step again, which starts another one; what was "
                    "not committed is not in the table"
                ) from e
            return super().can_retry(e)

    # Spark's client sends a token without TLS to this name only.
    url = f"sc://localhost:{server.port}/;token={server.token}"
    session = SparkSession.Builder().remote(url).create()
    apache_spark_sessions[session] = True
    session.client.set_retry_policies([UntilServerEnds()])
    return session


def _directory_of(settings: Mapping[str, str], idle_minutes: float) -> Path:
    """The directory of the server with these settings, which only this user can open."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_INHERITED) and name not in (*_CLIENT_ONLY, TOKEN_VARIABLE)
    }
    facts = (sys.executable, pyspark.__version__, __version__, str(Path.cwd()), idle_minutes)
    identity = repr((facts, sorted(settings.items()), sorted(environment.items())))
    root = Path(tempfile.gettempdir(), f"dagster-delta-spark-{os.geteuid()}")
    root.mkdir(mode=0o700, exist_ok=True)
    found = root.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise InvalidArgument(f"{root} is open to other users: remove it, or set TMPDIR")
    directory = root / hashlib.sha256(identity.encode()).hexdigest()[:20]
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _log_in(directory: Path) -> Path:
    return directory / "server.log"


def _running_server(directory: Path) -> SharedServer | None:
    """The server of a directory; None if it has ended or is about to end."""
    if not _is_running(directory):
        return None
    try:
        return msgspec.json.decode((directory / "server.json").read_bytes(), type=SharedServer)
    except FileNotFoundError:
        return None


def _start_server(
    directory: Path, settings: Mapping[str, str], idle_minutes: float
) -> SharedServer:
    check_java()
    ready = directory / "server.json"
    ready.unlink(missing_ok=True)
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        # The web UI would listen on every address otherwise.
        "SPARK_LOCAL_IP": "127.0.0.1",
        **os.environ,
        TOKEN_VARIABLE: secrets.token_hex(32),
    }
    for name in _CLIENT_ONLY:
        environment.pop(name, None)
    log = _log_in(directory)
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - this very interpreter
            [sys.executable, "-m", __name__, str(directory), str(idle_minutes * 60)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            # An interrupt of the step in a terminal is not one of the server.
            start_new_session=True,
        )
    # Arguments would show secrets to other users.
    with suppress(BrokenPipeError), cast("IO[bytes]", process.stdin) as pipe:
        pipe.write(msgspec.json.encode(dict(settings)))
    end = time.monotonic() + _SECONDS_TO_START
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            process.wait()
            raise InvalidArgument(f"the shared Spark server did not start: its log is {log}")
        time.sleep(0.02)
    return msgspec.json.decode(ready.read_bytes(), type=SharedServer)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_running(directory: Path) -> bool:
    """Whether the server of a directory holds its lock; several processes may ask at once."""
    return not _can_lock(directory / "alive", fcntl.LOCK_SH)


def _can_lock(path: Path, kind: int) -> bool:
    with path.open("ab") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _serve(directory: Path, idle_seconds: float) -> None:
    """Run a server until nothing uses it or its JVM has ended."""
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=dict[str, str])
    with _locked(directory / "alive"):
        pools = directory / "pools.xml"
        pools.write_text(_POOLS)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        builder = SparkSession.Builder()
        own = {
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            # The queries of a process that was killed end soon.
            "spark.connect.execute.manager.detachedTimeout": "60s",
        }
        fair = {
            "spark.scheduler.mode": "FAIR",
            "spark.scheduler.allocation.file": pools.as_uri(),
        }
        workers = _WORKERS if settings["spark.master"].startswith("local") else {}
        for name, value in {**fair, **workers, **settings, **own}.items():
            builder = builder.config(name, value)
        context = builder.getOrCreate().sparkContext
        server = SharedServer(
            process_id=os.getpid(),
            port=port,
            token=os.environ[TOKEN_VARIABLE],
            ui=context.uiWebUrl,
        )
        written = directory / "server.json.part"
        written.write_bytes(msgspec.json.encode(server))
        written.replace(directory / "server.json")
        jvm = SparkContext._gateway.proc  # type: ignore[union-attr]  # noqa: SLF001 - no other way
        _wait_for_end(directory, jvm, idle_seconds)
        if jvm.poll() is None:
            context.stop()


def _wait_for_end(directory: Path, jvm: subprocess.Popen[bytes], idle_seconds: float) -> None:
    used = time.monotonic()
    while jvm.poll() is None:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        if not _can_lock(directory / "users", fcntl.LOCK_EX):
            used = time.monotonic()
        elif time.monotonic() - used > idle_seconds:
            with _locked(directory / "joining"):
                if _can_lock(directory / "users", fcntl.LOCK_EX):
                    (directory / "server.json").unlink()
                    return


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), float(sys.argv[2]))
