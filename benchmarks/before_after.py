"""Another checkout of this project against this one: does a change of the code make it slower?

`python -m benchmarks.before_after ../older --rounds 5` runs each workload in a fresh process, the two
checkouts in turn, and compares medians of CPU time, which other programs disturb less than wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]


def _rows(start: int, count: int) -> Any:
    import pyarrow as pa

    ids = list(range(start, start + count))
    return pa.table({"id": ids, "s": [f"text {each % 97}" for each in ids], "v": [0.5] * count})


def _timed(act: Callable[[], object], repeat: int) -> float:
    """Median CPU milliseconds of a call."""
    act()
    found = []
    for _ in range(repeat):
        began = time.process_time()
        act()
        found.append((time.process_time() - began) * 1000)
    return statistics.median(found)


def measure(directory: str) -> dict[str, float]:
    """CPU milliseconds of each workload, in this process."""
    began = time.process_time()
    from dagster_delta import DeltaTable

    found = {"import DeltaTable": (time.process_time() - began) * 1000}

    def table(name: str) -> Any:
        return DeltaTable(f"{directory}/{name}", must_exist=False)

    began = time.process_time()
    small = table("small")
    small.append(_rows(0, 100))
    found["first append of a process"] = (time.process_time() - began) * 1000
    found["append 100 rows"] = _timed(lambda: small.append(_rows(0, 100)), 60)
    found["append 100 rows by a new handle"] = _timed(
        lambda: table("small").append(_rows(0, 9)), 40
    )
    found["open 120 commits"] = _timed(lambda: table("small").snapshot().num_files, 60)
    found["filtered scan of 100 small files"] = _timed(
        lambda: table("small").snapshot().scan(where="id > 98 AND s <> 'a'").to_arrow(), 30
    )
    large = table("large")
    large.append(_rows(0, 1_000_000))
    snapshot = large.snapshot()
    found["scan of 1 M rows"] = _timed(lambda: snapshot.scan().to_arrow(), 7)
    found["filtered scan of 1 M rows"] = _timed(
        lambda: snapshot.scan(where="id % 1000 = 7", columns=["id"]).to_arrow(), 7
    )
    many = table("many")
    many.append(_rows(0, 2000), properties={"delta.checkpointInterval": "1000"})
    for start in range(1, 200):
        many.append(_rows(start * 10, 10))
    planned = many.snapshot()
    found["plan a filter over 200 files"] = _timed(
        lambda: planned.scan(where="id = 1500").num_files, 60
    )
    source = _rows(990_000, 20_000)

    def merge() -> object:
        clauses = large.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        return clauses.when_matched_update_all().when_not_matched_insert_all().execute()

    found["merge 20,000 rows into 1 M"] = _timed(merge, 3)
    found["delete by a predicate"] = _timed(lambda: large.delete("id % 100000 = 3"), 3)
    found["update by a predicate"] = _timed(lambda: large.update({"v": "v + 1"}, "id < 1000"), 3)
    began = time.process_time()
    many.optimize()
    found["compact 200 files"] = (time.process_time() - began) * 1000
    return found


def main() -> int:
    """Print a table of medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("older", nargs="?", help="directory of the other checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return 0
    if not arguments.older:
        parser.error("name the directory of the other checkout")
    checkouts = {"before": Path(arguments.older).resolve(), "after": HERE}
    results: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for _ in range(arguments.rounds):
        for name, checkout in checkouts.items():
            with tempfile.TemporaryDirectory() as directory:
                done = subprocess.run(
                    [sys.executable, str(Path(__file__).resolve()), "--measure", directory],
                    env={**os.environ, "PYTHONPATH": str(checkout)},
                    cwd=directory,
                    capture_output=True,
                    text=True,
                    check=True,
                )
            results[name].append(json.loads(done.stdout.splitlines()[-1]))
    print("| Workload | Before, ms | After, ms | After / before |\n|---|---|---|---|")
    for workload in results["after"][0]:
        before, after = (
            statistics.median(each[workload] for each in results[name]) for name in checkouts
        )
        print(f"| {workload} | {before:.1f} | {after:.1f} | {after / before:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
