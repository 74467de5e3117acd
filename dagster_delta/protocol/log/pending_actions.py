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
    RowIdHighWaterMark,
    assign_row_ids,
    high_water_mark_domain,
    is_row_id_mark,
    parse_high_water_mark,
)
from dagster_delta.protocol.log.commit_writer import CommitContents, encode_actions

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
    keeps_draft_row_ids: bool | None = None
    """On a table with the draft of row tracking, whether rows that it moves or changes keep their
    ids; None on other tables."""
    starts_in_commit_timestamps: bool = False
    """Whether it is the first commit with an in-commit timestamp."""
    protects_checkpoints: bool = False
    """Whether the checkpoints before it are kept until all of them can be deleted together."""

    @property
    def assigns_row_ids(self) -> bool:
        """Whether files get row ids, in the draft or the final form."""
        return self.tracks_rows or self.keeps_draft_row_ids is not None

    def encode(self, slot: CommitSlot) -> bytes:
        """The lines of the commit below its commitInfo, for one attempt."""
        if self.assigns_row_ids or self.starts_in_commit_timestamps or self.protects_checkpoints:
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
        if self.assigns_row_ids:
            adds, highest = assign_row_ids(
                contents.adds,
                # The draft has no row versions.
                version=slot.version if self.tracks_rows else None,
                highest=slot.highest_row_id,
            )
            domains = contents.domain_metadata
            if self.keeps_draft_row_ids is not None and adds:
                # Spec: at most one mark, and one whenever fresh ids are committed, even if it does
                # not change. A clone has the mark of its source.
                highest = max(highest, parse_high_water_mark(filter(is_row_id_mark, domains)))
                domains = tuple(domain for domain in domains if not is_row_id_mark(domain))
                mark = RowIdHighWaterMark(
                    high_water_mark=highest, preserved_row_ids=self.keeps_draft_row_ids
                )
                domains = (*domains, mark.as_domain())
            if self.tracks_rows and highest != slot.highest_row_id:
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
