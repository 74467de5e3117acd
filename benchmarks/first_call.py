"""The first and the second call of a process, beside deltalake and polars.

A Dagster step is a new process: the first call counts from the start of the process, imports
included. `python -m benchmarks.first_call --rows 8000000 --rounds 3` prints medians; the peers
take turns, and CPU time disturbs less than wall time when other programs run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_OURS = "from dagster_delta import DeltaTable\n"
_DELTALAKE = "from deltalake import DeltaTable, write_deltalake\n"
_POLARS = "import polars as pl\n"
_PYARROW = "import glob, pyarrow.parquet as pq\n"
_SOURCE = "import pyarrow as pa\nrows = pa.ipc.open_file(source).read_all()\n"
_MERGE = (
    "def call():\n"
    " merge = DeltaTable(table).merge(rows, 't.id = s.id', source_alias='s', target_alias='t')\n"
    " merge.when_matched_update_all().when_not_matched_insert_all().execute()\n"
)

_SUM_OF_BATCHES = (
    "import pyarrow.compute as pc\n"
    "def call():\n"
    " batches = DeltaTable(table).snapshot().scan(columns=['a'], where='b < 0.25')\n"
    " return sum(pc.sum(b.column('a')).as_py() for b in batches.to_batches())\n"
)
_SUM = (
    "import polars as pl\n"
    "def total(frame):\n"
    " chosen = frame.filter(pl.col('b') < 0.25).select(pl.col('a').sum())\n"
    " return chosen.collect(engine='streaming').item()\n"
)

WORKLOADS = {
    "import only": {
        "ours": _OURS + "call = lambda: None",
        "deltalake": _DELTALAKE + "call = lambda: None",
        "polars": _POLARS + "call = lambda: None",
    },
    "append 100 rows": {
        "ours": _OURS + _SOURCE + "call = lambda: DeltaTable(table).append(rows) and None",
        "deltalake": _DELTALAKE
        + _SOURCE
        + "call = lambda: write_deltalake(table, rows, mode='append')",
    },
    "delete one row": {
        "ours": _OURS + "call = lambda: DeltaTable(table).delete('id = 5') and None",
        "deltalake": _DELTALAKE + "call = lambda: DeltaTable(table).delete('id = 5') and None",
    },
    "merge 100 rows": {
        "ours": _OURS + _SOURCE + _MERGE,
        "deltalake": _DELTALAKE + _SOURCE + _MERGE,
    },
    "read one row by key": {
        "ours": _OURS
        + "call = lambda: DeltaTable(table).snapshot().scan(where='id = 7').to_arrow().num_rows",
        "deltalake": _DELTALAKE
        + "call = lambda: DeltaTable(table).to_pyarrow_table(filters=[('id', '=', 7)]).num_rows",
        "polars": _POLARS
        + "call = lambda: pl.scan_delta(table).filter(pl.col('id') == 7).collect().height",
    },
    "filter and sum, streamed": {
        "ours, batches of Arrow": _OURS + _SUM_OF_BATCHES,
        "ours, LazyFrame": _OURS
        + _SUM
        + "call = lambda: total(DeltaTable(table).snapshot().scan().to_polars_lazy())",
        "deltalake": _DELTALAKE + "call = lambda: sum(\n"
        " b.column('a').to_numpy().sum().item()\n"
        " for b in DeltaTable(table).scan(columns=['a'], predicate='b < 0.25')\n"
        ")",
        "polars": _POLARS + _SUM + "call = lambda: total(pl.scan_delta(table))",
    },
    "read everything": {
        "ours": _OURS + "call = lambda: DeltaTable(table).snapshot().scan().to_arrow().num_rows",
        "deltalake": _DELTALAKE + "call = lambda: DeltaTable(table).to_pyarrow_table().num_rows",
        "polars": _POLARS + "call = lambda: pl.scan_delta(table).collect().height",
        "pyarrow, the files alone": _PYARROW
        + "call = lambda: pq.read_table(glob.glob(f'{table}/*.parquet')).num_rows",
    },
    "read everything into polars": {
        "ours": _OURS + "call = lambda: DeltaTable(table).snapshot().scan().to_polars().height",
        "polars": _POLARS + "call = lambda: pl.scan_delta(table).collect().height",
    },
}
"""Per workload and library a script that defines `call` on a `table` and the rows of `source`."""

_MEASURE = """
import json, resource, time
results = [call()]
first = time.time()
begun = time.perf_counter()
results.append(call())
second = time.perf_counter() - begun
usage = resource.getrusage(resource.RUSAGE_SELF)
found = {"first": first, "second": second, "results": results}
found["cpu"] = usage.ru_utime + usage.ru_stime
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
found["memory"] = int(peak.split()[1]) / 1000
print(json.dumps(found), flush=True)
import os
os._exit(0)
"""


def _write_table(directory: Path, rows: int) -> None:
    """A table of 8 files with 7 columns, written by deltalake, and 100 rows of its schema."""
    import numpy as np
    import pyarrow as pa
    from deltalake import write_deltalake

    random = np.random.default_rng(7)

    def part(start: int, count: int) -> pa.Table:
        ids = np.arange(start, start + count)
        return pa.table(
            {
                "id": ids,
                "a": random.integers(0, 1_000_000, count),
                "b": random.random(count),
                "c": random.random(count) * 100,
                "group": np.char.add("group ", (ids % 97).astype(str)),
                "text": np.char.add("text ", random.integers(0, count, count).astype(str)),
                "flag": ids % 3 == 0,
            }
        )

    count = max(1000, rows // 8)
    for number in range(8):
        write_deltalake(directory / "table", part(number * count, count), mode="append")
    source = part(8 * count - 50, 100)
    with pa.ipc.new_file(directory / "source.arrow", source.schema) as writer:
        writer.write_table(source)


def _measure(directory: Path, script: str) -> tuple[dict[str, float], list[object]]:
    """Milliseconds of the first call from the start of the process, of the second call, and CPU.

    Also the peak of memory in MB, and what both calls returned.
    """
    copy = directory / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory / "table", copy)
    setup = f"table = {str(copy)!r}\nsource = {str(directory / 'source.arrow')!r}\n"
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(directory / "bytecode")}
    # Installed packages have their bytecode; a shell that forbids it would measure the compiler.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.time()
    done = subprocess.run(
        [sys.executable, "-c", setup + script + _MEASURE],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        raise SystemExit(f"failed:\n{script}\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    sample = {
        "first": (found["first"] - started) * 1000,
        "second": found["second"] * 1000,
        "cpu": found["cpu"] * 1000,
        "memory": found["memory"],
    }
    return sample, found["results"]


def main() -> int:
    """Print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", help=f"some of: {', '.join(WORKLOADS)}")
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print("| Workload | Library | First call, ms | Second, ms | CPU time of both, ms | Peak, MB |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        _write_table(directory, arguments.rows)
        for workload in arguments.workloads or WORKLOADS:
            scripts = WORKLOADS[workload]
            samples: dict[str, list[dict[str, float]]] = {library: [] for library in scripts}
            expected: list[object] | None = None
            for number in range(arguments.rounds + 1):
                for library, script in scripts.items():
                    sample, results = _measure(directory, script)
                    expected = results if expected is None else expected
                    if results != expected:
                        raise SystemExit(f"{workload}: {library} has {results}, not {expected}")
                    # The first round compiles bytecode and fills the cache of the file system.
                    if number:
                        samples[library].append(sample)
            for library, taken in samples.items():
                figures = (
                    f"{statistics.median(sample[key] for sample in taken):.0f}"
                    for key in ("first", "second", "cpu", "memory")
                )
                print(f"| {workload} | {library} | {' | '.join(figures)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
