"""A Spark Connect server that all processes of a code location share: a process joins the one that
runs, or starts it, and it ends when no process has used it for some minutes.

The kernel keeps the account, so that a killed process leaves nothing behind: `alive` is locked
from before a server starts until it has ended, `users` by each process that has joined, and
`joining` while a process joins or the server decides to end. The lock of `alive` and the presence
of `server.json`, which only the holder of that lock writes and deletes, are the state:

    alive is free                     there is no server
    alive is locked, no server.json   a server starts, or ends
    alive is locked, server.json      the server is ready

The server is a process of Python that starts the session; its JVM ends with it, and it ends with
its JVM.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
_SECONDS_TO_ANSWER = 20.0
_SECONDS_TO_LEAVE = 5.0
_SECONDS_TO_END = 30.0
_SECONDS_BETWEEN_TOUCHES = 3600.0
"""Cleaners of temporary folders delete files that are old, locked or not."""
_SECONDS_BETWEEN_LOOKS = 0.2


class SharedServer(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a server that is ready."""

    process_id: int
    process_mark: str = ""
    """Tells the process from a later one with the same id. See `_process_mark`."""
    port: int
    token: str
    ui: str | None = None
    """Address of its web UI, if the settings enable one."""


class JoinedServer(msgspec.Struct, frozen=True):
    """The server that this process uses."""

    server: SharedServer
    directory: Path
    session: SparkSession
    is_new: bool
    """Whether this process started it."""
    use: IO[bytes]
    """Holds the lock of a user of the server while it is open."""
    settings: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def log(self) -> Path:
        """The log of the server."""
        return _log_in(self.directory)

    def is_alive(self) -> bool:
        """Whether the server runs, and the session was not stopped."""
        is_stopped: bool = self.session.is_stopped  # type: ignore[attr-defined]
        return not is_stopped and _running_server(self.directory) == self.server


_joined: dict[Path, JoinedServer] = {}
"""By directory: resources with different settings use different servers."""
_joining = threading.Lock()


def join_shared_server(settings: Mapping[str, str], *, idle_minutes: float) -> JoinedServer:
    """The server with these settings, started if none runs, and the session of this process on it.

    Args:
        settings: all settings of the server, its name and master among them.
        idle_minutes: how long it stays after the last process that used it has ended.

    Raises:
        InvalidArgument: the server does not start, or its directory cannot be used.
        SparkSessionLost: the server does not answer.
    """
    with _joining, _usable_directory():
        directory = _directory_of(settings, idle_minutes)
        known = _joined.get(directory)
        if known is not None and known.is_alive():
            return known
        if known is not None:
            _leave_server(_joined.pop(directory))
        with _locked(directory / "joining"):
            use = (directory / "users").open("ab")
            fcntl.flock(use, fcntl.LOCK_SH)
            server, is_new = _running_server(directory), False
            if server is None:
                server, is_new = _start_server(directory, settings, idle_minutes)
        session = _connect(server, directory)
        joined = JoinedServer(server, directory, session, is_new, use, settings)
        _joined[directory] = joined
        return joined


def stop_shared_server(settings: Mapping[str, str] | None = None) -> None:
    """End the servers that this process has joined, for all that use them: those with these
    settings, or all of them.
    """
    with _joining:
        for directory, joined in list(_joined.items()):
            if settings is not None and joined.settings != settings:
                continue
            server = joined.server
            _leave_server(_joined.pop(directory))
            # The number may belong to another process by now.
            if _running_server(directory) == server:
                with suppress(ProcessLookupError):
                    os.kill(server.process_id, signal.SIGTERM)
            end = time.monotonic() + _SECONDS_TO_END
            while _running_server(directory) == server and time.monotonic() < end:
                time.sleep(_SECONDS_BETWEEN_LOOKS)


@atexit.register
def _leave() -> None:
    """End the sessions, which cancels their jobs, and leave the servers to others."""
    while _joined:
        _leave_server(_joined.popitem()[1])


def _leave_server(joined: JoinedServer) -> None:
    if joined.is_alive():
        # A JVM that hangs never answers; the server ends a session that is lost by itself.
        thread = threading.Thread(target=joined.session.stop, daemon=True)
        thread.start()
        thread.join(_SECONDS_TO_LEAVE)
    joined.use.close()


@contextmanager
def _usable_directory() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidArgument(
            f"the shared Spark server cannot use its folder in {tempfile.gettempdir()} ({error}): "
            "free or remove it, or set TMPDIR to a folder that this user can write"
        ) from error


def _connect(server: SharedServer, directory: Path) -> SparkSession:
    _check_answer(server, directory)
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


def _check_answer(server: SharedServer, directory: Path) -> None:
    """Raises SparkSessionLost if the JVM accepts connections but does not answer."""
    import grpc  # type: ignore[import-untyped]

    with grpc.insecure_channel(f"localhost:{server.port}") as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_SECONDS_TO_ANSWER)
        except grpc.FutureTimeoutError as error:
            raise SparkSessionLost(
                f"the shared Spark server (process {server.process_id}) has not answered for "
                f"{_SECONDS_TO_ANSWER:.0f} s: end it, or give it more memory "
                f"(spark.driver.memory); its log is {_log_in(directory)}"
            ) from error


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
    """The server of a directory if it is ready."""
    try:
        written = (directory / "server.json").read_bytes()
        server = msgspec.json.decode(written, type=SharedServer)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    if server.process_mark:
        # A cleaner may have deleted the file that the server has locked.
        return server if server.process_mark == _process_mark(server.process_id) else None
    return None if _can_lock(directory / "alive", fcntl.LOCK_SH) else server


def _process_mark(process_id: int) -> str:
    """The start of a process and of the system; empty if it has ended, or if there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        facts = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    # A child that was not waited for is a zombie.
    return "" if facts[0] == "Z" else f"{boot} {facts[19]}"


def _start_server(
    directory: Path, settings: Mapping[str, str], idle_minutes: float
) -> tuple[SharedServer, bool]:
    """The server, and whether it was started here: another one that starts is waited for, and one
    that ends.
    """
    check_java()
    end = time.monotonic() + _SECONDS_TO_START
    process: subprocess.Popen[bytes] | None = None
    while (server := _running_server(directory)) is None:
        if process is None:
            with (directory / "alive").open("ab") as alive, suppress(BlockingIOError):
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
                process = _launch(directory, settings, idle_minutes, alive)
        has_ended = process is not None and process.poll() is not None
        if has_ended or time.monotonic() > end:
            if process is not None:
                process.kill()
                process.wait()
            raise InvalidArgument(
                f"the shared Spark server did not start: its log is {_log_in(directory)}"
            )
        time.sleep(0.02)
    return server, process is not None


def _launch(
    directory: Path, settings: Mapping[str, str], idle_minutes: float, alive: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start the process of a server. It inherits the lock, which no other process gets meanwhile,
    not even if this one is killed.
    """
    (directory / "server.json").unlink(missing_ok=True)
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        # The web UI would listen on every address otherwise.
        "SPARK_LOCAL_IP": "127.0.0.1",
        **os.environ,
        TOKEN_VARIABLE: secrets.token_hex(32),
    }
    for name in _CLIENT_ONLY:
        environment.pop(name, None)
    with _log_in(directory).open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - this very interpreter
            [sys.executable, "-m", __name__, str(directory), str(idle_minutes * 60)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=[alive.fileno()],
            # An interrupt of the step in a terminal is not one of the server.
            start_new_session=True,
        )
    # Arguments would show secrets to other users.
    with suppress(BrokenPipeError), cast("IO[bytes]", process.stdin) as pipe:
        pipe.write(msgspec.json.encode((alive.fileno(), dict(settings))))
    return process


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _can_lock(path: Path, kind: int) -> bool:
    """Whether a lock is free; several processes may ask at once."""
    with path.open("ab") as file:
        return _can_lock_file(file, kind)


def _can_lock_file(file: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True


def _serve(directory: Path, idle_seconds: float) -> None:
    """Run a server until nothing uses it or its JVM has ended."""
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[int, dict[str, str]])
    alive, settings = os.fdopen(given[0], "ab"), given[1]
    pools = directory / "pools.xml"
    pools.write_text(_POOLS)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
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
    passed = _pass_settings(directory, {**fair, **workers, **settings, **own})
    context = SparkSession.Builder().getOrCreate().sparkContext
    passed.unlink()
    server = SharedServer(
        process_id=os.getpid(),
        process_mark=_process_mark(os.getpid()),
        port=port,
        token=os.environ[TOKEN_VARIABLE],
        ui=context.uiWebUrl,
    )
    jvm = SparkContext._gateway.proc  # type: ignore[union-attr]  # noqa: SLF001 - no other way
    _ServerFiles(directory, server, alive).wait_for_end(jvm, idle_seconds)
    if jvm.poll() is None:
        context.stop()


def _pass_settings(directory: Path, settings: Mapping[str, str]) -> Path:
    """Give the JVM its settings in a file that only this user can read: PySpark makes arguments of
    those of a builder, which every user of the machine sees.
    """
    path = directory / "spark.properties"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        for name, value in settings.items():
            file.write(f"{_escape_property(name)}={_escape_property(value)}\n")
    given = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        f"--load-spark-defaults --properties-file {shlex.quote(str(path))} {given}"
    )
    return path


def _escape_property(text: str) -> str:
    """A name or a value as in a properties file of Java."""
    escaped = re.sub(r"[\\=:#! ]", r"\\\g<0>", text)
    return escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


class _ServerFiles:
    """The files of a server, which it alone writes, and replaces if a cleaner of temporary files
    deletes them.
    """

    def __init__(self, directory: Path, server: SharedServer, alive: IO[bytes]) -> None:
        self._directory = directory
        self._server = server
        self._alive = [alive]
        self._users = [(directory / "users").open("ab")]
        self._touched = time.monotonic()
        self._write_server()

    def wait_for_end(self, jvm: subprocess.Popen[bytes], idle_seconds: float) -> None:
        """Return when the JVM has ended, or after the server was unused for some time."""
        used = time.monotonic()
        while jvm.poll() is None:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            # A directory that was removed, or a full disk, is not a reason to end under a step.
            with suppress(OSError):
                self._restore()
            if self._is_used():
                used = time.monotonic()
            elif time.monotonic() - used > idle_seconds:
                try:
                    with _locked(self._directory / "joining"):
                        self._restore()
                        if not self._is_used():
                            (self._directory / "server.json").unlink()
                            return
                except FileNotFoundError:
                    # The directory was removed, so no process can join any more.
                    return

    def _is_used(self) -> bool:
        return not all(_can_lock_file(file, fcntl.LOCK_EX) for file in self._users)

    def _restore(self) -> None:
        """Replace what was deleted, and touch the files from time to time."""
        for name, held in (("alive", self._alive), ("users", self._users)):
            path = self._directory / name
            if not _is_at(path, held[-1]):
                # Processes that joined before hold the file that was deleted.
                file = path.open("ab")
                if name == "alive":
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(file)
        if not (self._directory / "server.json").exists():
            self._write_server()
        if time.monotonic() - self._touched > _SECONDS_BETWEEN_TOUCHES:
            self._touched = time.monotonic()
            for path in (self._directory, *self._directory.iterdir()):
                os.utime(path)

    def _write_server(self) -> None:
        written = self._directory / "server.json.part"
        written.write_bytes(msgspec.json.encode(self._server))
        written.replace(self._directory / "server.json")


def _is_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), float(sys.argv[2]))
