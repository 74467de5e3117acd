"""The actions of a commit whose version is not known yet.

Most actions do not depend on the version. Row ids follow those that concurrent commits have
assigned, and the enablement properties of in-commit timestamps name the commit itself.

Spec: Row Tracking; In-Commit Timestamps; Checkpoint Protection.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dagster_delta.cached_property import cached_property
from dagster_delta.protocol.features.row_tracking import (
    assign_row_ids,
    high_water_mark_domain,
)
from dagster_delta.protocol.log.commit_file import CommitContents
from dagster_delta.protocol.log.commit_writer import encode_actions

IN_COMMIT_TIMESTAMP_START_VERSION_KEY = "delta.inCommitTimestampEnablementVersion"
"""Property with the first version that has an in-commit timestamp."""
IN_COMMIT_TIMESTAMP_START_TIME_KEY = "delta.inCommitTimestampEnablementTimestamp"
"""Property that repeats that commit's timestamp, in milliseconds since the epoch."""

CHECKPOINT_PROTECTION_KEY = "delta.requireCheckpointProtectionBeforeVersion"
"""Property that names the commit before which checkpoints are protected."""


class CommitSlot(msgspec.Struct, frozen=True):
    """The version, and what depends on it, for one attempt to commit."""

    version: int
    in_commit_timestamp_ms: int | None
    """The commit's own timestamp; None if the table has none."""
    highest_row_id: int
    """Highest row id assigned before it, -1 if none."""


@dataclass(frozen=True)
class PendingActions:
    """The contents of a future commit, without its provenance."""

    contents: CommitContents
    tracks_rows: bool = False
    """Whether files get row ids, because the table supports row tracking."""
    starts_in_commit_timestamps: bool = False
    """Whether it is the first commit with an in-commit timestamp."""
    protects_checkpoints: bool = False
    """Whether the checkpoints before it are kept until all of them can be deleted together."""

    def encode(self, slot: CommitSlot) -> bytes:
        """The lines of the commit below its commitInfo, for one attempt."""
        if self.tracks_rows or self.starts_in_commit_timestamps or self.protects_checkpoints:
            return encode_actions(self.settle(slot))
        return self._encoded

    def settle(self, slot: CommitSlot) -> CommitContents:
        """The contents of the commit for one attempt. Raises as `encode` does."""
        contents = self.contents
        own = self._own_properties(slot)
        if own and contents.metadata is not None:
            configuration = {**contents.metadata.configuration, **own}
            metadata = msgspec.structs.replace(contents.metadata, configuration=configuration)
            contents = msgspec.structs.replace(contents, metadata=metadata)
        if self.tracks_rows:
            adds, highest = assign_row_ids(
                contents.adds, version=slot.version, highest=slot.highest_row_id
            )
            domains = contents.domain_metadata
            if highest != slot.highest_row_id:
                domains = (*domains, high_water_mark_domain(highest))
            contents = msgspec.structs.replace(contents, adds=adds, domain_metadata=domains)
        return contents

    def _own_properties(self, slot: CommitSlot) -> dict[str, str]:
        own = {}
        if self.starts_in_commit_timestamps:
            own[IN_COMMIT_TIMESTAMP_START_VERSION_KEY] = str(slot.version)
            own[IN_COMMIT_TIMESTAMP_START_TIME_KEY] = str(slot.in_commit_timestamp_ms)
        if self.protects_checkpoints:
            own[CHECKPOINT_PROTECTION_KEY] = str(slot.version)
        return own

    @cached_property
    def _encoded(self) -> bytes:
        return encode_actions(self.contents)
