"""The version checksum `n.crc`: totals and state of one version, without reading the log.

It saves work and is optional: a damaged file is treated as missing.

Spec: the Version Checksum File of the shipped protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec.structs import replace

from dagster_delta.protocol.actions import DomainMetadata, Metadata, Protocol, SetTransaction
from dagster_delta.protocol.log.commit_file import (
    CHECKSUM_KEY,
    CommitActions,
    LenientDomainMetadata,
    LenientMetadata,
    decode_commit,
    holds_checksum,
    in_commit_timestamp,
    with_checksum,
)
from dagster_delta.protocol.wire_values import DECODING_ERRORS, Count, Int64


class VersionChecksum(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """The totals and the table state of one version."""

    transaction_id: str | None = msgspec.field(name="txnId", default=None)
    """`txnId` of the commit's commitInfo."""
    size_bytes: Count = msgspec.field(name="tableSizeBytes")
    """Bytes of the live files."""
    num_files: Count
    """Live files."""
    num_deleted_records: Count | None = msgspec.field(name="numDeletedRecordsOpt", default=None)
    """Rows that deletion vectors hide, if counted."""
    num_deletion_vectors: Count | None = msgspec.field(name="numDeletionVectorsOpt", default=None)
    """Live files that have a deletion vector, if counted."""
    # Other readers require these fields; msgspec would omit a plain default.
    num_metadata: Literal[1] = msgspec.field(default_factory=lambda: 1)
    """Always 1."""
    num_protocol: Literal[1] = msgspec.field(default_factory=lambda: 1)
    """Always 1."""
    in_commit_timestamp_ms: Int64 | None = msgspec.field(name="inCommitTimestampOpt", default=None)
    """The in-commit timestamp, if the table has them."""
    transactions: tuple[SetTransaction, ...] | None = msgspec.field(
        name="setTransactions", default=None
    )
    """The newest one per application id; None if the writer left them out."""
    domain_metadata: tuple[DomainMetadata, ...] | None = None
    """The domains that are set; None if the writer left them out."""
    metadata: Metadata
    protocol: Protocol
    is_own: bool = False
    """Whether this library counted it, starting from a version that it read completely, over its
    own commits only; not a part of the file. Checksums by other writers have been wrong for a valid
    log, and their commits may add a live file again, which makes counts wrong."""


class _Read(VersionChecksum, frozen=True, kw_only=True, rename="camel"):
    metadata: LenientMetadata  # type: ignore[assignment]
    domain_metadata: tuple[LenientDomainMetadata, ...] | None = None  # type: ignore[assignment]


_MAX_TRANSACTIONS = 100
"""As in the reference implementation: with more, the log grows with the square of the commits."""


_DECODER = msgspec.json.Decoder(_Read)


def parse_version_checksum(data: bytes) -> VersionChecksum | None:
    """The checksum, or None if the file is damaged or lacks a required field."""
    is_whole = holds_checksum(data)
    if is_whole is False:
        return None
    try:
        wire = _DECODER.decode(data)
    except DECODING_ERRORS:
        return None
    domains = wire.domain_metadata
    strict = {
        "metadata": wire.metadata.strict(),
        "domain_metadata": None if domains is None else tuple(found.strict() for found in domains),
        "is_own": is_whole is True,
    }
    return VersionChecksum(**{**msgspec.structs.asdict(wire), **strict})


def encode_version_checksum(checksum: VersionChecksum) -> bytes:
    """The contents of the `.crc` file."""
    transactions = checksum.transactions
    if transactions is not None and len(transactions) > _MAX_TRANSACTIONS:
        transactions = None
    data = msgspec.json.encode(replace(checksum, transactions=transactions, is_own=False))
    return with_checksum(data) if checksum.is_own else data


def first_version_checksum(actions: CommitActions) -> VersionChecksum | None:
    """The checksum of version 0, from its commit alone; None if it creates no table."""
    if actions.protocol is None or actions.metadata is None:
        return None
    empty = VersionChecksum(
        protocol=actions.protocol,
        metadata=actions.metadata,
        num_files=0,
        size_bytes=0,
        transactions=(),
        domain_metadata=(),
        num_deleted_records=0,
        num_deletion_vectors=0,
        is_own=True,
    )
    return next_version_checksum(empty, actions)


def next_version_checksum(
    previous: VersionChecksum, actions: CommitActions
) -> VersionChecksum | None:
    """The checksum after one more commit, or None if the commit does not determine it."""
    if not _is_countable(actions):
        return None
    num_files = previous.num_files + len(actions.adds) - len(actions.removes)
    size_bytes = (
        previous.size_bytes
        + sum(add.size_bytes for add in actions.adds)
        - sum(remove.size_bytes or 0 for remove in actions.removes)
    )
    if num_files < 0 or size_bytes < 0:
        return None
    info = actions.commit_info or {}
    transaction_id = info.get("txnId")
    counted = replace(
        previous,
        protocol=actions.protocol or previous.protocol,
        metadata=actions.metadata or previous.metadata,
        num_files=num_files,
        size_bytes=size_bytes,
        transactions=_next_transactions(previous, actions),
        domain_metadata=_next_domains(previous, actions),
        in_commit_timestamp_ms=in_commit_timestamp(info),
        transaction_id=transaction_id if isinstance(transaction_id, str) else None,
        is_own=previous.is_own and CHECKSUM_KEY in info,
    )
    return _with_deletion_vectors(counted, actions)


def version_checksum_after(
    known: VersionChecksum | None, commits: Iterable[tuple[int, bytes]]
) -> VersionChecksum | None:
    """The checksum of the last version, or None if it cannot be derived.

    `known` is the checksum of the version before the first commit.
    """
    checksum = known
    for version, data in commits:
        if version == 0:
            checksum = first_version_checksum(decode_commit(data, version=version))
        elif checksum is not None:
            checksum = next_version_checksum(checksum, decode_commit(data, version=version))
    return checksum


def _is_countable(actions: CommitActions) -> bool:
    if any(remove.size_bytes is None for remove in actions.removes):
        return False
    # Adds that only rewrite the statistics, tags or row ids of live files change no data, and no
    # removes of the same files are beside them: the number of new files is not known then.
    if all(add.data_change for add in actions.adds):
        return True
    changes = {add.data_change for add in actions.adds} | {
        gone.data_change for gone in actions.removes
    }
    return bool(actions.removes) and changes == {False}


def _next_transactions(
    previous: VersionChecksum, actions: CommitActions
) -> tuple[SetTransaction, ...] | None:
    metadata = actions.metadata or previous.metadata
    if "delta.setTransactionRetentionDuration" in metadata.configuration:
        # Expiry depends on the clock, so two readers could disagree.
        return None
    if previous.transactions is None or not actions.txns:
        return previous.transactions
    newest = {txn.app_id: txn for txn in (*previous.transactions, *actions.txns)}
    return tuple(newest.values())


def _next_domains(
    previous: VersionChecksum, actions: CommitActions
) -> tuple[DomainMetadata, ...] | None:
    if previous.domain_metadata is None or not actions.domain_metadata:
        return previous.domain_metadata
    newest = {
        domain.domain: domain for domain in (*previous.domain_metadata, *actions.domain_metadata)
    }
    return tuple(domain for domain in newest.values() if not domain.removed)


def _with_deletion_vectors(checksum: VersionChecksum, actions: CommitActions) -> VersionChecksum:
    vectors, records = checksum.num_deletion_vectors, checksum.num_deleted_records
    if vectors is None or records is None:
        return replace(checksum, num_deletion_vectors=None, num_deleted_records=None)
    added = [add.deletion_vector for add in actions.adds if add.deletion_vector]
    removed = [remove.deletion_vector for remove in actions.removes if remove.deletion_vector]
    return replace(
        checksum,
        num_deletion_vectors=vectors + len(added) - len(removed),
        num_deleted_records=records
        + sum(vector.cardinality for vector in added)
        - sum(vector.cardinality for vector in removed),
    )
