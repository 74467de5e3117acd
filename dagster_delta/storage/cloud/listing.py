"""Listings of cloud storage, page by page.

The client lists everything below a prefix, from an offset; it has no listing of one directory that
starts at an offset. So names in sub-directories are skipped, and if there are many, the listing
starts again after their directory.

Clouds list in the order of whole keys, but Azure accounts with a hierarchical namespace, and some
providers with the API of S3, list the content of a directory right after its name: `a/x` before
`a-b`. There, a listing that broke off starts again at its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import obstore

from dagster_delta.storage.cloud.client import CloudClient
from dagster_delta.storage.cloud.requests import CloudRequests
from dagster_delta.storage.object_store import ObjectMeta

_LAST_CHARACTER = "\U0010ffff"
"""Comes after all others."""


class CloudListing:
    """The objects of one directory. Used once.

    `prefix` (the key of the table's root) and `folder` (a directory below it) end with a slash, or
    are empty. Clouds return at most `page` entries, or a multiple of it.
    """

    def __init__(
        self,
        client: CloudClient,
        requests: CloudRequests,
        *,
        prefix: str,
        folder: str,
        page: int = 1000,
    ) -> None:
        self._client, self._requests = client, requests
        self._page = page
        self._prefix, self._folder = prefix, folder
        self._base = prefix + folder
        self._pages: Any = None
        self._after = ""
        """The key after which a listing starts that is started now."""
        self._seen: set[str] | None = None if client.lists_in_order else set()
        """The keys that were listed, where their order does not show it."""

    def direct(self, start: str) -> Iterator[ObjectMeta]:
        """The objects directly in the directory whose name is `>= start`, in order."""
        # The listing starts after the given name: this one is surely before it. The client refuses
        # "." as a name.
        self._after = self._base + start[:-1].rstrip(".")
        skipped = 0
        for meta in self._objects(iter(self._request, [])):
            name = meta.path[len(self._folder) :]
            directory, slash, _ = name.partition("/")
            if not slash:
                if name >= start:
                    yield meta
                continue
            skipped += 1
            if skipped >= self._page:
                skipped = 0
                self._pages, self._after = None, f"{self._base}{directory}/{_LAST_CHARACTER}"

    def recursive(self) -> Iterator[ObjectMeta]:
        """The objects at any depth. Each page is requested while the one before it is used."""
        self._after = self._base
        return self._objects(self._ahead())

    def _objects(self, pages: Iterator[list[Any]]) -> Iterator[ObjectMeta]:
        for page in pages:
            for found in page:
                key = found["path"]
                if not self._is_new(key):
                    continue
                meta = object_meta(key[len(self._prefix) :], found)
                if meta.size_bytes or self._is_object(meta):
                    yield meta

    def _ahead(self) -> Iterator[list[Any]]:
        # If the listing starts again, it may repeat entries of the page that is in use.
        with ThreadPoolExecutor(1, "delta-list") as worker:
            following = worker.submit(self._request)
            while page := following.result():
                following = worker.submit(self._request)
                yield page

    def _is_new(self, key: str) -> bool:
        # Some services ignore the offset.
        if key <= self._after or (self._seen is not None and key in self._seen):
            return False
        if self._seen is None:
            self._after = key
        else:
            self._seen.add(key)
        return True

    def _request(self) -> list[Any]:
        """The next page; an empty one at the end."""
        return self._requests.ask(self._folder, self._next_page)

    def _next_page(self) -> list[Any]:
        if self._pages is None:
            self._pages = obstore.list(
                self._client.store,
                self._base.rstrip("/") or None,
                offset=self._after or None,
                chunk_size=self._page,
            )
        try:
            return list(next(self._pages, ()))
        except Exception:
            self._pages = None
            raise

    def _is_object(self, meta: ObjectMeta) -> bool:
        """Whether an entry without bytes is an object: consoles and file systems create objects
        that stand for a directory, with a slash at the end of the name, which the client omits.
        """
        if meta.path == self._folder.rstrip("/"):
            return False
        key = self._prefix + meta.path
        try:
            self._requests.ask(meta.path, partial(obstore.head, self._client.store, key))
        except FileNotFoundError:
            return False
        return True


def object_meta(path: str, found: Any) -> ObjectMeta:  # noqa: ANN401
    """What the client found of an object."""
    return ObjectMeta(path, found["size"], round(found["last_modified"].timestamp() * 1000))
