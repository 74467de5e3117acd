"""Files that were created for a change, until a commit may refer to them.

A file of a table is deleted only by who created it in this process, and never once its commit may
exist. VACUUM, or log clean-up, deletes what is left.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectStore

__all__ = ["CreatedFiles", "delete_unreferenced"]

_LOG = logging.getLogger(__name__)


class CreatedFiles:
    """The files that this process created for one change, and that nothing refers to yet.

    A context manager: left by an error, it deletes them as far as the store lets it, and the error
    stays the one that is raised. Left without one, it keeps them. Threads may add files at once.

    Args:
        store: store of the table.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._paths: dict[str, None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.delete()

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, relative to the table root."""
        return tuple(self._paths)

    def add(self, paths: Iterable[str]) -> None:
        """Take charge of files, relative to the table root, from before they are created on."""
        self._paths.update(dict.fromkeys(paths))

    def add_logged(self, paths: Iterable[str]) -> None:
        """Take charge of files by paths as the log spells them."""
        self.add(map(decode_path, paths))

    def release(self) -> None:
        """Give up the charge: a commit may refer to the files from here on."""
        self._paths = {}

    def delete(self, *, keep: Iterable[str] = ()) -> None:
        """Delete the files, as far as the store lets it.

        Args:
            keep: those that stay, and stay in charge of this.
        """
        kept = dict.fromkeys(keep)
        paths, self._paths = self._paths, {path: None for path in self._paths if path in kept}
        delete_unreferenced(self._store, [path for path in paths if path not in kept])


def delete_unreferenced(store: ObjectStore, paths: Iterable[str]) -> None:
    """Delete files that this process created, as far as the store lets it.

    Args:
        store: store of the table.
        paths: relative to the table root.
    """
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
