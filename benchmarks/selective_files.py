"""How well other programs select rows in files of this library, beside files of pyarrow's defaults.

    python -m benchmarks.selective_files --rows 8000000 --rounds 7

The same rows are in 8 files each: `id` in order, `key` distinct and in no order, with a Bloom
filter. It prints the least CPU time of interleaved rounds, of Spark the least wall time, and our
part of the other.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks._rows import BATCH_ROWS, batches
from dagster_delta import DeltaTable
from dagster_delta.engines.spark.session.session import local_spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES = 8
_PRIME, _KEYS = 2_654_435_761, 2**40


def _keyed(start: int, rows: int) -> pa.Table:
    """Rows of one file."""
    columns = ["category", "name", "x", "price", "day"]
    table = pa.Table.from_batches(batches(rows)).select(columns)
    ids = np.arange(start, start + rows)
    return table.add_column(0, "id", [ids]).add_column(1, "key", [ids * _PRIME % _KEYS])


def _write_both(root: Path, rows: int) -> None:
    (root / "pyarrow").mkdir()
    properties = {"parquet.bloom.filter.enabled#key": "true"}
    for number in range(FILES):
        part = _keyed(number * (rows // FILES), rows // FILES)
        reader = pa.RecordBatchReader.from_batches(part.schema, part.to_batches(BATCH_ROWS))
        DeltaTable(root / "ours", must_exist=False).append(reader, properties=properties)
        path = root / "pyarrow" / f"{number}.parquet"
        pq.write_table(part, path, compression="zstd", compression_level=1)
    deltalake.convert_to_deltalake(str(root / "pyarrow"))


def _count_by_duckdb(path: Path, where: str) -> int:
    found = duckdb.sql(f"SELECT * FROM '{path}/*.parquet' WHERE {where}")
    assert found is not None
    return int(found.to_arrow_table().num_rows)


def _programs() -> Mapping[str, Callable[[Path, str], int]]:
    spark = local_spark_session("selective files", {"spark.driver.memory": "2g"})
    return {
        "polars": lambda path, where: (
            pl.scan_parquet(path / "*.parquet").filter(pl.sql_expr(where)).collect().height
        ),
        "DuckDB": _count_by_duckdb,
        "deltalake": lambda path, where: sum(
            batch.num_rows
            for batch in deltalake.DeltaTable(str(path)).scan(
                predicate=None if where == "true" else where
            )
        ),
        "Spark": lambda path, where: _read_by_spark(spark.read.parquet(str(path)), where),
    }


def _read_by_spark(rows: DataFrame, where: str) -> int:
    if where != "true":
        return len(rows.where(where).collect())
    rows.write.format("noop").mode("overwrite").save()
    return 0


def _measure(root: Path, read: Callable[[Path, str], int], where: str, clock: Callable[[], float],
             rounds: int) -> dict[str, float]:  # fmt: skip
    seconds: dict[str, list[float]] = {"ours": [], "pyarrow": []}
    found: dict[str, int] = {}
    for _ in range(rounds + 1):
        for name, samples in seconds.items():
            began = clock()
            found[name] = read(root / name, where)
            samples.append(clock() - began)
    if found["ours"] != found["pyarrow"]:
        raise SystemExit(f"{where}: the rows differ: {found}")
    # The first round warms up.
    return {name: min(samples[1:]) for name, samples in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    number = given.rows * 9 // 16 + 1
    cases = {
        "one row by `id`": f"id = {number}",
        "one row by `key`": f"key = {number * _PRIME % _KEYS}",
        "all rows": "true",
    }
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        _write_both(root, given.rows)
        sizes = {
            name: sum(path.stat().st_size for path in (root / name).glob("*.parquet"))
            for name in ("ours", "pyarrow")
        }
        print(f"size: {sizes['ours'] / 1e6:.0f} MB, of pyarrow {sizes['pyarrow'] / 1e6:.0f} MB")
        print("| program | case | ours | pyarrow | ratio |\n|---|---|---|---|---|")
        for program, read in _programs().items():
            clock = time.perf_counter if program == "Spark" else time.process_time
            for case, where in cases.items():
                least = _measure(root, read, where, clock, given.rounds)
                ratio = least["ours"] / least["pyarrow"]
                cells = " | ".join(f"{taken * 1000:.0f} ms" for taken in least.values())
                print(f"| {program} | {case} | {cells} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
