"""Requests to S3 and the time they take, with a delay in front of every request.

Moto's server answers in a process of its own, behind a proxy here that counts requests and waits 20
ms before each. Both libraries run the same operations, each on a table of its own with the same
content; the requests of the first operation include those of opening connections.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.storage.failing_endpoint import FailingEndpoint, failing_endpoint

DELAY_S = 0.02
REPETITIONS = 5


class _Delayed(FailingEndpoint):
    """Counts requests, and answers all of them truly, but later."""

    def way_for(self, method: str, path: str) -> None:
        time.sleep(DELAY_S)
        with self._lock:
            self.seen.append((method, path))


def _rows(count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(count), pa.int64()), "name": ["name"] * count})


def _fill(uri: str, options: dict[str, str], files: int) -> None:
    from dagster_delta import DeltaTable

    table = DeltaTable.create(uri, _rows(1).schema, storage_options=options)
    for _ in range(files):
        table.append(_rows(100), properties={})
    table.checkpoint()
    for _ in range(10):
        table.append(_rows(100))


def _ours(uri: str, options: dict[str, str]) -> dict[str, Callable[[], object]]:
    from dagster_delta import DeltaTable
    from dagster_delta.table.read.watch import read_new_commits, start_cursor

    table = DeltaTable(uri, storage_options=options)
    cursor = start_cursor(table.store)
    return {
        "open": lambda: DeltaTable(uri, storage_options=options).snapshot().num_records,
        "scan": lambda: table.snapshot().scan().to_arrow(),
        "idle tick": lambda: read_new_commits(table.store, cursor),
        "append": lambda: table.append(_rows(100)),
    }


def _deltalake(uri: str, options: dict[str, str]) -> dict[str, Callable[[], object]]:
    from deltalake import DeltaTable, write_deltalake

    table = DeltaTable(uri, storage_options=options)
    return {
        "open": lambda: DeltaTable(uri, storage_options=options),
        "scan": table.to_pyarrow_table,
        "idle tick": table.update_incremental,
        "append": lambda: write_deltalake(table, _rows(100), mode="append"),
    }


def _measure(endpoint: FailingEndpoint, operation: Callable[[], object]) -> tuple[list[int], float]:
    counts, times = [], []
    operation()
    for _ in range(REPETITIONS):
        endpoint.seen = []
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
        counts.append(len(endpoint.seen))
    return counts, sorted(times)[REPETITIONS // 2]


def main() -> None:
    """Print requests and milliseconds of each operation and library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20, help="data files before the checkpoint")
    # `python -m benchmarks` passes the arguments of the other scripts to all.
    files = parser.parse_known_args()[0].files
    port = _free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await_port(port)
        _compare(f"http://127.0.0.1:{port}", files)
    finally:
        server.terminate()
        server.wait(30)


def _compare(behind: str, files: int) -> None:
    import botocore.session

    session = botocore.session.Session()
    session.set_credentials("key", "secret")
    bucket = f"bucket-{uuid.uuid4().hex}"
    session.create_client("s3", region_name="us-east-1", endpoint_url=behind).create_bucket(
        Bucket=bucket
    )
    options = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_CONDITIONAL_PUT": "etag",
    }
    libraries: dict[str, Any] = {"ours": _ours, "deltalake": _deltalake}
    found: dict[str, dict[str, tuple[list[int], float]]] = {}
    for name, start in libraries.items():
        uri = f"s3://{bucket}/{name}"
        _fill(uri, {**options, "AWS_ENDPOINT_URL": behind}, files)
        with failing_endpoint(behind, _Delayed()) as endpoint:
            operations = start(uri, {**options, "AWS_ENDPOINT_URL": endpoint.url})
            found[name] = {each: _measure(endpoint, run) for each, run in operations.items()}
    print(f"| {'operation':10} | ours | deltalake | ratio of times |\n|---|---|---|---|")
    for each in found["ours"]:
        (ours, ours_s), (theirs, theirs_s) = found["ours"][each], found["deltalake"][each]
        print(
            f"| {each:10} | {max(ours)} requests, {ours_s * 1000:.0f} ms "
            f"| {max(theirs)} requests, {theirs_s * 1000:.0f} ms | {ours_s / theirs_s:.2f} |",
            flush=True,
        )


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(port: int) -> None:
    import socket

    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)


if __name__ == "__main__":
    main()
