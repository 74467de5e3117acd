"""Whether damaged Parquet files abort a process that reads them by a filter.

    python -m benchmarks.damaged_files ours 8000 12288
    python -m benchmarks.damaged_files polars 2000 30

The first line changes one to three bytes in each of 8,000 files with row groups of 12,288 rows, and
reads one row of each in processes of their own: by a table of this library, whose filter decodes only
the pages that hold the row, or by the installed polars or DuckDB. It counts the files that are read, and the
names of the errors of the others.
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

from dagster_delta import DeltaTable

FILES_PER_PROCESS = 100
_PAGE_BYTES = 8 * 1024
_WANTED = 700
"""The index of the row that is read."""
_OURS = """
import json, shutil, sys
from dagster_delta import DeltaTable
for path, layout in json.load(sys.stdin):
    print("begin", flush=True)
    try:
        shutil.copyfile(path, layout + "/source.parquet")
        DeltaTable(layout).snapshot().scan(where="i = WANTED").to_arrow()
        print("read", flush=True)
    except BaseException as error:
        print(type(error).__name__, flush=True)
"""
_POLARS = """
import json, sys
import polars as pl
for path, _ in json.load(sys.stdin):
    print("begin", flush=True)
    try:
        pl.scan_parquet(path).filter(pl.col("i") == WANTED).collect()
        print("read", flush=True)
    except BaseException as error:
        print(type(error).__name__, flush=True)
"""
_DUCKDB = """
import json, sys
import duckdb
for path, _ in json.load(sys.stdin):
    print("begin", flush=True)
    try:
        query = f"SELECT * FROM read_parquet('{path}') WHERE i = WANTED"
        duckdb.sql(query).to_arrow_table()
        print("read", flush=True)
    except BaseException as error:
        print(type(error).__name__, flush=True)
"""
_READERS = {"ours": _OURS, "polars": _POLARS, "duckdb": _DUCKDB}


def _make_tables(directory: Path, rows: int, row_group_rows: int) -> list[Path]:
    """Tables of the same rows, each of one file `source.parquet`, in four layouts."""
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
    for number, options in enumerate(layouts):
        path = directory / f"layout-{number}"
        path.mkdir()
        pq.write_table(
            table,
            path / "source.parquet",
            row_group_size=row_group_rows,
            data_page_size=_PAGE_BYTES,
            write_page_index=True,
            **options,
        )
        DeltaTable.convert(str(path))
        found.append(path)
    return found


def _damaged(source: bytes, random_: random.Random, *, in_footer: bool) -> bytes:
    data = bytearray(source)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    first, end = (footer, len(data) - 8) if in_footer else (4, footer)
    for _ in range(random_.randrange(1, 4)):
        data[random_.randrange(first, end)] = random_.randrange(256)
    return bytes(data)


def main(reader: str, num_files: int = 2_000, row_group_rows: int = 30, seed: int = 11) -> None:
    """Print how many files are read, and how the others fail."""
    random_ = random.Random(seed)
    counts: Counter[str] = Counter()
    script = _READERS[reader].replace("WANTED", str(_WANTED**3))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        layouts = _make_tables(directory, 2 * max(_WANTED, row_group_rows), row_group_rows)
        sources = [(layout / "source.parquet").read_bytes() for layout in layouts]
        left = range(num_files)
        while left:
            files = []
            for number in left[:FILES_PER_PROCESS]:
                layout = random_.randrange(len(layouts))
                path = directory / f"{number % FILES_PER_PROCESS}.parquet"
                path.write_bytes(_damaged(sources[layout], random_, in_footer=number % 4 == 0))
                files.append((str(path), str(layouts[layout])))
            done = subprocess.run(
                [sys.executable, "-c", script],
                input=json.dumps(files),
                capture_output=True,
                text=True,
                check=False,
            )
            outcomes = Counter(done.stdout.split())
            begun = outcomes.pop("begin", 0)
            if done.returncode:
                counts["process aborted"] += 1
                print("\n".join(done.stderr.splitlines()[-3:]))
            counts += outcomes
            left = left[max(1, begun) :]
    print(dict(counts))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
