"""Whether a commit may be rebased on concurrent commits, decided without any I/O.

The rules are those of the reference implementation, in its order:

    concurrent commit    this transaction                        verdict
    anything             creates the table                       MetadataChanged
    protocol             any                                     ProtocolChanged
    metadata             any (0)                                 MetadataChanged
    txn of an app        records a txn of the same app           ConcurrentTransaction
    a metadata domain    changes the same domain                 ConcurrentDomainMetadata
    added rows           read that part of the table (1)         ConcurrentAppend
    removed files        read one of them, or the whole table    ConcurrentDeleteRead
    removed files        removes one of them too                 ConcurrentDeleteDelete
    anything else        any                                     rebase

(0) Except new columns that may be null and have no default, and changes of the high-water marks of
identity columns, if this transaction does not change the metadata. Its rows have nulls in the new
columns, as if it had been committed first; the reference implementation reports a conflict.

(1) Under WriteSerializable a concurrent blind append is ordered after this transaction, unless this
transaction changes the metadata; under Serializable it conflicts. A transaction that only moves
rows between files uses SnapshotIsolation and never conflicts with added rows.

Spec: Delta Log Entries (writers); the rules themselves are those of the reference implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, cast

import msgspec

from dagster_delta.errors import (
    CommitConflict,
    ConcurrentAppend,
    ConcurrentDeleteDelete,
    ConcurrentDeleteRead,
    ConcurrentDomainMetadata,
    ConcurrentTransaction,
    MetadataChanged,
    ProtocolChanged,
)
from dagster_delta.protocol.actions import AddFile, Metadata, Protocol
from dagster_delta.protocol.features.column_mapping import ID_KEY, NESTED_IDS_KEY, PHYSICAL_NAME_KEY
from dagster_delta.protocol.features.column_values import differ_in_marks_only
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_file import CommitActions, CommitContents
from dagster_delta.protocol.schema import StructType, walk_fields

IsolationLevel = Literal["Serializable", "WriteSerializable", "SnapshotIsolation"]

_AGAIN = "read the table again and repeat the write"
_MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
_HARMLESS_KEYS = frozenset({"comment", ID_KEY, NESTED_IDS_KEY, PHYSICAL_NAME_KEY})
"""Field metadata with which a column that a file lacks is null."""


class ReadScope(msgspec.Struct, frozen=True):
    """Which part of the table a transaction depends on; by default none."""

    whole_table: bool = False
    """It depends on every file, present and future."""
    may_hold: Callable[[Sequence[AddFile]], Sequence[AddFile]] | None = None
    """Returns those of some files that could hold rows that satisfy the transaction's predicate.
    One call takes about the time for many files that it takes for one."""
    paths: frozenset[str] = frozenset()
    """Paths of the files whose rows it read, as in the log."""

    @property
    def is_empty(self) -> bool:
        """Whether the transaction depends on nothing: then its commit is a blind append."""
        return not self.whole_table and self.may_hold is None and not self.paths


class TransactionFacts(msgspec.Struct, frozen=True):
    """Facts that the checker needs about the transaction."""

    protocol: Protocol | None
    """Protocol it was planned under; None if the table did not exist."""
    metadata: Metadata | None
    """Metadata it was planned under; None if the table did not exist."""
    isolation_level: IsolationLevel = "WriteSerializable"
    """How strictly it is ordered against concurrent commits."""
    reads: ReadScope = msgspec.field(default_factory=ReadScope)
    """The part of the table it depends on."""
    removed_paths: frozenset[str] = frozenset()
    """Paths of the files it removes."""
    changes_metadata: bool = False
    """Whether it writes a metaData action."""
    app_ids: frozenset[str] = frozenset()
    """Applications whose transaction version it records."""
    domains: frozenset[str] = frozenset()
    """Metadata domains it changes."""
    is_audited: bool = False
    """Whether it was judged by the rows of the whole table, so that no others may change."""
    survives: Callable[[Metadata], bool] | None = None
    """Whether it may still commit after a concurrent commit changed the metadata."""


def check_conflicts(
    mine: TransactionFacts, concurrent_commits: Iterable[CommitActions]
) -> CommitConflict | None:
    """The first conflict with the concurrent commits, oldest first, or None if a rebase is safe.

    It is a value, so that the caller decides how to handle it; its message says what happened and
    what to do now.
    """
    compatible: list[CommitActions] = []
    last: CommitConflict | None = None
    for concurrent in concurrent_commits:
        checks = (
            _find_creation_conflict,
            _find_protocol_conflict,
            _find_metadata_conflict,
            _find_transaction_conflict,
            _find_domain_conflict,
            _find_audit_conflict,
        )
        last = next(filter(None, (check(mine, concurrent) for check in checks)), None)
        if last is not None:
            break
        compatible.append(concurrent)
    # Files of later commits may have values that the transaction does not know.
    found = [
        _find_append_conflict(mine, compatible),
        *(_find_removal_conflict(mine, commit) for commit in compatible),
        last,
    ]
    return min(filter(None, found), key=lambda conflict: conflict.version or 0, default=None)


def isolation_level(configuration: TableConfiguration, contents: CommitContents) -> IsolationLevel:
    """How strictly a commit is ordered against concurrent commits."""
    changes = [add.data_change for add in contents.adds]
    changes += [remove.data_change for remove in contents.removes]
    if changes and not any(changes) and contents.metadata is None:
        # Rows that only move between files are the same under every order of the commits.
        return "SnapshotIsolation"
    if "delta.isolationLevel" not in configuration.metadata.configuration:
        return "WriteSerializable"
    return cast("IsolationLevel", configuration.properties.isolation_level)


def _find_creation_conflict(
    mine: TransactionFacts, concurrent: CommitActions
) -> CommitConflict | None:
    if mine.protocol is not None:
        return None
    return MetadataChanged(
        "another writer created the table first; open it and repeat the write",
        version=concurrent.version,
    )


def _find_protocol_conflict(
    mine: TransactionFacts, concurrent: CommitActions
) -> CommitConflict | None:
    # Stricter than the reference implementation, which accepts writers that support the new
    # protocol: a commit planned under the old protocol may lack what the new one requires.
    if concurrent.protocol is None or concurrent.protocol == mine.protocol:
        return None
    return ProtocolChanged(
        f"another writer changed the table's protocol; {_AGAIN}",
        version=concurrent.version,
    )


def _find_metadata_conflict(
    mine: TransactionFacts, concurrent: CommitActions
) -> CommitConflict | None:
    if concurrent.metadata is None or concurrent.metadata == mine.metadata:
        return None
    if mine.survives is not None and mine.survives(concurrent.metadata):
        return None
    if (
        mine.metadata is not None
        and not mine.changes_metadata
        and adds_nullable_columns(mine.metadata, concurrent.metadata)
    ):
        return None
    if mine.metadata is not None and differ_in_marks_only(mine.metadata, concurrent.metadata):
        # The concurrent commit has assigned identity values; only a transaction that assigns them
        # too would repeat them.
        if not mine.changes_metadata:
            return None
        return MetadataChanged(
            f"another writer assigned values of identity columns, as this write does; {_AGAIN}",
            version=concurrent.version,
        )
    return MetadataChanged(
        f"another writer changed the table's schema or properties; {_AGAIN}",
        version=concurrent.version,
    )


def adds_nullable_columns(before: Metadata, after: Metadata) -> bool:
    """Whether metadata differ only by new columns that are null in every file without them."""
    if _without_schema(before) != _without_schema(after):
        return False
    old, new = (StructType.from_json(text.schema_string) for text in (before, after))
    names = {field.name for field in old}
    added = StructType(tuple(field for field in new if field.name not in names))
    kept = tuple(field for field in new if field.name in names)
    return (
        kept == old.fields
        and all(field.nullable for field in added)
        and all(_HARMLESS_KEYS.issuperset(field.metadata) for _, field in walk_fields(added))
    )


def _without_schema(metadata: Metadata) -> Metadata:
    return msgspec.structs.replace(metadata.without(_MAX_COLUMN_ID), schema_string="")


def _find_transaction_conflict(
    mine: TransactionFacts, concurrent: CommitActions
) -> CommitConflict | None:
    shared = mine.app_ids.intersection(txn.app_id for txn in concurrent.txns)
    if not shared:
        return None
    return ConcurrentTransaction(
        f"another writer committed for the same application ({', '.join(sorted(shared))}); check "
        "that only one process writes under an application id, then repeat the write",
        version=concurrent.version,
    )


def _find_domain_conflict(
    mine: TransactionFacts, concurrent: CommitActions
) -> CommitConflict | None:
    shared = mine.domains.intersection(domain.domain for domain in concurrent.domain_metadata)
    if not shared:
        return None
    return ConcurrentDomainMetadata(
        f"another writer changed the metadata domain {', '.join(sorted(shared))}; {_AGAIN}",
        version=concurrent.version,
    )


def _find_audit_conflict(
    mine: TransactionFacts, concurrent: CommitActions
) -> CommitConflict | None:
    if not mine.is_audited:
        return None
    if not any(add.data_change for add in concurrent.adds) and not any(
        remove.data_change for remove in concurrent.removes
    ):
        return None
    return ConcurrentAppend(
        f"another writer changed rows of the table while this write was audited; {_AGAIN}",
        version=concurrent.version,
    )


def _find_append_conflict(
    mine: TransactionFacts, commits: Sequence[CommitActions]
) -> CommitConflict | None:
    if mine.isolation_level == "SnapshotIsolation":
        return None
    reorders = mine.isolation_level == "WriteSerializable" and not mine.changes_metadata
    added = [
        (add, concurrent.version)
        for concurrent in commits
        if not (reorders and is_blind_append(concurrent))
        for add in concurrent.adds
    ]
    files: Sequence[AddFile] = [add for add, _ in added]
    if not mine.reads.whole_table:
        files = mine.reads.may_hold(files) if files and mine.reads.may_hold is not None else ()
    if not files:
        return None
    return ConcurrentAppend(
        f"another writer added rows to the part of the table this write depends on; "
        f"{_AGAIN}, or restrict it to partitions that no one else writes",
        version=next(version for add, version in added if add is files[0]),
        file=files[0].path,
    )


def is_blind_append(concurrent: CommitActions) -> bool:
    """Whether a commit only added rows, and read none."""
    says_so = (
        concurrent.commit_info is not None and concurrent.commit_info.get("isBlindAppend") is True
    )
    return says_so and not concurrent.removes


def _find_removal_conflict(
    mine: TransactionFacts, concurrent: CommitActions
) -> CommitConflict | None:
    for remove in concurrent.removes:
        if mine.reads.whole_table or remove.path in mine.reads.paths:
            return ConcurrentDeleteRead(
                f"another writer removed a file that this write depends on; {_AGAIN}",
                version=concurrent.version,
                file=remove.path,
            )
        if remove.path in mine.removed_paths:
            return ConcurrentDeleteDelete(
                f"another writer removed a file that this write removes too; {_AGAIN}",
                version=concurrent.version,
                file=remove.path,
            )
    return None
