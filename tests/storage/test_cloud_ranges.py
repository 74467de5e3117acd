"""Ranges of one object that are fetched before they are read."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dagster_delta.storage.cloud import store
from dagster_delta.storage.cloud.store import pieces_of
from dagster_delta.storage.file_objects import RangeInput

MEGABYTE = 1 << 20
DATA = bytes(range(256)) * 16


def test_ranges_that_nearly_touch_are_one_piece() -> None:
    far = MEGABYTE
    ranges = [(far, 10), (0, 4), (4, 6), (8, 1), (100, 1), (far + 5, 0)]
    assert pieces_of(ranges, 1 << 30) == [(0, 101), (far, far + 10)]


def test_a_large_range_is_fetched_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_PIECE_BYTES", MEGABYTE)
    ranges = [(0, 2 * MEGABYTE + 1), (2 * MEGABYTE + 1, 5)]
    bounds = [0, MEGABYTE, 2 * MEGABYTE, 2 * MEGABYTE + 1, 2 * MEGABYTE + 6]
    assert pieces_of(ranges, 1 << 30) == list(pairwise(bounds))


def test_a_range_after_the_end_of_the_object_is_cut() -> None:
    assert pieces_of([(95, 1 << 60), (1 << 61, 9)], 100) == [(95, 100)]


def test_bytes_that_are_not_held_are_requested() -> None:
    fetched: list[tuple[int, int]] = []

    def fetch(start: int, length: int) -> memoryview:
        fetched.append((start, length))
        return memoryview(DATA)[start : start + length]

    held = [(start, memoryview(DATA)[start:end]) for start, end in ((0, 10), (10, 15), (900, 910))]
    opened = RangeInput(len(DATA), held, fetch)
    reads = ((0, 10), (5, 10), (12, 20), (890, 30), (905, 5), (len(DATA) - 5, 100), (5000, 1))
    for start, length in reads:
        opened.seek(start)
        assert opened.read(length) == DATA[start : start + length]
    assert fetched == [(15, 17), (890, 30), (len(DATA) - 5, 5)]
