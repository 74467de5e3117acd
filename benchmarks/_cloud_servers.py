"""Servers of the three clouds on this machine, each behind a `_slow_proxy`."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from dagster_delta.storage import open_store
from tests.sessions import free_port
from tests.storage.emulators import (
    AZURITE_ACCOUNT,
    AZURITE_KEY,
    azurite,
    fake_gcs_server,
    make_container,
    make_gcs_bucket,
    running,
)

_Options: TypeAlias = dict[str, str]
_Server: TypeAlias = tuple[str, str, Callable[[str], tuple[_Options, _Options]]]
"""URL, URI of a bucket, and what returns the options of both libraries for a URL."""


@dataclass(frozen=True)
class Cloud:
    """A bucket behind the proxy."""

    root: str
    """URI of the bucket."""
    proxy: str
    """URL of the proxy."""
    ours: _Options
    """Storage options of this library."""
    peers: _Options
    """Storage options of `deltalake`."""
    direct: _Options
    """Storage options of this library without the proxy."""

    def seen(self) -> list[str]:
        """The requests since the last call."""
        with urllib.request.urlopen(f"{self.proxy}/-/seen") as answer:
            return list(json.loads(answer.read()))

    def put(self, prefix: str, objects: Iterable[tuple[str, Callable[[], bytes]]]) -> None:
        """Create objects below a prefix, each from its name and what returns its bytes."""
        store = open_store(f"{self.root}/{prefix}", self.direct)
        with ThreadPoolExecutor(16) as pool:
            for _ in pool.map(lambda item: store.put(item[0], item[1]()), objects):
                pass

    def load(self, prefix: str, directory: Path, *, checksums: bool = True) -> None:
        """Create the files of a directory below a prefix."""
        files = [
            file
            for file in directory.rglob("*")
            if file.is_file() and (checksums or file.suffix != ".crc")
        ]
        self.put(prefix, [(f.relative_to(directory).as_posix(), f.read_bytes) for f in files])


@contextmanager
def _s3() -> Iterator[_Server]:
    port = free_port()
    with running([sys.executable, "-m", "benchmarks._s3_server", f"--port={port}"], port):

        def options(url: str) -> tuple[_Options, _Options]:
            known = {
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "us-east-1",
                "AWS_ALLOW_HTTP": "true",
                "AWS_CONDITIONAL_PUT": "etag",
                "AWS_ENDPOINT_URL": url,
            }
            return known, known

        yield f"http://127.0.0.1:{port}", "s3://bucket", options


@contextmanager
def _azure() -> Iterator[_Server]:
    with azurite() as endpoint:

        def options(url: str) -> tuple[_Options, _Options]:
            account = f"{url}/{AZURITE_ACCOUNT}"
            known = {
                "account_name": AZURITE_ACCOUNT,
                "account_key": AZURITE_KEY,
                "endpoint": account,
            }
            peers = {f"azure_storage_{name}": value for name, value in known.items()}
            return {**known, "conditional_put": "etag"}, {**peers, "allow_http": "true"}

        url = endpoint.removesuffix(f"/{AZURITE_ACCOUNT}")
        yield url, f"az://{make_container(options(url)[0])}", options


@contextmanager
def _google() -> Iterator[_Server]:
    with fake_gcs_server() as endpoint:

        def options(url: str) -> tuple[_Options, _Options]:
            key = {"gcs_base_url": url, "disable_oauth": True, "client_email": ""}
            key |= {"private_key": "", "private_key_id": ""}
            ours = {"endpoint": url, "bearer_token": "token", "conditional_put": "etag"}
            return ours, {"google_service_account_key": json.dumps(key)}

        yield endpoint, f"gs://{make_gcs_bucket(endpoint)}", options


CLOUDS: Mapping[str, Callable[[], AbstractContextManager[_Server]]] = {
    "s3": _s3,
    "azure": _azure,
    "google": _google,
}


@contextmanager
def slow_cloud(name: str, *, delay_ms: float, bytes_per_second: float) -> Iterator[Cloud]:
    """A bucket of a cloud.

    Args:
        name: one of `CLOUDS`.
        delay_ms: before each request is passed on.
        bytes_per_second: that each connection downloads; 0 for no limit.
    """
    port = free_port()
    with CLOUDS[name]() as (url, root, options):
        command = [sys.executable, "-m", "benchmarks._slow_proxy", f"--port={port}"]
        upstream = url.rpartition(":")[2]
        command += [f"--upstream={upstream}", f"--delay-ms={delay_ms}"]
        command += [f"--bytes-per-second={bytes_per_second}"]
        proxy = f"http://127.0.0.1:{port}"
        with running(command, port):
            ours, peers = options(proxy)
            yield Cloud(root, proxy, ours, peers, options(url)[0])
