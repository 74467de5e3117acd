"""Requests to S3, Azure or Google and the time they take, through a proxy that delays and counts them.

The servers are an S3 server in memory, Azurite and fake-gcs-server; for the latter two see
`tests/storage/emulators.py`. Both libraries run the same operations in turn, each on a copy of the
same table: its log has a checkpoint, then 10 commits. Requests are those of one operation; the time
is the median.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks._cloud_servers import CLOUDS, Cloud, slow_cloud

REPETITIONS = 5
ROWS_PER_FILE = 100
LARGE_COLUMNS = 10
TABLES = {
    "many": "many",
    "foreign": "many",
    "vacuumed": "many",
    "large": "large",
    "single": "single",
}
"""Each table, and the one that it is a copy of."""

Prepared: TypeAlias = Callable[[], Callable[[], object]]
"""Prepares one run, and returns what is counted and timed."""


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


def _single_group(path: Path, megabytes: int) -> None:
    """A table of one file with one row group of ten columns that do not compress."""
    import numpy as np
    import pyarrow.parquet as pq

    from dagster_delta import DeltaTable

    source, count = np.random.default_rng(7), megabytes * 1_000_000 // (8 * LARGE_COLUMNS)
    columns = {f"c{index}": source.random(count) for index in range(LARGE_COLUMNS)}
    path.mkdir()
    file = path / "part-0.parquet"
    pq.write_table(pa.table(columns), file, row_group_size=count, use_dictionary=False)
    DeltaTable.convert(path)


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
        "streaming scan, a row group of {group} MB": lambda: stream(None, "single"),
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
        # `to_pyarrow_dataset` takes longer.
        "streaming scan, a row group of {group} MB": lambda: (
            lambda: _count(opened("single").scan())
        ),
    }


def _count(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def _measure(cloud: Cloud, prepare: Prepared, runs: int) -> tuple[list[str], float]:
    times, seen = [], []
    for run in range(runs + 1):
        operation = prepare()
        cloud.seen()
        start = time.perf_counter()
        operation()
        seconds = time.perf_counter() - start
        seen = cloud.seen()
        # The first run also imports modules and opens connections.
        if run or not runs:
            times.append(seconds)
    return seen, sorted(times)[len(times) // 2]


def _compare(cloud: Cloud, arguments: argparse.Namespace, directory: Path) -> None:
    _many_files(directory / "many", arguments.files)
    _large_files(directory / "large", arguments.large_files)
    _single_group(directory / "single", arguments.group_megabytes)
    libraries: dict[str, dict[str, Prepared]] = {}
    for library, start, options in (
        ("ours", _ours, cloud.ours),
        ("deltalake", _deltalake, cloud.peers),
    ):
        for table, source in TABLES.items():
            cloud.load(f"{library}/{table}", directory / source, checksums=table != "foreign")
        names = (f"old-{index:07}.parquet" for index in range(arguments.objects))
        cloud.put(f"{library}/vacuumed", ((name, lambda: b"x" * 100) for name in names))
        uris = {table: f"{cloud.root}/{library}/{table}" for table in TABLES}
        libraries[library] = start(uris, options)
    print(f"\n### {arguments.cloud}\n")
    print("| | ours | `deltalake` | time, ours to theirs |\n|---|---|---|---|", flush=True)
    for name in libraries["ours"]:
        if arguments.only not in name:
            continue
        # One after the other, so that both have the same neighbours on the machine. The files
        # that VACUUM deletes are there only once.
        runs = 0 if name == "vacuum of {objects} files" else REPETITIONS
        (ours, ours_s), (theirs, theirs_s) = (
            _measure(cloud, prepared[name], runs) for prepared in libraries.values()
        )
        title = name.format(
            files=f"{arguments.files:,}",
            objects=f"{arguments.objects:,}",
            group=arguments.group_megabytes,
        )
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
    parser.add_argument("--cloud", choices=list(CLOUDS), default="s3")
    parser.add_argument("--files", type=int, default=1000, help="data files of the table")
    parser.add_argument("--large-files", type=int, default=24, help="files of the streaming scan")
    parser.add_argument("--group-megabytes", type=int, default=128)
    parser.add_argument("--objects", type=int, default=20_000, help="objects that VACUUM finds")
    parser.add_argument("--delay-ms", type=float, default=20)
    parser.add_argument(
        "--megabytes-per-second", type=float, default=50, help="that each connection downloads"
    )
    parser.add_argument("--only", default="", help="operations with this text in their name")
    parser.add_argument("--verbose", action="store_true", help="print the requests")
    # `python -m benchmarks` passes the arguments of the other scripts to all.
    arguments = parser.parse_known_args()[0]
    slow = slow_cloud(
        arguments.cloud,
        delay_ms=arguments.delay_ms,
        bytes_per_second=arguments.megabytes_per_second * 1e6,
    )
    with slow as cloud, tempfile.TemporaryDirectory() as directory:
        _compare(cloud, arguments, Path(directory))


if __name__ == "__main__":
    main()
