"""Files of a change that was not committed go, and what went wrong is what the caller sees."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.errors import CommitConflict, CommitStateUnknown, CorruptLog, StorageFailure
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.write_planning import write_spec
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction import transaction as transaction_module
from dagster_delta.table.transaction.transaction import Transaction
from dagster_delta.testing.faulty_store import Fault, FaultyStore, Operation
from tests.table.handles import data_files

ROWS = pa.table({"id": pa.array(range(20_000), pa.int64())})


WRITES: dict[str, Callable[[DeltaTable], object]] = {
    "append": lambda table: table.append(ROWS),
    "overwrite": lambda table: table.overwrite(ROWS),
    "delete": lambda table: table.delete("id % 3 = 0"),
    "update": lambda table: table.update({"id": "id + 1"}, where="id % 3 = 0"),
    "merge": lambda table: (
        table.merge(ROWS, on="t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_update_all()
        .execute()
    ),
}


def made() -> MemoryStore:
    store = MemoryStore()
    properties = {"delta.enableDeletionVectors": "true"}
    DeltaTable.create("", ROWS.schema, store=store, properties=properties).append(ROWS)
    return store


def refuse(*operations: Operation, path: str) -> Callable[[Operation, str], None]:
    """Has a `FaultyStore` refuse operations, each by its name, on paths that contain some text."""

    def check(operation: Operation, called: str) -> None:
        if operation in operations and path in called:
            raise StorageFailure(f"{operation} refused")

    return check


def test_a_refused_delete_does_not_hide_why_deletion_vectors_were_not_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FaultyStore(made(), before_call=refuse("put", "delete", path="deletion_vector"))
    with caplog.at_level(logging.WARNING), pytest.raises(StorageFailure, match="put refused"):
        DeltaTable("", store=store).delete("id % 3 = 0")
    assert "delete refused" in caplog.text


def staged(store: Any) -> Transaction:
    """A transaction that has a file of its own."""
    snapshot = Snapshot.load(store)
    transaction = Transaction(store, snapshot)
    spec = write_spec(snapshot.configuration, store.location, check_rows=False)
    transaction.stage_written(ArrowEngine().write(ROWS, spec, store=store).files)
    return transaction


@pytest.mark.parametrize("write", ["append", "overwrite", "delete", "update", "merge"])
def test_files_go_where_the_commit_of_another_writer_is_damaged(write: str) -> None:
    store, raced = made(), list[str]()
    before = data_files(store)

    def rival(operation: Operation, path: str) -> None:
        if operation == "put_if_absent" and path.endswith(".json") and not raced:
            raced.append(path)
            store.put(path, b'{"add":{"path":')

    with pytest.raises(CorruptLog):
        WRITES[write](DeltaTable("", store=FaultyStore(store, before_call=rival)))
    assert raced
    assert data_files(store) == before


def test_files_stay_where_the_damaged_commit_may_be_their_own() -> None:
    store = made()

    def damage(operation: Operation, path: str) -> None:
        if operation == "read" and path == commit_path(2):
            store.put(path, store.read(path)[:-1])

    faults = [Fault("lose_reply", "put_if_absent", commit_path(2))]
    table = DeltaTable("", store=FaultyStore(store, faults, before_call=damage))
    before = data_files(store)
    with pytest.raises(CommitStateUnknown, match="txnId"):
        table.append(ROWS)
    assert len(data_files(store)) == len(before) + 1


def test_files_of_a_change_that_fails_before_its_commit_go() -> None:
    store = made()
    before, transaction = data_files(store), staged(store)
    with pytest.raises(ZeroDivisionError), transaction.created_files:
        raise ZeroDivisionError
    assert data_files(store) == before


def test_files_that_a_commit_refers_to_are_no_longer_the_transactions_to_delete() -> None:
    store = made()
    transaction = staged(store)
    transaction.commit("WRITE")
    written = data_files(store)
    transaction.created_files.delete()
    assert data_files(store) == written


@pytest.mark.parametrize("error", [StorageFailure("no answer"), CommitStateUnknown("no answer")])
def test_files_that_a_commit_may_refer_to_stay(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_no_answer(*_: object, **__: object) -> None:
        raise error

    store = made()
    transaction = staged(store)
    written = data_files(store)
    monkeypatch.setattr(transaction_module, "commit_with_retry", give_no_answer)
    with pytest.raises(type(error)):
        transaction.commit("WRITE")
    transaction.created_files.delete()
    assert data_files(store) == written


def test_files_of_a_refused_commit_are_the_transactions_until_it_gives_up() -> None:
    store = made()
    before, transaction = data_files(store), staged(store)
    transaction.depend_on(ReadScope(whole_table=True))
    DeltaTable("", store=store).delete()
    with pytest.raises(CommitConflict):
        transaction.commit("WRITE", keeps_files=True)
    assert data_files(store) > before
    transaction.created_files.delete()
    assert data_files(store) == before
