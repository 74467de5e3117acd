"""A real S3 API server, and a bucket of one's own."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("dagster_delta.testing.store_conformance")


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The URL of an S3 server on this machine."""
    server_module = pytest.importorskip("moto.server", reason="S3 tests need moto[server]")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_options(s3_endpoint: str) -> dict[str, str]:
    """Storage options of a new account: no client is shared with another test."""
    return {
        "AWS_ACCESS_KEY_ID": f"key-{uuid.uuid4().hex}",
        "AWS_SECRET_ACCESS_KEY": f"secret-{uuid.uuid4().hex}",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ALLOW_HTTP": "true",
    }


@pytest.fixture
def s3_bucket(s3_options: dict[str, str]) -> str:
    """The name of a new, empty bucket."""
    from dagster_delta.storage.s3_connection import connect
    from dagster_delta.storage.s3_options import parse_s3_options

    bucket = f"bucket-{uuid.uuid4().hex}"
    connect(parse_s3_options(s3_options)).client.create_bucket(Bucket=bucket)
    return bucket
