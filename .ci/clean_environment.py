"""Install a wheel into an empty environment, and do what README.md, the tutorial and the lake say.

`python .ci/clean_environment.py WHEEL` makes a virtual environment and an empty directory,
installs the wheel with the extra `webserver`, saves the files of both pages, runs their commands
and compares what they print. It needs nothing but Python, pip and the package index.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs.walk import SavedFile, steps  # noqa: E402 - of this directory, which is not installed

_SECONDS_TO_START = 300
_SMOKE = """
import dagster_delta
for name in dagster_delta.__all__:
    getattr(dagster_delta, name)
print(dagster_delta.__version__)
"""


class CleanEnvironment:
    """A virtual environment with the wheel, and a directory to work in."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        self.directory = directory
        self.wheel = wheel
        self.variables = {
            name: text
            for name, text in os.environ.items()
            if name not in {"PYTHONPATH", "VIRTUAL_ENV", "DAGSTER_HOME"}
        }
        self.variables["PATH"] = f"{directory / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def run(self, command: str, where: Path | None = None) -> str:
        """What a command prints; the process ends with its error if it fails."""
        began = time.monotonic()
        done = subprocess.run(
            command,
            shell=True,
            cwd=where or self.directory,
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
        )
        print(f"{time.monotonic() - began:7.1f} s  {command}", flush=True)
        if done.returncode:
            sys.exit(f"{command} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        return done.stdout

    def install(self) -> None:
        """Make the environment and import every public name in it."""
        self.run(f"{sys.executable} -m venv venv")
        self.run(f"python -m pip install --quiet '{self.wheel}[webserver]'")
        self._save("smoke.py", _SMOKE)
        self.run("python smoke.py")

    def follow_readme(self) -> None:
        """The first example in Dagster's development server and on the command line."""
        code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
        self._save("readme/defs.py", code)
        where = self.directory / "readme"
        self._start_server(where)
        self.run("dg launch --assets '*' -f defs.py", where)
        rows = "DeltaTable('lake/public/big_planes').snapshot().num_records"
        self.run(f'python -c "from dagster_delta import DeltaTable; assert {rows} == 1"', where)

    def _start_server(self, where: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = ["dg", "dev", "-f", "defs.py", "-p", str(port)]
        executable = str(self.directory / "venv" / "bin" / command[0])
        began = time.monotonic()
        server = subprocess.Popen(
            [executable, *command[1:]],
            cwd=where,
            env=self.variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=5)
                except (OSError, urllib.error.URLError):
                    if server.poll() is not None or time.monotonic() - began > _SECONDS_TO_START:
                        sys.exit(f"{' '.join(command)} does not start")
                    time.sleep(0.5)
                else:
                    break
        finally:
            # All of it: the webserver, the daemon and the code server are processes of their own.
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()
        print(f"{time.monotonic() - began:7.1f} s  {' '.join(command[:4])}", flush=True)

    def follow_tutorial(self) -> None:
        """Every file and every command of the tutorial."""
        where = self.directory / "tutorial"
        self.variables["DAGSTER_HOME"] = str(where / "home")
        for step in steps(ROOT / "docs" / "tutorial.md"):
            if isinstance(step, SavedFile):
                self._save(f"tutorial/{step.name}", step.text)
                continue
            printed = self.run(step.line, where)
            if step.printed and printed.strip() != step.printed:
                sys.exit(f"{step.line} printed:\n{printed}\nand not:\n{step.printed}")

    def check_lake(self) -> None:
        """Install the example project from its own folder, with the package of this clone."""
        self.variables["LAKE"] = str(self.directory / "lake")
        where = ROOT / "examples" / "lake"
        self.run("python -m pip install --quiet -e .", where)
        self.run("python make_tables.py && dg check yaml && dg check defs", where)

    def _save(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def main() -> None:
    """Do all of it, with the seconds of each command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--smoke", action="store_true", help="only install it and import all names")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        environment = CleanEnvironment(Path(directory), options.wheel.resolve())
        environment.install()
        if not options.smoke:
            environment.follow_readme()
            environment.follow_tutorial()
            environment.check_lake()
    print(f"{time.monotonic() - began:7.1f} s  in all")


if __name__ == "__main__":
    main()
