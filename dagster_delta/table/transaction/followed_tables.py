"""How far the rows of a table follow another one: positions, which `txn` actions record.

A position is a version of the followed table with a digest of its commit, so that a log that was
set back and has grown again is noticed.

Spec: Transaction Identifiers.
"""

from __future__ import annotations

from dagster_delta.errors import VersionNotFound
from dagster_delta.table.log.reader import commit_digest, read_commit
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.commit_result import FOLLOWED_TABLE_PREFIX

_VERSION_BITS = 32
_DIGEST_DIGITS = 7  # in hexadecimal; version and digest fit into a long


def application_id(table_id: str, partition_key: str | None) -> str:
    """The application id in a table's log for following another one, for one partition or for the
    whole table.
    """
    name = FOLLOWED_TABLE_PREFIX + table_id
    return name if partition_key is None else f"{name}/{partition_key}"


def version_of(position: int) -> int:
    """The version of the followed table at a position."""
    return position & ((1 << _VERSION_BITS) - 1)


def position_at(snapshot: Snapshot, version: int) -> int:
    """The position at a version, without a digest if a clean-up has deleted the commit."""
    try:
        digest = int(commit_digest(read_commit(snapshot.store, version))[:_DIGEST_DIGITS], 16)
    except VersionNotFound:
        return version
    return digest << _VERSION_BITS | version
