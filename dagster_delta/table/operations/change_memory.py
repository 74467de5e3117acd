"""The memory of AUTO CDC: one Delta table beside the target, `<target>_auto_cdc`, with the events
that the target does not show by itself.

Two tables cannot be committed together, so **the target's commit decides**: its `txn` action
`dagster-delta/auto-cdc` names the version of the memory that belongs to its rows. The memory is
written first. A crash between the two leaves a version of the memory that no version of the target
names: it is never read, and the next run goes back to the one that is named before it writes. So
a rerun neither loses an event nor has one twice, and an older version of the target finds its own
memory (RESTORE takes the `txn` back with the rows).

Two writers conflict in the target, since each commit of AUTO CDC has that `txn` action, and one of
them is planned again. In the memory each commit names its generation, also a `txn`: the content of
two versions of one generation is the same, so that compaction of the memory is no change. It is
the next version of the memory, and no count: a table that was restored goes on from an older
memory, and what it remembers then is not what it had remembered before.

Without a `txn` in the target the memory is empty; what is there is of a table that was replaced.

Spec: Transaction Identifiers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from dagster_delta.engines.statements.change_replay import (
    KIND_COLUMN,
    SEQUENCE_COLUMN,
    SNAPSHOT,
    TRUNCATE,
    ReplayRules,
)
from dagster_delta.engines.statements.unchanged_rows import equality_of_structs
from dagster_delta.errors import (
    CommitConflict,
    ConcurrentTransaction,
    InvalidArgument,
    InvalidTable,
    SchemaMismatch,
    TableNotFound,
)
from dagster_delta.protocol.features.type_widening import is_widening
from dagster_delta.protocol.schema import DataType, PrimitiveType, StructType
from dagster_delta.sql.typed import quote
from dagster_delta.storage import open_store
from dagster_delta.table.operations.create import create
from dagster_delta.table.operations.merge import merge
from dagster_delta.table.operations.overwrite import overwrite
from dagster_delta.table.operations.restore import restore
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.table_handle import TableHandle
from dagster_delta.table.transaction.commit_result import (
    CHANGE_MEMORY,
    MEMORY_GENERATION,
    NOT_FOLLOWED,
    AppTransaction,
    lasting_transactions,
)

if TYPE_CHECKING:
    from dagster_delta.storage.object_store import ObjectStore

MEMORY_PROPERTY = "dagsterDelta.autoCdcOf"
"""Table property, the mark of a memory: the id of the table that it belongs to."""

MEMORY_SUFFIX = "_auto_cdc"


class ChangeMemory(msgspec.Struct, frozen=True):
    """The memory of one version of a table."""

    store: ObjectStore
    """Of the memory."""
    owner: str
    """Id of the table."""
    recorded: int | None
    """The version that the `txn` of the table names; None or `NOT_FOLLOWED` if it names none."""
    content: Snapshot | None
    """The memory at that version; None if it is empty."""

    @classmethod
    def of(cls, target: Snapshot) -> ChangeMemory:
        """The memory of a version of a table. Raises InvalidTable if it is not there."""
        store, owner, uri = (
            _open_memory(target.store),
            target.metadata.id,
            target.store.location.uri,
        )
        if not target.exists:
            return cls(store, owner, None, None)
        names = {txn.app_id: txn.version for txn in lasting_transactions(target)}
        recorded = names.get(CHANGE_MEMORY)
        if recorded is None or recorded == NOT_FOLLOWED:
            return cls(store, owner, recorded, None)
        try:
            latest = Snapshot.load(store)
            content = latest
            if _generation(latest) != recorded:
                content = Snapshot.load(store, version=recorded)
        except TableNotFound as error:
            error.message = (
                f"the table {uri} follows change events, and what it remembers of them "
                "is not beside it any more: copy it there, too, or overwrite the table and apply "
                f"all events again ({error.message})"
            )
            raise
        if content.metadata.configuration.get(MEMORY_PROPERTY) != owner:
            raise InvalidTable(
                f"the table {uri} remembers change events in this table, which belongs to "
                "another one: overwrite the table, and apply all events again",
                table=store.location.uri,
            )
        if _generation(latest) == _generation(content):
            content = latest
        return cls(store, owner, recorded, content)

    @classmethod
    def beside(cls, target: ObjectStore, owner: str, existing: Snapshot | None) -> ChangeMemory:
        """The memory of a table that may not exist yet, to be replaced; `owner` is its id."""
        if existing is not None and follows_events(existing):
            return cls.of(existing)
        return cls(_open_memory(target), owner, None, None)

    @property
    def sequence_type(self) -> DataType | None:
        """The type of the sequences; None if nothing is remembered."""
        if self.content is None:
            return None
        return self.content.schema.field(SEQUENCE_COLUMN).data_type

    def check_columns(self, rules: ReplayRules, table: StructType) -> None:
        """Refuse to read values under the names that columns of the table had before, or as another
        type: rows would lose them, or take those of a column that was dropped.

        Raises:
            SchemaMismatch: a column was renamed in the table, or dropped and added again.
        """
        if self.content is None or not rules.remembers_values:
            return
        known = self.content.schema
        former = {*known.names} - {*table.names, SEQUENCE_COLUMN, KIND_COLUMN}
        problem = None
        for field in rules.values:
            mine = known.get(field.name)
            if mine is None and former and table.get(field.name) is not None:
                problem = f"has no column {field.name}, and has {', '.join(sorted(former))}"
            elif mine is not None and not _reads_as(mine.data_type, field.data_type):
                problem = f"has {field.name} as {mine.data_type}, and not as {field.data_type}"
        if problem is not None:
            raise SchemaMismatch(
                f"what the table remembers of change events {problem}, so a column of the table "
                "was renamed or dropped: do the same in the table with these events (RENAME "
                "COLUMN or DROP COLUMN, with delta.columnMapping.mode = name), and run again",
                table=self.store.location.uri,
                version=self.content.version,
            )

    def unchanged(self) -> AppTransaction:
        """The `txn` of a commit that depends on the memory and does not change it."""
        version = NOT_FOLLOWED if self.recorded is None else self.recorded
        return AppTransaction(CHANGE_MEMORY, version, self.recorded)

    def marks(self) -> pa.Table | None:
        """The entries without a key; None if there are none."""
        if self.content is None:
            return None
        where = f"{KIND_COLUMN} IN ('{TRUNCATE}', '{SNAPSHOT}')"
        found: pa.Table = self.content.scan(where=where).to_arrow()
        return found if found.num_rows else None

    def has_before(self, before: str) -> bool:
        """Whether it remembers an event before a sequence."""
        if self.content is None:
            return False
        where = f"{SEQUENCE_COLUMN} < ({before}\n) AND {KIND_COLUMN} <> '{SNAPSHOT}'"
        return any(batch.num_rows for batch in self.content.scan(where=where).to_batches())

    def remember(
        self,
        rows: object,
        rules: ReplayRules,
        *,
        forget_before: str | None,
        engine: str | None,
        commit_info: Mapping[str, object] | None,
    ) -> AppTransaction:
        """Write events into the memory; the `txn` with which the table names the new version.

        Raises:
            CommitConflict: another writer has written the memory meanwhile.
        """
        table = self._writable(rules.memory)
        latest = table._existing()
        generation = _generation(latest)
        columns = {name: f"s.{quote(name)}" for name in rules.memory.names}
        by = [*rules.keys, *([SEQUENCE_COLUMN] if rules.remembers_values else [])]
        on = " AND ".join(
            equality_of_structs(
                f"t.{quote(name)}", f"s.{quote(name)}", rules.memory.field(name).data_type
            )
            for name in by
        )
        # Entries without a key are told apart by their kind.
        on += f" AND (s.{quote(rules.keys[0])} IS NOT NULL OR t.{KIND_COLUMN} = s.{KIND_COLUMN})"
        builder = merge(
            table,
            rows,
            on,
            progress=[AppTransaction(MEMORY_GENERATION, latest.version + 1, generation)],
            schema_mode="merge",
            commit_info=commit_info,
            engine=engine,
            on_conflict="fail",
        ).when_matched_update(columns)
        kept = None
        if forget_before is not None:
            old = f"{{0}}.{SEQUENCE_COLUMN} < ({forget_before}\n)"
            kept = f"NOT coalesce({old.format('s')}, false) OR s.{KIND_COLUMN} = '{SNAPSHOT}'"
            builder = builder.when_not_matched_by_source_delete(
                f"{old.format('t')} AND t.{KIND_COLUMN} <> '{SNAPSHOT}'"
            )
        try:
            committed = builder.when_not_matched_insert(columns, kept).execute()
        except ConcurrentTransaction as conflict:
            raise self._written_meanwhile(latest.version) from conflict
        return AppTransaction(CHANGE_MEMORY, committed.version, self.recorded)

    def take_over(
        self, other: ChangeMemory, *, commit_info: Mapping[str, object] | None = None
    ) -> int:
        """Replace all that is remembered by what another table remembers. The version that the
        `txn` of the table is to name, together with the rows of the other table.

        Raises:
            CommitConflict: another writer has written the memory meanwhile.
        """
        if other.content is None:
            return NOT_FOLLOWED
        schema = other.content.schema
        table = self._writable(schema)
        latest = table._existing()
        generation = AppTransaction(MEMORY_GENERATION, latest.version + 1, _generation(latest))
        try:
            committed = overwrite(
                table,
                other.content.scan().to_batches(),
                schema_mode="strict" if latest.schema == schema else "overwrite",
                progress=[generation],
                commit_info=commit_info,
                on_conflict="fail",
            )
        except ConcurrentTransaction as conflict:
            raise self._written_meanwhile(latest.version) from conflict
        return committed.version

    def _writable(self, schema: StructType) -> TableHandle:
        """The memory with the content that the version of the table names."""
        table = TableHandle("", store=self.store, must_exist=False)
        latest = table._latest()
        if self.content is None:
            # What is there belongs to no version of the table.
            mark = None if latest is None else latest.metadata.configuration.get(MEMORY_PROPERTY)
            if latest is not None and mark is None:
                raise InvalidArgument(
                    "AUTO CDC remembers events beside the table, and the table there has another "
                    f"purpose (it lacks the property {MEMORY_PROPERTY}): give one of both another "
                    "location",
                    table=self.store.location.uri,
                )
            return create(
                TableHandle,
                "",
                schema,
                properties={MEMORY_PROPERTY: self.owner, **_PROPERTIES},
                description="What AUTO CDC remembers of change events. It belongs to the table "
                "beside it, is written with it, and is not to be changed by hand.",
                mode="replace" if latest is not None else "ignore",
                store=self.store,
            )
        if latest is not None and _generation(latest) != _generation(self.content):
            try:
                restore(table, self.content.version, force=True)
            except ConcurrentTransaction as conflict:
                raise self._written_meanwhile(latest.version) from conflict
        return table

    def _written_meanwhile(self, version: int) -> CommitConflict:
        return CommitConflict(
            "another run has applied change events to the table meanwhile; plan them again",
            table=self.store.location.uri,
            version=version,
        )


_PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableTypeWidening": "true",
    # A crashed run may have removed files that the table still needs.
    "delta.deletedFileRetentionDuration": "interval 30 days",
}


def follows_events(table: Snapshot) -> bool:
    """Whether a table has a memory."""
    return table.transaction_version(CHANGE_MEMORY) not in (None, NOT_FOLLOWED)


def _open_memory(table: ObjectStore) -> ObjectStore:
    return open_store(table.location.uri.rstrip("/") + MEMORY_SUFFIX, table.location.options)


def _generation(memory: Snapshot) -> int | None:
    return memory.transaction_version(MEMORY_GENERATION)


def _reads_as(stored: DataType, wanted: DataType) -> bool:
    """Whether values of the memory are read as the type that a column of the table has by now."""
    if not (isinstance(stored, PrimitiveType) and isinstance(wanted, PrimitiveType)):
        return type(stored) is type(wanted)
    return stored == wanted or is_widening(stored, wanted)
