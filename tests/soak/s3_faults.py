"""Part `s3`: public operations on S3 behind a proxy that spoils requests, and races of processes.

The races also run on a second, independent implementation of conditional puts, S3Mock. It is not
atomic by itself (six puts of one name at once succeeded in more than half of the tries), so the proxy
lets its puts through one at a time.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import pyarrow as pa

from dagster_delta import DeltaTable
from dagster_delta.errors import DeltaError
from dagster_delta.storage import open_store
from tests.soak.part import Round, Unavailable
from tests.soak.processes import preloaded_processes
from tests.soak.public_operations import OPERATIONS, Place, PublicOperation, Rows, fill, rows_of
from tests.soak.s3_proxy import FAULTS, S3Proxy, Strike
from tests.soak.s3_servers import BUCKET, client_of, moto_server, options_of, s3mock_server

RACERS = 6
LONG_LOG = 1001
"""One more than a page of a listing holds."""


@dataclass
class _Bucket:
    """A table on the server, and copies of it that are reached through the proxy."""

    proxy: S3Proxy
    port: int

    def __post_init__(self) -> None:
        self.client = client_of(f"http://127.0.0.1:{self.port}")
        # The server of moto keeps its buckets as long as its process lives.
        self.template = f"template-{uuid.uuid4().hex}"
        fill(f"s3://{BUCKET}/{self.template}", storage_options=self.direct)
        listed = self.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{self.template}/")["Contents"]
        self.objects = {
            entry["Key"]: self.client.get_object(Bucket=BUCKET, Key=entry["Key"])["Body"].read()
            for entry in listed
        }

    @property
    def direct(self) -> dict[str, str]:
        """Options that go around the proxy."""
        return options_of(f"http://127.0.0.1:{self.port}")

    @property
    def spoiled(self) -> dict[str, str]:
        """Options that go through the proxy."""
        return options_of(self.proxy.endpoint)

    def copy(self) -> str:
        """The URI of a fresh copy of the table."""
        prefix = uuid.uuid4().hex
        for key, content in self.objects.items():
            target = key.replace(self.template, prefix, 1)
            self.client.put_object(Bucket=BUCKET, Key=target, Body=content)
        return f"s3://{BUCKET}/{prefix}"

    def run(self, operation: PublicOperation, uri: str) -> object:
        """Run an operation through the proxy."""
        place = Place(f"{uri}-other", storage_options=self.spoiled)
        return operation.run(DeltaTable(uri, storage_options=self.spoiled), place)


def play_s3_round(round_: Round) -> None:
    """Spoil requests of operations on moto's server; and races, in round 0 on both servers."""
    with moto_server() as port, S3Proxy(port) as proxy:
        bucket = _Bucket(proxy, port)
        before = rows_of(
            DeltaTable(f"s3://{BUCKET}/{bucket.template}", storage_options=bucket.direct)
        )
        operations = round_.random.sample(OPERATIONS, 4 if round_.short else 12)
        for operation in operations:
            if round_.is_over:
                return
            _spoil(round_, bucket, operation, before)
        # Both servers compare and store in two steps: of racing puts several would win.
        proxy.strike(None)
        if round_.is_over:
            return
        proxy.one_put_at_a_time = True
        _race(round_, "moto", proxy.endpoint)
        proxy.one_put_at_a_time = False
        if not round_.short and round_.number == 0 and not round_.is_over:
            _list_many(round_, bucket)
    if not round_.short and round_.number == 0 and not round_.is_over:
        try:
            with s3mock_server(round_.scratch) as port, S3Proxy(port) as proxy:
                proxy.one_put_at_a_time = True
                _race(round_, "S3Mock", proxy.endpoint)
        except Unavailable as missing:
            round_.result.skipped = str(missing)


def _spoil(round_: Round, bucket: _Bucket, operation: PublicOperation, before: Rows) -> None:
    uri = bucket.copy()
    bucket.proxy.strike(None)
    value = bucket.run(operation, uri)
    requests = bucket.proxy.requests
    after = rows_of(DeltaTable(uri, storage_options=bucket.direct))
    expected = (before, after, value)
    bucket.proxy.small_pages = True
    _check(round_, bucket, operation, None, expected)
    bucket.proxy.small_pages = False
    for _ in range(2 if round_.short else 4):
        if round_.is_over:
            return
        kind = round_.random.choice(FAULTS)
        # One is repeated by the client; an outage outlasts its retries.
        count = 1 if round_.short else round_.random.choice([1, 1, 1, 3])
        strike = Strike(kind, round_.random.randint(1, requests), count)
        _check(round_, bucket, operation, strike, expected)


def _check(
    round_: Round,
    bucket: _Bucket,
    operation: PublicOperation,
    strike: Strike | None,
    expected: tuple[Rows, Rows, object],
) -> None:
    before, after, value = expected
    kind = "small pages" if strike is None else strike.kind
    uri = bucket.copy()
    error: DeltaError | None = None
    found: object = None
    round_.result.operations += 1
    round_.fault(kind)
    bucket.proxy.strike(strike)
    try:
        found = bucket.run(operation, uri)
    except DeltaError as refused:
        error = refused
    except Exception as raised:  # noqa: BLE001 - what it is, is the finding
        title = f"{operation.name}: {type(raised).__module__}.{type(raised).__name__} ({kind})"
        round_.fail(title, f"{strike}: {raised!r}"[:600])
        return
    finally:
        bucket.proxy.strike(None)
    if strike is None and error is not None:
        round_.fail(f"{operation.name}: refused where listings have small pages", repr(error))
    if error is None and operation.reads and found != value:
        round_.fail(f"{operation.name}: another result ({kind})", f"{strike}: {found}"[:600])
    try:
        rows = rows_of(DeltaTable(uri, storage_options=bucket.direct))
    except DeltaError as unreadable:
        round_.fail(
            f"{operation.name}: unreadable after {kind}", f"{strike} {error!r}: {unreadable}"
        )
        return
    if rows != after and (error is None or rows != before):
        round_.fail(f"{operation.name}: other rows ({kind})", f"{strike} {error!r}")


def _list_many(round_: Round, bucket: _Bucket) -> None:
    """A log with more commits than a page of a listing holds."""
    prefix = uuid.uuid4().hex
    uri = f"s3://{BUCKET}/{prefix}"
    table = DeltaTable.create(
        uri, pa.schema([("id", pa.int64())]), storage_options=bucket.direct,
        properties={"delta.checkpointInterval": "100000"},
    )  # fmt: skip
    for version in range(1, LONG_LOG):
        key = f"{prefix}/_delta_log/{version:020}.json"
        content = b'{"txn":{"appId":"soak","version":%d}}' % version
        bucket.client.put_object(Bucket=BUCKET, Key=key, Body=content)
    round_.result.operations += 1
    round_.fault("long listings")
    latest = table.append(pa.table({"id": [1]})).version
    if latest != LONG_LOG or table.refresh().transaction_version("soak") != LONG_LOG - 1:
        round_.fail("a log of more than 1,000 keys", f"version {latest}")


Outcome = tuple[int, list[int], list[int]]


def _race(round_: Round, server: str, endpoint: str) -> None:
    """Let processes put one name at the same time, and append at the same time."""
    options = options_of(endpoint)
    uri = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    DeltaTable.create(uri, pa.schema([("id", pa.int64())]), storage_options=options)
    context = preloaded_processes()
    rounds = 4 if round_.short else 25
    barrier, answers = context.Barrier(RACERS), context.Queue()
    processes = [
        context.Process(target=_racer, args=(uri, options, racer, rounds, barrier, answers))
        for racer in range(RACERS)
    ]
    for process in processes:
        process.start()
    outcomes: list[Outcome] = [answers.get(timeout=300) for _ in processes]
    for process in processes:
        process.join(30)
    round_.fault(f"races on {server}", rounds * 2)
    round_.result.operations += rounds * 2 * RACERS
    for number in range(rounds):
        winners = [racer for racer, won, _ in outcomes if number in won]
        if len(winners) != 1:
            round_.fail(f"{server}: a race without exactly one winner", f"{number}: {winners}")
    versions = sorted(version for _, _, made in outcomes for version in made)
    if versions != list(range(1, len(versions) + 1)):
        round_.fail(f"{server}: versions are not contiguous", str(versions))
    ids = DeltaTable(uri, storage_options=options).snapshot().scan().to_arrow()["id"].to_pylist()
    if len(ids) != len(versions) or len(set(ids)) != len(ids):
        round_.fail(f"{server}: rows lost or doubled", f"{len(ids)} of {len(versions)}")


def _racer(
    uri: str,
    options: dict[str, str],
    racer: int,
    rounds: int,
    barrier: Barrier,
    answers: Queue[Outcome],
) -> None:
    store = open_store(uri, options)
    table = DeltaTable(uri, storage_options=options)
    won: list[int] = []
    versions: list[int] = []

    def attempt(act: Callable[[], object]) -> bool:
        barrier.wait(120)
        try:
            act()
        except (FileExistsError, DeltaError):
            return False
        return True

    for number in range(rounds):
        name = f"_soak/{number:020}.json"
        if attempt(partial(store.put_if_absent, name, b"%d" % racer)):
            won.append(number)
        row = pa.table({"id": pa.array([racer * 1000 + number], pa.int64())})
        if attempt(partial(table.append, row)):
            versions.append(table.version())
    answers.put((racer, won, versions))
