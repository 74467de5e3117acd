"""Listings of cloud storage, page by page.

The client lists everything below a prefix, from an offset; it has no listing of one directory that
starts at an offset. So names in sub-directories are skipped, and if there are many, the listing
starts again after their directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from dagster_delta.storage.cloud_client import CloudClient
from dagster_delta.storage.cloud_requests import BrokenAnswer, CloudRequests
from dagster_delta.storage.object_store import ObjectMeta

__all__ = ["CloudListing"]

_ATTEMPTS = 3
_PAGE = 1000
"""Entries of a page: clouds return at most this many, or a multiple of it."""
_AFTER_SLASH = "0"
"""The character after the slash."""


class CloudListing:
    """The objects of one directory. Used once.

    Args:
        client: of the bucket.
        requests: names failures.
        prefix: key of the table's root, with a slash at its end, or empty.
        folder: the directory below it, with a slash at its end, or empty.
    """

    def __init__(
        self, client: CloudClient, requests: CloudRequests, *, prefix: str, folder: str
    ) -> None:
        self._client, self._requests = client, requests
        self._prefix, self._folder = prefix, folder
        self._base = prefix + folder
        self._pages: Any = None
        self._last = ""
        """The key after which the next page starts."""
        self._count = 0

    def direct(self, start: str) -> Iterator[ObjectMeta]:
        """The objects directly in the directory whose name is `>= start`, in order."""
        # The listing starts after the given name: this one is surely before it. The client refuses
        # "." as a name.
        offset = start[:-1].rstrip(".")
        skipped = 0
        for meta in self.objects(offset):
            name = meta.path[len(self._folder) :]
            directory, slash, _ = name.partition("/")
            if not slash:
                if name >= start:
                    yield meta
                continue
            skipped += 1
            if skipped >= _PAGE:
                skipped = 0
                self._restart(f"{self._base}{directory}{_AFTER_SLASH}")

    def objects(self, offset: str) -> Iterator[ObjectMeta]:
        """The objects at any depth whose path below the directory comes after `offset`."""
        self._last = self._base + offset
        for _ in range(_ATTEMPTS):
            yield from self._to_the_end()
            if self._is_complete():
                return
            self._pages = None
        raise self._requests.failure(BrokenAnswer.FOREIGN, self._folder)

    def _to_the_end(self) -> Iterator[ObjectMeta]:
        self._count = 0
        while page := self._requests.ask(self._folder, self._next_page):
            self._count += len(page)
            for found in page:
                key = found["path"]
                if key <= self._last:
                    # Some services ignore the offset.
                    continue
                self._last = key
                meta = _meta(key[len(self._prefix) :], found)
                if meta.size_bytes or self._is_object(meta):
                    yield meta
                if self._pages is None:
                    break

    def _is_complete(self) -> bool:
        """Whether the storage says so. A proxy's page is an empty page for the client, so a listing
        that ends with a full page, or is empty, is not taken for complete.
        """
        confirm = self._client.confirm_listing
        if confirm is None or self._count % _PAGE:
            return True
        # The key as the storage has it: a directory's has a slash at its end.
        return self._requests.ask(self._folder, partial(confirm, self._base, self._last + "/"))

    def _restart(self, after: str) -> None:
        self._pages, self._last = None, after

    def _next_page(self) -> list[Any]:
        import obstore

        if self._pages is None:
            self._pages = obstore.list(
                self._client.store,
                self._base.rstrip("/") or None,
                offset=self._last or None,
                chunk_size=_PAGE,
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
        import obstore

        if meta.path == self._folder.rstrip("/"):
            return False
        key = self._prefix + meta.path
        try:
            self._requests.ask(meta.path, lambda: obstore.head(self._client.store, key))
        except FileNotFoundError:
            return False
        return True


def _meta(path: str, found: Any) -> ObjectMeta:  # noqa: ANN401
    return ObjectMeta(path, found["size"], round(found["last_modified"].timestamp() * 1000))
