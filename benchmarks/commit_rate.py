"""Small commits in a row: 2,000 appends of one row, four processes at once, how long the single
appends of eight processes take, and how many of their updates of one file succeed.

Each process first writes a dozen commits to another table, so that imports are not measured.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Peer, main

QUARTERS = 4
WRITERS = 4
CROWD = 8
WARM_UP = 12


def _nothing(directory: Path, size: int) -> None:
    """Every run starts from version 0 in a directory of its own."""


def _new_directory(directory: Path) -> str:
    return tempfile.mkdtemp(dir=directory)


def _row() -> Any:
    import pyarrow as pa

    return pa.table({"id": pa.array([1], pa.int64()), "name": ["x"], "value": [0.5]})


def _count(uri: str) -> int:
    """Rows of the table, by the other library: every one of them has to be there."""
    from deltalake import DeltaTable

    actions = DeltaTable(uri).get_add_actions()
    return sum(actions.column("num_records").to_pylist())


def _append_ours(uri: str, times: int, *, keep_open: bool = True) -> None:
    from dagster_delta import DeltaTable

    table, row = DeltaTable(uri), _row()
    for _ in range(times):
        (table if keep_open else DeltaTable(uri)).append(row)


def _append_deltalake(uri: str, times: int, *, keep_open: bool = True) -> None:
    from deltalake import CommitProperties, DeltaTable, write_deltalake

    table, row = DeltaTable(uri), _row()
    # Its default of 15 attempts is not enough for four writers.
    patient = CommitProperties(max_commit_retries=1_000)
    for _ in range(times):
        target = table if keep_open else uri
        write_deltalake(target, row, mode="append", commit_properties=patient)


def _create(directory: Path) -> str:
    """A new table, the same for both peers."""
    from deltalake import DeltaTable

    uri = _new_directory(directory)
    DeltaTable.create(uri, _row().schema)
    return uri


def _in_a_row(append: Callable[..., None], *, keep_open: bool) -> Peer:
    def prepare(directory: Path, size: int) -> Callable[[], object]:
        append(_create(directory), WARM_UP)
        uri = _create(directory)

        def run() -> int:
            append(uri, size, keep_open=keep_open)
            return _count(uri)

        return run

    return prepare


def _write_when_told(append: Callable[..., None], uri: str, times: int, start: Barrier) -> None:
    with tempfile.TemporaryDirectory() as directory:
        append(_create(Path(directory)), WARM_UP)
    start.wait()
    append(uri, times)


def _at_once(append: Callable[..., None]) -> Peer:
    def prepare(directory: Path, size: int) -> Callable[[], object]:
        uri = _create(directory)
        context = multiprocessing.get_context("spawn")
        start = context.Barrier(WRITERS + 1)
        writers = [
            context.Process(target=_write_when_told, args=(append, uri, size // WRITERS, start))
            for _ in range(WRITERS)
        ]
        for writer in writers:
            writer.start()
        start.wait()

        def run() -> int:
            for writer in writers:
                writer.join()
            if any(writer.exitcode for writer in writers):
                raise SystemExit("a writer failed")
            return _count(uri)

        return run

    return prepare


CASES = {
    "path": Case(
        "{size} appends to a path",
        2_000,
        _nothing,
        {
            "ours": _in_a_row(_append_ours, keep_open=False),
            "deltalake": _in_a_row(_append_deltalake, keep_open=False),
        },
        rounds=1,
    ),
    "handle": Case(
        "{size} appends to an open table",
        2_000,
        _nothing,
        {
            "ours": _in_a_row(_append_ours, keep_open=True),
            "deltalake": _in_a_row(_append_deltalake, keep_open=True),
        },
        rounds=1,
    ),
    "processes": Case(
        "{size} appends by 4 processes",
        800,
        _nothing,
        {"ours": _at_once(_append_ours), "deltalake": _at_once(_append_deltalake)},
        rounds=1,
    ),
}


def print_flatness(size: int = 2_000) -> None:
    """How the rate changes as the log grows: commits per second by quarter, against a path."""
    print("\n| commits per second, by quarter of the run | 1st | 2nd | 3rd | 4th |")
    print("|---|---|---|---|---|")
    for name, append in {"ours": _append_ours, "deltalake": _append_deltalake}.items():
        with tempfile.TemporaryDirectory() as directory:
            append(_create(Path(directory)), WARM_UP)
            uri = _create(Path(directory))
            rates = []
            for _ in range(QUARTERS):
                start = time.perf_counter()
                append(uri, size // QUARTERS, keep_open=False)
                rates.append(size // QUARTERS / (time.perf_counter() - start))
            print(f"| {name} | {' | '.join(f'{rate:.0f}' for rate in rates)} |", flush=True)


def _time_appends(
    append: Callable[..., None], uri: str, times: int, start: Barrier, taken: Queue[list[float]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        append(_create(Path(directory)), WARM_UP)
    start.wait()
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        append(uri, 1)
        seconds.append(time.perf_counter() - begin)
    taken.put(seconds)


def _crowd(
    work: Callable[..., None], arguments: Sequence[tuple[object, ...]], times: int
) -> tuple[list[Any], float]:
    """What the processes put into their queue, and the seconds from their common start."""
    context = multiprocessing.get_context("spawn")
    start, done = context.Barrier(len(arguments) + 1), context.Queue()
    writers = [
        context.Process(target=work, args=(*given, times, start, done)) for given in arguments
    ]
    for writer in writers:
        writer.start()
    start.wait()
    begun = time.perf_counter()
    results = [done.get() for _ in writers]
    elapsed = time.perf_counter() - begun
    for writer in writers:
        writer.join()
    return results, elapsed


def print_tail(times: int = 100, rounds: int = 3) -> None:
    """How long the single appends of eight processes to one table take: median and slowest."""
    print(f"\n| {times} appends by each of {CROWD} processes | median | 99 % | slowest | ratio |")
    print("|---|---|---|---|---|")
    for _ in range(rounds):
        for name, append in {"ours": _append_ours, "deltalake": _append_deltalake}.items():
            with tempfile.TemporaryDirectory() as directory:
                writers = [(append, _create(Path(directory)))] * CROWD
                found, _ = _crowd(_time_appends, writers, times)
                _print_tail_row(name, sorted(each for seconds in found for each in seconds))


def _print_tail_row(name: str, seconds: list[float]) -> None:
    median, slowest = seconds[len(seconds) // 2], seconds[-1]
    nearly_all = seconds[len(seconds) * 99 // 100]
    print(
        f"| {name} | {median:.3f} s | {nearly_all:.3f} s | {slowest:.3f} s "
        f"| {slowest / median:.0f} |",
        flush=True,
    )


def _update_ours(uri: str, row: int) -> None:
    from dagster_delta import DeltaTable

    DeltaTable(uri).update({"v": "v + 1"}, f"id = {row}")


def _update_deltalake(uri: str, row: int) -> None:
    from deltalake import DeltaTable

    DeltaTable(uri).update(updates={"v": "v + 1"}, predicate=f"id = {row}")


def _count_updates(
    update: Callable[..., None], uri: str, row: int, times: int, start: Barrier, done: Queue[Any]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        update(_numbers(Path(directory)), row)
    start.wait()
    seconds, num_failed = [], 0
    for _ in range(times):
        begun = time.perf_counter()
        try:
            update(uri, row)
        except Exception:  # noqa: BLE001  each library has a tree of errors of its own
            num_failed += 1
        else:
            seconds.append(time.perf_counter() - begun)
    done.put((seconds, num_failed))


def _numbers(directory: Path) -> str:
    """A table of one file, the rows of which the processes share out."""
    import pyarrow as pa

    from dagster_delta import DeltaTable

    uri = str(directory / "numbers")
    rows = pa.table({"id": range(1_000), "v": [0] * 1_000})
    properties = {"delta.enableDeletionVectors": "true"}
    DeltaTable(uri, must_exist=False).append(rows, properties=properties)
    return uri


def _plain(directory: Path) -> str:
    import pyarrow as pa
    from deltalake import write_deltalake

    uri = str(directory / "numbers")
    write_deltalake(uri, pa.table({"id": range(1_000), "v": [0] * 1_000}))
    return uri


_UPDATES = {
    "ours": (_update_ours, _numbers, 1),
    "ours, a table each": (_update_ours, _numbers, CROWD),
    "deltalake": (_update_deltalake, _plain, 1),
}


def print_updates(times: int = 25, rounds: int = 3) -> None:
    """Updates of different rows of one file by eight processes: which succeed, and how long they
    take. Each library gets a table with deletion vectors, as far as it writes them. The same
    processes with a table each have no conflicts: their spread is that of the machine.
    """
    print(f"\n| {times} updates by each of {CROWD} processes, each of a row of its own | succeed ")
    print("| failed | per second | median | slowest |\n|---|---|---|---|---|---|")
    for _ in range(rounds):
        for name, (update, create, num_tables) in _UPDATES.items():
            with tempfile.TemporaryDirectory() as directory:
                paths = [Path(directory, str(number)) for number in range(num_tables)]
                uris = [create(path) for path in paths]
                writers = [(update, uris[row % num_tables], row) for row in range(CROWD)]
                results, elapsed = _crowd(_count_updates, writers, times)
                _print_update_row(name, results, elapsed)


def _print_update_row(name: str, results: list[tuple[list[float], int]], elapsed: float) -> None:
    seconds = sorted(each for found, _ in results for each in found)
    num_failed = sum(failed for _, failed in results)
    print(
        f"| {name} | {len(seconds)} | {num_failed} | {len(seconds) / elapsed:.1f} "
        f"| {seconds[len(seconds) // 2]:.3f} s | {seconds[-1]:.3f} s |",
        flush=True,
    )


if __spec__ is not None:
    # With --tail or --updates, only what the eight processes do.
    crowd = {"--tail": print_tail, "--updates": print_updates}
    wanted = [name for name in crowd if name in sys.argv]
    if not wanted:
        main(__name__, __spec__.name, CASES)
    if __name__ == "__main__" and "--child" not in sys.argv:
        if not wanted:
            print_flatness()
        for name in wanted or crowd:
            crowd[name]()
