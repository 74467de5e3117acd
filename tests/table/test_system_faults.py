"""A disk that fails or is full, at each call of the system that an operation makes on a table."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("failing_calls.c")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`failing_calls.c`, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not sys.platform.startswith("linux"):
        pytest.skip("calls of the system are made to fail on Linux only")
    if compiler is None:
        pytest.skip("making calls of the system fail needs a C compiler, and there is none")
    target = tmp_path_factory.mktemp("library") / "failing_calls.so"
    options = ["-shared", "-fPIC", "-O1", "-o", str(target), str(SOURCE), "-ldl"]
    subprocess.run([compiler, *options], check=True)
    return target


@pytest.mark.exhaustive
def test_a_disk_that_fails_is_a_storage_failure_and_loses_no_row(library: Path) -> None:
    command = [sys.executable, "-m", "tests.table.system_faults", str(library)]
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command,
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines, done.stderr[-2000:]
    assert lines[:-1] == []
    assert int(lines[-1].split()[0]) > 300
