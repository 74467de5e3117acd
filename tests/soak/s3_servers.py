"""Two S3 servers on this machine, each with conditional puts of its own: moto's and S3Mock."""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.soak.part import Unavailable

BUCKET = "soak"
S3MOCK = "com.adobe.testing:s3mock:5.0.0:jar:exec"
"""A server by another author in another language."""
CACHE = Path(__file__).parents[2] / ".cache" / "s3mock"
START_S = 120.0


def options_of(endpoint: str) -> dict[str, str]:
    """Storage options for a server."""
    return {
        "access_key_id": "soak",
        "secret_access_key": "soak-secret",
        "region": "us-east-1",
        "endpoint_url": endpoint,
        "allow_http": "true",
    }


def client_of(endpoint: str) -> Any:
    """A botocore client of a server."""
    import botocore.session

    options = options_of(endpoint)
    session = botocore.session.Session()
    session.set_credentials(options["access_key_id"], options["secret_access_key"])
    return session.create_client("s3", region_name=options["region"], endpoint_url=endpoint)


@contextmanager
def moto_server() -> Iterator[int]:
    """The port of moto's server, with the bucket.

    Raises:
        Unavailable: moto is not installed.
    """
    try:
        from moto.server import ThreadedMotoServer
    except ImportError as error:
        raise Unavailable("the S3 tests need moto[server]") from error
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        client_of(f"http://127.0.0.1:{port}").create_bucket(Bucket=BUCKET)
        yield port
    finally:
        server.stop()


@contextmanager
def s3mock_server(directory: Path) -> Iterator[int]:
    """The port of an S3Mock server, with the bucket.

    Raises:
        Unavailable: there is no Java, or Maven cannot fetch the server.
    """
    jar = _s3mock_jar()
    java = shutil.which("java")
    if java is None:
        raise Unavailable("S3Mock needs Java")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["-XX:TieredStopAtLevel=1", "-Xshare:auto", f"-Djava.io.tmpdir={directory}"]
    arguments = ["--server.address=127.0.0.1", "--server.port=0", f"--http.port={port}"]
    with (directory / "s3mock.log").open("wb") as log:
        process = subprocess.Popen(
            [java, *options, "-jar", str(jar), *arguments], stdout=log, stderr=log
        )
        try:
            _await_server(process, port)
            client_of(f"http://127.0.0.1:{port}").create_bucket(Bucket=BUCKET)
            yield port
        finally:
            process.terminate()
            process.wait(30)


def _s3mock_jar() -> Path:
    found = sorted(CACHE.glob("*.jar"))
    if found:
        return found[0]
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("S3Mock is fetched with Maven (mvn)")
    command = [maven, "-B", "-q", "dependency:copy", f"-Dartifact={S3MOCK}"]
    done = subprocess.run(
        [*command, f"-DoutputDirectory={CACHE}"], capture_output=True, timeout=300, check=False
    )
    found = sorted(CACHE.glob("*.jar"))
    if done.returncode or not found:
        raise Unavailable("Maven could not fetch S3Mock")
    return found[0]


def _await_server(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.3)
    raise Unavailable("S3Mock did not start")
