"""Ranges of one object that are fetched ahead of reading them."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Barrier

import numpy as np
import pytest

from dagster_delta.errors import StorageFailure
from dagster_delta.storage.cloud.ranges import CloudRanges, pieces_of
from dagster_delta.storage.object_store import FetchBudget

MEGABYTE = 1 << 20
DATA = np.arange(2 * MEGABYTE, dtype=">u4").tobytes()
"""8 MiB."""


class Object:
    """An object that notes what is fetched of it."""

    def __init__(self, together: int = 1) -> None:
        self.fetched: list[tuple[int, int]] = []
        self._together = Barrier(together, timeout=60)

    def fetch(self, start: int, length: int) -> memoryview:
        self.fetched.append((start, length))
        self._together.wait()
        return memoryview(DATA)[start : start + length]

    def open(self, ranges: Sequence[tuple[int, int]], budget: FetchBudget) -> CloudRanges:
        return CloudRanges(len(DATA), ranges, self.fetch, budget)


def test_ranges_that_nearly_touch_are_one_piece() -> None:
    far = MEGABYTE
    ranges = [(far, 10), (0, 4), (4, 6), (8, 1), (100, 1), (far + 5, 0)]
    assert pieces_of(ranges, 1 << 30) == [(0, 101), (far, 10)]


def test_pieces_are_in_the_order_in_which_columns_are_decoded() -> None:
    columns = [(0, 8 * MEGABYTE), (8 * MEGABYTE, 4 * MEGABYTE)]
    assert pieces_of(columns, 8 * MEGABYTE) == [
        (start * MEGABYTE, 2 * MEGABYTE) for start in (0, 8, 2, 4, 10, 6)
    ]
    assert pieces_of(columns, 12 * MEGABYTE) == columns


def test_pieces_of_one_range_are_fetched_over_several_connections() -> None:
    # A fetch returns only when another one is under way.
    source = Object(together=2)
    opened = source.open([(0, 4 * MEGABYTE)], FetchBudget(2 * MEGABYTE))
    assert opened.read(4 * MEGABYTE) == DATA[: 4 * MEGABYTE]
    assert sorted(source.fetched) == [(start * MEGABYTE, MEGABYTE) for start in range(4)]
    opened.close()


def test_what_is_fetched_ahead_stays_within_the_budget() -> None:
    source = Object()
    opened = source.open([(0, len(DATA))], FetchBudget(2 * MEGABYTE))
    step = MEGABYTE // 2
    for position in range(0, len(DATA), step):
        assert len(source.fetched) <= position // MEGABYTE + 2
        assert opened.read(step) == DATA[position : position + step]
    assert sorted(source.fetched) == [(start, MEGABYTE) for start in range(0, len(DATA), MEGABYTE)]
    opened.close()


def test_a_reader_without_a_share_of_the_budget_requests_what_it_reads() -> None:
    source, budget = Object(), FetchBudget(2 * MEGABYTE)
    assert budget.take(2 * MEGABYTE)
    opened = source.open([(0, len(DATA))], budget)
    assert opened.read(1000) == DATA[:1000]
    assert source.fetched == [(0, 1000)]
    budget.give_back(2 * MEGABYTE)
    # From the next piece on it has one.
    assert opened.read(2 * MEGABYTE) == DATA[1000 : 1000 + 2 * MEGABYTE]
    assert source.fetched[1] != (1000, 2 * MEGABYTE)
    assert (2 * MEGABYTE, MEGABYTE) in source.fetched
    opened.close()


def test_bytes_between_ranges_do_not_hold_the_budget() -> None:
    length, gap = 400_000, 10_000
    ranges = [(start, length) for start in range(0, len(DATA) - length, length + gap)]
    source, max_bytes = Object(), 2 * MEGABYTE
    opened = source.open(ranges, FetchBudget(max_bytes))
    for start, _ in ranges:
        opened.seek(start)
        assert opened.read(length) == DATA[start : start + length]
    assert sorted(source.fetched) == sorted(pieces_of(ranges, max_bytes))
    assert len(source.fetched) < len(ranges)
    opened.close()


def test_closing_gives_the_budget_back() -> None:
    budget = FetchBudget(2 * MEGABYTE)
    Object().open([(0, len(DATA))], budget).close()
    assert budget.take(2 * MEGABYTE)


def test_bytes_that_were_read_or_belong_to_no_range_are_requested() -> None:
    source = Object()
    opened = source.open([(0, 10), (MEGABYTE, 10)], FetchBudget(MEGABYTE))
    for start, length in ((0, 10), (5, 20), (500_000, 7), (MEGABYTE - 5, 100), (len(DATA), 1)):
        opened.seek(start)
        assert opened.read(length) == DATA[start : start + length]
    opened.close()


def test_a_range_after_the_end_of_the_object_is_cut() -> None:
    opened = Object().open([(len(DATA) - 5, 1 << 60), (1 << 61, 9)], FetchBudget(MEGABYTE))
    opened.seek(-5, 2)
    assert opened.read(100) == DATA[-5:]
    opened.close()


def test_a_failure_of_the_first_piece_is_raised_at_once_and_holds_nothing() -> None:
    budget = FetchBudget(MEGABYTE)

    def fail(_start: int, _length: int) -> memoryview:
        raise StorageFailure("refused")

    with pytest.raises(StorageFailure, match="refused"):
        CloudRanges(len(DATA), [(0, MEGABYTE)], fail, budget)
    assert budget.take(MEGABYTE)
