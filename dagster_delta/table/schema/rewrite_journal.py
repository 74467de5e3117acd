"""Which data files have been rewritten for a change that is not committed yet.

A change that rewrites a whole table is one commit. Until then, a journal beside the log records the
files it has written. After a crash the same change finds them there and continues. The directory is
hidden: readers and VACUUM ignore it.

The journal is shared by every run of the same change, and two of them may run at the same time. So
any of them may commit a file that an entry names, and none of them deletes it: VACUUM deletes
unreferenced files.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from dagster_delta.errors import DeltaError
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.protocol.wire_values import DECODING_ERRORS
from dagster_delta.storage.object_store import ObjectStore

_LOG = logging.getLogger(__name__)

_DIRECTORY = "_dagster_delta/rewrites"


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Files that were rewritten together."""

    sources: frozenset[str]
    """Keys of the files they replace, as `keys_of` spells them."""
    adds: tuple[AddFile, ...]
    """The new files, none of them referenced yet."""
    num_rows: int
    """Rows in the new files."""
    moment_ms: int
    """The current time used in the defaults of their rows, in milliseconds since the epoch."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Decoded paths of the new files."""
        return tuple(decode_path(each.path) for each in self.adds)


@dataclass(frozen=True, slots=True)
class RewriteJournal:
    """The entries of one change."""

    store: ObjectStore
    change: str
    new_id: Callable[[], str] = lambda: str(uuid.uuid4())

    @property
    def directory(self) -> str:
        """Directory of the entries."""
        digest = hashlib.sha256(self.change.encode()).hexdigest()
        return f"{_DIRECTORY}/{digest[:32]}"

    def load(self, *, since_ms: int) -> list[JournalEntry]:
        """Entries that one commit may use together: their files exist, and no two of them replace
        the same file or have defaults of different times.

        Entries before `since_ms`, in milliseconds since the epoch, are ignored, because VACUUM may
        be about to delete their files.
        """
        found: list[JournalEntry] = []
        replaced: set[str] = set()
        for meta in list(self.store.list_from(self.directory)):
            entry = self._decode(meta.path) if meta.modified_ms >= since_ms else None
            if entry is None or not replaced.isdisjoint(entry.sources):
                continue
            if found and entry.moment_ms != found[0].moment_ms:
                continue
            if all(map(self.store.head, entry.paths)):
                found.append(entry)
                replaced |= entry.sources
        return found

    def _decode(self, path: str) -> JournalEntry | None:
        try:
            return msgspec.json.decode(self.store.read(path), type=JournalEntry)
        except (FileNotFoundError, *DECODING_ERRORS):
            return None

    def record(self, entry: JournalEntry) -> None:
        """Record files that have been written. Raises StorageFailure."""
        self.store.put(f"{self.directory}/{self.new_id()}.json", msgspec.json.encode(entry))

    def clear(self) -> None:
        """Delete the entries of the change, as far as the store allows. The files that it wrote
        remain.
        """
        try:
            self.store.delete([meta.path for meta in self.store.list_from(self.directory)])
        except (DeltaError, OSError) as error:
            _LOG.warning(
                "could not clear %s of %s: %s", self.directory, self.store.location.uri, error
            )
