"""Writing rows: a stream, a partitioned stream, a table in memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks._rows import batches, stream
from benchmarks.harness import Case, main

TARGET_FILE_SIZE = 128 * 1024 * 1024


def _nothing(directory: Path, size: int) -> None:
    """Rows are made while they are written."""


def _fresh(directory: Path, name: str) -> Path:
    target = directory / name
    shutil.rmtree(target, ignore_errors=True)
    return target


def _together(size: int) -> pa.Table:
    return pa.Table.from_batches(batches(size))


def _spread(size: int) -> pa.Table:
    """Rows of 10,000 partitions in turn."""
    ids = np.arange(size)
    texts = [f"x{each % 97}" for each in range(size)]
    return pa.table({"p": ids * 7919 % 10_000, "v": ids, "s": texts})


Rows = Callable[[int], "pa.RecordBatchReader | pa.Table"]


def _ours(rows: Rows, *partition_by: str) -> Callable[[Path, int], Callable[[], object]]:
    def prepared(directory: Path, size: int) -> Callable[[], object]:
        from dagster_delta import DeltaTable

        target, data = _fresh(directory, "ours"), rows(size)

        def run() -> int:
            table = DeltaTable.create(str(target), data.schema, partition_by=partition_by)
            return table.append(data).version

        return run

    return prepared


def _deltalake(rows: Rows, *partition_by: str) -> Callable[[Path, int], Callable[[], object]]:
    def prepared(directory: Path, size: int) -> Callable[[], object]:
        import deltalake

        target, data = _fresh(directory, "deltalake"), rows(size)

        def run() -> int:
            deltalake.write_deltalake(
                str(target),
                data,
                partition_by=list(partition_by) or None,
                target_file_size=TARGET_FILE_SIZE,
            )
            return 1

        return run

    return prepared


CASES = {
    "stream": Case(
        "append a stream of {size} rows × 10 columns",
        20_000_000,
        _nothing,
        {"ours": _ours(stream), "deltalake": _deltalake(stream)},
    ),
    "partitioned": Case(
        "append a stream of {size} rows to 50 partitions",
        5_000_000,
        _nothing,
        {"ours": _ours(stream, "category"), "deltalake": _deltalake(stream, "category")},
    ),
    "memory": Case(
        "append a table of {size} rows",
        5_000_000,
        _nothing,
        {"ours": _ours(_together), "deltalake": _deltalake(_together)},
    ),
    "many partitions": Case(
        "append a table of {size} rows to 10,000 partitions",
        2_000_000,
        _nothing,
        {
            "ours": _ours(_spread, "p"),
            "deltalake": _deltalake(_spread, "p"),
        },
    ),
}

if __spec__ is not None:
    main(__name__, __spec__.name, CASES)
