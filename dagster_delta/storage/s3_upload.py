"""Objects that are written in parts and whose upload S3 has confirmed.

Arrow's client treats every answer with the status 200 as success, even the web page that a proxy
returns for an upload. So small objects are put by botocore, whose answers are checked, and for
larger objects the size is requested afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dagster_delta.storage.object_store import ObjectMeta
from dagster_delta.storage.s3_requests import S3Requests

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["S3Upload"]

_PUT_BYTES = 5 * 1024 * 1024
"""Objects up to this size are put in one request."""


class S3Upload:
    """A file object for `pyarrow.PythonFile`. The object appears when it is closed.

    Args:
        path: of the object, relative to the table root.
        requests: names failures.
        put: creates the whole object.
        open_stream: opens the `pyarrow.NativeFile` that uploads it in parts.
        head: requests size and time of the object.
    """

    def __init__(
        self,
        path: str,
        requests: S3Requests,
        *,
        put: Callable[[str, bytes], None],
        open_stream: Callable[[str], pa.NativeFile],
        head: Callable[[str], ObjectMeta | None],
    ) -> None:
        self._path = path
        self._requests = requests
        self._put, self._open_stream, self._head = put, open_stream, head
        self._held: list[bytes] = []
        self._size_bytes = 0
        self._stream: pa.NativeFile | None = None
        self.closed = False

    def write(self, data: bytes | pa.Buffer) -> int:
        """Write some bytes and return their number. Raises StorageFailure."""
        piece = bytes(data)
        self._size_bytes += len(piece)
        self._held.append(piece)
        if self._stream is not None or self._size_bytes > _PUT_BYTES:
            with self._requests.naming_failures(self._path):
                if self._stream is None:
                    self._stream = self._open_stream(self._path)
                for held in self._held:
                    self._stream.write(held)
            self._held = []
        return len(piece)

    def flush(self) -> None:
        """Does nothing: the object appears only when it is closed."""

    def tell(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    def close(self) -> None:
        """Create the object. Raises StorageFailure, also if the object then has another size."""
        if self.closed:
            return
        self.closed = True
        if self._stream is None:
            self._put(self._path, b"".join(self._held))
            return
        with self._requests.naming_failures(self._path):
            self._stream.close()
        found = self._head(self._path)
        if found is None or found.size_bytes != self._size_bytes:
            size = "no such object" if found is None else f"an object of {found.size_bytes} bytes"
            reason = f"an upload of {self._size_bytes} bytes was confirmed, and there is {size}"
            raise self._requests.failure(reason, self._path)
