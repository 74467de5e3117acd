"""The result of a commit, and the `txn` actions to record with it.

Spec: Transaction Identifiers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.features.column_values import filled_columns
from dagster_delta.protocol.schema import StructType, fold_name

if TYPE_CHECKING:
    from dagster_delta.engines.plans import ObservedRows, SetAside
    from dagster_delta.protocol.actions import SetTransaction as SetTransaction
    from dagster_delta.table.read.snapshot import Snapshot

FOLLOWED_TABLE_PREFIX = "dagster/changes/"
"""Begins the ids of applications whose version is the one of another table up to which the rows of
this table follow it. Who replaces the rows as a whole, such as RESTORE, replaces these versions."""

LOADED_FILE_PREFIX = "dagster-delta/file/"
"""Begins the ids of files whose rows this table has, with the time of the file as the version."""

CHANGE_MEMORY = "dagster-delta/auto-cdc"
"""The application whose version is that of the memory beside the table, see
`table/operations/change_memory.py`; it goes back with the rows."""

MEMORY_GENERATION = "dagster-delta/generation"
"""The application in that memory whose version tells its contents apart."""

NOT_FOLLOWED = -1
"""The version of such a table or file whose rows this table does not have any more."""


class RowQuarantine(Protocol):
    """A table beside another one, for rows that violate an expectation with `quarantine`."""

    def plan_rows(self) -> SetAside:
        """How its rows are written. The table exists then."""

    def replace_written(self, observed: ObservedRows) -> None:
        """Make the rows of this write those of some files, as one commit."""


class CommitResult(msgspec.Struct, frozen=True):
    """Result of one commit."""

    version: int
    """Version of the commit; for a skipped one, the version at which there was nothing to do."""
    metrics: Mapping[str, int | str]
    """Operation metrics by the names of commitInfo: `numFiles`, `numOutputRows`, …"""
    snapshot: Snapshot
    """The table at that version."""
    skipped: bool = False
    """True when nothing was written: the application's transaction was already committed, or no row
    had to be changed."""
    attempts: int = 1
    """How often the statement was planned: more than once after conflicts."""
    compacted_version: int | None = None
    """Version of the auto compaction after the commit, if that was due
    (`delta.autoOptimize.autoCompact`)."""
    kept_parts: tuple[str, ...] = ()
    """Parts of the slice that had rows, and that `if_present="skip"` left as they were."""
    data_schema: StructType | None = None
    """Columns of the rows that were given to an append or an overwrite, if they were read."""
    observed: ObservedRows | None = None
    """How the rows met their expectations; None if there were none."""

    @property
    def null_columns(self) -> tuple[str, ...]:
        """Columns of the table, dotted, that the given rows lacked, and that are null in them."""
        if self.data_schema is None:
            return ()
        from dagster_delta.evolution.merge_schema import diff_schemas

        filled = {fold_name(name) for name in filled_columns(self.snapshot.configuration)}
        missing = diff_schemas(self.snapshot.schema, self.data_schema).missing
        return tuple(item.column for item in missing if fold_name(item.path[0]) not in filled)


class AppTransaction(msgspec.Struct, frozen=True):
    """The `txn` action to record with a commit, and the version that the table must have before.

    Spec: Transaction Identifiers.
    """

    app_id: str
    version: int
    """Version that the commit records."""
    after: int | None
    """Version that the table must record before; None if it must record none. Another version means
    that another writer has already done a part of the work."""


def lasting_transactions(snapshot: Snapshot) -> tuple[SetTransaction, ...]:
    """The transactions of a table, for those who rely on all of them. Raises InvalidArgument if the
    table forgets them in time.
    """
    if snapshot.configuration.properties.set_transaction_retention_ms is not None:
        raise InvalidArgument(
            "the table has delta.setTransactionRetentionDuration, with which it forgets what it "
            "has loaded or followed of other tables: unset the property",
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )
    return snapshot.transactions()
