"""`dagster dev` on a home of its own, over a lake of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]

_WORKSPACE = f"""\
load_from:
  - python_module:
      module_name: {{module}}
      working_directory: {_REPOSITORY}
      location_name: lake
"""

# A test reports nothing to anybody, and no dialog for newcomers stands in its way.
_SETTINGS = """\
telemetry:
  enabled: false
nux:
  enabled: false
"""

_PATIENCE_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class DagsterServer:
    """A running webserver, with its daemon and its code location."""

    url: str
    lake: Path
    """Directory of the tables."""
    home: Path
    """DAGSTER_HOME."""


@contextmanager
def serve(
    directory: Path, module: str = "tests.browser.lake_definitions"
) -> Iterator[DagsterServer]:
    """A server whose home is empty, until the block ends.

    Args:
        directory: an empty one, for its home, its log and the lake.
        module: of the code location.

    Raises:
        RuntimeError: it does not come up; the message has the end of its log.
    """
    home, lake, log = directory / "home", directory / "lake", directory / "server.log"
    home.mkdir()
    lake.mkdir()
    (home / "dagster.yaml").write_text(_SETTINGS)
    workspace = directory / "workspace.yaml"
    workspace.write_text(_WORKSPACE.format(module=module))
    port = _free_port()
    command = [sys.executable, "-m", "dagster", "dev", "-w", str(workspace)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "-h", "127.0.0.1", "-p", str(port)],
            cwd=directory,
            env={
                **os.environ,
                "DAGSTER_HOME": str(home),
                "DAGSTER_DELTA_BROWSER_LAKE": str(lake),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(f"{url}/server_info", process, log)
        yield DagsterServer(url, lake, home)
    finally:
        _stop(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"dagster dev did not come up:\n{log.read_text()[-5000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the whole session: the webserver, the daemon, the code server and runs of theirs."""
    for each in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, each)
            process.wait(timeout=10)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
