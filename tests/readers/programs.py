"""The programs that are asked: their packages, environments and processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.reference.jars import resolve_jars

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".cache" / "readers"


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A reader or writer of Delta tables."""

    name: str
    packages: tuple[str, ...]
    """Pinned, of its own environment. Empty: that of the development."""
    script: str
    environment: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    directory: Path = HERE
    """Where its process runs."""
    seconds: float = 120.0
    """For one answer, and for its start with the first one."""
    writes: bool = True
    """False: it is asked to read only."""

    @property
    def version(self) -> str:
        """Of the first package."""
        return self.packages[0].partition("==")[2] if self.packages else ""

    def python(self) -> Path:
        """The interpreter of the environment, which is made where it is missing."""
        if not self.packages:
            return Path(sys.executable)
        home = ENVIRONMENTS / "-".join([self.environment or self.name, *self.packages]).replace(
            "==", "-"
        ).replace("[", "-").replace("]", "")
        if not (home / "done").is_file():
            _run([sys.executable, "-m", "venv", str(home)])
            install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([str(home / "bin/python"), *install, *self.packages])
            (home / "done").touch()
        return home / "bin/python"


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=1200)


ARROW = "pyarrow==26.0.1"
PROGRAMS = (
    Program(name="delta-spark", packages=(), script="ask_spark.py", seconds=900.0),
    Program(name="Java Kernel", packages=(), script="ask_kernel.py", writes=False),
    Program(name="deltalake", packages=("deltalake==1.6.6", ARROW), script="ask_deltalake.py"),
    Program(
        name="deltalake QueryBuilder",
        packages=("deltalake==1.6.6", ARROW),
        script="ask_query_builder.py",
        environment="deltalake",
        writes=False,
    ),
    Program(
        name="polars", packages=("polars==2.1.0", "deltalake==1.6.6", ARROW), script="ask_polars.py"
    ),
    Program(
        name="DuckDB",
        packages=("duckdb==1.5.5", "duckdb-extension-delta==1.5.5", ARROW, "pytz==2026.6"),
        script="ask_duckdb.py",
    ),
    Program(
        name="daft",
        # It writes through pyiceberg, and takes no newer pyarrow.
        packages=("daft==0.7.26", "deltalake==1.6.6", "pyarrow==25.0.1", "pyiceberg"),
        script="ask_daft.py",
    ),
    Program(
        name="chdb",
        packages=("chdb==4.4.0", ARROW, "pandas==2.3.3"),
        script="ask_chdb.py",
        # It reads files below its directory alone.
        directory=Path("/"),
    ),
    Program(
        name="Sail",
        packages=("pysail==0.7.2", "pyspark[connect]==4.2.0", ARROW, "pandas==2.3.3"),
        script="ask_spark.py",
        variables=(("ASK_SAIL", "1"),),
    ),
)


def delta_spark_version() -> str:
    """The version of the JAR that is asked, which may be older than the package for Python."""
    names = (Path(jar).stem for jar in resolve_jars()[0])
    return next(name.rpartition("-")[2] for name in names if name.startswith("delta-spark_"))


def ask(program: Program, asked: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The answers, in order. A process that ended or did not answer in time is started again."""
    waiting = list(asked)
    while waiting:
        answered = 0
        for said in _ask_process(program, waiting):
            answered += 1
            yield said
        waiting = waiting[answered:]


def _ask_process(program: Program, asked: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Answers of one process; the last one says so where it ended or did not answer."""
    variables = os.environ | dict(program.variables) | {"PYTHONPATH": "", "TZ": "UTC"}
    if not program.packages:
        variables["ASK_JARS"] = ",".join(resolve_jars()[0])
    process = subprocess.Popen(
        [str(program.python()), str(HERE / program.script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=variables,
        cwd=program.directory,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for question in asked:
        timer = threading.Timer(program.seconds, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        timed_out = not timer.is_alive()
        timer.cancel()
        if not line:
            reason = "no answer in time" if timed_out else "the process ended"
            yield {"id": question["id"], "status": "ended", "detail": reason}
            break
        yield json.loads(line)
    process.stdin.close()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
