"""How to read a version whose checkpoint, or compacted commits, are found to be damaged.

A checkpoint only repeats what the commits before it say. If all of these exist, or an older
checkpoint and the commits after it, the version can be read without the damaged one.

Spec: Checkpoints; Log Compaction Files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from dagster_delta.errors import CorruptLog, LogGap, TableNotFound, VersionNotFound
from dagster_delta.protocol.log.paths import LogFileKind, parse_log_file_name
from dagster_delta.protocol.log.segment import LogSegment
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.reader import list_log

_LOG = logging.getLogger(__name__)

_Item = TypeVar("_Item")


def begun(items: Iterable[_Item]) -> Iterator[_Item]:
    """The items, with the first one already computed: its errors are raised here."""
    rest = iter(items)
    return chain(list(islice(rest, 1)), rest)


class LogFallback(msgspec.Struct, frozen=True):
    """The attempts to read one version."""

    store: ObjectStore
    segment: LogSegment
    """The files that the version is read from."""
    damaged: tuple[str, ...] = ()
    """Files that were found to be damaged, relative to the table root."""
    passed_over: frozenset[str] = frozenset()
    """The damaged files, and the files that cannot be used without them."""

    def after(self, segment: LogSegment) -> LogFallback:
        """The same for a later version that is read from the same checkpoint."""
        return replace(self, segment=segment)

    def knows(self, error: CorruptLog) -> bool:
        """Whether the file of an error is already passed over."""
        return error.file in self.passed_over

    def around(self, error: CorruptLog) -> LogFallback:
        """The next attempt, without the damaged file.

        If the version needs the damaged file, the given error is raised. LogGap or VersionNotFound:
        a clean-up of the log deleted what the version needs.
        """
        file = error.file
        name = None if file is None else parse_log_file_name(file.rpartition("/")[2])
        if file is None or (name is not None and name.kind is LogFileKind.COMMIT):
            raise error
        passed_over = self.passed_over | {file}
        is_compacted = name is not None and name.kind is LogFileKind.COMPACTED
        checkpoint = None if is_compacted else self.segment.checkpoint
        if checkpoint is not None:
            # A checkpoint needs all of its parts, and the damage may be in a sidecar.
            passed_over |= {each.path for each in checkpoint.files}
            if any(self.store.head(each.path) is None for each in checkpoint.files):
                return self._after_clean_up(checkpoint.version, passed_over)
        segment = self._segment_without(passed_over, error)
        _LOG.warning(
            "%s of %s is damaged and was passed over, as version %d can be read without it: %s; "
            "write a new checkpoint before a clean-up of the log needs this one",
            file,
            self.store.location.uri,
            segment.version,
            error.message,
        )
        return LogFallback(self.store, segment, (*self.damaged, file), passed_over)

    def _after_clean_up(self, checkpoint: int, passed_over: frozenset[str]) -> LogFallback:
        version, table = self.segment.version, self.store.location.uri
        segment = list_log(self.store, without=passed_over).segment(version, table=table)
        _LOG.info(
            "the checkpoint of version %d of %s was deleted after the log was listed, as a "
            "clean-up of the log does; version %d is read without it",
            checkpoint,
            table,
            version,
        )
        return replace(self, segment=segment, passed_over=passed_over)

    def _segment_without(self, passed_over: frozenset[str], error: CorruptLog) -> LogSegment:
        version, table = self.segment.version, self.store.location.uri
        listing = list_log(self.store, end=version, without=passed_over)
        try:
            return listing.segment(version, table=table)
        except (LogGap, TableNotFound, VersionNotFound):
            raise error from None
