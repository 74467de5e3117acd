"""A proxy in front of a NameNode that breaks its connection at one request.

The client sends frames with their length before them, and each names its method.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

Way = Literal["reset", "lost"]
"""Before the request arrives, or after it took effect and before its reply."""

_GREETING_BYTES = 7
# Name and length of the method, then those of the protocol.
_METHOD = re.compile(rb"\x0a.([A-Za-z0-9]+)\x12.org\.apache\.hadoop\.hdfs\.protocol", re.DOTALL)


@dataclass
class BreakingNameNode:
    """What a proxy saw and does."""

    url: str
    """Of the proxy, with the scheme."""
    seen: list[str] = field(default_factory=list)
    """The method of each request but those that keep leases alive, in order."""
    broken: int = 0
    """How many requests failed."""
    way: Way | None = None
    step: int = 0
    """The number of the request in `seen` that fails."""
    times: int = 1
    """How many requests fail from there on."""

    @contextmanager
    def failing(self, way: Way, step: int, times: int = 1) -> Iterator[None]:
        """Count requests from here, and let some fail."""
        self.seen, self.broken = [], 0
        self.way, self.step, self.times = way, step, times
        try:
            yield
        finally:
            self.way = None

    def next_way(self, frame: bytes) -> Way | None:
        """How a request fails; None if it does not."""
        method = _METHOD.search(frame)
        if method is None or method[1] == b"renewLease":
            return None
        self.seen.append(method[1].decode())
        number = len(self.seen) - 1
        if self.way is None or not self.step <= number < self.step + self.times:
            return None
        self.broken += 1
        return self.way


@contextmanager
def breaking_namenode(url: str) -> Iterator[BreakingNameNode]:
    """A proxy in front of the NameNode at `url`."""
    host, _, port = url.partition("://")[2].partition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    made = BreakingNameNode(f"hdfs://127.0.0.1:{listener.getsockname()[1]}")
    lock = threading.Lock()

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection((host, int(port)))
            connection = _Connection(made, lock, client, server)
            for forward in (connection.forward_requests, connection.forward_replies):
                threading.Thread(target=forward, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield made
    listener.close()


@dataclass
class _Connection:
    proxy: BreakingNameNode
    lock: threading.Lock
    client: socket.socket
    server: socket.socket
    loses_reply: bool = False

    def forward_requests(self) -> None:
        with suppress(OSError, EOFError):
            self.server.sendall(_exactly(self.client, _GREETING_BYTES))
            while True:
                size = _exactly(self.client, 4)
                frame = _exactly(self.client, struct.unpack(">I", size)[0])
                with self.lock:
                    way = self.proxy.next_way(frame)
                if way == "reset":
                    break
                # Whatever reply comes next, its connection ends.
                self.loses_reply = way == "lost"
                self.server.sendall(size + frame)
        self.close()

    def forward_replies(self) -> None:
        with suppress(OSError):
            while (data := self.server.recv(65536)) and not self.loses_reply:
                self.client.sendall(data)
        self.close()

    def close(self) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _exactly(source: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        data = source.recv(size - len(parts))
        if not data:
            raise EOFError
        parts += data
    return bytes(parts)
