"""An endpoint that passes requests on to a cloud's, and answers some of them wrongly."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeAlias
from urllib.parse import urlsplit

Way: TypeAlias = str
"""`503`, or a status and a code: an error, with `Retry-After`. `refused`: no answer, and no
connection from then on. `reset`: no answer. `lost`: none to a request that took effect. `cut`: the
true answer, as far as half of its body. `short`: the same, but with that length. `stalled`: the
same, and the connection stays open. `drip`: the true answer, a few bytes at a time. `etag`: with
another ETag. `page`: a web page with the status 200. `unfinished page`: one that is no XML either.
`unconditional`: a put without its condition."""

_PAGES = {"page": b"<html><body>login</body></html>", "unfinished page": b"<!doctype html><p>login"}
_DRIPS = 20
_NOT_PASSED_ON = {"expect", "transfer-encoding", "content-length", "connection"}
_OF_THE_SERVER = {*_NOT_PASSED_ON, "date", "server"}


@dataclass
class FailingEndpoint:
    """What is answered wrongly. Thread-safe."""

    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of each request that was answered wrongly."""
    seen: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of each request."""
    listen: Callable[[bool], None] = lambda _: None
    """Accepts connections, or refuses them."""
    _rule: tuple[str, str, Way, int] | None = None
    _passed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def failing(
        self, method: str, part: str, way: Way, *, passed: int = 0, times: int = 1000
    ) -> Iterator[list[tuple[str, str]]]:
        """Answer the next requests of a method, with a text in their path, in a wrong way.

        Args:
            method: of the requests; empty for any.
            part: of the path and the query.
            way: the wrong answer.
            passed: how many of these requests are answered rightly before.
            times: how many are answered wrongly then.
        """
        with self._lock:
            self._rule, self._passed = (method, part, way, times), passed
            self.asked = []
        try:
            yield self.asked
        finally:
            with self._lock:
                self._rule = None
            self.listen(True)

    def way_for(self, method: str, path: str) -> Way | None:
        """How to answer a request; None for the true answer."""
        with self._lock:
            self.seen.append((method, path))
            if self._rule is None:
                return None
            asked, part, way, times = self._rule
            if asked not in {"", method} or part not in path or len(self.asked) >= times:
                return None
            if self._passed:
                self._passed -= 1
                return None
            self.asked.append((method, path))
            return way


@contextmanager
def failing_endpoint(
    behind: str, endpoint: FailingEndpoint | None = None
) -> Iterator[FailingEndpoint]:
    """An endpoint in front of the one with the URL `behind`."""
    endpoint = endpoint or FailingEndpoint()
    there = urlsplit(behind)
    places = {"endpoint": endpoint, "upstream": there.netloc}
    listener = _Listener(type("Handler", (_Handler,), places))
    endpoint.listen = listener.listen
    endpoint.listen(True)
    endpoint.url = f"http://127.0.0.1:{listener.port}{there.path}"
    try:
        yield endpoint
    finally:
        endpoint.listen(False)


class _Listener:
    """Starts and stops the server, always at the same port."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._handler = handler
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self.port = 0

    def listen(self, wanted: bool) -> None:
        with self._lock:
            if wanted and self._server is None:
                self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
                self._server.daemon_threads = True
                self.port = self._server.server_address[1]
                self._thread = threading.Thread(
                    target=self._server.serve_forever, args=(0.01,), daemon=True
                )
                self._thread.start()
            elif not wanted and self._server is not None and self._thread is not None:
                self._server.shutdown()
                self._server.server_close()
                self._thread.join()
                self._server = None


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
            body = f"<Error><Code>{code or 'SlowDown'}</Code></Error>".encode()
            self._send(int(status), {"Retry-After": "1"}, body)
        elif way in {"reset", "refused"}:
            if way == "refused":
                self.endpoint.listen(False)
            self._reset()
        elif way in _PAGES:
            self._send(200, {"Content-Type": "text/html"}, _PAGES[way])
        else:
            if way == "unconditional":
                del self.headers["If-None-Match"]
            self._pass_on(body, way)

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

    def _pass_on(self, body: bytes, way: Way | None) -> None:
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _NOT_PASSED_ON}
        connection = HTTPConnection(self.upstream, timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True)
        headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        found = connection.getresponse()
        data = found.read()
        connection.close()
        if way == "lost":
            self._reset()
            return
        given = {k: v for k, v in found.getheaders() if k.lower() not in _OF_THE_SERVER}
        if way == "etag":
            given = {k: '"0"' if k.lower() == "etag" else v for k, v in given.items()}
        if way == "short":
            data = data[: len(data) // 2]
        length = found.getheader("Content-Length") if self.command == "HEAD" else None
        self._send(found.status, given, data, length=length, way=way)

    def _send(
        self,
        status: int,
        headers: dict[str, str],
        data: bytes,
        *,
        length: str | None = None,
        way: Way | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if way in {"cut", "stalled"}:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            if way == "stalled":
                # Until the client gives up.
                self.connection.settimeout(60)
                self.rfile.read(1)
            self._reset()
        elif way == "drip":
            step = len(data) // _DRIPS + 1
            for start in range(0, len(data), step):
                self.wfile.write(data[start : start + step])
                self.wfile.flush()
                time.sleep(0.001)
        else:
            self.wfile.write(data)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()
