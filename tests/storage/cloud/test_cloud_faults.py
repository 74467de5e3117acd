"""Every step of every operation on a table in each cloud, while its endpoint fails: a short failure
goes unnoticed, and a longer one leaves the table as it was, or with the commit once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import product

import pytest

from dagster_delta.errors import (
    CommitStateUnknown,
    CorruptDeletionVector,
    CorruptLog,
    DeltaError,
    StorageFailure,
)
from dagster_delta.storage import open_store
from dagster_delta.storage.cloud import client
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from tests.families import family
from tests.storage.conftest import CLOUDS, Cloud
from tests.storage.failing_endpoint import Way
from tests.table.fault_operations import PROPERTIES, Rows, frame
from tests.table_rows import stored_tuples

pytestmark = pytest.mark.slow

OPERATIONS: dict[str, Callable[[DeltaTable], object]] = {
    "open": lambda table: stored_tuples(table),
    "append": lambda table: table.append(frame(50, 3)),
    "delete": lambda table: table.delete("id % 4 = 1"),
    "optimize": lambda table: table.optimize(max_deleted_share=0),
    "vacuum": lambda table: table.vacuum(0, enforce_retention=False, dry_run=False),
    "checkpoint": lambda table: table.checkpoint(),
}
SHORT: tuple[Way, ...] = ("429 Busy", "503 SlowDown", "reset", "lost", "cut", "drip", "etag")
LONG: tuple[Way, ...] = (
    *("500 InternalError", "403 ExpiredToken"),
    *("refused", "reset", "lost", "cut", "short"),
)
DAMAGED = (CorruptLog, CorruptDeletionVector)
"""What a short answer that claims to be whole looks like."""


@cache
def stored_objects() -> dict[str, bytes]:
    """A table with a checkpoint and commits after it, and deletion vectors."""
    store = MemoryStore()
    table = DeltaTable("", store=store, must_exist=False)
    table.append(frame(0, 20), partition_by=["day"])
    table.set_properties(PROPERTIES)
    table.checkpoint()
    table.delete("id % 8 = 3")
    return {meta.path: store.read(meta.path) for meta in store.list_recursive()}


def _table(cloud: Cloud) -> str:
    """The URI of a new copy of the table; clients of the failing endpoint are new too."""
    uri = f"{cloud.uri}/{uuid.uuid4().hex}"
    store = open_store(uri, cloud.sound)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(store.put, stored_objects(), stored_objects().values()))
    return uri


def _rows(cloud: Cloud, uri: str) -> Rows:
    return stored_tuples(DeltaTable(uri, storage_options=cloud.sound))


def _act(cloud: Cloud, uri: str, operation: str) -> object:
    # Creates a client, which probes the endpoint for conditional puts.
    client.connect.cache_clear()
    return OPERATIONS[operation](DeltaTable(uri, storage_options=cloud.failing))


def _sound_run(cloud: Cloud, operation: str) -> tuple[Rows, Rows, list[tuple[str, str]]]:
    """Rows before and after the operation, and its requests."""
    uri = _table(cloud)
    old = _rows(cloud, uri)
    cloud.endpoint.seen = []
    _act(cloud, uri, operation)
    return old, _rows(cloud, uri), list(cloud.endpoint.seen)


def _steps(requests: list[tuple[str, str]], way: Way) -> list[int]:
    """The requests at which a way differs from others."""
    takes_effect = {"PUT", "POST", "DELETE"}
    if way == "lost":
        return [n for n, (method, _) in enumerate(requests) if method in takes_effect]
    if way in {"cut", "short", "drip"}:
        return [n for n, (method, _) in enumerate(requests) if method == "GET"]
    return list(range(len(requests)))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("cloud", "operation", "way"),
    family(
        product(CLOUDS, OPERATIONS, SHORT),
        ("s3", "checkpoint", "cut"),
    ),
    indirect=["cloud"],
)
def test_a_failure_of_one_request_goes_unnoticed(cloud: Cloud, operation: str, way: Way) -> None:
    _, new, requests = _sound_run(cloud, operation)
    for step in _steps(requests, way):
        uri = _table(cloud)
        with cloud.endpoint.failing("", "", way, passed=step, times=1) as asked:
            _act(cloud, uri, operation)
        assert asked
        assert _rows(cloud, uri) == new, (step, requests[step])


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("cloud", "operation", "way"),
    family(
        product(CLOUDS, OPERATIONS, LONG),
        ("s3", "open", "short"),
        ("azure", "append", "refused"),
    ),
    indirect=["cloud"],
)
def test_an_outage_leaves_the_table_as_it_was_or_the_commit_once(
    cloud: Cloud, operation: str, way: Way
) -> None:
    old, new, requests = _sound_run(cloud, operation)
    failures = 0
    for step in _steps(requests, way):
        uri = _table(cloud)
        try:
            with cloud.endpoint.failing("", "", way, passed=step):
                _act(cloud, uri, operation)
        except (StorageFailure, CommitStateUnknown, *DAMAGED) as failure:
            failures += 1
            _check_error(cloud, uri, way, failure)
            assert _rows(cloud, uri) in (old, new), (step, requests[step])
        else:
            assert _rows(cloud, uri) == new, (step, requests[step])
        table = DeltaTable(uri, storage_options=cloud.sound)
        table.append(frame(90, 1))
    # What is deleted already needs no second try.
    assert failures or way == "lost"


def _check_error(cloud: Cloud, uri: str, way: Way, failure: DeltaError) -> None:
    # HTTP itself says that such an answer is whole.
    assert way == "short" or not isinstance(failure, DAMAGED)
    text = str(failure)
    assert failure.table == uri
    assert "check" in text or "look for" in text or "restore" in text
    assert cloud.endpoint.url not in text
    for value in cloud.sound.values():
        assert value in {"true", "us-east-1", "devstoreaccount1"} or value not in text


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("cloud", CLOUDS, indirect=True)
def test_an_answer_that_stalls_is_asked_for_again(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = _table(cloud)
    rows = _rows(cloud, uri)
    monkeypatch.setattr(client, "_LONGEST_SILENCE", timedelta(seconds=2))

    def open_while_an_answer_stalls(step: int) -> None:
        with (
            cloud.again() as here,
            here.endpoint.failing("GET", "", "stalled", passed=step, times=1) as asked,
        ):
            assert _act(here, uri, "open") == rows
        assert asked

    # All three wait at the same time.
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(open_while_an_answer_stalls, range(3)))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("cloud", CLOUDS, indirect=True)
def test_credentials_that_expire_are_asked_for_again(cloud: Cloud) -> None:
    uri = _table(cloud)
    asked: list[int] = []
    is_away = False

    def vend() -> dict[str, object]:
        asked.append(1)
        if is_away:
            raise PermissionError("expired: SECRET")
        # The client asks again five minutes before.
        soon = datetime.now(UTC) + timedelta(minutes=1)
        given = {
            "access_key_id": cloud.sound.get("AWS_ACCESS_KEY_ID"),
            "secret_access_key": cloud.sound.get("AWS_SECRET_ACCESS_KEY"),
            "account_key": cloud.sound.get("account_key"),
            "token": cloud.sound.get("bearer_token"),
        }
        return {**{k: v for k, v in given.items() if v is not None}, "expires_at": soon}

    place = ("AWS_REGION", "AWS_ENDPOINT_URL", "account_name", "endpoint")
    options = {name: value for name, value in cloud.failing.items() if name in place}
    table = DeltaTable(uri, storage_options={**options, "credential_provider": vend})
    first, appended = len(asked), 0
    # The client asks every 100 ms at most.
    while len(asked) < first + 3:
        table.append(frame(50 + appended, 1))
        appended += 1
    rows = _rows(cloud, uri)
    assert {row[0] for row in rows} >= set(range(50, 50 + appended))
    is_away = True

    def append_on() -> None:
        while True:
            table.append(frame(50 + appended, 0))

    # At the put of the commit the provider cannot say either whether that has landed.
    with pytest.raises((StorageFailure, CommitStateUnknown), match="PermissionError") as caught:
        append_on()
    assert "SECRET" not in str(caught.value)
    assert _rows(cloud, uri) == rows
