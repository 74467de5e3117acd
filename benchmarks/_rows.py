"""Rows for the benchmarks: ten columns of the usual kinds, made in batches at little cost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BATCH_ROWS = 131_072
_DISTINCT_BATCHES = 4


def stream(rows: int) -> Any:
    """A `pyarrow.RecordBatchReader` of that many rows; `id` and `ts` grow from row to row."""
    return pa.RecordBatchReader.from_batches(_pool()[0].schema, batches(rows))


def batches(rows: int) -> Iterator[Any]:
    pool = _pool()
    for number, start in enumerate(range(0, rows, BATCH_ROWS)):
        batch = pool[number % _DISTINCT_BATCHES]
        ids = pa.array(np.arange(start, start + BATCH_ROWS))
        columns = [ids, _times(ids), *batch.columns[2:]]
        whole = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        yield whole.slice(0, min(BATCH_ROWS, rows - start))


def _times(ids: Any) -> Any:
    return pc.multiply(ids, 1_000_003).cast(pa.timestamp("us", "UTC"))


@cache
def _pool() -> list[Any]:
    return [_batch(np.random.default_rng(seed)) for seed in range(_DISTINCT_BATCHES)]


def _batch(random: np.random.Generator) -> Any:
    count = BATCH_ROWS
    ids = pa.array(np.arange(count))
    categories = pa.array([f"category-{number}" for number in range(50)])
    names = pa.array(random.integers(0, 10**9, count)).cast(pa.string())
    return pa.record_batch(
        {
            "id": ids,
            "ts": _times(ids),
            "category": categories.take(pa.array(random.integers(0, 50, count))),
            "name": pc.binary_join_element_wise("user-", names, ""),
            "x": random.normal(size=count),
            "price": np.round(random.uniform(0, 1000, count), 2),
            "quantity": random.integers(0, 1000, count, dtype=np.int32),
            "flag": random.integers(0, 2, count).astype(bool),
            "day": pa.array(random.integers(18_000, 18_365, count, dtype=np.int32)).cast(
                pa.date32()
            ),
            "big": random.integers(-(2**40), 2**40, count),
        }
    )
