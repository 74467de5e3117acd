"""The requests of Google's XML API that fake-gcs-server lacks, translated into its JSON API.

The client puts objects by the XML API; fake-gcs-server has only its reads and listings. The
condition (`x-goog-if-generation-match: 0`) is passed on, and fake-gcs-server itself decides it.
"""

from __future__ import annotations

import json
import sys
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote, urlencode, urlsplit

_BOUNDARY = "part-of-an-upload-6f1c"
_OWN_HEADERS = frozenset({"connection", "transfer-encoding", "content-length", "host"})


class _Handler(BaseHTTPRequestHandler):
    upstream: str
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        method, target = self.command, self.path
        split = urlsplit(target)
        if method == "PUT" and not split.query:
            bucket, _, name = split.path.lstrip("/").partition("/")
            method = "POST"
            target, body = self._translated(unquote(bucket), unquote(name), body)
        connection = HTTPConnection(self.upstream, timeout=60)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _OWN_HEADERS}
        headers["Content-Length"] = str(len(body))
        if method != self.command:
            headers = {k: v for k, v in headers.items() if k.lower() != "content-type"}
            headers["Content-Type"] = f"multipart/related; boundary={_BOUNDARY}"
        connection.request(method, target, body, headers)
        found = connection.getresponse()
        data = found.read()
        self.send_response(found.status)
        for header, value in found.getheaders():
            if header.lower() not in _OWN_HEADERS:
                self.send_header(header, value)
        length = found.getheader("Content-Length") if method == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        if self.command == "PUT" and found.getheader("ETag") is None:
            self.send_header("ETag", '"put"')
        self.end_headers()
        if method != "HEAD":
            self.wfile.write(data)
        connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

    def _translated(self, bucket: str, name: str, body: bytes) -> tuple[str, bytes]:
        source = self.headers.get("x-goog-copy-source")
        if source is not None:
            other, _, key = unquote(source).lstrip("/").partition("/")
            parts = [quote(part, safe="") for part in (other, key, bucket, name)]
            return "/storage/v1/b/{}/o/{}/rewriteTo/b/{}/o/{}".format(*parts), b""
        # Only uploads of several parts have a condition there.
        query = {"uploadType": "multipart"}
        generation = self.headers.get("x-goog-if-generation-match")
        if generation is not None:
            query["ifGenerationMatch"] = generation
        part = f"--{_BOUNDARY}\r\nContent-Type: "
        metadata = json.dumps({"name": name})
        start = (
            f"{part}application/json\r\n\r\n{metadata}\r\n{part}application/octet-stream\r\n\r\n"
        )
        data = start.encode() + body + f"\r\n--{_BOUNDARY}--\r\n".encode()
        return f"/upload/storage/v1/b/{quote(bucket, safe='')}/o?{urlencode(query)}", data


if __name__ == "__main__":
    # The port of the fake-gcs-server, and that of this server.
    _Handler.upstream = f"127.0.0.1:{sys.argv[1]}"
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Handler)
    server.daemon_threads = True
    server.serve_forever()
