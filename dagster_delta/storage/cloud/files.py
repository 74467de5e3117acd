"""Objects of cloud storage as files for Arrow."""

from __future__ import annotations

import io
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dagster_delta.storage.object_store import FetchBudget

if TYPE_CHECKING:
    # It loads the client of the clouds, and the files of HDFS are open here too.
    from dagster_delta.storage.cloud.requests import CloudRequests

END_BYTES = 64 * 1024
"""Bytes that opening an object fetches: small objects whole, and the footers of others."""
_GAP_BYTES = 64 * 1024
"""Ranges that are not farther apart are fetched as one."""
_PIECE_BYTES = 1024 * 1024
"""Least bytes of a piece of a range, if ranges are divided."""
_MAX_PIECE_BYTES = 8 * 1024 * 1024
_CONNECTIONS = 8
"""Pieces of one object that are fetched at a time."""
_PUT_BYTES = 5 * 1024 * 1024
"""Objects up to this size are put in one request."""


class CloudInput:
    """A file object for `pyarrow.PythonFile` that fetches only the ranges it reads.

    `held` are bytes that were fetched, each with the offset at which they start.
    """

    def __init__(
        self,
        size_bytes: int,
        held: Iterable[tuple[int, memoryview]],
        fetch: Callable[[int, int], bytes | memoryview],
    ) -> None:
        self._size_bytes = size_bytes
        self._held = tuple(held)
        self._fetch = fetch
        self._position = 0
        self.closed = False

    def read(self, size: int | None = -1) -> bytes | memoryview:
        """The next bytes, fewer at the end. Raises StorageFailure."""
        start = self._position
        left = max(0, self._size_bytes - start)
        length = left if size is None or size < 0 else min(size, left)
        self._position = start + length
        if length == 0:
            return b""
        return self._bytes(start, length)

    def _bytes(self, start: int, length: int) -> bytes | memoryview:
        for offset, held in self._held:
            first = start - offset
            if first >= 0 and first + length <= len(held):
                return held[first : first + length]
        return self._fetch(start, length)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}
        self._position = max(0, base[whence] + offset)
        return self._position

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._position

    def close(self) -> None:
        """Release the bytes that are held."""
        self.closed = True
        self._held = ()


class CloudRanges(CloudInput):
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
        self._request()
        try:
            for first, _ in list(self._requested.values())[:1]:
                first.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the pieces. Those that are being fetched are dropped when they arrive."""
        super().close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._waiting.clear()
        for start in list(self._requested):
            self._release(start)

    def _bytes_of(self, ranges: Iterable[tuple[int, int]]) -> dict[int, int]:
        found = dict.fromkeys(self._starts, 0)
        for start, length in ranges:
            end = start + length
            first = max(0, bisect_right(self._starts, start) - 1)
            for piece in self._starts[first : bisect_left(self._starts, end)]:
                piece_end = piece + self._lengths[piece]
                found[piece] += max(0, min(end, piece_end) - max(start, piece))
        return found

    def _request(self) -> None:
        while self._waiting:
            start = next(iter(self._waiting))
            length = self._lengths[start]
            if not self._budget.take(length):
                return
            del self._waiting[start]
            future = self._threads.submit(self._fetch, start, length)
            self._requested[start] = future, self._wanted[start]

    def _release(self, start: int) -> None:
        del self._requested[start]
        self._budget.give_back(self._lengths[start])

    def _bytes(self, start: int, length: int) -> bytes | memoryview:
        self._request()
        parts: list[bytes | memoryview] = []
        while length and (part := self._part(start, length)):
            parts.append(part)
            start, length = start + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _part(self, start: int, length: int) -> bytes | memoryview:
        """The first of some bytes: those in one piece, or before the next one."""
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
            self._release(piece)
            self._request()
        return part


class PendingFile:
    """A file object for `pyarrow.PythonFile` that appears when it is closed, unless a write
    failed.
    """

    def __init__(self) -> None:
        self._size_bytes = 0
        self._is_broken = False
        self.closed = False

    def flush(self) -> None:
        """Does nothing: the file appears only when it is closed."""

    def tell(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    def close(self) -> None:
        """Make the file appear, unless a write failed. Raises StorageFailure."""
        if not self.closed:
            self.closed = True
            if not self._is_broken:
                self._publish()

    def _publish(self) -> None:
        raise NotImplementedError


class CloudOutput(PendingFile):
    """An object of cloud storage while it is written."""

    def __init__(
        self,
        path: str,
        requests: CloudRequests,
        *,
        put: Callable[[str, bytes], None],
        open_writer: Callable[[str], Any],
    ) -> None:
        super().__init__()
        self._path = path
        self._requests = requests
        self._put, self._open_writer = put, open_writer
        self._held: list[bytes] = []
        self._writer: Any = None

    def write(self, data: Any) -> int:  # noqa: ANN401
        """Write some bytes and return their number. Raises StorageFailure."""
        piece = bytes(data)
        self._size_bytes += len(piece)
        self._held.append(piece)
        if self._writer is not None or self._size_bytes > _PUT_BYTES:
            held, self._held = self._held, []
            self._upload(held)
        return len(piece)

    def _publish(self) -> None:
        if self._writer is None:
            self._put(self._path, b"".join(self._held))
            return
        with self._requests.naming_failures(self._path):
            self._writer.close()

    def _upload(self, pieces: list[bytes]) -> None:
        with self._requests.naming_failures(self._path):
            try:
                if self._writer is None:
                    self._writer = self._open_writer(self._path)
                for piece in pieces:
                    self._writer.write(piece)
            except BaseException as error:
                self._is_broken = True
                if self._writer is not None:
                    # The parts that were uploaded are deleted.
                    with suppress(Exception):
                        self._writer.__exit__(type(error), error, None)
                raise


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
