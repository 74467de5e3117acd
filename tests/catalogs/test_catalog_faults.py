"""Commits through Unity Catalog when replies are lost, servers fail, tokens end and writers die."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.catalogs import UnityCatalog
from dagster_delta.catalogs.managed_log import ManagedLogStore
from dagster_delta.catalogs.unity_client import CatalogRefusal, UnityClient
from dagster_delta.catalogs.unity_client import UnityServer as Address
from dagster_delta.catalogs.unity_table import UnityTable
from dagster_delta.catalogs.vended_credentials import CredentialSource
from dagster_delta.errors import (
    CommitStateUnknown,
    InvalidArgument,
    StorageFailure,
    TableAlreadyExists,
)
from dagster_delta.storage import StoreLocation, open_store
from dagster_delta.testing.faulty_store import Fault as StoreFault
from dagster_delta.testing.faulty_store import FaultyStore, SimulatedCrash
from tests.catalogs.unity_server import Fault, Refusal, Table, UnityServer

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
    secrets: Any = {"client_id": "me", "client_secret": "s"}
    with pytest.raises(InvalidArgument, match=r"oauth_uri is .* unencrypted"):
        UnityCatalog("https://catalog.example", oauth_uri="http://login.example", **secrets)
    UnityCatalog("https://catalog.example", oauth_uri="https://login.example/token", **secrets)


@pytest.mark.parametrize("token", ["very-secret\n", "very-secret\r\nX: y", "very-secret\u20ac"])
def test_token_that_no_header_takes_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidArgument, match="line break") as caught:
        UnityCatalog("https://catalog.example", token=token)
    assert "very-secret" not in str(caught.value)


LATEST = "latest-table-version"


def change_answers(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], object]) -> None:
    """Change what the server says of a table."""
    honest = Table.answer

    def answer(held: Table) -> Any:
        found = honest(held)
        change(found)
        return found

    monkeypatch.setattr(Table, "answer", answer)


def test_log_without_a_newest_version_is_refused(
    catalog: UnityCatalog, table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.append(rows(1))
    change_answers(monkeypatch, lambda found: found.pop(LATEST))
    with pytest.raises(StorageFailure, match="latest-table-version is missing"):
        open_table(catalog.resolve(NAME))


def test_commit_whose_answer_has_no_newest_version_keeps_its_files(
    catalog: UnityCatalog, table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        # Only once the commit is accepted.
        change_answers(patched, lambda found: found["commits"] and found.pop(LATEST))
        with pytest.raises(CommitStateUnknown, match="latest-table-version is missing"):
            table.append(rows(1))
    assert ids_of(open_table(catalog.resolve(NAME))) == [1]


def commit_entry(version: int) -> dict[str, object]:
    name = f"{version:020d}.{'a' * 8}.json"
    facts = {"version": version, "timestamp": 1, "file-name": name, "file-size": 1}
    return {**facts, "file-modification-timestamp": 1}


def test_commits_above_the_newest_version_are_ignored(
    catalog: UnityCatalog, table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.append(rows(1))
    change_answers(monkeypatch, lambda found: found["commits"].insert(0, commit_entry(2)))
    opened = open_table(catalog.resolve(NAME))
    assert opened.version() == 1
    assert ids_of(opened) == [1]


def test_list_of_commits_with_a_gap_is_refused(
    catalog: UnityCatalog, table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        table.append(rows(number))
    change_answers(monkeypatch, lambda found: found["commits"].extend([commit_entry(1)]))
    with pytest.raises(StorageFailure, match="others are missing"):
        open_table(catalog.resolve(NAME))


def test_answer_that_arrives_late_takes_nothing_back(
    catalog: UnityCatalog, table: DeltaTable
) -> None:
    store = table.store
    assert isinstance(store, ManagedLogStore)
    late = store._load()
    table.append(rows(1))
    newest = store._tail.loaded
    store._absorb(late)
    assert store._tail.latest == store._tail.published == 1
    assert store._tail.loaded is newest
    assert ids_of(DeltaTable(store.location.uri, store=store)) == [1]


@pytest.mark.parametrize("status", [401, 403])
def test_creation_that_was_forbidden_is_finished_with_its_rows(
    server: UnityServer, catalog: UnityCatalog, status: int
) -> None:
    refusal = Refusal(status, "PermissionDeniedException", "not now")
    fault = Fault("POST", "/schemas/shop/tables", "answer", "last-commit", refusal, times=9)
    server.faults.append(fault)
    location = catalog.new_table(NAME)
    table = DeltaTable(location.uri, storage_options=location.options, must_exist=False)
    with pytest.raises(StorageFailure, match="not now"):
        table.append(rows(1))
    fault.times = 0
    again = DeltaTable(location.uri, storage_options=location.options, must_exist=False)
    again.append(rows(2))
    assert ids_of(open_table(catalog.resolve(NAME))) == [1, 2]


def test_creation_that_was_refused_leaves_nothing_for_the_next_one(
    server: UnityServer, catalog: UnityCatalog
) -> None:
    refusal = Refusal(400, "InvalidParameterValueException", "delta.x is restricted")
    server.faults.append(Fault("POST", "/schemas/shop/tables", "answer", "last-commit", refusal))
    location = catalog.new_table(NAME)
    for number in (1, 2):
        table = DeltaTable(location.uri, storage_options=location.options, must_exist=False)
        if number == 1:
            with pytest.raises(InvalidArgument, match=r"delta\.x is restricted"):
                table.append(rows(1))
        else:
            table.append(rows(2))
    assert ids_of(open_table(catalog.resolve(NAME))) == [2]


def test_creation_whose_name_was_taken_says_so(catalog: UnityCatalog) -> None:
    first, second = catalog.new_table(NAME), catalog.new_table(NAME)
    DeltaTable.create(first.uri, SCHEMA, storage_options=first.options)
    with pytest.raises(TableAlreadyExists, match="another client has created"):
        DeltaTable.create(second.uri, SCHEMA, storage_options=second.options)


def test_external_table_that_the_catalog_refuses_keeps_its_files(
    server: UnityServer, catalog: UnityCatalog, tmp_path: Path
) -> None:
    refusal = Refusal(403, "PermissionDeniedException", "no privilege")
    server.faults.append(Fault("POST", "/schemas/shop/tables", "answer", "", refusal))
    location = catalog.new_table(NAME, str(tmp_path / "own"))
    table = DeltaTable(location.uri, storage_options=location.options, must_exist=False)
    with pytest.raises(CommitStateUnknown, match="no privilege"):
        table.append(rows(1))
    assert ids_of(DeltaTable(tmp_path / "own")) == [1]


def test_commit_that_another_client_published_and_cleaned_up_is_passed(
    server: UnityServer, catalog: UnityCatalog, table: DeltaTable
) -> None:
    fault = Fault("POST", "/tables/orders", "answer", "latest-backfilled", BUSY, times=4)
    server.faults.append(fault)
    table.append(rows(1))
    assert server.find(NAME).commits.keys() == {1}
    for staged in server.find(NAME).path.glob("_delta_log/_staged_commits/*"):
        staged.unlink()
    other = open_table(catalog.resolve(NAME))
    assert ids_of(other) == [1]
    other.append(rows(2))
    assert not server.find(NAME).commits
    assert ids_of(open_table(catalog.resolve(NAME))) == [1, 2]


@pytest.mark.parametrize("moment", ["after_retry", "before_retry", "after_other_writer", "at_last"])
def test_proposal_that_arrives_late_is_committed_once(
    server: UnityServer,
    catalog: UnityCatalog,
    table: DeltaTable,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    # The request is on its way when its writer gives up waiting, and looks at the log.
    propose, late = ManagedLogStore._update, list[Callable[[], object]]()
    own = table.store

    def update(store: ManagedLogStore, *args: Any) -> Any:
        if store is not own or (late and moment != "at_last"):
            if store is own and moment == "before_retry":
                late[0]()
            return propose(store, *args)
        late.append(lambda: propose(store, *args))
        if moment == "after_other_writer":
            open_table(catalog.resolve(NAME)).append(rows(9))
        raise CatalogRefusal("no answer")

    monkeypatch.setattr(ManagedLogStore, "_update", update)
    if moment == "at_last":
        with pytest.raises(StorageFailure, match="no answer"):
            table.append(rows(1))
        late[0]()
    else:
        table.append(rows(1))
        with pytest.raises(CatalogRefusal):
            late[0]()
    others = [9] if moment == "after_other_writer" else []
    assert ids_of(open_table(catalog.resolve(NAME))) == [1, *others]
    assert server.find(NAME).latest == 1 + len(others)


def test_reader_beside_a_backlog_sees_every_version_complete(
    server: UnityServer, catalog: UnityCatalog, table: DeltaTable
) -> None:
    # No one can publish: the catalog stops taking commits, and readers see those it took.
    reports = Fault("POST", "/tables/orders", "answer", "latest-backfilled", BUSY, times=99)
    server.faults.append(reports)
    reader, server.max_unpublished = open_table(catalog.resolve(NAME)), 2
    for number in range(2):
        open_table(catalog.resolve(NAME)).append(rows(number))
        assert ids_of(open_table(catalog.resolve(NAME))) == list(range(number + 1))
    with pytest.raises(StorageFailure):
        open_table(catalog.resolve(NAME)).append(rows(2))
    assert ids_of(DeltaTable(reader.store.location.uri, store=reader.store)) == [0, 1]
    reports.times = 0
    open_table(catalog.resolve(NAME)).append(rows(3))
    assert ids_of(open_table(catalog.resolve(NAME))) == [0, 1, 3]


def test_writer_whose_reports_were_lost_reports_again_at_the_limit(
    server: UnityServer, table: DeltaTable
) -> None:
    server.max_unpublished = 2
    away = Refusal(500, "", "away")
    server.faults.append(Fault("POST", "/tables/orders", "answer", "latest-backfilled", away, 2))
    for number in range(3):
        table.append(rows(number))
    assert ids_of(table) == [0, 1, 2]
    assert not server.find(NAME).commits


_T = TypeVar("_T")


class Killer:
    """Ends the process before one of its calls of the storage or the catalog."""

    def __init__(self, at: int) -> None:
        self.left, self.is_dead = at, False

    def run(self, call: Callable[[], _T]) -> _T:
        if self.is_dead:
            raise SimulatedCrash
        self.left -= 1
        self.is_dead = self.left == 0
        if self.is_dead:
            raise SimulatedCrash
        return call()


class MortalStore(FaultyStore):
    """The storage of a process that a killer ends."""

    killer: Killer

    def run(self, operation: object, path: str, call: Callable[[], _T]) -> _T:  # noqa: ARG002
        return self.killer.run(call)


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Opens a table in a process that a killer ends."""
    living, ask = list[Killer](), UnityClient._ask_once

    def ask_once(client: UnityClient, *args: Any) -> Any:
        return living[-1].run(lambda: ask(client, *args)) if living else ask(client, *args)

    monkeypatch.setattr(UnityClient, "_ask_once", ask_once)

    def run(location: StoreLocation, killer: Killer, work: Callable[[DeltaTable], object]) -> bool:
        """Whether the process lived."""
        opened = open_store(location.uri, location.options)
        assert isinstance(opened, ManagedLogStore)
        own = {name: v for name, v in location.options.items() if name.startswith("unity_catalog_")}
        inner = MortalStore(opened._inner)
        inner.killer = killer
        store = ManagedLogStore(inner, UnityTable.of_options(own), location.options)
        living.append(killer)
        try:
            work(DeltaTable(location.uri, store=store, must_exist=False))
        except SimulatedCrash:
            pass
        finally:
            living.clear()
        return not killer.is_dead

    return run


def test_writer_killed_before_any_call_loses_and_doubles_nothing(
    server: UnityServer, catalog: UnityCatalog, mortal: Callable[..., bool]
) -> None:
    at, lived = 0, False
    while not lived:
        at += 1
        name, done = f"main.shop.t{at}", list[int]()

        def work(table: DeltaTable, done: list[int] = done) -> None:
            for number in range(2):
                table.append(rows(number))
                done.append(number)
            table.checkpoint()

        location = catalog.new_table(name)
        lived = mortal(location, Killer(at), work)
        if catalog.has_table(name):
            location = catalog.resolve(name)
            kept = ids_of(open_table(location))
        else:
            kept = []
            assert not done
        # At most the append that was under way is there without its writer knowing.
        assert kept in (done, list(range(len(done) + 1))), at
        next_one = DeltaTable(location.uri, storage_options=location.options, must_exist=False)
        next_one.append(rows(100))
        next_one.checkpoint()
        found = ids_of(open_table(catalog.resolve(name)))
        # Before it was registered, the next writer finishes the creation.
        assert found in ([*kept, 100], [0, 100]), at
        assert not server.find(name).commits
    assert at > 20


def test_credentials_of_a_new_table_are_renewed_after_it_was_registered(
    server: UnityServer, catalog: UnityCatalog, tmp_path: Path
) -> None:
    server.credentials = lambda _, operation: {"s3.access-key-id": operation}
    for given in (None, str(tmp_path / "own")):
        location = catalog.new_table(NAME, given)
        own = {name: v for name, v in location.options.items() if name.startswith("unity_catalog_")}
        table = UnityTable.of_options(own)
        source = CredentialSource(
            table.server, table.location, NAME, is_new=True, staging_id=table.table_id
        )
        assert source()["access_key_id"] == "READ_WRITE"
        DeltaTable.create(location.uri, SCHEMA, storage_options=location.options)
        if given is not None:
            gone = Refusal(404, "NotFoundException", "no path credentials below a table")
            server.faults.append(Fault("GET", "/temporary-path-credentials", "answer", "", gone))
        assert source.fetch().config == {"s3.access-key-id": "READ_WRITE"}
        catalog.drop_table(NAME)


def test_held_credentials_serve_until_they_expire_while_the_catalog_is_away(
    server: UnityServer, catalog: UnityCatalog, table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    expires = (time.time() + 200) * 1000
    server.credentials = lambda *_: {"s3.access-key-id": "key", "expires": int(expires)}
    source = CredentialSource(Address(server.uri), server.find(NAME).location, NAME)
    assert source()["access_key_id"] == "key"
    assert source()["access_key_id"] == "key"
    # Not one request for each use of credentials that are short-lived.
    assert server.count(f"GET /delta/v1{table_request()}/credentials") == 1
    away = Refusal(403, "PermissionDeniedException", "not any more")
    server.faults.append(Fault("GET", "/credentials", "answer", "", away, times=99))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 150)
    assert source()["access_key_id"] == "key"
    monkeypatch.setattr(time, "time", lambda: now + 201)
    with pytest.raises(StorageFailure, match="not any more"):
        source()


def table_request() -> str:
    return "/catalogs/main/schemas/shop/tables/orders"
