"""Which data files have been written again for a change that is not committed yet.

A change that writes a whole table again lands as one commit, and what it has done until then stands
in a journal beside the log. After a crash the same change finds its files there and goes on. The
directory is hidden: readers, and VACUUM, pass it over.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from dagster_delta.errors import DeltaError
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectStore

__all__ = ["JournalEntry", "RewriteJournal"]

_LOG = logging.getLogger(__name__)

_DIRECTORY = "_dagster_delta/rewrites"


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Files that were written again together."""

    sources: frozenset[str]
    """Keys of the files they replace, as `keys_of` spells them."""
    adds: tuple[AddFile, ...]
    """The new files, none of them referenced yet."""
    num_rows: int
    """Rows in the new files."""
    moment_ms: int
    """What time it is in the defaults of their rows, in milliseconds since the epoch."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Decoded paths of the new files."""
        return tuple(decode_path(each.path) for each in self.adds)


@dataclass(frozen=True, slots=True)
class RewriteJournal:
    """The entries of one change.

    Args:
        store: store of the table.
        change: text that tells this change from every other one of the table.
        new_id: makes the names of entries.
    """

    store: ObjectStore
    change: str
    new_id: Callable[[], str] = lambda: str(uuid.uuid4())

    @property
    def directory(self) -> str:
        """Where the entries stand."""
        digest = hashlib.sha256(self.change.encode()).hexdigest()
        return f"{_DIRECTORY}/{digest[:32]}"

    def load(self) -> Iterator[JournalEntry]:
        """The entries whose files are all there still.

        Raises:
            StorageFailure: the store refused or failed.
        """
        for meta in list(self.store.list_from(self.directory)):
            entry = self._decode(meta.path)
            # Nothing refers to the files, so that VACUUM may have taken them.
            if entry is not None and all(map(self.store.head, entry.paths)):
                yield entry

    def _decode(self, path: str) -> JournalEntry | None:
        try:
            return msgspec.json.decode(self.store.read(path), type=JournalEntry)
        except (FileNotFoundError, msgspec.DecodeError, msgspec.ValidationError):
            return None

    def record(self, entry: JournalEntry) -> None:
        """Note files that have been written. Raises StorageFailure."""
        self.store.put(f"{self.directory}/{self.new_id()}.json", msgspec.json.encode(entry))

    def clear(self, discarded: Iterable[JournalEntry] = ()) -> None:
        """Forget the change, and delete files that it does not need, as far as the store lets it.

        Args:
            discarded: entries whose files are deleted.
        """
        try:
            self.store.delete([path for each in discarded for path in each.paths])
            self.store.delete([each.path for each in self.store.list_from(self.directory)])
        except (DeltaError, OSError) as error:
            _LOG.warning(
                "could not clear %s of %s: %s", self.directory, self.store.location.uri, error
            )
