"""The quarantine of a table: one table beside it, with the rows that were left out of it, as text,
and what was wrong with each.

It is committed before the table. Rows belong to a load, the application id and version of the `txn`
that the table records with it. Whoever repeats a load, because it crashed before the table was
committed, replaces the rows of that load: so there are never more than those of one attempt. A
later version of the load replaces those of an attempt that the table never had.

Spec: Transaction Identifiers.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from dagster_delta import clock
from dagster_delta.errors import (
    ConcurrentTransaction,
    DeltaError,
    InvalidArgument,
    MetadataChanged,
    ProtocolChanged,
    TableNotFound,
)
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.expectations import ObservedRows, SetAside, WriteResult
from dagster_delta.table.operations.overwrite import overwrite_rows
from dagster_delta.table.operations.write_planning import WriteOptions
from dagster_delta.table.operations.write_rows import RowWrite
from dagster_delta.table.transaction.transaction import AppTransaction

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot

QUARANTINE_PROPERTY = "dagsterDelta.quarantineOf"
"""Table property, the mark of a quarantine: the asset whose rows were left out of its table."""

_SUFFIX = "_quarantine"

REJECTED_PROPERTY = "dagsterDelta.rejectedOf"
"""Table property, the mark of rows that audits have stopped: the asset that they were for."""

REJECTED_SUFFIX = "_rejected"

_MARKS = {_SUFFIX: QUARANTINE_PROPERTY, REJECTED_SUFFIX: REJECTED_PROPERTY}
"""Ends of the locations of tables beside others, and the property of each."""

_SCHEMA = pa.schema(
    [
        pa.field("row", pa.string()),
        pa.field("reasons", pa.list_(pa.string())),
        pa.field("file", pa.string()),
        pa.field("row_number", pa.int64()),
        pa.field("run_id", pa.string()),
        pa.field("quarantined_at", pa.timestamp("us", "UTC")),
        pa.field("load_id", pa.string()),
    ]
)

_ROWS_OF_BATCH = 1000

_EXPECTATIONS = "dagster-delta/expectations/"


class Load(msgspec.Struct, frozen=True):
    """What a table loads at most once: the application id and version of its `txn`."""

    app_id: str
    version: int

    @property
    def load_id(self) -> str:
        """Identifies the load in the rows; digits and letters alone."""
        return hashlib.sha256(f"{self.app_id}@{self.version}".encode()).hexdigest()[:32]


class QuarantinedRow(msgspec.Struct, frozen=True):
    """A row that a load leaves out of its table."""

    load: Load
    row: str
    """Its text."""
    reasons: Sequence[str]
    """What is wrong with it."""
    file: str | None = None
    row_number: int | None = None
    """Its position in the file, from 1."""


class Quarantine(msgspec.Struct, frozen=True):
    """The quarantine of one table."""

    uri: str
    owner: str
    """The asset that writes the table."""
    storage_options: Mapping[str, object]
    commit_info: Mapping[str, object]

    # Storage options may hold secrets.
    def __repr__(self) -> str:
        return f"Quarantine({self.uri!r})"

    @classmethod
    def beside(
        cls,
        table_uri: str,
        owner: str,
        storage_options: Mapping[str, object],
        commit_info: Mapping[str, object],
    ) -> Quarantine:
        """The quarantine of a table: its location, followed by `_quarantine`."""
        return cls(table_uri.rstrip("/") + _SUFFIX, owner, storage_options, commit_info)

    def replace_rows(
        self,
        counts: Mapping[Load, int],
        rows: Callable[[], Iterator[QuarantinedRow]],
        loaded: Mapping[str, int | None],
    ) -> int:
        """The number of rows, after making them those of their loads, as one commit.

        Args:
            counts: how many rows each load leaves out; also 0, for a load whose earlier attempt
                may have left some out.
            rows: the rows of all loads; called again after a conflict.
            loaded: by application id, the version whose rows stay although a load follows it.

        Raises:
            InvalidArgument: another table is at this location.
        """
        while True:
            table = DeltaTable(self.uri, storage_options=self.storage_options, must_exist=False)
            try:
                known = self._known_loads(table.snapshot())
            except TableNotFound:
                known = {}
            loads = [load for load, count in counts.items() if count or load.app_id in known]
            if not loads:
                return 0
            is_known = any(load.app_id in known for load in loads)
            replaced = set(_replaced_loads(loads, known, loaded)) if is_known else ()
            reader = pa.RecordBatchReader.from_batches(_SCHEMA, self._make_batches(rows()))
            progress = [
                AppTransaction(load.app_id, load.version, known.get(load.app_id)) for load in loads
            ]
            try:
                self._commit_rows(table, reader, progress, replaced)
            except (ConcurrentTransaction, MetadataChanged, ProtocolChanged):
                # A run at the same time has left out rows of the same loads, or created the table.
                continue
            return sum(counts.values())

    def open_or_create(self) -> DeltaTable:
        """The table, which is created if it does not exist. Raises as `replace_rows`."""
        table = DeltaTable.create(
            self.uri,
            _SCHEMA,
            mode="ignore",
            properties={QUARANTINE_PROPERTY: self.owner},
            description=self._description,
            storage_options=self.storage_options,
        )
        self._known_loads(table.snapshot())
        return table

    @property
    def _description(self) -> str:
        return f"Rows that were left out of the table of {self.owner}, and why."

    def _known_loads(self, snapshot: Snapshot) -> dict[str, int]:
        if QUARANTINE_PROPERTY not in snapshot.metadata.configuration:
            raise InvalidArgument(
                f"{self.owner} leaves bad rows to the table {self.uri}, and the one there has "
                f"another purpose (it lacks the property {QUARANTINE_PROPERTY}): give one of both "
                "another location by the metadata schema or table_name",
                table=self.uri,
            )
        return {txn.app_id: txn.version for txn in snapshot.transactions()}

    def _commit_rows(
        self,
        table: DeltaTable,
        rows: pa.RecordBatchReader,
        progress: Sequence[AppTransaction],
        replaced: Iterable[Load],
    ) -> None:
        ids = ", ".join(sorted(f"'{load.load_id}'" for load in replaced))
        if ids:
            table.overwrite(
                rows,
                where=f"load_id IN ({ids})",
                progress=progress,
                commit_info=self.commit_info,
            )
            return
        table.append(
            rows,
            progress=progress,
            commit_info=self.commit_info,
            properties={QUARANTINE_PROPERTY: self.owner},
            description=self._description,
        )

    def _make_batches(self, rows: Iterator[QuarantinedRow]) -> Iterator[pa.RecordBatch]:
        now = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
        run = {"run_id": self.commit_info.get("dagsterRunId"), "quarantined_at": now}
        while some := list(islice(rows, _ROWS_OF_BATCH)):
            fields = [
                {**msgspec.structs.asdict(row), "load_id": row.load.load_id, **run} for row in some
            ]
            yield pa.RecordBatch.from_pylist(fields, schema=_SCHEMA)


class WriteQuarantine(msgspec.Struct, frozen=True):
    """The quarantine for the rows of one write that violate expectations. A repeated attempt of the
    write replaces them.
    """

    quarantine: Quarantine
    load: Load
    """Identifies the write over its attempts."""

    @classmethod
    def of_write(
        cls,
        quarantine: Quarantine,
        idempotency: tuple[str, int] | None,
        progress: Sequence[AppTransaction],
    ) -> WriteQuarantine:
        """The quarantine of a write that is identified by the `txn` actions of its commit."""
        # Loads of files and of changes continue from what the table has, in whatever run.
        begins = sorted((known.app_id, known.after or 0) for known in progress)
        identity = idempotency or begins or uuid.uuid4()
        return cls(quarantine, Load(f"{_EXPECTATIONS}{quarantine.owner}/{identity}", 1))

    def plan_rows(self) -> SetAside:
        """How its rows are written, after creating the table. Raises as `replace_rows`."""
        quarantine = self.quarantine
        table = quarantine.open_or_create()
        write = RowWrite(table.store, None, self._make_options(), clock.now_ms)
        planned = write.plan(table.snapshot(), table.schema())
        commit_info = quarantine.commit_info
        now = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
        constants = {
            "run_id": commit_info.get("dagsterRunId"),
            "quarantined_at": now,
            "load_id": self.load.load_id,
        }
        return SetAside(planned.spec, constants)

    def replace_written(self, observed: ObservedRows) -> None:
        """Make the rows of the write those of some files, as one commit."""
        table = self.quarantine.open_or_create()
        snapshot = table.snapshot()
        options = self._make_options()
        if not snapshot.scan(("load_id",), options.where).count() and not observed.files:
            return
        written = WriteResult(observed.files, observed.num_set_aside)
        planned = RowWrite(table.store, None, options, clock.now_ms).plan(snapshot, table.schema())
        write = RowWrite(table.store, None, options, clock.now_ms, planned, written)
        overwrite_rows(write, snapshot)

    def _make_options(self) -> WriteOptions:
        return WriteOptions(
            where=f"load_id = '{self.load.load_id}'", commit_info=self.quarantine.commit_info
        )


def _replaced_loads(
    loads: Iterable[Load], known: Mapping[str, int], loaded: Mapping[str, int | None]
) -> Iterator[Load]:
    """The loads, and those before them that the table never had, or that they repeat: their files
    were delivered again since.
    """
    for load in loads:
        yield load
        last = known.get(load.app_id)
        if last is not None and last != loaded.get(load.app_id):
            yield Load(load.app_id, last)


def without_quarantines(
    uris: Sequence[str], storage_options: Mapping[str, object] | None
) -> list[str]:
    """The tables among some, without those beside others of them: quarantines, and rows that audits
    have stopped.
    """
    known = set(uris)

    def is_beside(uri: str) -> bool:
        for suffix, mark in _MARKS.items():
            if not uri.endswith(suffix) or uri.removesuffix(suffix) not in known:
                continue
            try:
                snapshot = DeltaTable(uri, storage_options=storage_options).snapshot()
            except DeltaError:
                # Whoever takes the table reports it.
                return False
            return mark in snapshot.metadata.configuration
        return False

    return [uri for uri in uris if not is_beside(uri)]
