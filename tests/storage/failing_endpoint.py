"""An S3 endpoint that passes requests on to another one, and answers some of them wrongly."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeAlias
from urllib.parse import urlsplit

__all__ = ["FailingEndpoint", "Way", "failing_endpoint"]

Way: TypeAlias = str
"""`503`, or a status and a code: an error. `reset`: no answer. `lost`: none to a request that took
effect. `cut`: the true answer, as far as half of its body. `page`: a web page with the status 200.
`unfinished page`: one that is no XML either. `unconditional`: a put without its condition."""

_PAGES = {"page": b"<html><body>login</body></html>", "unfinished page": b"<!doctype html><p>login"}
_NOT_PASSED_ON = {"expect", "transfer-encoding", "content-length", "connection", "date", "server"}


@dataclass
class FailingEndpoint:
    """What is answered wrongly. Thread-safe."""

    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of each request that was answered wrongly."""
    seen: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of each request."""
    _rule: tuple[str, str, Way, int] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def failing(
        self, method: str, part: str, way: Way, *, times: int = 1000
    ) -> Iterator[list[tuple[str, str]]]:
        """Answer the next requests of a method, with a text in their path, in a wrong way."""
        with self._lock:
            self._rule = (method, part, way, times)
            self.asked = []
        try:
            yield self.asked
        finally:
            with self._lock:
                self._rule = None

    def way_for(self, method: str, path: str) -> Way | None:
        """How to answer a request; None for the true answer."""
        with self._lock:
            self.seen.append((method, path))
            if self._rule is None:
                return None
            asked, part, way, times = self._rule
            if method != asked or part not in path or len(self.asked) >= times:
                return None
            self.asked.append((method, path))
            return way


@contextmanager
def failing_endpoint(
    behind: str, endpoint: FailingEndpoint | None = None
) -> Iterator[FailingEndpoint]:
    """An endpoint in front of the one with the URL `behind`."""
    endpoint = endpoint or FailingEndpoint()
    places = {"endpoint": endpoint, "upstream": urlsplit(behind).netloc}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), places))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    endpoint: FailingEndpoint
    upstream: str
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self) -> None:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        body = self._body()
        way = self.endpoint.way_for(self.command, self.path)
        if way is not None and way[0].isdigit():
            status, _, code = way.partition(" ")
            self._send(
                int(status), {}, f"<Error><Code>{code or 'SlowDown'}</Code></Error>".encode()
            )
        elif way == "reset":
            self._reset()
        elif way in _PAGES:
            self._send(200, {"Content-Type": "text/html"}, _PAGES[way])
        else:
            if way == "unconditional":
                del self.headers["If-None-Match"]
            self._pass_on(body, is_cut=way == "cut", is_lost=way == "lost")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _pass_on(self, body: bytes, *, is_cut: bool, is_lost: bool) -> None:
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _NOT_PASSED_ON}
        connection = HTTPConnection(self.upstream, timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True)
        headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        found = connection.getresponse()
        data = found.read()
        if is_lost:
            self._reset()
            return
        given = {k: v for k, v in found.getheaders() if k.lower() not in _NOT_PASSED_ON}
        length = found.getheader("Content-Length") if self.command == "HEAD" else None
        self._send(found.status, given, data, length=length, is_cut=is_cut)
        connection.close()

    def _send(
        self,
        status: int,
        headers: dict[str, str],
        data: bytes,
        *,
        length: str | None = None,
        is_cut: bool = False,
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(data[: len(data) // 2] if is_cut else data)
        if is_cut:
            self.wfile.flush()
            self._reset()

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()
