"""Ranges of an object that are fetched while others are decoded."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from dagster_delta.storage.file_objects import RangeInput
from dagster_delta.storage.object_store import FetchBudget

_GAP_BYTES = 64 * 1024
"""Ranges that are not farther apart are fetched as one."""
_PIECE_BYTES = 1024 * 1024
"""Least bytes of a piece of a range, if ranges are divided."""
_MAX_PIECE_BYTES = 8 * 1024 * 1024
_CONNECTIONS = 8
"""Pieces of one object that are fetched at a time."""


class CloudRanges(RangeInput):
    """An object of which some ranges are fetched ahead of reading them, in pieces and over several
    connections. Each byte is read once: a piece is released when its bytes of ranges were read.
    The ranges are read from the start on, at the same pace; `budget` bytes are fetched ahead.
    """

    def __init__(
        self,
        size_bytes: int,
        ranges: Sequence[tuple[int, int]],
        fetch: Callable[[int, int], memoryview],
        budget: FetchBudget,
    ) -> None:
        super().__init__(size_bytes, (), fetch)
        self._budget = budget
        # A footer may name bytes after the end.
        inside = [(start, min(length, size_bytes - start)) for start, length in ranges]
        self._lengths = dict(pieces_of(inside, budget.max_bytes))
        self._starts = sorted(self._lengths)
        self._waiting = dict.fromkeys(self._lengths)
        """The pieces that were not requested, in the order in which they are read."""
        self._requested: dict[int, tuple[Future[bytes | memoryview], int]] = {}
        """Each with the number of its bytes of ranges that were not read."""
        self._wanted = self._bytes_of(inside)
        self._threads = ThreadPoolExecutor(_CONNECTIONS, "delta-fetch")
        self._request_waiting()
        try:
            for first, _ in list(self._requested.values())[:1]:
                first.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the pieces. Those that are being fetched are dropped when they arrive."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._waiting.clear()
        for start in list(self._requested):
            self._release_bytes(start)
        super().close()

    def _bytes_of(self, ranges: Iterable[tuple[int, int]]) -> dict[int, int]:
        found = dict.fromkeys(self._starts, 0)
        for start, length in ranges:
            end = start + length
            first = max(0, bisect_right(self._starts, start) - 1)
            for piece in self._starts[first : bisect_left(self._starts, end)]:
                piece_end = piece + self._lengths[piece]
                found[piece] += max(0, min(end, piece_end) - max(start, piece))
        return found

    def _request_waiting(self) -> None:
        while self._waiting:
            start = next(iter(self._waiting))
            length = self._lengths[start]
            if not self._budget.take(length):
                return
            del self._waiting[start]
            future = self._threads.submit(self._fetch, start, length)
            self._requested[start] = future, self._wanted[start]

    def _release_bytes(self, start: int) -> None:
        del self._requested[start]
        self._budget.give_back(self._lengths[start])

    def _read_part(self, start: int, length: int) -> bytes | memoryview:
        """The first of some bytes: those in one piece, or before the next one."""
        self._request_waiting()
        index = bisect_right(self._starts, start)
        piece = self._starts[index - 1] if index else 0
        end = piece + self._lengths.get(piece, 0)
        if start >= end:
            after = self._starts[index] if index < len(self._starts) else start + length
            return self._fetch(start, min(length, after - start))
        if piece not in self._requested:
            # The rest of the piece is not fetched ahead.
            self._waiting.pop(piece, None)
            return self._fetch(start, min(length, end - start))
        future, unread = self._requested[piece]
        part = future.result()[start - piece :][:length]
        if unread > len(part):
            self._requested[piece] = future, unread - len(part)
        else:
            self._release_bytes(piece)
            self._request_waiting()
        return part


def pieces_of(ranges: Iterable[tuple[int, int]], max_bytes: int) -> list[tuple[int, int]]:
    """Offsets and lengths of pieces of ranges, in the order in which they are read if all ranges
    are read at the same pace. Small ranges near each other are one piece.

    `max_bytes` should hold two pieces of each range, if the ranges have more.
    """
    found = sorted((start, length) for start, length in ranges if length > 0)
    most = _MAX_PIECE_BYTES
    if sum(length for _, length in found) > max_bytes:
        share = max_bytes // (2 * len(found)) // _PIECE_BYTES * _PIECE_BYTES
        most = min(max(share, _PIECE_BYTES), most)
    merged: list[tuple[int, int]] = []
    for offset, length in found:
        if merged and offset <= sum(merged[-1]) + _GAP_BYTES:
            start, size = merged[-1]
            together = max(size, offset + length - start)
            if together <= most:
                merged[-1] = start, together
                continue
        merged.append((offset, length))
    pieces = [
        (done / size, start + done, min(most, size - done))
        for start, size in merged
        for done in range(0, size, most)
    ]
    return [(start, size) for _, start, size in sorted(pieces)]
