"""Commits through Unity Catalog when replies are lost, servers fail, tokens end and writers die."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.catalogs import UnityCatalog
from dagster_delta.catalogs.unity_store import ManagedLogStore, UnityTable
from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.storage import StoreLocation, open_store
from dagster_delta.testing.faulty_store import Fault as StoreFault
from dagster_delta.testing.faulty_store import FaultyStore, SimulatedCrash
from tests.catalogs.unity_server import Fault, Refusal, UnityServer

NAME = "main.shop.orders"
SCHEMA = pa.schema([("id", pa.int64())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def open_table(location: StoreLocation) -> DeltaTable:
    return DeltaTable(location.uri, storage_options=location.options)


def ids_of(table: DeltaTable) -> list[int]:
    return sorted(table.snapshot().scan().to_arrow()["id"].to_pylist())


@pytest.fixture
def table(catalog: UnityCatalog) -> DeltaTable:
    location = catalog.new_table(NAME)
    return DeltaTable.create(location.uri, SCHEMA, storage_options=location.options)


UNKNOWN = Refusal(500, "CommitStateUnknownException", "unknown")
BUSY = Refusal(429, "TooManyRequestsException", "slow down")
CONFLICT = Refusal(409, "UpdateRequirementConflictException", "a commit is in progress")


@pytest.mark.parametrize(
    "fault",
    [
        Fault("POST", "/tables/orders", "lose_reply", "add-commit"),
        Fault("POST", "/tables/orders", "lose_request", "add-commit"),
        Fault("POST", "/tables/orders", "answer", "add-commit", UNKNOWN),
        Fault("POST", "/tables/orders", "answer", "add-commit", BUSY),
        Fault("POST", "/tables/orders", "answer", "add-commit", CONFLICT),
        Fault("POST", "/tables/orders", "lose_reply", "latest-backfilled"),
        Fault("GET", "/tables/orders", "lose_request"),
        Fault("GET", "/tables/orders", "answer", refusal=Refusal(503, "", "away"), times=2),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.body_contains}-{fault.refusal}",
)
def test_append_is_committed_once(
    server: UnityServer, catalog: UnityCatalog, table: DeltaTable, fault: Fault
) -> None:
    server.faults.append(Fault(**fault.__dict__))
    table.append(rows(1))
    assert server.faults[0].times == 0 or fault.method == "GET"
    assert server.find(NAME).latest == 1
    assert ids_of(open_table(catalog.resolve(NAME))) == [1]
    table.append(rows(2))
    assert ids_of(table) == [1, 2]
    assert not server.find(NAME).commits


def test_creation_whose_reply_was_lost_is_complete(
    server: UnityServer, catalog: UnityCatalog
) -> None:
    server.faults.append(Fault("POST", "/schemas/shop/tables", "lose_reply", "last-commit"))
    location = catalog.new_table(NAME)
    table = DeltaTable.create(location.uri, SCHEMA, storage_options=location.options)
    table.append(rows(1))
    assert ids_of(open_table(catalog.resolve(NAME))) == [1]


def test_creation_that_ended_before_it_was_registered_is_finished_by_another(
    server: UnityServer, catalog: UnityCatalog
) -> None:
    lost = Fault("POST", "/schemas/shop/tables", "lose_request", "last-commit", times=9)
    server.faults.append(lost)
    location = catalog.new_table(NAME)
    with pytest.raises(StorageFailure, match="did not answer"):
        DeltaTable.create(location.uri, SCHEMA, storage_options=location.options)
    assert not catalog.has_table(NAME)
    lost.times = 0
    table = DeltaTable(location.uri, storage_options=location.options, must_exist=False)
    table.append(rows(1))
    assert ids_of(open_table(catalog.resolve(NAME))) == [1]


def crashing(location: StoreLocation, fault: StoreFault) -> DeltaTable:
    """The table in a process that dies at a call of the storage."""
    opened = open_store(location.uri, location.options)
    assert isinstance(opened, ManagedLogStore)
    own = {name: v for name, v in location.options.items() if name.startswith("unity_catalog_")}
    faulty = FaultyStore(opened._inner, [fault])
    store = ManagedLogStore(faulty, UnityTable.of_options(own), location.options)
    return DeltaTable(location.uri, store=store)


@pytest.mark.parametrize(
    ("path", "kind", "committed"),
    [
        ("_staged_commits", "crash_before", False),
        ("_staged_commits", "crash_after", False),
        (f"_delta_log/{1:020d}.json", "crash_before", True),
        (f"_delta_log/{1:020d}.json", "crash_after", True),
    ],
)
def test_writer_that_dies_loses_nothing_that_was_accepted(
    server: UnityServer,
    catalog: UnityCatalog,
    table: DeltaTable,
    path: str,
    kind: str,
    committed: bool,
) -> None:
    fault = StoreFault(kind, "put_if_absent", path)  # type: ignore[arg-type]
    dying = crashing(catalog.resolve(NAME), fault)
    with pytest.raises(SimulatedCrash):
        dying.append(rows(1))
    kept = [1] if committed else []
    assert ids_of(open_table(catalog.resolve(NAME))) == kept
    open_table(catalog.resolve(NAME)).append(rows(2))
    assert ids_of(open_table(catalog.resolve(NAME))) == [*kept, 2]
    assert not server.find(NAME).commits


def test_version_that_could_not_be_published_gets_no_checkpoint(
    server: UnityServer, catalog: UnityCatalog, table: DeltaTable
) -> None:
    refused = StoreFault("refuse", "put_if_absent", f"_delta_log/{1:020d}.json")
    again = StoreFault("refuse", "put_if_absent", f"_delta_log/{1:020d}.json", 2)
    location = catalog.resolve(NAME)
    opened = open_store(location.uri, location.options)
    assert isinstance(opened, ManagedLogStore)
    own = {name: v for name, v in location.options.items() if name.startswith("unity_catalog_")}
    faulty = FaultyStore(opened._inner, [refused, again])
    store = ManagedLogStore(faulty, UnityTable.of_options(own), location.options)
    writer = DeltaTable(location.uri, store=store)
    writer.append(rows(1))
    assert server.find(NAME).commits.keys() == {1}
    with pytest.raises(StorageFailure):
        writer.checkpoint()
    writer.checkpoint()
    assert not server.find(NAME).commits
    assert ids_of(open_table(location)) == [1]


def test_concurrent_writers_lose_and_double_no_row(
    server: UnityServer, catalog: UnityCatalog, table: DeltaTable
) -> None:
    errors: list[BaseException] = []

    def write(first: int) -> None:
        try:
            own = open_table(catalog.resolve(NAME))
            for number in range(5):
                own.append(rows(first + number))
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    server.faults.append(Fault("POST", "/tables/orders", "lose_reply", "add-commit", times=3))
    server.faults.append(Fault("POST", "/tables/orders", "answer", "add-commit", UNKNOWN, times=2))
    writers = [threading.Thread(target=write, args=(100 * n,)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not errors
    latest = open_table(catalog.resolve(NAME))
    assert latest.version() == server.find(NAME).latest == 20
    assert ids_of(latest) == sorted(100 * n + k for n in range(4) for k in range(5))


def test_token_of_a_service_principal_is_renewed(tmp_path: Path) -> None:
    with UnityServer(tmp_path) as server:
        server.clients["me"] = "very-secret"
        catalog = UnityCatalog(server.uri, client_id="me", client_secret="very-secret")
        location = catalog.new_table(NAME)
        table = DeltaTable.create(location.uri, SCHEMA, storage_options=location.options)
        table.append(rows(1))
        assert server.count("POST /oidc") == 1
        # The server ends it early.
        server.issued.clear()
        table.append(rows(2))
        assert server.count("POST /oidc") == 2
        assert ids_of(open_table(catalog.resolve(NAME))) == [1, 2]


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    with UnityServer(tmp_path, tokens={"very-secret"}) as server:
        catalog = UnityCatalog(server.uri, token="very-secret")
        location = catalog.new_table(NAME)
        table = DeltaTable.create(location.uri, SCHEMA, storage_options=location.options)
        wrong = UnityCatalog(server.uri, token="other-secret")
        with pytest.raises(StorageFailure, match="check the token") as caught:
            wrong.resolve(NAME)
        shown = f"{catalog!r} {location!r} {table!r} {table.store!r} {caught.value}"
        assert "very-secret" not in shown
        assert "other-secret" not in shown


def test_addresses_that_would_show_a_token_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="unencrypted"):
        UnityCatalog("http://catalog.example", token="t")
    with pytest.raises(InvalidArgument, match="holds a secret"):
        UnityCatalog("https://user:password@catalog.example")
    with pytest.raises(InvalidArgument, match="client_secret"):
        UnityCatalog("https://catalog.example", client_id="me")
