"""An HTTP proxy on this machine that makes a server as far away as a cloud.

It waits before it passes on a request, limits the bytes per second that each connection downloads,
and counts requests. `/-/seen` returns the requests since the last call of it. Emulators that list
from the start whatever the offset are corrected: entries before it are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from asyncio import StreamReader, StreamWriter
from urllib.parse import unquote_plus

_CHUNK_BYTES = 256 * 1024
_HEAD_BYTES = 64 * 1024
_OFFSET = re.compile(r"&(?:start-after|startFrom)=([^& ]+)")
_ENTRY = re.compile(rb"<(Blob|Contents)>.*?<(Name|Key)>(.*?)</\2>.*?</\1>", re.DOTALL)


class SlowProxy:
    """Passes requests on.

    Args:
        upstream: port of the server on this machine.
        delay_s: seconds before each request is passed on.
        bytes_per_second: of answers, per connection; 0 for no limit.
    """

    def __init__(self, upstream: int, delay_s: float, bytes_per_second: float) -> None:
        self._upstream = upstream
        self._delay_s = delay_s
        self._bytes_per_second = bytes_per_second
        self._seen: list[str] = []

    async def serve(self, port: int) -> None:
        """Serve until cancelled."""
        server = await asyncio.start_server(
            self._connected, "127.0.0.1", port, limit=_HEAD_BYTES, backlog=1000
        )
        async with server:
            await server.serve_forever()

    async def _connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        upstream, passed_on = await asyncio.open_connection(
            "127.0.0.1", self._upstream, limit=_CHUNK_BYTES
        )
        offsets: list[str] = []
        answers = asyncio.create_task(self._pass_back(upstream, writer, offsets))
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                request, length = _parsed(head)
                if request == "GET /-/seen":
                    seen, self._seen = json.dumps(self._seen).encode(), []
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(seen))
                    writer.write(seen)
                    continue
                body = await reader.readexactly(length)
                self._seen.append(request)
                # An answer is complete before the client sends the next request.
                offsets[:] = [unquote_plus(offset) for offset in _OFFSET.findall(request)]
                await asyncio.sleep(self._delay_s)
                passed_on.write(head + body)
                await passed_on.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            answers.cancel()
            passed_on.close()
            writer.close()

    async def _pass_back(
        self, upstream: StreamReader, writer: StreamWriter, offsets: list[str]
    ) -> None:
        free_at = 0.0
        while data := await upstream.read(_CHUNK_BYTES):
            if offsets:
                data = await _from_offset(data, upstream, offsets.pop().encode())
            writer.write(data)
            await writer.drain()
            if self._bytes_per_second:
                now = time.monotonic()
                free_at = max(now, free_at) + len(data) / self._bytes_per_second
                await asyncio.sleep(free_at - now)
        writer.close()


async def _from_offset(start: bytes, upstream: StreamReader, offset: bytes) -> bytes:
    """The answer that starts so, a listing, without the entries before an offset."""
    while (end := start.find(b"\r\n\r\n")) < 0:
        start += await upstream.read(_CHUNK_BYTES)
    head, body = start[:end].lower(), start[end + 4 :]
    length = re.search(rb"content-length: *(\d+)", head)
    while len(body) < int(length[1]) if length else not body.endswith(b"\r\n0\r\n\r\n"):
        body += await upstream.read(_CHUNK_BYTES)
    if length is None:
        chunks, body = body, b""
        while chunks:
            size, _, chunks = chunks.partition(b"\r\n")
            body += chunks[: int(size, 16)]
            chunks = chunks[int(size, 16) + 2 :]
    body = _ENTRY.sub(lambda entry: entry[0] if entry[3] >= offset else b"", body)
    kept = [
        line
        for line in start[:end].split(b"\r\n")
        if not line.lower().startswith((b"content-length", b"transfer-encoding"))
    ]
    return b"\r\n".join([*kept, b"Content-Length: %d" % len(body), b"", body])


def _parsed(head: bytes) -> tuple[str, int]:
    """Method, target and range of a request, and the length of its body."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = dict(line.lower().split(":", 1) for line in lines if line)
    asked = f"{method} {target}{headers.get('range', '')}"
    return asked, int(headers.get("content-length", 0))


def main() -> None:
    """Serve until terminated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", type=int, required=True)
    parser.add_argument("--delay-ms", type=float, required=True)
    parser.add_argument("--bytes-per-second", type=float, required=True)
    given = parser.parse_args()
    proxy = SlowProxy(given.upstream, given.delay_ms / 1000, given.bytes_per_second)
    asyncio.run(proxy.serve(given.port))


if __name__ == "__main__":
    main()
