"""Sources are read ahead in parallel, and consumed in order and in bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_delta.parquet.ordered_prefetch import BatchSource, prefetch_in_order
from dagster_delta.parquet_format.reader import FETCHED_BYTES


def batch(number: int, rows: int = 1) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array([number] * rows, pa.int64())})


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [each.column(0)[0].as_py() for each in batches]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 1000), max_size=5), max_size=30),
    st.integers(1, 4),
    st.integers(1, 100),
)
def test_batches_come_in_the_order_of_their_sources(
    sources: list[list[int]], threads: int, max_bytes: int
) -> None:
    opened = [BatchSource(partial(map, batch, each)) for each in sources]
    got = numbers(prefetch_in_order(opened, threads=threads, max_buffered_bytes=max_bytes))
    assert got == [number for each in sources for number in each]


def test_no_more_waits_than_the_buffer_and_one_batch_per_worker() -> None:
    produced: list[int] = []

    def source(start: int) -> Iterator[pa.RecordBatch]:
        for number in range(start, start + 50):
            produced.append(number)
            yield batch(number, rows=10)

    opened = [BatchSource(partial(source, start)) for start in range(0, 200, 50)]
    stream = prefetch_in_order(opened, threads=2, max_buffered_bytes=400)
    for consumed, _ in enumerate(stream, start=1):
        assert len(produced) - consumed <= 400 // 80 + 2


def test_workers_are_at_work_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=30)

    def source(number: int) -> Iterator[pa.RecordBatch]:
        both.wait()
        yield batch(number)

    opened = [BatchSource(partial(source, number)) for number in range(2)]
    assert numbers(prefetch_in_order(opened, threads=2, max_buffered_bytes=100)) == [0, 1]


def test_sources_that_fetch_too_much_run_one_after_the_other() -> None:
    running: list[int] = []

    def source(number: int) -> Iterator[pa.RecordBatch]:
        running.append(number)
        assert len(running) == 1
        yield batch(number)
        running.remove(number)

    opened = [BatchSource(partial(source, number), FETCHED_BYTES // 2 + 1) for number in range(20)]
    # Sources that fetch nothing wait for none.
    opened.append(BatchSource(lambda: [batch(20)]))
    stream = prefetch_in_order(opened, threads=4, max_buffered_bytes=1000)
    assert numbers(stream) == list(range(21))


def test_a_source_that_fetches_more_than_all_may_runs_alone() -> None:
    sizes = (1, 2 * FETCHED_BYTES, 1)
    opened = [
        BatchSource(partial(lambda each: [batch(each)], number), size)
        for number, size in enumerate(sizes)
    ]
    assert numbers(prefetch_in_order(opened, threads=2, max_buffered_bytes=100)) == [0, 1, 2]


class SourceError(Exception):
    pass


def failing(number: int) -> Iterator[pa.RecordBatch]:
    yield batch(number)
    raise SourceError


def test_an_error_comes_in_its_place() -> None:
    opened = [
        BatchSource(lambda: [batch(0)]),
        BatchSource(partial(failing, 1)),
        BatchSource(lambda: [batch(2)]),
    ]
    stream = prefetch_in_order(opened, threads=2, max_buffered_bytes=100)
    assert [next(stream).column(0)[0].as_py() for _ in range(2)] == [0, 1]
    with pytest.raises(SourceError):
        next(stream)


def test_an_error_of_the_list_of_sources_comes_in_its_place() -> None:
    def sources() -> Iterator[BatchSource]:
        yield BatchSource(lambda: [batch(0)])
        raise SourceError

    stream = prefetch_in_order(sources(), threads=2, max_buffered_bytes=100)
    assert next(stream).column(0)[0].as_py() == 0
    with pytest.raises(SourceError):
        next(stream)


def test_workers_end_with_the_stream_however_it_ends() -> None:
    before = threading.active_count()
    opened = [BatchSource(lambda: map(batch, range(100)))] * 10
    stream = prefetch_in_order(opened, threads=3, max_buffered_bytes=100)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    list(prefetch_in_order(opened, threads=3, max_buffered_bytes=100))
    assert threading.active_count() == before


def test_a_source_that_waits_for_others_is_not_opened_when_the_stream_ends() -> None:
    has_waiting, opened = threading.Event(), list[int]()

    def source(number: int) -> Iterator[pa.RecordBatch]:
        opened.append(number)
        yield batch(0)
        # With more batches in the buffer there would be no room to ask for another source.
        has_waiting.wait(30)
        yield from map(batch, range(100))

    def sources() -> Iterator[BatchSource]:
        for number in range(2):
            yield BatchSource(partial(source, number), FETCHED_BYTES)
            has_waiting.set()

    stream = prefetch_in_order(sources(), threads=3, max_buffered_bytes=1)
    next(stream)
    assert has_waiting.wait(30)
    stream.close()  # type: ignore[attr-defined]
    assert opened == [0]


def test_sources_are_closed_when_one_of_them_fails() -> None:
    closed: list[bool] = []

    def sources() -> Iterator[BatchSource]:
        try:
            yield BatchSource(partial(failing, 0))
            yield from [BatchSource(lambda: [batch(1)])] * 100
        finally:
            closed.append(True)

    with pytest.raises(SourceError):
        list(prefetch_in_order(sources(), threads=1, max_buffered_bytes=1))
    assert closed
