"""Drawn histories of writers, readers and publishers of a table whose commits a catalog takes, with
lost requests, lost replies and refusals.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dagster_delta import DeltaTable
from dagster_delta.catalogs import UnityCatalog
from dagster_delta.errors import CommitStateUnknown, StorageFailure
from tests.catalogs.unity_server import Fault, Refusal, UnityServer

NAME = "main.shop.orders"
REFUSALS = {
    "unknown": Refusal(500, "CommitStateUnknownException", "unknown"),
    "conflict": Refusal(409, "UpdateRequirementConflictException", "a commit is in progress"),
    "forbidden": Refusal(403, "PermissionDeniedException", "not now"),
}
FAULTS = st.sampled_from(["none", "none", "lose_request", "lose_reply", *REFUSALS])


class ManagedTable(RuleBasedStateMachine):
    """Rows whose append returned are there once; those of a failed one at most once."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.server = UnityServer(Path(self.directory.name) / "storage")
        self.server.max_unpublished = 3
        self.catalog = UnityCatalog(self.server.uri)
        location = self.catalog.new_table(NAME)
        schema = pa.schema([("id", pa.int64())])
        created = DeltaTable.create(location.uri, schema, storage_options=location.options)
        self.writers = [created, self.open_table()]
        self.next_id, self.done, self.unknown = 0, set[int](), set[int]()

    def open_table(self) -> DeltaTable:
        location = self.catalog.resolve(NAME)
        return DeltaTable(location.uri, storage_options=location.options)

    @rule(
        writer=st.integers(0, 1),
        fault=FAULTS,
        request=st.sampled_from(["add-commit", "latest-backfilled"]),
        times=st.integers(1, 2),
    )
    def append(self, writer: int, fault: str, request: str, times: int) -> None:
        if fault != "none":
            refusal = REFUSALS.get(fault)
            kind = fault if refusal is None else "answer"
            self.server.faults = [Fault("POST", "/tables/orders", kind, request, refusal, times)]
        self.next_id += 1
        try:
            self.writers[writer].append(pa.table({"id": [self.next_id]}))
            self.done.add(self.next_id)
        except (StorageFailure, CommitStateUnknown):
            self.unknown.add(self.next_id)
        self.server.faults = []

    @rule(writer=st.integers(0, 1))
    def reopen(self, writer: int) -> None:
        self.writers[writer] = self.open_table()

    @rule(writer=st.integers(0, 1))
    def checkpoint(self, writer: int) -> None:
        self.writers[writer].checkpoint()

    @invariant()
    def rows_are_there_once(self) -> None:
        opened = self.open_table()
        found = opened.snapshot().scan().to_arrow()["id"].to_pylist()
        assert len(set(found)) == len(found)
        assert self.done <= set(found) <= self.done | self.unknown
        assert opened.version() == self.server.find(NAME).latest == len(found)

    def teardown(self) -> None:
        self.server.__exit__()
        self.directory.cleanup()


TestManagedTable = ManagedTable.TestCase
TestManagedTable.settings = settings(
    max_examples=4,
    stateful_step_count=6,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
