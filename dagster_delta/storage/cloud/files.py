"""Objects of cloud storage as files for Arrow."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from dagster_delta.storage.cloud.requests import CloudRequests

END_BYTES = 64 * 1024
"""Bytes that opening an object fetches: small objects whole, and the footers of others."""
_GAP_BYTES = 64 * 1024
"""Ranges that are not farther apart are fetched as one."""
_PUT_BYTES = 5 * 1024 * 1024
"""Objects up to this size are put in one request."""


class CloudInput:
    """A file object for `pyarrow.PythonFile` that fetches only the ranges it reads.

    Args:
        size_bytes: size of the object.
        held: bytes that were fetched, each with the offset at which they start.
        fetch: fetches bytes, by offset and length.
    """

    def __init__(
        self,
        size_bytes: int,
        held: Iterable[tuple[int, memoryview]],
        fetch: Callable[[int, int], bytes],
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


class CloudOutput:
    """A file object for `pyarrow.PythonFile`. The object appears when it is closed.

    Args:
        path: of the object, relative to the table root.
        requests: names failures.
        put: creates the whole object.
        open_writer: opens the `obstore` writer that uploads it in parts.
    """

    def __init__(
        self,
        path: str,
        requests: CloudRequests,
        *,
        put: Callable[[str, bytes], None],
        open_writer: Callable[[str], Any],
    ) -> None:
        self._path = path
        self._requests = requests
        self._put, self._open_writer = put, open_writer
        self._held: list[bytes] = []
        self._size_bytes = 0
        self._writer: Any = None
        self._is_broken = False
        self.closed = False

    def write(self, data: Any) -> int:  # noqa: ANN401
        """Write some bytes and return their number. Raises StorageFailure."""
        piece = bytes(data)
        self._size_bytes += len(piece)
        self._held.append(piece)
        if self._writer is not None or self._size_bytes > _PUT_BYTES:
            held, self._held = self._held, []
            self._upload(held)
        return len(piece)

    def flush(self) -> None:
        """Does nothing: the object appears only when it is closed."""

    def tell(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    def close(self) -> None:
        """Create the object, unless a write failed. Raises StorageFailure."""
        if self.closed:
            return
        self.closed = True
        if self._is_broken:
            return
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


def merged_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Offsets and lengths, in order, of ranges that are not near each other."""
    merged: list[tuple[int, int]] = []
    for offset, length in sorted(ranges):
        if merged and offset <= sum(merged[-1]) + _GAP_BYTES:
            start, size = merged[-1]
            merged[-1] = start, max(size, offset + length - start)
        else:
            merged.append((offset, length))
    return merged
