"""An HTTP proxy in front of an S3 server on this machine that spoils chosen requests."""

from __future__ import annotations

import http.client
import http.server
import socket
import struct
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Literal, Self

FaultKind = Literal["503", "500", "reset", "cut", "lost reply", "lost 500", "html", "slow"]
FAULTS: tuple[FaultKind, ...] = (
    "503", "500", "reset", "cut", "lost reply", "lost 500", "html", "slow",
)  # fmt: skip
"""503, 500: refused with that status. reset: the connection ends before the request takes effect.
cut: half of the body arrives. lost reply, lost 500: it takes effect, and the connection ends or 500
is answered. html: 200 with a page, as captive portals answer. slow: the reply comes late."""

_HOP_HEADERS = {"transfer-encoding", "connection", "content-length", "date", "server"}
_SLOW_S = 1.5


@dataclass(frozen=True)
class Strike:
    """Which requests are spoiled, counted from 1 since the strike was set."""

    kind: FaultKind
    first: int
    count: int = 1


class S3Proxy:
    """A proxy that runs while it is a context; `endpoint` is its URL."""

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.small_pages = False
        """Whether each listing comes in pages of two keys."""
        self.one_put_at_a_time = False
        """Whether puts wait for each other, for servers that check and store in two steps."""
        self.put_lock = threading.Lock()
        self.requests = 0
        """Requests since `strike` was called."""
        self._strike: Strike | None = None
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def strike(self, strike: Strike | None) -> None:
        """Spoil these requests from now on, or none."""
        with self._lock:
            self._strike, self.requests = strike, 0

    def next_fault(self) -> FaultKind | None:
        """Count a request; how it is spoiled."""
        with self._lock:
            self.requests += 1
            strike = self._strike
        if strike is None or not strike.first <= self.requests < strike.first + strike.count:
            return None
        return strike.kind


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: S3Proxy

    def log_message(self, *_: object) -> None:
        pass

    def _forward(self) -> None:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        body = self._read_body()
        fault = self.proxy.next_fault()
        if fault in {"503", "500"}:
            self._refuse(int(fault))
        elif fault == "reset":
            self._reset()
        elif fault == "html":
            self._send(200, b"<html>Please log in</html>", [("Content-Type", "text/html")])
        else:
            self._answer(body, fault)

    def _answer(self, body: bytes, fault: FaultKind | None) -> None:
        """Let the request take effect, and spoil the reply."""
        waits = self.proxy.one_put_at_a_time and self.command == "PUT"
        with self.proxy.put_lock if waits else nullcontext():
            status, headers, answer, length = self._ask_upstream(body)
        if fault == "lost reply":
            self._reset()
        elif fault == "lost 500":
            self._refuse(500)
        else:
            time.sleep(_SLOW_S if fault == "slow" else 0)
            self._send(status, answer, headers, length=length, cut=fault == "cut")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward  # noqa: N815

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def _ask_upstream(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes, int]:
        path = self.path
        if self.proxy.small_pages and "list-type=2" in path:
            path += "&max-keys=2"
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.upstream_port, timeout=60)
        connection.putrequest(self.command, path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in {"expect", "transfer-encoding", "content-length", "connection"}:
                connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        answer = b"" if self.command == "HEAD" else response.read()
        length = int(response.getheader("Content-Length") or len(answer))
        headers = [pair for pair in response.getheaders() if pair[0].lower() not in _HOP_HEADERS]
        connection.close()
        return response.status, headers, answer, length if self.command == "HEAD" else len(answer)

    def _send(
        self,
        status: int,
        body: bytes,
        headers: list[tuple[str, str]],
        *,
        length: int | None = None,
        cut: bool = False,
    ) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(
                body[: len(body) // 2] if cut else b"" if self.command == "HEAD" else body
            )
            self.wfile.flush()
        if cut:
            self._reset()

    def _refuse(self, status: int) -> None:
        code = "SlowDown" if status == 503 else "InternalError"
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>soak</Message></Error>'
        self._send(status, body.encode(), [("Content-Type", "application/xml")])

    def _reset(self) -> None:
        with suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
        self.close_connection = True
