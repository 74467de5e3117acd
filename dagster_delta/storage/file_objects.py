"""Objects of a store as file objects: ranges of one to read, and a new one to write."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import pyarrow as pa


class RangeInput:
    """A file object for `pyarrow.PythonFile` that fetches only the ranges it reads.

    `held` are bytes that were fetched, each with the offset at which they start, in order.
    """

    def __init__(
        self,
        size_bytes: int,
        held: Sequence[tuple[int, memoryview]],
        fetch: Callable[[int, int], bytes | memoryview],
    ) -> None:
        self._size_bytes = size_bytes
        self._held = tuple(held)
        self._starts = [start for start, _ in held]
        self._fetch = fetch
        self._position = 0
        self.closed = False

    def read(self, size: int | None = -1) -> bytes | memoryview:
        """The next bytes, fewer at the end. Raises StorageFailure."""
        left = max(0, self._size_bytes - self._position)
        length = left if size is None or size < 0 else min(size, left)
        start, end = self._position, self._position + length
        self._position = end
        parts: list[bytes | memoryview] = []
        while start < end and (part := self._read_part(start, end - start)):
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_part(self, start: int, length: int) -> bytes | memoryview:
        """The first of some bytes, those that are held; all of them if none is."""
        index = bisect_right(self._starts, start)
        if index:
            offset, data = self._held[index - 1]
            part = data[start - offset :][:length]
            if len(part):
                return part
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
        """Release the bytes that are held, and what fetches others, with its own file."""
        if not self.closed:
            self.closed = True
            self._held, self._starts = (), []
            del self._fetch


class PendingFile(ABC):
    """A new object while it is written. It appears when it is closed, and not after an error: of a
    write, or of the block that it is the context of.

    `naming` makes a block that turns errors of the storage into those of the store.
    """

    def __init__(self, naming: Callable[[], AbstractContextManager[None]]) -> None:
        self._naming = naming
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

    def write(self, data: bytes | memoryview | pa.Buffer) -> int:
        """Append bytes and return their number. Raises StorageFailure."""
        if self.closed:
            raise ValueError("the file is closed")
        piece = memoryview(data)
        try:
            with self._naming():
                self._write(piece)
        except BaseException:
            self.discard()
            raise
        return piece.nbytes

    def close(self) -> None:
        """Make the object appear; closing again does nothing. Raises StorageFailure."""
        if self.closed:
            return
        self.closed = True
        try:
            with self._naming():
                self._publish()
        except BaseException:
            self._discard()
            raise

    def discard(self) -> None:
        """Give the object up, unless it was closed."""
        if not self.closed:
            self.closed = True
            self._discard()

    @abstractmethod
    def _write(self, data: memoryview) -> None:
        """Append bytes."""

    @abstractmethod
    def _publish(self) -> None:
        """Make the object appear."""

    @abstractmethod
    def _discard(self) -> None:
        """Remove what was written, as far as the storage allows. The error that is being raised
        matters more than one here.
        """
