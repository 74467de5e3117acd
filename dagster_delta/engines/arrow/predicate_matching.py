"""Finds the rows for which a predicate is true, on the embedded engine.

Only the columns of the predicate are decoded; the position of a row in its file costs nothing. A
DELETE that only marks rows loads nothing else: rewriting them takes the Parquet writer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from dagster_delta.engines.plans import MatchedRows, ReadPlan
from dagster_delta.nested_arrays import runs_of
from dagster_delta.parquet.data_file_reader import FILE_ORDINAL, ROW_INDEX
from dagster_delta.parquet.opened_file import data_files
from dagster_delta.parquet.reader import plan_reader, read_ahead

if TYPE_CHECKING:
    from numpy.typing import NDArray


def find_matches(plan: ReadPlan) -> Iterator[MatchedRows]:
    """The live rows that satisfy the plan's predicate, file by file; files without any are omitted.

    `plan`: its columns do not matter.
    """
    reader = plan_reader(plan, (), where=plan.where)
    batches = read_ahead(plan.store, reader.sources(data_files(plan.files)), files=plan.files)
    for ordinal, rows in _collect_bitmaps(batches):
        yield MatchedRows(plan.files["path"][ordinal].as_py(), rows)


def _collect_bitmaps(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, BitMap64]]:
    """The rows of each file, which comes in one or more batches."""
    current, found = -1, BitMap64()
    for batch in batches:
        # `to_numpy` would import pandas, where that is installed.
        ordinals = np.from_dlpack(batch.column(FILE_ORDINAL))
        indexes = np.from_dlpack(batch.column(ROW_INDEX))
        for ordinal, rows in rows_by_file(ordinals, indexes):
            if ordinal != current and found:
                yield current, found
                found = BitMap64()
            current = ordinal
            found |= bitmap_of(rows)
    if found:
        yield current, found


def rows_by_file(
    ordinals: NDArray[Any], rows: NDArray[Any]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The rows of each file, from numpy arrays in order of the files."""
    for run in runs_of(ordinals):
        yield int(ordinals[run.start]), rows[run]


def add_rows(found: dict[int, BitMap64], files: NDArray[Any], rows: NDArray[np.int64]) -> None:
    """Add rows to the bitmaps of their files, from numpy arrays in any order."""
    order = np.argsort(files, kind="stable")
    for file, some in rows_by_file(files[order], rows[order]):
        found.setdefault(file, BitMap64())
        found[file] |= bitmap_of(some)


def bitmap_of(rows: NDArray[np.int64]) -> BitMap64:
    """A bitmap of a numpy array of row indexes."""
    # An array of the standard library is read as a block; other sequences value by value.
    return BitMap64(array("Q", rows.astype("uint64").tobytes()))
