"""Requests to S3 and the time they take, with a delay in front of every answer.

A server in a process of its own keeps the objects in memory, counts requests and answers each after
20 ms. Both libraries run the same operations in turn, each on a copy of the same table: its log has a
checkpoint, then 10 commits. Requests are those of one operation; the time is the median.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.compute as pc

REPETITIONS = 5
ROWS_PER_FILE = 100
LARGE_COLUMNS = 10
TABLES = ("many", "foreign", "vacuumed", "large")

Prepared: TypeAlias = Callable[[], Callable[[], object]]
"""Prepares one run, and returns what is counted and timed."""


class Server:
    """The server, and the orders that it takes.

    Args:
        delay_ms: before each answer.
    """

    def __init__(self, delay_ms: float) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        module = [sys.executable, "-m", "benchmarks._s3_server"]
        self.process = subprocess.Popen([*module, f"--port={port}", f"--delay-ms={delay_ms}"])
        _await_port(port)

    def order(self, name: str, **query: object) -> bytes:
        with urllib.request.urlopen(f"{self.url}/-/{name}?{urlencode(query)}") as answer:
            return bytes(answer.read())

    def seen(self) -> list[str]:
        """Method and path of the requests since the last call."""
        return list(json.loads(self.order("seen")))

    def options(self) -> dict[str, str]:
        """Storage options that both libraries know."""
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_CONDITIONAL_PUT": "etag",
            "AWS_ENDPOINT_URL": self.url,
        }


def _rows(first: int, count: int = ROWS_PER_FILE) -> pa.Table:
    return pa.table(
        {"id": pa.array(range(first, first + count), pa.int64()), "name": ["name"] * count}
    )


def _many_files(path: Path, files: int) -> None:
    """A table of small files with disjoint ids, a checkpoint, and 10 commits after it."""
    from dagster_delta import DeltaTable

    properties = {"delta.checkpointInterval": "100000"}
    table = DeltaTable.create(path, _rows(0).schema, properties=properties)
    for index in range(files):
        if index == files - 10:
            table.checkpoint()
        table.append(_rows(index * ROWS_PER_FILE))


def _large_files(path: Path, files: int) -> None:
    """A table of files of about 4 MB with ten columns that do not compress."""
    import numpy as np

    from dagster_delta import DeltaTable

    source, count = np.random.default_rng(7), 50_000
    for _ in range(files):
        columns = {f"c{index}": source.random(count) for index in range(LARGE_COLUMNS)}
        DeltaTable(path, must_exist=False).append(pa.table(columns))


def _ours(uris: dict[str, str], options: dict[str, str]) -> dict[str, Prepared]:
    from dagster_delta import DeltaTable
    from dagster_delta.table.read.watch import read_new_commits, start_cursor

    def opened(name: str) -> DeltaTable:
        return DeltaTable(uris[name], storage_options=options)

    many = opened("many")
    ids = iter(range(0, 1 << 40, ROWS_PER_FILE))

    def look_up(table: DeltaTable) -> pa.Table:
        return table.snapshot().scan(where="id = 4242").to_arrow()

    def tick(commits: int) -> Callable[[], object]:
        cursor = start_cursor(many.store)
        for _ in range(commits):
            many.append(_rows(0))
        return lambda: read_new_commits(many.store, cursor)

    def vacuum(*, dry_run: bool) -> Callable[[], object]:
        table = opened("vacuumed")
        return lambda: table.vacuum(0, dry_run=dry_run, enforce_retention=False)

    def stream(columns: Sequence[str] | None, name: str = "large") -> Callable[[], object]:
        table = opened(name)
        table.snapshot().live_files()
        return lambda: _count(table.snapshot().scan(columns).to_batches())

    return {
        "open": lambda: lambda: opened("many"),
        "open, log without checksums": lambda: lambda: opened("foreign"),
        "open, scan 1 of {files} files": lambda: lambda: look_up(opened("many")),
        "scan 1 of {files} files": lambda: lambda: look_up(many),
        "append": lambda: lambda: many.append(_rows(0)),
        "delete of a row": lambda: lambda: many.delete(f"id = {next(ids) + 50}"),
        "idle tick": lambda: tick(0),
        "tick, 10 commits": lambda: tick(10),
        "vacuum of {objects} files, dry run": lambda: vacuum(dry_run=True),
        "vacuum of {objects} files": lambda: vacuum(dry_run=False),
        "streaming scan, all columns": lambda: stream(None),
        "streaming scan, 2 of 10 columns": lambda: stream(["c2", "c7"]),
        "streaming scan, {files} small files": lambda: stream(None, "foreign"),
    }


def _deltalake(uris: dict[str, str], options: dict[str, str]) -> dict[str, Prepared]:
    from deltalake import DeltaTable, write_deltalake

    def opened(name: str, version: int | None = None) -> DeltaTable:
        return DeltaTable(uris[name], storage_options=options, version=version)

    many = opened("many")
    ids = iter(range(0, 1 << 40, ROWS_PER_FILE))

    def look_up(table: DeltaTable) -> pa.Table:
        return table.to_pyarrow_dataset().to_table(filter=pc.field("id") == 4242)

    def append() -> None:
        write_deltalake(many, _rows(0), mode="append")

    def tick(commits: int) -> Callable[[], object]:
        many.update_incremental()
        watched = opened("many")
        for _ in range(commits):
            append()
        return watched.update_incremental

    def vacuum(*, dry_run: bool) -> Callable[[], object]:
        table = opened("vacuumed")
        return lambda: table.vacuum(0, dry_run=dry_run, enforce_retention_duration=False, full=True)

    def stream(columns: list[str] | None, name: str = "large") -> Callable[[], object]:
        dataset = opened(name).to_pyarrow_dataset()
        return lambda: _count(dataset.to_batches(columns=columns))

    return {
        "open": lambda: lambda: opened("many"),
        "open, log without checksums": lambda: lambda: opened("foreign"),
        "open, scan 1 of {files} files": lambda: lambda: look_up(opened("many")),
        "scan 1 of {files} files": lambda: lambda: look_up(many),
        "append": lambda: append,
        "delete of a row": lambda: lambda: many.delete(f"id = {next(ids) + 50}"),
        "idle tick": lambda: tick(0),
        "tick, 10 commits": lambda: tick(10),
        "vacuum of {objects} files, dry run": lambda: vacuum(dry_run=True),
        "vacuum of {objects} files": lambda: vacuum(dry_run=False),
        "streaming scan, all columns": lambda: stream(None),
        "streaming scan, 2 of 10 columns": lambda: stream(["c2", "c7"]),
        "streaming scan, {files} small files": lambda: stream(None, "foreign"),
    }


def _count(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def _measure(server: Server, prepare: Prepared, runs: int) -> tuple[list[str], float]:
    times, seen = [], []
    for run in range(runs + 1):
        operation = prepare()
        server.seen()
        start = time.perf_counter()
        operation()
        seconds = time.perf_counter() - start
        seen = server.seen()
        # The first run also imports modules and opens connections.
        if run or not runs:
            times.append(seconds)
    return seen, sorted(times)[len(times) // 2]


def _compare(server: Server, arguments: argparse.Namespace, directory: Path) -> None:
    _many_files(directory / "many", arguments.files)
    _large_files(directory / "large", arguments.large_files)
    libraries: dict[str, dict[str, Prepared]] = {}
    for library, start in {"ours": _ours, "deltalake": _deltalake}.items():
        for table in TABLES:
            source = directory / ("large" if table == "large" else "many")
            prefix = f"bucket/{library}/{table}/"
            server.order("load", directory=source, prefix=prefix, checksums=int(table != "foreign"))
        prefix = f"bucket/{library}/vacuumed/"
        server.order("fill", prefix=prefix, count=arguments.objects)
        uris = {table: f"s3://bucket/{library}/{table}" for table in TABLES}
        libraries[library] = start(uris, server.options())
    found: dict[str, list[tuple[list[str], float]]] = {}
    for name in libraries["ours"]:
        if arguments.only in name:
            # One after the other, so that both have the same neighbours on the machine. The files
            # that VACUUM deletes are there only once.
            runs = 0 if name == "vacuum of {objects} files" else REPETITIONS
            found[name] = [_measure(server, each[name], runs) for each in libraries.values()]
    print("| | ours | `deltalake` | time, ours to theirs |\n|---|---|---|---|")
    for name, ((ours, ours_s), (theirs, theirs_s)) in found.items():
        title = name.format(files=f"{arguments.files:,}", objects=f"{arguments.objects:,}")
        print(
            f"| {title} | {len(ours)} requests, {ours_s * 1000:.0f} ms "
            f"| {len(theirs)} requests, {theirs_s * 1000:.0f} ms | {ours_s / theirs_s:.2f} |",
            flush=True,
        )
        if arguments.verbose:
            print("ours:", *ours[:30], "deltalake:", *theirs[:30], sep="\n    ")


def main() -> None:
    """Print requests and milliseconds of each operation and library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000, help="data files of the table")
    parser.add_argument("--large-files", type=int, default=24, help="files of the streaming scan")
    parser.add_argument("--objects", type=int, default=100_000, help="objects that VACUUM finds")
    parser.add_argument("--delay-ms", type=float, default=20)
    parser.add_argument("--only", default="", help="operations with this text in their name")
    parser.add_argument("--verbose", action="store_true", help="print the requests")
    # `python -m benchmarks` passes the arguments of the other scripts to all.
    arguments = parser.parse_known_args()[0]
    with _running(arguments.delay_ms) as server, tempfile.TemporaryDirectory() as directory:
        _compare(server, arguments, Path(directory))


@contextmanager
def _running(delay_ms: float) -> Iterator[Server]:
    server = Server(delay_ms)
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait(30)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(port: int) -> None:
    import socket

    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)


if __name__ == "__main__":
    main()
