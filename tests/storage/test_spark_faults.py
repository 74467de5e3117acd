"""Spark works on a table on S3 while its endpoint fails: S3A reads the data files, the clients of
the Python workers write them, and the driver reads the log and commits, all by the same endpoint.

A short failure goes unnoticed, and a longer one leaves the table as it was, or with the commit once.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import pytest

from dagster_delta.storage import open_store
from dagster_delta.table.delta_table import DeltaTable
from tests.families import family
from tests.storage.conftest import make_s3_bucket, new_s3_account
from tests.storage.failing_endpoint import FailingEndpoint, Way, failing_endpoint
from tests.storage.spark_on_hadoop import Failure, SparkOnHadoop, spark_on_hadoop
from tests.storage.test_cloud_faults import stored_objects
from tests.table.operations import Rows, frame
from tests.table_rows import stored_tuples

OPERATIONS = ("read", "append", "overwrite", "delete", "update", "merge", "optimize")
SHORT: tuple[Way, ...] = ("429 Busy", "503 SlowDown", "reset", "lost", "cut", "drip", "etag")
LONG: tuple[Way, ...] = ("500 InternalError", "403 ExpiredToken", "refused", "reset", "lost", "cut")
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
SETTINGS = {
    # Requests and tasks come one after the other. A failed task is tried again, as on a cluster.
    "spark.master": "local[1,2]",
    **dict.fromkeys(
        ("spark.hadoop.fs.s3a.retry.interval", "spark.hadoop.fs.s3a.retry.throttle.interval"), "1ms"
    ),
    **dict.fromkeys(
        (
            "spark.hadoop.fs.s3a.attempts.maximum",
            "spark.hadoop.fs.s3a.retry.limit",
            "spark.hadoop.fs.s3a.retry.throttle.limit",
        ),
        "1",
    ),
}

pytestmark = pytest.mark.spark

Request = tuple[str, str]


@dataclass
class Lake:
    """Tables in a bucket, reached directly and, by Spark, through the endpoint that fails."""

    uri: str
    sound: dict[str, str]
    endpoint: FailingEndpoint
    spark: SparkOnHadoop
    _sound_runs: dict[str, tuple[Rows, list[Request]]] = field(default_factory=dict)

    def table(self) -> str:
        """The URI of a new copy of the table."""
        uri = f"{self.uri}/{uuid.uuid4().hex}"
        store = open_store(uri, self.sound)
        for path, data in stored_objects().items():
            store.put(path, data)
        return uri

    def rows(self, uri: str) -> Rows:
        return stored_tuples(DeltaTable(uri, storage_options=self.sound))

    def act(self, operation: str, uri: str) -> Failure | None:
        """Run the operation; a read has to give the rows of the table."""
        options = {**self.sound, "AWS_ENDPOINT_URL": self.endpoint.url}
        outcome = self.spark.run(operation, uri, options)
        if operation == "read" and outcome.failure is None:
            assert list(map(tuple, outcome.result)) == self.rows(self.table())
        return outcome.failure

    def sound_run(self, operation: str) -> tuple[Rows, list[Request]]:
        """The rows after the operation, and its requests."""
        if operation not in self._sound_runs:
            uri = self.table()
            self.endpoint.seen = []
            assert self.act(operation, uri) is None
            requests = list(self.endpoint.seen)
            self._sound_runs[operation] = self.rows(uri), requests
        return self._sound_runs[operation]


@pytest.fixture(scope="module")
def lake(s3_endpoint: str) -> Iterator[Lake]:
    sound = new_s3_account(s3_endpoint)
    uri = f"s3://{make_s3_bucket(sound)}"
    with (
        failing_endpoint(s3_endpoint) as endpoint,
        spark_on_hadoop(SETTINGS, is_impatient=True) as process,
    ):
        lake = Lake(uri, sound, endpoint, process)
        # The first read of a session asks whether it has S3A.
        assert lake.act("read", lake.table()) is None
        yield lake
        printed = process.printed()
    assert not any(sound[name] in printed for name in SECRETS)


@pytest.fixture(scope="module")
def patient(lake: Lake) -> Iterator[SparkOnHadoop]:
    """A process whose session says nothing about retries."""
    with spark_on_hadoop({}) as process:
        yield process


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
    ("operation", "way"),
    family(
        product(OPERATIONS, SHORT),
        ("read", "cut"),
        ("append", "lost"),
    ),
)
def test_a_failure_of_one_request_goes_unnoticed(lake: Lake, operation: str, way: Way) -> None:
    new, requests = lake.sound_run(operation)
    for step in _steps(requests, way):
        uri = lake.table()
        with lake.endpoint.failing("", "", way, passed=step, times=1) as asked:
            failure = lake.act(operation, uri)
        assert asked
        assert failure is None, (step, requests[step])
        assert lake.rows(uri) == new, (step, requests[step])


@pytest.mark.parametrize(
    ("operation", "way"),
    family(
        product(OPERATIONS, LONG),
        ("delete", "500 InternalError"),
    ),
)
def test_an_outage_leaves_the_table_as_it_was_or_the_commit_once(
    lake: Lake, operation: str, way: Way
) -> None:
    new, requests = lake.sound_run(operation)
    old, _ = lake.sound_run("read")
    failures = 0
    for step in _steps(requests, way):
        uri = lake.table()
        with lake.endpoint.failing("", "", way, passed=step):
            failure = lake.act(operation, uri)
        if failure is None:
            assert lake.rows(uri) == new, (step, requests[step])
        else:
            failures += 1
            _check(lake, operation, failure)
            assert lake.rows(uri) in (old, new), (step, requests[step])
    table = DeltaTable(uri, storage_options=lake.sound)
    table.append(frame(90, 1))
    kept = lake.rows(uri)
    table.vacuum(0, enforce_retention=False, dry_run=False)
    assert lake.rows(uri) == kept
    # A reply that is lost to a request that is repeated is no outage.
    assert failures or way == "lost"


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["429 Busy", "503 SlowDown", "reset", "refused"])
def test_without_settings_of_the_session_the_retries_of_a_read_end_soon(
    lake: Lake, patient: SparkOnHadoop, way: Way
) -> None:
    patiently = replace(lake, spark=patient)
    assert patiently.act("read", lake.table()) is None
    uri = lake.table()
    with lake.endpoint.failing("", ".zstd.parquet", way) as asked:
        failure = patiently.act("delete", uri)
    assert failure is not None
    assert failure.kind == "StorageFailure"
    assert max(Counter(asked).values()) <= 30
    assert lake.rows(uri) == lake.rows(lake.table())


def _check(lake: Lake, operation: str, failure: Failure) -> None:
    # Rows of a frame are collected by its user, who gets the errors of Spark.
    assert operation == "read" or failure.is_ours, failure
    assert not any(lake.sound[name] in failure.text for name in SECRETS)
    if failure.is_ours:
        assert failure.kind in {"StorageFailure", "CommitStateUnknown"}, failure
        assert lake.endpoint.url not in failure.text
