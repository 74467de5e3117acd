"""Run a selection of the tests in environments from the oldest to the newest versions allowed.

`python .ci/matrix.py` runs every environment, or those that are named, and `--write` puts the
result into docs/versions.md. Each environment is a new one, with the wheel of this directory and
without its sources. Needs `uv` and Java.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "versions.md"
SHOWN = ("python", "dagster", "pyspark", "pandas", "polars", "pyarrow", "duckdb")
TESTS = (
    "tests/test_public_names.py",
    "tests/conformance/test_writes.py",
    "tests/conformance/test_merges.py",
    "tests/orchestration/io/test_io_manager.py",
    "tests/orchestration/partitions/test_partition_frames.py",
    "tests/orchestration/partitions/test_partitioned_assets.py",
    "tests/orchestration/sensors/test_sensors.py",
    "tests/orchestration/io/test_sql_assets.py",
    "tests/orchestration/io/test_spark_assets.py",
    "tests/table/operations/test_append.py",
    "tests/table/read/test_duckdb_relations.py",
    "tests/table/read/test_lazy_frames.py",
    "tests/table/read/test_scan.py",
)
"""One file at least for each dependency; all tests run with the versions of the lock file."""
_TOOLS = ("deltalake", "hypothesis", "pytest", "pytest-timeout")
_EXTRAS = "connect,polars,s3"


@dataclass(frozen=True, slots=True)
class Environment:
    """What is installed for one run."""

    name: str
    python: str
    pins: tuple[str, ...] = ()
    lowest: bool = False
    """Whether direct dependencies have the lowest versions that pyproject.toml allows."""


ENVIRONMENTS = (
    Environment("oldest", "3.11", lowest=True),
    *(Environment(f"newest, Python 3.{minor}", f"3.{minor}") for minor in (11, 12, 13, 14)),
    *(Environment(f"Spark 4.{minor}", "3.11", (f"pyspark==4.{minor}.*",)) for minor in range(4)),
    Environment("pandas 2.2", "3.11", ("pandas==2.2.*",)),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one environment did."""

    name: str
    versions: tuple[str, ...]
    """In the order of `SHOWN`; empty if there is no such environment."""
    summary: str

    @property
    def row(self) -> str:
        """Its line of the table."""
        cells = self.versions or ("",) * len(SHOWN)
        return f"| {' | '.join((self.name, *cells, self.summary))} |"


def try_environment(environment: Environment, directory: Path) -> Outcome:
    """Install the wheel and run the tests.

    Args:
        environment: what to install.
        directory: an empty one.
    """
    python = directory / "venv" / "bin" / "python"
    steps: list[tuple[str, list[str]]] = [
        (
            f"no Python {environment.python}",
            [
                "uv",
                "venv",
                "-q",
                "--python",
                _interpreter(environment.python),
                str(python.parents[1]),
            ],
        ),
        ("the wheel cannot be built", ["uv", "build", "-q", "--wheel", "-o", str(directory)]),
    ]
    for problem, command in steps:
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            return Outcome(environment.name, (), f"not run: {problem}")
    (wheel,) = directory.glob("*.whl")
    install = ["uv", "pip", "install", "-q", "--python", str(python)]
    wanted = [f"{wheel}[{_EXTRAS}]", *environment.pins]
    lowest = ["--resolution", "lowest-direct", *_declared()] if environment.lowest else []
    for command in ([*install, *lowest, *wanted], [*install, *wanted, *_TOOLS]):
        if subprocess.run(command, cwd=directory, check=False).returncode:
            return Outcome(environment.name, (), "cannot be installed")
    return Outcome(environment.name, _versions(python), _run_tests(python, directory))


def _interpreter(version: str) -> str:
    """A path from the variable PYTHON3_13 and the like, or the version, for uv to find."""
    return os.environ.get(f"PYTHON{version.replace('.', '_')}", version)


def _declared() -> list[str]:
    """The dependencies, as requirements of our own: those of a wheel are not direct ones."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][name] for name in _EXTRAS.split(",")]
    return [*project["dependencies"], *(each for extra in extras for each in extra)]


def _versions(python: Path) -> tuple[str, ...]:
    code = (
        "import platform, sys\nfrom importlib.metadata import version\n"
        "print(platform.python_version(), *map(version, sys.argv[1:]))"
    )
    command = [str(python), "-c", code, *SHOWN[1:]]
    return tuple(subprocess.check_output(command, text=True).split())


def _run_tests(python: Path, directory: Path) -> str:
    for name in ("tests", "pyproject.toml"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, directory / name)
    tools = directory / "bin"
    tools.mkdir()
    # The JARs of delta-spark are for one version of Spark: without Maven there are none.
    (tools / "mvn").write_text("#!/bin/sh\nexit 1\n")
    (tools / "mvn").chmod(0o755)
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{tools}{os.pathsep}{python.parent}{os.pathsep}{environment['PATH']}"
    command = [str(python), "-m", "pytest", *TESTS, "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    summary = re.search(r"(\d+ \w+.*) in [\d.]+", done.stdout.rstrip().rpartition("\n")[2])
    if done.returncode:
        sys.stderr.write(done.stdout[-8000:] + done.stderr[-2000:])
    return summary[1] if summary else "the tests did not start"


def write_page(outcomes: list[Outcome]) -> None:
    """Replace the rows of these environments on the page; the others stay."""
    head, begin, rest = PAGE.read_text().partition("<!-- matrix:begin -->\n")
    table, end, foot = rest.partition("<!-- matrix:end -->")
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in table.splitlines()[2:]}
    rows |= {outcome.name: outcome.row for outcome in outcomes}
    ordered = [rows[each.name] for each in ENVIRONMENTS if each.name in rows]
    lines = [f"| Environment | {' | '.join(SHOWN)} | Tests |", "|---" * (len(SHOWN) + 2) + "|"]
    PAGE.write_text(head + begin + "\n".join([*lines, *ordered]) + "\n" + end + foot)


def main() -> int:
    """Run the environments; 1 if a test failed in one, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(each.name for each in ENVIRONMENTS))
    parser.add_argument("--write", action="store_true", help="put the result into the page")
    options = parser.parse_args()
    known = {each.name: each for each in ENVIRONMENTS}
    if unknown := set(options.names) - set(known):
        parser.error(f"unknown environments {sorted(unknown)}; known are {sorted(known)}")
    failed = False
    for name in options.names or known:
        with tempfile.TemporaryDirectory() as directory:
            outcome = try_environment(known[name], Path(directory))
        print(outcome.row, flush=True)
        failed |= "failed" in outcome.summary or "error" in outcome.summary
        if options.write:
            write_page([outcome])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
