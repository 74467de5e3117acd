"""An S3 server in memory for benchmarks.

It knows what the two libraries ask for: objects and ranges of them, conditional puts, listings by
page, and deletes of many objects. Nothing is signed or checked.
"""

from __future__ import annotations

import argparse
import bisect
import hashlib
import re
import time
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl, unquote
from xml.sax.saxutils import escape, unescape

_PAGE = 1000
_KEY = re.compile(r"<Key>(.*?)</Key>")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class S3Server:
    """The ASGI application."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, str, float]] = {}
        self._keys: list[str] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        parts = []
        while True:
            message = await receive()
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        method, key = scope["method"], unquote(scope["path"]).lstrip("/")
        query = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        status, found, body = self._answer(method, key, query, headers, b"".join(parts))
        length = found.pop("content-length", str(len(body)))
        given = {**found, "content-length": length}
        start = [(name.encode(), value.encode()) for name, value in given.items()]
        await send({"type": "http.response.start", "status": status, "headers": start})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    def _answer(
        self, method: str, key: str, query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        bucket, _, name = key.partition("/")
        if not name:
            if method == "POST":
                return 200, {}, self._delete_many(bucket, body)
            return 200, {}, self._list(bucket, query) if method == "GET" else b""
        if method == "PUT":
            return self._put(key, headers, body)
        if method == "DELETE":
            self._delete(key)
            return 204, {}, b""
        return self._get(key, headers, is_head=method == "HEAD")

    def _put(
        self, key: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        if headers.get("if-none-match") == "*" and key in self._objects:
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        self._store(key, body, etag)
        return 200, {"etag": etag}, b""

    def _store(self, key: str, body: bytes, etag: str) -> None:
        if key not in self._objects:
            bisect.insort(self._keys, key)
        self._objects[key] = (body, etag, time.time())

    def _delete(self, key: str) -> None:
        if self._objects.pop(key, None) is not None:
            del self._keys[bisect.bisect_left(self._keys, key)]

    def _delete_many(self, bucket: str, body: bytes) -> bytes:
        names = [unescape(name) for name in _KEY.findall(body.decode())]
        for name in names:
            self._delete(f"{bucket}/{name}")
        deleted = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
        return f"<DeleteResult>{deleted}</DeleteResult>".encode()

    def _get(
        self, key: str, headers: dict[str, str], *, is_head: bool
    ) -> tuple[int, dict[str, str], bytes]:
        found = self._objects.get(key)
        if found is None:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        data, etag, modified = found
        given = {"etag": etag, "last-modified": formatdate(modified, usegmt=True)}
        asked = _RANGE.fullmatch(headers.get("range", ""))
        if asked is None or is_head:
            return 200, {**given, "content-length": str(len(data))}, data
        if asked[1]:
            start, end = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        else:
            start, end = max(0, len(data) - int(asked[2])), len(data)
        if start >= end:
            return 416, {}, b"<Error><Code>InvalidRange</Code></Error>"
        return (
            206,
            {**given, "content-range": f"bytes {start}-{end - 1}/{len(data)}"},
            data[start:end],
        )

    def _list(self, bucket: str, query: dict[str, str]) -> bytes:
        prefix = f"{bucket}/{query.get('prefix', '')}"
        after = query.get("continuation-token") or query.get("start-after") or ""
        delimiter, most = query.get("delimiter"), int(query.get("max-keys", _PAGE))
        entries: list[str] = []
        index = max(
            bisect.bisect_left(self._keys, prefix),
            bisect.bisect_right(self._keys, f"{bucket}/{after}") if after else 0,
        )
        last = ""
        while index < len(self._keys) and self._keys[index].startswith(prefix):
            if len(entries) == most:
                break
            key = self._keys[index]
            folder, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("",) * 3
            if slash:
                common = prefix + folder + slash
                entries.append(
                    f"<CommonPrefixes><Prefix>{escape(common[len(bucket) + 1 :])}</Prefix>"
                    "</CommonPrefixes>"
                )
                last = common + "\U0010ffff"
                index = bisect.bisect_right(self._keys, last)
                continue
            data, etag, modified = self._objects[key]
            moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(modified))
            entries.append(
                f"<Contents><Key>{escape(key[len(bucket) + 1 :])}</Key><Size>{len(data)}</Size>"
                f"<LastModified>{moment}</LastModified><ETag>{escape(etag)}</ETag></Contents>"
            )
            last = key
            index += 1
        more = index < len(self._keys) and self._keys[index].startswith(prefix)
        token = f"<NextContinuationToken>{escape(last[len(bucket) + 1 :])}</NextContinuationToken>"
        return (
            f"<ListBucketResult><Name>{bucket}</Name><KeyCount>{len(entries)}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token if more else ''}"
            f"{''.join(entries)}</ListBucketResult>"
        ).encode()


def main() -> None:
    """Serve until terminated."""
    import uvicorn

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvicorn.run(
        S3Server(),
        host="127.0.0.1",
        port=parser.parse_args().port,
        log_level="error",
        access_log=False,
        # Clients keep idle connections longer than the default.
        timeout_keep_alive=600,
        server_header=False,
        date_header=False,
    )


if __name__ == "__main__":
    main()
