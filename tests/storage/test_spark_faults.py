"""Spark works on a table in a cloud while its endpoint fails: S3A or ABFS reads the data files, the
clients of the Python workers write them, and the driver reads the log and commits, all by the same
endpoint.

A short failure goes unnoticed, and a longer one leaves the table as it was, or with the commit once.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, product

import pytest

from dagster_delta.storage import open_store
from dagster_delta.table.delta_table import DeltaTable
from tests.storage.cloud.test_cloud_faults import stored_objects
from tests.storage.conftest import make_s3_bucket, new_s3_account
from tests.storage.emulators import AZURITE_ACCOUNT, AZURITE_KEY, make_container
from tests.storage.failing_endpoint import FailingEndpoint, Way, failing_endpoint
from tests.storage.spark_on_hadoop import (
    Failure,
    SparkOnHadoop,
    abfs_of_azurite,
    spark_on_hadoop,
)
from tests.table.fault_operations import Rows, frame
from tests.table_rows import stored_tuples

OPERATIONS = ("read", "append", "overwrite", "delete", "update", "merge", "optimize")
SHORT: tuple[Way, ...] = ("429 Busy", "503 SlowDown", "reset", "lost", "cut", "drip", "etag")
LONG: tuple[Way, ...] = ("500 InternalError", "403 ExpiredToken", "refused", "reset", "lost", "cut")
ON_AZURE = ("read", "append", "merge")
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "account_key")
SETTINGS = {
    # Requests and tasks come one after the other. A failed task is tried again, as on a cluster.
    "spark.master": "local[1,2]",
    "spark.hadoop.fs.s3a.attempts.maximum": "1",
    "spark.hadoop.fs.s3a.retry.interval": "1ms",
    "spark.hadoop.fs.s3a.retry.limit": "1",
    "spark.hadoop.fs.s3a.retry.throttle.interval": "1ms",
    "spark.hadoop.fs.s3a.retry.throttle.limit": "1",
    "spark.hadoop.fs.azure.io.retry.backoff.interval": "1",
    "spark.hadoop.fs.azure.io.retry.max.retries": "1",
    "spark.hadoop.fs.azure.io.retry.min.backoff.interval": "1",
}

# Spark fetches the JARs of the clouds, which take 700 MB, from Maven.
pytestmark = [pytest.mark.spark, pytest.mark.exhaustive]

Request = tuple[str, str]


@dataclass
class Lake:
    """Tables in a bucket, reached directly and, by Spark, through the endpoint that fails."""

    uri: str
    sound: dict[str, str]
    spark_uri: str
    failing: dict[str, str]
    endpoint: FailingEndpoint
    spark: SparkOnHadoop
    _sound_runs: dict[str, tuple[Rows, list[Request]]] = field(default_factory=dict)

    def table(self) -> str:
        """The name of a new copy of the table."""
        name = uuid.uuid4().hex
        store = open_store(f"{self.uri}/{name}", self.sound)
        for path, data in stored_objects().items():
            store.put(path, data)
        return name

    def opened(self, name: str) -> DeltaTable:
        return DeltaTable(f"{self.uri}/{name}", storage_options=self.sound)

    def rows(self, name: str) -> Rows:
        return stored_tuples(self.opened(name))

    def act(self, operation: str, name: str) -> Failure | None:
        """Run the operation; a read has to give the rows of the table."""
        outcome = self.spark.run(operation, f"{self.spark_uri}/{name}", self.failing)
        if operation == "read" and outcome.failure is None:
            assert list(map(tuple, outcome.result)) == self.rows(name)
        return outcome.failure

    def sound_run(self, operation: str) -> tuple[Rows, list[Request]]:
        """The rows after the operation, and its requests."""
        if operation not in self._sound_runs:
            name = self.table()
            self.endpoint.seen = []
            assert self.act(operation, name) is None
            requests = list(self.endpoint.seen)
            self._sound_runs[operation] = self.rows(name), requests
        return self._sound_runs[operation]


@pytest.fixture(scope="module")
def lakes(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Lake]]:
    """The tables in a cloud, with one process for all tests."""
    with ExitStack() as stack:
        yield cache(lambda cloud: stack.enter_context(_lake(cloud, request)))


@contextmanager
def _lake(cloud: str, request: pytest.FixtureRequest) -> Iterator[Lake]:
    make = {"s3": _lake_on_s3, "azure": _lake_on_azure}[cloud]
    with make(request) as lake:
        # The first read of a session finds out whether it has the file system.
        assert lake.act("read", lake.table()) is None
        yield lake
        printed = lake.spark.printed()
    assert not any(lake.sound[name] in printed for name in SECRETS if name in lake.sound)


@contextmanager
def _lake_on_s3(request: pytest.FixtureRequest) -> Iterator[Lake]:
    url: str = request.getfixturevalue("s3_endpoint")
    sound = new_s3_account(url)
    uri = f"s3://{make_s3_bucket(sound)}"
    with failing_endpoint(url) as endpoint, spark_on_hadoop(SETTINGS, is_impatient=True) as spark:
        yield Lake(uri, sound, uri, {**sound, "AWS_ENDPOINT_URL": endpoint.url}, endpoint, spark)


@contextmanager
def _lake_on_azure(request: pytest.FixtureRequest) -> Iterator[Lake]:
    url: str = request.getfixturevalue("azurite_endpoint")
    credentials = {"account_key": AZURITE_KEY}
    sound = {**credentials, "account_name": AZURITE_ACCOUNT, "endpoint": url}
    container = make_container(sound)
    with failing_endpoint(url) as endpoint:
        settings = {**SETTINGS, **abfs_of_azurite(endpoint.url)}
        place = {"AZURE_STORAGE_ENDPOINT": endpoint.url}
        uri = f"abfs://{container}@{AZURITE_ACCOUNT}.dfs.core.windows.net"
        with spark_on_hadoop(settings, is_impatient=True, environment=place) as spark:
            yield Lake(f"az://{container}", sound, uri, credentials, endpoint, spark)


@pytest.fixture(scope="module")
def patient() -> Iterator[SparkOnHadoop]:
    """A process whose session says nothing about retries."""
    with spark_on_hadoop({}) as process:
        yield process


def _cases(on_s3: tuple[Way, ...], on_azure: tuple[Way, ...]) -> list[tuple[str, str, Way]]:
    cases = chain(product(["s3"], OPERATIONS, on_s3), product(["azure"], ON_AZURE, on_azure))
    # A read has no request that takes effect.
    return [case for case in cases if case[1:] != ("read", "lost")]


def _steps(requests: list[Request], way: Way) -> list[int]:
    """The first and the last request of each kind, of those at which a way differs from others."""
    methods = {"lost": {"PUT", "POST", "DELETE"}, "cut": {"GET"}, "drip": {"GET"}}.get(way)
    kinds: dict[tuple[str, str, str], list[int]] = {}
    for step, (method, path) in enumerate(requests):
        if methods is None or method in methods:
            name = path.partition("?")[0].rpartition("/")[2]
            # Names of data files and commits begin with their kind.
            kind = method, name.partition("-")[0], name.rpartition(".")[2]
            kinds.setdefault(kind, []).append(step)
    return sorted({step for steps in kinds.values() for step in (steps[0], steps[-1])})


@pytest.mark.parametrize(
    ("cloud", "operation", "way"),
    _cases(SHORT, ("503 ServerBusy", "reset", "lost", "cut")),
)
def test_a_failure_of_one_request_goes_unnoticed(
    lakes: Callable[[str], Lake], cloud: str, operation: str, way: Way
) -> None:
    lake = lakes(cloud)
    new, requests = lake.sound_run(operation)
    for step in _steps(requests, way):
        name = lake.table()
        with lake.endpoint.failing("", "", way, passed=step, times=1) as asked:
            failure = lake.act(operation, name)
        assert asked
        assert failure is None, (step, requests[step])
        assert lake.rows(name) == new, (step, requests[step])


@pytest.mark.parametrize(
    ("cloud", "operation", "way"),
    _cases(LONG, ("503 ServerBusy", "refused", "cut")),
)
def test_an_outage_leaves_the_table_as_it_was_or_the_commit_once(
    lakes: Callable[[str], Lake], cloud: str, operation: str, way: Way
) -> None:
    lake = lakes(cloud)
    new, requests = lake.sound_run(operation)
    old, _ = lake.sound_run("read")
    failures = 0
    for step in _steps(requests, way):
        name = lake.table()
        with lake.endpoint.failing("", "", way, passed=step):
            failure = lake.act(operation, name)
        if failure is None:
            assert lake.rows(name) == new, (step, requests[step])
        else:
            failures += 1
            _check(lake, operation, failure)
            assert lake.rows(name) in (old, new), (step, requests[step])
    table = lake.opened(name)
    table.append(frame(90, 1))
    kept = lake.rows(name)
    table.vacuum(0, enforce_retention=False, dry_run=False)
    assert lake.rows(name) == kept
    # A reply that is lost to a request that is repeated is no outage.
    assert failures or way == "lost"


@pytest.mark.parametrize("way", ["429 Busy", "503 SlowDown", "reset", "refused"])
def test_without_settings_of_the_session_the_retries_of_a_read_end_soon(
    lakes: Callable[[str], Lake], patient: SparkOnHadoop, way: Way
) -> None:
    lake = lakes("s3")
    patiently = replace(lake, spark=patient)
    assert patiently.act("read", lake.table()) is None
    name = lake.table()
    with lake.endpoint.failing("", ".zstd.parquet", way) as asked:
        failure = patiently.act("delete", name)
    assert failure is not None
    assert failure.kind == "StorageFailure"
    assert max(Counter(asked).values()) <= 30
    assert lake.rows(name) == lake.rows(lake.table())


def _check(lake: Lake, operation: str, failure: Failure) -> None:
    # Rows of a frame are collected by its user, who gets the errors of Spark.
    assert operation == "read" or failure.is_ours, failure
    assert not any(lake.sound[name] in failure.text for name in SECRETS if name in lake.sound)
    if failure.is_ours:
        assert failure.kind in {"StorageFailure", "CommitStateUnknown"}, failure
        assert lake.endpoint.url not in failure.text
