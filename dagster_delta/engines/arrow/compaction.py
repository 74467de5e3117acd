"""Rewriting the rows of data files to fewer, larger or sorted files, in this process.

Sorted rows that do not fit into memory are split into temporary files by ranges of the curve, and
each range is sorted separately.

Spec: Add File and Remove File (dataChange).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import ReadPlan, WriteResult, WriteSpec
from dagster_delta.engines.zorder import SAMPLE_ROWS, ZOrderCurve
from dagster_delta.nested_arrays import index_of
from dagster_delta.parquet.opened_file import BATCH_BYTES
from dagster_delta.parquet_format.reader import decoding_pool
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.scratch import scratch_directory
from dagster_delta.storage.unreferenced_files import CreatedFiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_STRETCHES = 256
_BATCH_ROWS = 65_536
_UNCOUNTED_STRIDE = 50


def sort_files(
    engine: Engine,
    groups: Sequence[ReadPlan],
    spec: WriteSpec,
    columns: Sequence[tuple[str, ...]],
    *,
    sort_bytes: int,
    is_hilbert: bool = False,
) -> WriteResult:
    """New files with the rows of each group sorted along a curve of its own."""
    written: list[WriteResult] = []
    with CreatedFiles(groups[0].store) as created:
        for group in groups:
            curve, num_rows = _curve_of(engine, group, columns, is_hilbert=is_hilbert)
            rows = engine.read(group)
            batches = sorted_along(curve, rows, num_rows=num_rows, sort_bytes=sort_bytes)
            reader = pa.RecordBatchReader.from_batches(rows.schema, batches)
            written.append(engine.write(reader, spec, store=group.store))
            created.add(decode_path(file.path) for file in written[-1].files)
    return WriteResult.combined(written)


def _curve_of(
    engine: Engine, group: ReadPlan, columns: Sequence[tuple[str, ...]], *, is_hilbert: bool
) -> tuple[ZOrderCurve, int | None]:
    """The curve through a sample of the group, and its number of rows according to the log."""
    counts = parse_statistics_json(group.files["stats"], ())["num_records"]
    num_rows = pc.sum(counts, skip_nulls=False).as_py()
    names = tuple(dict.fromkeys(path[0] for path in columns))
    stride = _UNCOUNTED_STRIDE if num_rows is None else max(1, num_rows // SAMPLE_ROWS)
    rows: pa.RecordBatchReader = engine.read(replace(group, columns=names))
    sampled, skip = [], 0
    for batch in rows:
        chosen = np.arange(skip, batch.num_rows, stride)
        skip = int(chosen[-1]) + stride - batch.num_rows if len(chosen) else skip - batch.num_rows
        sampled.append(batch.take(index_of(chosen)) if stride > 1 else batch)
    sample = pa.Table.from_batches(sampled, rows.schema)
    return ZOrderCurve.through(columns, sample, is_hilbert=is_hilbert), num_rows


def sorted_along(
    curve: ZOrderCurve,
    rows: pa.RecordBatchReader,
    *,
    num_rows: int | None,
    sort_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """The rows in the order of the curve.

    `num_rows`: approximate number of rows; None if unknown.
    `sort_bytes`: Arrow bytes to keep in memory before rows are spread over temporary files.
    """
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        waiting.append(batch)
        size += batch.nbytes
        if size > sort_bytes:
            stretches = _stretch_count(waiting, size, num_rows, sort_bytes)
            yield from _sort_spilled(curve, rows, waiting, stretches, sort_bytes)
            return
    if waiting:
        yield from _sort_rows(curve, waiting)


def _stretch_count(
    waiting: Sequence[pa.RecordBatch], size: int, num_rows: int | None, sort_bytes: int
) -> int:
    if num_rows is None:
        return _MAX_STRETCHES // 4
    per_row = size / max(1, sum(batch.num_rows for batch in waiting))
    # Half full on average, as the sample gives the ends of the ranges only roughly.
    return min(_MAX_STRETCHES, int(2 * per_row * num_rows / sort_bytes) + 2)


def _sort_spilled(
    curve: ZOrderCurve,
    rows: Iterable[pa.RecordBatch],
    waiting: list[pa.RecordBatch],
    num_stretches: int,
    sort_bytes: int,
) -> Iterator[pa.RecordBatch]:
    places = np.concatenate([curve.positions(batch) for batch in waiting])
    # The first rows are the sample: uneven ranges only cost memory.
    ends = np.quantile(places.astype(np.float64), np.linspace(0, 1, num_stretches + 1)[1:-1])
    schema = waiting[0].schema
    with ExitStack() as stack:
        directory = Path(stack.enter_context(scratch_directory("delta-zorder-")))
        files = [directory / f"{index}.arrow" for index in range(num_stretches)]
        with ExitStack() as writers:
            sinks = [writers.enter_context(pa.ipc.new_file(str(file), schema)) for file in files]
            while waiting:
                _spread_rows(curve, waiting.pop(0), ends, sinks)
            for batch in rows:
                _spread_rows(curve, batch, ends, sinks)
        for file in files:
            yield from _sorted_file(curve, file, sort_bytes)
            file.unlink()


def _spread_rows(
    curve: ZOrderCurve,
    batch: pa.RecordBatch,
    ends: NDArray[np.float64],
    sinks: Sequence[pa.RecordBatchFileWriter],
) -> None:
    stretch = np.searchsorted(ends, curve.positions(batch).astype(np.float64), side="right")
    order = np.argsort(stretch, kind="stable")
    rows = batch.take(index_of(order))
    borders = np.searchsorted(stretch[order], np.arange(len(sinks) + 1))
    for sink, start, end in zip(sinks, borders, borders[1:], strict=False):
        if end > start:
            sink.write_batch(rows.slice(start, end - start))


def _sorted_file(curve: ZOrderCurve, path: Path, sort_bytes: int) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path), "rb") as source, pa.ipc.open_file(source) as reader:
        together: list[pa.RecordBatch] = []
        size = 0
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            together.append(batch)
            size += batch.nbytes
            if size > 2 * sort_bytes:
                # A range that is too long, for example of one value, is sorted in parts: its files
                # overlap, and memory stays bounded.
                yield from _sort_rows(curve, together)
                size = 0
        if together:
            yield from _sort_rows(curve, together)


def _sort_rows(curve: ZOrderCurve, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the batches in order; the list is emptied, so that they are in memory once."""
    # Taking from several chunks would concatenate them for each batch.
    table = pa.Table.from_batches(batches).combine_chunks(decoding_pool())
    batches.clear()
    order = np.argsort(curve.positions(table), kind="stable")
    step = max(1, min(_BATCH_ROWS, BATCH_BYTES * table.num_rows // max(1, table.nbytes)))
    for start in range(0, len(order), step):
        rows = index_of(order[start : start + step])
        chosen = pc.take(table, rows, memory_pool=decoding_pool())
        yield from chosen.combine_chunks(decoding_pool()).to_batches()


def compact_files(
    engine: Engine, groups: Sequence[ReadPlan], spec: WriteSpec, *, num_workers: int
) -> list[WriteResult]:
    """New files with the rows of each group, one for a group that fits into one."""
    created = CreatedFiles(groups[0].store)

    def rewrite(group: ReadPlan) -> WriteResult:
        written = engine.write(engine.read(group), spec, store=group.store)
        created.add(decode_path(file.path) for file in written.files)
        return written

    count = min(num_workers, len(groups))
    # The workers finish before files are deleted.
    with created, ThreadPoolExecutor(count, "delta-compact") as workers:
        running = [workers.submit(rewrite, group) for group in groups]
        try:
            return [task.result() for task in running]
        finally:
            workers.shutdown(cancel_futures=True)
