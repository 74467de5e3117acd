"""Listings of cloud storage, page by page.

The client lists everything below a prefix, from an offset; it has no listing of one directory that
starts at an offset. So names in sub-directories are skipped, and if there are many, the listing
starts again after their directory.

Clouds list in the order of whole keys, but Azure accounts with a hierarchical namespace, and some
providers with the API of S3, list the content of a directory right after its name: `a/x` before
`a-b`. There, a listing that broke off starts again at its beginning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from dagster_delta.storage.cloud.client import CloudClient
from dagster_delta.storage.cloud.requests import BrokenAnswer, CloudRequests
from dagster_delta.storage.object_store import ObjectMeta

_ATTEMPTS = 3
_LAST_CHARACTER = "\U0010ffff"
"""Comes after all others."""


class CloudListing:
    """The objects of one directory. Used once.

    `prefix` (the key of the table's root) and `folder` (a directory below it) end with a slash, or
    are empty. Clouds return at most `page` entries, or a multiple of it. If it `reads_ahead`, each
    page is requested while the one before it is used.
    """

    def __init__(
        self,
        client: CloudClient,
        requests: CloudRequests,
        *,
        prefix: str,
        folder: str,
        page: int = 1000,
        reads_ahead: bool = False,
    ) -> None:
        self._client, self._requests = client, requests
        self._page = page
        self._prefix, self._folder = prefix, folder
        self._base = prefix + folder
        self._reads_ahead = reads_ahead
        self._pages: Any = None
        self._after = ""
        """The key after which a listing starts that is started now."""
        self._last = ""
        """The last key that was listed."""
        self._seen: set[str] | None = None if client.lists_in_order else set()
        """The keys that were listed, where their order does not show it."""
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
            if skipped >= self._page:
                skipped = 0
                self._restart(f"{self._base}{directory}/{_LAST_CHARACTER}")

    def objects(self, offset: str) -> Iterator[ObjectMeta]:
        """The objects at any depth whose path below the directory comes after `offset`."""
        self._after = self._last = self._base + offset
        for _ in range(_ATTEMPTS):
            yield from self._to_the_end()
            if self._is_complete():
                return
            self._pages = None
        raise self._requests.failure(BrokenAnswer.FOREIGN, self._folder)

    def _to_the_end(self) -> Iterator[ObjectMeta]:
        self._count = 0
        for page in self._requested_pages():
            self._count += len(page)
            for found in page:
                key = found["path"]
                if not self._is_new(key):
                    continue
                meta = _meta(key[len(self._prefix) :], found)
                if meta.size_bytes or self._is_object(meta):
                    yield meta

    def _requested_pages(self) -> Iterator[list[Any]]:
        request = partial(self._requests.ask, self._folder, self._next_page)
        if not self._reads_ahead:
            while page := request():
                yield page
            return
        has_failed = False

        def request_unless_failed() -> list[Any]:
            nonlocal has_failed
            if has_failed:
                return []
            has_failed = True
            found = request()
            has_failed = False
            return found

        # If the listing starts again, it may repeat entries of the pages that are in use.
        with ThreadPoolExecutor(1, "delta-list") as worker:
            # Two, so that no request waits for this thread to take the page before it.
            following = deque(worker.submit(request_unless_failed) for _ in range(2))
            try:
                while page := following.popleft().result():
                    following.append(worker.submit(request_unless_failed))
                    yield page
            finally:
                for future in following:
                    future.cancel()

    def _is_new(self, key: str) -> bool:
        # Some services ignore the offset.
        if key <= self._after or (self._seen is not None and key in self._seen):
            return False
        self._last = key
        if self._seen is None:
            self._after = key
        else:
            self._seen.add(key)
        return True

    def _is_complete(self) -> bool:
        """Whether the storage says so. A proxy's page is an empty page for the client, so a listing
        that ends with a full page, or is empty, is not taken for complete.
        """
        confirm = self._client.confirm_listing
        if confirm is None or self._count % self._page:
            return True
        # The key as the storage has it: a directory's has a slash at its end.
        return self._requests.ask(self._folder, partial(confirm, self._base, self._last + "/"))

    def _restart(self, after: str) -> None:
        self._pages, self._after, self._last = None, after, after

    def _next_page(self) -> list[Any]:
        import obstore

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
