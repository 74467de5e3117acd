"""Deletes files: above all those that were created for a change, before a commit refers to them.

Only the code in this process that created a file deletes it, and never once its commit may exist.
VACUUM, or log clean-up, deletes the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Self

from dagster_delta.storage.object_store import ObjectStore

_LOG = logging.getLogger(__name__)

FILES_PER_DELETE = 1000


class CreatedFiles:
    """The files that this process created for one change, and that no commit refers to yet.

    A context manager: on an error, it deletes as many of them as the store allows and raises the
    original error. Without an error, it keeps them. Several threads may add files at once.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._paths: dict[str, None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self.delete()

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, relative to the table root."""
        return tuple(self._paths)

    def add(self, paths: Iterable[str]) -> None:
        """Register files for deletion on error, before they are created. Paths are decoded, and
        relative to the table root.
        """
        self._paths.update(dict.fromkeys(paths))

    def release(self) -> None:
        """Forget the files: from here on a commit may refer to them."""
        self._paths = {}

    def delete(self, *, keep: Iterable[str] = ()) -> None:
        """Delete as many of the files as the store allows."""
        kept = dict.fromkeys(keep)
        paths, self._paths = self._paths, {path: None for path in self._paths if path in kept}
        delete_unreferenced(self._store, [path for path in paths if path not in kept])


def delete_unreferenced(store: ObjectStore, paths: Iterable[str]) -> None:
    """Delete as many of these files, which this process created, as the store allows."""
    paths = list(paths)
    if not paths:
        return
    try:
        store.delete(paths)
    except Exception:  # noqa: BLE001  the error that brought us here matters more
        _LOG.warning(
            "up to %d unreferenced files are left in %s",
            len(paths),
            store.location.uri,
            exc_info=True,
        )


def delete_with_checksums(store: ObjectStore, paths: Sequence[str]) -> None:
    """Delete files, and those that Hadoop writes beside every local file: a hidden checksum. A
    thousand are deleted at once, in their order.
    """
    for first in range(0, len(paths), FILES_PER_DELETE):
        some = paths[first : first + FILES_PER_DELETE]
        store.delete(some)
        if store.local_path("") is not None:
            split = (path.rpartition("/") for path in some)
            store.delete(f"{directory}{slash}.{name}.crc" for directory, slash, name in split)
