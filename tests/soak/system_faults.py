"""Part `system`: every public operation while a system call on a file of the table fails.

A small C library is compiled and preloaded; it makes the n-th read, write, open, rename, fsync or
unlink below the table fail with EIO, ENOSPC, EMFILE or EROFS, or read one byte only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.soak.part import Round, Unavailable
from tests.soak.processes import ended_by_itself

SOURCE = Path(__file__).with_name("system_faults.c")
IDLE_S = 120.0


def play_system_round(round_: Round) -> None:
    """Run all operations in a process with the library preloaded.

    Raises:
        Unavailable: there is no C compiler, or this is not Linux.
    """
    library = _compile(round_.scratch)
    seed = str(round_.random.randrange(1 << 30))
    command = [sys.executable, "-m", "tests.soak.system_fault_worker", str(library)]
    environment = os.environ | {"LD_PRELOAD": str(library)}
    output, errors = round_.scratch / "output", round_.scratch / "errors"
    with output.open("wb") as stdout, errors.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, str(round_.scratch), seed, str(round_.short), str(round_.seconds_left)],
            env=environment, stdout=stdout, stderr=stderr, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        if not ended_by_itself(process.pid, lambda seconds: _has_ended(process, seconds), IDLE_S):
            process.kill()
            process.wait()
            round_.fail("the process hangs", errors.read_text()[-3000:])
    for line in output.read_text().splitlines():
        found = json.loads(line)
        round_.result.operations += 1
        round_.fault(found["fault"])
        if found["problem"] is not None:
            title, detail = found["problem"]
            round_.fail(title, f"{found['about']}\n{detail}")
    if process.returncode:
        detail = f"{output.read_text()[-500:]}\n{errors.read_text()[-3000:]}"
        round_.fail(f"the process ended with {process.returncode}", detail)


def _has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _compile(directory: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        raise Unavailable("faults of system calls need Linux and a C compiler (cc)")
    library = directory / "system_faults.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        raise Unavailable(f"the C compiler failed: {built.stderr[-200:]}")
    return library
