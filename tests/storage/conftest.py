"""A real S3 API server, and a bucket of one's own."""

from __future__ import annotations

import functools
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from dagster_delta.storage import open_store
from dagster_delta.storage.cloud.store import CloudStore
from tests.storage.emulators import (
    AZURITE_KEY,
    azurite,
    fake_gcs_server,
    hdfs,
    make_container,
    make_gcs_bucket,
    minio,
)
from tests.storage.failing_endpoint import FailingEndpoint, failing_endpoint
from tests.storage.impatience import make_impatient

CLOUDS = ("s3", "azure", "google")

pytest.register_assert_rewrite("dagster_delta.testing.store_conformance")


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The URL of an S3 server on this machine."""
    server_module = pytest.importorskip("moto.server", reason="S3 tests need moto[server]")
    responses = pytest.importorskip("moto.s3.responses")
    # moto looks for the object and stores it in two steps, between which other threads may store.
    responses.S3Response.put_object = _one_at_a_time(responses.S3Response.put_object)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def _one_at_a_time(put: Callable[..., Any]) -> Callable[..., Any]:
    lock = threading.Lock()

    @functools.wraps(put)
    def locked(*arguments: Any) -> Any:
        with lock:
            return put(*arguments)

    return locked


@pytest.fixture
def s3_options(s3_endpoint: str) -> dict[str, str]:
    """Storage options of a new account: no client is shared with another test."""
    return new_s3_account(s3_endpoint)


def new_s3_account(s3_endpoint: str) -> dict[str, str]:
    """Storage options of a new account."""
    return {
        "AWS_ACCESS_KEY_ID": f"key-{uuid.uuid4().hex}",
        "AWS_SECRET_ACCESS_KEY": f"secret-{uuid.uuid4().hex}",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ALLOW_HTTP": "true",
    }


@pytest.fixture
def endpoint(s3_endpoint: str) -> Iterator[FailingEndpoint]:
    """An endpoint in front of the S3 server that answers as a test says."""
    with failing_endpoint(s3_endpoint) as made:
        yield made


@pytest.fixture
def options(s3_options: dict[str, str], endpoint: FailingEndpoint) -> dict[str, str]:
    """Storage options for that endpoint."""
    return {**s3_options, "AWS_ENDPOINT_URL": endpoint.url}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask twice, and without a pause."""
    make_impatient(monkeypatch.setattr)


@pytest.fixture
def short_answers(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many keys an answer of the S3 server has from now on; for a thousand it takes seconds."""
    keys = 10
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", str(keys))
    monkeypatch.setattr("dagster_delta.storage.cloud.store._PAGE", keys)
    return keys


@pytest.fixture
def s3_bucket(s3_options: dict[str, str]) -> str:
    """The name of a new, empty bucket."""
    return make_s3_bucket(s3_options)


@pytest.fixture(scope="session")
def minio_options() -> Iterator[dict[str, str]]:
    """Storage options for a MinIO server."""
    with minio() as options:
        yield options


@pytest.fixture
def minio_bucket(minio_options: dict[str, str]) -> str:
    """The name of a new, empty bucket."""
    return make_s3_bucket(minio_options)


@pytest.fixture(scope="session")
def azurite_endpoint() -> Iterator[str]:
    """The URL of an account of the Azure emulator."""
    with azurite() as endpoint:
        yield endpoint


@pytest.fixture
def azure_options(azurite_endpoint: str) -> dict[str, str]:
    """Storage options for the emulator of Azure."""
    return {
        "account_name": "devstoreaccount1",
        "account_key": AZURITE_KEY,
        "endpoint": azurite_endpoint,
    }


@pytest.fixture
def azure_container(azure_options: dict[str, str]) -> str:
    """The name of a new, empty container."""
    return make_container(azure_options)


@pytest.fixture(scope="session")
def gcs_endpoint() -> Iterator[str]:
    """The URL of an emulator of Google Cloud Storage."""
    with fake_gcs_server() as endpoint:
        yield endpoint


@pytest.fixture
def gcs_options(gcs_endpoint: str) -> dict[str, str]:
    """Storage options for the emulator of Google Cloud Storage, which checks no token."""
    return {"bearer_token": f"token-{uuid.uuid4().hex}", "endpoint": gcs_endpoint}


@pytest.fixture
def gcs_bucket(gcs_endpoint: str) -> str:
    """The name of a new, empty bucket."""
    return make_gcs_bucket(gcs_endpoint)


@pytest.fixture(scope="session")
def hdfs_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the NameNode of an HDFS cluster."""
    pytest.importorskip("hdfs_native", reason="HDFS needs hdfs-native")
    own = tmp_path_factory.getbasetemp()
    with hdfs(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) as url:
        yield url


@pytest.fixture
def hdfs_root(hdfs_cluster: str) -> str:
    """The URI of a directory that does not exist yet."""
    return f"{hdfs_cluster}/{uuid.uuid4().hex}/a lake%20#"


@dataclass(frozen=True)
class Cloud:
    """A bucket, reached directly and through the endpoint that fails."""

    uri: str
    sound: dict[str, str]
    failing: dict[str, str]
    endpoint: FailingEndpoint

    @contextmanager
    def again(self) -> Iterator[Cloud]:
        """The same bucket through another endpoint, for what runs at the same time."""
        (option,) = (name for name in self.sound if self.sound[name] != self.failing[name])
        with failing_endpoint(self.sound[option]) as endpoint:
            yield replace(self, failing={**self.sound, option: endpoint.url}, endpoint=endpoint)


@pytest.fixture
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    """The cloud that a test names."""
    name, place, option, scheme = {
        "s3": ("s3_options", "s3_bucket", "AWS_ENDPOINT_URL", "s3"),
        "azure": ("azure_options", "azure_container", "endpoint", "az"),
        "google": ("gcs_options", "gcs_bucket", "endpoint", "gs"),
    }[request.param]
    sound: dict[str, str] = request.getfixturevalue(name)
    uri = f"{scheme}://{request.getfixturevalue(place)}"
    with failing_endpoint(sound[option]) as endpoint:
        yield Cloud(uri, sound, {**sound, option: endpoint.url}, endpoint)


def make_s3_bucket(options: Mapping[str, str]) -> str:
    """A new, empty bucket of an S3 server."""
    bucket = f"bucket-{uuid.uuid4().hex}"
    s3_client(options).create_bucket(Bucket=bucket)
    return bucket


def cloud_store(uri: str, options: Mapping[str, str]) -> CloudStore:
    """The store of a table in a cloud."""
    store = open_store(uri, options)
    assert isinstance(store, CloudStore)
    return store


def s3_client(options: Mapping[str, str]) -> Any:
    """A botocore client with an account of `s3_options`, for what the store does not do."""
    return _botocore_session().create_client(
        "s3",
        region_name=options["AWS_REGION"],
        endpoint_url=options["AWS_ENDPOINT_URL"],
        aws_access_key_id=options["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=options["AWS_SECRET_ACCESS_KEY"],
    )


@cache
def _botocore_session() -> Any:
    """A session for all accounts: each would read the description of S3 anew, for 0.1 seconds."""
    import botocore.session

    return botocore.session.Session()
