"""Appending 20 rows of many columns, by CPU time of the process, which does not depend on what
else runs; both sides in one process, one after the other.

`python -m benchmarks.wide_tables` takes the numbers of columns as arguments.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

ROWS = 20
ROUNDS = 7
COLUMNS = (1_000, 2_000, 5_000)


def _rows(columns: int) -> Any:
    import pyarrow as pa

    return pa.table({f"c{index}": pa.array(range(ROWS), pa.int64()) for index in range(columns)})


def _append_ours(uri: str, rows: Any) -> None:
    from dagster_delta import DeltaTable

    DeltaTable(uri, must_exist=False).append(rows)


def _append_deltalake(uri: str, rows: Any) -> None:
    from deltalake import write_deltalake

    write_deltalake(uri, rows, mode="append")


def _cpu_seconds(append: Callable[[str, Any], None], uri: str, rows: Any) -> float:
    start = time.process_time()
    append(uri, rows)
    return time.process_time() - start


def main(sizes: list[int]) -> None:
    """Print the medians of creating a table by an append, and of appending to it."""
    peers = {"ours": _append_ours, "deltalake": _append_deltalake}
    print("| append of 20 rows, CPU time | ours | deltalake | ratio |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for name, append in peers.items():
            append(f"{directory}/warm-up {name}", _rows(10))
        for columns in sizes:
            rows = _rows(columns)
            taken: dict[tuple[str, str], list[float]] = {}
            for number in range(ROUNDS):
                for kind in ("a new table", "an existing table"):
                    for name, append in peers.items():
                        uri = f"{directory}/{name} {columns} {number}"
                        seconds = _cpu_seconds(append, uri, rows)
                        taken.setdefault((kind, name), []).append(seconds)
            for kind in ("a new table", "an existing table"):
                ours, theirs = (statistics.median(taken[kind, name]) for name in peers)
                print(
                    f"| {columns:,} columns, {kind} | {ours:.3f} s | {theirs:.3f} s "
                    f"| {ours / theirs:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:] if argument.isdigit()] or list(COLUMNS))
