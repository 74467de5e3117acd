"""Whether damaged Parquet files abort a process that reads them with polars.

`python -m benchmarks.damaged_files 2000 30` changes one to three bytes in each of 2,000 files with row
groups of 30 rows, and reads them with the installed polars in processes of their own.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

FILES_PER_PROCESS = 100
_READ = """
import json, sys
import polars as pl
for path in json.load(sys.stdin):
    print("begin", flush=True)
    try:
        pl.scan_parquet(path).collect()
        print("read", flush=True)
    except BaseException as error:
        print("panic" if "Panic" in type(error).__name__ else "error", flush=True)
"""


def _sources(directory: Path, rows: int, row_group_rows: int) -> list[bytes]:
    """The same rows in four layouts."""
    numbers = range(rows)
    table = pa.table(
        {
            "i": pa.array([number**3 for number in numbers]),
            "s": pa.array(
                [None if number % 17 == 0 else f"text {number % 900}" for number in numbers]
            ),
            "u": pa.array([str(number / 7) for number in numbers]),
            "f": pa.array([number / 3 for number in numbers]),
            "b": pa.array([number % 3 == 0 for number in numbers]),
            "d": pa.array([dt.date(2020, 1, 1) + dt.timedelta(number % 500) for number in numbers]),
            "m": pa.array([Decimal(number).scaleb(-2) for number in numbers], pa.decimal128(12, 2)),
            "l": pa.array([[*range(number % 4)] for number in numbers]),
            "n": pa.array([{"x": number, "y": str(number)} for number in numbers]),
        }
    )
    encodings = {"i": "DELTA_BINARY_PACKED", "u": "DELTA_BYTE_ARRAY", "f": "BYTE_STREAM_SPLIT"}
    layouts: list[dict[str, object]] = [
        {"compression": "snappy"},
        {"compression": "zstd"},
        {"compression": "none", "use_dictionary": False, "column_encoding": encodings},
        {"compression": "snappy", "data_page_version": "2.0"},
    ]
    found = []
    for options in layouts:
        pq.write_table(table, directory / "source", row_group_size=row_group_rows, **options)
        found.append((directory / "source").read_bytes())
    return found


def _damaged(source: bytes, random_: random.Random, *, in_footer: bool) -> bytes:
    data = bytearray(source)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    first, end = (footer, len(data) - 8) if in_footer else (4, footer)
    for _ in range(random_.randrange(1, 4)):
        data[random_.randrange(first, end)] = random_.randrange(256)
    return bytes(data)


def main(num_files: int = 2_000, row_group_rows: int = 30, seed: int = 11) -> None:
    """Print how many files are read, and how the others fail."""
    random_ = random.Random(seed)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        sources = _sources(directory, 4 * row_group_rows, row_group_rows)
        left = []
        for number in range(num_files):
            left.append(str(directory / f"{number}.parquet"))
            damaged = _damaged(random_.choice(sources), random_, in_footer=number % 4 == 0)
            Path(left[-1]).write_bytes(damaged)
        while left:
            done = subprocess.run(
                [sys.executable, "-c", _READ],
                input=json.dumps(left[:FILES_PER_PROCESS]),
                capture_output=True,
                text=True,
                check=False,
            )
            outcomes = Counter(done.stdout.split())
            begun = outcomes.pop("begin", 0)
            if done.returncode:
                counts["process aborted"] += 1
                print(next((line for line in done.stderr.splitlines() if "memory" in line), ""))
            counts += outcomes
            left = left[max(1, begun) :]
    print(dict(counts))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
