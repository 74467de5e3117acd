"""The files that make up one version: a complete checkpoint and the commits after it.

Spec: Delta Log Entries; Checkpoints; Last Checkpoint File.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from dagster_delta.errors import LogGap, TableNotFound, VersionNotFound
from dagster_delta.protocol.log.paths import LogFileKind, LogFileName, parse_log_file_name


class ListedFile(Protocol):
    """One entry of a listing, as returned by a store."""

    @property
    def path(self) -> str:
        """Relative to the table root."""

    @property
    def size_bytes(self) -> int:
        """Length of the file."""

    @property
    def modified_ms(self) -> int:
        """Last modification in milliseconds since the epoch."""


class CommitFile(NamedTuple):
    """A file of JSON actions: one commit, or several compacted into one file."""

    start: int
    """First version it holds."""
    end: int
    """Last version it holds."""
    file: ListedFile


class CheckpointFiles(msgspec.Struct, frozen=True):
    """A complete checkpoint."""

    version: int
    files: tuple[ListedFile, ...]
    """The file, the parts in order, or the manifest of a V2 checkpoint."""


class LogSegment(msgspec.Struct, frozen=True):
    """The log files to read for the state of the table at one version."""

    version: int
    checkpoint: CheckpointFiles | None
    """The newest complete checkpoint at or before the version."""
    replay: tuple[CommitFile, ...]
    """What follows the checkpoint, oldest first and without a gap; compacted where possible."""
    commit: ListedFile | None
    """The version's own commit file; None if a clean-up has removed it."""
    checksum: ListedFile | None
    """The version's own checksum file, if there is one."""


EMPTY_SEGMENT = LogSegment(-1, None, (), None, None)
"""Before the first commit of a table."""


class LogListing(msgspec.Struct):
    """One listing of the log (or of its tail), sorted into kinds."""

    commits: dict[int, ListedFile] = msgspec.field(default_factory=dict)
    """Commit files by version."""
    checkpoints: dict[int, CheckpointFiles] = msgspec.field(default_factory=dict)
    """Complete checkpoints by version."""
    compactions: dict[int, list[CommitFile]] = msgspec.field(default_factory=dict)
    """Compacted files by first version."""
    checksums: dict[int, ListedFile] = msgspec.field(default_factory=dict)
    """Checksum files by version."""

    @classmethod
    def sort(cls, files: Iterable[ListedFile]) -> LogListing:
        """Sort a listing; files that readers ignore are dropped."""
        listing = cls()
        candidates: dict[int, list[tuple[LogFileName, ListedFile]]] = {}
        for file in files:
            name = parse_log_file_name(file.path[file.path.rfind("/") + 1 :])
            if name is None:
                continue
            if name.kind is LogFileKind.COMMIT:
                listing.commits[name.version] = file
            elif name.kind is LogFileKind.CHECKSUM:
                listing.checksums[name.version] = file
            elif name.kind is LogFileKind.COMPACTED:
                ranges = listing.compactions.setdefault(name.version, [])
                ranges.append(CommitFile(name.version, name.end_version, file))
            elif file.size_bytes > 0:
                # A writer that crashed before its first byte leaves an empty file.
                candidates.setdefault(name.version, []).append((name, file))
        for version, found in candidates.items():
            checkpoint = _complete_checkpoint(version, found)
            if checkpoint is not None:
                listing.checkpoints[version] = checkpoint
        return listing

    @property
    def latest_version(self) -> int | None:
        """The newest version with a commit or a complete checkpoint; None if the log is empty."""
        return max((*self.commits.keys(), *self.checkpoints.keys()), default=None)

    @property
    def is_contiguous(self) -> bool:
        """Whether there is a commit for every version from the oldest commit to the newest."""
        return not self.commits or max(self.commits) - min(self.commits) < len(self.commits)

    def first_commit_before(self, version: int) -> int:
        """The oldest version from which on every commit up to `version` is there; the next one
        after `version` if its own is missing. Older files are leftovers of a clean-up.
        """
        first = version + 1
        while first - 1 in self.commits:
            first -= 1
        return first

    @property
    def earliest_version(self) -> int | None:
        """The oldest version that can be reconstructed; None if none can."""
        if 0 in self.commits:
            return 0
        return min(self.checkpoints, default=None)

    def segment(self, version: int | None = None, *, table: str) -> LogSegment:
        """The segment of a version, of the latest one by default."""
        latest = self.latest_version
        if latest is None:
            raise TableNotFound(
                "There is no Delta table here: its _delta_log holds neither a commit nor a "
                "checkpoint; check the location, or create the table first",
                table=table,
            )
        target = latest if version is None else version
        self._check_available(target, latest, table=table)
        older = (version for version in self.checkpoints if version <= target)
        newest = max(older, default=None)
        checkpoint = None if newest is None else self.checkpoints[newest]
        start = 0 if checkpoint is None else checkpoint.version + 1
        return LogSegment(
            version=target,
            checkpoint=checkpoint,
            replay=tuple(self._find_replay_files(start, target, table=table)),
            commit=self.commits.get(target),
            checksum=self.checksums.get(target),
        )

    def _check_available(self, version: int, latest: int, *, table: str) -> None:
        earliest = self.earliest_version
        if earliest is None:
            # No version can be reconstructed: the gap before the first commit explains it.
            return
        if not earliest <= version <= latest:
            raise VersionNotFound(
                f"The table has no version {version}: its log reaches from version {earliest} to "
                f"{latest}",
                table=table,
                version=version,
            )

    def _find_replay_files(self, start: int, end: int, *, table: str) -> Iterator[CommitFile]:
        known = sorted({*self.commits, *self.compactions})
        missing: list[tuple[int, int]] = []
        version = start
        while version <= end:
            if (longest := self._longest_compaction(version, end)) is not None:
                yield longest
                version = longest.end + 1
            elif (file := self.commits.get(version)) is not None:
                yield CommitFile(version, version, file)
                version += 1
            else:
                # Step over gaps: a stray file with a very high version must not cost one step per
                # version.
                after = bisect_right(known, version)
                last = min(known[after] - 1, end) if after < len(known) else end
                missing.append((version, last))
                version = last + 1
        if missing:
            raise LogGap(
                f"The log lacks the commits of {spell_versions(missing)}, without which version "
                f"{end} cannot be read; restore the files, or open a version that does not need "
                "them",
                table=table,
                version=end,
            )

    def _longest_compaction(self, start: int, end: int) -> CommitFile | None:
        if start not in self.compactions:
            return None
        covering = (compaction for compaction in self.compactions[start] if compaction.end <= end)
        return max(covering, key=lambda found: found.end, default=None)


def _complete_checkpoint(
    version: int, found: Sequence[tuple[LogFileName, ListedFile]]
) -> CheckpointFiles | None:
    by_kind: dict[tuple[LogFileKind, int], dict[int, ListedFile]] = {}
    for name, file in found:
        parts = by_kind.setdefault((name.kind, name.num_parts), {})
        # V2 checkpoints of one version are equivalent; choose by name, for repeatability.
        if name.part not in parts or file.path > parts[name.part].path:
            parts[name.part] = file
    for kind in (LogFileKind.CHECKPOINT_V2, LogFileKind.CHECKPOINT, LogFileKind.CHECKPOINT_PART):
        for (found_kind, num_parts), parts in sorted(by_kind.items(), key=lambda item: item[0][1]):
            # Spec: readers must only use a complete checkpoint, wherein all fragments are present.
            if found_kind is kind and len(parts) == num_parts:
                return CheckpointFiles(version, tuple(parts[part] for part in sorted(parts)))
    return None


def spell_versions(ranges: Sequence[tuple[int, int]]) -> str:
    """Ranges of versions, both ends included, as text for an error; there is at least one."""
    texts = [str(low) if low == high else f"{low} to {high}" for low, high in ranges[:10]]
    more = f" and {len(ranges) - 10} more ranges" if len(ranges) > 10 else ""
    several = len(ranges) > 1 or ranges[0][0] != ranges[0][1]
    return f"version{'s' if several else ''} {', '.join(texts)}{more}"
