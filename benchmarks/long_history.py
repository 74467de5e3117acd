"""Appends to a path, and opening it, by the length of the table's history.

The history is made without data files: commits of one file each, with their checksums, and a
checkpoint at the end. `python -m benchmarks.long_history 100 3000 30000` prints CPU time, which
other programs disturb less than wall time; the tables take turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
from msgspec.structs import replace

from dagster_delta import DeltaTable
from dagster_delta.protocol.log.commit_file import CommitContents, decode_commit
from dagster_delta.protocol.log.commit_writer import encode_actions, encode_commit
from dagster_delta.protocol.log.paths import checksum_path, commit_path
from dagster_delta.protocol.log.version_checksum import (
    encode_version_checksum,
    version_checksum_after,
)

ROW = pa.table({"id": pa.array([1], pa.int64()), "name": ["x"], "value": [0.5]})
APPENDS = 100
"""Appends per measurement: the most commits between two checkpoints."""


def _make_table(path: Path, num_versions: int) -> None:
    table = DeltaTable(path, must_exist=False)
    for _ in range(2):
        table.append(ROW)
    sample = (path / commit_path(1)).read_bytes()
    add = decode_commit(sample, version=1).adds[0]
    info = json.loads(sample.splitlines()[0])["commitInfo"]
    del info["contentCrc32"]
    checksum = table.snapshot().checksum
    for version in range(2, num_versions):
        info |= {"txnId": str(uuid.uuid4()), "readVersion": version - 1}
        file = replace(add, path=f"part-{uuid.uuid4()}.snappy.parquet")
        commit = encode_commit(info, encode_actions(CommitContents(adds=(file,))))
        checksum = version_checksum_after(checksum, [(version, commit)])
        assert checksum is not None
        (path / commit_path(version)).write_bytes(commit)
        (path / checksum_path(version)).write_bytes(encode_version_checksum(checksum))
    DeltaTable(path).checkpoint()


def _append(path: Path) -> None:
    DeltaTable(path).append(ROW)


def _cpu_ms(action: Callable[[], object], times: int) -> float:
    begun = time.process_time()
    for _ in range(times):
        action()
    return (time.process_time() - begun) * 1000 / times


def main(lengths: list[int], rounds: int = 5) -> None:
    """Print a table of medians."""
    with tempfile.TemporaryDirectory() as directory:
        paths = {length: Path(directory, str(length)) for length in lengths}
        appends: dict[int, list[float]] = {length: [] for length in lengths}
        opens: dict[int, list[float]] = {length: [] for length in lengths}
        for length, path in paths.items():
            _make_table(path, length)
            DeltaTable(path).append(ROW)
        for _ in range(rounds):
            for length, path in paths.items():
                appends[length].append(_cpu_ms(partial(_append, path), APPENDS))
                opens[length].append(_cpu_ms(partial(DeltaTable, path), 20))
    print(
        "| Versions | Append to a path, ms | Rate against the first | Open, ms |\n|---|---|---|---|"
    )
    first = statistics.median(appends[lengths[0]])
    for length in lengths:
        append, opened = statistics.median(appends[length]), statistics.median(opens[length])
        print(f"| {length:,} | {append:.2f} | {first / append:.2f} | {opened:.2f} |")


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or [100, 3_000, 30_000, 100_000])
