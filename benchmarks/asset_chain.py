"""A run of six assets on Spark under Dagster's default executor, which starts a process for each step:
with one shared server, with a session for each step, and with delta-spark. Beside them the same steps
in one process, which start no processes and no second session.

    python -m benchmarks.asset_chain --scale 1 --rounds 3

"first run" starts the server; before "later run" it runs already.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Case, Peer, main


def _nothing(directory: Path, size: int) -> None:
    """The first asset makes the rows."""


def _chain(name: str, *, later: bool = False) -> Peer:
    def start(directory: Path, size: int) -> Callable[[], object]:
        home = Path(tempfile.mkdtemp(dir=directory))
        (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
        root = tempfile.mkdtemp(dir=directory)
        # For the processes of the steps; the server is found under TMPDIR.
        os.environ.update(CHAIN_ROOT=root, CHAIN_ROWS=str(size), DAGSTER_HOME=str(home))
        os.environ["TMPDIR"] = tempfile.tempdir = str(home)

        import dagster as dg

        from benchmarks import _chain
        from dagster_delta import DeltaTable

        job = dg.reconstructable(getattr(_chain, name))

        def run() -> str:
            quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
            with (
                dg.DagsterInstance.get() as instance,
                dg.execute_job(job, instance, run_config=quiet) as done,
            ):
                assert done.success
            (log,) = Path(root).rglob(f"a{_chain.ASSETS - 1}/_delta_log")
            return f"{DeltaTable(str(log.parent)).snapshot().num_records} rows"

        if later:
            run()
        return run

    return start


_PEERS = {
    "ours, shared": _chain("shared"),
    "ours, one each": _chain("own"),
    "ours, one process": _chain("one_process"),
    "delta-spark": _chain("delta_spark"),
}

CASES = {
    "first": Case("first run of six assets, {size} rows", 100_000, _nothing, _PEERS),
    "later": Case(
        "later run of six assets, {size} rows",
        100_000,
        _nothing,
        {**_PEERS, "ours, shared": _chain("shared", later=True)},
    ),
}

if __spec__ is not None:
    main(__name__, __spec__.name, CASES)
