"""A commit as bytes: one action per line, provenance first; and its actions before its version is
known.

Most actions do not depend on the version. Row ids follow those that concurrent commits have
assigned, and the enablement properties of in-commit timestamps name the commit itself.

Spec: Delta Log Entries; Commit Provenance Information; Row Tracking; In-Commit Timestamps;
Checkpoint Protection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from dagster_delta.cached_property import cached_property
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.features.row_tracking import assign_row_ids, high_water_mark_domain
from dagster_delta.protocol.log.commit_file import CHECKSUM_KEY, CommitContents, with_checksum

_ENCODER = msgspec.json.Encoder()


def encode_actions(contents: CommitContents) -> bytes:
    """The lines of a commit below its commitInfo, each ended by a newline.

    They stay the same when the commit is rebased, so every retry uses one encoding.
    """
    lines: list[bytes] = []
    if contents.protocol is not None:
        lines.append(_ENCODER.encode({"protocol": contents.protocol}))
    if contents.metadata is not None:
        lines.append(_ENCODER.encode({"metaData": contents.metadata}))
    named: tuple[tuple[str, Iterable[msgspec.Struct]], ...] = (
        ("txn", contents.txns),
        ("domainMetadata", contents.domain_metadata),
        ("remove", contents.removes),
        ("add", contents.adds),
        ("cdc", contents.cdc),
    )
    for name, actions in named:
        lines.extend(_ENCODER.encode({name: action}) for action in actions)
    return b"".join(line + b"\n" for line in lines)


def encode_commit(commit_info: Mapping[str, object], actions: bytes) -> bytes:
    """The contents of a commit file.

    Spec: commitInfo MUST be the first action if in-commit timestamps are on; here it always is.
    """
    line = _ENCODER.encode({"commitInfo": commit_info})
    return with_checksum(line, b"\n" + actions, depth=2)


class CommitInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The commitInfo action, in the form that other engines show in their history."""

    in_commit_timestamp_ms: int | None = msgspec.field(name="inCommitTimestamp", default=None)
    """The commit's own timestamp in milliseconds since the epoch, if the table has them."""
    timestamp_ms: int = msgspec.field(name="timestamp")
    """Time of the commit in milliseconds since the epoch."""
    operation: str
    """What the commit does, such as `WRITE`."""
    operation_parameters: Mapping[str, str | None]
    """See `spell_parameters`."""
    read_version: int | None = None
    """Version before the commit; None if it creates the table."""
    isolation_level: str
    """How strictly it is ordered with concurrent commits."""
    is_blind_append: bool
    """Whether it only adds files, and reads none."""
    operation_metrics: Mapping[str, str]
    """See `spell_metrics`."""
    engine_info: str
    """Name and version of the writer."""
    transaction_id: str = msgspec.field(name="txnId")
    """Unique id of the commit."""
    tags: Mapping[str, str] = {}
    """Tags that the protocol requires."""

    def with_user_info(self, user_info: Mapping[str, object]) -> dict[str, object]:
        """The action with the keys of a user; one that readers interpret is an InvalidArgument."""
        _check_user_info(user_info)
        return {**msgspec.to_builtins(self), **user_info}


_RESERVED_COMMIT_INFO = frozenset(
    # Other engines decode the last three into typed objects and fail on other types.
    (*CommitInfo.__struct_encode_fields__, CHECKSUM_KEY, "version", "job", "notebook")
)


def _check_user_info(user_info: Mapping[str, object]) -> None:
    if taken := sorted(_RESERVED_COMMIT_INFO.intersection(user_info)):
        raise InvalidArgument(
            f"commit_info may not hold {', '.join(taken)}: readers give these keys a meaning; "
            "choose other names"
        )
    try:
        _ENCODER.encode(user_info)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"commit_info is not valid JSON ({error}); pass text, numbers, lists and mappings "
            "of these"
        ) from error


def spell_parameters(parameters: Mapping[str, object]) -> dict[str, str | None]:
    """Operation parameters as readers expect them: text unchanged, other values as JSON text."""
    return {
        name: value if value is None or isinstance(value, str) else _ENCODER.encode(value).decode()
        for name, value in parameters.items()
    }


def spell_metrics(metrics: Mapping[str, int | str]) -> dict[str, str]:
    """Operation metrics as readers expect them: numbers as text."""
    return {name: str(value) for name, value in metrics.items()}


IN_COMMIT_TIMESTAMP_START_KEYS = (
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
)
"""Properties with the first version that has an in-commit timestamp, and with that timestamp in
milliseconds since the epoch."""

CHECKPOINT_PROTECTION_KEY = "delta.requireCheckpointProtectionBeforeVersion"
"""Property that names the commit before which checkpoints are protected."""


class CommitSlot(msgspec.Struct, frozen=True):
    """The version, and what depends on it, for one attempt to commit."""

    version: int
    in_commit_timestamp_ms: int | None
    """The commit's own timestamp; None if the table has none."""
    highest_row_id: int
    """Highest row id assigned before it, -1 if none."""


class PendingActions(msgspec.Struct, frozen=True, dict=True):
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
        return self._encoded_actions

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
        own: dict[str, str] = {}
        if self.starts_in_commit_timestamps:
            start = str(slot.version), str(slot.in_commit_timestamp_ms)
            own |= zip(IN_COMMIT_TIMESTAMP_START_KEYS, start, strict=True)
        if self.protects_checkpoints:
            own[CHECKPOINT_PROTECTION_KEY] = str(slot.version)
        return own

    @cached_property
    def _encoded_actions(self) -> bytes:
        return encode_actions(self.contents)
